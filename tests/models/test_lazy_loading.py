"""Weights reach the devices without the host holding more than one tensor beside them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_model import make_tiny

from turnwise_jax.models import io
from turnwise_jax.models.safetensors import Checkpoint

ROOT = Path(__file__).resolve().parent.parent.parent

# Prints the process's peak memory before and after loading, and the arrays' size, in MiB.
MEASURE = """
import json, sys
import jax, jax.numpy as jnp
from turnwise_jax.models import io

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10

io.build(io.load_config(sys.argv[1]))
jax.block_until_ready(jnp.zeros(3) + 1)
before = peak()
params = io.load(sys.argv[1], param_dtype=sys.argv[2])[1]
jax.block_until_ready(params)
size = sum(x.nbytes for x in jax.tree.leaves(params)) / 2**20
print(json.dumps({"before": before, "after": peak(), "arrays": size}))
"""

# One of two processes with two devices each: loads split over all four, saves, prints what it read.
SHARE = """
import sys
import jax
from turnwise_jax.models import io
from turnwise_jax.models.sharding import param_shardings

jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
made = []

class Counting(io.Checkpoint):
    def __init__(self, directory):
        super().__init__(directory)
        made.append(self)

io.Checkpoint = Counting
kinds = (jax.sharding.AxisType.Auto,) * 3
mesh = jax.make_mesh((1, 4, 1), ("data", "fsdp", "tensor"), axis_types=kinds)
place = lambda params, config: param_shardings(params, mesh, config)
_, params, config = io.load(sys.argv[1], shardings=place)
print("read", made[0].bytes_read, flush=True)
io.save(sys.argv[4], config, params)
"""


def run(code: str, *arguments: str, **settings: str) -> subprocess.Popen:
    """A Python process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
    )  # fmt: skip


def output(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out


def tensor_sizes(directory) -> list[int]:
    """Bytes of every tensor of a checkpoint, the smallest first."""
    checkpoint = Checkpoint(directory)
    return sorted(checkpoint.read(name).nbytes for name in checkpoint.names())


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of about 200 MiB in float16, twice that in float32; most of it is layers."""
    config = type(make_tiny().config).tiny(
        4096,
        text_num_hidden_layers=24,
        text_hidden_size=512,
        text_intermediate_size=5120,
        text_head_dim=128,
        text_mrope_section=(16, 24, 24),
        tie_word_embeddings=True,
    )
    _, abstract = io.build(config, param_dtype="float16")
    halves = jax.tree.map(lambda x: np.full(x.shape, 0.5, x.dtype), abstract)
    path = tmp_path_factory.mktemp("large") / "model"
    io.save(path, config, halves, max_shard_bytes=2**26)
    return path


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_peak_memory_is_the_arrays_and_little_more(large, dtype):
    sizes = tensor_sizes(large)
    total, largest = sum(sizes) / 2**20, sizes[-1] / 2**20
    found = json.loads(output(run(MEASURE, str(large), dtype, XLA_FLAGS="")))
    assert found["arrays"] == pytest.approx(total * (2 if dtype == "float32" else 1), rel=0.01)
    beyond = found["after"] - found["before"] - found["arrays"]
    # A tensor lies there as in the file, turned round and cast; compiling takes the rest.
    assert beyond < 3 * largest + 110
    assert beyond < total / 3


def test_two_hosts_share_the_reading_and_the_writing(tmp_path):
    tiny = make_tiny(
        text_hidden_size=128, text_head_dim=32, text_mrope_section=(4, 6, 6),
        text_intermediate_size=1024,
    )  # fmt: skip
    source, target = tmp_path / "model", tmp_path / "again"
    io.save(source, tiny.config, tiny.params)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    hosts = [run(SHARE, str(source), address, str(i), str(target), **devices) for i in range(2)]
    everything = sum(tensor_sizes(source))
    for text in [output(host) for host in hosts]:
        (read,) = (line.split()[1] for line in text.splitlines() if line.startswith("read "))
        assert int(read) < 0.55 * everything  # norms and biases are read by all
    wanted, found = Checkpoint(source), Checkpoint(target)
    assert list(found.names()) == list(wanted.names())
    for name in wanted.names():
        np.testing.assert_array_equal(found.read(name), wanted.read(name))
