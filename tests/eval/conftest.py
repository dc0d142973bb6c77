"""Evaluation tests write the same small media files as those of the data package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "data"))
