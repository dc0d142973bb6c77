"""Readers of online video benchmarks: what is wrong is named, and costs only its own records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from online_files import CLIP, read, write_online

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.sources.benchmarks import ONLINE, online
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.errors import InputError

FILES = {
    "proactive_videoqa": "proactive_videoqa/WEB/anno.json",
    "ovo_timing": "ovo_bench/ovo_bench_new.json",
    "ovo_bench": "ovo_bench/ovo_bench_new.json",
    "streamingbench": "streamingbench/questions_real.json",
    "streamingbench_sqa": "streamingbench/questions_sqa.json",
    "streamingbench_proactive": "streamingbench/questions_proactive.json",
    "streamingbench_polling": "streamingbench/questions_proactive.json",
}
FRAMES = "web-1_sec_per_frame-frame_input_format.json"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("online"))


def edited(path: Path, tmp_path: Path, keys: tuple, value) -> Path:
    """A copy of a JSON file in which the place of ``keys`` holds ``value``."""
    whole = json.loads(path.read_text())
    place = whole
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    target = tmp_path / path.name
    target.write_text(json.dumps(whole))
    return target


ASKED = (0, "conversation", 0)
WINDOW = (0, "answer", 1)
FIRST = (0, "questions", 0)
WEB, SB, PO = "kite-_1.52.mp4", "sample_1_real_1", "sample_1_proactive_1"
WRONG = [
    ("proactive_videoqa", (0, "video"), "gone.mp4", WEB, "video", "no such file"),
    ("proactive_videoqa", (0, "video"), 3, WEB, "video", "must be text"),
    ("proactive_videoqa", (0, "conversation"), [], WEB, "conversation", "holds no question"),
    ("proactive_videoqa", (*ASKED, "role"), "system", WEB, "conversation[0].role", "'user'"),
    ("proactive_videoqa", (*ASKED, "content"), "", WEB, "conversation[0].content", "is empty"),
    ("proactive_videoqa", (*ASKED, "time"), None, WEB, "conversation[0].time", "got nothing"),
    ("proactive_videoqa", (*ASKED, "time"), 12.5, WEB, "conversation[0].time", "ends at 12 s"),
    ("proactive_videoqa", (*ASKED, "time"), -1, WEB, "conversation[0].time", "not be negative"),
    ("proactive_videoqa", (0, "duration"), "x", WEB, "duration", "m:ss or hh:mm:ss, got 'x'"),
    ("proactive_videoqa", (0, "answer"), None, WEB, "answer", "must be a list"),
    (
        "proactive_videoqa",
        (*WINDOW, "reply_timespan"),
        [13.0, 14.0],
        WEB,
        "answer[1].reply_timespan",
        "starts at 13 s, but the video ends at 13.00 s",
    ),
    (
        "proactive_videoqa",
        (*WINDOW, "reply_timespan"),
        [5, 4],
        WEB,
        "answer[1].reply_timespan",
        "ends at 4 s, before",
    ),
    (
        "proactive_videoqa",
        (*WINDOW, "reply_timespan"),
        [5],
        WEB,
        "answer[1].reply_timespan",
        "must be [start, end]",
    ),
    (
        "proactive_videoqa",
        (*WINDOW, "related_timespan"),
        [5, None],
        WEB,
        "answer[1].related_timespan[1]",
        "must be a number",
    ),
    ("ovo_timing", (2, "task"), "XYZ", "2", "task", "one of REC, SSR, CRR, got 'XYZ'"),
    ("ovo_timing", (2, "test_info"), [], "2", "test_info", "holds no test point"),
    ("ovo_timing", (2, "test_info", 2), 4, "2", "test_info[2]", "must be a mapping"),
    ("ovo_timing", (2, "ask_time"), 11.0, "2", "test_info[2].realtime", "starts at 11 s"),
    ("ovo_timing", (2, "ask_time"), 9.5, "2", "video", "holds no frame of 2 s"),
    ("ovo_timing", (2, "clue_time"), None, "2", "clue_time", "must be a number"),
    ("ovo_timing", (2, "question"), " ", "2", "question", "is empty"),
    ("ovo_timing", (3, "start_time"), [], "3", "start_time", "holds no time"),
    ("ovo_timing", (3, "start_time"), [1, "x"], "3", "start_time[1]", "must be seconds"),
    ("ovo_timing", (3, "tutorial"), None, "3", "tutorial", "must be text"),
    ("ovo_timing", (4, "activity"), None, "4", "activity", "must be text"),
    ("ovo_timing", (4, "video"), "gone.mp4", "4", "video", "src_videos/gone.mp4: no such file"),
    ("ovo_bench", (0, "task"), None, "0", "task", "must be text"),
    ("ovo_bench", (0, "gt"), 2, "0", "gt", "the place of one of 2 options, got 2"),
    ("ovo_bench", (0, "gt"), 0.5, "0", "gt", "got 0.5"),
    ("ovo_bench", (0, "options"), ["x"], "0", "options", "2 to 26"),
    ("ovo_bench", (0, "realtime"), 0, "0", "realtime", "between 0 s and 0 s"),
    ("ovo_bench", (0, "video"), "/mnt/gone.mp4", "0", "video", "src_videos/mnt/gone.mp4: no such"),
    ("ovo_bench", (2, "test_info"), None, "2", "test_info", "must be a list"),
    ("ovo_bench", (2, "test_info", 1, "type"), 2, "2_1", "test_info[1].type", "0 or 1, got 2"),
    ("ovo_bench", (3, "test_info", 0, "step"), None, "3_0", "test_info[0].step", "must be text"),
    ("ovo_bench", (4, "test_info", 1, "count"), -1, "4_1", "test_info[1].count", "from 0, got -1"),
    ("ovo_bench", (4, "test_info", 0, "realtime"), "a", "4_0", "test_info[0].realtime", "m:ss"),
    ("streamingbench", (*FIRST, "time_stamp"), "6s", SB, "time_stamp", "got '6s'"),
    ("streamingbench", (*FIRST, "time_stamp"), "0:00", SB, "time_stamp", "between 0 s and 0 s"),
    ("streamingbench", (*FIRST, "time_stamp"), "1:00", SB, "time_stamp", "56 s and 60 s, it lasts"),
    ("streamingbench", (*FIRST, "answer"), "E", SB, "answer", "one of 4 options, got 'E'"),
    ("streamingbench", (*FIRST, "answer"), ["A", "B"], SB, "answer", "one entry, got 2"),
    ("streamingbench", (*FIRST, "options"), "[1, 2", SB, "options", "or the text of one"),
    ("streamingbench", (*FIRST, "options"), "'A. x'", SB, "options", "must be a list"),
    ("streamingbench", (*FIRST, "options"), ["A. x", "B."], SB, "options[1]", "letter without"),
    ("streamingbench", (*FIRST, "options"), ["A. x"], SB, "options", "2 to 26"),
    ("streamingbench", (*FIRST, "task_type"), "", SB, "task_type", "is empty"),
    ("streamingbench", (0, "questions"), {}, "sample_1_real", None, "has no list questions"),
    ("streamingbench", (0, "questions", 0), [], SB, None, "must be a mapping"),
    ("streamingbench", (0, "video_path"), "x.mp4", "x_1", "video_path", "x.mp4: no such file"),
    ("streamingbench", (0, "video_path"), None, "entry 0_1", "question_id", "must be text"),
    (
        "streamingbench_sqa",
        (0, 0, "questions", 0, "answer"),
        "F",
        "sample_1_sqa_1",
        "answer",
        "got 'F'",
    ),
    ("streamingbench_sqa", (0, 1), 7, "question 1", None, "must be a mapping"),
    (
        "streamingbench_proactive",
        (*FIRST, "ground_truth_time_stamp"),
        "00:00:01",
        PO,
        "ground_truth_time_stamp",
        "is 1 s, the question comes at 2 s",
    ),
    (
        "streamingbench_proactive",
        (*FIRST, "ground_truth_output"),
        "",
        PO,
        "ground_truth_output",
        "is empty",
    ),
    (
        "streamingbench_proactive",
        (*FIRST, "ground_truth_time_stamp"),
        "0:02.0.1",
        PO,
        "ground_truth_time_stamp",
        "hh:mm:ss",
    ),
    ("streamingbench_polling", (*FIRST, "time_stamp"), None, PO, "time_stamp", "a number"),
    ("streamingbench_polling", (*FIRST, "question"), None, PO, "question", "must be text"),
]


@pytest.mark.parametrize(("source", "keys", "value", "record", "field", "message"), WRONG)
def test_what_is_wrong_is_named(tree, tmp_path, source, keys, value, record, field, message):
    path = edited(tree / FILES[source], tmp_path, keys, value)
    with pytest.raises(InputError) as caught:
        read(source, path, root=(tree / FILES[source]).parent)
    error = caught.value
    assert (error.file, error.record, error.field) == (str(path), record, field)
    assert message in error.message


TURN = (0, "conversation", 1)
WRONG_FRAMES = [
    ((*TURN, "role"), "assistant", "conversation[1]", "a turn of the user"),
    ((*TURN, "must_reply"), True, "conversation[1]", "without must_reply"),
    ((*TURN, "content"), 3, "conversation[1].content", "must be a list"),
    ((*TURN, "content", 0, "type"), "video", "conversation[1].content[0]", "an image, before"),
    ((*TURN, "content", 0, "image"), "", "conversation[1].content[0].image", "an empty path"),
    ((0, "conversation"), [], "conversation", "no turn with a picture"),
    ((0, "question_id"), "other", "annotation", "must be a mapping"),
]


@pytest.mark.parametrize(("keys", "value", "field", "message"), WRONG_FRAMES)
def test_what_is_wrong_with_extracted_pictures_is_named(
    tree, tmp_path, keys, value, field, message
):
    views = tree / "proactive_views"
    path = edited(views / FRAMES, tmp_path, keys, value)
    gold = views / "web-proactivevideoqa_format.json"
    with pytest.raises(InputError) as caught:
        read("proactive_videoqa", path, root=views, user_turns=gold)
    assert (caught.value.file, caught.value.field) == (str(path), field)
    assert message in caught.value.message


def test_windows_after_the_last_picture_are_measured_by_the_duration(tree, tmp_path):
    views = tree / "proactive_views"
    late = views / "web-proactivevideoqa_format.json"
    gold = edited(late, tmp_path, (*WINDOW, "reply_timespan"), [12.5, 14.0])
    (dialogue,) = read("proactive_videoqa", views / FRAMES, user_turns=gold)
    assert (dialogue.turns[-1].time, dialogue.windows[1].start) == (4.0, 12.5)
    for duration, end in ((None, "4.00"), (12.0, "12.00")):
        gold = edited(gold, tmp_path, (0, "duration"), duration)
        with pytest.raises(InputError, match=f"starts at 12.5 s, but the video ends at {end} s"):
            read("proactive_videoqa", views / FRAMES, user_turns=gold)


def test_the_other_view_must_be_there_and_be_one(tree, tmp_path):
    path = tmp_path / FRAMES
    path.write_text((tree / "proactive_views" / FRAMES).read_text())
    with pytest.raises(InputError, match=r"web-proactivevideoqa_format\.json: no such file"):
        read("proactive_videoqa", path)
    for seconds in (1, 2):
        (tmp_path / f"web-{seconds}_sec-proactivevideoqa_format.json").write_text("[]")
    with pytest.raises(InputError, match="field 'user_turns': may belong to any of web-1_sec"):
        read("proactive_videoqa", path)


def test_a_windowless_second_costs_no_other_record(tree, tmp_path):
    source = tree / FILES["proactive_videoqa"]
    path = edited(source, tmp_path, (*WINDOW, "reply_timespan"), [20, 21])
    dialogues, skipped = load_dialogues(
        "proactive_videoqa", path, root=source.parent, clip=CLIP, on_bad_record="skip"
    )
    assert [dialogue.id for dialogue in dialogues] == ["kite-_1.52.mp4%Q1"]
    assert len(skipped) == 1


def test_a_bad_sequential_question_costs_those_that_refer_to_it(tree, tmp_path):
    source = tree / FILES["streamingbench_sqa"]
    path = edited(source, tmp_path, (0, 0, "questions", 0, "options"), [])
    dialogues, skipped = load_dialogues(
        "streamingbench_sqa", path, root=source.parent, clip=CLIP, on_bad_record="skip"
    )
    assert [dialogue.id for dialogue in dialogues] == ["sample_2_sqa_1"]
    assert ["earlier[0].options" in line for line in skipped] == [False, True]


def test_a_bad_question_of_polling_is_one_bad_record(tree, tmp_path):
    source = tree / FILES["streamingbench_polling"]
    path = edited(source, tmp_path, (*FIRST, "ground_truth_time_stamp"), "soon")
    dialogues, skipped = load_dialogues(
        "streamingbench_polling", path, root=source.parent, clip=CLIP, on_bad_record="skip"
    )
    assert len(skipped) == 1
    assert {dialogue.target.item for dialogue in dialogues} == {"sample_1_proactive_2"}


@pytest.mark.parametrize("name", ONLINE)
def test_files_that_hold_no_records_are_refused(tmp_path, name):
    module = ONLINE[name]
    path = tmp_path / "x.json"
    for text, message in (("{", "not readable as JSON"), ("3", "must hold a list")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            list(module.rows(path))
    with pytest.raises(InputError, match="no file of user turns"):
        list(module.rows(path, user_turns=path))
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        list(module.rows(path))


def test_tables_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "x.csv"
    with pytest.raises(InputError, match="no such file"):
        list(online.table(path, None))
    path.write_bytes(b"question\n\xff\xfe\n")
    with pytest.raises(InputError, match="not readable as CSV"):
        list(online.table(path, None))
    path.write_text("question_id,question\nx_sample_1_1,Why?,\nx_sample_1_2,Why,why?\n")
    assert list(online.table(path, None)) == [
        (0, {"question_id": "x_sample_1_1", "question": "Why?"}),
        (1, {UNREADABLE: "has 1 values more than the header"}),
    ]
    with pytest.raises(InputError, match="no file of user turns"):
        list(online.table(path, path))
    with pytest.raises(InputError, match="field 'options': must be a list"):
        load_dialogues("streamingbench", path)
    names = "question_id,task_type,question,time_stamp,answer,options"
    path.write_text(f'{names}\nx,Counting,Why?,0:04,A,"[1, 2]"\n')
    with pytest.raises(InputError, match="record 'x': field 'question_id': must end in _<sample>_"):
        load_dialogues("streamingbench", path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("95", 95.0), ("1:35", 95.0), ("01:35", 95.0), ("00:01:35", 95.0), ("1:00:00.5", 3600.5)],
)
def test_clock_times_are_seconds(text, expected):
    fields = Fields("f", "r")
    assert online.seconds(fields, f" {text} ", "t") == expected
    assert online.seconds(fields, expected, "t") == expected
    assert online.seconds_list(fields, text, "t") == [expected]
