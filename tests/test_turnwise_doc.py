"""docs/turnwise.md tells the truth: commands, fields, files and the worked example."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from doc_commands import ROOT, commands, page, read

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import REDUCTIONS
from turnwise_jax.algorithms.turnwise import CREDITS, Settings
from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.data.reply_styles import STYLES
from turnwise_jax.eval.config import eval_config
from turnwise_jax.rewards.streaming import STREAMING_REWARDS
from turnwise_jax.study.analyze_dynamics import LAST, SORTS
from turnwise_jax.study.plots import WINDOW
from turnwise_jax.train.config import rl_config, sft_config
from turnwise_jax.train.validate import flatten

DOC = page("docs/turnwise.md")


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_what_is_analyzed_and_evaluated_is_trained_before():
    made = {re.search(r"--config.run.dir=(\S+)", " ".join(words)) for words in commands(DOC)}
    made = {found[1] for found in made if found}
    (analyzed,) = (words for words in commands(DOC) if words[1] == "analyze")
    places = {word for word in analyzed if word.startswith("runs/")}
    assert places <= made
    assert len(read(analyzed).labels) == len(places) > 1
    used = re.findall(r"--config.policy.checkpoint=(runs/\w+)/policy", DOC)
    assert used
    assert set(used) <= made


def test_fields_that_the_page_names_exist():
    kinds = (rl_config(), sft_config(), eval_config("ovo_timing"))
    fields = {name for config in kinds for name in flatten(config.to_dict())}
    sections = {name.split(".")[0] for name in fields}
    named = {
        name for name in re.findall(r"`(\w+\.\w+)(?:=\w+)?`", DOC) if name.split(".")[0] in sections
    }
    assert len(named) > 20
    assert named <= fields


def test_the_table_of_fields_has_their_defaults():
    fields = flatten(rl_config().to_dict())
    rows = re.findall(r"^\| `(\w+\.\w+)` \| `?([\w.-]+)`? \|", DOC, re.MULTILINE)
    rows = [(name, value) for name, value in rows if name.split(".")[0] != "reward"]
    assert len(rows) == 10
    for name, value in rows:
        default = fields[name]
        assert (str(default) if isinstance(default, str) else float(default)) == (
            value if isinstance(default, str) else float(value)
        ), name
    assert Settings().credit == CREDITS[0]
    assert all(f"`{name}`" in DOC for name in (*CREDITS, *REDUCTIONS, *STYLES))
    weights = rl_config().reward
    told = f"R = {weights.quality:g} P - {weights.repetition:g} D_rep"
    told += f" - {weights.out_of_window} D_out - {weights.shared_prefix:g} D_prefix"
    assert told in DOC


def test_files_that_the_page_names_exist():
    for name in re.findall(r"`((?:configs|turnwise_jax|notebooks)/[\w/]+(?:\.\w+)?)", DOC):
        assert (ROOT / name).exists(), name
    for link in re.findall(r"\]\(([\w./]+)\)", DOC):
        assert (ROOT / "docs" / link).exists(), link


def test_every_reward_and_baseline_is_in_the_table():
    rows = re.findall(r"^\| `(configs/\S+)` \| `?(\w*)`? ?\| ", DOC, re.MULTILINE)
    assert {reward for _, reward in rows if reward} == set(STREAMING_REWARDS)
    listed = {name for name, _ in rows if "baselines" in name}
    assert listed == {str(p.relative_to(ROOT)) for p in (ROOT / "configs/baselines").glob("*.py")}
    for name, reward in rows:
        if reward:
            args = parse([f"--config={name}"], "", define_config)
            assert args.config.reward.kind == reward


def test_every_analysis_is_listed():
    assert all(f"`{sort.name}`" in DOC for sort in SORTS)
    assert f"trailing means of {WINDOW} updates" in DOC
    assert f"means over the last {LAST} updates" in DOC


def test_the_worked_example_is_what_the_kernels_give():
    rows = re.findall(
        r"^\| (\d+) \| [^|]* \| ([\d.]+) \| ([\d.-]+) \| ([\d.-]+) \|$", DOC, re.MULTILINE
    )
    time, score, shared, turn = np.array(rows, float).T
    nan = jnp.nan
    turns = kernels.ScoredTurns(
        time=jnp.array(time),
        replied=jnp.array([True, True, False, True, True]),
        quality=jnp.array([[nan], [2.0], [nan], [4.0], [nan]]),
        repetitive=jnp.array([0.0, 0.0, nan, 0.0, 1.0]),
        shares_prefix=jnp.zeros(5, bool),
        mask=jnp.ones(5, bool),
    )
    window = kernels.Windows(jnp.array([4.0]), jnp.array([8.0]), jnp.array([True]))
    found = kernels.prefix_scores(turns, window)
    np.testing.assert_allclose(found[1:], score, atol=1e-6)
    assert float(found[0]) == 0.375
    group = jnp.stack([found, jnp.full(6, found[0])])
    np.testing.assert_allclose(kernels.turn_advantages(group)[0], turn, atol=5e-3)
    np.testing.assert_allclose(kernels.turn_advantages(group, alpha=0.0)[0], shared, atol=5e-3)
