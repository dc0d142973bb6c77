"""docs/evaluation.md tells the truth: commands, configs, files and counts are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from doc_commands import ROOT, page

from turnwise_jax.data import DATASETS
from turnwise_jax.eval import BENCHMARKS, JUDGED
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.run import PREDICTIONS, REPORT, SKIPPED, THROUGHPUT
from turnwise_jax.train.validate import flatten

DOC = page("docs/evaluation.md")


def test_every_public_benchmark_and_its_main_number_stand_in_the_table():
    rows = re.findall(r"^\| `(\w+)\.py` \|.*\| `(\w+)`", DOC, re.MULTILINE)
    configs = {path.stem for path in (ROOT / "configs" / "eval").glob("*.py")}
    assert {name for name, _ in rows} == configs - {"streaming", "qa"}
    for name, number in rows:
        module = BENCHMARKS.get(name, BENCHMARKS["streamingbench"])
        assert f'"{number}"' in Path(module.__file__).read_text() or number == "pauc", name


def test_files_and_counts_are_called_so():
    for name in (PREDICTIONS, REPORT, THROUGHPUT, SKIPPED):
        assert f"`{name}`" in DOC
    sources = "".join(Path(module.__file__).read_text() for module in BENCHMARKS.values())
    rules = DOC[DOC.index("## Rules") : DOC.index("Timing depends")]
    names = re.findall(r"`(\w+_\w+)`", rules)
    assert len(names) == 8
    for name in names:
        assert name in sources or name.endswith("_over_tasks"), name


def test_fields_and_links_exist():
    fields = flatten(eval_config().to_dict())
    sections = {name.split(".")[0] for name in fields}
    named = {name for name in re.findall(r"`(\w+\.\w+)(?:=\w+)?`", DOC)}
    named = {name for name in named if name.split(".")[0] in sections}
    assert named >= {"policy.param_dtype", "judge.kind"}
    assert named <= fields.keys()
    for name, heading in re.findall(r"\]\(([\w.]+)#(\w+)\)", DOC):
        assert f"\n## {heading.capitalize()}\n" in page(f"docs/{name}")


def test_what_is_counted_is_there():
    assert "in seven configs" in DOC
    assert len(re.findall(r"^\| `\w+\.py`", DOC, re.MULTILINE)) == 7
    assert "twelve public question benchmarks" in DOC
    avatar = page("docs/avatar.md")
    table = avatar[avatar.index("| `NAME` |") :]
    listed = re.findall(r"^\| `([a-z_]+)` \| ", table[: table.index("\n\n")], re.MULTILINE)
    assert len(listed) == 12
    assert set(listed) <= set(DATASETS)


def test_the_configs_with_a_judge_are_named():
    (line,) = re.findall(r"^Two configs ask a judge: (.*?)\. ", DOC, re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)\.py`", line)) == JUDGED
    for name in JUDGED:
        told = (ROOT / "configs" / "eval" / f"{name}.py").read_text()
        assert "rule judge" in told
        assert "--config.judge.kind=openai" in told
