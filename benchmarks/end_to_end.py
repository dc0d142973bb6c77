"""One whole GRPO iteration: this library against transformers' `generate` and an update in torch.

    python benchmarks/end_to_end.py [--rounds 3] [--prompts 2] [--group 4] [--json FILE]

Both start from the same random checkpoint and the same B dialogues with frames; their phases are

* `rollout`: B x G rollouts of K turns. Ours: `StreamEngine`. torch: `generate` with one key-value
  cache for all turns (`kept_cache` in `rollout.py`).
* `score`: a rule judges every reply against annotated windows (eq. 1 of the TurnWise paper).
* `advantage`: prefix scores, and rewards standardised within each group (eq. 2).
* `update`: rows, loss, gradients, clipping and AdamW in float32, the vision tower frozen. Ours: the
  context computed once per prompt, rows in the buckets of a run. torch: rows as long as the
  longest, `--head chunked` or `full` (see `train_step.py`).

Scores and advantages are made by the same code for both. All choose greedily, so that what they say
can be compared; the rollouts of a prompt are then the same, their advantages are 0, and a fixed
random number is added to each, or there would be nothing to learn. The learning rate is 1e-6: the
policies stay near each other, and so do the lengths of their replies.

Before anything is timed, a share below `--equal` of equal replies ends the run, and so do two
updates on the same rollouts whose loss, mean log-probability or norm of the gradient differ by more
than `--tolerance`. In each round both make an iteration, every other round in reverse order; those
of the first round, which compile, are left out. Printed are the seconds of each phase (median,
least and most) and how many times as long torch takes within the same round.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import jax
import numpy as np
import rollout
from train_step import check, make_update, torch_rows, torch_settings
from workload import (
    QUESTIONS,
    REPLIES,
    add_sizes,
    compare,
    flag_parser,
    frame_values,
    in_turn,
    machine,
    make_prompts,
    measure_and_report,
    print_machine,
)

from turnwise_jax.algorithms import grpo
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Window
from turnwise_jax.kernels import group_advantages
from turnwise_jax.rewards.judges import make_judge
from turnwise_jax.rollout.rows import context_rows, row_size, train_rows
from turnwise_jax.rollout.shapes import row_buckets
from turnwise_jax.rollout.stream import Rollouts
from turnwise_jax.train.batches import Clock, as_batch
from turnwise_jax.train.config import reward_settings, rl_config
from turnwise_jax.train.credit import credit_rule
from turnwise_jax.train.hosts import ALONE
from turnwise_jax.train.reading import trajectories_of
from turnwise_jax.train.sharing import say

PHASES = ("rollout", "score", "advantage", "update")
TEMPERATURE, LEARNING_RATE = 1.0, 1e-6


class Task:
    """The checkpoint, the dialogues with their windows, and what both do in the same way."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.folder, self.args, self.config = folder, args, rl_config("grpo")
        self.work = rollout.Work(folder, args)
        self.work.examples = [with_windows(example) for example in self.work.examples]
        self.policy = self.work.policy
        prompts, self.shapes = make_prompts(self.policy, self.work.examples, args.reply_tokens)
        self.work.prompts = self.prompts = prompts
        kind, reward = reward_settings(self.config)
        self._judge = make_judge({"kind": "rule"})
        self._score = partial(kind.score, settings=reward)
        self._credit = credit_rule(
            kind,
            reward,
            group_size=args.group,
            algorithm=grpo,
            settings=grpo.Settings(),
            total_steps=1000,
        )
        self._standardised = jax.jit(jax.vmap(group_advantages))
        self._noise_N = np.random.default_rng(4).normal(size=args.prompts * args.group)

    def score(self, rollouts: Rollouts) -> Any:
        """What the judge says of every rollout."""
        examples = self.work.examples
        said = say(rollouts, examples, [example.dialogue for example in examples], [], ALONE)
        return self._score(
            trajectories_of(said),
            self._judge,
            num_turns=self.args.turns,
            num_windows=max(len(example.dialogue.windows) for example in examples),
        )

    def advantages(self, scores: Any) -> np.ndarray:
        """f32 ``[N, K]``, the same at every turn of a rollout."""
        reward_BG = np.asarray(self._credit(scores, step=0).terms.reward, np.float32)
        advantage_N = np.asarray(self._standardised(reward_BG)).reshape(-1) + self._noise_N
        return np.repeat(advantage_N[:, None], self.args.turns, axis=1).astype(np.float32)

    def iterate(self, roll: Callable[[], Rollouts], update: Callable[..., Any]) -> dict[str, Any]:
        """One iteration: the seconds of its phases and ``"replies"``, ids and lengths."""
        clock = Clock()
        rollouts = roll()
        clock.lap("rollout")
        scores = self.score(rollouts)
        clock.lap("score")
        advantage_NK = self.advantages(scores)
        clock.lap("advantage")
        jax.block_until_ready(update(rollouts, advantage_NK))
        clock.lap("update")
        return {**clock.laps, "replies": replies(rollouts)}


class Ours:
    """This library: the engine, the jitted update and its state."""

    def __init__(self, task: Task):
        self.task = task
        loss = partial(grpo.loss, settings=grpo.Settings())
        self.step, self.state = make_update(
            task.policy,
            task.args.chunk,
            loss=loss,
            temperature=TEMPERATURE,
            learning_rate=LEARNING_RATE,
        )
        count = task.config.shapes.row_buckets
        self.rooms = row_buckets(task.shapes, count, shared=True)
        self.compiled: dict[tuple[int, int], Any] = {}

    def roll(self) -> Rollouts:
        return self.task.work.engine.rollout(
            self.state.params, self.task.prompts, group_size=self.task.args.group, seed=0
        )

    def update(self, rollouts: Rollouts, advantage_NK: np.ndarray) -> dict[str, jax.Array]:
        needed = row_size(rollouts, shared=True)
        room = next(r for r in self.rooms if needed[0] <= r[0] and needed[1] <= r[1])
        rows = train_rows(rollouts, length=room[0], actions=room[1], shared=True)
        prompts = rollouts.prompts
        batch = as_batch(prompts.media, rows, advantage_NK, context_rows(prompts))
        if room not in self.compiled:
            self.compiled[room] = self.step.lower(self.state, batch).compile()
        self.state, metrics = self.compiled[room](self.state, batch)
        return metrics


class Torch:
    """transformers and torch: one model that is sampled from and trained."""

    def __init__(self, task: Task, like: Rollouts):
        """``like``: any rollouts; the first update's rows are of these until there are others."""
        import torch_rollout
        from torch_step import TorchStep

        self.task, self._like = task, like
        frames = frame_values(task.work.examples, task.policy.spec)
        np.savez(task.folder / "rows.npz", **self._rows(like, np.zeros(1)), frames=frames)
        settings = torch_settings(
            task.args,
            temperature=TEMPERATURE,
            reduction="trajectory_token",
            learning_rate=LEARNING_RATE,
        )
        (task.folder / "settings.json").write_text(json.dumps(settings))
        self.step = TorchStep(task.folder, task.args.head)
        self._generate = partial(
            torch_rollout.kept_cache,
            self.step.model,
            task.work.torch_dialogues(),
            task.work.torch_decoding(),
        )

    def roll(self) -> Rollouts:
        said, shape = self._generate(), self._like.tokens.shape
        tokens = said.tokens.reshape(shape).astype(np.int32)
        length = said.length.reshape(shape[:3]).astype(np.int32)
        last = np.take_along_axis(tokens, length[..., None] - 1, axis=-1)[..., 0]
        decode, marker = self.task.policy.vocab.decode, self._like.marker
        text = [
            [
                [decode(i for i in ids[:n].tolist() if i != marker).strip() for ids, n in turns]
                for turns in (list(zip(*row, strict=True)) for row in zip(own, sizes, strict=True))
            ]
            for own, sizes in zip(tokens, length, strict=True)
        ]
        return replace(
            self._like,
            tokens=tokens,
            length=length,
            logp=np.zeros(tokens.shape, np.float32),
            truncated=last != marker,
            text=text,
        )

    def update(self, rollouts: Rollouts, advantage_NK: np.ndarray) -> dict[str, float]:
        self.step.take(self._rows(rollouts, advantage_NK))
        return self.step()

    def _rows(self, rollouts: Rollouts, advantage_NK: np.ndarray) -> dict[str, np.ndarray]:
        length, actions = row_size(rollouts)
        return torch_rows(train_rows(rollouts, length=length, actions=actions), advantage_NK)


def with_windows(example: Example) -> Example:
    """The dialogue with two windows over its open turns, each a known answer late or early."""
    times = [turn.time for turn in example.dialogue.open_turns]
    middle = times[len(times) // 2]
    windows = (
        Window(times[0], middle, QUESTIONS[0], REPLIES[2]),
        Window(middle, times[-1], QUESTIONS[1], REPLIES[3]),
    )
    return replace(example, dialogue=replace(example.dialogue, windows=windows))


def replies(rollouts: Rollouts) -> tuple[np.ndarray, np.ndarray]:
    """Ids ``[N, K, L]`` and lengths ``[N, K]``."""
    tokens, length = rollouts.tokens, rollouts.length
    return tokens.reshape(-1, *tokens.shape[2:]), length.reshape(-1, length.shape[-1])


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare, time, and return what :func:`print_report` prints."""
    task = Task(folder, args)
    variants: dict[str, Any] = {"ours": Ours(task)}
    first = variants["ours"].roll()
    if args.torch:
        variants["torch"] = Torch(task, first)
        compare_replies(replies(first), replies(variants["torch"].roll()), args.equal)
    advantage_NK = task.advantages(task.score(first))
    updates = {name: partial(made.update, first, advantage_NK) for name, made in variants.items()}
    report = machine(args) | {
        "context_tokens": task.prompts.context.length.tolist(),
        "reply_tokens": float(first.length.mean()),
        "updates": check(updates, args.tolerance),
    }
    if args.torch:
        import torch

        report["torch"] = torch.__version__
    return report | timed(task, variants, args)


def compare_replies(ours: Any, theirs: Any, least: float) -> float:
    """The share of equal replies; exits below ``least``."""
    share = rollout.equal_replies(ours, theirs)
    if share < least:
        raise SystemExit(f"only {share:.1%} of torch's replies are ours: nothing was timed")
    return share


def timed(task: Task, variants: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every phase and of the whole, and how alike the replies stayed."""
    made: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for _, name in in_turn(variants, args.rounds + 1):
        made[name].append(task.iterate(variants[name].roll, variants[name].update))
    kept = {name: rows[1:] for name, rows in made.items()}
    phases = {
        phase: {name: [row[phase] for row in rows] for name, rows in kept.items()}
        for phase in PHASES
    }
    phases["iteration"] = {
        name: [sum(row[phase] for phase in PHASES) for row in rows] for name, rows in kept.items()
    }
    alike = [
        rollout.equal_replies(a["replies"], b["replies"])
        for a, b in zip(kept["ours"], kept.get("torch", ()), strict=False)
    ]
    return {
        "phases": {phase: compare(seconds, "ours") for phase, seconds in phases.items()},
        "equal_replies": alike,
    }


def print_report(report: Mapping[str, Any]) -> None:
    print_machine(report)
    contexts = report["context_tokens"]
    print(
        f"contexts of {min(contexts)} - {max(contexts)} tokens, replies of "
        f"{report['reply_tokens']:.1f} on average, torch's head {report['sizes']['head']}"
    )
    print(f"{'':<12}{'ours, s':>26}{'torch, s':>26}{'times ours':>26}")
    for phase, row in report["phases"].items():
        cells = [row["ours"]["seconds"]]
        if "torch" in row:
            cells += [row["torch"]["seconds"], row["torch"]["times_ours"]]
        shown = (f"{c['median']:.3f} ({c['least']:.3f} - {c['most']:.3f})" for c in cells)
        print(f"{phase:<12}" + "".join(f"{cell:>26}" for cell in shown))
    if report["equal_replies"]:
        print(f"at least {min(report['equal_replies']):.1%} of a round's replies were equal")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    add_sizes(parser)
    parser.add_argument("--marker-gain", type=float, default=2.5, help="on the end marker's column")
    parser.add_argument("--chunk", type=int, default=8192, help="vocabulary entries per block")
    parser.add_argument("--positions", type=int, default=128, help="the same for torch, positions")
    parser.add_argument("--head", choices=("full", "chunked"), default="chunked", help="torch's")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative, of two updates")
    parser.add_argument("--equal", type=float, default=0.98, help="least share of equal replies")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    return parser.parse_args(argv)


def main() -> None:
    measure_and_report(arguments(), measure, print_report)


if __name__ == "__main__":
    main()
