"""docs/exact.md tells the truth: its commands exist, and what can be enumerated quickly is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.study.exact_config import exact_config, other_settings, setting_of
from turnwise_jax.study.exact_measure import (
    Bench,
    decision_rows,
    weight_rows,
    window_rows,
)
from turnwise_jax.study.exact_problem import enumerate_trajectories
from turnwise_jax.study.exact_tables import decision_table, weight_table, window_table

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "exact.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_its_commands_exist(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert words[:2] == ["turnwise", "study"]
    assert "problem" in parse(words[2:], "", define_config).config


def test_its_pictures_are_there():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / name).is_file() for name in pictures)


def test_its_enumerated_tables_are_what_the_study_writes():
    """All tables of the start policies that need neither pairs of 625 nor samples."""
    config = exact_config()
    bench = Bench(enumerate_trajectories(setting_of(config)), (), pairs=False)
    policies = {
        name: bench.tables.logits(biases, noise=config.noise, seed=config.seed)
        for name, biases in config.policies.items()
    }
    one = {"one_window": enumerate_trajectories(other_settings(config)["one_window"])}
    each = [(bench, *policy) for policy in policies.items()]
    tables = {
        decision_table({"decisions": [row for case in each for row in decision_rows(*case)]}): 12,
        weight_table({"weights": [row for case in each for row in weight_rows(*case)]}): 18,
        window_table({"windows": window_rows(one, config.policies, config.noise)}): 12,
    }
    stated = set(TEXT.splitlines())
    for table, number in tables.items():
        head, _, *lines = table.splitlines()
        assert len(lines) == number
        assert [line for line in (head, *lines) if line not in stated] == []
