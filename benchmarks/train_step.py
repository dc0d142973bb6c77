"""One RL update of a streaming policy: this library against transformers and torch.

    python benchmarks/train_step.py [--rounds 5] [--prompts 2] [--hidden 256] [--json FILE]

The same update is made four times, each from the same random checkpoint and on the same batch:
TurnWise's dual-clipped surrogate with the mean over turns, gradient clipping and AdamW in float32,
the vision tower frozen, one epoch, so that the old log-probs are the current ones. The batch has
the shape of real rows: B prompts x G rollouts, a past of `--context-frames` frames with replies,
then `--turns` decisions of `--turn-frames` frames each, whose replies differ in length; a part of
them is silence.

* `shared`: this library as it trains by default, the context computed once per prompt.
* `plain`: this library with whole rows (`--config.shapes.shared_context=False`).
* `torch_full`: transformers with logits over the full vocabulary at every position of padded rows,
  the frames repeated for every rollout and encoded under `no_grad`: how TRL and verl train.
* `torch_chunked`: the same, but hidden states gathered at action positions before the head, and
  logits made in blocks that are computed again backwards.

What torch needs is prepared before its clock starts: normalised patches and M-RoPE positions. It
has as many threads as there are cores, fused AdamW and scaled dot-product attention. With `--remat
full` all four compute layers again in the backward pass.

Two updates of each are compared before anything is timed: loss, mean log-probability of the actions
and norm of the gradient must agree to `--tolerance`; the second update sees what the first did. In
each round every variant updates once, every other round in reverse order. Printed are the seconds
(median, least and most) and how many times as long each takes as `shared` within the same round.

Memory is that of one process per variant with nothing else in it: the most that was resident (Linux
only), over everything and after the first update, which compiles; and what was resident when all
modules were imported. For this library the compiler's own account is printed too: arguments +
outputs - what is updated in place + temporaries. `--no-torch` leaves the last two variants out,
`--profile` also prints what kinds of operations `shared` spends its time on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import jax
import numpy as np
import rss
from device_trace import profiled
from workload import (
    add_sizes,
    alternate,
    compare,
    flag_parser,
    frame_values,
    machine,
    make_checkpoint,
    make_examples,
    make_prompts,
    measure_and_report,
    print_machine,
    print_times,
)

from turnwise_jax.algorithms import turnwise
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.rows import TrainRows, context_rows, row_size, train_rows
from turnwise_jax.rollout.shapes import TURN_MULTIPLE
from turnwise_jax.rollout.stream import Rollouts
from turnwise_jax.train.batches import as_batch
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.state import Batch, TrainState, copied, create_state
from turnwise_jax.train.step import train_step

TEMPERATURE, LEARNING_RATE = 1.2, 1e-4
SETTINGS = turnwise.Settings()
OURS = {"shared": "ours, shared context", "plain": "ours, whole rows"}
TORCH = {
    "torch_full": "transformers + torch, full logits",
    "torch_chunked": "transformers + torch, chunked head",
}
TITLES = OURS | TORCH


class Work:
    """A folder with the checkpoint, the batch and the settings, as every variant finds them."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.folder, self.args = folder, args
        if not (folder / "checkpoint").exists():
            make_checkpoint(folder / "checkpoint", args, tied=True)
        self.policy = Policy.load(folder / "checkpoint", remat=args.remat)
        self.examples = make_examples(args, self.policy.spec)
        prompts, _ = make_prompts(self.policy, self.examples, args.reply_tokens)
        self.rollouts = make_rollouts(prompts, self.policy, args)
        rng = np.random.default_rng(3)
        self.advantage_NK = rng.normal(size=(args.prompts * args.group, args.turns)).astype("f4")

    def rows(self, *, shared: bool) -> TrainRows:
        """The rollouts' rows, their length rounded up as in a run."""
        length, actions = row_size(self.rollouts, shared=shared)
        length = -(-length // TURN_MULTIPLE) * TURN_MULTIPLE
        return train_rows(self.rollouts, length=length, actions=actions, shared=shared)

    def batch(self, *, shared: bool) -> Batch:
        prompts = self.rollouts.prompts
        context = context_rows(prompts) if shared else None
        return as_batch(prompts.media, self.rows(shared=shared), self.advantage_NK, context)

    def save(self) -> None:
        """``rows.npz`` and ``settings.json``: what ``torch_step.py`` reads."""
        rows = torch_rows(self.rows(shared=False), self.advantage_NK)
        np.savez(
            self.folder / "rows.npz", **rows, frames=frame_values(self.examples, self.policy.spec)
        )
        settings = torch_settings(self.args, remat=self.args.remat)
        (self.folder / "settings.json").write_text(json.dumps(settings))
        (self.folder / "flags.json").write_text(json.dumps(vars(self.args), default=str))

    def make(self, name: str) -> Callable[[], Mapping[str, Any]]:
        """A variant at its start; each call makes an update."""
        if name in OURS:
            return OurStep(self.policy, self.batch(shared=name == "shared"), self.args.chunk)
        from torch_step import TorchStep

        return TorchStep(self.folder, name.removeprefix("torch_"))


def torch_rows(rows: TrainRows, advantage_NK: np.ndarray) -> dict[str, np.ndarray]:
    """Whole rows under the names that ``torch_step.py`` uses, ids and places as int64."""
    wide = ("tokens", "positions", "action_pos", "action_target", "turn_id")
    return {
        **{name: getattr(rows, name).astype(np.int64) for name in wide},
        "valid": rows.valid,
        "action_mask": rows.action_mask,
        "advantage": advantage_NK,
    }


def torch_settings(
    args: argparse.Namespace,
    *,
    remat: str = "none",
    temperature: float = TEMPERATURE,
    reduction: str = "turn",
    learning_rate: float = LEARNING_RATE,
) -> dict[str, Any]:
    """What ``torch_step.py`` must know. ``reduction``: of a rollout's terms, see ``TorchStep``."""
    names = ("learning_rate", "b1", "b2", "eps", "weight_decay", "clip_norm")
    optimizer = optimizer_fields(learning_rate)
    clip = {"low": SETTINGS.clip_low, "high": SETTINGS.clip_high, "dual": SETTINGS.dual_clip}
    return {
        "group": args.group,
        "remat": remat,
        "temperature": temperature,
        "positions": args.positions,
        "reduction": reduction,
        "clip": clip,
        "optimizer": {name: optimizer[name] for name in names},
    }


def make_update(
    policy: Policy,
    chunk: int,
    *,
    loss: Callable[..., Any] | None = None,
    temperature: float = TEMPERATURE,
    learning_rate: float = LEARNING_RATE,
) -> tuple[Any, TrainState]:
    """The jitted update, and the state that its first call takes.

    Args:
      chunk: vocabulary entries per block.
      loss: of one rollout, as an algorithm has it; TurnWise's if None.
    """
    optimizer = make_optimizer(optimizer_fields(learning_rate), 1000)
    step = partial(
        train_step,
        forward=Forward(policy.graphdef, temperature, chunk=chunk),
        loss=loss or partial(turnwise.loss, settings=SETTINGS),
        optimizer=optimizer,
    )
    state = create_state(copied(policy.params), optimizer, ("vision",))
    return jax.jit(step, donate_argnums=0), state


class OurStep:
    """The compiled update, its state and one batch; ``how``: see :func:`make_update`."""

    def __init__(self, policy: Policy, batch: Batch, chunk: int, **how: Any):
        step, self.state = make_update(policy, chunk, **how)
        self.batch = batch
        self.compiled = step.lower(self.state, batch).compile()

    def __call__(self) -> dict[str, jax.Array]:
        self.state, metrics = self.compiled(self.state, self.batch)
        return jax.block_until_ready(metrics)

    def memory(self) -> float:
        """Megabytes by the compiler's account."""
        found = self.compiled.memory_analysis()
        arguments, outputs = found.argument_size_in_bytes, found.output_size_in_bytes
        return (arguments + outputs - found.alias_size_in_bytes + found.temp_size_in_bytes) / 1e6


def optimizer_fields(learning_rate: float = LEARNING_RATE) -> Any:
    config = rl_config().optimizer
    config.learning_rate = learning_rate
    return config


def make_rollouts(prompts: Any, policy: Policy, args: argparse.Namespace) -> Rollouts:
    """Random replies: half of the turns are three tokens, the others up to ``--reply-tokens``."""
    rng = np.random.default_rng(2)
    shape = (args.prompts, args.group, args.turns)
    length = rng.integers(3, args.reply_tokens + 1, shape)
    length = np.where(rng.random(shape) < 0.5, 3, length).astype(np.int32)
    tokens = rng.choice(np.flatnonzero(policy.allowed), (*shape, args.reply_tokens))
    np.put_along_axis(tokens, length[..., None] - 1, policy.vocab.im_end, axis=-1)
    return Rollouts(
        prompts=prompts,
        ids=prompts.ids,
        tokens=tokens.astype(np.int32),
        length=length,
        logp=np.zeros(tokens.shape, np.float32),
        truncated=np.zeros(shape, bool),
        text=[],
        turn_mask=prompts.turn_mask,
        time=prompts.time,
        marker=policy.vocab.im_end,
    )


def check(steps: Mapping[str, Callable[[], Mapping[str, Any]]], tolerance: float) -> dict[str, Any]:
    """Two updates of every variant; exits where one is not the first's.

    Returns:
      ``{variant: [{"loss", "logp", "grad_norm"}, ...]}``.
    """
    names = ("loss", "logp", "grad_norm")
    found = {
        name: [{key: float(made[key]) for key in names} for made in (step(), step())]
        for name, step in steps.items()
    }
    first, *rest = found
    for other in rest:
        for number, (ours, theirs) in enumerate(zip(found[first], found[other], strict=True), 1):
            for key in names:
                if not math.isclose(ours[key], theirs[key], rel_tol=tolerance, abs_tol=1e-6):
                    raise SystemExit(
                        f"update {number}: {key} is {ours[key]:.8g} for {first} and "
                        f"{theirs[key]:.8g} for {other}: nothing was timed"
                    )
    return found


def measure_memory(work: Work, name: str) -> dict[str, float]:
    """Megabytes of a variant in a process of its own."""
    here = Path(__file__).resolve().parent
    if name in OURS:
        flags = [here / "train_step.py", "--memory-of", name, "--folder", work.folder]
    else:
        flags = [here / "torch_step.py", work.folder, "--head", name.removeprefix("torch_")]
    done = subprocess.run(
        [sys.executable, *map(str, flags)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{TITLES[name]}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare, time, and return what :func:`print_report` prints."""
    work = Work(folder, args)
    work.save()
    rows = work.rollouts.prompts
    report = machine(args) | {
        "context_tokens": rows.context.length.tolist(),
        "row_tokens": work.rows(shared=False).valid.sum(axis=1).tolist(),
        "actions": int(work.rollouts.length.sum()),
    }
    steps = {name: work.make(name) for name in (TITLES if args.torch else OURS)}
    report["updates"] = check(steps, args.tolerance)
    if args.torch:
        import torch
        import transformers

        report |= {"torch": torch.__version__, "transformers": transformers.__version__}
    report["times"] = compare(alternate(steps, args.rounds), "shared")
    report["compiled_mb"] = {name: steps[name].memory() for name in OURS}
    if args.profile:
        report["profile"] = profiled(steps["shared"])
    if args.memory:
        report["memory_mb"] = {name: measure_memory(work, name) for name in steps}
    return report


def print_report(report: Mapping[str, Any]) -> None:
    print_machine(report)
    lengths, contexts = report["row_tokens"], report["context_tokens"]
    print(
        f"contexts of {min(contexts)} - {max(contexts)} tokens, rows of {min(lengths)} - "
        f"{max(lengths)}, {report['actions']} actions, remat {report['sizes']['remat']}"
    )
    print_times(report["times"], TITLES, "shared")
    print(f"{'MB resident':<42}{'at most':>12}{'after 1st':>12}{'imports':>12}{'compiled':>12}")
    for name, row in report.get("memory_mb", {}).items():
        cells = [row["peak"], row.get("peak_after_first"), row["imported"]]
        cells.append(report["compiled_mb"].get(name))
        shown = "".join(f"{'-' if cell is None else f'{cell:.0f}':>12}" for cell in cells)
        print(f"{TITLES[name]:<42}{shown}")
    first = next(iter(report["updates"].values()))
    print(
        "first update: "
        + ", ".join(f"{key} {value:.6g}" for key, value in first[0].items())
        + f" (all variants within {report['sizes']['tolerance']:g})"
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    add_sizes(parser)
    parser.add_argument("--remat", choices=("none", "full"), default="none")
    parser.add_argument("--chunk", type=int, default=8192, help="vocabulary entries per block")
    parser.add_argument("--positions", type=int, default=128, help="the same for torch, positions")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative, of two updates")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--profile", action="store_true", help="kinds of operations of 'shared'")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--memory-of", choices=tuple(OURS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> None:
    args = arguments()
    if args.memory_of:
        name, folder = args.memory_of, args.folder
        args = argparse.Namespace(**json.loads((folder / "flags.json").read_text()))
        print(json.dumps(rss.memory(lambda: Work(folder, args).make(name), 2)))
        return
    measure_and_report(args, measure, print_report)


if __name__ == "__main__":
    main()
