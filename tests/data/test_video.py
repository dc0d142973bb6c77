"""Frames at times, from real files of many kinds, and every way a file can be bad."""

from __future__ import annotations

import itertools
from fractions import Fraction

import av
import numpy as np
import pytest
from av.stream import Disposition
from video_files import CYCLE, STEP, grey, level, numbers, write_audio, write_silence, write_video

from turnwise_jax.data import decoder
from turnwise_jax.data.video import VideoInfo, iter_frames, probe, read_frames
from turnwise_jax.errors import InputError

FRAMES = 160
OPEN_GOP = {"x264-params": "open-gop=1:b-adapt=0"}
# Every way of storing 160 frames at 10 a second: file name -> how it is written.
KINDS = {
    "b_frames.mp4": {"b_frames": 3, "options": OPEN_GOP},
    "one_key_frame.mp4": {"gop": 10_000, "b_frames": 3},
    "with_sound.mp4": {"b_frames": 2, "audio_seconds": 20.0},
    "matroska.mkv": {"b_frames": 3, "options": OPEN_GOP},
    "late_clock.ts": {"b_frames": 3, "pts": range(50, 50 + FRAMES), "options": OPEN_GOP},
    "early_clock.mkv": {"pts": range(-3, FRAMES - 3)},
    "no_index.ts": {"codec": "mpeg2video", "b_frames": 2, "options": {"qmin": "1", "qmax": "1"}},
    "vp9.webm": {"codec": "libvpx-vp9", "gop": 50, "options": {"deadline": "realtime"}},
    "no_cues.webm": {"codec": "libvpx-vp9", "container": {"live": "1"}, "format": "webm"},
    "coarse_clock.avi": {"codec": "mpeg4", "options": {"qmin": "1", "qmax": "1"}},
    "no_clock.h264": {"b_frames": 2},
    "flash.flv": {"b_frames": 2},
}


class Pipe:
    """A file that cannot be sought, so the muxer cannot go back to fill in the duration."""

    def __init__(self, path):
        self._file = open(path, "wb")  # noqa: SIM115
        self.write = self._file.write
        self.close = self._file.close


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of KINDS."""
    folder = tmp_path_factory.mktemp("videos")
    for name, how in KINDS.items():
        pipe = Pipe(folder / name) if "live" in how.get("container", {}) else None
        write_video(folder / name, FRAMES, file=pipe, **how)
        if pipe:
            pipe.close()
    return folder


def expected(times, frames=FRAMES, rate=10) -> list[int]:
    """Numbers of the frames on screen, modulo CYCLE, for frames at a constant rate from 0."""
    return [min(int(np.floor(t * rate + 1e-6)), frames - 1) % CYCLE for t in times]


@pytest.mark.parametrize("name", KINDS)
def test_the_frame_on_screen_at_any_time(folder, name):
    rng = np.random.default_rng(0)
    for _ in range(12):
        ticks = rng.integers(0, FRAMES, rng.integers(1, 6))
        offsets = rng.choice([0.0, 0.02, 0.05, 0.09], len(ticks))
        times = (ticks / 10 + offsets).tolist()
        frames = read_frames(folder / name, times)
        assert frames.dtype == np.uint8
        assert frames.shape == (len(times), 48, 64, 3)
        assert numbers(frames) == expected(times), times


@pytest.mark.parametrize("name", KINDS)
def test_every_frame_in_one_pass(folder, name):
    times = [i / 10 for i in range(FRAMES)]
    assert numbers(read_frames(folder / name, times)) == expected(times)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_file_says_of_itself(folder, name):
    info = probe(folder / name)
    assert info.duration == pytest.approx(16.0, abs=0.002)
    assert info.fps == pytest.approx(10.0, abs=0.1)
    assert info[2:5] == (64, 48, 0)
    assert info.has_audio == (name == "with_sound.mp4")


@pytest.mark.parametrize("name", KINDS)
def test_the_last_frame_stays_one_interval_past_the_end(folder, name):
    assert numbers(read_frames(folder / name, [15.9, 16.0, 16.1])) == [9, 9, 9]
    message = rf"{name}: no frame at t=16.3 s: the video ends at 16 s"
    with pytest.raises(InputError, match=message):
        read_frames(folder / name, [1.0, 16.3])


@pytest.mark.parametrize("time", [-0.01, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(folder, time):
    with pytest.raises(InputError, match=r"vp9.webm: no frame at t=\S+ s: times start at 0"):
        read_frames(folder / "vp9.webm", [1.0, time])


def test_times_in_any_order_with_repeats(folder):
    times = [12.3, 0.0, 12.3, 5.0, 15.9, 0.0]
    assert numbers(read_frames(folder / "b_frames.mp4", times)) == expected(times)
    assert numbers(read_frames(folder / "b_frames.mp4", np.array(times))) == expected(times)


def test_no_times_give_no_frames_of_the_right_size(folder):
    assert read_frames(folder / "vp9.webm", []).shape == (0, 48, 64, 3)
    assert list(iter_frames(folder / "vp9.webm", [])) == []


def test_frames_come_one_by_one_in_order_of_time(folder):
    times = [4.0, 1.0, 9.0]
    got = list(iter_frames(folder / "b_frames.mp4", times))
    assert [index for index, _ in got] == [1, 0, 2]
    assert numbers([frame for _, frame in got]) == expected(sorted(times))


@pytest.mark.parametrize("extension", ["mp4", "webm", "mkv"])
def test_variable_frame_rate(tmp_path, extension):
    rng = np.random.default_rng(1)
    ticks = np.concatenate([[0], np.cumsum(rng.integers(20, 900, 59))])
    codec = "libvpx-vp9" if extension == "webm" else "libx264"
    path = write_video(
        tmp_path / f"vfr.{extension}", 60, pts=ticks.tolist(), clock=Fraction(1, 1000),
        codec=codec, gop=7,
    )  # fmt: skip
    starts = ticks / 1000
    times = np.concatenate([starts, starts[1:] - 0.004, rng.uniform(0, starts[-1], 40)])
    near = np.abs(times[:, None] - starts).min(1)
    times = times[(near < 1e-9) | (near > 1e-3)]
    want = [(int(np.searchsorted(starts, t + 1e-9, side="right")) - 1) % CYCLE for t in times]
    assert numbers(read_frames(path, times.tolist())) == want
    assert probe(path).duration == pytest.approx(starts[-1], abs=0.2)


def test_times_of_frames_survive_the_rounding_of_a_millisecond_clock(tmp_path):
    path = write_video(tmp_path / "v.mkv", 90, rate=30)
    assert numbers(read_frames(path, [i / 30 for i in range(90)])) == expected(range(90), 90, 1)


QUADRANTS = np.zeros((48, 64, 3), np.uint8)
QUADRANTS[:24, :32], QUADRANTS[:24, 32:] = 40, 100
QUADRANTS[24:, :32], QUADRANTS[24:, 32:] = 160, 220


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("extension", ["mp4", "mkv"])
def test_rotation_metadata_is_applied(tmp_path, turns, extension):
    path = tmp_path / f"r.{extension}"
    write_video(path, [QUADRANTS] * 4, rotation=90 * turns)
    want = np.rot90(QUADRANTS, turns)
    (got,) = read_frames(path, [0.1])
    assert got.shape == want.shape
    assert np.abs(got[::7, ::7].astype(int) - want[::7, ::7]).mean() < 4
    info = probe(path)
    assert (info.height, info.width, info.rotation) == (*want.shape[:2], 90 * turns)


ONE = 65536
MIRRORS = {
    "left_right": ((-ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30), QUADRANTS[:, ::-1]),
    "up_down": ((ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30), QUADRANTS[::-1]),
    "transposed": ((0, ONE, 0, ONE, 0, 0, 0, 0, 1 << 30), QUADRANTS.swapaxes(0, 1)),
}


@pytest.mark.parametrize("name", MIRRORS)
def test_mirrored_pictures_are_put_right(tmp_path, name):
    matrix, want = MIRRORS[name]
    (got,) = read_frames(write_video(tmp_path / "m.mp4", [QUADRANTS] * 3, matrix=matrix), [0.0])
    assert got.shape == want.shape
    assert np.abs(got[::7, ::7].astype(int) - want[::7, ::7]).mean() < 4


@pytest.mark.parametrize("size", [(63, 47), (65, 48), (1, 1), (16, 301)])
@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9"])
def test_odd_sizes(tmp_path, size, codec):
    path = tmp_path / ("v.mp4" if codec == "libx264" else "v.webm")
    write_video(path, [grey(i, size) for i in range(12)], codec=codec)
    frames = read_frames(path, [0.0, 0.7])
    assert frames.shape == (2, size[1], size[0], 3)
    assert numbers(frames) == [0, 7]
    assert probe(path)[2:4] == size


def test_a_video_of_one_frame(tmp_path):
    path = write_video(tmp_path / "v.mp4", 1)
    assert numbers(read_frames(path, [0.0, 0.1, 0.2])) == [0, 0, 0]
    assert probe(path).duration == pytest.approx(0.1)
    with pytest.raises(InputError, match=r"no frame at t=0.5 s: the video ends at 0.1 s"):
        read_frames(path, [0.5])


def test_a_change_of_size_on_the_way_keeps_the_first_size(tmp_path):
    parts = [write_video(tmp_path / "a.h264", 10), tmp_path / "b.h264"]
    write_video(parts[1], [grey(i, (128, 96)) for i in range(10, 20)])
    both = tmp_path / "both.h264"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    frames = read_frames(both, [0.3, 1.5])
    assert frames.shape == (2, 48, 64, 3)
    assert numbers(frames) == [3, 15]


def count_decoded(monkeypatch) -> list[int]:
    """Counts every frame that comes out of the decoder."""
    counter = [0]
    decoded = decoder.Reader._decoded

    def counted(self):
        counter[0] += 1
        return decoded(self)

    monkeypatch.setattr(decoder.Reader, "_decoded", counted)
    return counter


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(decoder.os, "sched_getaffinity", lambda process: {2, 5}, raising=False)
    assert decoder.cores() == 2
    monkeypatch.delattr(decoder.os, "sched_getaffinity")
    monkeypatch.setattr(decoder.os, "cpu_count", lambda: 7)
    assert decoder.cores() == 7


def test_a_few_frames_of_a_long_video_decode_little(tmp_path, monkeypatch):
    path = write_video(tmp_path / "long.mp4", 3000, gop=25, b_frames=2)
    counter = count_decoded(monkeypatch)
    times = [120.0, 180.0, 240.0, 299.7]
    assert numbers(read_frames(path, times)) == expected(times, 3000)
    assert counter[0] < 4 * 60


def test_rare_key_frames_are_not_decoded_again_and_again(tmp_path, monkeypatch):
    path = write_video(tmp_path / "long.mp4", 1500, gop=100_000)
    counter = count_decoded(monkeypatch)
    times = [5.0 * i for i in range(30)]
    assert numbers(read_frames(path, times)) == expected(times, 1500)
    assert counter[0] < 2.5 * 1500


def test_a_still_that_stays_on_screen_needs_no_seek(tmp_path, monkeypatch):
    path = write_video(
        tmp_path / "slides.mkv", 5, pts=[i * 60_000 for i in range(5)], clock=Fraction(1, 1000)
    )
    counter = count_decoded(monkeypatch)
    assert numbers(read_frames(path, [float(t) for t in range(0, 240, 6)])) == sorted(
        [0, 1, 2, 3] * 10
    )
    assert counter[0] < 12


def textured(index: int) -> np.ndarray:
    """A picture that needs many bytes, so that cuts and scratches hit picture data."""
    noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3)).astype(np.uint8)
    return np.kron(np.roll(noise, index, axis=1), np.ones((10, 10, 1), np.uint8))


@pytest.mark.parametrize("extension", ["mp4", "ts", "mkv"])
def test_a_video_without_key_frames_after_the_first_is_not_shown_half_refreshed(
    tmp_path, extension
):
    """Live streams refresh stripe by stripe: a seek can land where pictures are not whole yet."""
    path = tmp_path / f"live.{extension}"
    options = {"x264-params": "intra-refresh=1:keyint=20"}
    write_video(path, [textured(i % 16) for i in range(120)], options=options)
    with av.open(str(path)) as file:
        whole = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    for index in range(86, 104):
        np.testing.assert_array_equal(read_frames(path, [index / 10 + 0.05])[0], whole[index])


# Files that cannot be used


def bad_file(folder, kind: str):
    """A file that is no video, of the kind asked for."""
    path = folder / f"{kind}.mp4"
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("This is not a video.\n" * 50)
    elif kind == "noise":
        path.write_bytes(np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8).tobytes())
    elif kind == "sound_only":
        write_audio(path, 1.0)
    elif kind == "cover_picture":
        write_cover(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "headless":  # cut before the index at the end of the file
        whole = write_video(folder / "whole.mp4", 30).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    return path


def write_cover(path) -> None:
    """Sound with a cover picture, which is not a video."""
    with av.open(str(path), "w") as out:
        sound = out.add_stream("aac", rate=16000)
        cover = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        out.mux(cover.encode(av.VideoFrame.from_ndarray(grey(0), format="rgb24")))
        out.mux(cover.encode())
        write_silence(out, sound, 1.0)


BAD = {
    "missing": "no such file",
    "directory": "is a directory",
    "empty": "the file is empty",
    "text": "cannot be read as a video",
    "noise": "cannot be read as a video",
    "headless": "cannot be read as a video",
    "sound_only": "has no video stream",
    "cover_picture": "has no video stream",
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("use", [probe, lambda path: read_frames(path, [0.0])])
def test_a_file_that_is_no_video_is_one_clear_line(tmp_path, kind, use):
    path = bad_file(tmp_path, kind)
    with pytest.raises(InputError, match=BAD[kind]) as caught:
        use(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """An h264 file with its index in front, so that a cut leaves a readable start."""
    path = tmp_path_factory.mktemp("cut") / "whole.mp4"
    options = {"movflags": "faststart"}
    return write_video(path, [textured(i) for i in range(60)], container=options)


def test_a_video_cut_off_gives_what_is_left_and_says_where_it_ends(pictures, tmp_path):
    whole = pictures.read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole[: int(0.7 * len(whole))])
    times = [0.0, 2.0, 3.5]
    np.testing.assert_array_equal(read_frames(path, times), read_frames(pictures, times))
    message = r"cut.mp4: no frame at t=5.5 s: the video ends at \S+ s although its header says 6 s"
    with pytest.raises(InputError, match=message):
        read_frames(path, [0.0, 5.5])


def test_scratched_picture_data_is_refused_from_there_on(pictures, tmp_path):
    whole = pictures.read_bytes()
    middle = len(whole) // 2
    path = tmp_path / "scratched.mp4"
    path.write_bytes(whole[:middle] + bytes(800) + whole[middle + 800 :])
    times = [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(read_frames(path, times), read_frames(pictures, times))
    with pytest.raises(InputError, match=r"scratched.mp4: no frame at t=3.5 s: decoding fails"):
        read_frames(path, [0.0, 3.5])


def test_a_rewritten_file_is_probed_again(tmp_path):
    path = write_video(tmp_path / "v.mp4", 10)
    assert probe(path) == VideoInfo(1.0, 10.0, 64, 48, 0, False)
    write_video(path, [grey(i, (32, 32)) for i in range(25)])
    assert probe(path) == VideoInfo(2.5, 10.0, 32, 32, 0, False)


def test_grey_levels_tell_frames_apart():
    assert numbers(np.stack([grey(i) for i in (0, 7, 49, 50)])) == [0, 7, 49, 0]
    assert all(b - a == STEP for a, b in itertools.pairwise(map(level, range(CYCLE))))
