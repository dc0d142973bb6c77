"""A rollout whose reward is not known: the update is that of the batch without its row."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
import toy

from turnwise_jax.algorithms import avatar, grpo, turnwise
from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import Sample
from turnwise_jax.train.answer_credit import mixed
from turnwise_jax.train.batches import credited
from turnwise_jax.train.state import Batch
from turnwise_jax.train.step import gradients

LOST = 1  # the row without a reward
REWARD_BG = np.asarray([[0.5, np.nan, 1.0, 0.25]], np.float32)
AVATAR = avatar.Settings(replay_weight=0.7)
LOSSES = {
    "turn": partial(turnwise.loss, settings=turnwise.Settings()),
    "trajectory_token": partial(grpo.loss, settings=grpo.Settings(kl=0.5)),
    "batch_token": partial(grpo.loss, settings=grpo.Settings(reduction="batch_token", kl=0.5)),
}


def of_rows(batch: Batch, rows) -> Batch:
    """Some rows of a batch, with the media of all."""
    chosen = jax.tree.map(lambda x: x[np.asarray(rows)], batch._replace(media=None))
    return chosen._replace(media=batch.media)


def with_reference(batch: Batch) -> Batch:
    """A batch whose reference policy gives other log-probabilities to every action."""
    shift = np.random.default_rng(7).normal(0, 0.5, batch.old_logp_NA.shape).astype(np.float32)
    count = len(batch.tokens_NT)
    one = np.ones(count, np.float32)
    return batch._replace(
        mixture=Mixture(batch.old_logp_NA + shift, np.zeros(count, bool), one, one)
    )


def update(batch: Batch, loss):
    """(gradient, mean loss, logged means)."""
    run = partial(gradients, forward=toy.ToyForward(), loss=loss, accumulate=1, fresh=False)
    grads, terms = jax.jit(run)(toy.state(()), batch)
    means = {name: float(total / count) for name, (total, count) in terms.means.items()}
    return grads, float(terms.total / terms.count), means


def assert_same(ours, theirs) -> None:
    toy.assert_close(ours[0], theirs[0], 1e-6)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    assert ours[2] == pytest.approx(theirs[2], rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_the_update_is_that_of_a_batch_without_the_row(name):
    batch, loss = with_reference(toy.batch()), LOSSES[name]
    advantage = batch.advantage_NK[None].copy()
    advantage[0, LOST] = 0.0
    found = update(credited(batch, batch.action_mask_NA, advantage, REWARD_BG), loss)
    rest = np.delete(np.arange(toy.ROWS), LOST)
    expected = update(of_rows(batch, rest), loss)
    assert_same(found, expected)
    # With its actions the row would dilute the others, and its KL would pull.
    counted = update(batch._replace(advantage_NK=advantage[0]), loss)
    assert abs(counted[1] / expected[1] - 1) > 1e-2


def sample(row: int, reward: float) -> Sample:
    none = np.zeros(1, np.float32)
    return Sample("q", none.astype(np.int32), none, none, False, reward, 0.3 * row - 0.5, 0.0, 0)


def test_avatars_update_is_that_of_a_batch_without_the_row():
    """Two fresh rows, one of them without a reward, a replayed one, and room for another."""
    batch = with_reference(of_rows(toy.batch(), [0, LOST, 3, 2]))
    fresh, drawn = [sample(0, 1.0), sample(1, np.nan)], [sample(2, 0.5)]

    def made(fresh, rows):
        own = mixed(fresh, drawn, PromptStats(20), replayed=2, settings=AVATAR)
        chosen = of_rows(batch, rows)
        return chosen._replace(
            action_mask_NA=chosen.action_mask_NA & own.trains[:, None],
            advantage_NK=own.advantages[:, None],
            turn_id_NA=np.zeros_like(chosen.turn_id_NA),
            mixture=chosen.mixture._replace(
                replayed=np.arange(len(rows)) >= len(fresh),
                weight=own.weights,
                kl_weight=own.kl_weights,
            ),
        )

    loss = partial(avatar.loss, settings=AVATAR)
    whole = made(fresh, [0, 1, 2, 3])
    assert whole.action_mask_NA.any(axis=1).tolist() == [True, False, True, False]
    assert_same(update(whole, loss), update(made(fresh[:1], [0, 2, 3]), loss))
