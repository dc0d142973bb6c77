"""The check of an accelerator: what it counts, what it prints, and what it survives."""

from __future__ import annotations

import gzip
import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from benchmark_scripts import script
from flax import nnx

from turnwise_jax.models.params import named


@pytest.fixture(scope="module")
def accelerator():
    return script("accelerator")


@pytest.fixture(scope="module")
def parts(accelerator):
    """The module that the script has its parts from."""
    import accelerator_parts

    return accelerator_parts


@pytest.fixture(scope="module")
def measured(accelerator, tmp_path_factory):
    """A whole run at the smallest size, compiled as quickly as can be."""
    folder = tmp_path_factory.mktemp("accelerator")
    flags = ["--size=tiny", "--rounds=1", "--operations=3", f"--json={folder / 'report.json'}"]
    args = accelerator.arguments(flags)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        return accelerator.measure(args, folder), folder
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_a_run_times_every_part_and_writes_its_report(accelerator, measured, capsys):
    report, folder = measured
    training, rollout = report["training"], report["rollout"]
    assert training["tokens"] == sum(report["row_tokens"]) + sum(report["context_tokens"]) - 2
    assert math.isfinite(training["loss"])
    assert training["grad_norm"] > 0
    for part in (training, rollout):
        assert part["tokens_per_second"] == pytest.approx(part["tokens"] / part["seconds"])
        assert part["compile_seconds"] > 0
        assert part["mfu"] is None  # of a CPU no peak is listed
    assert rollout["sampled_tokens"] <= 2 * 2 * 2 * 8
    assert 0 < training["needed_flops"] < training["executed_flops"]
    assert set(report["attention"]["rows"]["forms"]) == {"plain"}
    assert json.loads((folder / "report.json").read_text())["training"] == training
    accelerator.print_report(report)
    out = capsys.readouterr().out
    assert "attention of a layer, rows, plain" in out
    assert "peak unknown" in out


def test_operations_of_an_update_are_those_of_its_program(accelerator, measured, capsys):
    operations = measured[0]["operations"]
    assert len(operations) == 3
    assert operations[0]["milliseconds"] >= operations[1]["milliseconds"] > 0
    assert 0 < sum(row["share"] for row in operations) <= 1
    accelerator.print_operations(operations)
    assert operations[0]["name"][:58] in capsys.readouterr().out
    accelerator.print_operations([])
    assert "no operations" in capsys.readouterr().out


def test_needed_operations_are_six_per_weight_and_token_and_the_visible_pairs(parts, accelerator):
    args = accelerator.arguments(["--size=tiny"])
    work = parts.Work.__new__(parts.Work)
    work.args, work.device = args, jax.devices()[0]
    kernels = {("text", "decoder", "layers", "q", "kernel"): (3, 64, 64)}
    config = SimpleNamespace(
        text=SimpleNamespace(num_hidden_layers=3, num_attention_heads=4, head_dim=16),
        vision=SimpleNamespace(hidden_size=8, num_heads=2),
        tie_word_embeddings=False,
        merge=2,
    )
    shapes = {path: jax.ShapeDtypeStruct(shape, "bfloat16") for path, shape in kernels.items()}
    work.policy = SimpleNamespace(config=config, params=nested(shapes))
    work.prompts = SimpleNamespace(context=SimpleNamespace(length=np.array([11, 21])), media=None)
    own = [3, 5, 7, 9]  # two rows behind each context
    passes = parts.flops.Passes(lambda path: 3.0, 3.0)
    tokens = 10 + 20 + sum(own)
    pairs = sum(n * (n + 1) // 2 for n in (10, 20, *own)) + 10 * (3 + 5) + 20 * (7 + 9)
    wanted = 6.0 * 3 * 64 * 64 * tokens + 3 * 4.0 * pairs * 3 * 4 * 16
    assert work.needed(own, 0, passes) == wanted
    assert list(named(work.policy.params)) == list(kernels)


def nested(leaves):
    return nnx.from_flat_state({path: nnx.Param(leaf) for path, leaf in leaves.items()})


KINDS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "TPU v5 lite": 197e12,
    "NVIDIA L400": None,
    "cpu": None,
}


@pytest.mark.parametrize(("kind", "peak"), KINDS.items())
def test_peaks_are_those_of_the_kind(parts, kind, peak):
    assert parts.peak_of(kind) == peak


@pytest.mark.parametrize("stats", [None, {}, {"peak_bytes_in_use": 5}])
def test_rates_need_no_memory_statistics(parts, stats):
    device = SimpleNamespace(device_kind="NVIDIA H200", memory_stats=lambda: stats)
    work = SimpleNamespace(device=device)
    found = parts.rates(work, [2.0, 1.0, 4.0], {"tokens": 10}, 989e12, 2 * 989e12)
    assert (found["seconds"], found["least"], found["most"]) == (2.0, 1.0, 4.0)
    assert found["tokens_per_second"] == 5.0
    assert found["mfu"] == 0.5
    assert found["executed_of_peak"] == 1.0
    assert found["peak_bytes"] == (stats or {}).get("peak_bytes_in_use")


def test_a_part_that_fails_is_named_and_the_others_run(accelerator):
    def fails(work, batch):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    figures, rest = accelerator.run_parts(
        {"one": fails, "two": lambda work, batch: ({"seconds": 1.0}, "update")}, None, None
    )
    assert figures == {
        "one": {"error": "RESOURCE_EXHAUSTED: out of memory"},
        "two": {"seconds": 1.0},
    }
    assert rest == ["update"]


def test_micro_batches_must_divide_the_prompts(accelerator, capsys):
    with pytest.raises(SystemExit):
        accelerator.arguments(["--prompts=3", "--accumulate=2"])
    assert "--accumulate 2 does not divide --prompts 3" in capsys.readouterr().err


def span(name, begin, length, thread=1, process=1, **args):
    return {"ph": "X", "pid": process, "tid": thread, "ts": begin, "dur": length, "name": name,
            "args": args}  # fmt: skip


def label(kind, name, thread=None, process=1):
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def test_time_in_a_loop_is_that_of_its_body():
    trace = script("device_trace")
    events = [
        label("process_name", "/device:TPU:0"),
        label("thread_name", "XLA Ops", 1),
        label("thread_name", "XLA Modules", 2),
        span("jit_step", 0, 100, thread=2),
        span("while.1", 0, 90),
        span("dot.2", 10, 30, tf_op="jit(step)/dot_general"),
        span("dot.2", 50, 20),
        span("add.3", 90, 10),
    ]
    found = trace.top_operations(events, 2)
    assert [row["name"] for row in found] == ["dot.2", "while.1"]
    assert found[0] == {
        "name": "dot.2",
        "source": "jit(step)/dot_general",
        "calls": 2,
        "milliseconds": 0.05,
        "share": 0.5,
    }
    assert found[1]["milliseconds"] == pytest.approx(0.04)
    assert trace.kinds(events) == {
        "dot": pytest.approx(0.5),
        "while": pytest.approx(0.4),
        "add": pytest.approx(0.1),
    }


def test_streams_of_a_gpu_count_where_there_is_no_thread_of_operations():
    trace = script("device_trace")
    events = [
        label("process_name", "/device:GPU:0"),
        label("process_name", "/host:CPU", process=2),
        label("thread_name", "Stream #13(Compute)", 1),
        span("gemm", 0, 5),
        span("python", 0, 50, process=2, hlo_op="x"),
    ]
    assert [row["name"] for row in trace.top_operations(events, 9)] == ["gemm"]
    assert trace.top_operations([], 9) == []


def test_the_newest_trace_is_read_and_none_is_no_error(tmp_path):
    trace = script("device_trace")
    assert trace.read_events(tmp_path) == []
    file = tmp_path / "plugins" / "host.trace.json.gz"
    file.parent.mkdir()
    with gzip.open(file, "wt") as out:
        json.dump({"traceEvents": [span("dot", 0, 1)]}, out)
    assert trace.read_events(tmp_path)[0]["name"] == "dot"
