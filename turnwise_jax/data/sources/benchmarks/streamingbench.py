"""StreamingBench, Real-Time Visual Understanding: questions in mid-video that look back.

Read in THUNLP-MT/StreamingBench, ``src/benchmark/StreamingOpenStreamText.py`` (commit 7dbcf2f) and
``src/data/``, and in johncaged/ThinkStream,
``thinkstream/eval/rtvu/transfer_annotation_format.py`` (68b1e7d).
``questions_real.json`` is a list of::

    {"time": "[0:00:00 - 0:00:30]", "video_categories": "...",
     "video_path": "./videos/sample_1_real.mp4",
     "questions": [{"task_type": "Object Recognition", "question": "What ...?",
                    "time_stamp": "00:00:06", "answer": "B",
                    "options": ["A. ...", "B. ...", "C. ...", "D. ..."]}]}

``Real_Time_Visual_Understanding.csv`` (or the same table as ``.parquet`` or ``.jsonl``) has a row
for each question, ``question_id`` "..._sample_<n>_<k>" and options as the text of a Python list.
Times are hh:mm:ss or mm:ss. Options are letters in order: a list whose first entry has its letter
loses the letters that it has, any other keeps its texts.

Shown are the ``data.context`` seconds before the question (60 for the benchmark's main table), 0:
all. The prompt is the official one. Category, ``target.subset``: ``task_type``. ``target.item``:
the question's id; those of the JSON form are numbered, ``sample_<n>_real_<k>``.

Media: ``video_path``; else ``videos/sample_<n>_real.mp4``, or ``sample_<n>/video.mp4``, by itself
or in a folder ``real`` or ``Real-Time Visual Understanding``, also below ``data`` or ``videos``.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from turnwise_jax.data.records import ClipSpec, Dialogue, Question, Target
from turnwise_jax.data.sources.benchmarks import common, online
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.data.sources.qa import Media

PATTERN = "questions_real.json"
PROMPT = (
    "You are an advanced video question-answering AI assistant. You have been provided with some "
    "frames from the video and a multiple-choice question related to the video. Your task is to "
    "carefully analyze the video and provide the best answer to question, choosing from the four "
    "options provided. Respond with only the letter (A, B, C, or D) of the correct option.\n\n"
    "Question: {}\n\nOptions:\n{}\n\nThe best option is:"
)


class Part(NamedTuple):
    """A part of the benchmark: what its videos and its archive are called."""

    short: str
    title: str


REAL = Part("real", "Real-Time Visual Understanding")
_SAMPLE = re.compile(r"sample_(\d+)")
_NUMBERED = re.compile(r"_(\d+)_\d+$")
_PREFIX = re.compile(r"[A-H][.)]\s*")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, one for each question."""
    yield from question_rows(online.table(path, user_turns))


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
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    question = read_choice(fields, row)
    media = context(fields, row, REAL, root=root, clip=clip)
    prompt = PROMPT.format(question.text, "\n".join(lettered(question)))
    return online.asked_once(fields, prompt, media, target_of(fields, question), question)


def question_rows(
    entries: Iterator[tuple[int, dict[str, Any]]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, question with its ``video_path``) of entries that hold questions or are ones."""
    asked: Counter[str] = Counter()
    for number, entry in entries:
        if "questions" not in entry and "video_path" not in entry:
            yield common.name_of(entry.get("question_id"), f"question {number}"), entry
            continue
        questions, path = entry.get("questions"), entry.get("video_path")
        video = Path(path).stem if isinstance(path, str) and path else f"entry {number}"
        if not isinstance(questions, list):
            reason = entry.get(UNREADABLE, "has no list questions")
            yield video, {UNREADABLE: reason}
            continue
        for raw in questions:
            asked[video] += 1
            question = common.as_record(raw)
            name = common.name_of(question.get("question_id"), f"{video}_{asked[video]}")
            yield name, {**question, "video_path": path}


def read_choice(fields: Fields, row: dict[str, Any], at: str = "") -> Question:
    """The multiple-choice question of a row whose fields are called ``<at><name>``."""
    options = read_options(fields, row.get("options"), f"{at}options")
    answer = online.stated(fields, row.get("answer"), f"{at}answer")
    return common.choice_question(
        common.asked(fields, row.get("question"), f"{at}question"),
        common.chosen_letter(fields, answer, f"{at}answer", options),
        options,
        category=common.asked(fields, row.get("task_type"), f"{at}task_type"),
    )


def read_options(fields: Fields, value: Any, field: str) -> tuple[str, ...]:
    """Options in their order without letters, from a list or from the text of one."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            fields.fail(field, f"must be a list, or the text of one, got {value[:60]!r}")
    entries = enumerate(fields.sequence(value, field))
    texts = [online.stated(fields, entry, f"{field}[{index}]") for index, entry in entries]
    if not 2 <= len(texts) <= len(ascii_uppercase):
        fields.fail(field, f"must hold 2 to {len(ascii_uppercase)} options, got {len(texts)}")
    if texts[0].startswith(("A.", "A)")):
        texts = [_PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text for text in texts]
    if not all(texts):
        fields.fail(f"{field}[{texts.index('')}]", "is a letter without text")
    return tuple(texts)


def lettered(question: Question) -> list[str]:
    """The options as the prompts show them."""
    return [f"{ascii_uppercase[i]}. {option}" for i, option in enumerate(question.options)]


def target_of(fields: Fields, question: Question) -> Target:
    """What the rule needs to know of a multiple-choice question."""
    return Target(question.category, fields.record, (), question.answer)


def context(
    fields: Fields,
    row: dict[str, Any],
    part: Part,
    *,
    root: common.FilePath,
    clip: ClipSpec | None,
) -> Media:
    """The ``clip.context`` seconds of video before the question's ``time_stamp``; 0: all."""
    clip = clip or ClipSpec()
    now = online.seconds(fields, row.get("time_stamp"), "time_stamp")
    start = max(0.0, now - clip.context) if clip.context > 0 else 0.0
    path, field = video(fields, row, part, root)
    return online.looked_back(
        fields, path, field, start=start, end=now, time_field="time_stamp", clip=clip
    )


def video(
    fields: Fields, row: dict[str, Any], part: Part, root: common.FilePath
) -> tuple[str, str]:
    """(path of a question's video, the field that names it)."""
    field = "video_path" if row.get("video_path") is not None else "question_id"
    given = common.asked(fields, row.get(field), field)
    match = _SAMPLE.search(given) if field == "video_path" else _NUMBERED.search(given)
    if field == "question_id" and not match:
        fields.fail(field, f"must end in _<sample>_<question>, got {given!r}")
    candidates = [given] if field == "video_path" else []
    folders = []
    if match:
        sample = f"sample_{match[1]}"
        inside = [f"{top}{sample}" for top in ("", f"{part.short}/", f"{part.title}/")]
        tops = ("", "data/", "videos/")
        flat = [f"{top}{sample}_{part.short}.mp4" for top in ("videos/", *tops[:2])]
        folders = [f"{top}{where}" for where in inside for top in tops]
        candidates += [*flat, *(f"{where}/video.mp4" for where in folders)]
    path = online.below(root, candidates)
    if not os.path.exists(path):
        # some archives keep another name for the one video of a sample
        others = (file for where in folders for file in sorted(Path(root, where).glob("*.mp4")))
        path = str(next(others, path))
    return path, field
