"""``turnwise world``: write the embedded world's videos and records."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise_jax.worlds import streamworld


def main(argv: Sequence[str]) -> None:
    if status := streamworld.main(argv):
        raise SystemExit(status)
