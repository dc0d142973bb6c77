"""Small files in the formats of online video benchmarks, with real videos, and how to read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from benchmark_files import SAMPLES
from PIL import Image
from video_files import write_video

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue

SECONDS = 13.0  # of every whole video
CUT = 5.0  # s of every cut one
CLIP = ClipSpec(frames=4, sound=True, interval=2.0, turn_frames=2, context=4.0)
_WHOLE = [
    "proactive_videoqa/WEB/videos/kite-_1.52.mp4",
    "proactive_videoqa/EGO/videos/4c0f-720-733.mp4",
    "proactive_videoqa/VAD/videos/Fire001_x264.mp4",
    "ovo_bench/src_videos/Ego4D/kitchen.mp4",
    "streamingbench/videos/sample_1_real.mp4",
    "streamingbench/Real-Time Visual Understanding/sample_2/video.mp4",
    "streamingbench/videos/sample_1_sqa.mp4",
    "streamingbench/sqa/sample_2/video.mp4",
    "streamingbench/videos/sample_1_proactive.mp4",
    "streamingbench/Proactive Output/sample_3/Active Output_3.mp4",
]
_HEARD = "proactive_videoqa/TV/videos/ward_frames=ward_s01e02_seg01_clip_03.mp4"
_CUT = ["ovo_bench/chunked_videos/1.mp4", "ovo_bench/chunked_videos/3_0.mp4"]


def write_online(made: Path, top: Path) -> Path:
    """All samples with their videos below ``top``; what they are copied from goes to ``made``."""
    write_video(made / "whole.mp4", int(2 * SECONDS), rate=2)
    write_video(made / "heard.mp4", int(2 * SECONDS), rate=2, audio_seconds=SECONDS)
    write_video(made / "cut.mp4", int(2 * CUT), rate=2)
    shutil.copytree(SAMPLES, top, dirs_exist_ok=True)
    media = {**dict.fromkeys(_WHOLE, "whole"), **dict.fromkeys(_CUT, "cut"), _HEARD: "heard"}
    for path, name in media.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / f"{name}.mp4", top / path)
    frames = top / "proactive_views/frames/kite-_1.52"
    frames.mkdir(parents=True)
    for number in range(1, 5):
        picture = Image.fromarray(np.full((48, 64, 3), 40 * number, np.uint8))
        picture.save(frames / f"{number:06d}.png")
    return top


def read(source: str, path: Path, clip: ClipSpec = CLIP, **settings) -> list[Dialogue]:
    """The records of a file, or of a folder."""
    return load_dialogues(source, path, clip=clip, **settings)[0]


def told(dialogue: Dialogue) -> list[tuple[float, str]]:
    return [(turn.time, turn.text) for turn in dialogue.turns]


def shown(dialogue: Dialogue) -> list[list[float]]:
    return [[frame.time for frame in turn.frames] for turn in dialogue.turns]


def by_id(dialogues: list[Dialogue]) -> dict[str, Dialogue]:
    named = {dialogue.id: dialogue for dialogue in dialogues}
    assert len(named) == len(dialogues)
    return named
