"""``turnwise world``: write an embedded world's videos and records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.errors import InputError
from turnwise_jax.worlds import soundworld, streamworld
from turnwise_jax.worlds.files import SetFiles
from turnwise_jax.worlds.settings import WORLDS
from turnwise_jax.worlds.soundsettings import SOUNDWORLDS

USAGE = """usage: turnwise world --output=DIR [--kind=stream|sound] [--train=N] [--test=N] ...

Makes a set of short videos of coloured shapes with its records, or finds it there: "stream" is for
streaming dialogues (SFT files, RL parquet), "sound" for questions about clips in which one shape
sounds (JSON lines). --set may be repeated; it changes a field of the named setting, in JSON:
--set size=56 --set window=[3,5]. A set appears whole or not at all.
"""


class Kind(NamedTuple):
    """A world: its named settings, what makes a set, what draws its first held-out records."""

    named: Mapping[str, Any]
    generate: Callable[..., SetFiles]
    draw_sheets: Callable[[Path, int], None]


KINDS = {
    "stream": Kind(WORLDS, streamworld.generate, streamworld.draw_sheets),
    "sound": Kind(SOUNDWORLDS, soundworld.generate, soundworld.draw_sheets),
}


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    named = "; ".join(f"{name}: {', '.join(kind.named)}" for name, kind in KINDS.items())
    flags.DEFINE_string("output", None, "folder of the set", **at)
    flags.DEFINE_enum("kind", "stream", sorted(KINDS), "stream or sound", **at)
    flags.DEFINE_string("world", "demo", f"named setting, {named}", **at)
    flags.DEFINE_integer("train", 250, "videos to train on", **at)
    flags.DEFINE_integer("test", 60, "held-out videos", **at)
    flags.DEFINE_integer("seed", 0, "of videos and records", **at)
    flags.DEFINE_integer("sheets", 0, "held-out records to draw under sheets/", **at)
    flags.DEFINE_multi_string("set", [], "FIELD=VALUE, a changed field of the setting", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "output")
    kind = KINDS[args.kind]
    if args.world not in kind.named:
        known = ", ".join(kind.named)
        raise InputError(f"is {args.world!r}; {args.kind} has {known}", field="world")
    base = kind.named[args.world]
    changes = dict(setting(text) for text in args.set)
    world = type(base).from_dict({**dataclasses.asdict(base), **changes})
    made = kind.generate(args.output, world, train=args.train, test=args.test, seed=args.seed)
    kind.draw_sheets(made.root, args.sheets)
    print(made.root)


def setting(text: str) -> tuple[str, Any]:
    """``size=56`` as a name and its value, what JSON makes of it or else the text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} is not of the form FIELD=VALUE", field="set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
