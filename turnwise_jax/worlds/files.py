"""Folders of a generated set: made whole or not at all, found again, never overwritten."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise_jax.errors import InputError

MANIFEST = "manifest.json"
SPLITS = ("train", "test")


@dataclass(frozen=True)
class SetFiles:
    """Where the parts of a set lie; media paths in the records are relative to ``root``."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / MANIFEST

    @property
    def videos(self) -> Path:
        return self.root / "videos"

    def sft(self, split: str) -> Path:
        return self.root / f"sft_{split}.jsonl"


def check_sizes(*, train: int, test: int, seed: int) -> None:
    """Refuses numbers of videos and seeds that cannot be, by name."""
    for field, value, least in (("train", train, 1), ("test", test, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"must be at least {least}, got {value}", field=field)


def build(root: Path, manifest: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
    """Makes ``root`` with ``fill``, or finds it there with the same manifest.

    ``fill`` gets an empty folder beside ``root`` that is moved into place when it returns, so an
    interrupted run leaves nothing that looks finished. One process at a time.

    Raises:
      InputError: ``root`` holds something else.
    """
    wanted = json.loads(json.dumps(manifest))
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(root.parent / f".{root.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_finished(root, wanted):
            return
        part = root.parent / f".{root.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fill(part)
        (part / MANIFEST).write_text(json.dumps(wanted, indent=1) + "\n")
        if root.exists():
            root.rmdir()
        os.replace(part, root)


def _is_finished(root: Path, wanted: dict[str, Any]) -> bool:
    """True if ``root`` holds the wanted set, False if nothing is there; InputError for all else."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    try:
        found = json.loads((root / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            "is there but is no finished world; remove it or choose another folder", file=root
        ) from error
    if found != wanted:
        raise InputError(
            f"holds a world with another {_difference(found, wanted, 'manifest')}; "
            "remove it or choose another folder",
            file=root,
        )
    return True


def _difference(found: object, wanted: object, name: str) -> str:
    """The first field in which two manifests differ, with both values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in wanted:
            if found.get(key) != wanted[key]:
                return _difference(found.get(key), wanted[key], key)
    return f"{name} ({found!r}, asked for {wanted!r})"
