"""The README tells the truth: its code runs, its commands and config fields exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from turnwise_jax.cli import compile as compile_command
from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DEFINE = {"compile": compile_command.define}  # commands with flags beside the config's
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """Every `turnwise ...` command line of the shell blocks, continuation lines joined."""
    joined = "\n".join(blocks("bash")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [words for words in lines if words[:1] == ["turnwise"]]


def test_the_kernels_example_runs_and_gives_the_numbers_it_states():
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    np.testing.assert_allclose(names["U"], [0.375, 0.125, 1.25, 1.25, 2.0, 1.25], atol=1e-6)
    assert "0.375 0.125 1.25 1.25 2.0 1.25" in code
    assert names["A"].shape == (2, 5)


def test_there_are_commands_to_check():
    assert {words[1] for words in commands()} >= {"train", "rollout", "eval", "score", "convert"}


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[1:3]))
def test_commands_and_config_fields_exist(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert words[1] in COMMANDS
    if any(word.startswith("--config=") for word in words):
        parse(words[2:], "", DEFINE.get(words[1], define_config))


@pytest.mark.parametrize("target", ["demo", "test", "parity"])
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_folders_of_the_tree_exist():
    for folder in re.findall(r"^\| `([\w/]+/)`", README, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder
