"""What was found in a set, as Markdown and as JSON lines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from turnwise_jax.data.checking.checking import Checked
from turnwise_jax.data.checking.problems import KINDS, Problem
from turnwise_jax.data.checking.tally import Tally
from turnwise_jax.data.sources.json_lines import write_rows
from turnwise_jax.files import write_text
from turnwise_jax.tables import markdown_table

EXAMPLES = 3  # of each kind of problem
LONGEST = 20  # rows of a table of names
QUANTILES = ("min", "25 %", "median", "75 %", "95 %", "max", "mean")

Row = Sequence[object]


def write_summary(checked: Checked, folder: str | os.PathLike[str]) -> list[Path]:
    """``summary.md`` and ``problems.jsonl`` below a folder, which is made; gives their paths."""
    folder = Path(folder)
    summary, problems = folder / "summary.md", folder / "problems.jsonl"
    write_text(summary, markdown(checked))
    write_rows(map(_problem_row, checked.problems), problems)
    return [summary, problems]


def markdown(checked: Checked) -> str:
    """The whole summary."""
    tally = checked.tally
    parts = [
        f"# {checked.path} ({checked.source})",
        f"{tally.records} records, {checked.unusable} unusable.",
        table(("", "count"), _counts(checked)),
        "## Distributions",
        table(("", "values", *QUANTILES), _distributions(tally)),
    ]
    if tally.decisions:
        parts += [
            "## Decisions in a window",
            table(("decisions", "windows", "share"), _shares(_decisions(tally))),
        ]
    for title, names in _names(tally).items():
        if len(names) > 1 or any(names):
            parts += [f"## {title}", table(("", "records", "share"), _shares(names))]
    parts += ["## Problems", *_problems(checked)]
    return "\n\n".join(parts) + "\n"


def table(head: Row, rows: Iterable[Row], *, texts: int = 0) -> str:
    """A Markdown table: first and last ``texts`` columns to the left, numbers to the right."""
    columns = "l" + "r" * (len(head) - 1 - texts) + "l" * texts
    return markdown_table([*map(_cell, head)], ([*map(_cell, row)] for row in rows), columns)


def quantiles(values: Sequence[float]) -> list[str]:
    """Numbers in the order of ``QUANTILES``, as text."""
    numbers = np.asarray(values, float)
    found = [*np.quantile(numbers, (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)), numbers.mean()]
    return [f"{number:.4g}" for number in found]


def _problem_row(problem: Problem) -> dict[str, object]:
    places = {name: getattr(problem, name) for name in ("file", "row", "record", "field")}
    return {
        **places,
        "kind": problem.kind,
        "unusable": problem.fatal,
        "message": problem.message,
    }


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def _counts(checked: Checked) -> list[Row]:
    tally, media = checked.tally, checked.media
    bad = {kind: len(files) for kind, files in media.bad.items()}
    rows: list[Row] = [
        ("files", len(checked.files)),
        ("records", tally.records),
        ("unusable records", checked.unusable),
        ("streaming dialogues", tally.streaming),
        ("questions with one answer", tally.questions),
        ("turns", tally.turns),
        ("turns left to the policy", tally.open_turns),
        ("given turns", tally.given_turns),
        ("given replies", tally.replies),
        ("silent share of the given turns", _percent(tally.silences, tally.given_turns)),
        ("windows", len(tally.window_seconds)),
        ("windows without a decision", sum(count == 0 for count in tally.decisions)),
        ("times at which a reply is due", tally.due_times),
        ("frames", tally.frames),
        *((f"{kind} files", len(files)) for kind, files in media.used.items()),
        ("missing media files", bad.get("missing_media", 0)),
        ("broken media files", bad.get("broken_media", 0)),
        ("media files shown past their end", bad.get("no_such_frame", 0)),
    ]
    kept = ("records", "unusable records", "missing media files", "broken media files")
    return [row for row in rows if row[0] in kept or row[1]]


def _distributions(tally: Tally) -> list[Row]:
    named = {
        "dialogue or clip, s": tally.dialogue_seconds,
        "turns of a dialogue": tally.turns_each,
        "window, s": tally.window_seconds,
        "gap between windows, s": tally.gap_seconds,
        "decisions in a window": tally.decisions,
        "user text, characters": tally.user_text,
        "given reply, characters": tally.reply_text,
        "right answer, characters": tally.answer_text,
    }
    return [(name, len(v), *quantiles(v)) for name, v in named.items() if len(v)]


def _decisions(tally: Tally) -> dict[str, int]:
    counts = Counter(min(int(count), 3) for count in tally.decisions)
    return {f"{n} or more" if n == 3 else str(n): counts[n] for n in range(4)}


def _names(tally: Tally) -> dict[str, Mapping[str, int]]:
    """Title -> how many records have which name."""
    return {
        "Subsets": tally.subsets,
        "Kinds of question": tally.kinds,
        "Options": {str(count): records for count, records in sorted(tally.options.items())},
        "Right options": dict(sorted(tally.letters.items())),
        "Categories": tally.categories,
    }


def _shares(counts: Mapping[str, int]) -> list[Row]:
    """Name, count, share; of many names the most frequent ones."""
    total = sum(counts.values())
    rows = list(counts.items())
    if len(rows) > LONGEST:
        rows = Counter(counts).most_common(LONGEST)
        rows.append((f"{len(counts) - LONGEST} others", total - sum(n for _, n in rows)))
    return [(name or "(none)", count, _percent(count, total)) for name, count in rows]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _problems(checked: Checked) -> list[str]:
    """A table by kind, and the first examples of each."""
    if not checked.problems:
        return ["None."]
    times = checked.counts
    rows, examples = [], []
    for kind, (fatal, meaning) in KINDS.items():
        own = [problem for problem in checked.problems if problem.kind == kind]
        if own:
            records = len({(problem.file, problem.row) for problem in own})
            rows.append((kind, records, times[kind], "yes" if fatal else "", meaning))
            examples += [f"* {_cell(problem)}" for problem in own[:EXAMPLES]]
    head = ("kind", "records", "times", "unusable", "what it is")
    return [table(head, rows, texts=2), "\n".join(examples)]
