"""``turnwise hints`` on small files against a real local server, killed and taken up again."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest
from judge_server import JudgeServer, after, in_turn, says, status
from PIL import Image

from turnwise_jax.cli.main import main
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.hint_teacher import HintTeacher
from turnwise_jax.rewards.judges.client import ChatClient
from turnwise_jax.train.write_hints import HintJob, write_hints

ROOT = Path(__file__).resolve().parents[2]
FAIR = "Find the pitch first, then the shape it belongs to."


def write_video(path: Path, frames: int = 20, size: tuple[int, int] = (96, 48)) -> Path:
    """Frames that get brighter, ten a second."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            pixels = np.full((size[1], size[0], 3), 10 * index, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    return path


def questions(count: int) -> list[dict]:
    """Records without media; the question holds its number."""
    return [
        {"id": f"q{n}", "question": f"Which tone is number n{n}?", "options": ["high", "low"],
         "answer": "B", "weight": 0.1, "note": "größer", "nested": {"a": [1, None, 1e-7]}}
        for n in range(count)
    ]  # fmt: skip


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def number(body: dict) -> int:
    """Which of :func:`questions` a request is about."""
    content = body["messages"][1]["content"]
    return int(content.split("number n")[1].split("?")[0])


def run(script, job: HintJob, **settings):
    """(counts, requests) of a job against a server that follows a script."""
    quick = {"timeout": 5.0, "retries": 1, "backoff": 0.01, "concurrency": 4, "role": "teacher"}
    with (
        JudgeServer(script) as server,
        ChatClient(server.url, "tiny-teacher", **quick | settings) as client,
    ):
        return write_hints(job, HintTeacher(client, attempts=2)), server.bodies


def by_number(n: int, body: dict):
    return says(f"Take the tone called {chr(ord('p') + number(body))}.")


def test_every_record_gets_its_own_hint_and_nothing_else_changes(tmp_path):
    rows = questions(6)
    rows[4]["hint"] = ""
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "deep" / "out.jsonl")
    slow_first = lambda n, body: after(0.2 * (number(body) == 0), by_number(n, body))  # noqa: E731
    counts, bodies = run(slow_first, job)
    assert counts == (6, 6, 0, 0, 0, 0)
    assert len(bodies) == 6
    for n, (ours, row) in enumerate(zip(read(job.output), rows, strict=True)):
        assert ours == {**row, "hint": f"Take the tone called {chr(ord('p') + n)}."}
    assert "größer" in job.output.read_text()
    assert [path.name for path in job.output.parent.iterdir()] == ["out.jsonl"]
    dialogues, _ = load_dialogues("qa", job.output)
    assert [d.question.hint for d in dialogues] == [row["hint"] for row in read(job.output)]


def test_a_hint_that_is_there_is_kept_and_not_asked_for(tmp_path):
    rows = questions(4)
    rows[0]["hint"], rows[3]["hint"] = "Listen.", ["Listen.", "Then look."]
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    counts, bodies = run(by_number, job)
    assert counts == (4, 4, 2, 0, 0, 0)
    assert sorted(map(number, bodies)) == [1, 2]
    written = read(job.output)
    assert (written[0], written[3]) == (rows[0], rows[3])


def test_what_no_hint_comes_about_for_is_left_without_and_counted(tmp_path):
    def script(n, body):
        faults = {1: says("It is B."), 3: status(400), 4: says("Take the low one.")}
        return faults.get(number(body), says(FAIR))

    rows = questions(5)
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    counts, _ = run(script, job)
    assert counts == (5, 2, 0, 2, 1, 0)
    assert counts.without == 3
    written = read(job.output)
    assert [row.get("hint") for row in written] == [FAIR, None, FAIR, None, None]
    assert written[1] == rows[1]
    counts, bodies = run(by_number, HintJob(job.output, tmp_path / "second.jsonl"))
    assert counts == (5, 5, 2, 0, 0, 0)
    assert sorted(map(number, bodies)) == [1, 3, 4]


def test_no_hint_of_the_output_gives_its_answer_away(tmp_path):
    """A teacher that says every option in turn, and a fair hint now and then."""
    rows = questions(12)
    for n, row in enumerate(rows):
        row["answer"] = "AB"[n % 2]
    texts = ("Choose high.", "Choose low.", "(A)", "(B)", FAIR, "Is it option B?")
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    counts, _ = run(lambda n, body: says(texts[n % len(texts)]), job, concurrency=1)
    hints = [(row["answer"], row.get("hint")) for row in read(job.output)]
    right = {"A": "high", "B": "low"}
    told = [hint for answer, hint in hints if hint]
    assert 0 < len(told) == counts.hints < 12
    assert not any(right[answer] in hint for answer, hint in hints if hint)
    assert not any("(" in hint or "option" in hint for hint in told)


def test_frames_are_sent_spread_over_the_clip_and_shrunk(tmp_path):
    write_video(tmp_path / "v.mp4")
    for n in range(3):
        Image.new("RGB", (20, 10), (80 * n,) * 3).save(tmp_path / f"{n}.png")
    rows = [
        {"id": "v", "video": "v.mp4", "question": "Which tone?", "answer": "hum"},
        {"id": "i", "images": ["0.png", "1.png", "2.png"], "question": "What?", "answer": "hum"},
        {"id": "p", "video": "v.mp4", "start": 1.0, "end": 2.0, "question": "?", "answer": "hum"},
    ]
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", frames=4, side=48)
    _, bodies = run(in_turn(says(FAIR)), job, concurrency=1)
    video, images, part = (pictures(body) for body in bodies)
    assert [picture.size for picture in video] == [(48, 24)] * 4
    assert [picture.size for picture in images] == [(20, 10)] * 3
    np.testing.assert_allclose([np.mean(p) for p in video], [20, 70, 120, 170], atol=6)
    np.testing.assert_allclose([np.mean(p) for p in images], [0, 80, 160], atol=6)
    assert np.mean(part[0]) > 95
    blind = job._replace(output=tmp_path / "blind.jsonl", frames=0)
    _, bodies = run(in_turn(says(FAIR)), blind)
    assert all(isinstance(body["messages"][1]["content"], str) for body in bodies)
    two = job._replace(output=tmp_path / "two.jsonl", frames=2)
    _, bodies = run(in_turn(says(FAIR)), two, concurrency=1)
    np.testing.assert_allclose([np.mean(p) for p in pictures(bodies[1])], [0, 160], atol=6)


def pictures(body: dict) -> list[Image.Image]:
    parts = body["messages"][1]["content"][1:]
    urls = [part["image_url"]["url"].partition(",")[2] for part in parts]
    return [Image.open(io.BytesIO(base64.b64decode(url))) for url in urls]


def test_messages_form_of_the_paper_s_code(tmp_path):
    row = {
        "messages": [{"role": "user", "content": "How many beeps?"}],
        "solution": "<answer>3</answer>",
        "problem_type": "numerical",
        "prompt_id": "p1",
        "question": "How many beeps?",
        "audio_cues": "short beeps",
    }
    path = write(tmp_path / "in.jsonl", [row])
    job = HintJob(path, tmp_path / "out.jsonl", source="avatar")
    counts, bodies = run(in_turn(says("There are three."), says("Count slowly.")), job)
    assert counts.hints == 1
    assert read(job.output) == [{**row, "hint": "Count slowly."}]
    assert "What is heard: short beeps" in bodies[0]["messages"][1]["content"]


def test_a_finished_output_is_left_alone(tmp_path):
    job = HintJob(write(tmp_path / "in.jsonl", questions(3)), tmp_path / "out.jsonl")
    run(by_number, job)
    before = job.output.read_bytes()
    counts, bodies = run(by_number, job)
    assert (counts.hints, bodies) == (3, [])
    assert job.output.read_bytes() == before


@pytest.mark.parametrize("torn", [b"", b'{"id": "q2", "ques', b"\xc3"])
def test_it_goes_on_behind_the_last_whole_line(torn, tmp_path):
    job = HintJob(write(tmp_path / "in.jsonl", questions(5)), tmp_path / "out.jsonl")
    run(by_number, job)
    whole = job.output.read_bytes()
    job.output.unlink()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "out.jsonl.partial").write_bytes(b"".join(lines[:2]) + torn)
    counts, bodies = run(by_number, job)
    assert sorted(map(number, bodies)) == [2, 3, 4]
    assert job.output.read_bytes() == whole
    assert counts.hints == 5


def test_killed_at_any_time_the_output_is_the_same(tmp_path):
    job = HintJob(write(tmp_path / "in.jsonl", questions(10)), tmp_path / "out.jsonl")
    partial = tmp_path / "out.jsonl.partial"
    asked: list[int] = []
    lock = threading.Lock()

    def script(n, body):
        with lock:
            asked.append(number(body))
        return after(0.05, by_number(n, body))

    with JudgeServer(script) as server:
        command = [
            *(sys.executable, "-m", "turnwise_jax.cli.main", "hints", f"--input={job.path}"),
            *(f"--output={job.output}", f"--url={server.url}", "--model=m", "--concurrency=1"),
        ]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
            end = time.monotonic() + 120
            while not (partial.exists() and partial.read_bytes().count(b"\n") >= 3):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        assert not job.output.exists()
        assert main(command[3:]) == 0
    assert [row["hint"][-2:] for row in read(job.output)] == [
        f"{chr(ord('p') + n)}." for n in range(10)
    ]
    assert len(asked) <= 10 + 2  # what was under way when it was killed is asked again


def test_an_output_of_other_records_is_refused(tmp_path):
    path = write(tmp_path / "in.jsonl", questions(3))
    job = HintJob(path, tmp_path / "out.jsonl")
    run(by_number, job)
    other = questions(3)
    other[1]["answer"] = "A"
    write(path, other)
    with pytest.raises(InputError, match=r"out\.jsonl.*'q1'.*is not this record"):
        run(by_number, job)
    write(path, questions(4))
    with pytest.raises(InputError, match="holds 3 of 4 records"):
        run(by_number, job)
    write(path, questions(2))
    with pytest.raises(InputError, match="more than the 2 records"):
        run(by_number, job)
    kept = questions(3)
    kept[0]["hint"] = "Another one."
    write(path, kept)
    with pytest.raises(InputError, match="'q0'"):
        run(by_number, job)


def test_what_cannot_be_used_is_refused_by_name(tmp_path):
    path = write(tmp_path / "in.jsonl", questions(2))
    job = HintJob(path, tmp_path / "out.jsonl")
    for spoilt, message in (
        (job._replace(output=path), "is the input"),
        (job._replace(source="mmduet2_rl"), "must be one of qa, avatar"),
        (job._replace(frames=-1), "field 'frames'"),
        (job._replace(side=0), "field 'side'"),
        (job._replace(on_bad_record="ignore"), "on_bad_record"),
        (job._replace(path=tmp_path / "none.jsonl"), "no such file"),
        (job._replace(output=path / "below"), "cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            run(by_number, spoilt)
    path.write_text('{"id": "q0"\n')
    with pytest.raises(InputError, match=r"in\.jsonl.*line 1.*not JSON"):
        run(by_number, job)


def test_a_bad_record_stops_or_is_copied(tmp_path):
    rows = questions(3)
    rows[1] |= {"video": "gone.mp4"}
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    with pytest.raises(InputError, match=r"'q1'.*gone\.mp4"):
        run(by_number, job)
    assert not job.output.exists()
    counts, _ = run(by_number, job._replace(on_bad_record="skip"))
    assert counts == (3, 2, 0, 0, 0, 1)
    assert read(job.output)[1] == rows[1]


def test_half_of_a_surrogate_pair_survives(tmp_path):
    rows = questions(1)
    rows[0]["note"] = "half \ud83d"
    job = HintJob(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    run(by_number, job)
    assert read(job.output)[0]["note"] == rows[0]["note"]


def test_one_process_at_a_time(tmp_path):
    job = HintJob(write(tmp_path / "in.jsonl", questions(1)), tmp_path / "out.jsonl")

    def script(n, body):
        with pytest.raises(InputError, match="another process is writing"):
            run(by_number, job)
        return by_number(n, body)

    counts, _ = run(script, job)
    assert counts.hints == 1


def test_an_endpoint_that_is_not_there_is_one_line(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", questions(2))
    command = ["hints", f"--input={path}", f"--output={tmp_path}/out.jsonl", "--retries=0"]
    assert main([*command, "--url=http://127.0.0.1:9/v1", "--model=m"]) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    assert "teacher http://127.0.0.1:9" in message
    assert "cannot be reached" in message
    assert main([*command, "--model=m"]) == 2
    assert "--url is required" in capsys.readouterr().err


def test_the_command_says_what_it_left_out(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", questions(3))
    with JudgeServer(lambda n, body: says(FAIR if number(body) else "(b)")) as server:
        command = ["hints", f"--input={path}", f"--output={tmp_path}/out.jsonl"]
        assert main([*command, f"--url={server.url}", "--model=m", "--attempts=1"]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 records have a hint" in out
    assert "1 are without: in this run 1 only got hints that give the answer away" in out
