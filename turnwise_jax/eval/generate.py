"""A policy run over streaming dialogues, its own replies as context, resumable item by item.

Beside the predictions ``NAME.jsonl`` stands ``NAME.settings.json``: checkpoint, dtypes, frame size,
decoding, reply style and data that they were made with. A killed run goes on where it stopped; a
file that was made with other settings is refused instead of being mixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.pipeline import Example, load_example, probe_grids
from turnwise_jax.data.records import Dialogue
from turnwise_jax.data.reply_styles import normalised, restyled
from turnwise_jax.errors import InputError
from turnwise_jax.eval.controls import EXAMPLE_CONTROLS, check_deprivable, video_of
from turnwise_jax.eval.predictions import Prediction, PredictionWriter, read_predictions
from turnwise_jax.eval.settings import claim, settings_of, without_hint
from turnwise_jax.eval.throughput import Meter
from turnwise_jax.progress import ProgressBar
from turnwise_jax.rollout.placement import Placement
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import Shapes, choose, need_of, padded
from turnwise_jax.rollout.stream import Rollouts, StreamEngine


@dataclass(frozen=True)
class Decoding:
    """How replies are chosen; the default is the papers': greedy, one run of each dialogue.

    ``new_tokens``: most tokens of a reply, end marker included. ``batch_size``: dialogues at once.
    ``group_size``: runs of each dialogue, more than one only with sampling. ``buckets``: how many
    shapes, each with half the room of the one before; a batch is of one bucket.
    """

    sampling: Sampling = field(default_factory=lambda: Sampling(greedy=True))
    new_tokens: int = 100
    batch_size: int = 8
    group_size: int = 1
    seed: int = 0
    buckets: int = 1

    def __post_init__(self) -> None:
        for name in ("new_tokens", "batch_size", "group_size", "buckets"):
            if getattr(self, name) < 1:
                raise InputError(f"must be at least 1, got {getattr(self, name)}", field=name)
        if self.sampling.greedy and self.group_size > 1:
            raise InputError("greedy runs of one dialogue are all equal; use 1", field="group_size")


def generate(
    policy: Policy,
    dialogues: Sequence[Dialogue],
    path: str | os.PathLike[str],
    *,
    decoding: Decoding | None = None,
    on_bad_record: str = "raise",
    skipped: list[str] | None = None,
    title: str = "evaluate",
    control: str = "none",
    meter: Meter | None = None,
    replies: str = "plain",
    cache: FrameCache | None = None,
    placement: Placement | None = None,
) -> list[Prediction]:
    """Run ``policy`` over the open turns of every dialogue and keep what it says in ``path``.

    Args:
      policy: with its parameters.
      dialogues: given turns are context, open ones are decided. Names must differ.
      path: JSON lines, appended to dialogue by dialogue; what is there is kept and not run again.
      decoding: how.
      on_bad_record: "raise", or "skip" to leave out dialogues whose media cannot be used.
      skipped: under "skip" one line for each of them is appended here.
      title: of the progress bar.
      control: "none", or a key of ``EXAMPLE_CONTROLS``: what the policy is deprived of.
      meter: counts what is run here, and how fast.
      replies: how the policy writes them, of ``data.reply_styles``.
      cache: prepared frames and sounds on disk; None: decode.
      placement: the mesh that the policy's parameters are on; None: one device. Predictions do not
        depend on it.

    Returns:
      All predictions, in the order of ``dialogues``; ``group_size`` of each.

    Raises:
      InputError: names file, record and field; also if ``path`` was made with other settings.
    """
    decoding = decoding or Decoding()
    path = Path(path)
    _check_names(dialogues)
    dialogues = [restyled(dialogue, replies) for dialogue in dialogues]
    if control != "none":
        check_deprivable(dialogues, control)
    claim(path, settings_of(policy, dialogues, asdict(decoding), control=control, replies=replies))
    done = {p.id: p for p in read_predictions(path)} if path.exists() else {}
    wanted = {name: d.id for d in dialogues for name in _names(d, decoding.group_size)}
    for name in done:
        if name not in wanted:
            raise InputError("is no dialogue of this set", file=path, record=name)
    if len(done) < len(wanted):
        bad = _Refusals(on_bad_record, skipped)
        usable, grids = _measure(dialogues, policy, bad)
        left = [not done.keys() >= set(_names(d, decoding.group_size)) for d in usable]
        engine = _engine(policy, usable, grids, decoding, placement or Placement.on_one_device())
        todo = _grouped(engine, compress(usable, left), compress(grids, left), decoding)
        load = partial(_load, policy=policy, control=control, cache=cache)
        examples = _batches(todo, load, bad)
        with (
            PredictionWriter(path) as writer,
            ProgressBar(title, len(usable), done=len(usable) - sum(left)) as bar,
        ):
            for made in _run(engine, examples, decoding, bar, meter or Meter()):
                if made.id not in done:
                    done[made.id] = shown(made, replies)
                    writer.write(done[made.id])
    return [done[name] for name in wanted if name in done]


def as_prediction(
    dialogue: Dialogue, replies: Sequence[str], *, run: int | None = None
) -> Prediction:
    """A dialogue with what was said at its open turns; ``run`` numbers the rollouts of a group."""
    return Prediction(
        id=dialogue.id if run is None else f"{dialogue.id}/{run}",
        times=tuple(turn.time for turn in dialogue.open_turns),
        replies=tuple(replies),
        windows=dialogue.windows,
        history=dialogue.history,
        video=video_of(dialogue),
        group=None if run is None else dialogue.id,
        question=without_hint(dialogue.question),
        target=dialogue.target,
    )


def shown(prediction: Prediction, replies: str) -> Prediction:
    """What a dialogue's texts show in their style; plain ones are what they show."""
    if replies == "plain":
        return prediction
    visible = tuple(normalised(text, replies) for text in prediction.replies)
    return replace(prediction, replies=visible, raw=prediction.replies)


def _run(
    engine: StreamEngine,
    batches: Iterable[list[Example]],
    decoding: Decoding,
    bar: ProgressBar,
    meter: Meter,
) -> Iterator[Prediction]:
    meter.start()
    for examples in batches:
        rollouts = engine.rollout(
            engine.policy.params, examples, group_size=decoding.group_size, seed=decoding.seed
        )
        decisions = int(rollouts.turn_mask.sum()) * decoding.group_size
        meter.add([example.dialogue for example in examples], decisions)
        yield from _predictions(rollouts, examples, decoding.group_size)
        bar.update(len(examples), f"{meter.decisions / meter.seconds:.1f} decisions/s")


def _predictions(
    rollouts: Rollouts, examples: Sequence[Example], group_size: int
) -> Iterator[Prediction]:
    for example, runs in zip(examples, rollouts.text, strict=True):
        count = len(example.dialogue.open_turns)
        for run, replies in enumerate(runs):
            number = None if group_size == 1 else run
            yield as_prediction(example.dialogue, replies[:count], run=number)


def _grouped(
    engine: StreamEngine, dialogues: Iterable[Dialogue], grids: Iterable[Any], decoding: Decoding
) -> list[list[Dialogue]]:
    """Batches of dialogues of one bucket and similar depth, the longest first.

    The bucket is a dialogue's own, so that it does not depend on what else is left to run.
    """
    found: dict[int, list[Dialogue]] = {}
    for dialogue, own in zip(dialogues, grids, strict=True):
        need = need_of(dialogue, own, engine.policy, decoding.new_tokens)
        shapes = choose(engine.buckets, [need], [dialogue])
        found.setdefault(engine.buckets.index(shapes), []).append(dialogue)
    size, groups = decoding.batch_size, []
    for _, members in sorted(found.items(), reverse=True):
        members.sort(key=lambda dialogue: -len(dialogue.open_turns))
        groups += [members[start : start + size] for start in range(0, len(members), size)]
    return groups


def _batches(
    groups: Sequence[Sequence[Dialogue]], load: Callable[[Dialogue], Example], bad: _Refusals
) -> Iterator[list[Example]]:
    """The examples of each group; the next one's are decoded while the caller computes."""
    with ThreadPoolExecutor(max_workers=2) as pool:

        def submit(group: Sequence[Dialogue]) -> list[Future[Example]]:
            return [pool.submit(load, dialogue) for dialogue in group]

        ahead = submit(groups[0]) if groups else []
        for following in [*groups[1:], []]:
            current, ahead = ahead, submit(following)
            examples = [e for e in map(bad.result, current) if e is not None]
            if examples:
                yield examples


def _load(dialogue: Dialogue, policy: Policy, control: str, cache: FrameCache | None) -> Example:
    sound = policy.template.sound
    example = load_example(dialogue, policy.spec, sound, cache)
    return EXAMPLE_CONTROLS[control](example, sound) if control != "none" else example


class _Refusals:
    """Media that cannot be used: raised, or collected as one line each."""

    def __init__(self, on_bad_record: str, skipped: list[str] | None):
        if on_bad_record not in ("raise", "skip"):
            raise InputError(
                f"must be 'raise' or 'skip', got {on_bad_record!r}", field="on_bad_record"
            )
        self.skip = on_bad_record == "skip"
        self.skipped = [] if skipped is None else skipped

    def result(self, future: Future[Example]) -> Example | None:
        try:
            return future.result()
        except InputError as error:
            self.take(error)
            return None

    def take(self, error: InputError) -> None:
        if not self.skip:
            raise error
        if str(error) not in self.skipped:
            self.skipped.append(str(error))


def _measure(
    dialogues: Sequence[Dialogue], policy: Policy, bad: _Refusals
) -> tuple[list[Dialogue], list[Any]]:
    """Dialogues whose media can be opened, and their vision grids."""
    usable, grids = [], []
    for dialogue in dialogues:
        try:
            grids.append(probe_grids(dialogue, policy.spec))
            usable.append(dialogue)
        except InputError as error:
            bad.take(error)
    if not usable:
        raise InputError(f"no usable dialogue; the first bad one: {bad.skipped[0]}")
    return usable, grids


def _engine(
    policy: Policy,
    dialogues: Sequence[Dialogue],
    grids: Sequence[Any],
    decoding: Decoding,
    placement: Placement,
) -> StreamEngine:
    """Shapes come from the whole set, so that a resumed run says exactly what the first would."""
    shapes = Shapes.for_dialogues(
        dialogues,
        grids,
        policy,
        batch_size=min(decoding.batch_size, len(dialogues)),
        new_tokens=decoding.new_tokens,
        buckets=decoding.buckets,
        halved=("whole",),
    )
    shapes = padded(shapes, placement.row_parts, decoding.group_size)
    return StreamEngine(policy, decoding.sampling, shapes, placement)


def _names(dialogue: Dialogue, group_size: int) -> list[str]:
    if group_size == 1:
        return [dialogue.id]
    return [f"{dialogue.id}/{run}" for run in range(group_size)]


def _check_names(dialogues: Sequence[Dialogue]) -> None:
    seen: set[str] = set()
    for dialogue in dialogues:
        if dialogue.id in seen:
            raise InputError(
                "another dialogue has the same name", file=dialogue.file, record=dialogue.id
            )
        seen.add(dialogue.id)
    if not dialogues:
        raise InputError("no dialogue to evaluate")
