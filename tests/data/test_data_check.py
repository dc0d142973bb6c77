"""Sets looked through: what is counted, what is found wrong, and that nothing stops half-way."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_files import EXPECTED, write_benchmarks
from online_files import CLIP, write_online
from PIL import Image
from video_files import write_audio, write_video

from turnwise_jax.data.checking.checking import check_set
from turnwise_jax.data.checking.dialogues import begin, dialogue_problems
from turnwise_jax.data.checking.picture import draw_summary
from turnwise_jax.data.checking.summary import markdown, write_summary
from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Sound, Target, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.errors import InputError

SILENT = "NO REPLY"
VIDEO = 20.0  # s
COOK, WASH = "He cuts an onion.", "He washes the knife."


def turn(time: float, reply: str | None = None, *, text: str = "", video="v.mp4") -> Turn:
    return Turn((Frame(video, time - 1), Frame(video, time)), text, time, reply)


def dialogue(name: str, replies, windows=(), **fields) -> Dialogue:
    """A turn every 4 s; the first has the question."""
    turns = [turn(4.0 * k, reply, text="Q?" * (k == 1)) for k, reply in enumerate(replies, 1)]
    return Dialogue(name, tuple(turns), tuple(windows), **fields)


def window(start: float, end: float, answer: str = COOK) -> Window:
    return Window(start, end, "Q?", answer)


GOOD = dialogue("good", [SILENT, COOK, SILENT, WASH], [window(3, 9), window(14, 16, WASH)])
OPEN = dialogue("open", [SILENT, None, None], [window(7, 9), window(9, 12, WASH)])


@pytest.fixture
def folder(tmp_path) -> Path:
    write_video(tmp_path / "v.mp4", int(VIDEO), rate=1)
    return tmp_path


def check_sft(folder: Path, *dialogues: Dialogue, **settings):
    mmduet2_sft.write(dialogues, folder / "set.jsonl", root="")
    return check_set("mmduet2_sft", folder / "set.jsonl", **settings)


def kinds(one: Dialogue) -> Counter[str]:
    return Counter(problem.kind for problem in dialogue_problems(one))


def test_a_good_set_has_no_problems(folder):
    checked = check_sft(folder, GOOD, decode=True)
    assert checked.problems == []
    assert checked.unusable == 0
    tally = checked.tally
    assert (tally.records, tally.read, tally.streaming, tally.questions) == (1, 1, 1, 0)
    assert (tally.turns, tally.open_turns, tally.replies, tally.silences) == (4, 0, 2, 2)
    assert tally.frames == 8
    assert list(tally.window_seconds) == [6.0, 2.0]
    assert list(tally.gap_seconds) == [5.0]
    assert list(tally.decisions) == [2, 1]
    assert list(tally.dialogue_seconds) == [16.0]
    assert list(tally.reply_text) == [len(COOK), len(WASH)]
    assert list(tally.user_text) == [2]
    assert list(tally.given_at) == [4.0, 8.0, 12.0, 16.0]
    assert list(tally.said_at) == [8.0, 16.0]
    assert list(tally.due_at) == [4.0, 8.0, 16.0]
    assert checked.media.used["video"] == {str(folder / "v.mp4")}


def test_open_turns_are_the_decisions_of_an_rl_record(folder):
    mmduet2_rl.write([OPEN], folder / "set.parquet", root="")
    checked = check_set("mmduet2_rl", folder / "set.parquet")
    assert checked.problems == []
    assert checked.tally.open_turns == 2
    assert list(checked.tally.decisions) == [1, 1]
    assert list(checked.tally.deciding_at) == [8.0, 12.0]


def test_time_starts_where_a_dialogue_does():
    late = Dialogue("late", (turn(44.0), turn(48.0)))
    assert begin(late) == 40.0
    assert begin(GOOD) == 0.0
    assert begin(Dialogue("one", (turn(6.0),))) == 0.0


CASES = {
    "no_window": dialogue("a", [None, None]),
    "no_decision": dialogue("a", [None, None], [window(4.5, 7.5), window(8, 9)]),
    "empty_window": dialogue("a", [None, None], [window(4, 4)]),
    "no_answer": dialogue("a", [None, None], [window(4, 5, " ")]),
    "overlapping_windows": dialogue("a", [None, None], [window(1, 5), window(4, 8, WASH)]),
    "stray_reply": dialogue("a", [COOK, COOK], [window(7, 9)]),
    "unanswered_window": dialogue("a", [SILENT, COOK], [window(3, 5), window(7, 9)]),
    "near_silence": dialogue("a", [SILENT, None], [window(8, 8.5)]),
    "empty_reply": dialogue("a", ["", None], [window(8, 8.5)]),
    "shared_prefix": dialogue(
        "a", [None, None], [window(3, 5, 50 * "x" + "1"), window(7, 9, 50 * "x")]
    ),
    "future_frame": Dialogue(
        "a", (dataclasses.replace(turn(8.0), frames=(Frame("v.mp4", 8.5),)),), (window(7, 9),)
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_one_kind_of_problem_at_a_time(kind):
    case = CASES[kind]
    if kind == "near_silence":
        for text in ("NO REPLY.", "no reply", '"NO REPLY"'):
            spoken = dataclasses.replace(case.turns[0], reply=text)
            assert kinds(dataclasses.replace(case, turns=(spoken, case.turns[1]))) == {kind: 1}
        assert kinds(case) == {}
        return
    assert kinds(case) == {kind: 1}


def test_a_record_whose_windows_hold_no_decision_at_all():
    one = dialogue("a", [None, None], [window(4.5, 7.5), window(9, 12)])
    assert kinds(one) == {"no_decision": 2, "no_decision_at_all": 1}


def test_what_is_allowed():
    """Windows that touch, answers that share 49 characters, a target in place of windows."""
    touching = [window(1, 4, 49 * "x"), window(4, 8, 49 * "x" + "1")]
    assert kinds(dialogue("a", [None, None], touching)) == {}
    assert kinds(dialogue("a", [None, None], target=Target("CRR", times=(5.0,)))) == {}
    # what an RL record's past said belongs to windows that it no longer lists
    assert kinds(dialogue("a", [COOK, None], [window(8, 9)])) == {}


def test_every_record_is_read_whatever_is_wrong_with_the_others(folder):
    rows = [GOOD, dataclasses.replace(GOOD, id="late"), dataclasses.replace(GOOD, id="lost")]
    mmduet2_sft.write(rows, folder / "set.jsonl", root="")
    lines = (folder / "set.jsonl").read_text().splitlines()
    good, late, lost = (json.loads(line) for line in lines)
    late["images"][-1]["path"] = "v.mp4#t=22"
    for index, path in (
        (0, "none.mp4#t=1"),
        (1, "none.mp4#t=2"),
        (2, "gone.jpg"),
        (3, "cut.mp4#t=1"),
    ):
        lost["images"][index]["path"] = path
    (folder / "cut.mp4").write_bytes((folder / "v.mp4").read_bytes()[:300])
    bad = json.loads(json.dumps(good))
    bad["messages"][1]["content"] = 7
    lines = [bad, late, lost, good, good]
    text = "\n".join([*map(json.dumps, lines[:2]), "{", *map(json.dumps, lines[2:])])
    (folder / "set.jsonl").write_text(text)
    checked = check_set("mmduet2_sft", folder / "set.jsonl")
    found = [(p.row, p.record, p.kind) for p in checked.problems]
    assert found == [
        (1, "good", "unreadable"),
        (2, "late", "no_such_frame"),
        (2, "late", "future_frame"),
        (3, "line 3", "unreadable"),
        (4, "lost", "missing_media"),
        (4, "lost", "broken_media"),
        (6, "good", "same_id"),
    ]
    assert checked.unusable == 4
    assert (checked.tally.records, checked.tally.read) == (6, 4)
    assert {kind: len(files) for kind, files in checked.media.bad.items()} == {
        "no_such_frame": 1,
        "missing_media": 2,
        "broken_media": 1,
    }
    missing = checked.problems[4]
    assert missing.field == "turns[0].frames[1]"
    assert str(missing).startswith(f"{folder / 'set.jsonl'}: record 'lost': field 'turns[0]")
    assert missing.message.endswith("none.mp4: no such file (and 1 more)")
    assert checked.problems[0].field == "messages[1].content"


def test_an_id_that_comes_twice(folder):
    """Answers of the policy could not be told apart; supervised records are merely counted."""
    path = folder / "set.parquet"
    mmduet2_rl.write([OPEN], path, root="")
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    (problem,) = check_set("mmduet2_rl", path).problems
    assert (problem.kind, problem.row, problem.fatal) == ("duplicate_id", 2, True)
    (problem,) = check_sft(folder, GOOD, GOOD).problems
    assert (problem.kind, problem.row, problem.fatal) == ("same_id", 2, False)


def test_decoding_finds_what_headers_hide(folder):
    noise = np.random.default_rng(0).integers(0, 256, (int(VIDEO), 48, 64, 3), np.uint8)
    path = write_video(folder / "cut.mp4", noise, rate=1, container={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    turns = tuple(turn(4.0 * k, SILENT, video="cut.mp4") for k in range(1, 6))
    assert check_sft(folder, Dialogue("cut", turns)).problems == []
    (problem,) = check_sft(folder, Dialogue("cut", turns), decode=True).problems
    assert (problem.kind, problem.field) == ("broken_media", "turns[4].frames[1]")
    assert "it may be cut off" in problem.message
    early = Dialogue("early", turns[:2])
    assert check_sft(folder, early, decode=True).problems == []


def test_windows_past_the_end_of_the_video(folder):
    late = dialogue("late", [None] * 5, [window(15, VIDEO), window(VIDEO, 21.0, WASH)])
    mmduet2_rl.write([late], folder / "set.parquet", root="")
    (problem,) = check_set("mmduet2_rl", folder / "set.parquet").problems
    assert (problem.kind, problem.field) == ("window_past_end", "windows[1]")


def test_pictures_and_sounds(folder):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(folder / "1.jpg")
    whole = (folder / "1.jpg").read_bytes()
    (folder / "2.jpg").write_bytes(whole[: len(whole) * 6 // 10])
    write_audio(folder / "a.m4a", 2.0)
    turns = (
        Turn((Frame("1.jpg"),), "Q?", 2.0, SILENT, audio=Sound("a.m4a", 0.0, 2.0)),
        Turn((Frame("1.jpg"),), "", 4.0, SILENT, audio=Sound("v.mp4", 2.0, 4.0)),
    )
    checked = check_sft(folder, Dialogue("d", turns))
    assert checked.media.used["image"] == {str(folder / "1.jpg")}
    assert len(checked.media.used["sound"]) == 2
    (problem,) = checked.problems
    assert (problem.kind, problem.field) == ("broken_media", "turns[1].audio")
    assert "has no audio track" in problem.message
    broken = dataclasses.replace(turns[1], frames=(Frame("2.jpg"),), audio=None)
    for decode in (False, True):
        found = check_sft(folder, Dialogue("d", (broken,)), decode=decode).problems
        assert [p.kind for p in found] == ["broken_media"] * decode


def test_a_folder_is_read_file_by_file(folder):
    (folder / "sets").mkdir()
    for name in ("a", "b"):
        mmduet2_sft.write([GOOD], folder / f"sets/{name}.jsonl", root="")
    checked = check_set("mmduet2_sft", folder / "sets", root=folder)
    assert checked.tally.records == 2
    assert [(p.kind, Path(p.file).name, p.row) for p in checked.problems] == [
        ("same_id", "b.jsonl", 1)
    ]


def test_files_that_cannot_be_read_at_all(folder):
    with pytest.raises(InputError, match="field 'source': must be one of"):
        check_set("mmduet3", folder / "set.jsonl")
    with pytest.raises(InputError, match="no such file"):
        check_set("mmduet2_sft", folder / "none.jsonl")
    (folder / "set.parquet").write_bytes(b"PAR1")
    (folder / "set-user_turns.json").write_text("{}")
    with pytest.raises(InputError, match="not readable as parquet"):
        check_set("mmduet2_rl", folder / "set.parquet")


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("all"))


@pytest.mark.parametrize("annotation", EXPECTED)
def test_question_sets(benchmarks, annotation):
    name = annotation.split("/")[0]
    checked = check_set(name, benchmarks / annotation, root=benchmarks / name, decode=True)
    questions = EXPECTED[annotation].values()
    assert checked.problems == []
    assert checked.tally.questions == len(questions)
    assert checked.tally.kinds == Counter(q.kind for q in questions)
    assert checked.tally.letters == Counter(q.answer for q in questions if q.options)
    assert checked.tally.categories == Counter(q.category for q in questions)
    assert "## Kinds of question" in markdown(checked)


ONLINE = {
    "proactive_videoqa": ("proactive_videoqa", 5, {"overlapping_windows": 2}),
    "ovo_timing": ("ovo_bench/ovo_bench_new.json", 3, {}),
    "ovo_bench": ("ovo_bench/ovo_bench_new.json", 9, {}),
    "streamingbench_proactive": ("streamingbench/questions_proactive.json", 2, {}),
}


@pytest.fixture(scope="module")
def online(tmp_path_factory) -> Path:
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("online"))


@pytest.mark.parametrize("source", ONLINE)
def test_online_benchmarks(online, source):
    path, records, problems = ONLINE[source]
    checked = check_set(source, online / path, clip=CLIP)
    assert checked.tally.records == checked.tally.read == records
    assert checked.counts == problems
    assert checked.tally.subsets.total() == records
    assert "## Subsets" in markdown(checked)
    if source != "ovo_bench":  # whose records are questions about clips
        assert checked.tally.streaming == records
        assert len(checked.tally.window_seconds) + checked.tally.due_times >= records


def test_a_finer_grid_puts_decisions_into_short_windows(online):
    """A coarse one leaves windows in which nobody can answer."""
    empty = []
    for interval in (0.5, 2.0, 3.0):
        clip = ClipSpec(interval=interval, turn_frames=2)
        checked = check_set("proactive_videoqa", online / "proactive_videoqa", clip=clip)
        empty.append(checked.counts["no_decision"])
        assert empty[-1] == sum(count == 0 for count in checked.tally.decisions)
    assert empty[0] == 0
    assert empty[-1] > 0
    assert empty == sorted(empty)


def test_a_question_about_a_missing_video_counts_as_missing(tmp_path):
    row = {"id": "q", "video": "none.mp4", "question": "What?", "answer": "1"}
    (tmp_path / "qa.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "answer": []}))
    checked = check_set("qa", tmp_path / "qa.jsonl")
    assert [(p.kind, p.field) for p in checked.problems] == [
        ("missing_media", "video"),
        ("unreadable", "answer"),
    ]
    assert checked.media.bad == {"missing_media": {str(tmp_path / "none.mp4")}}


def test_the_summary_has_the_numbers_and_the_problems(folder):
    stray = dialogue("stray|1", [COOK, COOK, SILENT, "No reply"], [window(7, 9), window(9, 11)])
    checked = check_sft(folder, GOOD, stray)
    summary, problems = write_summary(checked, folder / "out")
    text = summary.read_text()
    for line in (
        "2 records, 0 unusable.",
        "| windows | 4 |",
        "| windows without a decision | 1 |",
        "| silent share of the given turns | 37.5 % |",
        "| window, s | 4 | 2 | 2 | 2 | 3 | 5.4 | 6 | 3 |",
        "| 1 | 2 | 50.0 % |",
        "| stray_reply | 1 | 2 |  | a given reply outside every window |",
        r"record 'stray\|1': field 'turns': stray_reply: at 4 s",
    ):
        assert line in text
    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    assert Counter(row["kind"] for row in rows) == checked.counts
    assert {row["row"] for row in rows} == {2}
    assert all(row["unusable"] is False for row in rows)
    assert not list((folder / "out").glob("*.partial"))


def words(figure) -> str:
    found = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
    return " ".join(" ".join(found).split())


def test_the_picture_shows_windows_or_questions(folder, benchmarks):
    stray = dialogue("stray", [COOK, COOK], [window(5, 7), window(7, 9)])
    drawn = words(draw_summary(check_sft(folder, GOOD, stray), folder / "streams.png"))
    for text in ("2 records", "4 windows", "33.3 % of given turns silent", "25.0 % without"):
        assert text in drawn
    path = benchmarks / "omnibench/dataset/sample.jsonl"
    asked = check_set("omnibench", path, root=benchmarks / "omnibench")
    drawn = words(draw_summary(asked, folder / "questions.png"))
    assert "multiple_choice" in drawn
    assert "Count and Quantity" in drawn
    for name in ("streams.png", "questions.png"):
        with Image.open(folder / name) as picture:
            assert np.asarray(picture.convert("L")).std() > 10


def test_a_set_without_a_usable_record_is_summed_up_too(folder):
    (folder / "set.jsonl").write_text("{\n")
    checked = check_set("mmduet2_sft", folder / "set.jsonl")
    assert checked.unusable == 1
    assert "1 records, 1 unusable." in markdown(checked)
    assert "none" in words(draw_summary(checked, folder / "empty.png"))
