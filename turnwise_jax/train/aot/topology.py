"""Devices of a TPU slice that is not there, by libtpu; and what its refusals say."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.train.mesh import AXES, by_host

# libtpu asks the metadata server of a cloud machine, and takes a lock that a second process lacks.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Buffer(NamedTuple):
    """One allocation of a program: bytes, what it holds, the operation that makes it."""

    size: float
    shape: str
    source: str


class Refusal(NamedTuple):
    """A program that does not fit: bytes it needs, bytes there are, its largest buffers."""

    needed: float
    available: float
    buffers: tuple[Buffer, ...]


def slice_devices(topology: str) -> list[Any]:
    """The devices of a named slice, such as ``v5e:4x4``. Call it before jax is used.

    Raises:
      InputError: libtpu is not installed, or does not know such a slice.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            "libtpu is not installed: pip install -e '.[tpu]' in the repository; no TPU is needed",
            field="topology",
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    if not re.fullmatch(r"[a-z0-9]+:\d+(x\d+)+", topology):
        raise InputError(f"{topology!r} is not like v5e:4x4 or v5p:2x2x1", field="topology")
    try:
        return list(topologies.get_topology_desc(topology, "tpu").devices)
    except Exception as error:  # of several types, with several lines
        reason = str(error).splitlines()[0].partition(": ")[2] or str(error)
        raise InputError(f"{topology!r}: {reason}", field="topology") from None


def slice_mesh(config: ConfigDict, devices: Sequence[Any]) -> Mesh:
    """The mesh of ``config.mesh`` over a slice; 1 x 1 x 1 stands for ``fsdp`` over all of it.

    Raises:
      InputError: the axes do not multiply to the number of devices.
    """
    sizes = tuple(config[axis] for axis in AXES)
    if math.prod(sizes) == 1:
        sizes = (1, len(devices), 1)
    if math.prod(sizes) != len(devices):
        shape = " x ".join(map(str, sizes))
        raise InputError(f"{shape} is not the slice's {len(devices)} devices", field="mesh")
    kinds = (AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(sizes, AXES, axis_types=kinds, devices=devices)
    return Mesh(by_host(mesh.devices), AXES, axis_types=kinds)


def read_refusal(message: str) -> Refusal | None:
    """What libtpu says when a program does not fit; None if the message says something else."""
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    used = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", message)
    whole = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)", message)
    found = used or whole
    if found is None:
        return None
    return Refusal(_bytes(found[1], found[2]), _bytes(found[3], found[4]), tuple(_buffers(message)))


def _buffers(message: str) -> list[Buffer]:
    """The numbered list of a refusal, the largest first."""
    buffers = []
    for entry in re.split(r"\n\s*\d+\. (?=Size:)", message)[1:]:
        size = re.match(r"Size: ([\d.]+)([KMGT]?)", entry)
        shape = re.search(r"Shape: (\S+)", entry)
        source = re.search(r'op_name="([^"]*)"', entry)
        if size:
            buffers.append(
                Buffer(
                    _bytes(size[1], size[2]),
                    shape[1].partition("{")[0] if shape else "?",
                    source[1] if source else "argument or output",
                )
            )
    return buffers


def _bytes(number: str, unit: str) -> float:
    return float(number) * UNITS[unit]
