"""Reports beside one another: the table, the command, and what does not belong together."""

from __future__ import annotations

import pytest

from turnwise_jax.cli.main import main
from turnwise_jax.errors import InputError
from turnwise_jax.eval import compare
from turnwise_jax.eval.report import Report


@pytest.fixture
def files(tmp_path):
    """Two reports of one benchmark in runs of their own."""
    first = Report("ovo_timing", "the rule", {"f1": 20.0, "f1/CRR": 9.5}, {"f1": (15.0, 25.0)})
    second = Report("ovo_timing", "the rule", {"f1": 30.0, "f1/REC": 1.0}, {})
    paths = [tmp_path / name / "report.json" for name in ("sft", "turnwise")]
    first.write(paths[0])
    second.write(paths[1])
    return paths


def test_every_metric_has_a_row_and_every_report_a_column(files):
    reports = compare.read_reports(files)
    assert list(reports) == ["sft", "turnwise"]
    assert compare.cells(reports) == [
        ["f1", "20.00 (15.00 to 25.00)", "30.00"],
        ["f1/CRR", "9.50", ""],
        ["f1/REC", "", "1.00"],
    ]


def test_the_command_prints_and_writes_the_table(files, tmp_path, capsys):
    out = tmp_path / "table.md"
    flags = [f"--compare={files[0]},{files[1]}", f"--markdown={out}"]
    assert main(["eval", *flags]) == 0
    assert "20.00 (15.00 to 25.00)" in capsys.readouterr().out
    text = out.read_text()
    assert text.startswith("# ovo_timing\n\n| metric | sft | turnwise |\n| --- | ---: | ---: |\n")
    assert "| f1/REC |  | 1.00 |" in text
    assert text.endswith("the rule.\n")


def test_folders_that_are_called_alike_keep_their_paths(files, tmp_path):
    other = tmp_path / "more" / "sft" / "report.json"
    Report.read(files[0]).write(other)
    assert list(compare.read_reports([*files, other])) == [str(files[0]), "turnwise", str(other)]


def test_what_does_not_belong_together_is_refused(files, tmp_path):
    other = tmp_path / "other" / "report.json"
    Report("ovo_timing", "another rule", {"f1": 1.0}).write(other)
    with pytest.raises(InputError, match="another rule") as caught:
        compare.read_reports([*files, other])
    assert caught.value.file == str(other)
    with pytest.raises(InputError, match="two or more"):
        compare.read_reports(files[:1])
    with pytest.raises(InputError, match="twice"):
        compare.read_reports([files[0], files[0]])
    with pytest.raises(InputError, match="is not a report"):
        compare.read_reports([files[0], tmp_path / "none.json"])
