"""The embedded world: short videos of coloured shapes with questions, windows and answers.

A small, endless stand-in for real streaming data. Every set is a folder of real .mp4 files with
annotations in the MMDuet2 formats (facts 4.1, 4.2), read by the same readers as real data::

    out/manifest.json                        setting, seed and sizes; present only when complete
    out/videos/{train,test}-0000.mp4
    out/sft_{train,test}.jsonl               whole dialogues, every turn answered by the teacher
    out/rl_{train,test}.parquet              history with replies, open target turns, windows
    out/rl_{train,test}-user_turns.json

From the command line::

    turnwise world --output=data/world --train=250 --test=60 --sheets=4
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from turnwise_jax.data.decoder import cores
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import SILENCE, Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.worlds import files as folders
from turnwise_jax.worlds.render import draw_video
from turnwise_jax.worlds.script import (
    SYSTEM,
    Answer,
    Asked,
    Event,
    answers,
    sample_events,
    teacher,
)
from turnwise_jax.worlds.settings import QUESTIONS, World

FORMAT = 1  # raise when the same setting and seed would give another set
THREADS = min(4, cores())  # that draw videos


class WorldFiles(folders.SetFiles):
    """The folder of a set."""

    def rl(self, split: str) -> Path:
        return self.root / f"rl_{split}.parquet"


@dataclass(frozen=True, slots=True)
class Clip:
    """One video and the dialogues about it, all turns answered by the teacher."""

    name: str
    events: tuple[Event, ...]
    seed: np.random.SeedSequence
    dialogues: tuple[Dialogue, ...]


def generate(
    out: str | os.PathLike[str],
    world: World,
    *,
    train: int,
    test: int,
    seed: int = 0,
    progress: bool = True,
) -> WorldFiles:
    """Writes `train` and `test` videos with their dialogues under `out`, or finds them there.

    The set is made in a folder beside `out` and moved into place when complete, so an interrupted
    run leaves nothing that looks finished. Raises InputError if `out` holds something else.
    """
    folders.check_sizes(train=train, test=test, seed=seed)
    counts = {"train": train, "test": test}
    files = WorldFiles(Path(out))

    def fill(root: Path) -> None:
        _fill(WorldFiles(root), world, counts, seed, files.root if progress else None)

    folders.build(files.root, _manifest(world, counts, seed), fill)
    return files


def clips(world: World, split: str, count: int, seed: int) -> Iterator[Clip]:
    """The videos of a split in order; clip i depends on (world, split, seed, i) alone."""
    for index in range(count):
        root = np.random.SeedSequence([seed, folders.SPLITS.index(split), index])
        script_seed, picture_seed = root.spawn(2)
        rng = np.random.default_rng(script_seed)
        name = f"{split}-{index:04d}"
        dialogues: tuple[Dialogue, ...] = ()
        while not dialogues:
            events = sample_events(world, rng)
            dialogues = _dialogues(world, name, events, rng)
        yield Clip(name, events, picture_seed, dialogues)


def rl_record(world: World, dialogue: Dialogue) -> Dialogue:
    """The dialogue as an RL instance: replies given up to the target segment, the rest open.

    Only windows that start in the target segment are left; earlier ones are past.
    """
    given = dialogue.turns[: world.history_turns]
    opened = tuple(
        dataclasses.replace(turn, reply=None) for turn in dialogue.turns[world.history_turns :]
    )
    return dataclasses.replace(
        dialogue,
        turns=given + opened,
        windows=tuple(w for w in dialogue.windows if w.start >= world.target_start),
        history=tuple(turn.reply for turn in given if turn.reply != SILENCE),
    )


def _dialogues(
    world: World, name: str, events: tuple[Event, ...], rng: np.random.Generator
) -> tuple[Dialogue, ...]:
    """Up to `dialogues_per_video` dialogues that open with different questions."""
    made = []
    for kind in rng.permutation(world.questions):
        asked = _ask(world, events, str(kind), rng)
        if asked is not None and len(made) < world.dialogues_per_video:
            made.append(
                _dialogue(world, f"{name}-{kind}", f"videos/{name}.mp4", events, asked, rng)
            )
    return tuple(made)


def _ask(
    world: World, events: tuple[Event, ...], kind: str, rng: np.random.Generator
) -> tuple[Asked, ...] | None:
    """The questions of a dialogue; each has a window in the target segment, else None."""
    first = Asked(0, kind, _wording(world, kind, rng))
    if rng.random() < world.two_questions:
        others = [other for other in world.questions if other != kind]
        turns = range(world.history_turns + 2, world.turns - 1)
        pairs = [(other, turn) for other in others for turn in turns]
        for index in rng.permutation(len(pairs)):
            other, turn = pairs[index]
            asked = (first, Asked(turn, other, _wording(world, other, rng)))
            if _all_have_windows(world, events, asked):
                return asked
    return (first,) if _all_have_windows(world, events, (first,)) else None


def _all_have_windows(world: World, events: tuple[Event, ...], asked: tuple[Asked, ...]) -> bool:
    target = [a for a in answers(world, events, asked) if a.start >= world.target_start]
    return {a.question for a in target} == {question.text for question in asked}


def _wording(world: World, kind: str, rng: np.random.Generator) -> str:
    return QUESTIONS[kind][int(rng.integers(world.wordings))]


def _dialogue(
    world: World,
    record: str,
    video: str,
    events: tuple[Event, ...],
    asked: tuple[Asked, ...],
    rng: np.random.Generator,
) -> Dialogue:
    windows = answers(world, events, asked)
    replies = teacher(world, windows, rng)
    texts = {question.turn: question.text for question in asked}
    turns = tuple(
        Turn(
            frames=tuple(Frame(video, time) for time in _frame_times(world, turn)),
            text=texts.get(turn, ""),
            time=world.decision_times[turn],
            reply=replies[turn] or SILENCE,
        )
        for turn in range(world.turns)
    )
    return Dialogue(id=record, turns=turns, windows=tuple(map(_window, windows)), system=SYSTEM)


def _frame_times(world: World, turn: int) -> list[float]:
    """A frame ends its interval: the last one of a turn shows what is on screen at the decision."""
    first = turn * world.frames_per_turn + 1
    return [round((first + f) * world.frame_interval, 6) for f in range(world.frames_per_turn)]


def _window(answer: Answer) -> Window:
    return Window(
        answer.start, answer.end, answer.question, answer.text, event_end=answer.event_end
    )


def _manifest(world: World, counts: dict[str, int], seed: int) -> dict:
    setting = dataclasses.asdict(world)
    return {"format": FORMAT, "world": setting, "videos": counts, "seed": seed}


def _fill(
    files: WorldFiles, world: World, counts: dict[str, int], seed: int, shown: Path | None
) -> None:
    """Videos and records of all splits; the progress bar names ``shown``, None: there is none.

    Encoding, and most of the drawing, lets other threads run.
    """

    def draw(clip: Clip) -> Clip:
        draw_video(files.videos / f"{clip.name}.mp4", world, clip.events, clip.seed)
        return clip

    files.videos.mkdir()
    with Progress(disable=shown is None) as bar, ThreadPoolExecutor(THREADS) as pool:
        task = bar.add_task(f"world in {shown}", total=sum(counts.values()))
        for split in folders.SPLITS:
            dialogues: list[Dialogue] = []
            for clip in pool.map(draw, clips(world, split, counts[split], seed)):
                dialogues += clip.dialogues
                bar.advance(task)
            mmduet2_sft.write(dialogues, files.sft(split), root=files.root)
            records = [rl_record(world, d) for d in dialogues]
            mmduet2_rl.write(records, files.rl(split), root=files.root)


def draw_sheets(root: Path, count: int) -> None:
    """Contact sheets of the first held-out dialogues under ``sheets/``."""
    if count > 0:
        from turnwise_jax.worlds.draw import contact_sheet  # matplotlib is slow to import

        (root / "sheets").mkdir(exist_ok=True)
        for dialogue in load_dialogues("mmduet2_sft", WorldFiles(root).sft("test"))[0][:count]:
            contact_sheet(dialogue, root / "sheets" / f"{dialogue.id}.png")
