"""IntentBench: people's intentions, emotions and lies in videos with their sound.

Read in HumanMLLM/HumanOmniV2, ``src/open-r1-multimodal/eval/eval_humanomniv2.py`` (commit d9123e6),
and in yogkul2000/AVATAR, ``eval/eval_intent.py`` (c64455d). ``qa.json`` is a list of::

    {"qid": "...", "problem_type": "multiple choice", "problem": "...", "options": ["A. ...", ...],
     "solution": "<answer>B</answer>", "video": "x.mp4", "data_type": "video", "Type": "why"}

``emer_ov_mc`` asks for all letters that apply, ``judge`` for Yes or No. Both become ``exact``, with
a sentence that asks for the answer in that form: letters in order, parted by commas. AVATAR's
script compares sets of letters in the same way; the benchmark gives part of the credit to part of
the letters (F1). Media: ``videos/<video>``, or ``<video>``. Category: ``Type``, else
``problem_type``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Question
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.questions import read_options, user_text

PATTERN = "qa.json"
ALL_LETTERS = "Give the letters of all options that apply, in order, as in A,C."
YES_OR_NO = "Answer with Yes or No."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``qid`` or else by their video and place in the file."""
    for number, row in enumerate(common.records(path, user_turns)):
        video = Path(common.name_of(row.get("video"), "question")).stem
        yield common.name_of(row.get("qid"), f"{video}_{number}"), row


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
    video = common.asked(fields, row.get("video"), "video")
    path = common.found(root, [f"videos/{video}", video])
    question = _question(fields, row)
    media = common.watched(fields, path, "video", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)


def _question(fields: Fields, row: dict[str, Any]) -> Question:
    text = common.asked(fields, row.get("problem"), "problem")
    kind = common.asked(fields, row.get("problem_type"), "problem_type")
    category = fields.text(row.get("Type") or kind, "Type")
    solution = common.asked(fields, row.get("solution"), "solution")
    match = _ANSWER.search(solution)
    truth = common.asked(fields, match[1] if match else solution, "solution")
    if kind == "judge":
        said = truth.rstrip(".").capitalize()
        if said not in ("Yes", "No"):
            fields.fail("solution", f"must be Yes or No, got {truth!r}")
        return Question(f"{text}\n{YES_OR_NO}", said, "exact", category=category)
    options = read_options(fields, row.get("options"), "options")
    if kind == "multiple choice":
        letter = common.chosen_letter(fields, truth, "solution", options)
        return common.choice_question(text, letter, options, category=category)
    if kind != "emer_ov_mc":
        known = "multiple choice, emer_ov_mc or judge"
        fields.fail("problem_type", f"must be {known}, got {kind!r}")
    given = [common.chosen_letter(fields, x, "solution", options) for x in truth.split(",")]
    listed = user_text(Question(text, "", options=options))
    answer = ",".join(sorted(set(given)))
    return Question(f"{listed}\n{ALL_LETTERS}", answer, "exact", category=category)
