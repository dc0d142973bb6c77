"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RULES = {"l": "---", "r": "---:"}


def markdown_table(
    head: Sequence[str], body: Iterable[Sequence[str]], columns: str | None = None
) -> str:
    """A Markdown table without a line break at its end.

    Args:
      head: titles of the columns.
      body: rows of as many cells.
      columns: "l" or "r" for each column, its text to the left or the right; None: the first
        column to the left, the others to the right.
    """
    if columns is None:
        columns = "l" + "r" * (len(head) - 1)
    rows = [head, [RULES[side] for side in columns], *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
