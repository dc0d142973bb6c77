"""Command lines: absl flags and ml_collections configs, with one-line errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from turnwise_jax.errors import InputError


def parse(
    argv: Sequence[str], usage: str, define: Callable[[flags.FlagValues], None]
) -> flags.FlagValues:
    """Parse ``argv`` (without the program name) against the flags that ``define`` declares.

    Raises:
      InputError: unknown flag, unknown config field, unreadable config file or ill-typed value.
      SystemExit: ``--help``, after printing the flags.
    """
    values = flags.FlagValues()
    define(values)
    if any(a in ("--help", "-h", "-help") for a in argv):
        print(usage.strip())
        print("\nFlags:\n" + values.main_module_help().strip("\n"))
        print(values.module_help("turnwise_jax.cli"))
        raise SystemExit(0)
    saved, sys.argv = sys.argv, ["turnwise", *argv]  # config_flags finds overrides in sys.argv
    try:
        rest = values(sys.argv)[1:]
        config = values.config if "config" in values else None
    except flags.Error as error:
        raise InputError(str(error)) from error
    except (AttributeError, KeyError) as error:
        raise InputError(
            f"unknown config field {str(error).strip(chr(34) + chr(39))}; "
            "every field is declared in turnwise_jax/train/config.py"
        ) from error
    except (OSError, TypeError, ValueError, ImportError, SyntaxError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        raise InputError(f"cannot use this configuration: {cause}") from error
    finally:
        sys.argv = saved
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r}; options start with --")
    if "config" in values and config is None and values["config"].present == 0:
        raise InputError("--config=FILE is required, for instance configs/worlds/demo.py")
    return values


def define_config(values: flags.FlagValues) -> None:
    """``--config=FILE[:ARGUMENT]`` and ``--config.field=value`` overrides."""
    config_flags.DEFINE_config_file(
        "config", None, "configuration file, FILE.py or FILE.py:ARGUMENT", flag_values=values
    )


def config_of(values: flags.FlagValues) -> ConfigDict:
    return values.config
