"""The command lines that a page shows, read as the code reads them that would run them."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_scripts import script

from turnwise_jax.cli import analyze, convert, data, evaluate, hints, rollout, score, shapes, world
from turnwise_jax.cli import compile as compile_command
from turnwise_jax.cli.flags import define_config, parse, parse_mixed
from turnwise_jax.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
DEFINE = {
    "train": define_config,
    "study": define_config,
    "eval": evaluate.define,
    "rollout": rollout.define,
    "score": score.define,
    "convert": convert.define,
    "hints": hints.define,
    "compile": compile_command.define,
    "shapes": shapes.define,
    "analyze": analyze.define,
    "make": data.define_make,
    "check": data.define_check,
    "world": world.define,
}
_OURS = re.compile(rf"\bturnwise (?:{'|'.join(COMMANDS)})\b|\bpython benchmarks/\w+\.py\b")
# Where the part of a line that is ours ends, if other programs are around it.
_END = re.compile(r"['\"`>]|\.\.\. ")
_PROCESSES = {"SLURM_NTASKS": "2"}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    """The contents of a page's blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Every line of a page that calls the library or a benchmark, as its words.

    Those of shell blocks, continuation lines joined, also within the commands of other programs and
    in YAML; and those in a sentence or a table. Variables of the shell are 1.
    """
    shell = "\n".join(blocks(text, "bash")).replace("\\\n", " ")
    shell += re.sub(r"\n\s+(?=--)", " ", "\n".join(blocks(text, "yaml")))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose) if " --" in span]
    return [words for line in [*shell.splitlines(), *spans] if (words := _words(line))]


def _words(line: str) -> list[str]:
    line = line.strip()
    if line.startswith("--config=configs/"):  # a table of what follows one command
        line = f"turnwise compile {line}"
    if re.match(r"\w+\.py ", line):  # a table of benchmarks
        line = f"python benchmarks/{line}"
    found = _OURS.search(line)
    if found is None or re.search(r"(^|\s)#", line[: found.start()]):
        return []
    if found.start():
        line = _END.split(line[found.start() :])[0]
    line = re.sub(r"\$(\w+)", lambda name: _PROCESSES.get(name[1], "1"), line)
    return shlex.split(line, comments=True)


class _Parsed(Exception):
    """What an argparse parser made of its arguments."""


def read(words: list[str]) -> Any:
    """The flags of a command, read as the command reads them; nothing is run.

    Raises:
      InputError, SystemExit: there is no such command, flag, file or field.
    """
    if words[0] == "python":
        return _argparse_flags(_benchmark(Path(words[1]).stem), words[2:])
    assert words[0] == "turnwise"
    name, rest = words[1], words[2:]
    assert name in COMMANDS
    if name == "data":
        name, rest = rest[0], rest[1:]
    values, places = parse_mixed(rest, "", DEFINE[name])
    assert bool(places) == (name in ("analyze", "check")), f"{places} belong to no flag"
    return values if places else parse(rest, "", DEFINE[name])


@cache
def _benchmark(name: str) -> ModuleType:
    return script(name)


def _argparse_flags(module: ModuleType, argv: list[str]) -> argparse.Namespace:
    real = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, args: Any = None, *_: Any) -> Any:
        raise _Parsed(real(parser, args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr("sys.argv", [f"{module.__name__}.py", *argv])
        with pytest.raises(_Parsed) as found:
            module.main()
    return found.value.args[0]
