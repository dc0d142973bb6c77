"""Bounds of video frames: which file they come from, how they count, that examples follow them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from video_files import write_video

from turnwise_jax.data.images import FrameSpec, VideoSize, frame_grid, patchify, smart_resize
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


# a bound from a config in place of the checkpoint's


def tokens(spec: FrameSpec, size=(720, 1280), **video) -> int:
    return int(np.prod(frame_grid(*size, spec, **video))) // spec.merge_size**2


STOCK = FrameSpec(max_pixels=12_845_056)  # Qwen2.5-VL and Qwen2.5-Omni as published


@pytest.mark.parametrize(
    ("spec", "max_pixels", "most"),
    [
        (STOCK, 100_352, 128),
        (STOCK, 50_176, 64),
        (FrameSpec(patch_size=16, min_pixels=65_536, max_pixels=16_777_216), 131_072, 128),
        (FrameSpec(patch_size=16, min_pixels=65_536, max_pixels=16_777_216), 51_200, 50),
    ],
)
def test_a_frame_has_at_most_the_tokens_that_a_config_allows(spec, max_pixels, most):
    assert spec.at_most(0) is spec
    own = spec.at_most(max_pixels)
    assert tokens(spec) > 800
    assert 0.8 * most < tokens(own) <= most
    for size in ((240, 320), (1080, 1920), (1280, 720), (100, 90), (20, 20), (500, 500)):
        assert tokens(own, size) <= most
    assert own.at_most(max_pixels) == own


@pytest.mark.parametrize("video", [VideoSize(3136, 602_112), VideoSize(4096, 25_165_824, True)])
def test_the_bound_is_of_each_frame_of_a_video_too(video):
    spec = FrameSpec(patch_size=16, video=video).at_most(131_072)
    for frames in (2, 8, 90):
        assert tokens(spec, frames=frames, video=True) <= 128 * frames / 2
        assert smart_resize(720, 1280, spec, frames=frames) == smart_resize(720, 1280, spec)


def test_a_bound_below_one_token_is_refused():
    with pytest.raises(InputError, match="one token is 784 pixels") as caught:
        FrameSpec().at_most(783)
    assert caught.value.field == "data.max_pixels"
    assert tokens(FrameSpec().at_most(784)) == 1


@pytest.mark.parametrize("form", ["one file", "two files", "nested", "with sound"])
def test_a_directory_is_given_other_bounds_and_keeps_the_rest(tmp_path, form):
    sound = {"feature_size": 128, "sampling_rate": 16000} if form == "with sound" else {}
    if form == "nested":
        whole = {"image_processor": IMAGES, "video_processor": VIDEOS, "other": 1}
        (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    else:
        images = {**IMAGES, **sound}
        checkpoint(tmp_path, images, VIDEOS if form == "two files" else None)
    before = FrameSpec.from_pretrained(tmp_path)
    assert before.settings_in(tmp_path) == {}
    spec = before.at_most(131_072)
    for name, text in spec.settings_in(tmp_path).items():
        raw = json.loads(text)
        known = json.loads((tmp_path / name).read_text())
        assert raw.keys() >= known.keys()
        assert {**sound, "other": raw.get("other")}.items() <= {"other": None, **raw}.items()
        (tmp_path / name).write_text(text)
    assert FrameSpec.from_pretrained(tmp_path) == spec
    assert spec.settings_in(tmp_path) == {}
