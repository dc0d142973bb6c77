"""One batch of streaming rollouts: this library against transformers' `generate`, turn by turn.

    python benchmarks/rollout.py [--rounds 5] [--prompts 2] [--group 4] [--json FILE]

B prompts x G rollouts of the same random checkpoint answer K turns each: a context of
`--context-frames` frames with a past, then `--turn-frames` more before each further decision. All
choose greedily among the same ids, at most L tokens a turn, so that what they say can be compared.
The checkpoint's end marker is likely enough that replies end at different lengths.

* `engine`: `StreamEngine`, everything from encoding the frames to the replies' text.
* `kept_cache`: `generate` with one key-value cache for all turns, each turn's frames encoded once
  per rollout.
* `encoded_again`: `generate` from the whole dialogue at every turn, frames too, as a user without
  a kept cache has it.

torch has as many threads as there are cores; patches are normalised before its clock starts. Before
anything is timed the replies of all are compared, token by token; a share below `--equal` of equal
replies ends the run (two nearly equally likely tokens may change places between two roundings, and
a changed reply changes the later ones). In each round every variant makes the batch once, every
other round in reverse order. Printed are the seconds (median, least and most) and how many times as
long each takes as `engine` within the same round. `--no-torch` leaves transformers out,
`--profile` also prints what kinds of operations `engine` spends its time on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
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

from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import PromptBatch
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import Rollouts, StreamEngine

TITLES = {
    "engine": "ours, StreamEngine",
    "kept_cache": "transformers generate, kept cache",
    "encoded_again": "transformers generate, encoded again",
}
SPREAD = 0.05  # of the weights: what is said depends on more than the last token


class Work:
    """The policy, its prompts and every variant by name; each call makes the whole batch."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.args, self.checkpoint = args, folder / "checkpoint"
        make_checkpoint(
            self.checkpoint, args, tied=False, spread=SPREAD, marker_gain=args.marker_gain
        )
        self.policy = Policy.load(self.checkpoint)
        self.examples = make_examples(args, self.policy.spec)
        self.prompts, shapes = make_prompts(self.policy, self.examples, args.reply_tokens)
        self.engine = StreamEngine(self.policy, Sampling(greedy=True), shapes)

    def rollouts(self) -> Rollouts:
        return self.engine.rollout(
            self.policy.params, self.prompts, group_size=self.args.group, seed=0
        )

    def ours(self) -> tuple[np.ndarray, np.ndarray]:
        """Replies ``[N, K, L]`` and their lengths ``[N, K]``."""
        made = self.rollouts()
        tokens = made.tokens.reshape(-1, *made.tokens.shape[2:])
        return tokens, made.length.reshape(-1, made.length.shape[-1])

    def torch_dialogues(self) -> Any:
        """The prompts as ``torch_rollout.py`` takes them, every rollout on its own."""
        import torch_rollout

        frames = frame_values(self.examples, self.policy.spec)
        later = [self.args.turn_frames] * (self.args.turns - 1)
        return torch_rollout.Dialogues(
            pieces=[
                [torch_rollout.Piece(*shown(self.prompts, b, k)) for k in range(self.args.turns)]
                for b in range(self.args.prompts)
                for _ in range(self.args.group)
            ],
            frames=np.repeat(frames, self.args.group, axis=0),
            shown=[frames.shape[1] - sum(later), *later],
        )

    def torch_decoding(self) -> Any:
        """How ``torch_rollout.py`` chooses tokens."""
        import torch_rollout

        vocab = self.policy.vocab
        return torch_rollout.Decoding(
            limit=self.args.reply_tokens,
            marker=vocab.im_end,
            pad=vocab.eos,
            image=vocab.image_pad,
            allowed=self.policy.allowed,
        )

    def variants(self) -> dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]]:
        if not self.args.torch:
            return {"engine": self.ours}
        import torch_rollout
        from torch_model import load

        model = load(self.checkpoint).eval()
        dialogues, decoding = self.torch_dialogues(), self.torch_decoding()
        return {
            "engine": self.ours,
            "kept_cache": lambda: torch_rollout.kept_cache(model, dialogues, decoding),
            "encoded_again": lambda: torch_rollout.encoded_again(model, dialogues, decoding),
        }


def shown(prompts: PromptBatch, b: int, k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """What precedes decision k of prompt b: ids, their positions from 0 on, and the span."""
    chunk, at = (prompts.turns, (k, b)) if k else (prompts.context, (b,))
    count = int(chunk.length[at])
    tokens = chunk.tokens[at][:count].astype(np.int64)
    return tokens, chunk.positions[at][:, :count].astype(np.int64), int(chunk.span[at])


def equal_replies(
    ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray]
) -> float:
    """Share of replies that are the same to the last token."""
    (tokens, length), (others, lengths) = ours, theirs
    real = np.arange(tokens.shape[-1]) < length[..., None]
    same = (length == lengths) & np.where(real, tokens == others, True).all(axis=-1)
    return float(same.mean())


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare, time, and return what :func:`print_report` prints."""
    work = Work(folder, args)
    variants = work.variants()
    said = {name: make() for name, make in variants.items()}
    share = {
        name: equal_replies(said["engine"], own) for name, own in said.items() if name != "engine"
    }
    for name, equal in share.items():
        if equal < args.equal:
            raise SystemExit(
                f"only {equal:.1%} of the replies of {name} are those of engine: nothing was timed"
            )
    _, length = said["engine"]
    report = machine(args) | {
        "context_tokens": work.prompts.context.length.tolist(),
        "reply_tokens": {
            "mean": float(length.mean()),
            "least": int(length.min()),
            "most": int(length.max()),
        },
        "equal_replies": share,
    }
    if args.torch:
        import torch
        import transformers

        report |= {"torch": torch.__version__, "transformers": transformers.__version__}
    report["times"] = compare(alternate(variants, args.rounds), "engine")
    if args.profile:
        report["profile"] = profiled(work.ours)
    return report


def print_report(report: Mapping[str, Any]) -> None:
    print_machine(report)
    contexts, replies = report["context_tokens"], report["reply_tokens"]
    print(
        f"contexts of {min(contexts)} - {max(contexts)} tokens, replies of {replies['least']} - "
        f"{replies['most']} tokens, {replies['mean']:.1f} on average"
    )
    print_times(report["times"], TITLES, "engine")
    for name, share in report["equal_replies"].items():
        print(f"{TITLES[name]}: {share:.1%} of the replies equal to ours")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    add_sizes(parser)
    parser.add_argument("--marker-gain", type=float, default=2.5, help="on the end marker's column")
    parser.add_argument("--equal", type=float, default=0.98, help="least share of equal replies")
    parser.add_argument("--profile", action="store_true", help="kinds of operations of 'engine'")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    return parser.parse_args(argv)


def main() -> None:
    measure_and_report(arguments(), measure, print_report)


if __name__ == "__main__":
    main()
