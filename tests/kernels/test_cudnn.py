"""Attention by cuDNN, as far as that can be seen without a GPU.

Merging, masks and gradients run with plain stand-ins for the two kernels; the real ones are found
in programs that are lowered for CUDA.
"""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused
from plain_cudnn import PLAIN, plain_backward, plain_forward

from turnwise_jax.kernels import cudnn
from turnwise_jax.kernels.attention import Run, attend
from turnwise_jax.kernels.cudnn import LEAST, Calls, cudnn_attend, fits, usable

from .jaxprs import shapes

B, T, N, G, C = 4, LEAST, 2, 2, 8


@pytest.fixture
def single(monkeypatch):
    """Single precision, so that differences are those of the method."""
    monkeypatch.setattr(cudnn, "DTYPES", ("float32",))


@pytest.fixture
def found(monkeypatch):
    """The real kernels, as if there were a cuDNN."""
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    cudnn.cudnn_calls.cache_clear()
    usable.cache_clear()
    yield cudnn.cudnn_calls()
    cudnn.cudnn_calls.cache_clear()
    usable.cache_clear()


def make(rng, *sizes, holes=True):
    """Queries and runs of (rows, keys, causal)."""

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    runs = []
    for rows, keys, causal in sizes:
        valid = np.arange(keys) < rng.integers(1, keys, (rows, 1))
        if holes:
            valid = rng.random((rows, keys)) < 0.6
        runs.append(
            Run(floats(rows, N, keys, C), floats(rows, N, keys, C), jnp.asarray(valid), causal)
        )
    return floats(B, T, N, G, C), runs


def values_and_slopes(attention, query, runs, weight, kept):
    def loss(query, pairs):
        made = [run._replace(key=k, value=v) for run, (k, v) in zip(runs, pairs, strict=True)]
        out = jnp.where(kept[..., None, None, None], attention(query, made), 0.0)
        return jnp.sum(out * weight), out

    pairs = [(run.key, run.value) for run in runs]
    slopes, out = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(query, pairs)
    return [out, *jax.tree.leaves(slopes)]


SIZES = {
    "own": [(B, T, True)],
    "shared": [(2, 40, False)],
    "shared by all, and own": [(1, 40, False), (B, T, True)],
    "shared, earlier and own": [(2, 40, False), (B, 24, False), (B, T, True)],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_merged_runs_have_the_values_and_gradients_of_one_softmax(single, sizes):
    rng = np.random.default_rng(0)
    query, runs = make(rng, *sizes)
    weight = jnp.asarray(rng.normal(size=query.shape), jnp.float32)
    kept = jnp.ones((B, T), bool)
    if runs[-1].causal:  # what a query gives whose own token does not count is not used
        kept = runs[-1].valid

    def merged(query, runs):
        return cudnn_attend(query, runs, PLAIN)

    ours = values_and_slopes(merged, query, runs, weight, kept)
    wanted = values_and_slopes(attend, query, runs, weight, kept)
    for one, other in zip(ours, wanted, strict=True):
        assert float(jnp.abs(other).max()) > 0.1
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=0)


def test_runs_and_rows_without_a_token_have_no_part_and_no_gradient(single):
    """Row 0 sees only itself, row 1 only its context, rows 2 and 3 nothing at all."""
    rng = np.random.default_rng(1)
    query, (context, own) = make(rng, (B, 24, False), (B, T, True), holes=False)
    runs = [
        context._replace(valid=context.valid.at[jnp.array([0, 2, 3])].set(False)),
        own._replace(valid=own.valid.at[1:].set(False)),
    ]
    weight = jnp.asarray(rng.normal(size=query.shape), jnp.float32)
    kept = jnp.broadcast_to(jnp.arange(B)[:, None] < 2, (B, T))

    def merged(query, runs):
        return cudnn_attend(query, runs, PLAIN)

    ours = values_and_slopes(merged, query, runs, weight, kept)
    wanted = values_and_slopes(attend, query, runs, weight, kept)
    for one, other in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=0)
    everywhere = values_and_slopes(merged, query, runs, weight, jnp.ones((B, T), bool))
    for one in everywhere:
        assert np.isfinite(one).all()
    for one in everywhere[1:]:
        np.testing.assert_array_equal(one[2:], 0)


def test_half_precision_stays_and_is_as_close_as_its_rounding():
    rng = np.random.default_rng(2)
    query, runs = make(rng, (B, T, True), holes=False)

    def values(attention, dtype):
        made = [r._replace(key=r.key.astype(dtype), value=r.value.astype(dtype)) for r in runs]
        return attention(query.astype(dtype), made)

    exact = jax.jit(lambda: values(attend, "float32"))()
    found = jax.jit(lambda: values(lambda q, r: cudnn_attend(q, r, PLAIN), "bfloat16"))()
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype("float32"), exact, atol=0.05)


def half_precision(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def run(keys, *, rows=B, width=64, causal=False, dtype=jnp.bfloat16):
    key = jax.ShapeDtypeStruct((rows, N, keys, width), dtype)
    return Run(key, key, jax.ShapeDtypeStruct((rows, keys), jnp.bool), causal)


REFUSED = {
    "few queries": (half_precision(B, LEAST - 1, N, G, 64), [run(40)]),
    "single precision": (jax.ShapeDtypeStruct((B, T, N, G, 64), jnp.float32), [run(40)]),
    "keys of another type": (half_precision(B, T, N, G, 64), [run(40, dtype=jnp.float16)]),
    "wide heads": (half_precision(B, T, N, G, 136), [run(40, width=136)]),
    "odd heads": (half_precision(B, T, N, G, 12), [run(40, width=12)]),
    "causal over others' keys": (half_precision(B, T, N, G, 64), [run(T, rows=2, causal=True)]),
    "causal over more keys": (half_precision(B, T, N, G, 64), [run(T + 1, causal=True)]),
}


@pytest.mark.parametrize(("query", "runs"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_suit_is_refused(monkeypatch, query, runs):
    monkeypatch.setattr(cudnn, "usable", lambda: True)
    assert not fits(query, runs)
    with pytest.raises(ValueError, match="do not fit cuDNN"):
        cudnn_attend(query, runs, PLAIN)


def test_what_suits_fits_where_cudnn_can_be_used(monkeypatch):
    query, runs = (
        half_precision(B, T, N, G, 128),
        [run(40, width=128), run(T, width=128, causal=True)],
    )
    for there in (True, False):
        monkeypatch.setattr(cudnn, "usable", lambda there=there: there)
        assert fits(query, runs) is there


def lowered_for_cuda(calls):
    query = half_precision(B, T, N, G, 32)
    runs = [run(40, rows=2, width=32), run(T, width=32, causal=True)]

    def loss(query, pairs, valid):
        made = [Run(*kv, v, r.causal) for kv, v, r in zip(pairs, valid, runs, strict=True)]
        return jnp.sum(cudnn_attend(query, made, calls).astype(jnp.float32))

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return slopes.trace(query, [(r.key, r.value) for r in runs], [r.valid for r in runs])


def test_the_kernels_are_in_a_program_for_cuda_and_no_scores(found):
    traced = lowered_for_cuda(found)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"custom_call @(__cudnn\$\w+)\(.*?mask_type\\22: \\22(\w+)\\22", text)
    assert sorted(calls) == [
        ("__cudnn$fmhaSoftmax", "PADDING"),
        ("__cudnn$fmhaSoftmax", "PADDING_CAUSAL"),
        ("__cudnn$fmhaSoftmaxBackward", "PADDING"),
        ("__cudnn$fmhaSoftmaxBackward", "PADDING_CAUSAL"),
    ]
    # rows that share keys are one row of queries, and key-value heads are not repeated
    assert f"tensor<2x{B // 2 * T}x{N * G}x32xbf16>, tensor<2x40x{N}x32xbf16>" in text
    assert not [s for s in shapes(traced.jaxpr) if s[-2:] in ((T, T), (T, 40), (B // 2 * T, 40))]


def test_without_cudnn_nothing_is_tried_or_said():
    usable.cache_clear()
    cudnn.cudnn_calls.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not usable()
    with pytest.raises(ImportError, match="no attention by cuDNN"):
        cudnn.cudnn_calls()


def test_it_is_used_where_a_trial_gives_what_plain_attention_gives(monkeypatch):
    """Also when the question comes up while a program is traced."""
    monkeypatch.setattr(cudnn, "cudnn_calls", lambda: PLAIN)
    usable.cache_clear()
    answers = []

    def layer(carry, _):
        answers.append(usable())
        return carry * 2.0, None

    def program(x):
        return jax.lax.scan(jax.checkpoint(layer), x, None, length=2)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(jax.jit(jax.grad(program))(1.0)) == 4.0
    assert set(answers) == {True}
    usable.cache_clear()


def wrong_mask(query, key, value, count, causal):
    return plain_forward(query, key, value, jnp.full_like(count, key.shape[1]), causal)


def other_scale(*arguments):
    return tuple(2 * x for x in plain_backward(*arguments))


def refuses(*arguments):
    raise TypeError("got an unexpected keyword argument 'seed'\nand more")


BROKEN = {
    "mask": (Calls(wrong_mask, plain_backward), "are off by"),
    "gradient": (Calls(plain_forward, other_scale), "are off by"),
    "refusal": (Calls(plain_forward, refuses), "unexpected keyword argument 'seed'$"),
}


@pytest.mark.parametrize(("calls", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_kernels_that_fail_the_trial_are_left_with_a_warning(monkeypatch, calls, reason):
    monkeypatch.setattr(cudnn, "cudnn_calls", lambda: calls)
    usable.cache_clear()
    with pytest.warns(UserWarning, match=f"attention by cuDNN is not used: .*{reason}"):
        assert not usable()
    usable.cache_clear()


def test_a_version_that_is_known_to_fail_is_not_tried(monkeypatch, found):
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91400)
    cudnn.cudnn_calls.cache_clear()
    with pytest.warns(UserWarning, match="cuDNN 91400 is known to fail"):
        assert not usable()
