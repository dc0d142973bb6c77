"""How long sound files last, whatever their headers say, without decoding them."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sound_files import beeps, write_sound
from video_files import write_video

from turnwise_jax.data.audio import read_audio
from turnwise_jax.data.tracks import track_seconds
from turnwise_jax.data.video import probe
from turnwise_jax.errors import InputError

FRAME = 1152 / 48000  # s of the longest codec frame below: what padding may add at each end


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.wav", "pcm_s16le"),
        ("a.flac", "flac"),
        ("a.mp3", "libmp3lame"),
        ("a.aac", "aac"),  # no header tells its length
        ("a.m4a", "aac"),
        ("a.ogg", "libopus"),
        ("a.mka", "pcm_s16le"),
    ],
)
@pytest.mark.parametrize("delay", [0.0, 1.5])
def test_a_sound_file_lasts_as_long_as_its_track(tmp_path, name, codec, delay):
    path = write_sound(tmp_path / name, beeps(7.3, [0.5, 6.9]), codec=codec, delay=delay)
    seconds = track_seconds(path)
    assert seconds == pytest.approx(7.3, abs=2.5 * FRAME)
    samples = read_audio(path, 0.0, seconds)
    assert np.abs(samples[int(6.9 * 16000) :]).max() > 0.3


def test_uncompressed_sound_is_exact(tmp_path):
    path = write_sound(tmp_path / "a.wav", np.zeros(44100 * 2 + 1), rate=44100)
    assert track_seconds(path) == 2 + 1 / 44100


def test_a_video_lasts_as_long_as_its_frames(tmp_path):
    path = write_sound(tmp_path / "v.mp4", beeps(5, [1]), codec="aac", video_seconds=3)
    assert track_seconds(path) == probe(path).duration == 3.0


def test_a_file_that_changes_is_read_again(tmp_path):
    path = write_sound(tmp_path / "a.wav", beeps(2, [1]))
    assert track_seconds(path) == 2.0
    write_sound(path, beeps(3, [1]))
    assert track_seconds(path) == 3.0


def test_what_has_no_sound_is_refused(tmp_path):
    mute = write_video(tmp_path / "mute.mp4", 5)
    text = tmp_path / "a.wav"
    text.write_text("no sound")
    empty = tmp_path / "empty.wav"
    empty.touch()
    for path, reason in (
        (mute, "has no audio track"),
        (text, "cannot be read as a sound"),
        (empty, "the file is empty"),
        (tmp_path / "gone.wav", "no such file"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(InputError, match=reason) as caught:
            track_seconds(path)
        assert caught.value.file == os.fspath(path)
