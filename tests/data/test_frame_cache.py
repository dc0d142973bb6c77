"""Prepared frames and sounds on disk: the same arrays, within the room, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from video_files import grey, write_video

from turnwise_jax.data import example as module
from turnwise_jax.data import frame_cache
from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.example import Example, load_example
from turnwise_jax.data.frame_cache import FrameCache, open_cache
from turnwise_jax.data.images import FrameSpec, VideoSize
from turnwise_jax.data.kept import KeptExamples
from turnwise_jax.data.pipeline import make_loader
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.errors import InputError

SPEC = FrameSpec(min_pixels=56 * 56, max_pixels=84 * 84)
AMPLE = 10**8
HEAD = 2**10  # more than an entry has beside its values


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    """A video with sound, and a picture that is not square."""
    folder = tmp_path_factory.mktemp("media")
    noise = np.random.default_rng(0).integers(0, 256, (12, 48, 64, 3), np.uint8)
    write_video(folder / "v.mp4", list(noise), rate=4, audio_seconds=3.0)
    Image.fromarray(grey(3, (90, 60))).save(folder / "p.png")
    return folder


@pytest.fixture
def dialogue(media) -> Dialogue:
    """Frames of one video in two turns, out of order and repeated, a picture, a clip, sounds."""
    video, picture = str(media / "v.mp4"), str(media / "p.png")

    def at(*times: float) -> tuple[Frame, ...]:
        return tuple(Frame(video, time) for time in times)

    turns = (
        Turn((*at(1.0), Frame(picture)), "", 1.0, audio=Sound(video, 1.0, 1.5)),
        Turn(at(0.25, 0.5, 0.5), "", 2.0, video=True, audio=Sound(video, 0.0, 1.0)),
        Turn((*at(2.5), Frame(picture)), "What?", 3.0),
    )
    return Dialogue("d", turns, file="d.jsonl")


@pytest.fixture
def undecodable(monkeypatch):
    """From here on a decoder that is asked at all fails the test."""

    def forbid():
        for name in ("iter_frames", "read_image", "resize", "log_mel"):
            monkeypatch.setattr(module, name, None)

    return forbid


def assert_same(one: Example, other: Example) -> None:
    assert one.grids == other.grids
    pairs = zip((*one.patches, *one.sounds), (*other.patches, *other.sounds), strict=True)
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def entries(cache: FrameCache) -> list[Path]:
    return sorted(cache.directory.glob("*/*"))


def used(cache: FrameCache) -> int:
    return sum(path.stat().st_size for path in entries(cache))


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, video=VideoSize(3136, 3136 * 4, whole=True))])
def test_the_same_arrays_without_cache_when_made_and_when_found(
    dialogue, tmp_path, spec, undecodable
):
    expected = load_example(dialogue, spec)
    cache = FrameCache(tmp_path, AMPLE)
    assert_same(load_example(dialogue, spec, None, cache), expected)
    assert (cache.hits, cache.misses) == (0, 3)  # the video's frames, the picture, the sounds
    undecodable()
    found = load_example(dialogue, spec, None, FrameCache(tmp_path, AMPLE))
    assert_same(found, expected)
    assert found.sounds[0].flags.writeable
    assert found.sounds[0].ctypes.data % found.sounds[0].itemsize == 0


def test_entries_are_smaller_than_patches(dialogue, tmp_path):
    cache = FrameCache(tmp_path, AMPLE)
    turn = replace(dialogue.turns[0], audio=None)
    example = load_example(Dialogue("d", (turn,)), SPEC, None, cache)
    assert used(cache) < example.nbytes / 2 + 2 * HEAD


def test_what_the_arrays_depend_on_makes_another_entry(dialogue, media, tmp_path, monkeypatch):
    cache = FrameCache(tmp_path / "cache", AMPLE)
    how = {"spec": SPEC, "sound": SoundSpec(), "cache": cache}

    def made(one: Dialogue = dialogue, **changed) -> int:
        """Entries that had to be made."""
        before = cache.misses
        load_example(one, **{**how, **changed})
        return cache.misses - before

    assert made() == 3
    assert made() == 0
    assert made(spec=replace(SPEC, image_mean=(0.0, 0.0, 0.0))) == 0  # is applied later
    assert made(replace(dialogue, id="other")) == 0
    assert made(spec=replace(SPEC, max_pixels=56 * 84)) == 2
    assert made(spec=replace(SPEC, resample=2)) == 2
    assert made(sound=SoundSpec(mel_bins=80)) == 1
    later = replace(dialogue.turns[2], frames=(Frame(str(media / "v.mp4"), 2.25),))
    assert made(replace(dialogue, turns=(*dialogue.turns[:2], later))) == 2
    images = replace(dialogue.turns[1], video=False)
    assert made(replace(dialogue, turns=(dialogue.turns[0], images, dialogue.turns[2]))) == 1
    heard = replace(dialogue.turns[0], audio=Sound(str(media / "v.mp4"), 1.0, 1.6))
    assert made(replace(dialogue, turns=(heard, *dialogue.turns[1:]))) == 1
    monkeypatch.setitem(frame_cache.MADE_WITH, "av", "another")
    assert made() == 3


def test_a_file_that_changed_is_read_anew(tmp_path):
    path = tmp_path / "p.png"
    cache = FrameCache(tmp_path / "cache", AMPLE)
    one = Dialogue("d", (Turn((Frame(str(path)),), "What?", 0.0),))
    for number in (1, 2):
        Image.fromarray(grey(number, (56, 56))).save(path)
        os.utime(path, ns=(number, number))
        shown = load_example(one, SPEC, None, cache)
        assert int(shown.patches[0][0, 0, 0]) == grey(number)[0, 0, 0]
    assert cache.misses == 2


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(b"old")
    cache = FrameCache(tmp_path / "cache", AMPLE)

    def make():
        path.write_bytes(b"new and longer")
        return [np.zeros(3, np.uint8)]

    cache.arrays(str(path), {}, make)
    assert entries(cache) == []


@pytest.mark.parametrize("warm", [False, True])
def test_errors_are_those_without_a_cache_and_are_not_kept(dialogue, media, tmp_path, warm):
    cache = FrameCache(tmp_path / "cache", AMPLE)
    if warm:
        load_example(dialogue, SPEC, None, cache)
    kept = entries(cache)
    late = replace(dialogue.turns[2], frames=(Frame(str(media / "v.mp4"), 99.0),))
    gone = replace(dialogue.turns[2], frames=(Frame(str(media / "gone.png")),))
    for turn in (late, gone):
        bad = replace(dialogue, turns=(turn,))
        errors = []
        for own in (None, cache):
            with pytest.raises(InputError) as caught:
                load_example(bad, SPEC, None, own)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
        assert "record 'd'" in errors[0]
    assert entries(cache) == kept


def damages(data: bytes) -> list[bytes]:
    """Cut anywhere, a bit turned anywhere, emptied, extended, of another kind."""
    places = np.linspace(0, len(data) - 1, 40).astype(int)
    turned = [data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :] for i in places]
    return [*(data[:i] for i in places), *turned, data + b"\0", b"not an entry at all" * 9]


def test_a_damaged_entry_is_dropped_and_made_again(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    cache = FrameCache(tmp_path / "cache", AMPLE)
    made = [np.arange(60, dtype=np.uint8).reshape(4, 5, 3), np.linspace(0, 1, 8, dtype=np.float32)]

    def found() -> list[np.ndarray]:
        return cache.arrays(str(source), {"a": 1}, lambda: made)

    found()
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    for damaged in damages(whole):
        entry.write_bytes(damaged)
        before = cache.misses
        for ours, theirs in zip(found(), made, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert cache.misses == before + 1
        assert entry.read_bytes() == whole
    other = cache.arrays(str(source), {"a": 2}, lambda: made[:1])
    assert len(other) == 1
    second = next(path for path in entries(cache) if path != entry)
    second.write_bytes(whole)  # an entry under another one's name
    assert len(cache.arrays(str(source), {"a": 2}, lambda: made[:1])) == 1


@pytest.fixture
def fill(tmp_path):
    """``fill(cache, n)``: the array of settings n, and tells whether it had to be made."""
    source = tmp_path / "source"
    source.write_bytes(b"x")

    def use(cache: FrameCache, number: int, size: int = 10_000) -> bool:
        before = cache.misses
        (got,) = cache.arrays(
            str(source), {"n": number}, lambda: [np.full(size, number % 251, np.uint8)]
        )
        assert got.shape == (size,)
        assert (got == number % 251).all()
        return cache.misses > before

    return use


def test_those_used_longest_ago_go_first(tmp_path, fill):
    cache = FrameCache(tmp_path / "cache", 4 * (10_000 + HEAD))
    assert [fill(cache, n) for n in (0, 1, 2, 3)] == [True] * 4
    assert not fill(cache, 0)
    assert fill(cache, 4)  # 1 goes
    again = FrameCache(cache.directory, cache.room)  # the order is that of the files
    assert not any(fill(again, n) for n in (2, 3, 0, 4))
    assert fill(again, 1)  # 2 goes
    assert [fill(again, n) for n in (0, 1, 3, 4)] == [False] * 4
    assert fill(again, 2)


def test_never_more_than_the_room(tmp_path, fill):
    rng = np.random.default_rng(0)
    caches = [FrameCache(tmp_path / "cache", 60_000) for _ in range(2)]
    for _ in range(150):
        number = int(rng.integers(0, 12))
        fill(caches[number % 2], number, size=3_000 * (1 + number % 5))
        assert 0 < used(caches[0]) <= 60_000
    assert sum(cache.hits for cache in caches) > 10


@pytest.mark.parametrize("room", [0, 9_999])
def test_what_is_larger_than_the_room_is_not_kept(tmp_path, fill, room):
    cache = FrameCache(tmp_path / "cache", room)
    assert fill(cache, 1)
    assert fill(cache, 1)
    assert entries(cache) == []


def test_a_smaller_room_is_reached_by_the_next_entry(tmp_path, fill):
    for number in range(8):
        fill(FrameCache(tmp_path / "cache", AMPLE), number)
    small = FrameCache(tmp_path / "cache", 3 * (10_000 + HEAD))
    fill(small, 8)
    assert used(small) <= small.room
    assert not fill(small, 7)


def test_what_a_killed_process_left_does_no_harm(tmp_path, fill):
    cache = FrameCache(tmp_path / "cache", 3 * (10_000 + HEAD))
    fill(cache, 0)
    (entry,) = entries(cache)
    torn = entry.with_suffix(frame_cache.PARTIAL)
    torn.write_bytes(b"half of it")
    own = cache.directory / "notes.txt"
    own.write_text("mine")
    (cache.directory / frame_cache.SIZE).write_text("no number")
    after = FrameCache(cache.directory, cache.room)
    assert not fill(after, 0)
    assert all(fill(after, number) for number in (1, 2, 3))
    assert not torn.exists()
    assert own.read_text() == "mine"
    assert len(entries(after)) == 3


def test_threads_with_handles_of_their_own_share_a_directory(tmp_path, fill):
    """As processes do: each counts for itself, the lock is that of the open file."""

    def work(seed: int) -> int:
        cache = FrameCache(tmp_path / "cache", 40_000)
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, 6, 60):
            fill(cache, int(number))
        return cache.hits

    with ThreadPoolExecutor(4) as pool:
        hits = sum(pool.map(work, range(4)))
    cache = FrameCache(tmp_path / "cache", 40_000)
    assert 0 < used(cache) <= 40_000
    assert hits > 60
    assert {path.suffix for path in entries(cache)} == {frame_cache.ENTRY}


WORKER = """
import sys
import numpy as np
from turnwise_jax.data.frame_cache import FrameCache
source, directory, room, seed, count = sys.argv[1:]
cache = FrameCache(directory, int(room))
for number in np.random.default_rng(int(seed)).integers(0, 6, int(count)).tolist():
    (got,) = cache.arrays(source, {"n": number}, lambda: [np.full(10_000, number, np.uint8)])
    assert got.shape == (10_000,) and (got == number).all()
    print(number, flush=True)
"""


def test_processes_share_a_directory_and_one_may_be_killed(tmp_path, fill):
    root = Path(__file__).resolve().parents[2]

    def start(seed: int, count: int) -> subprocess.Popen:
        command = [sys.executable, "-c", WORKER, str(tmp_path / "source")]
        command += [str(tmp_path / "cache"), "40000", str(seed), str(count)]
        return subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE
        )

    with start(0, 10**6) as killed, start(1, 200) as other:
        for _ in range(50):
            assert killed.stdout.readline()
        killed.kill()
        assert len(other.communicate()[0].split()) == 200
    assert other.returncode == 0
    cache = FrameCache(tmp_path / "cache", 40_000)
    for number in range(6):
        fill(cache, number)
        assert 0 < used(cache) <= 40_000
    assert {path.suffix for path in entries(cache)} == {frame_cache.ENTRY}


def test_a_disk_that_cannot_be_written_is_told_once(tmp_path, fill, capsys):
    cache = FrameCache(tmp_path / "cache", AMPLE)
    (cache.directory / frame_cache.SIZE).mkdir()  # root may write to whatever is read-only
    assert all(fill(cache, number) for number in (1, 1, 2))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "frames are not kept there" in said


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made") as caught:
        FrameCache(tmp_path / "file" / "cache", 1)
    assert caught.value.field == "data.cache_dir"


def test_the_two_fields_of_a_config(tmp_path):
    assert open_cache("", 50.0) is None
    assert open_cache(str(tmp_path), 0.5).room == 500_000_000
    for room in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError) as caught:
            open_cache(str(tmp_path), room)
        assert caught.value.field == "data.cache_gb"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_from_disk_what_another_one_decoded(
    dialogue, tmp_path, workers, undecodable
):
    pair = [dialogue, replace(dialogue, id="e", turns=dialogue.turns[:2])]

    def read(cache: FrameCache | None) -> list[list[Example]]:
        loader = make_loader(
            pair, SPEC, batch_size=1, seed=1, epochs=2, workers=workers, cache=cache
        )
        batches = list(loader)
        loader.close()
        return batches

    expected = read(None)
    read(FrameCache(tmp_path, AMPLE))
    undecodable()
    for ours, theirs in zip(read(FrameCache(tmp_path, AMPLE)), expected, strict=True):
        assert ours[0].dialogue is theirs[0].dialogue
        assert_same(ours[0], theirs[0])


def test_what_memory_does_not_hold_comes_from_disk(dialogue, tmp_path, undecodable):
    cache = FrameCache(tmp_path, AMPLE)
    expected = load_example(dialogue, SPEC, None, cache)
    undecodable()
    kept = KeptExamples({"d": dialogue}, SPEC, None, 0, cache)
    assert_same(kept["d"], expected)
    assert len(kept) == 0
