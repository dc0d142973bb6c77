"""The README tells the truth: its code runs, its targets and folders exist."""

from __future__ import annotations

import re

import numpy as np
import pytest
from doc_commands import ROOT, blocks, commands, page

README = page("README.md")


def test_the_kernels_example_runs_and_gives_the_numbers_it_states():
    (code,) = blocks(README, "python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    np.testing.assert_allclose(names["U"], [0.375, 0.125, 1.25, 1.25, 2.0, 1.25], atol=1e-6)
    assert "0.375 0.125 1.25 1.25 2.0 1.25" in code
    assert names["A"].shape == (2, 5)


def test_there_are_commands_to_check():
    assert {words[1] for words in commands(README)} >= {
        "train",
        "rollout",
        "eval",
        "score",
        "convert",
    }


@pytest.mark.parametrize("target", ["demo", "test", "parity"])
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_folders_of_the_tree_exist():
    for folder in re.findall(r"^\| `([\w/]+/)`", README, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder
