"""How each model family writes a turn's frames and sound into the token stream.

A style gives the part of a user turn that stands before its text, as ids and runs of placeholders::

    qwen2_5_vl    <|vision_start|>pads<|vision_end|>                     an image or a whole video
    qwen3_vl      the same for images; a video is its rows, each behind its time:
                  <0.5 seconds><|vision_start|>pads<|vision_end|>
    qwen2_5_omni  <|vision_bos|>pads<|vision_eos|>, <|audio_bos|>pads<|audio_eos|>, and for a video
                  with its sound, two seconds of video and two of sound in turn:
                  <|vision_bos|><|audio_bos|>video audio video audio<|audio_eos|><|vision_eos|>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turnwise_jax.data.records import Frame
from turnwise_jax.data.tokens import Vocab

Grid = tuple[int, int, int]

POSITIONS_PER_SECOND = 25  # Qwen2.5-Omni: a sound token lasts 40 ms
POSITIONS_PER_CHUNK = 50  # of interleaved video and sound: 2 s


class MediaSpan(NamedTuple):
    """A run of consecutive placeholders of one image, video or sound in a piece of tokens.

    ``start``: offset of its first placeholder. ``kind``: "image", "video" or "audio". ``grid``:
    (t, h, w) in patches of this run, t*h*w / merge_size**2 placeholders; (n, 1, 1) for n
    placeholders of a sound. ``seconds_per_grid``: time one step of t covers (videos). ``slice``:
    running number, in the dialogue, of the run's first vision slice; for sound of the first audio
    slice of the whole sound. ``row``: temporal rows (sound: tokens) of the same medium before this
    run. ``joined``: counts its positions from where the run before it began (sound inside video).
    """

    start: int
    grid: Grid
    kind: str
    seconds_per_grid: float | None
    slice: int
    row: int = 0
    joined: bool = False

    def tokens(self, merge_size: int) -> int:
        """Number of placeholders."""
        return math.prod(self.grid) // (1 if self.kind == "audio" else merge_size**2)

    def rows(self, first: int, count: int, *, joined: bool = False) -> MediaSpan:
        """Rows ``first .. first + count - 1`` of this run as a run of their own."""
        offset = 0 if self.kind == "audio" else first
        return self._replace(
            grid=(count, *self.grid[1:]),
            slice=self.slice + offset,
            row=self.row + first,
            joined=joined,
        )


class TurnMedia(NamedTuple):
    """What one user turn shows and plays: a span per image or video, at most one sound.

    ``frames``: of the video, if the turn has one; ``times``: when each is shown, seconds.
    """

    spans: tuple[MediaSpan, ...]
    sound: MediaSpan | None = None
    times: tuple[float, ...] = ()


Part = list[int] | MediaSpan
Style = Callable[[TurnMedia, Vocab, int], Iterator[Part]]


def plain(media: TurnMedia, vocab: Vocab, temporal_patch_size: int) -> Iterator[Part]:
    """Qwen2.5-VL: every image and video between vision markers, no time in the text."""
    for span in media.spans:
        yield from _between(vocab.vision_start, span, vocab.vision_end)


def stamped(media: TurnMedia, vocab: Vocab, temporal_patch_size: int) -> Iterator[Part]:
    """Qwen3-VL: each row of a video behind the mean time of its first and last frame."""
    for span in media.spans:
        if span.kind != "video":
            yield from _between(vocab.vision_start, span, vocab.vision_end)
            continue
        for row in range(span.grid[0]):
            first = row * temporal_patch_size
            last = min(first + temporal_patch_size, len(media.times)) - 1
            time = (media.times[first] + media.times[last]) / 2
            yield vocab.encode(f"<{time:.1f} seconds>")
            yield from _between(vocab.vision_start, span.rows(row, 1), vocab.vision_end)


def with_sound(media: TurnMedia, vocab: Vocab, temporal_patch_size: int) -> Iterator[Part]:
    """Qwen2.5-Omni: a video's sound inside of it, any other sound after the frames."""
    sound = media.sound
    if sound is None:
        yield from plain(media, vocab, temporal_patch_size)
    elif len(media.spans) == 1 and media.spans[0].kind == "video":
        yield [vocab.vision_start, _known(vocab.audio_start)]
        yield from _interleaved(media.spans[0], sound)
        yield [_known(vocab.audio_end), vocab.vision_end]
    else:
        yield from plain(media, vocab, temporal_patch_size)
        yield from _between(_known(vocab.audio_start), sound, _known(vocab.audio_end))


STYLES: dict[str, Style] = {
    "qwen2_5_vl": plain,
    "qwen3_vl": stamped,
    "qwen2_5_omni": with_sound,
}
HEARING = frozenset({"qwen2_5_omni"})


def frame_times(frames: tuple[Frame, ...], before: float, time: float) -> tuple[float, ...]:
    """When the frames of a turn are shown: their own seconds, else evenly up to the turn's.

    Args:
      frames: of one turn. before, time: of the last turn and of this one, seconds.
    """
    step = (time - before) / max(1, len(frames))
    return tuple(
        before + (index + 1) * step if frame.second is None else frame.second
        for index, frame in enumerate(frames)
    )


def _between(start: int, span: MediaSpan, end: int) -> Iterator[Part]:
    yield [start]
    yield span
    yield [end]


def _interleaved(video: MediaSpan, sound: MediaSpan) -> Iterator[MediaSpan]:
    """Two seconds of rows, two seconds of sound, and so on; all on one clock.

    A row stands in the chunk in which it begins, as in the reference for rows of up to 2 s. (For
    longer ones the reference cuts a row in two after its first token.)
    """
    seconds = video.seconds_per_grid or 0.0
    chunks = [
        int(row * seconds * POSITIONS_PER_SECOND // POSITIONS_PER_CHUNK)
        for row in range(video.grid[0])
    ]
    count = max(chunks[-1] + 1, math.ceil(sound.grid[0] / POSITIONS_PER_CHUNK))
    joined = False
    for chunk in range(count):
        heard = chunk * POSITIONS_PER_CHUNK
        for span, first, rows in (
            (video, _index(chunks, chunk), chunks.count(chunk)),
            (sound, heard, min(POSITIONS_PER_CHUNK, sound.grid[0] - heard)),
        ):
            if rows > 0:
                yield span.rows(first, rows, joined=joined)
                joined = True


def _index(chunks: list[int], chunk: int) -> int:
    return chunks.index(chunk) if chunk in chunks else 0


def _known(marker: int | None) -> int:
    if marker is None:
        raise ValueError("the vocabulary has no markers for sound")
    return marker
