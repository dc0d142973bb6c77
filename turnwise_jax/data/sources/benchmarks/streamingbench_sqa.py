"""StreamingBench, Sequential Question Answering: five questions that build on one another.

Read in copies of THUNLP-MT/StreamingBench, ``src/benchmark/StreamingBenchSQA.py``.
``questions_sqa.json`` is a list of lists, each of five entries with one question as in
``streamingbench``; ``Sequential_Question_Answering.csv`` has a row for each, and those of a sample
follow one another. The prompt names the questions asked before about the same video, with their
options and true answers, not with what the model said.

Shown are the ``data.context`` seconds before the question; 0 shows all, as the first version of the
official script did. Category, ``target`` and media as in ``streamingbench``, with ``sqa`` and
``Sequential Question Answering`` in the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common, online, streamingbench
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.errors import InputError

PATTERN = "questions_sqa.json"
PROMPT = (
    "You are an advanced video question-answering AI assistant. You have been provided with a "
    "video and a multiple-choice question related to the video. Your task is to carefully analyze "
    "the video and the provided context to answer the question, choosing from the four options "
    "provided. Respond with only the letter (A, B, C, or D) of the correct option.\n\n{}\n\n"
    "Here is the question. Answer it and don't confuse it with the previous conversation.\n"
    "Question: {}\n\nOptions:\n{}\n\nThe best option is:"
)
_CONTEXT = (
    "Here are the contextual information related to the video. Please answer the questions based "
    "on the contextual information: "
)
_EARLIER = (
    "At timestamp {}, the following question and answer occurred: Question: {}; Options: {}; "
    "Answer: {}; "
)
SQA = streamingbench.Part("sqa", "Sequential Question Answering")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, each with those asked before about its video under ``earlier``."""
    entries: Iterator[tuple[int, dict[str, Any]]] = online.table(path, user_turns)
    if Path(path).suffix.lower() == ".json":
        entries = enumerate(_flat(path, user_turns))
    about, earlier = "", list[dict[str, Any]]()
    for name, row in streamingbench.question_rows(entries):
        video = row.get("video_path") or name.rpartition("_")[0]
        if video != about:
            about, earlier = video, []
        yield name, {**row, "earlier": tuple(earlier)}
        earlier.append(row)


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One question as an open turn, the ones before it as text.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    question = streamingbench.read_choice(fields, row)
    media = streamingbench.context(fields, row, SQA, root=root, clip=clip)
    told = "".join(_told(fields, e, f"earlier[{i}].") for i, e in enumerate(row["earlier"]))
    listed = "\n".join(streamingbench.lettered(question))
    prompt = PROMPT.format(f"{_CONTEXT}{told}" if told else "", question.text, listed)
    target = streamingbench.target_of(fields, question)
    return online.asked_once(fields, prompt, media, target, question)


def _told(fields: Fields, row: dict[str, Any], at: str) -> str:
    """A question asked before, with its true answer."""
    question = streamingbench.read_choice(fields, row, at)
    time = common.asked(fields, row.get("time_stamp"), f"{at}time_stamp")
    listed = ", ".join(streamingbench.lettered(question))
    return _EARLIER.format(time, question.text, listed, question.answer)


def _flat(path: common.FilePath, user_turns: common.FilePath | None) -> Iterator[dict[str, Any]]:
    """The entries of a list, or of lists within it."""
    groups = common.document(path, user_turns)
    if not isinstance(groups, list):
        raise InputError("must hold a list of records", file=path)
    for group in groups:
        yield from map(common.as_record, group if isinstance(group, list) else [group])
