"""The parts of ``accelerator.py``: a policy with random weights, and what is timed of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from train_step import make_rollouts
from workload import QUESTIONS, REPLIES, TOKENS, alternate, make_examples, make_prompts, summary

from turnwise_jax.algorithms import turnwise
from turnwise_jax.data.chat import DEFAULT_SYSTEM, ChatTemplate
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.tokens import build_tokenizer
from turnwise_jax.kernels import cudnn, flash
from turnwise_jax.kernels.attention import Run, attend
from turnwise_jax.models import MODELS, flops, io
from turnwise_jax.models.attention import kernel_for
from turnwise_jax.models.qwen2_5_vl import PUBLISHED, Config
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.rows import context_rows, row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import TURN_MULTIPLE
from turnwise_jax.rollout.stream import Rollouts, StreamEngine
from turnwise_jax.train.aot.chips import CHIPS
from turnwise_jax.train.batches import as_batch
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.state import Batch, create_state, trained_names
from turnwise_jax.train.step import train_step

FROZEN, REMAT, CHUNK = ("vision",), "full", 16384
SAMPLING = Sampling(temperature=1.2, top_k=10)
# Dense bfloat16 operations a second by the beginning of jax's device_kind: NVIDIA's data sheets of
# each card, half of what they give with sparsity. TPUs: turnwise_jax/train/aot/chips.py.
GPU_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA B200": 2250e12,
}
KERNELS = {flash.flash_attend: "splash", cudnn.cudnn_attend: "cuDNN"}


def peak_of(device_kind: str) -> float | None:
    """Operations a second of a device, None if its kind is not listed."""
    if device_kind in CHIPS:
        return CHIPS[device_kind].flops
    known = [kind for kind in GPU_PEAKS if f"{device_kind} ".startswith(f"{kind} ")]
    known += [kind for kind in GPU_PEAKS if device_kind.startswith(f"{kind}-")]
    return GPU_PEAKS[max(known, key=len)] if known else None


class Work:
    """The policy, its random parameters, and what it is shown."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.args, self.device = args, jax.devices()[0]
        self.policy = make_policy(folder, args)
        self.params = io.init(self.policy.config, 0, param_dtype="bfloat16")
        examples = make_examples(args, self.policy.spec)
        self.prompts, self.shapes = make_prompts(self.policy, examples, args.reply_tokens)

    def batch(self) -> Batch:
        """Rows of random replies, half of them short, behind the contexts that they share."""
        rollouts = make_rollouts(self.prompts, self.policy, self.args)
        length, actions = row_size(rollouts, shared=True)
        rows = train_rows(
            rollouts, length=length + -length % TURN_MULTIPLE, actions=actions, shared=True
        )
        shape = (self.args.prompts * self.args.group, self.args.turns)
        advantage = np.random.default_rng(3).normal(size=shape)
        return as_batch(self.prompts.media, rows, advantage, context_rows(self.prompts))

    def needed(self, own: Sequence[int], actions: int, passes: flops.Passes) -> float:
        """Operations for rows with this many tokens behind their contexts, frames included."""
        contexts = [int(length) - 1 for length in self.prompts.context.length]
        use = flops.Use(heads=actions)
        for length in contexts:
            use = _added(use, length, length * (length + 1) // 2)
        for number, length in enumerate(own):
            before = contexts[number // self.args.group]
            use = _added(use, length, length * before + length * (length + 1) // 2)
        count = partial(flops.work, self.policy.config, self.policy.params)
        media = flops.media_use(self.policy.config, self.prompts.media)
        return (count(use, passes=passes) + count(media)).flops


def _added(use: flops.Use, tokens: int, pairs: int) -> flops.Use:
    return use._replace(tokens=use.tokens + tokens, pairs=use.pairs + pairs)


def make_policy(folder: Path, args: argparse.Namespace) -> Policy:
    """A policy with shapes in place of parameters, and a tokenizer of a few words."""
    vocab = build_tokenizer((DEFAULT_SYSTEM, *REPLIES, *QUESTIONS), TOKENS, folder)
    spec = FrameSpec(min_pixels=args.pixels**2, max_pixels=args.pixels**2)
    ids = {
        "image_token_id": vocab.image_pad,
        "video_token_id": vocab.video_pad,
        "vision_start_token_id": vocab.vision_start,
        "vision_end_token_id": vocab.vision_end,
    }
    tiny = args.size == "tiny"
    config = Config.tiny(TOKENS) if tiny else Config.from_hf(PUBLISHED[args.size])
    text = (
        config.text if args.layers is None else replace(config.text, num_hidden_layers=args.layers)
    )
    config = replace(config, text=text, **ids)
    graphdef, params = io.build(config, dtype="bfloat16", param_dtype="bfloat16", remat=REMAT)
    family = MODELS[config.model_type]
    template = ChatTemplate(vocab, spec, style=family.CHAT, sound=None)
    return Policy(folder, graphdef, params, config, family, vocab, spec, template)


def measure_attention(work: Work, batch: Batch) -> dict[str, Any]:
    """Milliseconds of one layer's attention: a micro-batch's contexts, and its rows behind them."""
    text, args = work.policy.config.text, work.args
    contexts, shared = (
        batch.context.tokens.shape[0] // args.accumulate,
        batch.context.tokens.shape[1],
    )
    rows, length = contexts * args.group, batch.tokens_NT.shape[1]

    def run(count: int, keys: int, *, causal: bool) -> Run:
        key = _normal(1, count, text.num_key_value_heads, keys, text.head_dim)
        value = _normal(2, count, text.num_key_value_heads, keys, text.head_dim)
        return Run(key, value, jnp.ones((count, keys), bool), causal)

    def query(count: int, keys: int) -> jax.Array:
        return _normal(0, count, keys, text.num_key_value_heads, text.group, text.head_dim)

    context, own = run(contexts, shared, causal=False), run(rows, length, causal=True)
    return {
        "context": _compared(work, query(contexts, shared), [context._replace(causal=True)]),
        "rows": _compared(work, query(rows, length), [context, own]),
    }


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def _compared(work: Work, query: jax.Array, runs: list[Run]) -> dict[str, Any]:
    """The platform's kernel against the plain form: how far apart, and the time of each."""
    kernel = kernel_for(work.device.platform, query, runs)
    forms = {"plain": attend} | ({} if kernel is None else {KERNELS[kernel]: kernel})
    causal, arrays = [r.causal for r in runs], [r[:3] for r in runs]

    def slopes(form: Callable[..., jax.Array]) -> Callable[[], Any]:
        def loss(query: jax.Array, pairs: Any, valid: Any) -> tuple[jax.Array, jax.Array]:
            own = [Run(*kv, v, c) for kv, v, c in zip(pairs, valid, causal, strict=True)]
            mixed = form(query, own)
            return jnp.sum(mixed.astype(jnp.float32) ** 2), mixed

        made = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
        return partial(made, query, [a[:2] for a in arrays], [a[2] for a in arrays])

    programs = {name: slopes(form) for name, form in forms.items()}
    found = {name: jax.tree.leaves(program()) for name, program in programs.items()}
    seconds = alternate(programs, work.args.rounds)
    shapes = {"queries": query.shape[:2], "keys": [r.key.shape[::2] for r in runs]}
    times = {
        name: {
            "milliseconds": summary([1e3 * s for s in seconds[name]]),
            "off": max(map(_off, found[name], found["plain"])),
        }
        for name in forms
    }
    return shapes | {"forms": times}


def _off(found: jax.Array, wanted: jax.Array) -> float:
    """The largest difference, relative to the largest entry."""
    found, wanted = (x.astype(jnp.float32) for x in (found, wanted))
    return float(jnp.abs(found - wanted).max() / jnp.abs(wanted).max())


def measure_rollout(work: Work) -> dict[str, Any]:
    engine = StreamEngine(work.policy, SAMPLING, work.shapes)
    begin = time.perf_counter()
    engine.warm_up(work.params, group_size=work.args.group)
    compiled = time.perf_counter() - begin
    made: list[Rollouts] = []

    def rollout() -> None:
        made[:] = [engine.rollout(work.params, work.prompts, group_size=work.args.group, seed=0)]

    rollout()
    seconds = alternate({"rollout": rollout}, work.args.rounds)["rollout"]
    length, actions = row_size(made[0], shared=True)
    own = train_rows(made[0], length=length, actions=actions, shared=True).valid.sum(axis=1)
    sampled = int(made[0].length.sum())
    needed = work.needed(own.tolist(), sampled, flops.ONCE)
    tokens = {"tokens": _tokens(work, own), "sampled_tokens": sampled}
    return {"compile_seconds": compiled, **tokens, **rates(work, seconds, tokens, needed)}


def measure_training(work: Work, batch: Batch) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Figures of the update, and the update itself. Takes the work's parameters: they change."""
    policy, trains = work.policy, trained_names(FROZEN, adapted=False)
    optimizer = make_optimizer(rl_config().optimizer, 1000)
    step = partial(
        train_step,
        forward=Forward(policy.graphdef, SAMPLING.temperature, chunk=CHUNK),
        loss=partial(turnwise.loss, settings=turnwise.Settings()),
        optimizer=optimizer,
        accumulate=work.args.accumulate,
    )
    params, work.params = work.params, None
    held = [create_state(params, optimizer, FROZEN)]
    placed = jax.device_put(batch)
    begin = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(held[0], placed).compile()
    lasted = time.perf_counter() - begin

    def update() -> dict[str, jax.Array]:
        state, metrics = compiled(held.pop(), placed)
        held.append(state)
        return metrics

    first = {name: float(value) for name, value in update().items()}
    if not (np.isfinite(first["loss"]) and np.isfinite(first["grad_norm"])):
        raise SystemExit(f"the first update is not finite: {first}")
    seconds = alternate({"update": update}, work.args.rounds)["update"]

    own, actions = batch.valid_NT.sum(axis=1), int(batch.action_mask_NA.sum())
    once = flops.Passes(lambda path: 2.0 + trains(path), 3.0)
    tokens = {"tokens": _tokens(work, own), "action_tokens": actions}
    found = compiled.memory_analysis()
    memory = found.argument_size_in_bytes + found.output_size_in_bytes
    memory += found.temp_size_in_bytes - found.alias_size_in_bytes
    report = {
        "compile_seconds": lasted,
        "compiled_bytes": memory,
        "loss": first["loss"],
        "grad_norm": first["grad_norm"],
        **tokens,
        **rates(
            work, seconds, tokens, work.needed(own.tolist(), actions, once), executed(work, batch)
        ),
    }
    return report, update


def executed(work: Work, batch: Batch) -> float:
    """Operations of an update whose attention is the plain form."""
    trains = trained_names(FROZEN, adapted=False)
    count = partial(flops.work, work.policy.config, work.policy.params)
    total = count(flops.media_use(work.policy.config, batch.media))
    for use in flops.rows_use(batch):
        total += count(use, passes=flops.update_passes(work.policy.params, trains, REMAT))
    return total.flops


def _tokens(work: Work, own: np.ndarray) -> int:
    """Of the contexts, each once, and of the rows behind them."""
    return int(own.sum() + (work.prompts.context.length - 1).sum())


def rates(
    work: Work,
    seconds: Sequence[float],
    tokens: Mapping[str, int],
    needed: float,
    run: float | None = None,
) -> dict[str, Any]:
    """Times, tokens and operations a second, and the most memory so far."""
    lasted, peak = summary(seconds)["median"], peak_of(work.device.device_kind)
    spread = summary(seconds)
    found = {"seconds": lasted, "least": spread["least"], "most": spread["most"]}
    found["needed_flops"] = needed
    found |= {f"{name}_per_second": count / lasted for name, count in tokens.items()}
    found |= {
        "mfu": None if peak is None else needed / lasted / peak,
        "peak_bytes": peak_bytes(work),
    }
    if run is not None:
        share = None if peak is None else run / lasted / peak
        found |= {"executed_flops": run, "executed_of_peak": share}
    return found


def peak_bytes(work: Work) -> int | None:
    """The most that was allocated on the device so far, if it says."""
    stats = work.device.memory_stats() or {}
    return stats.get("peak_bytes_in_use")
