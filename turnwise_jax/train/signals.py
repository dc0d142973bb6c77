"""Ending on request: SIGTERM is a spot machine's notice that it will be taken away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class StopRequest:
    """``requested`` turns true when the signal comes and stays so."""

    requested: bool = False


@contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
    """Within the block, SIGTERM sets a flag instead of ending the process.

    Outside the main thread nothing is installed: there the owner of the process handles signals.
    """
    stop = StopRequest()

    def on_signal(*_: Any) -> None:
        stop.requested = True

    try:
        previous = signal.signal(signal.SIGTERM, on_signal)
    except ValueError:  # not the main thread
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)
