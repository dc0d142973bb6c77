"""docs/evaluation.md tells the truth: commands, configs, files and counts are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from doc_commands import ROOT, page

from turnwise_jax.eval import BENCHMARKS
from turnwise_jax.eval.run import PREDICTIONS, REPORT, SKIPPED, THROUGHPUT

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
