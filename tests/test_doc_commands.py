"""Every command line in README and docs is one that the code would take."""

from __future__ import annotations

import re

import pytest
from doc_commands import PAGES, ROOT, commands, page, read

from turnwise_jax.data import DATASETS
from turnwise_jax.errors import InputError
from turnwise_jax.eval.run import CONTROLS
from turnwise_jax.train.validate import check_fields

SHOWN = [(name, words) for name in PAGES for words in commands(page(name))]
TRAINING = ("train", "compile", "shapes")
BENCH = re.findall(r"^\t\$\(BENCH\)/(.*)$", page("Makefile"), re.MULTILINE)


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_pages_with_commands_are_read():
    shown = {name for name, _ in SHOWN}
    assert shown >= {"README.md", *(f"docs/{name}.md" for name in ("pods", "compile", "data"))}
    assert len([words for name, words in SHOWN if name == "docs/pods.md"]) >= 4
    assert {words[1] for name, words in SHOWN if name == "docs/performance.md"} > {
        *("train", "compile", "shapes", "benchmarks/scaling.py", "benchmarks/tunix.py"),
    }


@pytest.mark.parametrize(
    ("name", "words"), SHOWN, ids=[f"{name}-{' '.join(words[1:3])}" for name, words in SHOWN]
)
def test_commands_flags_and_fields_exist(name, words):
    values = read(words)
    if words[1] in TRAINING and "stages" not in values.config:
        check_fields(values.config)
    if words[1] == "eval" and values.config is not None:
        assert values.config.control in CONTROLS
    if words[1:3] == ["data", "check"]:
        assert values.source in DATASETS


@pytest.mark.parametrize("line", BENCH, ids=lambda line: line.split()[0])
def test_make_bench_calls_scripts_with_flags_of_theirs(line):
    (model,) = re.findall(r"^MODEL := (.*)$", page("Makefile"), re.MULTILINE)
    line = line.replace("$(MODEL)", model).replace("$(RUNS)", "runs")
    assert read(["python", *f"benchmarks/{line}".split()]).json.suffix == ".json"


def test_lines_of_other_programs_are_looked_into():
    text = """
```bash
all 'cd turnwise && nohup ~/venv/bin/turnwise train --config=a.py \\
    --config.hosts.index=$N > ~/log 2>&1 &'
pip install turnwise   # turnwise train --nothing
```
```yaml
      - exec turnwise eval --config=b.py
          --config.dir=c
```
`turnwise score --input=x` and `python benchmarks/kernels.py --groups=4`, `turnwise study`
"""
    assert [" ".join(words) for words in commands(text)] == [
        "turnwise train --config=a.py --config.hosts.index=1",
        "turnwise eval --config=b.py --config.dir=c",
        "turnwise score --input=x",
        "python benchmarks/kernels.py --groups=4",
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("turnwise train --config=configs/turnwise/qwen2_5_vl_3b.py --config.data.nme=1", "nme"),
        ("turnwise train --config=configs/none.py", "no such file"),
        ("turnwise score --inputs=x", "inputs"),
        ("turnwise world --kind=stream --outs=x", "outs"),
        ("python benchmarks/kernels.py --numpy_groups=4", "2"),
    ],
)
def test_what_does_not_exist_is_found(line, error):
    with pytest.raises((InputError, SystemExit), match=error):
        read(line.split())
