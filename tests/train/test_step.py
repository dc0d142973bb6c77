"""The training step on a toy policy: what it computes, and what must not change it."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from flax import nnx
from runs import loss_of

from turnwise_jax.train.step import gradients, train_step

REDUCTIONS = ("turn", "trajectory_token", "batch_token")
SPLITS = (1, 2, 4)


@cache
def compiled_gradients(reduction: str, accumulate: int, method: str):
    return jax.jit(
        partial(
            gradients,
            forward=toy.ToyForward(),
            loss=loss_of(reduction, method),
            accumulate=accumulate,
            fresh=False,
        )
    )


def gradients_of(batch, reduction="turn", *, accumulate=1, freeze=(), method="turnwise"):
    """(gradient, mean loss) of the package."""
    grads, terms = compiled_gradients(reduction, accumulate, method)(toy.state(freeze), batch)
    return grads, float(terms.total / terms.count)


@cache
def step_of(**changes):
    """The compiled step with two micro-batches; ``changes`` of the optimizer."""
    return jax.jit(
        partial(
            train_step,
            forward=toy.ToyForward(),
            loss=loss_of(),
            optimizer=toy.optimizer(**changes),
            accumulate=2,
            fresh=False,
        )
    )


def plain(batch, reduction: str, *, supervised: bool = False):
    """(gradient, loss) by eq. 6, H.1 and 7 or 8, token by token in float64, without the package.

    d loss / d logp of every token is worked out by hand in NumPy; only the policy's own derivative
    is taken by jax.
    """
    mask, turn = batch.action_mask_NA, batch.turn_id_NA
    weight = toy.weights(mask, turn, reduction)
    logp = np.asarray(toy.logprobs(toy.params(), batch), np.float64)
    total, slope = 0.0, np.zeros(mask.shape)
    for n, a in zip(*np.nonzero(mask), strict=True):
        if supervised:
            loss, d_loss = -logp[n, a], -1.0
        else:
            loss, d_loss = surrogate(
                np.exp(logp[n, a] - batch.old_logp_NA[n, a]), batch.advantage_NK[n, turn[n, a]]
            )
        total += weight[n, a] * loss
        slope[n, a] = weight[n, a] * d_loss
    return toy.pull_back(toy.params(), batch, slope.astype(np.float32)), total


def surrogate(ratio: float, advantage: float) -> tuple[float, float]:
    """Eq. 6 with the dual clip of H.1, and its derivative with respect to the log-probability."""
    if advantage >= 0:
        if ratio > 1.2:
            return -1.2 * advantage, 0.0
    elif ratio < 0.8:
        return -0.8 * advantage, 0.0
    elif ratio > 3.0:
        return -3.0 * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def test_batch_reaches_every_case_of_the_loss():
    batch = toy.batch()
    ratio = np.exp(np.asarray(toy.logprobs(toy.params(), batch)) - batch.old_logp_NA)
    advantage = np.take_along_axis(batch.advantage_NK, batch.turn_id_NA, axis=1)
    seen = {
        (low, high, sign)
        for r, a in zip(ratio[batch.action_mask_NA], advantage[batch.action_mask_NA], strict=True)
        for low, high, sign in [(r < 0.8, r > 1.2, a > 0), (r < 0.8, r > 3, a > 0)]
    }
    assert {(True, False, True), (True, False, False), (False, True, True)} <= seen
    assert (False, True, False) in seen


@pytest.mark.parametrize("accumulate", SPLITS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradient_equals_plain_recomputation(reduction, accumulate):
    batch = toy.batch()
    grads, loss = gradients_of(batch, reduction, accumulate=accumulate)
    expected, value = plain(batch, reduction)
    assert loss == pytest.approx(value, rel=1e-6)
    toy.assert_close(grads, expected, 3e-6)


@pytest.mark.parametrize("accumulate", SPLITS[1:])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_splitting_changes_no_gradient(reduction, accumulate):
    batch = toy.batch()
    grads, _ = gradients_of(batch, reduction, accumulate=accumulate)
    toy.assert_close(grads, gradients_of(batch, reduction)[0], 1e-6)


@pytest.mark.parametrize("accumulate", SPLITS)
def test_freezing_the_vision_tower_changes_no_other_gradient(accumulate):
    grads, _ = gradients_of(toy.batch(), accumulate=accumulate, freeze=("vision",))
    full, _ = gradients_of(toy.batch(), accumulate=accumulate)
    assert set(grads) == {"text"}
    toy.assert_close(grads["text"], full["text"], 1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_supervised_gradient_equals_plain_recomputation(accumulate):
    batch = toy.batch()
    grads, loss = gradients_of(batch, "batch_token", accumulate=accumulate, method="sft")
    expected, value = plain(batch, "batch_token", supervised=True)
    assert loss == pytest.approx(value, rel=1e-6)
    toy.assert_close(grads, expected, 1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_padding_changes_nothing(reduction):
    batch = toy.batch()
    wider = batch._replace(
        **{
            name: np.pad(
                getattr(batch, name),
                [(0, 0)] * (getattr(batch, name).ndim - 1) + [(0, 13)],
                constant_values=fill,
            )
            for name, fill in {
                "tokens_NT": 3, "positions_N3T": 5, "media_index_NT": -1, "valid_NT": False,
                "action_pos_NA": 2, "action_target_NA": 1, "action_mask_NA": False,
                "turn_id_NA": 2, "sampler_logp_NA": np.nan, "old_logp_NA": np.inf,
                "advantage_NK": np.nan,
            }.items()
        }
    )  # fmt: skip
    grads, loss = gradients_of(wider, reduction)
    expected, value = gradients_of(batch, reduction)
    assert loss == pytest.approx(value, rel=1e-6)
    toy.assert_close(grads, expected, 1e-6)


def test_batch_without_frames_trains():
    batch = toy.batch()._replace(media=None)
    grads, _ = gradients_of(batch)
    assert np.abs(toy.leaves(grads["text"])["['head'].value"]).max() > 0
    np.testing.assert_array_equal(toy.leaves(grads["vision"])["['frames'].value"], 0.0)


def test_no_signal_gives_no_loss_and_no_gradient():
    batch = toy.batch()
    grads, loss = gradients_of(batch._replace(advantage_NK=np.zeros_like(batch.advantage_NK)))
    assert loss == 0.0
    for name, value in toy.leaves(grads).items():
        np.testing.assert_array_equal(value, 0.0, err_msg=name)


def test_update_is_clipped_adamw():
    batch, state = toy.batch(), toy.state((), clip_norm=0.05)
    grads, _ = gradients_of(batch)
    after, metrics = step_of(clip_norm=0.05)(state, batch)
    norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in toy.leaves(grads).values()))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-6)
    assert norm > 0.05
    for name, value in toy.leaves(state.trained).items():
        g = np.float64(toy.leaves(grads)[name]) * 0.05 / norm
        # First AdamW step: both moments are corrected to g and g^2.
        step = g / (np.abs(g) + 1e-8) + 0.01 * value
        np.testing.assert_allclose(toy.leaves(after.trained)[name], value - 1e-2 * step, atol=1e-6)


def test_frozen_parameters_stay_and_have_no_moments():
    batch, state = toy.batch(), toy.state(("vision",))
    step = step_of()
    after, _ = step(*step(state, batch)[:1], batch)
    toy.assert_equal(after.frozen, state.frozen)
    assert not any("vision" in name for name in toy.leaves(after.opt_state))
    assert any("head" in name for name in toy.leaves(after.opt_state))
    moved = toy.leaves(after.trained)
    assert all((moved[name] != value).any() for name, value in toy.leaves(state.trained).items())


def broken(kind: str):
    """A state and a batch whose loss or gradient is not finite."""
    batch, state = toy.batch(), toy.state(())
    if kind == "advantage":
        batch.advantage_NK[0, 1] = np.nan
    elif kind == "overflowing advantage":
        batch.advantage_NK[:] = 3e38
        batch.old_logp_NA[:] = -18.0
    elif kind == "parameter":
        head = state.trained["text"]["head"]
        state.trained["text"]["head"] = head.replace(head[...].at[0, 0].set(jnp.nan))
    return state, batch


@pytest.mark.parametrize("kind", ["advantage", "overflowing advantage", "parameter"])
def test_update_that_is_not_finite_is_skipped_and_counted(kind):
    state, batch = broken(kind)
    after, metrics = step_of()(state, batch)
    toy.assert_equal(after.trained, state.trained)
    toy.assert_equal(after.opt_state, state.opt_state)
    assert (int(after.step), int(after.skipped), int(metrics["skipped_updates"])) == (1, 1, 1)


def test_training_goes_on_after_a_skipped_update():
    step, batch = step_of(), toy.batch()
    bad = batch._replace(advantage_NK=np.full_like(batch.advantage_NK, np.nan))
    after, _ = step(step(toy.state(()), bad)[0], batch)
    expected, _ = step(toy.state(()), batch)
    toy.assert_equal(after.trained, expected.trained)
    toy.assert_equal(after.opt_state, expected.opt_state)


def test_one_masked_nan_harms_nothing():
    batch = toy.batch()
    hurt = toy.batch()
    hurt.advantage_NK[1, 1:] = np.nan  # row 1 has one turn
    hurt.advantage_NK[2] = np.nan  # row 2 trains nothing
    hurt.old_logp_NA[~hurt.action_mask_NA] = np.nan
    toy.assert_equal(gradients_of(hurt)[0], gradients_of(batch)[0])


def count_of(opt_state) -> int:
    (count,) = {int(x) for name, x in toy.leaves(opt_state).items() if "count" in name}
    return count


def test_optimizer_count_is_the_number_of_updates_made():
    step, batch, state = step_of(), toy.batch(), toy.state(())
    for _ in range(3):
        state, _ = step(state, batch)
    assert int(state.step) == count_of(state.opt_state) == 3
    bad = batch._replace(advantage_NK=np.full_like(batch.advantage_NK, np.inf))
    state, _ = step(state, bad)
    assert int(state.step) - int(state.skipped) == count_of(state.opt_state) == 3


def test_reported_learning_rate_is_the_one_used():
    changes = {"schedule": "cosine", "warmup_steps": 2, "learning_rate": 0.1, "steps": 6}
    step, state, rates = step_of(**changes), toy.state((), **changes), []
    batch = toy.batch()
    for bad in (False, True, False, False, False, False, False):
        advantage = np.full_like(batch.advantage_NK, np.nan) if bad else batch.advantage_NK
        state, metrics = step(state, batch._replace(advantage_NK=advantage))
        rates.append(float(metrics["learning_rate"]))
    cosine = [0.1 * (1 + np.cos(np.pi * i / 4)) / 2 for i in range(4)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, *cosine[:4]], abs=1e-7)


def test_ratio_is_one_on_the_first_inner_epoch_only(monkeypatch):
    """Two epochs, in which old log-probs come from a pass of their own."""
    update, each = toy.update((), inner_epochs=2, accumulate=2), []
    step = update._step

    def watched(state, batch):
        state, metrics = step(state, batch)
        each.append(float(metrics["ratio_off_one_max"]))
        return state, metrics

    monkeypatch.setattr(update, "_step", watched)
    state, metrics = update(toy.placed(toy.state(())), toy.batch())
    assert int(state.step) == len(each) == 2
    assert each[0] < 1e-5 < 1e-3 < each[1] == float(metrics["ratio_off_one_max"])


def test_second_inner_epoch_holds_to_the_first_policy():
    batch = toy.batch()
    after, _ = toy.update((), inner_epochs=2)(toy.placed(toy.state(())), batch)
    step = step_of()
    fixed = batch._replace(old_logp_NA=np.asarray(toy.logprobs(toy.params(), batch)))
    expected, _ = step(*step(toy.state(()), fixed)[:1], fixed)
    toy.assert_close(after.trained, expected.trained, 1e-6)


def test_bfloat16_parameters_keep_their_dtype():
    params = toy.params(jnp.bfloat16)
    optimizer = toy.optimizer()
    state = toy.create_state(params, optimizer, ())
    after, metrics = step_of()(state, toy.batch())
    kinds = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == kinds
    assert np.isfinite(float(metrics["loss"]))


def test_statistics_count_real_tokens_only():
    batch = toy.batch()
    mask = batch.action_mask_NA
    logp = np.asarray(toy.logprobs(toy.params(), batch))[mask]
    ratio = np.exp(logp - batch.old_logp_NA[mask])
    advantage = np.take_along_axis(batch.advantage_NK, batch.turn_id_NA, axis=1)[mask]
    clipped = np.where(advantage > 0, ratio > 1.2, (ratio < 0.8) | (ratio > 3.0))
    _, metrics = step_of()(toy.state(()), batch)
    gap = np.abs(batch.old_logp_NA[mask] - batch.sampler_logp_NA[mask])
    expected = {
        "ratio": ratio.mean(),
        "ratio_off_one_max": np.abs(ratio - 1).max(),
        "clip_fraction": clipped.mean(),
        "logp": logp.mean(),
        "sampler_gap": gap.mean(),
        "sampler_gap_max": gap.max(),
    }
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-5)


def test_state_is_a_plain_optax_state():
    """Nothing of the optimizer is our own: its first step equals optax used by hand."""
    state, batch = toy.state(()), toy.batch()
    grads, _ = gradients_of(batch)
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, weight_decay=0.01))
    updates, _ = chain.update(grads, chain.init(state.trained), state.trained)
    after, _ = step_of()(state, batch)
    toy.assert_close(after.trained, optax.apply_updates(state.trained, updates), 1e-6)
    assert isinstance(after.params, nnx.State)


def test_moments_may_be_kept_in_bfloat16():
    exact = step_of()(toy.state(), toy.batch())[0]
    state = toy.state(moments_dtype="bfloat16")
    after, _ = step_of(moments_dtype="bfloat16")(state, toy.batch())
    for opt_state in (state.opt_state, after.opt_state):
        moments = [x for x in jax.tree.leaves(opt_state) if x.ndim]
        assert {x.dtype for x in moments} == {jnp.dtype("bfloat16")}
    # The first update is computed in float32: how moments are kept matters from the second on.
    toy.assert_equal(after.trained, exact.trained)
    assert count_of(after.opt_state) == 1
