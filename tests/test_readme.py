"""The README tells the truth: its code runs, its targets and folders exist."""

from __future__ import annotations

import re

import numpy as np
import pytest
from doc_commands import ROOT, blocks, commands, page

from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.run import CONTROLS
from turnwise_jax.train.config import avatar_config, rl_config, sft_config
from turnwise_jax.train.validate import flatten

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


def test_fields_of_the_table_and_their_defaults_exist():
    rows = re.findall(
        r"^\| (`\S+`(?:, `\S+`)?)( of an evaluation)? \| (.*) \|$", README, re.MULTILINE
    )
    rows = [row for row in rows if "." in row[0] or row[1]]
    training = flatten(rl_config().to_dict())
    evaluation = flatten(eval_config("qa").to_dict())
    assert len(rows) == 6
    for names, evaluated, _ in rows:
        assert set(re.findall(r"`(\S+?)`", names)) <= set(evaluation if evaluated else training)
    told = {names: text for names, _, text in rows}
    for name in set(CONTROLS) - {"none"}:
        assert f"`{name}`" in told["`control`"]
    rates = [c().optimizer.learning_rate for c in (rl_config, sft_config, avatar_config)]
    found = re.findall(r"(\de-\d) for", told["`optimizer.learning_rate`"])
    assert [float(rate) for rate in found] == rates


def test_extras_are_those_of_the_package():
    setup = (ROOT / "setup.py").read_text()
    extras = re.findall(r'^        "(\w+)": \[', setup, re.MULTILINE)
    listed = re.search(r"^Extras: (.*?\.)\n", README, re.MULTILINE)[1]
    assert re.findall(r"`(\w+)`", listed) == extras
    assert not re.findall(r"pip install -e \.\[", README), "a shell may take [...] for a pattern"


@pytest.mark.parametrize("target", ["demo", "test", "parity"])
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_folders_of_the_tree_exist():
    for folder in re.findall(r"^\| `([\w/]+/)`", README, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder
