"""Writing results so that a killed process leaves the old file or the new one, never a half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Put ``data`` into ``path`` by renaming a finished file over it; makes the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        new.write(data)
        new.flush()
        os.fsync(new.fileno())
    os.chmod(new.name, 0o644)
    os.replace(new.name, path)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """:func:`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())
