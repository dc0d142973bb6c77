"""The embedded audio-visual world: short clips of coloured shapes, one of which sounds.

A small, endless stand-in for question answering about videos with sound (AVATAR's tasks). Every set
is a folder of real .mp4 files and JSON lines of ``data.sources.qa``::

    out/manifest.json                       setting, seed and sizes; present only when complete
    out/videos/{train,test}-0000.mp4
    out/sft_{train,test}.jsonl              questions with the teacher's reply; to train on, some
                                            with their hint
    out/rl_train.jsonl                      the training questions, the reply left to the policy
    out/rl_stage{1,2,3}_train.jsonl         of them those of one stage of RL: visual, then also
                                            audio-visual, then localisation
    out/qa_test.jsonl                       the held-out questions

From the command line::

    turnwise world --kind=sound --output=data/sounds --train=400 --test=100 --sheets=4
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from turnwise_jax.data.hints import hinted
from turnwise_jax.data.records import Dialogue, Frame, Sound
from turnwise_jax.data.sources import qa
from turnwise_jax.data.sources.questions import user_text
from turnwise_jax.worlds import files as folders
from turnwise_jax.worlds.soundrender import draw_clip
from turnwise_jax.worlds.soundscript import STAGES, SYSTEM, Asked, Scene, ask, sample_scene
from turnwise_jax.worlds.soundsettings import SoundWorld

FORMAT = 1  # raise when the same setting and seed would give another set


class SoundWorldFiles(folders.SetFiles):
    """The folder of a set."""

    def rl(self, stage: str = "") -> Path:
        """Training questions of a stage, a key of ``STAGES``; all of them without one."""
        return self.root / f"rl_{stage}{'_' * bool(stage)}train.jsonl"

    @property
    def qa_test(self) -> Path:
        return self.root / "qa_test.jsonl"


@dataclass(frozen=True, slots=True)
class Clip:
    """One video and the questions about it."""

    name: str
    scene: Scene
    seed: np.random.SeedSequence
    asked: tuple[Asked, ...]


def generate(
    out: str | os.PathLike[str],
    world: SoundWorld,
    *,
    train: int,
    test: int,
    seed: int = 0,
    progress: bool = True,
) -> SoundWorldFiles:
    """Writes ``train`` and ``test`` clips with their questions under ``out``, or finds them there.

    The set is made in a folder beside ``out`` and moved into place when complete, so an interrupted
    run leaves nothing that looks finished. Raises InputError if ``out`` holds something else.
    """
    folders.check_sizes(train=train, test=test, seed=seed)
    counts = {"train": train, "test": test}
    manifest = {
        "format": FORMAT,
        "kind": "soundworld",
        "world": dataclasses.asdict(world),
        "videos": counts,
        "seed": seed,
    }
    made = SoundWorldFiles(Path(out))

    def fill(root: Path) -> None:
        _fill(SoundWorldFiles(root), world, counts, seed, made.root if progress else None)

    folders.build(made.root, manifest, fill)
    return made


def clips(world: SoundWorld, split: str, count: int, seed: int) -> Iterator[Clip]:
    """The clips of a split in order; clip i depends on (world, split, seed, i) alone."""
    for index in range(count):
        root = np.random.SeedSequence([seed, folders.SPLITS.index(split), index])
        script_seed, clip_seed = root.spawn(2)
        rng = np.random.default_rng(script_seed)
        asked: tuple[Asked, ...] = ()
        while not asked:
            scene = sample_scene(world, rng)
            asked = ask(world, scene, rng)
        yield Clip(f"{split}-{index:04d}", scene, clip_seed, asked)


def dialogues(
    world: SoundWorld, clip: Clip, families: Sequence[str] | None = None, *, reply: bool
) -> Iterator[Dialogue]:
    """The questions about a clip, those of ``families`` or all; the teacher answers if ``reply``.

    Media paths are relative to the set's folder.
    """
    video = f"videos/{clip.name}.mp4"
    frames = tuple(Frame(video, time) for time in qa.spread(0.0, world.seconds, world.slots))
    media = qa.Media(frames, True, Sound(video, 0.0, world.seconds), world.seconds)
    for asked in clip.asked:
        if families is None or asked.family in families:
            yield qa.one_turn(
                f"{clip.name}-{asked.family}",
                asked.question,
                user_text(asked.question),
                media,
                SYSTEM,
                asked.reply if reply else None,
                "",
            )


def _fill(
    files: SoundWorldFiles,
    world: SoundWorld,
    counts: dict[str, int],
    seed: int,
    shown: Path | None,
) -> None:
    files.videos.mkdir()
    with Progress(disable=shown is None) as bar:
        task = bar.add_task(f"world in {shown}", total=sum(counts.values()))
        for split in folders.SPLITS:
            made = []
            for clip in clips(world, split, counts[split], seed):
                draw_clip(files.videos / f"{clip.name}.mp4", world, clip.scene, clip.seed)
                made.append(clip)
                bar.advance(task)
            for path, families, reply in _parts(files, split):
                lines = (d for clip in made for d in dialogues(world, clip, families, reply=reply))
                if reply and split == "train":
                    lines = _with_hints(lines, world.hinted, seed)
                qa.write(lines, path, root=files.root)


def _with_hints(lines: Iterable[Dialogue], share: float, seed: int) -> Iterator[Dialogue]:
    """A share of the questions with their hint: a policy should know hints before RL shows any."""
    rng = np.random.default_rng(seed)
    for dialogue in lines:
        yield hinted(dialogue) if rng.random() < share else dialogue


def _parts(
    files: SoundWorldFiles, split: str
) -> Iterator[tuple[Path, tuple[str, ...] | None, bool]]:
    """The question files of a split: path, families (None: all), whether the teacher answers."""
    yield files.sft(split), None, True
    if split == "test":
        yield files.qa_test, None, False
        return
    yield files.rl(), None, False
    for stage, families in STAGES.items():
        yield files.rl(stage), families, False


def draw_sheets(root: Path, count: int) -> None:
    """Contact sheets of the first held-out questions under ``sheets/``."""
    if count > 0:
        from turnwise_jax.worlds.sounddraw import draw_sheets  # matplotlib is slow to import

        draw_sheets(SoundWorldFiles(root).sft("test"), root / "sheets", count)
