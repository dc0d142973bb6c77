"""Clips with sound through a tiny policy that hears: kill and resume, controls, hints."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from sound_files import beeps, write_sound

from tests.tiny import load_policy, make_checkpoint
from turnwise_jax.cli.main import main
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.pipeline import load_example, probe_grids
from turnwise_jax.data.records import ClipSpec
from turnwise_jax.errors import InputError
from turnwise_jax.eval import generate as module
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.controls import EXAMPLE_CONTROLS, muted
from turnwise_jax.eval.predictions import PredictionWriter, read_predictions
from turnwise_jax.eval.report import Report
from turnwise_jax.eval.run import evaluate
from turnwise_jax.rollout.prompts import prompt_batch
from turnwise_jax.rollout.shapes import Shapes

CLIP = ClipSpec(frames=4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("omni")
    make_checkpoint(directory, family="qwen2_5_omni", marker_gain=1.0)
    return directory


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Five clips of their own length, pitch and number of beeps, a question about each."""
    root = tmp_path_factory.mktemp("clips")
    rows = []
    for n in range(5):
        starts = [0.2 + 0.3 * k for k in range(n + 1)]
        samples = beeps(2.0 + 0.2 * n, starts, tone=500.0 + 200 * n)
        write_sound(root / f"{n}.mp4", samples, codec="aac", video_seconds=2.0 + 0.2 * n)
        row = {"id": f"q{n}", "video": f"{n}.mp4", "category": ("sound", "sight")[n % 2]}
        if n % 2:
            row |= {"question": "What moves?", "options": ["the square", "the circle"]}
            row["answer"] = "A"
        else:
            row |= {"question": "How many beeps?", "answer": n + 1, "audio_cues": "beeps"}
        rows.append(row)
    write_rows(root / "qa.jsonl", rows)
    write_rows(root / "hinted.jsonl", [row | {"hint": "Listen to the end."} for row in rows])
    return root


def write_rows(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def config(checkpoint, records, tmp_path):
    return make_config(checkpoint, records / "qa.jsonl", tmp_path / "out")


def make_config(checkpoint, path, directory):
    config = eval_config("qa")
    config.update(dir=str(directory), resamples=20)
    config.policy.update(checkpoint=str(checkpoint), dtype="float32")
    config.data.update(path=str(path), frames=CLIP.frames)
    config.decoding.update(max_new_tokens=6, batch_size=2)
    return config


@pytest.fixture(scope="module")
def whole(checkpoint, records, tmp_path_factory):
    """An uninterrupted evaluation: (report, its folder)."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    return evaluate(make_config(checkpoint, records / "qa.jsonl", directory)), directory


def test_every_answer_is_kept_with_its_question(whole, records):
    report, directory = whole
    said = read_predictions(directory / "predictions.jsonl")
    assert [p.id for p in said] == [f"q{n}" for n in range(5)]
    assert [p.question.answer for p in said] == ["1", "A", "3", "A", "5"]
    assert said[1].question.options == ("the square", "the circle")
    assert {p.question.category for p in said} == {"sound", "sight"}
    assert [p.cluster for p in said] == [str(records / f"{n}.mp4") for n in range(5)]
    assert all(len(p.replies) == 1 for p in said)
    assert any(p.replies[0] for p in said)
    assert report.counts["numeric"] == 3
    assert report.metrics["chance/sight"] == 50.0
    assert report == Report.read(directory / "report.json")


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_killed_evaluation_goes_on_and_ends_the_same(kept, whole, config, monkeypatch):
    """The process dies while it writes a line; what is whole is not asked again."""
    report, directory = whole
    written, write = [], PredictionWriter.write

    def dying(self, prediction):
        if len(written) == kept:
            self._handle.write(b'{"id": "q')
            raise KeyboardInterrupt
        written.append(prediction.id)
        write(self, prediction)

    monkeypatch.setattr(PredictionWriter, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        evaluate(config)
    monkeypatch.setattr(PredictionWriter, "write", write)
    asked = []
    loaded = module._load
    monkeypatch.setattr(module, "_load", lambda d, **how: asked.append(d.id) or loaded(d, **how))
    assert evaluate(config) == report
    assert sorted(asked) == [f"q{n}" for n in range(kept, 5)]
    ours, theirs = (read_predictions(f"{d}/predictions.jsonl") for d in (config.dir, directory))
    assert sorted(ours, key=lambda p: p.id) == theirs


def test_predictions_are_marked_again_without_model_or_media(whole, tmp_path, capsys):
    report, directory = whole
    command = [
        *("eval", "--config=configs/eval/qa.py", f"--config.dir={tmp_path}"),
        *(f"--predictions={directory}/predictions.jsonl", "--config.resamples=20"),
    ]
    assert main(command) == 0
    assert Report.read(tmp_path / "report.json") == report
    assert "accuracy/sight" in capsys.readouterr().out


def test_a_hint_changes_neither_prompt_nor_prediction(checkpoint, records, whole, tmp_path):
    policy = load_policy(checkpoint)
    plain, hinted = (
        load_dialogues("qa", records / f"{name}.jsonl", clip=CLIP)[0] for name in ("qa", "hinted")
    )
    for one, other in zip(plain, hinted, strict=True):
        assert other.question.hint == "Listen to the end."
        grids = probe_grids(one, policy.spec)
        np.testing.assert_array_equal(
            policy.template.context(one, grids).tokens, policy.template.context(other, grids).tokens
        )
    config = make_config(checkpoint, records / "hinted.jsonl", tmp_path / "out")
    report, directory = whole
    assert evaluate(config) == report
    said = (tmp_path / "out/predictions.jsonl").read_text()
    assert said == (directory / "predictions.jsonl").read_text()


@pytest.fixture(scope="module")
def batches(checkpoint, records):
    """What the policy is shown: as the records say, and under each control."""
    policy = load_policy(checkpoint)
    dialogues, _ = load_dialogues("qa", records / "qa.jsonl", clip=CLIP)
    grids = [probe_grids(d, policy.spec) for d in dialogues]
    shapes = Shapes.for_dialogues(dialogues, grids, policy, batch_size=5, new_tokens=6)
    heard = policy.template.sound
    examples = [load_example(d, policy.spec, heard) for d in dialogues]
    found = {"none": prompt_batch(examples, policy, shapes)}
    for name, change in EXAMPLE_CONTROLS.items():
        found[name] = prompt_batch([change(e, heard) for e in examples], policy, shapes)
    return found


def test_mute_and_blank_leave_every_token_in_its_place(batches):
    plain = batches["none"]
    for name in EXAMPLE_CONTROLS:
        for before, after in zip(
            jax.tree.leaves(plain.context), jax.tree.leaves(batches[name].context), strict=True
        ):
            np.testing.assert_array_equal(before, after)
    sights = {name: np.asarray(batch.media.vision.patches) for name, batch in batches.items()}
    sounds = {name: np.asarray(batch.media.audio.mel) for name, batch in batches.items()}
    np.testing.assert_array_equal(sights["none"], sights["muted"])
    np.testing.assert_array_equal(sounds["none"], sounds["blanked"])
    assert np.unique(sounds["muted"]).size <= 2  # silence, and padding
    assert np.unique(sounds["none"]).size > 1000
    assert set(np.unique(sights["blanked"])) <= {0, 128}
    assert np.unique(sights["none"]).size > 10


def shown_under(control, config, monkeypatch) -> list:
    """The examples that the policy is run on."""
    shown = []

    class Watched(module.StreamEngine):
        def rollout(self, params, examples, **options):
            shown.extend(examples)
            return super().rollout(params, examples, **options)

    monkeypatch.setattr(module, "StreamEngine", Watched)
    config.control = control
    report = evaluate(config)
    assert report.counts["questions"] == 5
    return shown


def test_a_muted_evaluation_hears_nothing(config, monkeypatch):
    shown = shown_under("muted", config, monkeypatch)
    assert all(np.ptp(e.sounds[0]) == 0 for e in shown)
    assert all(np.ptp(e.patches[0]) > 0 for e in shown)
    config.control = "none"
    with pytest.raises(InputError, match=r"another control \('muted', now 'none'\)"):
        evaluate(config)


def test_a_blanked_evaluation_sees_nothing(config, monkeypatch):
    shown = shown_under("blanked", config, monkeypatch)
    assert all((e.patches[0] == 128).all() for e in shown)
    assert all(np.ptp(e.sounds[0]) > 0 for e in shown)


def test_a_swapped_evaluation_sees_and_hears_one_other_clip(config, records, monkeypatch):
    shown = shown_under("swapped", config, monkeypatch)
    plain, _ = load_dialogues("qa", records / "qa.jsonl", clip=CLIP)
    used = set()
    for example, before in zip(shown, plain, strict=True):
        (turn,) = example.dialogue.turns
        assert {f.path for f in turn.frames} == {turn.audio.path}
        assert turn.audio.path != before.turns[0].audio.path
        assert example.dialogue.question == before.question
        used.add(turn.audio.path)
    assert len(used) == 5


def test_without_sound_there_is_nothing_to_mute(config):
    config.control, config.data.sound = "muted", False
    with pytest.raises(InputError, match="no dialogue has a sound") as caught:
        evaluate(config)
    assert caught.value.field == "control"


def test_muting_is_what_a_silent_track_would_be(checkpoint, records, tmp_path):
    """The same clip written again with nothing on its track gives the muted example."""
    policy = load_policy(checkpoint)
    (dialogue, *_), _ = load_dialogues("qa", records / "qa.jsonl", clip=CLIP)
    write_sound(tmp_path / "0.mp4", np.zeros(96000), codec="aac", video_seconds=2.0)
    write_rows(
        tmp_path / "qa.jsonl",
        [{"id": "q0", "video": "0.mp4", "question": "How many beeps?", "answer": 1}],
    )
    (silent,), _ = load_dialogues("qa", tmp_path / "qa.jsonl", clip=CLIP)
    sound = policy.template.sound
    expected = load_example(silent, policy.spec, sound)
    found = muted(load_example(dialogue, policy.spec, sound), sound)
    np.testing.assert_array_equal(found.sounds[0], expected.sounds[0])
    np.testing.assert_array_equal(found.patches[0], expected.patches[0])


def test_answers_on_a_mesh_are_those_of_one_device(whole, config, tmp_path, monkeypatch):
    """Two dialogues at once are no equal parts for four: the rest are padding."""
    placed = []

    class Watched(module.StreamEngine):
        def rollout(self, params, examples, **options):
            placed.extend(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(params))
            return super().rollout(params, examples, **options)

    monkeypatch.setattr(module, "StreamEngine", Watched)
    config.mesh.update(data=2, fsdp=2, tensor=2)
    report, directory = whole
    assert evaluate(config) == report
    said = (tmp_path / "out/predictions.jsonl").read_text()
    assert said == (directory / "predictions.jsonl").read_text()
    assert set(placed) == {8}
