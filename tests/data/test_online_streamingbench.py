"""StreamingBench with options, proactive and polled, read from its own files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from online_files import CLIP, by_id, read, shown, told, write_online

from turnwise_jax.data.example import load_example
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Question, Target
from turnwise_jax.data.sources.benchmarks import streamingbench
from turnwise_jax.data.sources.benchmarks.online import PLAIN_SYSTEM
from turnwise_jax.data.sources.benchmarks.streamingbench_polling import PROMPT as POLLED
from turnwise_jax.data.sources.fields import Fields

FIELDS = Fields("file", "record")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("online"))


def test_streamingbench_json_numbers_the_questions_of_a_video(tree):
    path = tree / "streamingbench/questions_real.json"
    dialogues = by_id(read("streamingbench", path))
    runs = ("One", "Two", "Three", "Four")
    assert {name: d.question for name, d in dialogues.items()} == {
        "sample_1_real_1": Question(
            "What is in the player's hand right now?",
            "B",
            "multiple_choice",
            ("A ball.", "A bat.", "A glove.", "C. Brown's hat."),
            "Object Recognition",
        ),
        "sample_1_real_2": Question(
            "How many runs so far?", "D", "multiple_choice", runs, "Counting"
        ),
        "sample_1_real_3": Question(
            "How many players are there?",
            "C",
            "multiple_choice",
            ("1", "2", "3", "C. 4"),
            "Counting",
        ),
    }
    first, second, third = dialogues.values()
    assert second.target == Target("Counting", "sample_1_real_2", (), "D")
    assert [d.turns[0].time for d in dialogues.values()] == [6.0, 11.0, 12.0]
    assert shown(first) == [[2.5, 3.5, 4.5, 5.5]]  # 4 s of context
    assert shown(second) == [[7.5, 8.5, 9.5, 10.5]]
    assert second.turns[0].text == streamingbench.PROMPT.format(
        "How many runs so far?", "A. One\nB. Two\nC. Three\nD. Four"
    )
    assert third.turns[0].text.endswith("\n\nThe best option is:")
    assert third.system == PLAIN_SYSTEM
    everything = read("streamingbench", path, CLIP._replace(context=0.0))
    assert shown(everything[0]) == [[0.75, 2.25, 3.75, 5.25]]
    early = read("streamingbench", path, CLIP._replace(context=60.0))
    assert shown(early[0]) == shown(everything[0])
    load_example(first, FrameSpec())


def test_streamingbench_csv_has_options_as_the_text_of_a_list(tree, tmp_path):
    path = tree / "streamingbench/Real_Time_Visual_Understanding.csv"
    first, second = read("streamingbench", path)
    assert first.id == "Real-Time Visual Understanding_sample_2_1"
    assert first.question == Question(
        "What is it, now?",
        "A",
        "multiple_choice",
        ("The player's bat.", "A ball.", "A glove, worn.", "A hat."),
        "Object Recognition",
    )
    assert second.turns[0].time == 7.0
    assert first.turns[0].frames[0].path.endswith("Understanding/sample_2/video.mp4")
    text = pa_csv.ConvertOptions(column_types={"time_stamp": pa.string()})
    pq.write_table(pa_csv.read_csv(path, convert_options=text), tmp_path / "rtvu.parquet")
    again = read("streamingbench", tmp_path / "rtvu.parquet", root=tree / "streamingbench")
    assert again == [first, second]


def test_sequential_questions_tell_of_those_before_with_true_answers(tree):
    dialogues = read("streamingbench_sqa", tree / "streamingbench")
    assert [d.id for d in dialogues] == ["sample_1_sqa_1", "sample_1_sqa_2", "sample_2_sqa_1"]
    texts = [d.turns[0].text for d in dialogues]
    assert "contextual information" not in texts[0] + texts[2]
    assert (
        "Please answer the questions based on the contextual information: At timestamp 00:00:04, "
        "the following question and answer occurred: Question: Who serves?; Options: A. The tall "
        "one., B. The small one., C. Nobody., D. Both.; Answer: A; \n\nHere is the question."
    ) in texts[1]
    assert texts[1].endswith("\n\nOptions:\nA. 4.\nB. 2.\nC. 8.\nD. 6.\n\nThe best option is:")
    assert dialogues[1].target == Target("Sequential Question Answering", "sample_1_sqa_2", (), "C")
    assert shown(dialogues[1]) == [[4.5, 5.5, 6.5, 7.5]]
    table = read("streamingbench_sqa", tree / "streamingbench/Sequential_Question_Answering.csv")
    assert [d.turns for d in table] == [d.turns for d in dialogues]


def test_proactive_output_streams_from_the_question_on(tree):
    first, second = read("streamingbench_proactive", tree / "streamingbench")
    asked = 'When the board shows 3 points, output "3".'
    assert told(first) == [(6.0, asked), (8.0, "")]
    assert shown(first) == [[4, 6], [8]]
    assert first.target == Target("Proactive Output", "sample_1_proactive_1", (5.0,), "3")
    assert told(second) == [(12.0, 'When the bell rings, output "Bell".')]  # the video ends at 13 s
    fine = read(
        "streamingbench_proactive",
        tree / "streamingbench",
        CLIP._replace(interval=0.5, turn_frames=1),
    )
    assert [turn.time for turn in fine[1].turns] == [10.5, 11.0, 11.5, 12.0, 12.5, 13.0]
    (row,) = read("streamingbench_proactive", tree / "streamingbench/Proactive_Output.csv")
    assert (row.id, row.target.text) == ("Active Output_sample_3_1", "3")
    assert told(row) == told(first)
    assert row.turns[0].frames[0].path.endswith("sample_3/Active Output_3.mp4")


def test_polling_asks_every_second_up_to_four_seconds_past_the_truth(tree):
    dialogues = by_id(read("streamingbench_polling", tree / "streamingbench"))
    expected = {
        f"sample_1_proactive_{number}_{poll}_{kind}": (item, kind, start + poll)
        for number, item, start, polls in (
            (1, "sample_1_proactive_1", 2.0, 7),
            (2, "sample_1_proactive_2", 10.0, 6),
        )
        for poll in range(1, polls + 1)
        for kind in ("poll", "output")
    }
    assert {
        name: (d.target.item, d.target.subset, d.turns[0].time) for name, d in dialogues.items()
    } == expected
    bell = 'When the bell rings, output "Bell".'
    last = dialogues["sample_1_proactive_2_6_poll"]  # 16 s, past the end of the video
    assert last.target == Target("poll", "sample_1_proactive_2", (12.0,), "Bell")
    assert shown(last)[0] == pytest.approx([10.375, 11.125, 11.875, 12.625])
    assert last.turns[0].text == POLLED.format(
        f'{bell} Is it the right time to output "Bell"? You can only answer yes or no.'
    )
    plain = dialogues["sample_1_proactive_2_2_output"]
    assert plain.turns[0].text == POLLED.format(bell)
    assert shown(plain)[0] == pytest.approx([10.25, 10.75, 11.25, 11.75])
    assert plain.system == PLAIN_SYSTEM
    load_example(last, FrameSpec())


LAYOUTS = [
    "videos/sample_7_real.mp4",
    "data/sample_7_real.mp4",
    "sample_7_real.mp4",
    "sample_7/video.mp4",
    "real/sample_7/video.mp4",
    "data/real/sample_7/video.mp4",
    "videos/Real-Time Visual Understanding/sample_7/video.mp4",
    "data/sample_7/Active Output_7.mp4",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streamingbench_videos_are_found_as_the_archives_or_the_script_leave_them(tmp_path, layout):
    (tmp_path / layout).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / layout).touch()
    for row in (
        {"video_path": "./videos/sample_7_real.mp4"},
        {"question_id": "Real-Time Visual Understanding_sample_7_2"},
        {"question_id": "Real-Time Visual Understanding_7_2"},
    ):
        path, field = streamingbench.video(FIELDS, row, streamingbench.REAL, tmp_path)
        assert (path, field) == (str(tmp_path / layout), next(iter(row)))
