"""Progress of long work: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_EVERY_SECONDS = 15.0


class ProgressBar:
    """``with ProgressBar("train", total) as bar: bar.update(1, "loss 0.3")``.

    On a terminal it draws a bar on standard error; when standard error is a file or a pipe it
    prints one line every 15 seconds and one at the end. Work that ends in an error leaves the last
    word to the error.

    Args:
      title: what is being done.
      total: units of work in all; nothing is printed for none.
      done: units done before, which count as neither speed nor news.
    """

    def __init__(self, title: str, total: int, *, done: int = 0):
        self.title, self.total, self.done = title, total, done
        self._note = ""
        self._printed = done
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> ProgressBar:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif kind is None and self._printed != self.done:
            self._print_line()

    def update(self, count: int = 1, note: str | None = None) -> None:
        """Advance by ``count`` and show ``note`` beside the bar."""
        self.done += count
        self._note = self._note if note is None else note
        if self._bar:
            self._bar.update(self._task, advance=count, note=self._note)
        elif time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line, self._printed = time.monotonic(), self.done
        seconds = self._last_line - self._started
        note = f"  {self._note}" if self._note else ""
        print(
            f"{self.title}: {self.done}/{self.total}  {seconds:.0f} s{note}",
            file=sys.stderr,
            flush=True,
        )
