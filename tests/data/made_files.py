"""Videos with annotations as users have them, to make sets of, and entries without a file."""

from __future__ import annotations

import json
from pathlib import Path

from video_files import write_video

from turnwise_jax.data.clip import Question
from turnwise_jax.data.making.entries import Entry
from turnwise_jax.data.records import SILENCE, Dialogue, Window
from turnwise_jax.data.video import VideoInfo

# Decisions at 4, 8, ..., 28 s and at 4, ..., 52 s with the default settings.
KITCHEN, TOUR = 30.0, 54.0  # s of the two videos
LIST = [
    {
        "video": "kitchen.mp4",
        "question": "What is the cook doing?",
        "answers": [
            {"span": ["0:18", "0:23"], "text": "He washes the knife."},
            {"span": [4.0, 9.5], "text": " He cuts an onion. "},
            {"span": [13, 14], "text": "He blinks."},
        ],
    },
    {
        "id": "city",
        "video": "trips/tour.mp4",
        "system": "You are a guide.",
        "questions": [
            {"text": "Name the buildings.", "time": 2},
            {"text": "Which one is oldest?", "time": "00:00:42"},
        ],
        "answers": [
            {"span": [17, 29], "text": "A church."},
            {"span": [30, 44], "text": "A mill."},
            {"span": [42, 99], "text": "The mill."},
        ],
    },
]


def write_list(folder: Path, entries: list = LIST) -> Path:
    """The list and its two videos."""
    (folder / "trips").mkdir(parents=True)
    write_video(folder / "kitchen.mp4", int(KITCHEN), rate=1, audio_seconds=KITCHEN)
    write_video(folder / "trips/tour.mp4", int(TOUR), rate=1)
    path = folder / "list.json"
    path.write_text(json.dumps(entries))
    return path


def said(dialogue: Dialogue) -> dict[float, str]:
    """The replies that are given, by time."""
    given = (turn for turn in dialogue.turns if turn.reply not in (None, SILENCE))
    return {turn.time: turn.reply for turn in given}


def entry(windows: list[Window], duration: float = 60.0, questions=()) -> Entry:
    questions = questions or [Question("Q?")]
    info = VideoInfo(duration, 1.0, 64, 48, 0, False)
    return Entry("e", "/v.mp4", info, tuple(questions), tuple(windows))


def spans(*given: tuple[float, float]) -> list[Window]:
    return [Window(a, b, "Q?", f"answer {i}") for i, (a, b) in enumerate(given)]
