"""Readers of public benchmarks, on small files in their formats with real media beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_files import CLIP, EXPECTED, MEDIA, NOTE, SAMPLES, read, write_benchmarks

from turnwise_jax.data import DATASETS
from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.example import load_example
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import find_records, load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources import qa
from turnwise_jax.data.sources.benchmarks import BENCHMARKS
from turnwise_jax.data.sources.qa import THINK_SYSTEM
from turnwise_jax.data.tokens import SPECIAL_TOKENS, build_tokenizer
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.accuracy import accuracy

MIDDLES = (0.25, 0.75, 1.25, 1.75)  # of four equal parts of the clips


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("benchmarks"))


def test_there_is_a_sample_of_every_benchmark():
    assert {annotation.split("/")[0] for annotation in MEDIA} == set(BENCHMARKS)
    assert set(EXPECTED) == set(MEDIA)
    assert {name: DATASETS[name] for name in BENCHMARKS} == BENCHMARKS


@pytest.mark.parametrize("annotation", EXPECTED)
def test_questions_are_read(tree, annotation):
    dialogues = read(tree, annotation)
    assert {dialogue.id: dialogue.question for dialogue in dialogues} == EXPECTED[annotation]
    assert len(dialogues) == len(EXPECTED[annotation])
    for dialogue in dialogues:
        (turn,) = dialogue.turns
        assert turn.reply is None
        assert dialogue.system == THINK_SYSTEM
        assert dialogue.file == str(tree / annotation)
        options = dialogue.question.options
        listed = [f"{letter}. {text}" for letter, text in zip("ABCDEF", options, strict=False)]
        assert turn.text == "\n".join([dialogue.question.text, *listed])


@pytest.mark.parametrize("annotation", EXPECTED)
def test_media_are_those_of_the_benchmark_and_can_be_decoded(tree, annotation):
    """Which files are shown and heard, whole clips unless the benchmark says otherwise."""
    top = tree / annotation.split("/")[0]
    used = set()
    for dialogue in read(tree, annotation):
        (turn,) = dialogue.turns
        used |= {frame.path for frame in turn.frames}
        if turn.audio:
            used.add(turn.audio.path)
        example = load_example(dialogue, FrameSpec())
        assert len(example.sounds) == (turn.audio is not None)
        assert len(example.grids) == (1 if turn.video else len(turn.frames))
        if turn.video and turn.frames[0].time is not None:
            (path,) = {frame.path for frame in turn.frames}
            own = turn.audio is not None and turn.audio.path == path
            assert own == (not path.endswith(".mkv") and "av_odyssey" not in annotation)
    missing = {str(top / path) for path in MEDIA[annotation]} - used
    assert used <= {str(top / path) for path in MEDIA[annotation]}
    assert not missing or annotation.endswith("episodic_reasoning.json")


def turn_of(tree, annotation, index=0, clip=CLIP):
    return read(tree, annotation, clip)[index].turns[0]


def test_a_whole_clip_is_spread_with_its_own_sound(tree):
    turn = turn_of(tree, "daily_omni/qa.json")
    assert turn.video
    assert [frame.time for frame in turn.frames] == pytest.approx(MIDDLES)
    assert (turn.audio.start, turn.audio.end, turn.time) == pytest.approx((0.0, 2.0, 2.0))


def test_without_sound_nothing_is_heard(tree):
    for annotation in EXPECTED:
        for dialogue in read(tree, annotation, ClipSpec(frames=2, sound=False)):
            (turn,) = dialogue.turns
            assert turn.audio is None
            assert len(turn.frames) <= 2


def test_omnibench_shows_one_picture_and_plays_all_of_one_sound(tree):
    turn = turn_of(tree, "omnibench/dataset/sample.jsonl")
    assert not turn.video
    assert [frame.time for frame in turn.frames] == [None]
    assert (turn.audio.start, turn.audio.end) == pytest.approx((0.0, NOTE))


def test_av_odyssey_keeps_pictures_in_order_and_the_sound_beside_a_video(tree):
    pictures = turn_of(tree, "av_odyssey/av_odyssey.json", 0)
    assert [Path(frame.path).name for frame in pictures.frames] == ["drum.png", "flute.png"]
    assert not pictures.video
    video = turn_of(tree, "av_odyssey/av_odyssey.json", 1)
    assert video.video
    assert [frame.time for frame in video.frames] == pytest.approx(MIDDLES)
    assert video.audio.path.endswith("sounds/note.wav")
    assert (video.audio.start, video.audio.end) == pytest.approx((0.0, NOTE))


def test_mvbench_heeds_the_span_where_the_benchmark_does(tree, tmp_path):
    turn = turn_of(tree, "mvbench/json/action_sequence.json")
    assert [frame.time for frame in turn.frames] == pytest.approx([0.625, 0.875, 1.125, 1.375])
    assert (turn.audio.start, turn.audio.end) == pytest.approx((0.5, 1.5))
    row = json.loads((SAMPLES / "mvbench/json/character_order.json").read_text())[0]
    path = tmp_path / "character_order.json"
    path.write_text(json.dumps([{**row, "start": 0.5, "end": 1.5}]))
    (dialogue,) = load_dialogues("mvbench", path, root=tree / "mvbench", clip=CLIP)[0]
    assert [frame.time for frame in dialogue.turns[0].frames] == pytest.approx(MIDDLES)


@pytest.mark.parametrize(
    ("frames", "numbers"), [(4, [4, 6, 7, 9]), (2, [5, 8]), (99, [4, 5, 6, 7, 8, 9])]
)
def test_mvbench_frame_folders_count_three_frames_a_second(tree, frames, numbers):
    """From 1 s to 3 s that is frames 4 to 9, as frame 1 is shown at 0 s."""
    turn = turn_of(tree, "mvbench/json/episodic_reasoning.json", clip=ClipSpec(frames))
    assert [int(Path(frame.path).stem) for frame in turn.frames] == numbers
    assert [frame.shown for frame in turn.frames] == pytest.approx([(n - 1) / 3 for n in numbers])
    assert turn.video
    assert turn.audio is None
    assert turn.time == 3.0


def test_mvbench_frame_folders_are_stamped_from_their_start(tree, qwen):
    """Six frames from 1 s to 2.67 s in three rows, the time of a row half-way between its two."""
    turn = turn_of(tree, "mvbench/json/episodic_reasoning.json", clip=ClipSpec(99))
    dialogue, grids = Dialogue("q", (turn,)), [(3, 2, 2)]
    stamped = ChatTemplate(qwen, FrameSpec(), style="qwen3_vl").context(dialogue, grids)
    text = qwen.decode(stamped.tokens)
    assert re.findall(r"<([0-9.]+) seconds>", text) == ["1.2", "1.8", "2.5"]
    plain = ChatTemplate(qwen, FrameSpec()).context(dialogue, grids)
    assert plain.media[0].seconds_per_grid == pytest.approx(2 / 3)


def test_video_mme_is_the_same_from_parquet_and_json(tree, tmp_path):
    name = "video_mme/videomme.jsonl"
    table = [json.loads(line) for line in (SAMPLES / name).read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "test-00000-of-00001.parquet")
    (tmp_path / "videomme.json").write_text(json.dumps(table))
    for path in ("test-00000-of-00001.parquet", "videomme.json"):
        same = load_dialogues("video_mme", tmp_path / path, root=tree / "video_mme", clip=CLIP)[0]
        assert same == read(tree, name)


def test_counts_may_be_text_and_questions_may_be_english(tree, tmp_path):
    row = json.loads((SAMPLES / "cg_av_counting/cg-av-counting.json").read_text())[0]
    asked = row.pop("question")
    path = tmp_path / "cg-av-counting.json"
    path.write_text(json.dumps([{**row, "question_en": asked, "answer": "3"}]))
    (dialogue,) = load_dialogues("cg_av_counting", path, root=tree / "cg_av_counting", clip=CLIP)[0]
    assert dialogue.question == EXPECTED["cg_av_counting/cg-av-counting.json"]["0"]


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - {"video_mme", "mvbench"}))
def test_the_annotation_file_is_found_in_a_copy_of_the_benchmark(tree, name):
    (annotation,) = [path for path in MEDIA if path.startswith(f"{name}/")]
    assert find_records(name, tree / name) == tree / annotation


def test_several_annotation_files_are_named(tree):
    with pytest.raises(InputError, match=r"3 files json/\*\.json.*action_sequence\.json"):
        find_records("mvbench", tree / "mvbench")


def test_the_omni_chat_template_takes_every_record(tree, tmp_path):
    corpus = [THINK_SYSTEM, "user assistant system 0123456789 abcdefghijklmnopqrstuvwxyz"] * 4
    omni = {"vision_start": "vision_bos", "vision_end": "vision_eos", "image_pad": "IMAGE"}
    omni = {f"<|{a}|>": f"<|{b}|>" for a, b in {**omni, "video_pad": "VIDEO"}.items()}
    names = [omni.get(token, token) for token in SPECIAL_TOKENS]
    vocab = build_tokenizer(corpus, 400, tmp_path, special_tokens=names)
    template = ChatTemplate(vocab, FrameSpec(), style="qwen2_5_omni", sound=SoundSpec())
    for annotation in EXPECTED:
        for dialogue in read(tree, annotation):
            example = load_example(dialogue, FrameSpec())
            piece = template.context(dialogue, example.grids)
            kinds = {span.kind for span in piece.media}
            heard = dialogue.turns[0].audio is not None
            assert ("audio" in kinds) == heard
            assert kinds - {"audio"} == {"video" if dialogue.turns[0].video else "image"}


@pytest.mark.parametrize("annotation", EXPECTED)
def test_truths_are_such_that_answers_can_be_scored(annotation):
    for question in EXPECTED[annotation].values():
        assert accuracy(question.answer, question) == 1.0
        assert accuracy("nothing of the kind", question) == 0.0


def test_files_of_one_benchmark_can_be_joined_as_qa_records(tree, tmp_path):
    tasks = [f"mvbench/json/{task}.json" for task in ("action_sequence", "character_order")]
    names = [*tasks, "tomato/data/shape&trend.json", "intentbench/qa.json", "mmvu/validation.json"]
    dialogues = [dialogue for name in names for dialogue in read(tree, name)]
    qa.write(dialogues, tmp_path / "all.jsonl", root=tree)
    assert load_dialogues("qa", tmp_path / "all.jsonl", root=tree, clip=CLIP)[0] == dialogues
