"""OVO-Bench in its official form: one question on the video up to each test point.

The records are those of ``ovo``; prompts from JoeLeelyf/OVO-Bench, ``utils/OVOBench.py`` (commit
19677d2), with its slips and without the blanks that its indentation leaves. A record of CRR, SSR or
REC makes one dialogue for each test point, ``<id>_<i>``; every other record makes one. Shown is the
cut video if it is there, else the source from 0 to the point rounded up; only with sources do
intervals over videos know which test points share one.

``question.answer``: the option's letter (``gt``); of SSR and CRR ``Yes`` where ``type`` is 1, else
``No``; of REC ``count``. ``target.subset`` and the question's category: the task. ``target.item``:
the record's ``id``. ``target.times``: the point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Question, Target
from turnwise_jax.data.sources.benchmarks import common, online, ovo
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.qa import Media
from turnwise_jax.data.sources.questions import read_options

PATTERN = ovo.PATTERN
_ONLY = "Do not include any additional text or explanation in your response."
_YES_OR_NO = f"Answer only with “Yes” or “No”.\n{_ONLY}"
CHOICE_PROMPT = (
    "Question: {}\nOptions:\n{}\n"
    "Respond only with the letter corresponding to your chosen option (e.g., A, B, C).\n" + _ONLY
)
REC_PROMPT = (
    "You're watching a video in which people may perform a certain type of action repetively.\n"
    "The person performing this kind of action are referred to as 'they' in the following "
    "statement.\n"
    "You're task is to count how many times have different people in the video perform this kind "
    "of action in total.\n"
    "One complete motion counts as one.\n"
    "Now, answer the following question: {}\n"
    "Provide your answer as a single number (e.g., 0, 1, 2, 3…) indicating the total count.\n"
    + _ONLY
)
SSR_PROMPT = (
    "You're watching a tutorial video which contain a sequential of steps.\n"
    "The following is one step from the whole procedures:\n{}\n"
    "Your task is to determine if the man or woman in the video is currently performing this "
    "step.\n" + _YES_OR_NO
)
CRR_PROMPT = (
    "You're responsible of answering questions based on the video content.\n"
    "The following question are relevant to the latest frames, i.e. the end of the video.\n{}\n"
    "Decide whether existing visual content, especially latest frames, i.e. frames that near the "
    "end of the video, provide enough information for answering the question.\n" + _YES_OR_NO
)


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``id``; those with test points once for each, under ``point``."""
    for name, row in ovo.records(path, user_turns):
        infos = row.get("test_info")
        if row.get("task") not in ovo.FORWARD_TASKS or not isinstance(infos, list) or not infos:
            yield name, row
            continue
        for point in range(len(infos)):
            yield f"{name}_{point}", {**row, "point": point}


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
    task = ovo.task_of(fields, row, ovo.CHOICE_TASKS + ovo.FORWARD_TASKS)
    if task in ovo.FORWARD_TASKS:
        at = f"test_info[{row.get('point', 0)}]"
        info = ovo.points(fields, row)[row.get("point", 0)]
        prompt, question = _forward(fields, row, task, info, at)
        field, time = f"{at}.realtime", info.get("realtime")
    else:
        prompt, question = _choice(fields, row, task)
        field, time = "realtime", row.get("realtime")
    point = online.seconds(fields, time, field)
    media = _media(fields, row, name, root, clip, point, field)
    target = Target(task, common.name_of(row.get("id"), name), (point,), question.answer)
    return online.asked_once(fields, prompt, media, target, question)


def _media(
    fields: Fields,
    row: dict[str, Any],
    name: str,
    root: common.FilePath,
    clip: ClipSpec | None,
    point: float,
    field: str,
) -> Media:
    """The cut video, or the source from 0 to the point (seconds) that ``field`` gives."""
    cut = ovo.chunk(root, name)
    if cut is not None:
        return common.watched(fields, cut, "video", root="", clip=clip)
    path = ovo.source(fields, row, root)
    end = float(math.ceil(point))
    return online.looked_back(
        fields, path, "video", start=0.0, end=end, time_field=field, clip=clip
    )


def _choice(fields: Fields, row: dict[str, Any], task: str) -> tuple[str, Question]:
    options = read_options(fields, row.get("options"), "options")
    index = fields.number(row.get("gt"), "gt")
    if not index.is_integer() or not 0 <= index < len(options):
        fields.fail("gt", f"must be the place of one of {len(options)} options, got {row['gt']!r}")
    text = common.asked(fields, row.get("question"), "question")
    listed = [f"{ascii_uppercase[i]}. {option};" for i, option in enumerate(options)]
    question = common.choice_question(text, ascii_uppercase[int(index)], options, category=task)
    return CHOICE_PROMPT.format(text, " ".join(listed)), question


def _forward(
    fields: Fields, row: dict[str, Any], task: str, info: dict[str, Any], at: str
) -> tuple[str, Question]:
    """What is asked at one test point, and its truth."""
    if task == "REC":
        count = fields.number(info.get("count"), f"{at}.count")
        if not count.is_integer() or count < 0:
            fields.fail(f"{at}.count", f"must be a whole number from 0, got {count:g}")
        activity = common.asked(fields, row.get("activity"), "activity")
        text = f"How many times did they {activity}?"
        return REC_PROMPT.format(text), Question(text, str(int(count)), "numeric", category=task)
    kind = fields.number(info.get("type"), f"{at}.type")
    if kind not in (0, 1):
        fields.fail(f"{at}.type", f"must be 0 or 1, got {kind:g}")
    if task == "SSR":
        text, prompt = common.asked(fields, info.get("step"), f"{at}.step"), SSR_PROMPT
    else:
        text, prompt = common.asked(fields, row.get("question"), "question"), CRR_PROMPT
    answer = "Yes" if kind else "No"
    return prompt.format(text), Question(text, answer, "exact", category=task)
