"""``turnwise world``: write an embedded world's videos and records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from turnwise_jax.worlds import soundworld, streamworld

KINDS = {"stream": streamworld, "sound": soundworld}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="turnwise world", add_help=False, allow_abbrev=False)
    parser.add_argument("--kind", choices=sorted(KINDS), default="stream")
    args, rest = parser.parse_known_args(argv)
    if status := KINDS[args.kind].main(rest):
        raise SystemExit(status)
