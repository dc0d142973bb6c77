"""Sound from real files: beeps where they were put, features equal to the reference extractor."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sound_files import BEEP, LOUD, beeps, onsets, write_sound
from transformers import WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import (
    _get_feat_extract_output_lengths,
)
from video_files import write_video

from turnwise_jax.data import tracks
from turnwise_jax.data.audio import (
    SoundSpec,
    log_mel,
    read_audio,
    sound_frames,
    sound_samples,
    sound_slices,
    sound_tokens,
)
from turnwise_jax.data.records import Sound
from turnwise_jax.errors import InputError

SPEC = SoundSpec()
AT = [0.5, 2.0, 7.25, 13.0]
KINDS = {  # name -> codec, rate, layout, seconds of video
    "a.wav": ("pcm_s16le", 48000, "mono", 0),
    "u8.wav": ("pcm_u8", 8000, "mono", 0),
    "s24.wav": ("pcm_s24le", 44100, "stereo", 0),
    "f32.wav": ("pcm_f32le", 11025, "5.1", 0),
    "a.mp3": ("libmp3lame", 44100, "stereo", 0),
    "a.flac": ("flac", 22050, "mono", 0),
    "a.webm": ("libopus", 48000, "stereo", 0),
    "v.webm": ("libopus", 48000, "mono", 15),
    "v.mp4": ("aac", 44100, "stereo", 15),
    "a.m4a": ("aac", 16000, "mono", 0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    for name, (codec, rate, layout, video) in KINDS.items():
        channels = {"mono": 1, "stereo": 2, "5.1": 6}[layout]
        samples = np.stack([beeps(15, AT, rate=rate)] * channels)
        write_sound(
            folder / name, samples, rate=rate, codec=codec, layout=layout, video_seconds=video
        )
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_beeps_are_heard_when_and_as_loud_as_they_are(folder, name):
    samples = read_audio(folder / name, 0, 15)
    assert samples.dtype == np.float32
    assert samples.shape == (240_000,)
    np.testing.assert_allclose(onsets(samples), AT, atol=0.004)
    inside = samples[round(2.02 * 16000) : round(2.08 * 16000)]
    assert np.sqrt(np.mean(inside**2)) == pytest.approx(LOUD / np.sqrt(2), rel=0.06)
    assert np.abs(samples[3 * 16000 : 7 * 16000]).max() < 0.01


@pytest.mark.parametrize("name", KINDS)
def test_a_range_is_the_same_part_of_the_whole(folder, name):
    """To within the clock of the container: WebM rounds to a millisecond, 1/16 of the tone."""
    part = read_audio(folder / name, 7.0, 8.0)
    np.testing.assert_allclose(onsets(part), [0.25], atol=0.004)
    whole = read_audio(folder / name, 0, 15)[7 * 16000 : 8 * 16000]
    if not name.endswith("webm"):
        np.testing.assert_allclose(part, whole, atol=1e-4)


def test_one_track_gives_any_ranges_in_any_order(folder, monkeypatch):
    """Overlaps, jumps, steps back; rising neighbours never seek."""
    ranges = [(0, 4), (4, 8), (7.5, 8), (13, 14), (6, 8), (0, 1), (14, 15), (1.5, 2.5)]
    with tracks.Track(folder / "v.mp4") as track:
        got = [track.read(start, end, 16000) for start, end in ranges]
    for samples, (start, end) in zip(got, ranges, strict=True):
        np.testing.assert_allclose(
            samples, read_audio(folder / "v.mp4", start, end), atol=1e-4, err_msg=f"{start}..{end}"
        )
    monkeypatch.setattr(tracks.Track, "_go", None)
    with tracks.Track(folder / "v.mp4") as track:
        pieces = [track.read(start, start + 2, 16000) for start in range(0, 14, 2)]
    whole = read_audio(folder / "v.mp4", 0, 14)
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-4)


def test_channels_are_averaged(tmp_path):
    left, right = beeps(1, [0.2]), beeps(1, [0.6])
    path = write_sound(tmp_path / "lr.wav", np.stack([left, right]), layout="stereo")
    samples = read_audio(path, 0, 1)
    for start in (0.2, 0.6):
        peak = np.abs(samples[round(start * 16000) : round((start + BEEP) * 16000)]).max()
        assert peak == pytest.approx(LOUD / 2, rel=0.02)


def test_tones_above_half_the_rate_do_not_fold_back(tmp_path):
    time = np.arange(48_000) / 48_000
    path = write_sound(tmp_path / "high.wav", LOUD * np.sin(2 * np.pi * 12_000 * time))
    assert np.abs(read_audio(path, 0.1, 0.9)).max() < 1e-3


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_time_counts_from_the_first_frame_of_the_video(tmp_path, suffix):
    codec = {"mp4": "aac", "webm": "libopus"}[suffix]
    late = write_sound(
        tmp_path / f"late.{suffix}", beeps(4, [0.5]), codec=codec, delay=1.0, video_seconds=5
    )
    samples = read_audio(late, 0, 4)
    np.testing.assert_allclose(onsets(samples), [1.5], atol=0.004)
    assert not samples[: round(0.9 * 16000)].any()
    early = write_sound(
        tmp_path / f"early.{suffix}", beeps(5, [2.5]), codec=codec, video_seconds=3, video_delay=1.0
    )
    np.testing.assert_allclose(onsets(read_audio(early, 0, 3)), [1.5], atol=0.004)


def test_silence_fills_what_the_track_does_not_have(tmp_path):
    path = write_sound(tmp_path / "short.wav", np.full(8000, 0.25), rate=16000)
    samples = read_audio(path, 0.4, 1.0)
    assert len(samples) == 9600
    assert samples[800] == pytest.approx(0.25, abs=1e-3)
    assert not samples[1700:].any()
    assert not read_audio(path, 50, 51).any()


def test_bad_files_are_named(tmp_path, folder):
    empty, text = tmp_path / "empty.wav", tmp_path / "text.wav"
    empty.touch()
    text.write_text("no sound " * 100)
    mute = write_video(tmp_path / "mute.mp4", 5)
    whole = write_sound(
        tmp_path / "whole.m4a", beeps(15, AT), codec="aac", options={"movflags": "faststart"}
    )
    cut = tmp_path / "cut.m4a"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    for path, message in (
        (tmp_path / "none.mp4", "no such file"),
        (empty, "is empty"),
        (text, "cannot be read as a sound"),
        (mute, "no audio track"),
        (cut, "may be cut off"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_audio(path, 0, 15)
        assert str(path) in str(caught.value)
    np.testing.assert_array_equal(read_audio(cut, 0, 1.5), read_audio(whole, 0, 1.5))


def test_damage_inside_is_reported(tmp_path, folder):
    data = bytearray((folder / "a.flac").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    path = tmp_path / "damaged.flac"
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be decoded"):
        read_audio(path, 0, 15)


@pytest.mark.parametrize("span", [(1.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (0.0, float("nan"))])
def test_ranges_must_rise_from_zero(folder, span):
    with pytest.raises(InputError, match="times start at 0 and rise"):
        read_audio(folder / "a.wav", *span)
    with pytest.raises(InputError, match="times start at 0 and rise"):
        sound_samples(Sound("a.wav", *span), SPEC)


@pytest.fixture(scope="module")
def extractor():
    return WhisperFeatureExtractor(feature_size=128, chunk_length=12)


def reference(extractor, samples):
    """What ``Qwen2_5OmniProcessor._process_audio`` asks for, cut by its mask, in plain NumPy."""
    padded = extractor.pad(
        {"input_features": [samples[:, None]]},
        padding="max_length",
        max_length=extractor.n_samples,
        truncation=True,
        return_attention_mask=True,
    )
    mask = padded["attention_mask"][0, :: extractor.hop_length]
    features = extractor._np_extract_fbank_features([padded["input_features"][0, :, 0]], "cpu")
    return features[0][:, : mask.sum()]


@pytest.mark.parametrize("count", [1, 159, 160, 161, 641, 31_999, 32_000, 191_900, 192_000])
@pytest.mark.parametrize("burst", ["start", "end"])
def test_features_equal_the_reference_extractor(extractor, count, burst):
    """Also where the loudest frame is one that the mask cuts off."""
    rng = np.random.default_rng(count)
    samples = rng.normal(0, 0.01, count).astype(np.float32)
    samples[slice(0, 60) if burst == "start" else slice(-60, None)] *= 80
    want = reference(extractor, samples)
    got = log_mel(samples, SoundSpec(longest=12))
    assert got.dtype == np.float32
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_features_equal_the_extractor_as_it_is_called(extractor):
    samples = np.random.default_rng(0).normal(0, 0.1, 50_001).astype(np.float32)
    out = extractor(
        [samples], sampling_rate=16000, padding="max_length", return_attention_mask=True
    )
    want = np.asarray(out["input_features"])[0][:, : int(np.sum(out["attention_mask"]))]
    np.testing.assert_allclose(log_mel(samples, SoundSpec(longest=12)), want, atol=2e-5)


def test_silence_has_features():
    np.testing.assert_array_equal(
        log_mel(np.zeros(1600, np.float32), SPEC), np.full((128, 10), -1.5)
    )


def test_tokens_are_those_of_the_processor():
    frames = np.arange(3, 1200)
    want = _get_feat_extract_output_lengths(frames)
    assert [sound_tokens(int(n)) for n in frames] == want.tolist()
    assert [sound_tokens(n) for n in (1, 2)] == [0, 0]


def test_lengths_follow_from_the_seconds():
    assert sound_frames(Sound("a", 3.0, 7.0), SPEC) == 400
    assert sound_frames(Sound("a", 0.0, 0.0301), SPEC) == 4
    assert [sound_slices(n, SPEC) for n in (200, 201, 400)] == [1, 2, 2]
    with pytest.raises(InputError, match="too short"):
        sound_frames(Sound("a", 0.0, 0.02), SPEC)
    with pytest.raises(InputError, match="exceeds the 300 s"):
        sound_frames(Sound("a", 0.0, 300.1), SPEC)


PUBLISHED = {  # preprocessor_config.json of Qwen2.5-Omni, pictures and sound side by side
    "chunk_length": 300,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "patch_size": 14,
    "processor_class": "Qwen2_5OmniProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "temporal_patch_size": 2,
}


def test_published_settings_are_the_defaults(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PUBLISHED))
    assert SoundSpec.from_pretrained(tmp_path) == SPEC


def test_settings_are_read_from_either_file(tmp_path):
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"feature_extractor": {"feature_size": 80, "chunk_length": 30}})
    )
    assert SoundSpec.from_pretrained(tmp_path) == SoundSpec(mel_bins=80, longest=30)


def test_bad_settings_are_named(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    for name, value in (("dither", 0.1), ("hop_length", 0), ("feature_size", 12.5)):
        file.write_text(json.dumps({**PUBLISHED, name: value}))
        with pytest.raises(InputError) as caught:
            SoundSpec.from_pretrained(tmp_path)
        assert (caught.value.file, caught.value.field) == (str(file), name)


def test_written_settings_build_the_reference_extractor(tmp_path):
    spec = SoundSpec(mel_bins=80, longest=30)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(spec.to_dict()))
    extractor = WhisperFeatureExtractor.from_pretrained(tmp_path)
    assert (extractor.feature_size, extractor.n_samples) == (80, 480_000)
    assert SoundSpec.from_pretrained(tmp_path) == spec
