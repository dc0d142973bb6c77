"""Command lines: absl flags and ml_collections configs, with one-line errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from turnwise_jax.errors import InputError

_CONFIG = "--config"


class ConfigKind(NamedTuple):
    """What a config describes.

    ``marks``: fields of which it has one, and no other kind has any. ``command``: what takes it.
    ``example``: a file of this kind.
    """

    name: str
    marks: tuple[str, ...]
    command: str
    example: str


RUN = ConfigKind("one training run", ("algorithm",), "train", "configs/turnwise/qwen2_5_vl_3b.py")
CURRICULUM = ConfigKind("a curriculum", ("stages",), "train", "configs/avatar/curriculum.py")
EVALUATION = ConfigKind("an evaluation", ("benchmark",), "eval", "configs/eval/streaming.py")
STUDY = ConfigKind("a study", ("runs", "problem"), "study", "configs/worlds/demo.py")
KINDS = (RUN, CURRICULUM, EVALUATION, STUDY)


def parse(
    argv: Sequence[str], usage: str, define: Callable[[flags.FlagValues], None]
) -> flags.FlagValues:
    """Parse ``argv`` (without the program name) against the flags that ``define`` declares.

    Raises:
      InputError: unknown flag, unknown config field, unreadable config file or ill-typed value.
      SystemExit: ``--help``, after printing the flags.
    """
    values, rest = parse_mixed(argv, usage, define)
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r}; options start with --")
    return values


def parse_mixed(
    argv: Sequence[str], usage: str, define: Callable[[flags.FlagValues], None]
) -> tuple[flags.FlagValues, list[str]]:
    """:func:`parse` for a command with arguments before, between and after its flags.

    Returns:
      (the flags, the other arguments in order).
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    define(values)
    if any(a in ("--help", "-h", "-help") for a in argv):
        print(usage.strip() + "\n\nflags:")
        for name in sorted(values):
            flag = values[name]
            print(f"  --{name}  {flag.help} (default: {flag.default_unparsed})")
        raise SystemExit(0)
    return values, _parse(values, argv)


def define_config(values: flags.FlagValues) -> None:
    """``--config=FILE[:ARGUMENT]`` and ``--config.field=value`` overrides."""
    config_flags.DEFINE_config_file(
        "config", None, "configuration file, FILE.py or FILE.py:ARGUMENT", flag_values=values
    )


def config_of(values: flags.FlagValues, *kinds: ConfigKind) -> ConfigDict:
    """The config that a command line names and overrides.

    Args:
      values: what :func:`define_config` and others declared, parsed.
      kinds: what the command takes.

    Raises:
      InputError: there is none, or it is of another kind.
    """
    wanted = kinds[0]
    if values.config is None:
        raise InputError(f"{_CONFIG}=FILE is required, for instance {wanted.example}")
    config = values.config
    found = next((kind for kind in KINDS if any(mark in config for mark in kind.marks)), None)
    if found in kinds:
        return config
    what = "nothing known" if found is None else f"{found.name}, for `turnwise {found.command}`"
    raise InputError(
        f"describes {what}; this command takes {wanted.name}, for instance {wanted.example}",
        file=config_flags.get_config_filename(values["config"]).partition(":")[0],
    )


def require(values: flags.FlagValues, *names: str) -> None:
    """Refuse a command line that lacks one of these flags."""
    for name in names:
        if not values[name].value:
            raise InputError(f"--{name} is required")


def _parse(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """What is left after the flags. config_flags looks for overrides in ``sys.argv``."""
    file = _config_file(argv) if "config" in values else None
    saved, sys.argv = sys.argv, ["turnwise", *argv]
    try:
        rest = values(sys.argv)[1:]
        if file is not None:
            values.config.to_dict()  # raises what went wrong while the file was loaded
    except flags.Error as error:
        raise InputError(_origin(error)) from error
    except (AttributeError, KeyError) as error:
        quoted = re.search(r"\w+", str(error))
        name = quoted[0] if quoted else ""
        given = [a.partition("=")[0] for a in argv if a.startswith(f"{_CONFIG}.")]
        wrong = next((a for a in given if name in a.split(".")), None)
        if wrong is None:
            raise InputError(f"cannot be used: {error!r}", file=file) from error
        raise InputError(f"unknown config field {wrong[len(_CONFIG) + 1 :]}", file=file) from error
    except Exception as error:  # a config file is a program and may fail in any way
        raise InputError(
            f"cannot be used: {type(error).__name__}: {_origin(error)}", file=file
        ) from error
    finally:
        sys.argv = saved
    return rest


def _config_file(argv: Sequence[str]) -> str | None:
    """The file that ``--config`` names, without its argument."""
    for number, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name.lstrip("-") == "config":
            value = value if equals else "".join(argv[number + 1 : number + 2])
            file = value.partition(":")[0]
            if not Path(file).is_file():
                raise InputError("no such file", file=file, field="config")
            return file
    return None


def _origin(error: BaseException) -> str:
    """What happened first: absl wraps whole tracebacks into its own messages."""
    first = error
    while first.__cause__ or first.__context__:
        first = first.__cause__ or first.__context__
    return str(first if isinstance(first, InputError) else error)
