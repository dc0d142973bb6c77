"""The cache alone, against a loop over rows and entries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.models.cache import KVCache, empty_cache

LAYERS, ROWS, HEADS, SLOTS, WIDTH = 2, 3, 2, 7, 4


def filled(length):
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, LAYERS, ROWS, HEADS, SLOTS, WIDTH)).astype(np.float32)
    return KVCache(k, v, np.array(length, np.int32))


def expected(cache, chunk, length, count):
    out = cache.copy()
    for b in range(ROWS):
        for t in range(count[b]):
            if length[b] + t < SLOTS:
                out[:, b, :, length[b] + t] = chunk[:, b, :, t]
    return out


@pytest.mark.parametrize(
    ("length", "count", "size"),
    [
        ([0, 2, 5], [3, 0, 2], 3),  # ragged; the last row's padding would run past the end
        ([6, 7, 0], [1, 0, 1], 1),  # a single token, one row full
        ([5, 6, 4], [5, 1, 3], 5),  # more than there is room for
        ([0, 0, 3], [7, 5, 4], 9),  # a chunk longer than the cache
    ],
)
def test_append_writes_the_counted_prefix_and_nothing_else(length, count, size):
    rng = np.random.default_rng(1)
    k, v = rng.normal(size=(2, LAYERS, ROWS, HEADS, size, WIDTH)).astype(np.float32)
    cache, count = filled(length), np.array(count, np.int32)
    out = jax.jit(KVCache.append)(cache, k, v, count)
    np.testing.assert_array_equal(out.k, expected(cache.k, k, length, count))
    np.testing.assert_array_equal(out.v, expected(cache.v, v, length, count))
    np.testing.assert_array_equal(out.length, np.minimum(np.array(length) + count, SLOTS))


def test_append_keeps_the_cache_dtype():
    cache = empty_cache(LAYERS, ROWS, HEADS, SLOTS, WIDTH, jnp.bfloat16)
    chunk = jnp.ones((LAYERS, ROWS, HEADS, 2, WIDTH), jnp.float32)
    out = cache.append(chunk, chunk, jnp.array([2, 1, 0]))
    assert out.k.dtype == jnp.bfloat16
    assert out.capacity == SLOTS
    np.testing.assert_array_equal(out.length, [2, 1, 0])


def test_repeat_copies_each_row_side_by_side():
    cache = filled([1, 2, 3])
    out = cache.repeat(2)
    np.testing.assert_array_equal(out.length, [1, 1, 2, 2, 3, 3])
    for b in range(ROWS):
        for copy in (2 * b, 2 * b + 1):
            np.testing.assert_array_equal(out.k[:, copy], cache.k[:, b])
            np.testing.assert_array_equal(out.v[:, copy], cache.v[:, b])
