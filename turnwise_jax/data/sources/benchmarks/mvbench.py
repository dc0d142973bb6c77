"""MVBench: twenty tasks over short videos, options without letters.

Read in OpenGVLab/Ask-Anything, ``video_chat2/mvbench.ipynb`` (commit 4631cd6), and in
EvolvingLMMs-Lab/lmms-eval, ``lmms_eval/tasks/mvbench/utils.py`` (1ab9504). Each of the files
``json/<task>.json`` is a list of::

    {"video": "x.mp4", "question": "...", "candidates": ["...", "..."],
     "answer": "<text of a candidate>", "start": 6.8, "end": 15.2}

``start`` and ``end`` (seconds) count in the five tasks in which the notebook heeds them. Media:
``video/<folder of the task>``, or the same below ``video/data0613``, or below its own first folder
once more, as archives unpacked in a folder of their name leave it. ``episodic_reasoning`` names
folders of frames, three a second, ``00001.jpg`` (at 0 s) and on; they are shown as one video
without sound, each at its own second. Category: the task, which is the file's name. All tasks at
once: give the benchmark's folder as ``data.path``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Frame
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.qa import Media, spread
from turnwise_jax.data.sources.questions import read_options

PATTERN = "json/*.json"
_FOLDERS = {
    "action_sequence": "star/Charades_v1_480",
    "action_prediction": "star/Charades_v1_480",
    "action_antonym": "ssv2_video",
    "fine_grained_action": "Moments_in_Time_Raw/videos",
    "unexpected_action": "FunQA_test/test",
    "object_existence": "clevrer/video_validation",
    "object_interaction": "star/Charades_v1_480",
    "object_shuffle": "perception/videos",
    "moving_direction": "clevrer/video_validation",
    "action_localization": "sta/sta_video",
    "scene_transition": "scene_qa/video",
    "action_count": "perception/videos",
    "moving_count": "clevrer/video_validation",
    "moving_attribute": "clevrer/video_validation",
    "state_change": "perception/videos",
    "fine_grained_pose": "nturgbd",
    "character_order": "perception/videos",
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa/frames_fps3_hq",
    "counterfactual_inference": "clevrer/video_validation",
}
_FRAMES = "episodic_reasoning"
_SPANS = {"action_sequence", "action_prediction", "object_interaction", "action_localization"}
_FRAMES_PER_SECOND = 3


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records; they have no names, so each gets its task's and its place in the file."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield f"{Path(path).stem}_{number}", row


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One question as an open turn.

    Raises:
      InputError: names file, record and field; the file is not called after a task.
    """
    fields = common.checked(file, name, row)
    task = Path(file).stem
    if task not in _FOLDERS:
        fields.fail("task", f"the file must be called <task>.json, one of {', '.join(_FOLDERS)}")
    options = read_options(fields, row.get("candidates"), "candidates")
    question = common.choice_question(
        common.asked(fields, row.get("question"), "question"),
        common.chosen_text(fields, row.get("answer"), "answer", options),
        options,
        category=task,
    )
    video = common.asked(fields, row.get("video"), "video")
    folder = _FOLDERS[task]
    tops = ("video", "video/data0613", f"video/{folder.split('/')[0]}")
    path = common.found(root, [f"{top}/{folder}/{video}" for top in tops])
    if task == _FRAMES:
        media = _frame_folder(fields, row, Path(root, path), clip or ClipSpec())
    else:
        span = (row.get("start"), row.get("end")) if task in _SPANS else (None, None)
        media = common.watched(fields, path, "video", root=root, clip=clip, span=span)
    return common.open_dialogue(fields, question, media)


def _frame_folder(fields: Fields, row: dict[str, Any], folder: Path, clip: ClipSpec) -> Media:
    """Pictures of a folder from ``start`` to ``end``, the middles of equal parts, as one video."""
    count = len(list(folder.glob("*.jpg"))) if folder.is_dir() else 0
    if not count:
        fields.fail("video", f"{folder}: holds no frames 00001.jpg and on")
    start = fields.number(row.get("start"), "start")
    end = min(fields.number(row.get("end"), "end"), count / _FRAMES_PER_SECOND)
    if not 0 <= start < end:
        fields.fail("end", f"must leave something of the {count} frames, got {start:g}..{end:g} s")
    parts = max(1, min(clip.frames, int((end - start) * _FRAMES_PER_SECOND)))
    numbers = [int(time * _FRAMES_PER_SECOND) + 1 for time in spread(start, end, parts)]
    frames = tuple(
        Frame(str(folder / f"{number:05d}.jpg"), shown=(number - 1) / _FRAMES_PER_SECOND)
        for number in numbers
    )
    return Media(frames, True, None, end)
