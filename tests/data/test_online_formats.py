"""Readers of online video benchmarks, on small files in their formats with real videos beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from online_files import CLIP, CUT, SECONDS, by_id, read, shown, told, write_online

from turnwise_jax.data import DATASETS
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.example import load_example
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import find_records
from turnwise_jax.data.records import Frame, Question, Target, Window
from turnwise_jax.data.sources.benchmarks import ONLINE, ovo, ovo_bench
from turnwise_jax.data.sources.benchmarks.online import PLAIN_SYSTEM
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.tokens import build_tokenizer
from turnwise_jax.eval.config import SOURCES, eval_config

FIELDS = Fields("file", "record")
WEB = "What appears in the sky?"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("online"))


def test_the_readers_are_data_sets_and_those_of_their_benchmarks():
    assert DATASETS.items() >= ONLINE.items()
    for name in set(ONLINE) - {"streamingbench_sqa"}:
        assert SOURCES[name] == name
        assert eval_config(name).data.source == name


# --- ProactiveVideoQA


def test_a_folder_holds_all_four_subsets(tree):
    dialogues = by_id(read("proactive_videoqa", tree / "proactive_videoqa"))
    assert {d.id: d.target for d in dialogues.values()} == {
        "4c0f-720-733.mp4": Target("EGO"),
        "ward_frames=ward_s01e02_seg01_clip_03.mp4%Q1": Target("TV"),
        "Fire001_x264.mp4": Target("VAD"),
        "kite-_1.52.mp4": Target("WEB"),
        "kite-_1.52.mp4%Q1": Target("WEB"),
    }
    assert list(dialogues)[-1] == "kite-_1.52.mp4%Q1"
    assert {Path(d.file).parent.name for d in dialogues.values()} == {"EGO", "TV", "VAD", "WEB"}
    for dialogue in dialogues.values():
        assert all(turn.reply is None for turn in dialogue.turns)
        assert dialogue.system is None
        example = load_example(dialogue, FrameSpec())
        assert len(example.grids) == 6
        assert len(example.sounds) == (3 if dialogue.target.subset == "TV" else 0)


def test_a_stream_asks_first_and_goes_on_to_the_last_whole_interval(tree):
    path = tree / "proactive_videoqa/WEB/anno.json"
    first, second = read("proactive_videoqa", path)
    assert told(first) == [(4.0, WEB), (8.0, ""), (12.0, "")]
    assert shown(first) == [[2, 4], [6, 8], [10, 12]]
    assert {f.path for turn in first.turns for f in turn.frames} == {
        str(path.parent / "videos/kite-_1.52.mp4")
    }
    assert told(second)[0] == (4.0, "Where does it land?")
    odd = read("proactive_videoqa", path, CLIP._replace(interval=1.0, turn_frames=3))[0]
    assert [turn.time for turn in odd.turns] == [3.0, 6.0, 9.0, 12.0, 13.0]


def test_windows_keep_question_and_event_and_end_with_the_video(tree):
    first, second = read("proactive_videoqa", tree / "proactive_videoqa/WEB/anno.json")
    assert first.windows == (
        Window(0.0, 4.07, WEB, "A red kite and a dog.", 3.07),
        Window(3.1, SECONDS, WEB, "A second kite.", SECONDS),
    )
    assert second.windows == (
        Window(10.0, pytest.approx(SECONDS), "Where does it land?", "On a beach.", None),
    )
    (ego,) = read("proactive_videoqa", tree / "proactive_videoqa/EGO/anno.json")
    assert [(w.start, w.end, w.event_end) for w in ego.windows] == [
        (2.29, 6.69, 5.69),
        (5.69, 10.41, 9.41),
    ]


def test_the_annotated_duration_is_the_end_that_windows_are_cut_at(tree, tmp_path):
    record = json.loads((tree / "proactive_videoqa/WEB/anno.json").read_text())[0]
    record["duration"] = 13.25
    path = tmp_path / "anno.json"
    path.write_text(json.dumps([record]))
    (dialogue,) = read("proactive_videoqa", path, root=tree / "proactive_videoqa/WEB")
    assert dialogue.windows[1].end == dialogue.windows[1].event_end == 13.25


def test_subtitles_are_heard_in_the_turn_that_ends_after_them(tree):
    (tv,) = read("proactive_videoqa", tree / "proactive_videoqa/TV/anno.json")
    question = "Where is the letter when she calls him?"
    assert told(tv) == [
        (4.0, f"{question}\nSubtitle: (Ada:)Come here.\nSubtitle: I can not."),
        (8.0, "Subtitle: (Ben:)Why?"),
        (12.0, ""),
    ]
    assert [window.question for window in tv.windows] == [question]
    assert [(turn.audio.start, turn.audio.end) for turn in tv.turns] == [(0, 4), (4, 8), (8, 12)]
    (silent,) = read(
        "proactive_videoqa",
        tree / "proactive_videoqa/TV/anno.json",
        CLIP._replace(sound=False, interval=0.5),
    )
    assert all(turn.audio is None for turn in silent.turns)
    assert told(silent)[-1] == (13.0, "Subtitle: (Ada:)Never mind.")


@pytest.mark.parametrize("subset", ["EGO", "TV", "VAD", "WEB"])
def test_the_subset_is_told_by_folder_file_or_fields(tree, tmp_path, subset):
    top = tree / "proactive_videoqa"
    rows = json.loads((top / subset / "anno.json").read_text())
    expected = read("proactive_videoqa", top / subset / "anno.json")
    for name in ("all.json", f"{subset.lower()}-proactivevideoqa_format.json"):
        (tmp_path / name).write_text(json.dumps(rows))
        for root in (top, top / subset):
            if name != "all.json" or root != top:
                assert read("proactive_videoqa", tmp_path / name, root=root) == expected


def test_extracted_pictures_take_windows_and_question_from_the_other_view(tree, tmp_path):
    path = tree / "proactive_views/web-1_sec_per_frame-frame_input_format.json"
    (dialogue,) = read("proactive_videoqa", path)
    pictures = [
        Frame(str(tree / f"proactive_views/frames/kite-_1.52/{number:06d}.png"))
        for number in range(1, 5)
    ]
    assert told(dialogue) == [(2.0, WEB), (4.0, ""), (4.0, "And now?")]
    assert [turn.frames for turn in dialogue.turns] == [
        tuple(pictures[:2]),
        tuple(pictures[2:]),
        (),
    ]
    assert dialogue.target == Target("WEB")
    assert dialogue.windows[1] == Window(3.1, SECONDS, WEB, "A second kite.", SECONDS)
    assert len(load_example(dialogue, FrameSpec()).grids) == 4
    other = tmp_path / "web-frame_input_format.json"
    other.write_text(path.read_text())
    gold = path.with_name("web-proactivevideoqa_format.json")
    (slow,) = read(
        "proactive_videoqa",
        other,
        root=path.parent,
        user_turns=gold,
        clip=CLIP._replace(interval=2.0),
    )
    assert [turn.time for turn in slow.turns] == [4.0, 8.0, 8.0]


# --- OVO-Bench


def test_ovo_timing_streams_to_the_last_test_point(tree):
    dialogues = by_id(read("ovo_timing", tree / "ovo_bench/ovo_bench_new.json"))
    assert {name: d.target for name, d in dialogues.items()} == {
        "2": Target("CRR", "2", (7.5,)),
        "3": Target("SSR", "3", (3.5, 8.0)),
        "4": Target("REC", "4", (4.0, 7.25)),
    }
    assert told(dialogues["2"]) == [(7.0, "Where does the cat go?"), (11.0, "")]
    assert shown(dialogues["2"]) == [[5, 7], [9, 11]]
    assert told(dialogues["3"]) == [(4.0, "Describe the steps of make green tea"), (8.0, "")]
    asked = "How many times does the event: stir the pot happen?"
    assert told(dialogues["4"]) == [(4.0, asked), (8.0, ""), (12.0, "")]
    for dialogue in dialogues.values():
        assert not dialogue.windows
        load_example(dialogue, FrameSpec())


def test_ovo_timing_streams_the_last_cut_video_where_the_source_is_missing(tree, tmp_path):
    (tmp_path / "data/chunked_videos").mkdir(parents=True)
    cut = tmp_path / "data/chunked_videos/4_1.mp4"
    cut.write_bytes((tree / "ovo_bench/chunked_videos/1.mp4").read_bytes())
    records = json.loads((tree / "ovo_bench/ovo_bench_new.json").read_text())
    (tmp_path / "ovbench.json").write_text(json.dumps(records[-1:]))
    (dialogue,) = read("ovo_timing", tmp_path / "ovbench.json")
    assert told(dialogue)[-1] == (4.0, "How many times does the event: stir the pot happen?")
    assert dialogue.turns[0].frames[0].path == str(cut)


def ovo_choice(text, letter, options, task):
    return Question(text, letter, "multiple_choice", tuple(options), task)


def test_ovo_bench_asks_once_for_every_test_point(tree):
    dialogues = by_id(read("ovo_bench", tree / "ovo_bench/ovo_bench_new.json"))
    five = ["bread", "a cup", "a book", "a hat", "nothing"]
    cat = "Where does the cat go?"
    stir = "How many times did they stir the pot?"
    assert {name: (d.question, d.target) for name, d in dialogues.items()} == {
        "0": (
            ovo_choice("What did I drop?", "B", ["a fork", "a spoon"], "EPM"),
            Target("EPM", "0", (6.4,), "B"),
        ),
        "1": (
            ovo_choice("What is on the table?", "A", five, "OJR"),
            Target("OJR", "1", (5.0,), "A"),
        ),
        "2_0": (Question(cat, "No", category="CRR"), Target("CRR", "2", (4.0,), "No")),
        "2_1": (Question(cat, "Yes", category="CRR"), Target("CRR", "2", (7.5,), "Yes")),
        "2_2": (Question(cat, "Yes", category="CRR"), Target("CRR", "2", (11.0,), "Yes")),
        "3_0": (
            Question("boil the water", "Yes", category="SSR"),
            Target("SSR", "3", (2.5,), "Yes"),
        ),
        "3_1": (Question("boil the water", "No", category="SSR"), Target("SSR", "3", (8.2,), "No")),
        "4_0": (Question(stir, "1", "numeric", category="REC"), Target("REC", "4", (3.5,), "1")),
        "4_1": (Question(stir, "12", "numeric", category="REC"), Target("REC", "4", (40.0,), "12")),
    }
    for dialogue in dialogues.values():
        (turn,) = dialogue.turns
        assert turn.reply is None
        assert turn.video
        assert len(turn.frames) == 4
        assert dialogue.system == PLAIN_SYSTEM


def test_ovo_bench_shows_the_cut_video_or_the_source_to_the_next_second(tree):
    dialogues = by_id(read("ovo_bench", tree / "ovo_bench/ovo_bench_new.json"))
    ends = {name: (d.turns[0].time, Path(d.turns[0].frames[0].path).name) for name, d in
            dialogues.items()}  # fmt: skip
    source = "kitchen.mp4"
    assert ends == {
        "0": (7.0, source), "1": (CUT, "1.mp4"), "2_0": (4.0, source), "2_1": (8.0, source),
        "2_2": (11.0, source), "3_0": (CUT, "3_0.mp4"), "3_1": (9.0, source),
        "4_0": (4.0, source), "4_1": (SECONDS, source),
    }  # fmt: skip
    assert shown(dialogues["2_0"]) == [[0.5, 1.5, 2.5, 3.5]]


def test_ovo_bench_prompts_are_the_official_ones(tree):
    texts = {d.id: d.turns[0].text for d in read("ovo_bench", tree / "ovo_bench")}
    assert texts["0"] == (
        "Question: What did I drop?\nOptions:\nA. a fork; B. a spoon;\n"
        "Respond only with the letter corresponding to your chosen option (e.g., A, B, C).\n"
        "Do not include any additional text or explanation in your response."
    )
    assert "question: How many times did they stir the pot?\nProvide your answer" in texts["4_0"]
    assert "procedures:\nboil the water\nYour task" in texts["3_0"]
    assert texts["2_0"] == ovo_bench.CRR_PROMPT.format("Where does the cat go?")
    for name in ("2_0", "3_0"):
        assert "Answer only with “Yes” or “No”.\nDo not include" in texts[name]


def test_options_with_letters_are_listed_once(tree, tmp_path):
    record = json.loads((tree / "ovo_bench/ovo_bench_new.json").read_text())[0]
    record["options"] = ["A. a fork", "B. a spoon"]
    (tmp_path / "ovo_bench_new.json").write_text(json.dumps([record]))
    (dialogue,) = read("ovo_bench", tmp_path, root=tree / "ovo_bench")
    assert "A. a fork; B. a spoon;" in dialogue.turns[0].text
    assert dialogue.question.options == ("a fork", "a spoon")


@pytest.mark.parametrize(
    "layout", ["src_videos/COIN/a.mp4", "data/src_videos/COIN/a.mp4", "COIN/a.mp4", "a.mp4"]
)
def test_ovo_sources_are_found_by_any_tail_of_their_path(tmp_path, layout):
    (tmp_path / layout).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / layout).touch()
    for video in ("COIN/a.mp4", "/mnt/disk/COIN/a.mp4", "./COIN/a.mp4"):
        assert ovo.source(FIELDS, {"video": video}, tmp_path) == str(tmp_path / layout)
    (tmp_path / layout).unlink()
    missing = ovo.source(FIELDS, {"video": "COIN/a.mp4"}, tmp_path)
    assert missing == str(tmp_path / "src_videos/COIN/a.mp4")


def test_a_chat_template_takes_every_record(tree, tmp_path):
    vocab = build_tokenizer([PLAIN_SYSTEM, "user assistant NO REPLY abcdefghijklm"], 300, tmp_path)
    template = ChatTemplate(vocab, FrameSpec(), style="qwen2_5_vl")
    folders = {"proactive_videoqa": "proactive_videoqa", "ovo_timing": "ovo_bench"}
    for name in ONLINE:
        folder = tree / (folders.get(name) or name.split("_")[0].replace("ovo", "ovo_bench"))
        for dialogue in read(name, folder, CLIP._replace(sound=False, frames=2)):
            piece = template.context(dialogue, load_example(dialogue, FrameSpec()).grids)
            kinds = {span.kind for span in piece.media}
            assert kinds == {"video" if dialogue.turns[0].video else "image"}


@pytest.mark.parametrize("name", sorted(set(ONLINE) - {"proactive_videoqa"}))
def test_the_annotation_file_is_found_in_the_folder(tree, name):
    folder = tree / ("ovo_bench" if name.startswith("ovo") else "streamingbench")
    assert find_records(name, folder).name == ONLINE[name].PATTERN
