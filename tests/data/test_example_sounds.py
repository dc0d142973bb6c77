"""Examples with sound: features in turn order, errors located, memory counted; clips with sound."""

from __future__ import annotations

import numpy as np
import pytest
from sound_files import beeps, write_sound
from video_files import write_video

from turnwise_jax.data import example as loading
from turnwise_jax.data import pipeline
from turnwise_jax.data.audio import SoundSpec, log_mel, read_audio, sound_tokens
from turnwise_jax.data.clip import Question, clip_dialogue
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.pipeline import load_example, make_loader
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.errors import InputError

SPEC = FrameSpec(patch_size=4, min_pixels=64, max_pixels=64 * 12)
HEARD = SoundSpec()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heard")
    write_sound(folder / "v.mp4", beeps(10, [1, 4, 7.5]), codec="aac", video_seconds=10)
    write_sound(folder / "a.wav", beeps(3, [0.2], rate=8000), rate=8000)
    write_video(folder / "mute.mp4", 20)
    return folder


def mixed(folder) -> Dialogue:
    """Two files in turn, out of order, and turns without sound."""
    video, speech = str(folder / "v.mp4"), str(folder / "a.wav")
    return Dialogue(
        "mixed",
        (
            Turn((Frame(video, 6.0), Frame(video, 8.0)), "", 8.0, "Yes.", True, Sound(video, 4, 8)),
            Turn((), "Well?", 8.0),
            Turn((), "", 8.0, audio=Sound(speech, 0.0, 2.5)),
            Turn((Frame(video, 1.0),), "", 9.0, audio=Sound(video, 0.5, 1.5)),
            Turn((Frame(video, 1.0),), "", 10.0, audio=Sound(video, 0.5, 1.5)),
        ),
        file="d.jsonl",
    )


def test_an_example_holds_the_features_of_each_sound_in_turn_order(folder):
    dialogue = mixed(folder)
    example = load_example(dialogue, SPEC)
    sounds = [turn.audio for turn in dialogue.turns if turn.audio]
    assert [s.shape for s in example.sounds] == [(128, 400), (128, 250), (128, 100), (128, 100)]
    for got, sound in zip(example.sounds, sounds, strict=True):
        want = log_mel(read_audio(sound.path, sound.start, sound.end), HEARD)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, atol=1e-4)
    slices = example.sound_slices
    assert [part.shape[1] for part in slices] == [200, 200, 200, 50, 100, 100]
    np.testing.assert_array_equal(np.concatenate(slices[:2], axis=1), example.sounds[0])
    assert sum(sound_tokens(part.shape[1]) for part in slices[:2]) == sound_tokens(400)
    assert len(example.slices) == 3


def test_every_sound_file_is_opened_once(folder, monkeypatch):
    opened = []
    original = loading.Track

    def counted(path):
        opened.append(path)
        return original(path)

    monkeypatch.setattr(loading, "Track", counted)
    load_example(mixed(folder), SPEC)
    assert sorted(opened) == sorted(str(folder / name) for name in ("v.mp4", "a.wav"))


def test_the_checkpoint_decides_the_features(folder):
    example = load_example(mixed(folder), SPEC, SoundSpec(mel_bins=80))
    assert example.sounds[0].shape == (80, 400)
    loader = make_loader([mixed(folder)], SPEC, sound=SoundSpec(mel_bins=80), batch_size=1, seed=0)
    assert next(loader)[0].sounds[0].shape == (80, 400)


@pytest.mark.parametrize(
    ("sound", "message"),
    [
        (("mute.mp4", 0.0, 1.0), "mute.mp4: has no audio track"),
        (("gone.wav", 0.0, 1.0), "gone.wav: no such file"),
        (("a.wav", 2.0, 1.0), "times start at 0 and rise"),
        (("a.wav", 0.0, 0.01), "too short to be heard"),
    ],
)
def test_a_bad_sound_names_record_and_field(folder, sound, message):
    name, start, end = sound
    good = Turn((), "", 1.0, audio=Sound(str(folder / "a.wav"), 0.0, 1.0))
    bad = Turn((), "", 2.0, audio=Sound(str(folder / name), start, end))
    with pytest.raises(InputError, match=message) as caught:
        load_example(Dialogue("r", (good, bad), file="d.jsonl"), SPEC)
    error = caught.value
    assert (error.file, error.record, error.field) == ("d.jsonl", "r", "turns[1].audio")


@pytest.mark.parametrize(("spare", "decoded"), [(0, 1), (-1, 2)])
def test_sounds_count_in_the_memory_of_kept_examples(folder, monkeypatch, spare, decoded):
    original, times = pipeline.load_example, []

    def counted(*args):
        times.append(args[0].id)
        return original(*args)

    monkeypatch.setattr(pipeline, "load_example", counted)
    example = original(mixed(folder), SPEC)
    room = sum(a.nbytes for a in (*example.patches, *example.sounds)) + spare
    how = {"batch_size": 1, "seed": 0, "epochs": 2, "keep_bytes": room}
    assert len(list(make_loader([mixed(folder)], SPEC, **how))) == 2
    assert len(times) == decoded


@pytest.mark.parametrize("video", [False, True])
def test_a_clip_plays_its_sound_without_gaps(folder, video):
    path = folder / "v.mp4"
    dialogue = clip_dialogue(
        path, [Question("What?", 1.0)], start=1.0, frame_interval=1.0, sound=True, video=video
    )
    assert [turn.audio for turn in dialogue.turns] == [
        Sound(str(path), 1.0 + 2 * k, 3.0 + 2 * k) for k in range(4)
    ]
    assert {turn.video for turn in dialogue.turns} == {video}
    assert [sound.shape for sound in load_example(dialogue, SPEC).sounds] == [(128, 200)] * 4
    assert {turn.audio for turn in clip_dialogue(path, [Question("What?")]).turns} == {None}


def test_a_mute_clip_has_no_sound_to_play(folder):
    with pytest.raises(InputError, match="no audio track"):
        clip_dialogue(folder / "mute.mp4", [Question("?")], frame_interval=0.5, sound=True)
