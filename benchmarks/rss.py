"""Resident memory of this process, from the kernel's own account (Linux)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def megabytes(field: str) -> float:
    """``"VmRSS"``: what is resident now; ``"VmHWM"``: the most since the start or last reset."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"{_STATUS} has no {field}")


def reset_peak() -> bool:
    """Let the high-water mark begin at what is in use now; False where that is not allowed.

    What was freed goes back to the system first: the allocator keeps it otherwise.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
    except (AttributeError, OSError):
        return False
    return True


def memory(make: Callable[[], Callable[[], Any]], steps: int) -> dict[str, float]:
    """Megabytes resident: before a step is made, at most, and at most after its first call."""
    imported = megabytes("VmRSS")
    step = make()
    step()
    first = megabytes("VmHWM")
    again = reset_peak()
    for _ in range(steps):
        step()
    later = megabytes("VmHWM")
    found = {"imported": imported, "peak": max(first, later)}
    return {**found, "peak_after_first": later} if again else found
