"""The pipeline: right pixels, an order that only the seed decides, exact resumption."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest
from PIL import Image
from video_files import grey, level, write_video

from turnwise_jax.data import example as loading
from turnwise_jax.data import pipeline
from turnwise_jax.data.images import FrameSpec, patchify
from turnwise_jax.data.pipeline import load_example, make_loader, probe_grids
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.data.video import read_frames, read_image
from turnwise_jax.errors import InputError

SPEC = FrameSpec(patch_size=4, min_pixels=64, max_pixels=64 * 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A wide and a tall video, and a picture."""
    folder = tmp_path_factory.mktemp("media")
    write_video(folder / "wide.mp4", 40)
    write_video(folder / "tall.mp4", [grey(i, (32, 48)) for i in range(40)], rotation=None)
    write_video(folder / "turned.mp4", 20, rotation=90)
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8)
    Image.fromarray(noise).save(folder / "p.png")
    return folder


def mixed(folder) -> Dialogue:
    """Frames of several files and sizes, out of order, with repeats, and a video turn."""
    wide, tall, image = (str(folder / name) for name in ("wide.mp4", "tall.mp4", "p.png"))
    turned = str(folder / "turned.mp4")
    return Dialogue(
        "mixed",
        (
            Turn((Frame(wide, 2.0), Frame(image)), "Look.", 2.0, "NO REPLY"),
            Turn((), "Well?", 2.0, "NO REPLY"),
            Turn((Frame(wide, 0.3), Frame(tall, 1.0), Frame(wide, 0.3)), "", 3.0),
            Turn(tuple(Frame(wide, 0.5 * i) for i in range(5)), "", 4.0, video=True),
            Turn((Frame(image), Frame(turned, 0.0)), "", 5.0),
        ),
    )


def plain_patches(frames, video=False):
    pixels = [
        read_image(f.path) if f.time is None else read_frames(f.path, [f.time])[0] for f in frames
    ]
    return patchify(np.stack(pixels), SPEC, video=video)


def test_an_example_holds_the_patches_of_each_frame_in_order(folder):
    dialogue = mixed(folder)
    example = load_example(dialogue, SPEC)
    want = []
    for turn in dialogue.turns:
        groups = [turn.frames] if turn.video else [[frame] for frame in turn.frames]
        want += [plain_patches(group, turn.video) for group in groups if group]
    assert example.grids == tuple(patches.grid for patches in want)
    assert len(example.patches) == len(want)
    for got, patches in zip(example.patches, want, strict=True):
        assert got.dtype == np.uint8
        np.testing.assert_array_equal(got, patches.values)


def test_slices_count_through_images_and_videos(folder):
    example = load_example(mixed(folder), SPEC)
    slices = example.slices
    assert len(slices) == sum(t for t, _, _ in example.grids) == 10
    np.testing.assert_array_equal(slices[6][0], example.patches[5][1])
    assert slices[6][1] == example.grids[5][1:]


def test_grids_are_known_without_pixels(folder):
    dialogue = mixed(folder)
    assert tuple(probe_grids(dialogue, SPEC)) == load_example(dialogue, SPEC).grids


def test_every_video_is_opened_once(folder, monkeypatch):
    opened = []
    original = loading.iter_frames

    def counted(path, times):
        opened.append((path, len(times)))
        return original(path, times)

    monkeypatch.setattr(loading, "iter_frames", counted)
    load_example(mixed(folder), SPEC)
    counts = {"wide.mp4": 8, "tall.mp4": 1, "turned.mp4": 1}
    assert sorted(opened) == sorted((str(folder / name), n) for name, n in counts.items())


def test_a_dialogue_without_pictures_is_an_example_too():
    example = load_example(Dialogue("t", (Turn((), "Hi", 0.0),)), SPEC)
    assert (example.patches, example.grids, example.slices) == ((), (), [])


@pytest.mark.parametrize(
    ("frames", "field", "message"),
    [
        ([("none.mp4", 1.0)], "turns[1].frames[0]", r"none.mp4: no such file"),
        ([("p.png", None), ("none.png", None)], "turns[1].frames[1]", r"none.png: no such file"),
        (
            [("wide.mp4", 9.0), ("wide.mp4", 1.0)],
            "turns[1].frames[0]",
            r"wide.mp4: no frame at t=9 s: the video ends at 4 s",
        ),
        ([("bad.mp4", 0.0)], "turns[1].frames[0]", r"bad.mp4: cannot be read as a video"),
        ([("thin.png", None)], "turns[1].frames[0]", "too long and thin"),
    ],
)
def test_a_bad_frame_is_one_line_with_file_record_and_field(folder, frames, field, message):
    (folder / "bad.mp4").write_text("no video")
    Image.new("RGB", (401, 2)).save(folder / "thin.png")
    bad = Turn(tuple(Frame(str(folder / name), t) for name, t in frames), "", 2.0)
    good = Turn((Frame(str(folder / "wide.mp4"), 0.0),), "", 1.0)
    dialogue = Dialogue("q", (good, bad), file="train.parquet")
    with pytest.raises(InputError, match=message) as caught:
        load_example(dialogue, SPEC)
    error = caught.value
    assert (error.file, error.record, error.field) == ("train.parquet", "q", field)
    assert "\n" not in str(error)


def test_frames_of_a_video_turn_must_be_of_one_size(folder):
    frames = (Frame(str(folder / "wide.mp4"), 0.0), Frame(str(folder / "tall.mp4"), 0.0))
    with pytest.raises(InputError, match=r"turns\[0\].frames\[1\]': differs in size"):
        load_example(Dialogue("q", (Turn(frames, "", 1.0, video=True),)), SPEC)


def test_a_missing_file_is_named_when_grids_are_probed(folder):
    dialogue = Dialogue("q", (Turn((Frame("/none.mp4", 0.0),), "", 1.0),), file="a.jsonl")
    with pytest.raises(InputError, match=r"a.jsonl: record 'q': field .*: /none.mp4: no such"):
        probe_grids(dialogue, SPEC)


# The loader


def dialogues(folder, count=10) -> list[Dialogue]:
    wide = str(folder / "wide.mp4")
    return [
        Dialogue(f"d{i}", (Turn((Frame(wide, 0.1 * i),), "", 1.0),), file="f") for i in range(count)
    ]


def flat(lists) -> list[str]:
    return list(itertools.chain.from_iterable(lists))


def ids(batches) -> list[list[str]]:
    return [[example.dialogue.id for example in batch] for batch in batches]


def test_batches_cover_each_epoch_once_in_an_order_of_its_own(folder):
    loader = make_loader(dialogues(folder), SPEC, batch_size=5, seed=0, epochs=3)
    assert len(loader) == 6
    batches = ids(loader)
    epochs = [flat(batches[i : i + 2]) for i in (0, 2, 4)]
    assert [sorted(epoch) for epoch in epochs] == [[f"d{i}" for i in range(10)]] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_examples_carry_their_own_pixels(folder):
    for batch in make_loader(dialogues(folder), SPEC, batch_size=2, seed=3, workers=3):
        for example in batch:
            number = int(example.dialogue.id[1:])
            assert abs(float(example.patches[0].mean()) - level(number)) < 2


def test_the_order_depends_on_the_seed_alone(folder):
    def order(seed, **how):
        return ids(make_loader(dialogues(folder), SPEC, batch_size=2, seed=seed, epochs=2, **how))

    assert order(0) == order(0) == order(0, workers=4)
    assert order(0) != order(1)
    # grain seeds epoch e with seed + e: neighbouring seeds must not share epochs
    assert order(0)[5:] != order(1)[:5]


def test_unshuffled_keeps_the_order_of_the_list(folder):
    loader = make_loader(dialogues(folder, 4), SPEC, batch_size=2, seed=0, shuffle=False, epochs=2)
    assert ids(loader) == [["d0", "d1"], ["d2", "d3"]] * 2


def test_the_last_partial_batch_of_an_epoch_is_dropped(folder):
    loader = make_loader(dialogues(folder), SPEC, batch_size=4, seed=0, shuffle=False, epochs=2)
    assert len(loader) == 4
    assert ids(loader) == [["d0", "d1", "d2", "d3"], ["d4", "d5", "d6", "d7"]] * 2


def test_steps_may_end_within_or_beyond_an_epoch(folder):
    for steps in (0, 1, 7):
        loader = make_loader(dialogues(folder, 4), SPEC, batch_size=2, seed=0, steps=steps)
        assert len(loader) == len(list(loader)) == steps


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_each_global_batch(folder, count):
    def run(**how):
        return ids(make_loader(dialogues(folder), SPEC, seed=1, epochs=2, **how))

    whole = run(batch_size=count)
    parts = [run(batch_size=1, process_index=i, process_count=count) for i in range(count)]
    assert {len(part) for part in parts} == {len(whole)}
    assert [sorted(flat(batch)) for batch in zip(*parts, strict=True)] == [
        sorted(batch) for batch in whole
    ]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("stop", [0, 1, 4, 5, 7, 15])
def test_a_loader_taken_up_again_goes_on_exactly(folder, stop, workers):
    def new(**how):
        return make_loader(
            dialogues(folder), SPEC, batch_size=2, seed=5, epochs=3, workers=workers, **how
        )

    straight = list(new())
    first = new()
    before = [next(first) for _ in range(stop)]
    state = json.loads(json.dumps(first.get_state()))
    after = list(new(start_state=state))
    assert ids(before) + ids(after) == ids(straight)
    for ours, theirs in zip(after, straight[stop:], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a.patches[0], b.patches[0])
    first.set_state(state)
    assert ids(first) == ids(after)


def test_a_state_of_another_run_is_refused(folder):
    state = make_loader(dialogues(folder), SPEC, batch_size=2, seed=5).get_state()
    for field, how in (
        ("seed", {"seed": 6}),
        ("batch_size", {"batch_size": 5}),
        ("shuffle", {"shuffle": False}),
        ("process_count", {"process_count": 2}),
    ):
        settings = {"batch_size": 2, "seed": 5, **how}
        with pytest.raises(InputError, match=f"field '{field}': the saved data position"):
            make_loader(dialogues(folder), SPEC, start_state=state, **settings)
    with pytest.raises(InputError, match="field 'dialogues'"):
        make_loader(dialogues(folder)[::-1], SPEC, batch_size=2, seed=5, start_state=state)


def spoiled(folder, *bad: int) -> list[Dialogue]:
    """Ten dialogues, some of which ask for a frame past the end."""
    all_of_them = dialogues(folder)
    for index in bad:
        frame = Frame(str(folder / "wide.mp4"), 60.0 + index)
        all_of_them[index] = Dialogue(f"d{index}", (Turn((frame,), "", 1.0),), file="f")
    return all_of_them


@pytest.mark.parametrize("workers", [0, 4])
def test_bad_records_stop_the_run_when_their_turn_comes(folder, workers):
    loader = make_loader(
        spoiled(folder, 5), SPEC, batch_size=2, seed=0, shuffle=False, workers=workers
    )
    assert ids([next(loader), next(loader)]) == [["d0", "d1"], ["d2", "d3"]]
    with pytest.raises(InputError, match=r"f: record 'd5': field 'turns\[0\].frames\[0\]'.*t=65 s"):
        next(loader)


@pytest.mark.parametrize("workers", [0, 4])
def test_skipped_records_are_listed_once_and_the_rest_keeps_its_order(folder, workers):
    def run(**how):
        skipped = []
        loader = make_loader(
            spoiled(folder, 2, 5, 9), SPEC, batch_size=2, seed=0, shuffle=False, epochs=2,
            workers=workers, on_bad_record="skip", skipped=skipped, **how,
        )  # fmt: skip
        return loader, skipped

    loader, skipped = run()
    first = ids([next(loader) for _ in range(2)])
    assert first == [["d0", "d1"], ["d3", "d4"]]
    assert len(skipped) == 1  # reading ahead does not count
    state = loader.get_state()
    rest = ids(loader)
    good = ["d0", "d1", "d3", "d4", "d6", "d7", "d8"]
    assert flat(first + rest) == (good * 3)[:20]
    assert len(loader) == 10
    assert [line.split("'")[1] for line in skipped] == ["d2", "d5", "d9"]
    again, listed = run(start_state=state)
    assert ids(again) == rest
    assert len(listed) == 3


def test_skipping_does_not_go_round_forever(folder):
    loader = make_loader(
        spoiled(folder, *range(10)), SPEC, batch_size=2, seed=0, on_bad_record="skip"
    )
    with pytest.raises(
        InputError, match=r"9 of 10 records cannot be used.* batches; one is f: rec"
    ):
        next(loader)


@pytest.mark.parametrize("processes", [1, 2])
def test_no_batch_shows_a_record_twice_where_passes_meet(folder, processes):
    """A refused record shifts the batches, so that some begin in one pass and end in the next."""

    def run(**how):
        return make_loader(
            spoiled(folder, 2), SPEC, batch_size=4 // processes, seed=1, steps=24,
            on_bad_record="skip", process_count=processes, **how,
        )  # fmt: skip

    batches = ids(run())
    assert all(len(set(batch)) == 4 // processes for batch in batches)
    assert len(batches) == 24
    first = run()
    before = ids([next(first) for _ in range(11)])
    assert before + ids(run(start_state=json.loads(json.dumps(first.get_state())))) == batches


def test_a_skipped_record_may_leave_just_one_batch(folder):
    """Five records of which four can be used, and a pass leaves one of the five out."""
    loader = make_loader(
        spoiled(folder, 2)[:5], SPEC, batch_size=4, seed=0, steps=9, on_bad_record="skip"
    )
    assert [sorted(batch) for batch in ids(loader)] == [["d0", "d1", "d3", "d4"]] * 9


@pytest.mark.parametrize("shuffle", [False, True])
def test_fewer_usable_records_than_a_batch_are_an_error(folder, shuffle):
    few = spoiled(folder, 2)[:4]
    loader = make_loader(
        few, SPEC, batch_size=4, seed=0, shuffle=shuffle, on_bad_record="skip", epochs=3
    )
    with pytest.raises(InputError, match=r"field 'data.batch_size': 1 of 4 records cannot be used"):
        next(loader)


def test_reading_goes_on_while_the_caller_computes(folder, monkeypatch):
    read, enough = [], threading.Event()
    original = pipeline.load_example

    def counted(*args):
        example = original(*args)
        read.append(args[0].id)
        if len(read) >= 4:
            enough.set()
        return example

    monkeypatch.setattr(pipeline, "load_example", counted)
    loader = make_loader(dialogues(folder), SPEC, batch_size=2, seed=0, workers=2)
    next(loader)
    assert enough.wait(20), "the next batch is not read while the caller holds the first"
    loader.close()


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize(("room", "decoded"), [(0, 30), (10**9, 10), ("three", 24)])
def test_examples_that_fit_into_memory_are_decoded_once(
    folder, monkeypatch, workers, room, decoded
):
    """Ten dialogues, three passes; with room for three, the other seven are decoded each time."""
    original, times = pipeline.load_example, []

    def counted(*args):
        times.append(args[0].id)
        return original(*args)

    monkeypatch.setattr(pipeline, "load_example", counted)
    if room == "three":
        room = 3 * sum(p.nbytes for p in original(dialogues(folder)[0], SPEC).patches)
    how = {"batch_size": 5, "seed": 4, "epochs": 3}
    loader = make_loader(dialogues(folder), SPEC, workers=workers, keep_bytes=room, **how)
    kept = list(loader)
    if not workers:  # else the next pass is already being read
        assert len(times) == decoded
    plain = list(make_loader(dialogues(folder), SPEC, **how))
    assert ids(kept) == ids(plain)
    for ours, theirs in zip(flat(kept), flat(plain), strict=True):
        np.testing.assert_array_equal(ours.patches[0], theirs.patches[0])
    loader.close()


def test_bad_records_are_not_kept(folder):
    """A file that is repaired in the meantime is read."""
    records, skipped = spoiled(folder, 1), []
    loader = make_loader(
        records, SPEC, batch_size=1, seed=0, shuffle=False, steps=12, keep_bytes=10**9,
        on_bad_record="skip", skipped=skipped,
    )  # fmt: skip
    first = [next(loader)[0].dialogue.id for _ in range(9)]
    assert "d1" not in first
    records[1] = dialogues(folder)[1]
    assert [next(loader)[0].dialogue.id for _ in range(3)] == ["d0", "d1", "d2"]
    assert len(skipped) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batch_size": 11}, "10 dialogues do not fill one batch of 11"),
        ({"batch_size": 4, "process_count": 3}, "10 dialogues do not fill one batch of 12"),
        ({"batch_size": 0}, "field 'batch_size': must be at least 1"),
        ({"seed": -1}, "field 'seed': must be at least 0"),
        ({"epochs": 0}, "field 'epochs': must be at least 1"),
        ({"steps": -1}, "field 'steps': must be at least 0"),
        ({"workers": -1}, "field 'workers': must be at least 0"),
        ({"keep_bytes": -1}, "field 'keep_bytes': must be at least 0"),
        ({"process_index": 1}, "field 'process_index': 1 is not below 1"),
        ({"on_bad_record": "drop"}, "field 'on_bad_record': must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(folder, how, message):
    with pytest.raises(InputError, match=message):
        make_loader(dialogues(folder), SPEC, **{"batch_size": 2, "seed": 0, **how})
