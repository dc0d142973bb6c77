"""The preprocessing settings of a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.errors import InputError

PREPROCESSOR = "preprocessor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
_PROCESSOR = "processor_config.json"


def processor_settings(directory: Path, section: str) -> tuple[Path, dict[str, Any]]:
    """The settings of one part of the processor and the file that they stand in.

    Older checkpoints have ``preprocessor_config.json`` with the fields of all parts side by side,
    newer ones ``processor_config.json`` with one ``section`` each.

    Raises:
      InputError: neither file is there, or it is not readable, or has no such section.
    """
    for file, key in ((directory / PREPROCESSOR, None), (directory / _PROCESSOR, section)):
        if not file.is_file():
            continue
        raw = _read(file)
        raw = raw.get(key) if key and isinstance(raw, dict) else raw
        if not isinstance(raw, dict):
            what = section.replace("_", " ")
            raise InputError(f"holds no {what} settings", file=file, field=key)
        return file, raw
    raise InputError(f"no {PREPROCESSOR} in this directory", file=directory)


def video_settings(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """The video processor's own settings, if the checkpoint has any.

    Raises:
      InputError: the file is not readable.
    """
    file, nested = directory / VIDEO_PREPROCESSOR, directory / _PROCESSOR
    raw: Any = None
    if file.is_file():
        raw = _read(file)
    elif nested.is_file():
        file, raw = nested, _read(nested)
        raw = raw.get("video_processor") if isinstance(raw, dict) else None
    return (file, raw) if isinstance(raw, dict) else None


def changed_settings(
    directory: Path,
    images: Mapping[str, Any],
    videos: Mapping[str, Any],
    *,
    without: Sequence[str] = (),
) -> dict[str, str]:
    """The texts of the files with other fields in the image and the video processor's parts.

    Args:
      directory: of the checkpoint; a part that it does not have is not added.
      images, videos: the fields of either part that change.
      without: fields that the video processor's part loses.

    Raises:
      InputError: a file is not readable.
    """
    texts = {}
    for name in (PREPROCESSOR, VIDEO_PREPROCESSOR, _PROCESSOR):
        if not (directory / name).is_file():
            continue
        raw = _read(directory / name)
        parts = {
            PREPROCESSOR: (raw, None),
            VIDEO_PREPROCESSOR: (None, raw),
            _PROCESSOR: (raw.get("image_processor"), raw.get("video_processor")),
        }[name]
        for part, fields, lost in zip(parts, (images, videos), ((), without), strict=True):
            if isinstance(part, dict):
                part.update(fields)
                for field in lost:
                    part.pop(field, None)
        texts[name] = json.dumps(raw, indent=2) + "\n"
    return texts


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"not readable as JSON: {error}", file=file) from error
