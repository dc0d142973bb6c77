"""AVATAR: off-policy GRPO with stratified replay and temporal advantage shaping (arXiv 2508.03100).

Algorithm 1 of the paper, and where each line is:

* 2: reference policy and empty buffer: ``train.state``, ``rollout.replay``;
* 4, 7: prompts, hinted where the policy is stuck (``rollout.hints``), ``K_on`` samples of each from
  the current policy, scored by ``rewards.qa``; :func:`fresh_advantages`, eq. 1;
* 8: ``K_off`` samples for each prompt of the batch from the buffer, with the log-probabilities that
  were recorded when they were sampled; :func:`replayed_advantages`;
* 10-13: :func:`shaped_advantages`, eq. 5 and 6;
* 15: :func:`loss` of every sample, eq. 2 and 4, and :func:`sample_weights`, which make their mean
  ``J_on + alpha J_off``, eq. 3;
* 16, 18: ``train.step``; ``train.answers`` puts the fresh samples into the buffer.

With ``rollout.group_size`` 8, ``replay.samples`` 0 and the uniform shape it is plain GRPO.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import check_clipping, check_kl, statistics
from turnwise_jax.algorithms.types import Actions, Mixture, Terms

SHAPES = ("u", "linear_decay", "linear_incline", "uniform")
VCRS = ("baseline", "multiplicative", "none")
MEANS = ("parts", "samples")
RATIOS = ("token", "sequence")


class Settings(NamedTuple):
    """Symbols are the paper's, which gives no values; these are of the authors' code.

    ``mean``: "parts" is eq. 3, a mean over the fresh samples plus ``replay_weight`` times a mean
    over the replayed ones; "samples" is one mean over all, replayed ones weighted. ``kl_mean``:
    the same for the KL term; eq. 2 and 3 give each part its own, "samples" is the reading of
    Algorithm 1, line 15, in which one final penalty is added to both. ``ratio``: eq. 4 divides the
    probabilities of whole answers ("sequence"), the paper's listing and code those of tokens.
    """

    tas_strength: float = 0.3  # lambda_TAS
    tas_shape: str = "u"  # one of SHAPES
    replay_weight: float = 1.0  # alpha
    vcrs: str = "baseline"  # reference score of replayed samples; "none": the advantage they had
    mean: str = "parts"
    kl: float = 0.1  # beta; 0: no reference policy is kept
    kl_kind: str = "k3"  # estimator of the KL: "k2" or "k3"
    kl_mean: str = "parts"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0  # c of the dual clip, 0: none
    ratio: str = "token"  # or "sequence", of replayed answers
    truncate: float = 0.0  # largest ratio of a replayed token, at least 1; 0: no bound
    eps: float = 1e-4

    def check(self) -> None:
        check_clipping(self.clip_low, self.clip_high, self.dual_clip or 2.0)
        check_kl(self.kl, self.kl_kind)
        for name, value, allowed in (
            ("tas_shape", self.tas_shape, SHAPES),
            ("vcrs", self.vcrs, VCRS),
            ("mean", self.mean, MEANS),
            ("ratio", self.ratio, RATIOS),
            ("kl_mean", self.kl_mean, MEANS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        for name in ("tas_strength", "replay_weight", "dual_clip", "truncate"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if 0 < self.truncate < 1:
            raise ValueError(
                f"truncate is {self.truncate}; below 1 answers that are as probable as ever "
                "have no gradient: use at least 1, or 0 for no bound"
            )
        if not self.eps > 0:
            raise ValueError("eps must be above 0")

    @property
    def reference(self) -> bool:
        """Whether a reference policy is needed."""
        return self.kl > 0


def fresh_advantages(reward_G: ArrayLike, settings: Settings) -> Array:
    """f32[G] group-relative advantages of one prompt's fresh samples (eq. 1); NaN rewards: 0."""
    return kernels.group_advantages(reward_G, eps=settings.eps)


def replayed_advantages(
    reward_N: ArrayLike,
    average_N: ArrayLike,
    stored_N: ArrayLike,
    mask_N: ArrayLike,
    settings: Settings,
) -> Array:
    """f32[N] advantages of the samples that one step replays.

    Args:
      reward_N: f32[N] what each earned when it was sampled.
      average_N: f32[N] moving-average reward of its prompt now: the Video-Context Reference Score.
      stored_N: f32[N] the advantage that it had when it was fresh.
      mask_N: bool[N] rows that hold a sample.
      settings: ``vcrs`` chooses the reading, see ``kernels.replay_advantages``.
    """
    if settings.vcrs == "none":
        return jnp.where(jnp.asarray(mask_N), jnp.asarray(stored_N, jnp.float32), 0.0)
    return kernels.replay_advantages(
        reward_N, average_N, kind=settings.vcrs, mask=mask_N, eps=settings.eps
    )


def shaped_advantages(advantage: Array, mask_A: Array, settings: Settings) -> Array:
    """f32[A] ``A_t = w_t A``: the advantage of each token by its place in the answer (eq. 5, 6)."""
    weight_A = kernels.tas_weights(mask_A, strength=settings.tas_strength, shape=settings.tas_shape)
    return weight_A * advantage


def sample_weights(
    trains_N: np.ndarray, replayed_N: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray]:
    """(f32[N] of the surrogate, f32[N] of the KL): plain means of weighted losses are eq. 3.

    Args:
      trains_N: bool[N] samples of the whole batch that have a trained token.
      replayed_N: bool[N] those of the buffer.
    """
    parts = [np.asarray(trains_N) & ~np.asarray(replayed_N), np.asarray(trains_N) & replayed_N]
    sizes = [max(int(part.sum()), 1) for part in parts]
    whole = sum(int(part.sum()) for part in parts)

    def weights(mean: str, replayed: float) -> np.ndarray:
        even = [whole / size for size in sizes] if mean == "parts" else [1.0, 1.0]
        factor: np.ndarray = np.select(parts, [even[0], even[1] * replayed], 0.0)
        return factor.astype(np.float32)

    # One common penalty belongs to neither part, so that alpha does not weigh it.
    kl_replayed = settings.replay_weight if settings.kl_mean == "parts" else 1.0
    return (
        weights(settings.mean, settings.replay_weight),
        weights(settings.kl_mean, kl_replayed),
    )


def loss(actions: Actions, advantage_K: Array, settings: Settings) -> Terms:
    """One sample's share of eq. 3 and its statistics; ``advantage_K``: its one advantage."""
    mask_A = actions.mask_A
    mixture = actions.mixture or _alone(actions)
    advantage_A = shaped_advantages(advantage_K[0], mask_A, settings)
    ratio_A = _ratios(actions, mixture.replayed, settings)
    clip = {
        "clip_low": settings.clip_low,
        "clip_high": settings.clip_high,
        "dual_clip": settings.dual_clip or None,
    }
    surrogate_A = kernels.clipped_surrogate(ratio_A, advantage_A, **clip)
    total = mixture.weight * kernels.token_mean(surrogate_A, mask_A)
    clipped_A = kernels.clipped_tokens(ratio_A, advantage_A, **clip)
    means, maxima = _statistics(actions, mixture.replayed, ratio_A, clipped_A)
    if settings.kl:
        kl_A = kernels.kl_estimate(
            actions.logp_A, mixture.ref_logp_A, kind=settings.kl_kind, mask_T=mask_A
        )
        total += settings.kl * mixture.kl_weight * kernels.token_mean(kl_A, mask_A)
        means["kl"] = kernels.token_mean_terms(kl_A, mask_A)
    return Terms(total, mask_A.any().astype(jnp.float32), means, maxima)


def _ratios(actions: Actions, replayed: Array, settings: Settings) -> Array:
    """f32[A]: eq. 4 for a replayed answer; a fresh one has token ratios (eq. 2), 1 at first."""
    logp = actions.logp_A, actions.old_logp_A, actions.mask_A
    old_A = kernels.importance_ratio(
        *logp, truncate=settings.truncate or None, level=settings.ratio
    )
    return jnp.where(replayed, old_A, kernels.importance_ratio(*logp))


def _alone(actions: Actions) -> Mixture:
    """A sample of a batch without replay and reference."""
    one = jnp.ones((), jnp.float32)
    return Mixture(actions.logp_A, jnp.zeros((), bool), one, one)


def _statistics(
    actions: Actions, replayed: Array, ratio_A: Array, clipped_A: Array
) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """Fresh samples under the usual names, replayed ones under ``replay_...``."""
    fresh = actions._replace(mask_A=actions.mask_A & ~replayed)
    means, maxima = statistics(fresh, ratio_A, clipped_A)
    old = actions._replace(mask_A=actions.mask_A & replayed)
    more, _ = statistics(old, ratio_A, clipped_A)
    for name in ("ratio", "clip_fraction"):
        means[f"replay_{name}"] = more[name]
    return means, maxima
