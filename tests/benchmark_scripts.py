"""The scripts of ``benchmarks/`` as modules, and the smallest sizes that they run with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMALL = [
    *("--hidden=64", "--layers=2", "--vocabulary=500", "--pixels=56", "--rounds=2"),
    *("--vision-hidden=32", "--vision-layers=2", "--prompts=2", "--group=2"),
    *("--context-frames=4", "--turns=3", "--reply-tokens=8"),
]


def script(name: str) -> ModuleType:
    """A script under a name of its own; what it shares with the others is found beside it."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
