"""Sampling against enumeration: frequencies, restrictions, log-probabilities, keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.sampling import Sampling, choose, fold_in, prompt_seed, rollout_keys

DRAWS = 20_000
LOGITS = np.array([1.3, -0.4, 2.1, 0.2, 2.0, -1.5, 0.9, 1.3], np.float32)
EVERY = np.ones(8, bool)


def draw(logits, sampling, *, allowed=None, draws=DRAWS, seed=3):
    """Independent draws: (ids [draws], logprob [draws])."""
    allowed = np.ones(len(logits), bool) if allowed is None else allowed
    keys = jax.random.split(jax.random.key(seed), draws)
    one = jax.jit(jax.vmap(lambda key: choose(jnp.asarray(logits), allowed, key, sampling)))
    return jax.tree.map(np.asarray, one(keys))


def expected(logits, sampling, *, allowed=None):
    """The distribution by enumeration in float64: sort, cut, cut again, normalise."""
    scaled = np.asarray(logits, np.float64) / sampling.temperature
    weight = np.exp(scaled - scaled.max())
    if allowed is not None:
        weight[~allowed] = 0.0
    order = sorted(range(len(weight)), key=lambda token: (-weight[token], token))
    order = [token for token in order if weight[token] > 0]
    order = order[: sampling.top_k or None]
    total, kept = sum(weight[token] for token in order), []
    for token in order:
        kept.append(token)
        if sum(weight[other] for other in kept) / total >= sampling.top_p:
            break
    result = np.zeros(len(weight))
    result[kept] = weight[kept]
    return result / result.sum()


def chi_square(ids, probability):
    """Pearson's statistic over the possible tokens, and its degrees of freedom."""
    counts = np.bincount(ids, minlength=len(probability))
    possible = probability > 0
    assert counts[~possible].sum() == 0, "a token outside the restriction was drawn"
    mean = probability[possible] * len(ids)
    return ((counts[possible] - mean) ** 2 / mean).sum(), possible.sum() - 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.2),
        Sampling(temperature=0.6, top_k=3),
        Sampling(top_k=5, top_p=0.7),
        Sampling(temperature=1.5, top_p=0.8),
        Sampling(temperature=1.2, top_k=4, top_p=0.999),
    ],
    ids=str,
)
@pytest.mark.parametrize("banned", [(), (2, 5)], ids=["all", "banned"])
def test_frequencies_equal_the_enumerated_distribution(sampling, banned):
    allowed = EVERY.copy()
    allowed[list(banned)] = False
    ids, _ = draw(LOGITS, sampling, allowed=allowed)
    statistic, freedom = chi_square(ids, expected(LOGITS, sampling, allowed=allowed))
    # Mean `freedom`, standard deviation sqrt(2 freedom): five of them is far out of any tail.
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.2, top_k=2),
        Sampling(temperature=0.6, top_p=0.5),
        Sampling(temperature=0.7),
        Sampling(temperature=0.7, greedy=True),
    ],
    ids=str,
)
def test_logprob_is_the_tempered_full_vocabulary_one(sampling):
    allowed = EVERY.copy()
    allowed[2] = False
    ids, logprob = draw(LOGITS, sampling, allowed=allowed, draws=200)
    scaled = LOGITS.astype(np.float64) / (1.0 if sampling.greedy else sampling.temperature)
    full = scaled - np.log(np.exp(scaled).sum())
    np.testing.assert_allclose(logprob, full[ids], atol=1e-6)


def test_banned_ids_are_never_chosen_however_likely():
    logits = np.array([0.0, 80.0, 0.1, 90.0], np.float32)
    allowed = np.array([True, False, True, False])
    for sampling in (Sampling(), Sampling(top_k=3), Sampling(top_p=0.9), Sampling(greedy=True)):
        ids, _ = draw(logits, sampling, allowed=allowed, draws=500)
        assert set(ids.tolist()) <= {0, 2}


def test_top_k_one_is_the_greedy_choice():
    logits = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    logits[:10, 3] = logits[:10].max(axis=1)  # ties with the maximum
    keys = jax.random.split(jax.random.key(0), 50)
    rows = jax.vmap(choose, in_axes=(0, None, 0, None))
    ids, _ = rows(logits, EVERY, keys, Sampling(top_k=1))
    greedy, _ = rows(logits, EVERY, keys, Sampling(greedy=True))
    np.testing.assert_array_equal(ids, greedy)
    np.testing.assert_array_equal(greedy, logits.argmax(axis=1))


def test_logits_that_are_not_numbers_still_give_an_id():
    for sampling in (Sampling(), Sampling(greedy=True)):
        ids, _ = draw(np.full(8, np.nan, np.float32), sampling, draws=3)
        assert set(ids.tolist()) <= set(range(8))


def test_top_k_of_the_whole_vocabulary_and_top_p_one_change_nothing():
    plain = draw(LOGITS, Sampling(), draws=300)
    for sampling in (Sampling(top_k=8), Sampling(top_k=99), Sampling(top_p=1.0)):
        ids, logprob = draw(LOGITS, sampling, draws=300)
        np.testing.assert_array_equal(ids, plain[0])
        np.testing.assert_array_equal(logprob, plain[1])


def test_ties_at_the_top_k_border_go_to_the_lower_id():
    ids, _ = draw(np.array([0.0, 1.0, 1.0, 1.0, -1.0], np.float32), Sampling(top_k=2), draws=500)
    assert set(ids.tolist()) == {1, 2}


def test_top_p_keeps_the_token_that_reaches_it():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert set(draw(logits, Sampling(top_p=0.45), draws=500)[0].tolist()) == {0}
    assert set(draw(logits, Sampling(top_p=0.6), draws=500)[0].tolist()) == {0, 1}
    assert set(draw(logits, Sampling(top_p=0.85), draws=500)[0].tolist()) == {0, 1, 2}


def test_bfloat16_logits_are_normalised_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    token, logprob = choose(logits, EVERY, jax.random.key(0), Sampling(greedy=True))
    exact = np.asarray(logits, np.float64)
    exact -= np.log(np.exp(exact).sum())
    assert logprob.dtype == jnp.float32
    assert float(logprob) == pytest.approx(exact[int(token)], abs=1e-6)


def test_keys_depend_on_seed_step_prompt_rollout_turn_and_token_only():
    def data(seed, step, prompts, group=2, turn=0, token=0):
        keys = rollout_keys(seed, step, np.asarray(prompts, np.uint32), group)
        return np.asarray(jax.random.key_data(fold_in(fold_in(keys, turn), token)))

    base = data(1, 2, [7, 9])
    np.testing.assert_array_equal(data(1, 2, [9, 7])[[2, 3, 0, 1]], base)
    np.testing.assert_array_equal(data(1, 2, [7, 9], group=3)[[0, 1, 3, 4]], base)
    others = [data(0, 2, [7, 9]), data(1, 3, [7, 9]), data(1, 2, [8, 10])]
    others += [data(1, 2, [7, 9], turn=1), data(1, 2, [7, 9], token=1)]
    rows = {tuple(row) for keys in [base, *others] for row in keys.tolist()}
    assert len(rows) == 6 * 4


def test_prompt_seed_is_the_published_check_value_of_crc32():
    assert prompt_seed("123456789") == 0xCBF43926


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.0), ("temperature", float("nan")), ("top_k", -1), ("top_p", 0.0),
     ("top_p", 1.1)],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"field '{field}'"):
        Sampling(**{field: value})


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5}, Sampling(greedy=True)),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.5}, Sampling(0.7, 5, 0.5)),
    ],
)
def test_fields_of_a_config_say_how_tokens_are_chosen(fields, sampling):
    assert Sampling.of(ConfigDict(fields)) == sampling
