"""Bounds of video frames: which file they come from, how they count, that examples follow them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from video_files import write_video

from turnwise_jax.data.images import FrameSpec, VideoSize, patchify, smart_resize
from turnwise_jax.data.pipeline import load_example, probe_grids
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.errors import InputError

# Qwen3-VL's published settings
HALF = [0.5, 0.5, 0.5]
PATCHES = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
IMAGES = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    **PATCHES,
    "image_mean": HALF,
    "image_std": HALF,
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
VIDEOS = {
    **IMAGES,
    "size": {"longest_edge": 25165824, "shortest_edge": 4096},
    "video_processor_type": "Qwen3VLVideoProcessor",
}


def checkpoint(folder, images=IMAGES, videos=VIDEOS):
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    if videos is not None:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))
    return folder


def test_published_settings_of_qwen3_vl(tmp_path):
    spec = FrameSpec.from_pretrained(checkpoint(tmp_path))
    assert spec == FrameSpec(
        patch_size=16,
        min_pixels=65536,
        max_pixels=16777216,
        image_mean=tuple(HALF),
        image_std=tuple(HALF),
        video=VideoSize(4096, 25165824, True),
    )


def test_without_a_file_of_their_own_videos_follow_the_images(tmp_path):
    spec = FrameSpec.from_pretrained(checkpoint(tmp_path, videos=None))
    assert spec.video is None
    assert smart_resize(720, 1280, spec, frames=8) == smart_resize(720, 1280, spec)


def test_the_nested_form_is_read(tmp_path):
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": IMAGES, "video_processor": VIDEOS})
    )
    assert FrameSpec.from_pretrained(tmp_path).video == VideoSize(4096, 25165824, True)


@pytest.mark.parametrize("video", [None, VideoSize(3136, 50176), VideoSize(4096, 99999, True)])
def test_what_is_saved_is_read_again(tmp_path, video):
    spec = FrameSpec(max_pixels=99999, video=video)
    spec.save(tmp_path)
    assert FrameSpec.from_pretrained(tmp_path) == spec


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"patch_size": 14}, "patch_size"),
        ({"image_mean": [0.1, 0.5, 0.5]}, "image_mean"),
        ({"size": {"shortest_edge": 9, "longest_edge": 3}}, "size"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame"),
    ],
)
def test_settings_that_cannot_work_are_named(tmp_path, change, field):
    checkpoint(tmp_path, videos={**VIDEOS, **change})
    with pytest.raises(InputError) as caught:
        FrameSpec.from_pretrained(tmp_path)
    assert caught.value.file == str(tmp_path / "video_preprocessor_config.json")
    assert caught.value.field == field


def test_bounds_of_each_frame_do_not_depend_on_their_number():
    spec = FrameSpec(video=VideoSize(3136, 50176))
    assert smart_resize(720, 1280, spec) == (728, 1288)
    assert smart_resize(720, 1280, spec, frames=2) == (168, 280)
    assert smart_resize(720, 1280, spec, frames=200) == (168, 280)


def test_bounds_of_the_whole_video_shrink_frames_as_it_grows():
    spec = FrameSpec(patch_size=16, video=VideoSize(4096, 32 * 32 * 64, True))
    areas = [np.prod(smart_resize(720, 1280, spec, frames=n)) * n for n in (2, 8, 32)]
    assert all(32 * 32 * 24 <= area <= 32 * 32 * 64 for area in areas)


@pytest.mark.parametrize("whole", [False, True])
def test_examples_follow_the_bounds_of_videos(tmp_path, whole):
    path = str(write_video(tmp_path / "v.mp4", 20))
    spec = FrameSpec(
        patch_size=4, min_pixels=64, max_pixels=9999, video=VideoSize(64, 64 * 30, whole)
    )
    frames = tuple(Frame(path, 0.2 * i) for i in range(5))
    dialogue = Dialogue("q", (Turn(frames, "", 1.0, video=True), Turn(frames[:2], "", 2.0)))
    example = load_example(dialogue, spec)
    assert example.grids == tuple(probe_grids(dialogue, spec))
    assert example.grids[0] == ((3, 4, 4) if whole else (3, 8, 12))
    assert example.grids[1:] == ((1, 12, 16),) * 2
    grey = np.full((5, 48, 64, 3), 7, np.uint8)
    assert patchify(grey, spec, video=True).grid == example.grids[0]
