"""AV-Odyssey: sounds with pictures or a video, options with letters.

Read in EvolvingLMMs-Lab/lmms-eval, ``lmms_eval/tasks/av_odyssey`` (commit 2bb5e98), and in
yogkul2000/AVATAR, ``eval/eval_avodyssey.py`` (c64455d). The rows of AV_Odyssey_Bench_LMMs_Eval, as
a JSON array, JSON lines or parquet::

    {"question_id": "...", "question_type_id": 1, "data_type": "image, audio", "subfield": "Timbre",
     "question": "... [img1] ... [audio1]", "options": ["A. ...", "B. ...", "C. ...", "D. ..."],
     "answer": "B", "image_path": ["..."], "video_path": null, "audio_path": ["..."]}

Paths start at ``data.root``, or there once more at their own first folder, as archives unpacked in
place leave them. Category: ``subfield``. A turn holds its pictures or one video, then one sound,
then text, so the tags ``[img1]``, ``[audio1]``, ``[video1]`` stay in the text and number the media.
Questions that compare several sounds do not fit and are refused: read with ``on_bad_record="skip"``
for the others. AV_Odyssey_Bench itself, which keeps media as bytes in the table, is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.qa import Media
from turnwise_jax.data.sources.questions import read_options

PATTERN = "av_odyssey*.json"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``question_id``."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("question_id"), f"question {number}"), row


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
      InputError: names file, record and field; among others for more than one sound or video.
    """
    fields = common.checked(file, name, row)
    options = read_options(fields, row.get("options"), "options")
    question = common.choice_question(
        common.asked(fields, row.get("question"), "question"),
        common.chosen_letter(fields, row.get("answer"), "answer", options),
        options,
        category=common.asked(fields, row.get("subfield"), "subfield"),
    )
    return common.open_dialogue(fields, question, _media(fields, row, root, clip))


def _media(
    fields: Fields, row: dict[str, Any], root: common.FilePath, clip: ClipSpec | None
) -> Media:
    images, videos, sounds = (
        _paths(fields, row, field, root) for field in ("image_path", "video_path", "audio_path")
    )
    for field, paths in (("video_path", videos), ("audio_path", sounds)):
        if len(paths) > 1:
            fields.fail(field, f"holds {len(paths)} files; a turn has room for one")
    if videos and images:
        fields.fail("video_path", "stands beside image_path; a turn has room for one of them")
    sound = sounds[0] if sounds else None
    names = ("image_path", "audio_path")
    heard = common.pictured(fields, images, sound, names=names, root=root, clip=clip)
    if not videos:
        return heard
    shown = common.watched(fields, videos[0], "video_path", root=root, clip=clip)
    # The sound is a recording of its own: all of it is heard, whatever the video's length.
    return shown._replace(sound=heard.sound) if sounds else shown


def _paths(fields: Fields, row: dict[str, Any], field: str, root: common.FilePath) -> list[str]:
    """The paths of a field that may be missing, null or a list with nulls."""
    given = fields.sequence(row.get(field) or [], field)
    texts = fields.texts([path for path in given if path], field)
    return [common.found(root, [path, f"{path.split('/')[0]}/{path}"]) for path in texts]
