"""The preprocessing settings of a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turnwise_jax.errors import InputError

PREPROCESSOR = "preprocessor_config.json"
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
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"not readable as JSON: {error}", file=file) from error
        raw = raw.get(key) if key and isinstance(raw, dict) else raw
        if not isinstance(raw, dict):
            what = section.replace("_", " ")
            raise InputError(f"holds no {what} settings", file=file, field=key)
        return file, raw
    raise InputError(f"no {PREPROCESSOR} in this directory", file=directory)
