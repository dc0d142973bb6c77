"""Frames by name, as a judge asks for them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from video_files import grey, numbers, write_video

from turnwise_jax.data.pictures import reference, references, referred
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.errors import InputError


def seen(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)))


def about(*frames: Frame) -> Dialogue:
    turn = Turn(frames=frames, text="What?", time=0.0, reply=None, video=False)
    return Dialogue("d", (turn,), file="d.jsonl")


@pytest.mark.parametrize("time", [0.0, 0.7, 1.2000000000000002, 1.9])
def test_a_frame_of_a_video_comes_back_by_its_name(tmp_path, time):
    path = write_video(tmp_path / "a#b v.mp4", 20)
    name = reference(Frame(str(path), time))
    assert name.startswith(f"{path}#t=")
    assert numbers(seen(referred(name))[None]) == [round(time * 10)]


def test_an_image_comes_back_by_its_name(tmp_path):
    Image.fromarray(grey(7)).save(tmp_path / "seven.png")
    name = reference(Frame(str(tmp_path / "seven.png")))
    assert name == str(tmp_path / "seven.png")
    assert numbers(seen(referred(name))[None]) == [7]


def test_frames_of_all_turns_count():
    one = about(Frame("0.png"), Frame("1.png")).turns[0]
    two = about(Frame("v.mp4", 2.5)).turns[0]
    assert references(Dialogue("d", (one, two))) == ("0.png", "1.png", "v.mp4#t=2.5")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError) as caught:
        referred(f"{tmp_path}/none.mp4#t=1.5")
    assert "none.mp4" in str(caught.value)
