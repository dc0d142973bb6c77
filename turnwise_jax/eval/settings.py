"""What predictions were made with, as JSON beside them, so that runs are not mixed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Dialogue, Question
from turnwise_jax.errors import InputError
from turnwise_jax.files import write_text
from turnwise_jax.rollout.policy import Policy

OWN_FRAMES = "as the checkpoint says"
UNSAID = {"replies": "plain", "frames": OWN_FRAMES}  # of files that do not name them
_CHUNKS, _CHUNK_BYTES = 64, 1 << 16


def settings_of(
    policy: Policy,
    dialogues: Sequence[Dialogue],
    decoding: Mapping[str, Any],
    *,
    control: str = "none",
    replies: str = "plain",
) -> dict[str, Any]:
    """All that predictions depend on.

    Args:
      policy: with its parameters.
      dialogues: in their order.
      decoding: the fields of ``generate.Decoding``.
      control, replies: see ``generate.generate``.
    """
    digest = hashlib.sha256()
    for d in dialogues:
        shown = (d.id, d.system, d.turns, d.windows, without_hint(d.question))
        digest.update(repr(shown if d.target is None else (*shown, d.target)).encode())
    stored = {leaf.dtype.name for leaf in jax.tree.leaves(policy.params)}
    return {
        "policy": fingerprint(policy.directory),
        "dtype": np.dtype(policy.dtype).name,
        "param_dtype": "+".join(sorted(stored)),
        "frames": _frames(policy),
        "replies": replies,
        "banned_tokens": int(np.sum(~policy.allowed)),
        "control": control,
        "dialogues": f"{len(dialogues)}-{digest.hexdigest()[:16]}",
        **decoding,
    }


def claim(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings beside new predictions, or refuse ones made with others.

    Files of former versions do not name their dtypes. They are refused too, since nobody can tell;
    the message says how to go on with one.

    Raises:
      InputError: names what differs or is not known.
    """
    beside = path.with_suffix(".settings.json")
    if not path.exists():
        write_text(beside, json.dumps(settings, indent=2) + "\n")
        return
    try:
        theirs = {**UNSAID, **json.loads(beside.read_text())}
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"has no readable {beside.name} beside it, so it cannot be continued; remove it or "
            "choose another file",
            file=path,
        ) from None
    for name in {**settings, **theirs}:
        if name not in theirs:
            raise InputError(
                f"does not say its {name}; if that was {settings[name]!r} too, add it to "
                f"{beside.name}, otherwise remove the file or choose another",
                file=path,
            )
        if theirs[name] != settings.get(name):
            raise InputError(
                f"was made with another {name} ({theirs[name]!r}, now {settings.get(name)!r}); "
                "remove it or choose another file",
                file=path,
            )


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """A short digest of a checkpoint directory: every file's name, size and 64 spread samples."""
    digest = hashlib.sha256()
    for file in sorted(Path(directory).iterdir()):
        if not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size};".encode())
        with open(file, "rb") as handle:
            for chunk in range(_CHUNKS):
                handle.seek(chunk * max(size // _CHUNKS, 1))
                digest.update(handle.read(_CHUNK_BYTES))
    return digest.hexdigest()[:16]


def without_hint(question: Question | None) -> Question | None:
    """No policy is shown a hint when it is evaluated."""
    return None if question is None else replace(question, hint="")


def _frames(policy: Policy) -> str:
    spec = policy.spec
    if spec == FrameSpec.from_pretrained(policy.directory):
        return OWN_FRAMES
    images = f"{spec.min_pixels} to {spec.max_pixels} pixels"
    return images if spec.video is None else f"{images}, in videos {tuple(spec.video)}"
