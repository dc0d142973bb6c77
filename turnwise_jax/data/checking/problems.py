"""What can be wrong with a record."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """``fatal``: such a record can be neither trained on nor evaluated."""

    fatal: bool
    meaning: str


KINDS = {
    "unreadable": Kind(True, "the record is not in the format of its source"),
    "duplicate_id": Kind(True, "an earlier record has this id, and the policy answers both"),
    "missing_media": Kind(True, "a media file is not there"),
    "broken_media": Kind(True, "a media file cannot be read"),
    "no_such_frame": Kind(True, "a frame lies past the end of its video"),
    "same_id": Kind(False, "an earlier record has this id"),
    "future_frame": Kind(False, "a frame shows what comes after the decision of its turn"),
    "no_window": Kind(False, "the policy decides, and nothing says when a reply is due"),
    "no_decision": Kind(False, "a window without a decision: nobody can answer in time"),
    "no_decision_at_all": Kind(False, "no window of the record has a decision"),
    "empty_window": Kind(False, "a window that ends where it starts"),
    "no_answer": Kind(False, "a window whose answer has no text"),
    "overlapping_windows": Kind(False, "two windows are open at once"),
    "window_past_end": Kind(False, "a window ends after the video"),
    "stray_reply": Kind(False, "a given reply outside every window"),
    "unanswered_window": Kind(False, "a window that no given reply falls into"),
    "empty_reply": Kind(False, "a given reply without text, which counts as speaking"),
    "near_silence": Kind(False, "a given reply that is almost NO REPLY, and counts as speaking"),
    "shared_prefix": Kind(False, "right answers that the reward takes for repeated prefixes"),
}


class Problem(NamedTuple):
    """One thing that is wrong; ``kind`` is a key of ``KINDS``.

    ``file`` and ``row`` (from 1) say where the record stands.
    """

    record: str
    kind: str
    field: str
    message: str
    file: str = ""
    row: int = 0

    @property
    def fatal(self) -> bool:
        return KINDS[self.kind].fatal

    def __str__(self) -> str:
        field = f"field {self.field!r}: " if self.field else ""
        return f"{self.file}: record {self.record!r}: {field}{self.kind}: {self.message}"
