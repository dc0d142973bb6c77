"""Updates of batches in which fresh and replayed rows stand side by side, on a toy policy."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

from turnwise_jax.algorithms import avatar
from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.train.compiled import Update
from turnwise_jax.train.forward import make_logprob_step
from turnwise_jax.train.state import Batch, TrainState, create_state
from turnwise_jax.train.step import gradients

REPLAYED = np.array([False, True, True, False])  # the third row is empty: fewer were drawn
SETTINGS = avatar.Settings(replay_weight=0.7)
LOSS = partial(avatar.loss, settings=SETTINGS)


def mixed_batch() -> Batch:
    batch = toy.batch()
    rng = np.random.default_rng(4)
    mask = batch.action_mask_NA
    trains = mask.any(axis=1)
    weight, kl_weight = avatar.sample_weights(trains, REPLAYED, SETTINGS)
    reference = np.where(mask, np.asarray(logp(toy.params())) + rng.normal(0, 0.3, mask.shape), 0)
    stored = np.where(mask & REPLAYED[:, None], batch.old_logp_NA, np.nan).astype(np.float32)
    return batch._replace(
        old_logp_NA=stored,  # of fresh rows nobody may read it
        advantage_NK=batch.advantage_NK[:, :1],
        turn_id_NA=np.zeros_like(batch.turn_id_NA),
        mixture=Mixture(reference.astype(np.float32), REPLAYED, weight, kl_weight),
    )


def logp(params) -> np.ndarray:
    return np.asarray(toy.logprobs(params, toy.batch()), np.float64)


def toy_state() -> TrainState:
    return create_state(toy.params(), toy.optimizer(), (), reference=True)


def plain_gradient(params, old: np.ndarray):
    """Eq. 2 to 6 by hand, token by token in float64, from the old log-probabilities given."""
    batch, now = mixed_batch(), logp(params)
    mask = batch.action_mask_NA
    parts = [mask.any(axis=1) & ~REPLAYED, mask.any(axis=1) & REPLAYED]
    slope = np.zeros(mask.shape)
    for n, a in zip(*np.nonzero(mask), strict=True):
        length = mask[n].sum()
        factor = SETTINGS.replay_weight if REPLAYED[n] else 1.0
        scale = factor / (parts[int(REPLAYED[n])].sum() * length)
        place = a / (length - 1)
        shaped = (1 + 0.3 * (2 * place - 1) ** 2) * batch.advantage_NK[n, 0]
        ratio = np.exp(now[n, a] - old[n, a])
        clipped = ratio > 1.2 if shaped >= 0 else ratio < 0.8
        gap = float(batch.mixture.ref_logp_A[n, a]) - now[n, a]
        slope[n, a] = scale * ((0 if clipped else -ratio * shaped) + 0.1 * (1 - np.exp(gap)))
    return toy.pull_back(params, batch, slope.astype(np.float32))


def old_logprobs(params) -> np.ndarray:
    """Those of now for fresh rows, stored ones for the others."""
    return np.where(REPLAYED[:, None], mixed_batch().old_logp_NA, logp(params))


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_gradient_equals_plain_recomputation(accumulate):
    found, terms = jax.jit(
        partial(gradients, forward=toy.ToyForward(), loss=LOSS, accumulate=accumulate, fresh=True)
    )(toy_state(), mixed_batch())
    toy.assert_close(found, plain_gradient(toy.params(), old_logprobs(toy.params())), 2e-5)
    means = {name: float(total / count) for name, (total, count) in terms.means.items()}
    assert terms.count == 3
    assert means["ratio"] == 1
    ratio = np.exp(logp(toy.params()) - mixed_batch().old_logp_NA)
    assert means["replay_ratio"] == pytest.approx(ratio[1, :3].mean(), rel=1e-5)


def test_log_probabilities_fixed_for_a_second_epoch():
    step = make_logprob_step(toy.ToyForward())
    found = np.asarray(step(toy_state(), mixed_batch()))
    mask = mixed_batch().action_mask_NA
    np.testing.assert_allclose(found[mask], old_logprobs(toy.params())[mask], rtol=1e-5)
    np.testing.assert_array_equal(found[1], mixed_batch().old_logp_NA[1])


def test_two_inner_epochs_hold_to_what_sampled_each_row(monkeypatch):
    """Twice the hand-made gradient through AdamW; the old log-probabilities stay as they are."""
    state = toy.placed(toy_state())
    places = jax.tree.map(lambda _: toy.layout().whole, state)
    update = Update(
        {"forward": toy.ToyForward(), "loss": LOSS, "optimizer": toy.optimizer(), "accumulate": 2},
        inner_epochs=2,
        layout=toy.layout(),
        shardings=places,
    )
    each, step = [], update._step

    def watched(state, batch):
        state, metrics = step(state, batch)
        each.append({name: float(metrics[name]) for name in ("ratio_off_one_max", "replay_ratio")})
        return state, metrics

    monkeypatch.setattr(update, "_step", watched)
    after, metrics = update(state, mixed_batch())
    assert len(each) == 2
    assert each[0]["ratio_off_one_max"] < 1e-5 < 1e-3 < each[1]["ratio_off_one_max"]
    first = np.exp(logp(toy.params()) - mixed_batch().old_logp_NA)[1, :3].mean()
    assert each[0]["replay_ratio"] == pytest.approx(first, rel=1e-4)
    params, optimizer = toy.params(), toy.optimizer()
    moments, old = optimizer.init(params), old_logprobs(params)
    for _ in range(2):
        found = plain_gradient(params, old)
        updates, moments = optimizer.update(found, moments, params)
        before, params = params, optax.apply_updates(params, updates)
    toy.assert_close(after.trained, params, 1e-5)
    ratio = np.exp(logp(before) - old)
    fresh = mixed_batch().action_mask_NA & ~REPLAYED[:, None]
    assert metrics["ratio"] == pytest.approx(ratio[fresh].mean(), rel=1e-5)
    assert abs(metrics["ratio"] - 1) > 1e-4
    assert metrics["replay_ratio"] == pytest.approx(ratio[1, :3].mean(), rel=1e-4)
    toy.assert_equal(after.reference, toy.params())


def test_without_a_reference_none_is_kept():
    state = create_state(toy.params(), toy.optimizer(), ())
    assert state.reference is None
    sizes = [sum(x.size for x in jax.tree.leaves(s)) for s in (toy_state(), state)]
    assert sizes[0] - sizes[1] == sum(x.size for x in jax.tree.leaves(toy.params()))


def test_the_reference_has_arrays_of_its_own():
    """The trained ones are given away with every update."""
    state = toy_state()
    donating = jax.jit(lambda trained: jax.tree.map(jnp.negative, trained), donate_argnums=0)
    donating(state.trained)
    toy.assert_equal(state.reference, toy.params())
