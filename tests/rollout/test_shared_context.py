"""Rows that share their context: loss, gradients and updates of rows that each hold it whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rollout_checks import make_examples, shapes_for
from tiny import load_policy, make_checkpoint

from turnwise_jax.algorithms import turnwise
from turnwise_jax.models.lora import Lora, is_adapter
from turnwise_jax.models.params import named, replaced
from turnwise_jax.rollout.rows import context_rows, row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train.collect import as_batch
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.state import create_state, split_rows
from turnwise_jax.train.step import gradients, train_step

TEMPERATURE, GROUP = 1.2, 4
FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen2_5_omni")
LOSS = partial(turnwise.loss, settings=turnwise.Settings())


class Made(NamedTuple):
    """A policy's rollouts of three dialogues of different lengths, and advantages for them."""

    policy: Any
    made: Any
    advantage_NK: np.ndarray

    def batch(self, *, shared: bool, copies: int = 1, group: slice = slice(None)):
        """The rollouts ``group`` of every prompt as a batch for the update."""
        length, actions = row_size(self.made, shared=shared)
        rows = train_rows(self.made, length=length + 3, actions=actions + 2, shared=shared)
        picked = np.arange(len(rows.tokens)).reshape(-1, GROUP)[:, group].reshape(-1)
        rows = type(rows)(*(array[picked] for array in rows))
        context = context_rows(self.made.prompts, copies=copies) if shared else None
        media = self.made.prompts.media
        batch = as_batch(media, rows, self.advantage_NK[picked], context)
        return jax.tree.map(jnp.asarray, batch)


def roll(policy) -> Made:
    examples = make_examples(policy)
    (shapes,) = shapes_for(policy, examples)
    engine = StreamEngine(policy, Sampling(temperature=TEMPERATURE, top_k=10), shapes)
    made = engine.rollout(policy.params, examples, group_size=GROUP, seed=3)
    rng = np.random.default_rng(0)
    count = len(examples) * GROUP
    return Made(policy, made, rng.normal(size=(count, made.turn_mask.shape[1])))


@pytest.fixture(scope="module", params=FAMILIES)
def sampled(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, family=request.param, marker_gain=2.0)
    return roll(load_policy(directory))


def optimizer():
    config = rl_config().optimizer
    config.learning_rate = 1e-3
    return make_optimizer(config, 10)


def begun(policy):
    return create_state(policy.params, optimizer(), ("vision",))


def slopes(policy, batch, accumulate=1):
    """(gradient by name, mean loss) of the trained parameters."""
    compute = partial(
        gradients,
        forward=Forward(policy.graphdef, TEMPERATURE, chunk=64),
        loss=LOSS,
        accumulate=accumulate,
        fresh=True,
    )
    found, terms = jax.jit(compute)(begun(policy), batch)
    return named(found), float(terms.total / terms.count)


def assert_same(found, expected):
    """Each gradient within 1e-5 of its own norm, wherever there is one."""
    slope, loss = found
    other, mean = expected
    assert loss == pytest.approx(mean, rel=1e-5, abs=1e-6)
    whole = float(optax.tree.norm(list(other.values())))
    assert slope.keys() == other.keys()
    for path, leaf in other.items():
        gap = float(jnp.linalg.norm((slope[path] - leaf).ravel()))
        assert gap <= 1e-5 * float(jnp.linalg.norm(leaf.ravel())) + 1e-7 * whole, path


def test_gradients_are_those_of_whole_rows(sampled):
    expected = slopes(sampled.policy, sampled.batch(shared=False))
    moved = [path for path, leaf in expected[0].items() if float(jnp.abs(leaf).max()) > 0]
    assert len(moved) > 10
    lengths = sampled.made.prompts.context.length
    assert len(set(lengths.tolist())) == len(lengths)
    assert_same(slopes(sampled.policy, sampled.batch(shared=True)), expected)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("adapted")
    make_checkpoint(directory, marker_gain=2.0)
    policy = load_policy(
        directory, lora=Lora(rank=2, alpha=8.0, targets="text/decoder/layers/(q|v|mlp/down)")
    )
    rng = np.random.default_rng(1)

    values = {
        path: jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype)
        if is_adapter(path)
        else leaf
        for path, leaf in named(policy.params).items()
    }  # fresh adapters are zero on one side and would hide an error
    return roll(replace(policy, params=replaced(policy.params, values)))


def test_adapters_learn_the_same(adapted):
    expected = slopes(adapted.policy, adapted.batch(shared=False))
    assert all("lora" in path[-1] for path in expected[0])
    assert_same(slopes(adapted.policy, adapted.batch(shared=True)), expected)


def test_an_update_gives_the_parameters_of_whole_rows(adapted):
    step = jax.jit(
        partial(
            train_step,
            forward=Forward(adapted.policy.graphdef, TEMPERATURE, chunk=64),
            loss=LOSS,
            optimizer=optimizer(),
        )
    )
    shared, plain = (
        named(step(begun(adapted.policy), adapted.batch(shared=shared))[0].trained)
        for shared in (True, False)
    )
    for path, leaf in plain.items():
        gap = float(jnp.linalg.norm((shared[path] - leaf).ravel()))
        assert gap <= 1e-5 * float(jnp.linalg.norm(leaf.ravel())) + 1e-7, path


def test_one_rollout_of_a_prompt_shares_with_nobody(adapted):
    alone = slice(1, 2)
    expected = slopes(adapted.policy, adapted.batch(shared=False, group=alone))
    assert_same(slopes(adapted.policy, adapted.batch(shared=True, group=alone)), expected)


@pytest.mark.parametrize(("accumulate", "copies"), [(3, 1), (6, 2)])
def test_no_split_changes_a_gradient(adapted, accumulate, copies):
    """Contexts of which there are too few for the micro-batches come several times."""
    expected = slopes(adapted.policy, adapted.batch(shared=False))
    batch = adapted.batch(shared=True, copies=copies)
    assert_same(slopes(adapted.policy, batch, accumulate), expected)


def test_micro_batches_hold_whole_groups(adapted):
    parts = split_rows(adapted.batch(shared=True, copies=2), 3)
    assert parts.context.tokens.shape[:2] == (3, 2)
    assert parts.tokens_NT.shape[:2] == (3, 4)
    whole = adapted.batch(shared=True, copies=2)
    for part in range(3):
        own = np.flatnonzero(np.arange(6) % 3 == part)
        np.testing.assert_array_equal(parts.context.tokens[part], whole.context.tokens[own])
        rows = np.concatenate([[2 * c, 2 * c + 1] for c in own])
        np.testing.assert_array_equal(parts.tokens_NT[part], whole.tokens_NT[rows])


def test_rollouts_of_a_prompt_do_not_see_one_another(adapted):
    """Another reply in one row moves that row's log-probabilities and no other's."""
    policy, batch = adapted.policy, adapted.batch(shared=True)
    forward = Forward(policy.graphdef, TEMPERATURE, chunk=64)
    score = jax.jit(
        lambda b: forward.logprobs(policy.params, forward.media(policy.params, b.media), b)
    )
    where = (1, int(batch.action_pos_NA[1, 0]) + 1)
    other = batch._replace(tokens_NT=batch.tokens_NT.at[where].add(1))
    changed = np.abs(np.asarray(score(other) - score(batch))).max(axis=1)
    assert changed[1] > 1e-4
    assert (np.delete(changed, 1) == 0).all()
