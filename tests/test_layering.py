"""The tree's one rule: imports point down only, and the kernels stand alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "turnwise_jax"

# package -> what it may import from the others; what is in OPEN is open to all but kernels
ALLOWED: dict[str, set[str]] = {
    "kernels": set(),
    "algorithms": {"kernels"},
    "rewards": {"kernels"},
    "models": {"kernels"},
    "data": set(),
    "rollout": {"kernels", "models", "data"},
    "worlds": {"data"},
    "train": {"kernels", "algorithms", "rewards", "models", "data", "rollout"},
    "eval": {"kernels", "rewards", "models", "data", "rollout"},
    "study": {
        *("kernels", "algorithms", "rewards", "models", "data", "rollout"),
        *("train", "eval", "worlds"),
    },
    "cli": {
        *("kernels", "algorithms", "rewards", "models", "data", "rollout"),
        *("train", "eval", "worlds", "study"),
    },
}
OPEN = {"errors", "files", "progress", "tables"}


def imported(path: Path) -> set[str]:
    """Names below `turnwise_jax` that a file imports, wherever in the file it does so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "turnwise_jax" and len(parts) > 1:
                found.add(parts[1])
    return found


def test_every_package_is_in_the_table():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_down(package):
    allowed = ALLOWED[package] | {package} | (set() if package == "kernels" else OPEN)
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (PACKAGE / package).rglob("*.py")
        for name in imported(path) - allowed
    }
    assert not wrong


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import turnwise_jax; "
        "print(*(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert set(out.stdout.split()) <= {"turnwise_jax", "__future__"}


def test_modules_stay_short():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
