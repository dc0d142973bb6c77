"""``turnwise COMMAND [--flags]``: parse, build, call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from turnwise_jax.errors import InputError

# Defaults that the user's own environment overrides; set before jax and transformers load.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",  # it only reads tokenizers here; torch is not missed
    "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "turnwise_jax" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
}

ACCELERATORS = ("accel*", "vfio*", "nvidia*", "kfd", "dxg")  # device files of TPUs and GPUs

USAGE = """usage: turnwise COMMAND [--config=FILE.py] [--config.field=value] [--flag=value]

commands:
  train     supervised fine-tuning, RL or stages of both, as the config says; resumable
  eval      run a checkpoint over a set of dialogues, or score predictions made before
  rollout   stream any video file through any checkpoint and print its decisions
  score     reward terms, prefix scores and turn advantages of dialogues in a JSONL file
  convert   training checkpoints to Hugging Face directories, those to Orbax and back
  data      look a data set through (check), make one of your own videos (make)
  hints     write hints for question-answering records with a teacher behind an endpoint
  compile   what a run needs of a named TPU slice: memory, operations; no TPU needed
  shapes    lengths of a run's data, and the shapes that pad them least
  study     several trainings and evaluations, a table and pictures (the demo)
  analyze   training dynamics and where the credit goes, from the logs of any runs
  world     write an embedded world's videos and records

`turnwise COMMAND --help` lists the command's flags.
"""


def _train(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import train

    train.main(argv)


def _eval(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import evaluate

    evaluate.main(argv)


def _rollout(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import rollout

    rollout.main(argv)


def _score(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import score

    score.main(argv)


def _convert(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import convert

    convert.main(argv)


def _data(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import data

    data.main(argv)


def _hints(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import hints

    hints.main(argv)


def _study(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import study

    study.main(argv)


def _analyze(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import analyze

    analyze.main(argv)


def _compile(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import compile

    compile.main(argv)


def _shapes(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import shapes

    shapes.main(argv)


def _world(argv: Sequence[str]) -> None:
    from turnwise_jax.cli import world

    world.main(argv)


# Imports wait inside the functions so that `turnwise --help` does not load jax.
COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": _train,
    "eval": _eval,
    "rollout": _rollout,
    "score": _score,
    "convert": _convert,
    "data": _data,
    "hints": _hints,
    "compile": _compile,
    "shapes": _shapes,
    "study": _study,
    "analyze": _analyze,
    "world": _world,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Bad input prints one line and returns 2; a signal to stop returns 0."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        print(f"turnwise: unknown command {name!r}; see `turnwise --help`", file=sys.stderr)
        return 2
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if not any(any(Path("/dev").glob(pattern)) for pattern in ACCELERATORS):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # an installed libtpu would search, loudly
    try:
        COMMANDS[name](rest)
    except InputError as error:
        print(f"turnwise {name}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
