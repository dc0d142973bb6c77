"""Token log-probabilities and entropies straight from hidden states, without a [T, V] array.

The vocabulary is taken a chunk at a time, forward and backward: the largest temporary is
[T, chunk]. Rows are tokens of any trajectories, so flatten a batch into T. `jax.vmap` works too,
but its gradient holds one [D, V] array per mapped element.

Log-probabilities are those of `softmax(logits / temperature)` over the whole vocabulary, also when
sampling was restricted to the top k: the restriction is the sampler's and cancels in no ratio.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import (
    as_bool,
    as_float,
    check_axes,
    check_static,
    hide,
    vary_like,
)

DEFAULT_CHUNK = 8192
# Below every logit, and finite: inf - inf would be NaN.
_LOWEST = -3e38


class _Softmax(NamedTuple):
    """Running softmax statistics of each row over the chunks so far, each f32[T]."""

    peak: Array  # largest logit
    total: Array  # sum of exp(logit - peak)
    weighted: Array  # sum of exp(logit - peak) * logit
    target: Array  # logit of the target, 0 until its chunk comes


class _Block(NamedTuple):
    """One chunk of the head. The last one is moved back to fit, and so overlaps its neighbour."""

    start: Array  # i32[] first column
    column: Array  # i32[chunk] columns
    fresh: Array  # bool[chunk] columns that no earlier chunk held
    weight: Array  # [D, chunk]


def _block(head: Array, index: Array, chunk: int) -> _Block:
    start = jnp.minimum(index * chunk, head.shape[1] - chunk)
    column = start + jnp.arange(chunk)
    weight = jax.lax.dynamic_slice_in_dim(head, start, chunk, axis=1)
    return _Block(start, column, column >= index * chunk, weight)


def _logits(hidden: Array, weight: Array, inverse_temperature: Array) -> Array:
    """f32[T, chunk]; products in the inputs' precision, sums in float32."""
    kind = jnp.promote_types(hidden.dtype, weight.dtype)
    logits = jnp.matmul(
        hidden.astype(kind), weight.astype(kind), preferred_element_type=jnp.float32
    )
    return logits * inverse_temperature


def _num_blocks(head: Array, chunk: int) -> int:
    size: int = head.shape[1]
    return -(-size // chunk)


def _read(
    hidden: Array, head: Array, target: Array, inverse_temperature: Array, chunk: int
) -> tuple[Array, Array, Array]:
    """Log-probability of the target, entropy and log of the normaliser, each f32[T]."""

    def absorb(seen: _Softmax, index: Array) -> tuple[_Softmax, None]:
        block = _block(head, index, chunk)
        logits = _logits(hidden, block.weight, inverse_temperature)
        fresh = block.fresh[None, :]
        peak = jnp.maximum(seen.peak, jnp.max(jnp.where(fresh, logits, seen.peak[:, None]), 1))
        kept = jnp.exp(seen.peak - peak)
        mass = hide(jnp.exp(logits - peak[:, None]), fresh)
        is_target = fresh & (block.column[None, :] == target[:, None])
        return _Softmax(
            peak=peak,
            total=seen.total * kept + jnp.sum(mass, axis=1),
            weighted=seen.weighted * kept + jnp.sum(mass * logits, axis=1),
            target=seen.target + jnp.sum(hide(logits, is_target), axis=1),
        ), None

    none = jnp.zeros(hidden.shape[0], jnp.float32)
    lowest = jnp.full_like(none, _LOWEST)
    start = _Softmax(peak=lowest, total=none, weighted=none, target=none)
    start = jax.tree.map(lambda leaf: vary_like(leaf, hidden, head, target), start)
    seen, _ = jax.lax.scan(absorb, start, jnp.arange(_num_blocks(head, chunk)))
    log_total = seen.peak + jnp.log(seen.total)
    return seen.target - log_total, log_total - seen.weighted / seen.total, log_total


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _logprob_entropy(
    hidden: Array, head: Array, target: Array, inverse_temperature: Array, chunk: int
) -> tuple[Array, Array]:
    logprob, entropy, _ = _read(hidden, head, target, inverse_temperature, chunk)
    return logprob, entropy


def _forward(
    hidden: Array, head: Array, target: Array, inverse_temperature: Array, chunk: int
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    logprob, entropy, log_total = _read(hidden, head, target, inverse_temperature, chunk)
    saved = (hidden, head, target, inverse_temperature, entropy, log_total)
    return (logprob, entropy), saved


def _backward(
    chunk: int, saved: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None, Array]:
    """Recompute each chunk's logits; d logp / d logit = [v is target] - p, d H = -p (log p + H)."""
    hidden, head, target, inverse_temperature, entropy, log_total = saved
    of_logprob, of_entropy = (cotangent[:, None] for cotangent in cotangents)
    hidden_float = as_float(hidden)

    def absorb(grads: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], None]:
        of_hidden, of_head = grads
        block = _block(head, index, chunk)
        logp = _logits(hidden, block.weight, inverse_temperature) - log_total[:, None]
        prob = jnp.exp(logp)
        is_target = block.column[None, :] == target[:, None]
        of_logits = of_logprob * (is_target - prob) - of_entropy * prob * (logp + entropy[:, None])
        of_logits = hide(of_logits * inverse_temperature, block.fresh[None, :])
        of_hidden += of_logits @ as_float(block.weight).T
        of_block = (hidden_float.T @ of_logits).astype(head.dtype)
        before = jax.lax.dynamic_slice_in_dim(of_head, block.start, chunk, axis=1)
        of_head = jax.lax.dynamic_update_slice_in_dim(
            of_head, before + of_block, block.start, axis=1
        )
        return (of_hidden, of_head), None

    start = (jnp.zeros_like(hidden_float), jnp.zeros_like(head))
    start = jax.tree.map(lambda leaf: vary_like(leaf, hidden, head, *cotangents), start)
    (of_hidden, of_head), _ = jax.lax.scan(absorb, start, jnp.arange(_num_blocks(head, chunk)))
    return of_hidden.astype(hidden.dtype), of_head, None, jnp.zeros_like(inverse_temperature)


_logprob_entropy.defvjp(_forward, _backward)


def logprobs_and_entropy(
    hidden_TD: Array,
    head_DV: Array,
    target_T: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    chunk: int = DEFAULT_CHUNK,
    mask_T: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Log-probability of each target and entropy of each distribution, in one pass over the head.

    Args:
        hidden_TD: float[T, D] hidden states after the final norm, at the positions that predict the
            targets. Any float type.
        head_DV: float[D, V] output head (of a tied model: the embedding, transposed).
        target_T: i32[T] token ids.
        temperature: f32[] divides the logits, as in sampling; not differentiated.
        chunk: columns of the head at a time, static; need not divide V.
        mask_T: bool[T] rows that count, all by default; the others may hold anything.

    Returns:
        Two f32[T]: log-probabilities and entropies in nats, both 0 outside the mask. A target
        outside the vocabulary has log-probability NaN.

    Raises:
        ValueError: wrong ranks or lengths, `temperature` or `chunk` not positive, target ids that
            are not integers.
    """
    hidden, head, target = jnp.asarray(hidden_TD), jnp.asarray(head_DV), jnp.asarray(target_T)
    mask = jnp.ones(target.shape, jnp.bool_) if mask_T is None else as_bool(mask_T)
    check_axes(
        hidden_TD=(hidden, "TD"),
        head_DV=(head, "DV"),
        target_T=(target, "T"),
        mask_T=(mask, "T"),
    )
    check_static(temperature, lambda value: value > 0, "temperature must be positive")
    check_static(chunk, lambda value: value > 0, "chunk must be positive")
    if not jnp.issubdtype(target.dtype, jnp.integer):
        raise ValueError(f"target_T should hold integer ids, got {target.dtype}")

    size = head.shape[1]
    hidden, inverse = hide(hidden, mask[:, None]), 1 / as_float(temperature)
    # Typed alike before the custom gradient, so that shard_map sums the head's over devices.
    everything = (hidden, head, target, inverse)
    hidden, head, target, inverse = (vary_like(array, *everything) for array in everything)
    logprob, entropy = _logprob_entropy(
        hidden, head, target, jax.lax.stop_gradient(inverse), min(chunk, size)
    )
    known = (target >= 0) & (target < size)
    return hide(jnp.where(known, logprob, jnp.nan), mask), hide(entropy, mask)


def token_logprobs(
    hidden_TD: Array,
    head_DV: Array,
    target_T: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    chunk: int = DEFAULT_CHUNK,
    mask_T: ArrayLike | None = None,
) -> Array:
    """Log-probability of each target: `log softmax(hidden @ head / temperature)[target]`.

    See `logprobs_and_entropy` for arguments, errors and the rest; returns its f32[T] first half.
    """
    logprob, _ = logprobs_and_entropy(
        hidden_TD, head_DV, target_T, temperature=temperature, chunk=chunk, mask_T=mask_T
    )
    return logprob


def token_entropy(
    hidden_TD: Array,
    head_DV: Array,
    *,
    temperature: ArrayLike = 1.0,
    chunk: int = DEFAULT_CHUNK,
    mask_T: ArrayLike | None = None,
) -> Array:
    """Entropy of each row's distribution `softmax(hidden @ head / temperature)`, in nats.

    See `logprobs_and_entropy` for arguments and errors; returns f32[T], differentiable.
    """
    hidden = jnp.asarray(hidden_TD)
    check_axes(hidden_TD=(hidden, "TD"))
    any_target = jnp.zeros(hidden.shape[0], jnp.int32)
    _, entropy = logprobs_and_entropy(
        hidden, head_DV, any_target, temperature=temperature, chunk=chunk, mask_T=mask_T
    )
    return entropy
