"""Running a policy over dialogues: resumable, in order, and never mixing settings."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from tests.tiny import load_policy, make_checkpoint
from turnwise_jax.data import example
from turnwise_jax.data.example import load_example
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval import generate as module
from turnwise_jax.eval.controls import forced_to_speak, swap_frames
from turnwise_jax.eval.generate import Decoding, generate
from turnwise_jax.eval.predictions import read_predictions
from turnwise_jax.eval.settings import claim, fingerprint, settings_of
from turnwise_jax.eval.throughput import Meter
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.train.metrics import count_compiles

GREEDY = Decoding(new_tokens=6, batch_size=2)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    make_checkpoint(directory, marker_gain=1.0)
    return load_policy(directory)


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    """Five short videos as folders of noise pictures."""
    root = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    return [make_dialogue(root / f"v{i}", rng) for i in range(5)]


def make_dialogue(folder, rng, *, turns: int = 3) -> Dialogue:
    folder.mkdir()
    made = []
    for k in range(turns):
        file = folder / f"{k}.png"
        Image.fromarray(rng.integers(0, 256, (56, 56, 3), np.uint8)).save(file)
        text = "What is the red square doing?" if k == 0 else ""
        made.append(Turn((Frame(str(file)),), text, 2.0 * (k + 1), "NO REPLY" if not k else None))
    return Dialogue(folder.name, tuple(made), (Window(3.0, 5.0, "q", "a"),), history=("said",))


@pytest.fixture(scope="module")
def whole(policy, dialogues, tmp_path_factory):
    """An uninterrupted run: (predictions, bytes of its file)."""
    path = tmp_path_factory.mktemp("whole") / "p.jsonl"
    return generate(policy, dialogues, path, decoding=GREEDY), path.read_bytes()


def copy_run(whole, policy, dialogues, path, size) -> None:
    """The files of a run that was killed after writing `size` bytes."""
    claim(path, settings_of(policy, dialogues, dataclasses.asdict(GREEDY)))
    path.write_bytes(whole[1][:size])


def test_a_bucket_compiles_with_its_first_batch_only(policy, tmp_path):
    """Dialogues of all lengths, the last batch not full."""
    rng = np.random.default_rng(1)
    found = [make_dialogue(tmp_path / f"d{i}", rng, turns=2 + i % 4) for i in range(7)]
    so_far = []

    class Watch(Meter):
        def add(self, dialogues, decisions):
            super().add(dialogues, decisions)
            so_far.append((compiles.count, {len(d.turns) for d in dialogues}))

    with count_compiles() as compiles:
        generate(policy, found, tmp_path / "p.jsonl", decoding=GREEDY, meter=Watch())
    counts = [count for count, _ in so_far]
    assert counts[0] > 0
    assert len(counts) == 4
    assert len({max(turns) for _, turns in so_far}) > 1
    assert counts == [counts[0]] * 4


def test_every_dialogue_comes_once_in_order_with_its_record(whole, dialogues):
    predictions, _ = whole
    assert [p.id for p in predictions] == [d.id for d in dialogues]
    for prediction, dialogue in zip(predictions, dialogues, strict=True):
        assert prediction.times == (4.0, 6.0)
        assert len(prediction.replies) == 2
        assert prediction.windows == dialogue.windows
        assert prediction.history == ("said",)
        assert prediction.cluster.endswith(dialogue.id)
    assert any(reply for p in predictions for reply in p.replies)


@pytest.mark.parametrize("lines_and_half", [0.5, 1.0, 2.5, 4.5])
def test_a_killed_run_goes_on_and_ends_the_same(
    whole, policy, dialogues, tmp_path, lines_and_half, monkeypatch
):
    predictions, data = whole
    ends = [0, *(i + 1 for i, byte in enumerate(data) if byte == ord("\n"))]
    kept, part = int(lines_and_half), lines_and_half % 1
    size = ends[kept] + int(part * (ends[kept + 1] - ends[kept]))
    path = tmp_path / "p.jsonl"
    copy_run(whole, policy, dialogues, path, size)
    run = []
    monkeypatch.setattr(
        module,
        "load_example",
        lambda d, *how, load=module.load_example: run.append(d) or load(d, *how),
    )
    assert generate(policy, dialogues, path, decoding=GREEDY) == predictions
    assert sorted(d.id for d in run) == sorted(d.id for d in dialogues[kept:])
    assert sorted(path.read_bytes().splitlines()) == sorted(data.splitlines())


def test_what_was_decoded_before_comes_from_disk(whole, policy, dialogues, tmp_path, monkeypatch):
    cache = FrameCache(tmp_path / "cache", 10**8)
    for dialogue in dialogues:
        load_example(dialogue, policy.spec, policy.template.sound, cache)
    monkeypatch.setattr(example, "read_image", None)
    made = generate(policy, dialogues, tmp_path / "p.jsonl", decoding=GREEDY, cache=cache)
    assert made == whole[0]
    assert cache.hits > 0


def test_a_finished_file_needs_no_media(whole, policy, dialogues, tmp_path, monkeypatch):
    path = tmp_path / "p.jsonl"
    copy_run(whole, policy, dialogues, path, len(whole[1]))
    monkeypatch.setattr(module, "probe_grids", None)
    assert generate(policy, dialogues, path, decoding=GREEDY) == whole[0]


def test_other_settings_are_refused(whole, policy, dialogues, tmp_path):
    path = tmp_path / "p.jsonl"
    copy_run(whole, policy, dialogues, path, 0)
    changed = dataclasses.replace(GREEDY, new_tokens=7)
    with pytest.raises(InputError, match=r"another new_tokens \(6, now 7\)"):
        generate(policy, dialogues, path, decoding=changed)
    with pytest.raises(InputError, match="another dialogues"):
        generate(policy, swap_frames(dialogues), path, decoding=GREEDY)
    with pytest.raises(InputError, match="another banned_tokens"):
        generate(forced_to_speak(policy), dialogues, path, decoding=GREEDY)
    with pytest.raises(InputError, match=r"another control \('none', now 'blanked'\)"):
        generate(policy, dialogues, path, decoding=GREEDY, control="blanked")
    told = [dataclasses.replace(d, system="Answer briefly.") for d in dialogues]
    with pytest.raises(InputError, match="another dialogues"):
        generate(policy, told, path, decoding=GREEDY)
    path.with_suffix(".settings.json").unlink()
    with pytest.raises(InputError, match=r"no readable p\.settings\.json"):
        generate(policy, dialogues, path, decoding=GREEDY)


def test_another_precision_or_frame_size_is_refused(whole, policy, dialogues, tmp_path):
    path = tmp_path / "p.jsonl"
    copy_run(whole, policy, dialogues, path, 0)
    for change, message in (
        ({"dtype": "bfloat16"}, r"another dtype \('float32', now 'bfloat16'\)"),
        ({"param_dtype": "bfloat16"}, r"another param_dtype \('float32', now 'bfloat16'\)"),
        ({"max_pixels": 1568}, "another frames .*, now '784 to 1568 pixels'"),
    ):
        with pytest.raises(InputError, match=message):
            generate(load_policy(policy.directory, **change), dialogues, path, decoding=GREEDY)


@pytest.mark.parametrize(("before", "now"), [("thinkstream", "plain"), ("plain", "thinkstream")])
def test_another_reply_style_is_refused(policy, dialogues, tmp_path, before, now):
    """Also where the dialogues are written so that they are the same in either."""
    path = tmp_path / "p.jsonl"
    told = [
        dataclasses.replace(d, system="Write <silent>.", history=(), turns=d.turns[1:])
        for d in dialogues
    ]
    claim(path, settings_of(policy, told, dataclasses.asdict(GREEDY), replies=before))
    path.write_bytes(b"")
    with pytest.raises(InputError, match=rf"another replies \('{before}', now '{now}'\)"):
        generate(policy, told, path, decoding=GREEDY, replies=now)


def test_a_file_of_a_former_version_goes_on_if_its_settings_are_told(
    whole, policy, dialogues, tmp_path
):
    """It says neither style nor frame size where these are the usual ones, and no dtype ever."""
    path = tmp_path / "p.jsonl"
    copy_run(whole, policy, dialogues, path, len(whole[1]))
    beside = path.with_suffix(".settings.json")
    known = json.loads(beside.read_text())
    old = {k: v for k, v in known.items() if k not in ("replies", "frames", "dtype")}
    beside.write_text(json.dumps(old))
    with pytest.raises(InputError, match=r"if that was 'float32' too, add it to p\.settings\.json"):
        generate(policy, dialogues, path, decoding=GREEDY)
    beside.write_text(json.dumps({**old, "dtype": "float32"}))
    assert generate(policy, dialogues, path, decoding=GREEDY) == whole[0]
    beside.write_text(json.dumps({**known, "later": 1}))
    with pytest.raises(InputError, match=r"another later \(1, now None\)"):
        generate(policy, dialogues, path, decoding=GREEDY)
    beside.write_text("[]")
    with pytest.raises(InputError, match="no readable"):
        generate(policy, dialogues, path, decoding=GREEDY)


def test_groups_are_sampled_runs_of_one_dialogue(policy, dialogues, tmp_path):
    decoding = Decoding(Sampling(temperature=1.3), 6, batch_size=2, group_size=3)
    made = generate(policy, dialogues[:2], tmp_path / "p.jsonl", decoding=decoding)
    names = [f"{d.id}/{g}" for d in dialogues[:2] for g in range(3)]
    assert [(p.id, p.group) for p in made] == [(name, name[:2]) for name in names]
    assert len({p.replies for p in made}) > 2
    assert read_predictions(tmp_path / "p.jsonl") == made


def test_bad_media_stop_or_are_skipped_and_listed(policy, dialogues, tmp_path):
    broken = dataclasses.replace(
        dialogues[0], id="broken", turns=(Turn((Frame("nowhere.png"),), "q", 2.0),)
    )
    mixed = [dialogues[0], broken, dialogues[1]]
    with pytest.raises(InputError, match=r"'broken'.*turns\[0\]\.frames\[0\]"):
        generate(policy, mixed, tmp_path / "a.jsonl", decoding=GREEDY)
    skipped: list[str] = []
    made = generate(
        policy,
        mixed,
        tmp_path / "b.jsonl",
        decoding=GREEDY,
        on_bad_record="skip",
        skipped=skipped,
    )
    assert [p.id for p in made] == [dialogues[0].id, dialogues[1].id]
    assert len(skipped) == 1
    assert "nowhere.png" in skipped[0]


def test_two_dialogues_of_one_name_are_refused(policy, dialogues, tmp_path):
    with pytest.raises(InputError, match="another dialogue has the same name"):
        generate(policy, dialogues[:1] * 2, tmp_path / "p.jsonl", decoding=GREEDY)


def test_a_policy_forced_to_speak_cannot_say_silence(policy):
    forced = forced_to_speak(policy)
    assert not (forced.allowed & ~policy.allowed).any()
    banned = np.flatnonzero(policy.allowed & ~forced.allowed)
    texts = {policy.vocab.decode([token]) for token in banned}
    assert {"N", "NO"} <= texts <= {"N", "NO", "NO REPLY", " N", " NO"}
    for spelling in ("NO REPLY", " NO REPLY", "\nNO REPLY"):
        assert set(policy.vocab.encode(spelling)) & set(banned)


def test_the_fingerprint_sees_one_changed_weight(policy, tmp_path):
    for file in policy.directory.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert fingerprint(tmp_path) == fingerprint(policy.directory)
    weights = next(tmp_path.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert fingerprint(tmp_path) != fingerprint(policy.directory)


def test_greedy_groups_make_no_sense():
    with pytest.raises(InputError, match="group_size"):
        Decoding(group_size=4)


def test_buckets_hold_dialogues_of_their_size_whatever_is_left_to_run(
    policy, tmp_path_factory, tmp_path, monkeypatch
):
    """Short ones get small shapes, the deepest come first, and a resumed run keeps to that."""
    root, rng = tmp_path_factory.mktemp("lengths"), np.random.default_rng(1)
    turns = [make_dialogue(root / f"v{i}", rng).turns for i in range(6)]
    longest = [
        dataclasses.replace(turn, time=2.0 * (k + 1), text="", reply=None)
        for k, turn in enumerate(4 * turns[0])
    ]
    mixed = [Dialogue(f"s{i}", own[1:]) for i, own in enumerate(turns[:4])]
    mixed += [Dialogue("l0", tuple(longest)), Dialogue("l1", tuple(longest[:9]))]
    seen = []
    rollout = module.StreamEngine.rollout

    def watched(self, params, examples, **options):
        made = rollout(self, params, examples, **options)
        seen.append((made.ids, made.prompts.shapes.turns))
        return made

    monkeypatch.setattr(module.StreamEngine, "rollout", watched)
    decoding = dataclasses.replace(GREEDY, buckets=2)
    whole = generate(policy, mixed, tmp_path / "whole.jsonl", decoding=decoding)
    assert [p.id for p in whole] == [d.id for d in mixed]
    assert seen == [(("l0", "l1"), 12), (("s0", "s1"), 2), (("s2", "s3"), 2)]
    path = tmp_path / "p.jsonl"
    claim(path, settings_of(policy, mixed, dataclasses.asdict(decoding)))
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:2] + lines[4:]))
    del seen[:]
    assert generate(policy, mixed, path, decoding=decoding) == whole
    assert seen == [(("l0",), 12), (("s0", "s1"), 2)]
