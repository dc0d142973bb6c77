"""What every method receives and returns, for one trajectory; the training step vmaps and sums."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
from jax import Array


class Mixture(NamedTuple):
    """What a trajectory has beside where fresh and replayed ones share a batch."""

    ref_logp_A: Array  # f32, under the reference policy; zeros where none is kept
    replayed: Array  # bool[], drawn from the replay buffer
    weight: Array  # f32[], of its surrogate in the loss; a plain mean gives every trajectory 1
    kl_weight: Array  # f32[], of its KL term, likewise


class Actions(NamedTuple):
    """The sampled (or given) tokens of one trajectory, padded to A."""

    logp_A: Array  # f32, under the policy being trained
    old_logp_A: Array  # f32, under the policy that the ratio is taken against
    sampler_logp_A: Array  # f32, as recorded while sampling; zeros for given replies
    mask_A: Array  # bool, real action tokens
    turn_id_A: Array  # i32, decision turn of each token, 0..K-1
    mixture: Mixture | None = None


class Terms(NamedTuple):
    """Loss numerator and denominator of one trajectory, divided once over the whole batch.

    Carrying both is what makes the gradient independent of how a batch is split into micro-batches
    or over devices.
    """

    total: Array  # f32[], summed over trajectories
    count: Array  # f32[], summed over trajectories; does not depend on the parameters
    means: dict[str, tuple[Array, Array]]  # logged averages as (sum, count)
    maxima: dict[str, Array]  # logged maxima


class Settings(Protocol):
    """A method's fields of ``config.algorithm``."""

    def check(self) -> None:
        """Raise ValueError for values that cannot work."""

    def _asdict(self) -> dict[str, object]: ...


def reduce_terms(terms: Terms) -> Terms:
    """Sum (or take the maximum of) per-trajectory terms ``[N, ...]`` over N."""
    return Terms(
        total=terms.total.sum(0),
        count=terms.count.sum(0),
        means=jax.tree.map(lambda x: x.sum(0), terms.means),
        maxima=jax.tree.map(lambda x: x.max(0), terms.maxima),
    )
