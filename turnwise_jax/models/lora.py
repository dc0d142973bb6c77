"""Low-rank adapters (LoRA, Hu et al. 2021) on the linear projections of any family.

``y = x W + (x A) B * alpha / rank``: A ``[I, rank]`` starts random and B ``[rank, O]`` at zero, so
that an adapted policy begins as its base. Adapters are parameters like any others, named ``lora_a``
and ``lora_b`` beside the ``kernel`` they adapt; stacked layers have stacked adapters.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from turnwise_jax.errors import InputError
from turnwise_jax.models.layers import Linear
from turnwise_jax.models.params import Path

A, B = "lora_a", "lora_b"
DECODER = r"text/decoder/layers/(q|k|v|o|mlp/(gate|up|down))"


@dataclass(frozen=True, slots=True)
class Lora:
    """Which projections are adapted, and how.

    ``targets`` is a regular expression over the whole path of a projection, such as
    ``text/decoder/layers/mlp/up``.
    """

    rank: int
    alpha: float = 16.0
    targets: str = DECODER

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @classmethod
    def from_config(cls, fields: Mapping[str, Any]) -> Lora | None:
        """From ``policy.lora`` of a config; None if its rank is 0."""
        rank, alpha, targets = (fields[name] for name in ("rank", "alpha", "targets"))
        return cls(rank, alpha, targets) if rank else None


def is_adapter(path: Path) -> bool:
    """Whether a parameter belongs to an adapter."""
    return path[-1] in (A, B)


def adapt(model: nnx.Module, lora: Lora) -> None:
    """Give every targeted projection of a model its adapter.

    Raises:
      InputError: the pattern is no regular expression, or fits no projection.
    """
    try:
        pattern = re.compile(lora.targets)
    except re.error as error:
        raise InputError(f"{lora.targets!r}: {error}", field="policy.lora.targets") from None
    found = [
        module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and pattern.fullmatch("/".join(map(str, path)))
    ]
    if not found:
        raise InputError(f"{lora.targets!r} fits no projection", field="policy.lora.targets")
    for module in found:
        module.adapt(lora.rank, lora.scale)


def init_adapters(
    abstract: Mapping[Path, jax.ShapeDtypeStruct], seed: int, shardings: Mapping[Path, Any] | None
) -> dict[Path, jax.Array]:
    """First values: A uniform within ``+- sqrt(3 / I)``, of deviation ``1 / sqrt(I)``; B zero.

    Each depends on the seed and its own name only, wherever it lives.
    """
    adapters = {path: leaf for path, leaf in abstract.items() if is_adapter(path)}

    def draw(path: Path) -> jax.Array:
        leaf = adapters[path]
        if path[-1] == B:
            return jnp.zeros(leaf.shape, leaf.dtype)
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32("/".join(path).encode()))
        bound = (3.0 / leaf.shape[-2]) ** 0.5
        return jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)

    places = None if shardings is None else {path: shardings[path] for path in adapters}
    return jax.jit(lambda: {path: draw(path) for path in adapters}, out_shardings=places)()


def merged_kernel(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """``W + A B * alpha / rank``, computed in float32, in the kernel's dtype."""
    delta = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest") * scale
    return (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)
