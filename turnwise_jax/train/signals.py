"""Ending on request: SIGTERM is a spot machine's notice that it will be taken away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class StopRequest:
    """``requested`` turns true when the signal comes and stays so; ``outer`` hears of it too."""

    requested: bool = False
    outer: StopRequest | None = None

    def __call__(self, *signal_and_frame: Any) -> None:
        """The signal handler."""
        self.requested = True
        if self.outer is not None:
            self.outer()


@contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
    """Within the block, SIGTERM sets a flag instead of ending the process.

    Blocks may be nested, as a run is in a curriculum: a signal stops all of them, and a block that
    is entered after it is stopped from the start. Outside the main thread nothing is installed:
    there the owner of the process handles signals.
    """
    previous = signal.getsignal(signal.SIGTERM)
    outer = previous if isinstance(previous, StopRequest) else None
    stop = StopRequest(outer=outer)
    try:
        signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield StopRequest()
        return
    if outer is not None and outer.requested:
        stop.requested = True
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)
