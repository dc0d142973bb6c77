"""This library against google-tunix on text alone: one GRPO update, and one batch of rollouts.

    python3.11 -m venv TUNIX && TUNIX/bin/pip install google-tunix==0.1.7
    python benchmarks/tunix.py --tunix_python=TUNIX/bin/python [--turns 1] [--json FILE]

Both hold the same random float32 weights: a Qwen2.5-VL that is shown no frame is a Qwen2 of the
same sizes. tunix runs in an environment and a process of its own and waits while this library
works, and the other way round.

The update: B prompts x G given rollouts of K turns whose replies differ in length, one epoch, GRPO
without a KL term, the mean over each rollout's tokens and then over rollouts, gradient clipping and
AdamW. `shared` computes each prompt's context once, `plain` has whole rows; tunix's trainer has
prompts and completions padded to the longest, with a mask over the tokens that are no actions.
Loss, mean log-probability of the actions and norm of the gradient of two updates must agree to
`--tolerance` before anything is timed. Not the same: tunix makes logits at every position and
computes their entropy too, which GRPO logs; this library makes neither.

The rollouts: all choose greedily, at most L tokens a turn. tunix's sampler starts from text at
every call, so it reads a dialogue of K turns K times; with `--turns 1` there is nothing to read
again. It gets ids instead of text to encode, and rooms of exactly the length that each turn needs.
A share below `--equal` of equal replies ends the run.

In each round every variant works once, every other round in reverse order. Printed are seconds
(median, least and most) and how many times as long each takes as this library's default within the
same round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rollout import equal_replies, shown
from safetensors.numpy import load_file, save_file
from train_step import OURS, OurStep, check, make_rollouts, optimizer_fields
from workload import (
    HEAD_DIM,
    QUESTIONS,
    REPLIES,
    alternate,
    compare,
    flag_parser,
    machine,
    make_checkpoint,
    make_prompts,
    measure_and_report,
    print_times,
)

from turnwise_jax.algorithms import grpo
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue, Turn
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.rows import context_rows, row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import TURN_MULTIPLE
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train.batches import as_batch
from turnwise_jax.train.state import Batch

TEMPERATURE = 1.0
SPREAD = 0.05  # of the weights: what is said depends on more than the last token
STEPS = OURS | {"tunix": "google-tunix, GRPO trainer"}
SAMPLERS = {"engine": "ours, StreamEngine", "tunix": "google-tunix, sampler"}


class Work:
    """The policy, its dialogues of text, and what both libraries are given of them."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.folder, self.args = folder, args
        make_checkpoint(
            folder / "checkpoint",
            args,
            tied=False,
            spread=SPREAD,
            marker_gain=args.marker_gain,
            only_allowed=True,
        )
        self.policy = Policy.load(folder / "checkpoint")
        examples = make_texts(args)
        self.prompts, shapes = make_prompts(self.policy, examples, args.reply_tokens)
        self.engine = StreamEngine(self.policy, Sampling(greedy=True), shapes)
        self.rollouts = make_rollouts(self.prompts, self.policy, args)
        # One advantage for each rollout, as in GRPO.
        self.advantage_N = np.random.default_rng(3).normal(size=args.prompts * args.group)

    def batch(self, *, shared: bool) -> Batch:
        length, actions = row_size(self.rollouts, shared=shared)
        length = -(-length // TURN_MULTIPLE) * TURN_MULTIPLE
        rows = train_rows(self.rollouts, length=length, actions=actions, shared=shared)
        advantage_NK = np.repeat(self.advantage_N[:, None], self.args.turns, axis=1)
        context = context_rows(self.prompts) if shared else None
        return as_batch(None, rows, advantage_NK, context)

    def step(self, name: str) -> OurStep:
        loss = partial(grpo.loss, settings=grpo.Settings())
        return OurStep(
            self.policy,
            self.batch(shared=name == "shared"),
            self.args.chunk,
            loss=loss,
            temperature=TEMPERATURE,
        )

    def say(self) -> tuple[np.ndarray, np.ndarray]:
        """Replies ``[N, K, L]`` and their lengths ``[N, K]``."""
        made = self.engine.rollout(
            self.policy.params, self.prompts, group_size=self.args.group, seed=0
        )
        tokens, length = made.tokens, made.length
        return tokens.reshape(-1, *tokens.shape[2:]), length.reshape(-1, length.shape[-1])

    def save(self) -> None:
        """What ``tunix_worker.py`` reads."""
        save_qwen2(self.folder)
        np.savez(self.folder / "rows.npz", **padded_rows(self))
        vocab, fields = self.policy.vocab, optimizer_fields()
        names = ("learning_rate", "b1", "b2", "eps", "weight_decay", "clip_norm")
        settings = {
            "model": qwen2_sizes(self.folder),
            "group": self.args.group,
            "temperature": TEMPERATURE,
            "optimizer": {name: fields[name] for name in names},
            "pad": vocab.eos,
            "eos": vocab.im_end,
            "marker": vocab.im_end,
            "limit": self.args.reply_tokens,
            "pieces": [
                [shown(self.prompts, b, k)[0].tolist() for k in range(self.args.turns)]
                for b in range(self.args.prompts)
                for _ in range(self.args.group)
            ],
        }
        (self.folder / "settings.json").write_text(json.dumps(settings))


def make_texts(args: argparse.Namespace) -> list[Example]:
    """B dialogues of random words; the contexts differ in length by up to a tenth."""
    rng = np.random.default_rng(1)
    words = " ".join((*QUESTIONS, *REPLIES)).split()
    examples = []
    for number in range(args.prompts):
        first = int(args.context_words * (1 - 0.1 * number / args.prompts))
        counts = [first, *[args.turn_words] * (args.turns - 1)]
        texts = [" ".join(rng.choice(words, count)) for count in counts]
        turns = tuple(Turn((), text, float(k + 1)) for k, text in enumerate(texts))
        examples.append(Example(Dialogue(f"dialogue-{number}", turns, file="random"), (), (), ()))
    return examples


def padded_rows(work: Work) -> dict[str, np.ndarray]:
    """Rollouts as tunix has them: prompts padded on the left, what follows on the right.

    Returns:
      ``prompt`` ``[N, P]``, ``completion`` ``[N, C]``, ``is_action`` bool ``[N, C]``, ``advantage``
      ``[N]``.
    """
    pad, batch = work.policy.vocab.eos, work.batch(shared=False)
    context_N = np.repeat(work.prompts.context.length[: work.args.prompts], work.args.group)
    length_N = batch.valid_NT.sum(axis=1)
    count, rest = len(length_N), int((length_N - context_N).max())
    prompt = np.full((count, int(context_N.max())), pad, np.int32)
    completion = np.full((count, rest), pad, np.int32)
    is_action = np.zeros((count, rest), bool)
    for n, (context, length) in enumerate(zip(context_N, length_N, strict=True)):
        prompt[n, prompt.shape[1] - context :] = batch.tokens_NT[n, :context]
        completion[n, : length - context] = batch.tokens_NT[n, context:length]
        predicted = batch.action_pos_NA[n][batch.action_mask_NA[n]] + 1
        is_action[n, predicted - context] = True
    if (batch.tokens_NT[batch.valid_NT] == pad).any():
        raise SystemExit("a row holds the id that tunix takes for padding")
    return {
        "prompt": prompt,
        "completion": completion,
        "is_action": is_action,
        "advantage": work.advantage_N.astype(np.float32),
    }


def save_qwen2(folder: Path) -> None:
    """The checkpoint's decoder alone, under the names that a Qwen2 has."""
    weights = load_file(folder / "checkpoint" / "model.safetensors")
    (folder / "qwen2").mkdir()
    text = {name: value for name, value in weights.items() if not name.startswith("visual.")}
    save_file(text, folder / "qwen2" / "model.safetensors")


def qwen2_sizes(folder: Path) -> dict[str, Any]:
    """The sizes of the checkpoint's decoder under tunix's names."""
    config = json.loads((folder / "checkpoint" / "config.json").read_text())
    config = config | config.get("text_config", {})
    return {
        "num_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "embed_dim": config["hidden_size"],
        "hidden_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "head_dim": HEAD_DIM,
        "num_kv_heads": config["num_key_value_heads"],
        "rope_theta": int(config["rope_parameters"]["rope_theta"]),
        "norm_eps": config["rms_norm_eps"],
        "use_tied_embedding": False,
    }


class Tunix:
    """``tunix_worker.py`` in its own environment; it works only while it is asked."""

    def __init__(self, python: str, folder: Path):
        worker = Path(__file__).resolve().parent / "tunix_worker.py"
        self._errors = (folder / "tunix.log").open("w+")
        # -P: this file must not be found where the worker imports tunix.
        self._process = subprocess.Popen(
            [python, "-P", str(worker), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )

    def ask(self, task: str) -> Any:
        try:
            self._process.stdin.write(f"{task}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended, and its log says why
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"tunix stopped:\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def say(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Replies ``[N, K, L]``, 0 behind their end, and their lengths ``[N, K]``."""
        said = self.ask("sample")
        length = np.array([[len(reply) for reply in row] for row in said])
        tokens = np.zeros((*length.shape, limit), np.int64)
        for n, row in enumerate(said):
            for k, reply in enumerate(row):
                tokens[n, k, : len(reply)] = reply
        return tokens, length

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare, time, and return what :func:`print_report` prints."""
    work = Work(folder, args)
    work.save()
    steps: dict[str, Any] = {name: work.step(name) for name in OURS}
    samplers: dict[str, Any] = {"engine": work.say}
    if not args.tunix_python:
        return compared(work, steps, samplers, args)
    tunix = Tunix(args.tunix_python, folder)
    try:
        steps["tunix"] = partial(tunix.ask, "step")
        samplers["tunix"] = partial(tunix.say, args.reply_tokens)
        return compared(work, steps, samplers, args, tunix)
    finally:
        tunix.close()


def compared(
    work: Work,
    steps: Mapping[str, Any],
    samplers: Mapping[str, Any],
    args: argparse.Namespace,
    tunix: Tunix | None = None,
) -> dict[str, Any]:
    """The report, or an exit that says which two did not do the same."""
    checked = dict(steps)
    if tunix:
        checked["tunix"] = partial(tunix.ask, "checked_step")
    updates = check(checked, args.tolerance)
    said = {name: sampler() for name, sampler in samplers.items()}
    share = {name: equal_replies(said["engine"], own) for name, own in said.items()}
    for name, equal in share.items():
        if equal < args.equal:
            raise SystemExit(f"only {equal:.1%} of {name}'s replies are ours: nothing was timed")
    length = said["engine"][1]
    return machine(args) | {
        "tunix": tunix.ask("versions") if tunix else None,
        "context_tokens": work.prompts.context.length.tolist(),
        "row_tokens": work.batch(shared=False).valid_NT.sum(axis=1).tolist(),
        "reply_tokens": {"mean": float(length.mean()), "most": int(length.max())},
        "updates": updates,
        "equal_replies": share,
        "steps": compare(alternate(steps, args.rounds), "shared"),
        "samplers": compare(alternate(samplers, args.rounds), "engine"),
    }


def print_report(report: Mapping[str, Any]) -> None:
    sizes, contexts, rows = report["sizes"], report["context_tokens"], report["row_tokens"]
    print(
        f"{sizes['prompts']} prompts x {sizes['group']} rollouts, {sizes['turns']} turns, contexts "
        f"of {min(contexts)} - {max(contexts)} tokens, rows of {min(rows)} - {max(rows)}; decoder "
        f"{sizes['layers']} x {sizes['hidden']}, vocabulary {sizes['vocabulary']}; "
        f"{report['device']}, {report['cores']} cores, jax {report['jax']}"
        + (f", tunix with jax {report['tunix']['jax']}" if report["tunix"] else "")
    )
    print("\none GRPO update")
    print_times(report["steps"], STEPS, "shared")
    first = next(iter(report["updates"].values()))[0]
    values = ", ".join(f"{key} {value:.6g}" for key, value in first.items())
    print(f"first update: {values} (all within {sizes['tolerance']:g})")
    print(
        f"\none batch of rollouts, replies of {report['reply_tokens']['mean']:.1f} tokens on "
        f"average, {report['reply_tokens']['most']} at most"
    )
    print_times(report["samplers"], SAMPLERS, "engine")
    for name, share in report["equal_replies"].items():
        if name != "engine":
            print(f"{SAMPLERS[name]}: {share:.1%} of the replies equal to ours")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    parser.add_argument("--tunix_python", help="of the environment that has tunix; none: ours only")
    for name, value, text in (
        ("hidden", 256, f"width of the decoder, a multiple of {HEAD_DIM}"),
        ("layers", 4, "of the decoder"),
        ("vocabulary", 32000, "rows of the output head"),
        ("prompts", 2, "B"),
        ("group", 4, "G, rollouts of each prompt"),
        ("context-words", 300, "of a prompt's first turn"),
        ("turns", 4, "K, decisions of each rollout"),
        ("turn-words", 12, "of each further turn"),
        ("reply-tokens", 32, "L, most tokens of a reply"),
        ("chunk", 8192, "vocabulary entries per block"),
        ("rounds", 5, "timed rounds"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} ({value})")
    parser.add_argument("--marker-gain", type=float, default=2.5, help="on the end marker's column")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative, of two updates")
    parser.add_argument("--equal", type=float, default=0.98, help="least share of equal replies")
    # The vision tower, which is not used.
    parser.set_defaults(vision_hidden=32, vision_layers=2, pixels=56)
    return parser.parse_args(argv)


def main() -> None:
    measure_and_report(arguments(), measure, print_report)


if __name__ == "__main__":
    main()
