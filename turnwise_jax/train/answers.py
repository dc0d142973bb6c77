"""AVATAR's batches: fresh answers of the current policy beside replayed ones (Algorithm 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.data.hints import HINTED, hinted
from turnwise_jax.data.kept import KeptExamples
from turnwise_jax.data.pictures import references
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue
from turnwise_jax.rewards.qa import Answered, AnswerTerms, AnswerWeights, score_answers, total
from turnwise_jax.rollout.answer_rows import Answer, Shown, answer_rows, answer_size
from turnwise_jax.rollout.features import SliceFeatures
from turnwise_jax.rollout.hints import HintRule, wants_hint
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.prompts import PromptBatch
from turnwise_jax.rollout.replay import ReplayBuffer, Sample
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.rollout.stream import Rollouts, StreamEngine
from turnwise_jax.train.ahead import Ahead
from turnwise_jax.train.answer_credit import Mixed, fresh_advantages, mixed
from turnwise_jax.train.answer_media import AnswerMedia
from turnwise_jax.train.answer_report import answer_metrics, answer_records
from turnwise_jax.train.batches import Clock, Collected, as_batch
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.padding import padding
from turnwise_jax.train.sampled import common_bucket
from turnwise_jax.train.sharing import Said, pack_sample, say, take_up, unpack_sample
from turnwise_jax.train.state import Batch, TrainState

DRAWS = 0x5EED  # sets the buffer's random numbers apart from all others of a run


class Rooms(NamedTuple):
    """Shapes of a process's rows, one entry per row bucket, the smallest first.

    ``fresh``: of its fresh samples alone; where towers are not trained, with room for the media of
    all. ``mixed``: with its share of the replayed ones.
    """

    fresh: tuple[RowShapes, ...]
    mixed: tuple[RowShapes, ...]

    def index(self, size: tuple[int, int]) -> int:
        """The first bucket with room for rows of (tokens, actions)."""
        fits = [size[0] <= r.length and size[1] <= r.actions for r in self.mixed]
        return fits.index(True)


@dataclass
class AnswerCollector:
    """Samples, scores, replays and mixes: lines 4 to 13 and 18 of Algorithm 1.

    All processes hold the same buffer and statistics. Each samples its own prompts and trains its
    share of what is replayed.

    Attributes:
      asked: every form in which a record can be asked, plain and hinted, by its name.
      contexts: tokens before the answer, by the same names.
      reference: jitted (state, batch) -> log-probs under the reference policy; None without one.
      hint_rule: None without hints.
      media: encodes what rows show; None where towers are trained.
      group_size, replayed: K_on of each prompt, and samples drawn for a batch of all processes.
    """

    asked: Mapping[str, Dialogue]
    contexts: Mapping[str, int]
    loader: Ahead
    kept: KeptExamples
    skipped: list[str]
    engine: StreamEngine
    rooms: Rooms
    reference: Callable[[TrainState, Batch], Any] | None
    judge: Any
    judge_cache: str
    weights: AnswerWeights
    hint_rule: HintRule | None
    stats: PromptStats
    buffer: ReplayBuffer
    settings: Any
    group_size: int
    replayed: int
    media: AnswerMedia | None
    seed: int
    layout: Layout
    hosts: Hosts

    def __call__(self, state: TrainState, iteration: int) -> Collected:
        clock = Clock()
        examples, prompts = next(self.loader)
        examples = self._ask(examples)
        clock.lap("data_wait")
        prompts, rollouts = self._sample(state, examples, prompts, iteration)
        said = say(rollouts, examples, tuple(self.asked.values()), self.skipped, self.hosts)
        clock.lap("rollout")
        terms, judged = score_answers(answered(said, self.weights), self.judge, self.weights)
        reward_BG = total(terms, self.weights).reshape(-1, self.group_size)
        clock.lap("judge")
        drawn = self._draw(iteration)
        shown, held = None, False
        if self.media is not None:
            own = drawn[self.hosts.index :: self.hosts.count]
            names = [*rollouts.ids, *(sample.prompt for sample in own)]
            shown, held = self.media.encoded(state.params, names)
        fresh = self._fresh_samples(state, rollouts, reward_BG, iteration, shown)
        clock.lap("reference")
        batch_samples = mixed(
            fresh, drawn, self.stats, replayed=self.replayed, settings=self.settings
        )
        batch = self._batch(batch_samples, shown)
        metrics = answer_metrics(said, terms, reward_BG, batch_samples, judged)
        groups = answer_records(said, terms, batch_samples)
        metrics |= self._remember(fresh, terms, said, iteration)
        metrics["padding"] = padding(batch, self.hosts)
        clock.lap("credit")
        tokens = said.row_tokens + sum(self._length(sample) for sample in drawn)
        asked = {"judge_cached": judged.total.cached, "judge_retried": judged.total.retried}
        timing = clock.laps | asked | rollouts.use.timing()
        if self.engine.encoder.kept.room:
            timing["features_kept"] = (isinstance(prompts.media, SliceFeatures) + held) / 2
        return Collected(batch, metrics, timing, groups, tokens)

    # Lines 4 and 7: prompts, with their hint where the policy is stuck, and fresh samples.

    def _ask(self, examples: Iterable[Example]) -> list[Example]:
        """The examples in the form in which they are asked now; their media are kept for replay."""
        out = []
        for example in examples:
            self.kept.add(example)
            form = self.asked.get(hint_name(example.dialogue))
            if (
                self.hint_rule
                and form
                and wants_hint(example.dialogue.id, self.stats, self.hint_rule)
            ):
                example = dataclasses.replace(example, dialogue=form)
            out.append(example)
        return out

    def _sample(
        self,
        state: TrainState,
        examples: list[Example],
        prompts: PromptBatch | None,
        iteration: int,
    ) -> tuple[PromptBatch, Rollouts]:
        prompts = prompts or self.engine.prepare(examples)
        prompts, depth = common_bucket(self.engine, examples, prompts, self.hosts)
        rollouts = self.engine.rollout(
            state.params,
            prompts,
            group_size=self.group_size,
            seed=self.seed,
            step=iteration,
            depth=depth,
        )
        self.engine.encoder.kept.note(examples, prompts.shapes, rollouts.prompts.media)
        return prompts, rollouts

    def _fresh_samples(
        self,
        state: TrainState,
        rollouts: Rollouts,
        reward_BG: np.ndarray,
        iteration: int,
        shown: Shown | None,
    ) -> list[Sample]:
        """The fresh samples of all processes in (b, g) order."""
        advantage_BG = fresh_advantages(reward_BG, self.settings)
        own = slice(self.hosts.index, None, self.hosts.count)
        answers = [
            self._answer(rollouts, b, g)
            for b in range(len(rollouts.ids))
            for g in range(self.group_size)
        ]
        samples = [
            Sample(
                prompt=answer.dialogue.id,
                tokens=answer.tokens,
                logp=answer.logp,
                ref_logp=ref_logp_A[: len(answer.tokens)],
                truncated=answer.truncated,
                reward=float(reward),
                advantage=float(advantage),
                kl=float(np.mean(answer.logp - ref_logp_A[: len(answer.tokens)])),
                step=iteration,
            )
            for answer, ref_logp_A, reward, advantage in zip(
                answers,
                self._reference_logprobs(state, answers, shown),
                reward_BG[own].reshape(-1),
                advantage_BG[own].reshape(-1),
                strict=True,
            )
        ]
        size = self.group_size
        groups = [samples[i : i + size] for i in range(0, len(samples), size)]
        told = self.hosts.gather([[pack_sample(s) for s in group] for group in groups])
        return [unpack_sample(packed) for group in self.hosts.dealt(told) for packed in group]

    def _answer(self, rollouts: Rollouts, b: int, g: int) -> Answer:
        count = int(rollouts.length[b, g, 0])
        return Answer(
            self.asked[rollouts.ids[b]],
            rollouts.tokens[b, g, 0, :count],
            rollouts.logp[b, g, 0, :count],
            bool(rollouts.truncated[b, g, 0]),
        )

    def _reference_logprobs(
        self, state: TrainState, answers: Sequence[Answer], shown: Shown | None
    ) -> np.ndarray:
        """f32[N, A] of this process's fresh samples; without a reference, what was recorded."""
        sizes = self.hosts.gather(answer_size(answers, self.contexts))
        shapes = self.rooms.fresh[self.rooms.index(tuple(map(max, zip(*sizes, strict=True))))]
        own = dict(enumerate(answers))
        media, rows = answer_rows(own, self.kept, self.engine.policy, shapes, shown)
        if self.reference is None:
            return rows.sampler_logp[: len(answers)]
        batch = as_batch(media, rows, np.zeros((shapes.batch, 1), np.float32))
        return self.layout.own(self.reference(state, self.layout.place(batch)))[: len(answers)]

    # Line 8: samples of the buffer. Lines 10 to 13: fresh and replayed rows in one batch.

    def _draw(self, iteration: int) -> list[Sample]:
        if not self.replayed:
            return []
        rng = np.random.default_rng([self.seed, DRAWS, iteration])
        return self.buffer.draw(self.replayed, stats=self.stats, rng=rng, step=iteration)

    def _batch(self, batch: Mixed, shown: Shown | None) -> Batch:
        """This process's rows: its fresh samples, then its share of the drawn ones."""
        samples = [*batch.fresh, *batch.drawn]
        answers = [self._replay(sample) for sample in samples]
        shapes = self.rooms.mixed[self.rooms.index(answer_size(answers, self.contexts))]
        place = self._own_rows(len(batch.fresh), len(batch.advantages))
        own = {n: answers[i] for n, i in enumerate(place) if i < len(answers)}
        media, rows = answer_rows(own, self.kept, self.engine.policy, shapes, shown)
        ref_logp_NA = np.zeros_like(rows.sampler_logp)
        for n, i in enumerate(place):
            if i < len(samples):
                ref_logp_NA[n, : len(samples[i].ref_logp)] = samples[i].ref_logp
        made = as_batch(media, rows, batch.advantages[place, None])
        return made._replace(
            action_mask_NA=rows.action_mask & batch.trains[place, None],
            old_logp_NA=rows.sampler_logp,
            mixture=Mixture(
                ref_logp_A=ref_logp_NA,
                replayed=place >= len(batch.fresh),
                weight=batch.weights[place],
                kl_weight=batch.kl_weights[place],
            ),
        )

    def _replay(self, sample: Sample) -> Answer:
        return Answer(self.asked[sample.prompt], sample.tokens, sample.logp, sample.truncated)

    def _own_rows(self, fresh: int, rows: int) -> np.ndarray:
        """Which rows of the whole batch are this process's, in the order in which it has them."""
        groups = np.arange(fresh).reshape(-1, self.group_size)
        own = groups[self.hosts.index :: self.hosts.count].reshape(-1)
        return np.concatenate([own, np.arange(fresh, rows)[self.hosts.index :: self.hosts.count]])

    def _length(self, sample: Sample) -> int:
        return self.contexts[sample.prompt] + len(sample.tokens) + sample.truncated

    # Line 18: the buffer and the statistics learn of the fresh samples.

    def _remember(
        self, fresh: Sequence[Sample], terms: AnswerTerms, said: Said, iteration: int
    ) -> dict[str, Any]:
        """What is in the buffer afterwards, for the logs."""
        accuracy_BG = terms.accuracy.reshape(-1, self.group_size)
        for b, dialogue in enumerate(said.dialogues):
            group = fresh[b * self.group_size : (b + 1) * self.group_size]
            rewards = [sample.reward for sample in group]
            kl = float(np.mean([sample.kl for sample in group]))
            self.stats.record(dialogue.id, rewards, accuracy_BG[b].tolist(), kl)
        if not self.replayed:
            return {}
        self.buffer.add(fresh, self.stats)
        sizes = {f"buffer_{tier}": count for tier, count in self.buffer.sizes().items()}
        return {**sizes, "buffer_age": self.buffer.mean_age(iteration)}

    # What the training loop asks for.

    def position(self) -> dict[str, Any]:
        return {
            "loader": self.loader.get_state(),
            "skipped": self.skipped,
            "judge_cache": self.judge_cache,
        }

    def memory(self) -> dict[str, np.ndarray]:
        """Statistics and buffer."""
        parts = {"stats": self.stats.state(), "buffer": self.buffer.state()}
        return {f"{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        take_up(self.loader, self.skipped, positions, iteration, self.hosts)
        for part, holder in (("stats", self.stats), ("buffer", self.buffer)):
            own = {name.removeprefix(f"{part}."): array for name, array in memory.items()
                   if name.startswith(f"{part}.")}  # fmt: skip
            holder.load_state(own)

    def close(self) -> None:
        self.loader.close()
        if self.judge is not None:
            self.judge.close()

    def shapes(self) -> list[Batch]:
        """One empty batch per row bucket, for compiling ahead."""
        return [self._empty(shapes) for shapes in self.rooms.mixed]

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile the rollouts, the reference and the credit.

        Meanwhile the first batch is read.
        """
        self.loader.start()
        out: list[Callable[[], None]] = [
            partial(self.engine.warm_up, state.params, group_size=self.group_size),
            self._compile_credit,
        ]
        if self.media is not None:
            out.append(self.media.program(state.params))
        if self.reference is not None:
            out += [partial(self._compile_reference, state, shapes) for shapes in self.rooms.fresh]
        return out

    def _compile_reference(self, state: TrainState, shapes: RowShapes) -> None:
        batch = self._empty(shapes)._replace(mixture=None)
        self.reference.lower(state, self.layout.shapes(batch)).compile()

    def _empty(self, shapes: RowShapes) -> Batch:
        batch = empty_answers(self.engine.policy, shapes)
        return batch if self.media is None else self.media.as_encoded(batch)

    def _compile_credit(self) -> None:
        count = sum(bucket.batch for bucket in self.engine.buckets[:1]) * self.hosts.count
        fresh_advantages(np.zeros((count, self.group_size)), self.settings)
        mixed([], [], self.stats, replayed=self.replayed, settings=self.settings)


def empty_answers(policy: Any, shapes: RowShapes) -> Batch:
    """A batch of these shapes without an answer."""
    media, rows = answer_rows({}, {}, policy, shapes)
    count = shapes.batch
    made = as_batch(media, rows, np.zeros((count, 1), np.float32))
    none = np.zeros(count, np.float32)
    return made._replace(mixture=Mixture(rows.sampler_logp, none.astype(bool), none, none))


def hint_name(dialogue: Dialogue) -> str:
    """The name of a plain dialogue's hinted form."""
    return f"{dialogue.id}{HINTED}"


def asked_forms(dialogues: Sequence[Dialogue], *, hints: bool) -> dict[str, Dialogue]:
    """Every record plain and, if it has a hint, with it, by name."""
    forms = {dialogue.id: dialogue for dialogue in dialogues}
    for dialogue in dialogues:
        if hints and dialogue.question and dialogue.question.hint:
            form = hinted(dialogue)
            forms[form.id] = form
    return forms


def answered(said: Said, weights: AnswerWeights) -> list[Answered]:
    """What the rewards read, N = B x G in (b, g) order."""
    out = []
    for dialogue, group in zip(said.dialogues, said.text, strict=True):
        frames = references(dialogue) if weights.stepwise else ()
        out += [Answered(dialogue.id, replies[0], dialogue.question, frames) for replies in group]
    return out
