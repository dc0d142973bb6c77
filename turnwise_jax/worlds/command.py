"""The command line that all worlds share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.errors import InputError


def run(
    argv: Sequence[str] | None,
    *,
    prog: str,
    worlds: Mapping[str, Any],
    generate: Callable[..., Path],
    draw_sheets: Callable[[Path, int], None],
) -> int:
    """Makes a set from the command line; bad settings end in one line and status 2.

    Args:
      worlds: named settings, dataclasses with a ``from_dict``.
      generate: called with (out, setting, train=, test=, seed=); gives the set's folder.
      draw_sheets: called with the folder and how many contact sheets are asked for.
    """
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--out", required=True, help="folder of the set")
    parser.add_argument("--world", choices=sorted(worlds), default="demo")
    parser.add_argument("--train", type=int, default=250, help="videos to train on")
    parser.add_argument("--test", type=int, default=60, help="held-out videos")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheets", type=int, default=0, help="held-out records to draw")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help='change one field of the world, in JSON: --set size=56 --set "noise=0.5"',
    )
    args = parser.parse_args(argv)
    try:
        base = worlds[args.world]
        world = type(base).from_dict({**dataclasses.asdict(base), **dict(args.set)})
        root = generate(args.out, world, train=args.train, test=args.test, seed=args.seed)
        draw_sheets(root, args.sheets)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(root)
    return 0


def _setting(text: str) -> tuple[str, object]:
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form field=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
