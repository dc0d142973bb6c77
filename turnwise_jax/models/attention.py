"""How the models attend: by tiles on a TPU, by cuDNN on a GPU where it fits, else plainly.

Split over a mesh where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from turnwise_jax.kernels import cudnn, flash
from turnwise_jax.kernels.attention import Run, attend
from turnwise_jax.models.sharding import ROWS, current_mesh

QUERY = PartitionSpec(ROWS, None, "tensor")  # [rows, queries, key-value heads, ...]
KEYS = PartitionSpec(ROWS, "tensor")  # [rows, key-value heads, ...]


def mixed_values(query: Array, runs: Sequence[Run]) -> Array:
    """``kernels.attention.attend``, by the fastest way there is to it.

    The mesh that the model is traced on says for which platform. Tiles are the work of one device,
    so that rows and heads must come apart evenly over the mesh's.
    """
    mesh = current_mesh()
    tiled = kernel_for(_platform(mesh), query, runs)
    if tiled is None:
        return plain_values(query, runs)
    if mesh is None or mesh.size == 1:
        return tiled(query, runs)
    parts, heads = mesh.shape["data"] * mesh.shape["fsdp"], mesh.shape["tensor"]
    rows = [query.shape[0], *(run.key.shape[0] for run in runs)]
    if any(count % parts for count in rows) or query.shape[2] % heads:
        return plain_values(query, runs)
    causal = [run.causal for run in runs]

    def own(query: Array, arrays: list[tuple[Array, Array, Array]]) -> Array:
        return tiled(query, [Run(*a, c) for a, c in zip(arrays, causal, strict=True)])

    return jax.shard_map(
        own,
        mesh=mesh,
        in_specs=(QUERY, [(KEYS, KEYS, PartitionSpec(ROWS))] * len(runs)),
        out_specs=QUERY,
        check_vma=False,  # the kernel does not say how its results vary
    )(query, [(run.key, run.value, run.valid) for run in runs])


def plain_values(query: Array, runs: Sequence[Run]) -> Array:
    """``kernels.attention.attend`` in blocks as they suit the platform."""
    return attend(query, runs, wide=_platform(current_mesh()) != "cpu")


def _platform(mesh: Mesh | None) -> str:
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    return device.platform


def kernel_for(
    platform: str, query: Array, runs: Sequence[Run]
) -> Callable[[Array, Sequence[Run]], Array] | None:
    """A kernel of the platform that takes these arguments of one device, None without any."""
    if platform == "tpu" and flash.fits(query, runs):
        return flash.flash_attend
    if platform == "gpu" and cudnn.fits(query, runs):
        return cudnn.cudnn_attend
    return None
