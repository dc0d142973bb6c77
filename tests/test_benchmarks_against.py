"""Comparisons with google-tunix, with whole iterations in torch and with readers of videos: both
sides are given the same, and what is not the same is not timed."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from benchmark_scripts import SMALL, script

TEXT = [
    *("--hidden=64", "--layers=2", "--vocabulary=500", "--rounds=1", "--prompts=2", "--group=2"),
    *("--context-words=12", "--turns=2", "--turn-words=3", "--reply-tokens=6"),
]


@pytest.fixture(scope="module")
def tunix():
    return script("tunix")


@pytest.fixture(scope="module")
def text(tunix, tmp_path_factory):
    work = tunix.Work(tmp_path_factory.mktemp("tunix"), tunix.arguments(TEXT))
    work.save()
    return work


@pytest.fixture(scope="module")
def decode_video():
    return script("decode_video")


@pytest.fixture(scope="module")
def clip(decode_video, tmp_path_factory):
    return decode_video.Clip(tmp_path_factory.mktemp("clip"), 4, 0.4, (160, 96))


def test_tunix_is_given_our_rows(tunix, text):
    batch, rows = text.batch(shared=False), tunix.padded_rows(text)
    pad = text.policy.vocab.eos
    for n, valid in enumerate(batch.valid_NT):
        joined = np.concatenate([rows["prompt"][n], rows["completion"][n]])
        np.testing.assert_array_equal(joined[joined != pad], batch.tokens_NT[n, valid])
        acted = batch.action_target_NA[n, batch.action_mask_NA[n]]
        np.testing.assert_array_equal(rows["completion"][n, rows["is_action"][n]], acted)
    assert len(set(batch.valid_NT.sum(axis=1))) > 1, "the test needs ragged rows"
    assert (rows["prompt"][:, -1] != pad).all()


def test_tunix_is_given_our_sizes_our_pieces_and_the_decoder_alone(text):
    settings = json.loads((text.folder / "settings.json").read_text())
    assert settings["model"]["embed_dim"] == 64
    assert settings["model"]["num_layers"] == 2
    assert settings["model"]["rope_theta"] == 10_000
    from safetensors.numpy import load_file

    names = list(load_file(text.folder / "qwen2" / "model.safetensors"))
    assert all(name.startswith(("model.", "lm_head.")) for name in names)
    first, later = settings["pieces"][0]
    assert first == text.prompts.context.tokens[0][: text.prompts.context.length[0]].tolist()
    assert 0 < len(later) < len(first)


def test_a_greedy_choice_needs_no_mask(text):
    head = np.asarray(text.policy.params["text"]["head"]["kernel"][...])
    assert not head[:, ~text.policy.allowed].any()
    assert head[:, text.policy.allowed].any(axis=0).all()


def test_a_worker_that_stops_says_why(tunix, text, tmp_path):
    worker = tunix.Tunix(sys.executable, tmp_path)
    try:
        with pytest.raises(SystemExit, match=r"(?s)tunix stopped:.*No module named 'tunix"):
            worker.ask("versions")
    finally:
        worker.close()


def test_text_alone_is_timed_without_tunix(tunix, tmp_path, capsys):
    report = tunix.measure(tunix.arguments(TEXT), tmp_path)
    assert set(report["steps"]) == {"shared", "plain"}
    assert report["equal_replies"] == {"engine": 1.0}
    json.dumps(report)
    tunix.print_report(report)
    out = capsys.readouterr().out
    assert "one GRPO update" in out
    assert "2 prompts x 2 rollouts, 2 turns" in out


def test_an_iteration_has_phases_that_add_up(tmp_path, capsys):
    end_to_end = script("end_to_end")
    args = end_to_end.arguments([*SMALL, "--rounds=1", "--no-torch"])
    report = end_to_end.measure(args, tmp_path)
    seconds = {name: row["ours"]["seconds"]["median"] for name, row in report["phases"].items()}
    total = seconds.pop("iteration")
    assert list(seconds) == ["rollout", "score", "advantage", "update"]
    assert total == pytest.approx(sum(seconds.values()))
    first, second = report["updates"]["ours"]
    assert first["grad_norm"] > 0.1, "there must be something to learn"
    assert second["logp"] != first["logp"]
    json.dumps(report)
    end_to_end.print_report(report)
    assert "iteration" in capsys.readouterr().out


def test_the_same_frames_are_read_and_the_cache_gives_the_same(decode_video, clip, capsys):
    variants = clip.variants()
    assert {"ours", "ours_cached", "transformers"} <= set(variants)
    differences = decode_video.check(clip, variants)
    assert differences["ours"] == 0
    assert differences["transformers"] == 0
    assert clip.ours().shape == (4, clip.height, clip.width, 3)
    assert clip.cache.hits > 0


def test_other_frames_are_not_timed(decode_video, clip):
    with pytest.raises(SystemExit, match="late took another frame for 0"):
        decode_video.check(clip, {"late": lambda: clip.ours(1)})
    with pytest.raises(SystemExit, match="early took another frame for 10"):
        decode_video.check(clip, {"early": lambda: clip.ours(-1)})


def test_readers_that_are_not_installed_are_named(decode_video, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(decode_video.NEEDS, "opencv", ("no_such_package",))
    monkeypatch.setitem(decode_video.NEEDS, "decord", ("no_such_package", "numpy"))
    args = decode_video.arguments(
        ["--frames=2", "--every=0.4", "--size", "160", "96", "--rounds=1"]
    )
    report = decode_video.measure(args, tmp_path)
    assert list(report["times"]) == ["ours", "ours_cached", "transformers"]
    assert report["missing"]["decord"] == ["no_such_package"]
    json.dumps(report)
    decode_video.print_report(report)
    assert "OpenCV: left out, not installed: no_such_package" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tunix", "end_to_end", "decode_video", "input", "evaluation"])
def test_each_comparison_says_its_command(name):
    assert f"python benchmarks/{name}.py" in script(name).__doc__
