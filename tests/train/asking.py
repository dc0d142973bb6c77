"""Questions about tiny clips, a policy that hears, and short runs of AVATAR on them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from runs import small
from tiny import make_checkpoint

from turnwise_jax.data.tokens import Vocab
from turnwise_jax.models import io
from turnwise_jax.rollout.stream import Rollouts, StreamEngine
from turnwise_jax.train.answers import AnswerCollector
from turnwise_jax.train.config import avatar_config
from turnwise_jax.train.data import read_data
from turnwise_jax.train.loop import Run
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.run import build, load_policy

sys.path.append(str(Path(__file__).resolve().parent.parent / "data"))

from sound_files import beeps, write_sound

QUESTIONS = 4
CLIPS = (0, 1)  # questions with a clip that sounds; the others are text alone


class Asking(NamedTuple):
    """Where the shared inputs lie."""

    questions: Path
    policy: Path


def make_asking(root: Path) -> Asking:
    """Four questions, three of them with a hint, and a policy that earns something now and then."""
    rows = []
    for n in range(QUESTIONS):
        row = {"id": f"q{n}", "question": "How many beeps?", "answer": n + 3, "category": "sound"}
        if n in CLIPS:
            seconds = 0.6 + 0.2 * n
            samples = beeps(seconds, [0.1], tone=500.0 + 300 * n)
            write_sound(root / f"{n}.mp4", samples, codec="aac", video_seconds=seconds)
            row["video"] = f"{n}.mp4"
        if n < QUESTIONS - 1:
            row["hint"] = "Listen to the end." + " Count." * n
        rows.append(row)
    write_questions(root / "questions.jsonl", rows)
    make_policy(root / "policy")
    return Asking(root / "questions.jsonl", root / "policy")


def write_questions(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_policy(directory: Path) -> None:
    """Random weights, but for a liking for digits and for the end."""
    make_checkpoint(directory, family="qwen2_5_omni", marker_gain=1.0)
    config, vocab = io.load_config(directory), Vocab.from_pretrained(directory)
    params = io.init(config, 0)
    liked = [vocab.im_end, *(token for digit in "123456789" for token in vocab.encode(digit))]
    kernel = params["text"]["head"]["kernel"]
    kernel[...] = kernel[...].at[:, np.array(liked)].multiply(3.0)
    io.save(directory, config, params)


def avatar(asking: Asking, directory: Path) -> ConfigDict:
    """Six steps of two questions, each with two fresh and two replayed answers.

    The buffer is soon full, and every question counts as stuck once it was seen.
    """
    config = small(avatar_config(), asking, directory)
    config.data.update(path=str(asking.questions), batch_size=2, frames=2, workers=0)
    config.rollout.update(group_size=2, max_new_tokens=6, top_k=0)
    config.replay.update(samples=2, capacity=8, minimum=2)
    config.hints.update(reward_at_most=1.0, kl_at_most=10.0, min_history=2, zero_streak=0)
    # No more than this, and AdamW does not blow up rounding.
    config.optimizer.update(learning_rate=5e-5, eps=1e-5)
    return config


def built(config: ConfigDict) -> Run:
    """A run that waits for its first step."""
    layout = Layout.of(make_mesh(config.mesh))
    policy = load_policy(config, layout.param_shardings)
    return build(config, Path(config.run.dir), layout, policy, read_data(config, policy))


class StubEngine(StreamEngine):
    """Says what a test wants; nothing is compiled.

    ``reply``: (prompt's name, rollout of its group, step) -> text. An answer of exactly the token
    limit has no end marker and counts as cut.
    """

    reply: Callable[[str, int, int], str]
    asked: list[tuple[str, ...]]

    def rollout(self, params, examples, *, group_size, seed, step=0, depth=None) -> Rollouts:
        prompts, vocab = examples, self.policy.vocab
        limit = prompts.shapes.new_tokens
        shape = (len(prompts.ids), group_size, 1)
        tokens, logp = np.zeros((*shape, limit), np.int32), np.zeros((*shape, limit), np.float32)
        length, truncated = np.zeros(shape, np.int32), np.zeros(shape, bool)
        text = [[[""] for _ in range(group_size)] for _ in prompts.ids]
        for b, name in enumerate(prompts.ids):
            for g in range(group_size):
                said = self.reply(name, g, step)
                ids = [*vocab.encode(said), vocab.im_end][:limit]
                count = len(ids)
                tokens[b, g, 0, :count] = ids
                logp[b, g, 0, :count] = -1.0 - np.arange(count)
                length[b, g, 0], truncated[b, g, 0] = count, ids[-1] != vocab.im_end
                text[b][g][0] = vocab.decode(ids[: count - (not truncated[b, g, 0])])
        self.asked.append(prompts.ids)
        count = len(prompts.ids)
        return Rollouts(
            prompts=prompts, ids=prompts.ids, tokens=tokens, length=length, logp=logp,
            truncated=truncated, text=text, turn_mask=prompts.turn_mask[:count],
            time=prompts.time[:count], marker=vocab.im_end,
        )  # fmt: skip


def stubbed(run: Run, reply: Callable[[str, int, int], str]) -> AnswerCollector:
    """The run's collector with a :class:`StubEngine`."""
    collector = run.collect
    assert isinstance(collector, AnswerCollector)
    engine = collector.engine
    stub = StubEngine(engine.policy, engine.sampling, engine.buckets, engine.placement)
    stub.reply, stub.asked = reply, []
    collector.engine = stub
    return collector
