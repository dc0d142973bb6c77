"""Readers of public benchmarks, on small files in their formats with real media beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sound_files import beeps, write_sound
from video_files import write_video

from turnwise_jax.data import DATASETS
from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.example import load_example
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import find_records, load_dialogues
from turnwise_jax.data.records import ClipSpec, Question
from turnwise_jax.data.sources.benchmarks import BENCHMARKS
from turnwise_jax.data.sources.benchmarks.intentbench import ALL_LETTERS, YES_OR_NO
from turnwise_jax.data.sources.qa import THINK_SYSTEM
from turnwise_jax.data.tokens import SPECIAL_TOKENS, build_tokenizer
from turnwise_jax.errors import InputError

SAMPLES = Path(__file__).parent / "benchmarks"
CLIP = ClipSpec(frames=4, sound=True)
MIDDLES = (0.25, 0.75, 1.25, 1.75)  # of four equal parts of the clips, which last 2 s
NOTE = 1.5  # s of the sound files

# annotation file (below the benchmark's folder) -> media files below the same folder
MEDIA = {
    "omnibench/dataset/sample.jsonl": ["mm_data/audio/whistle.wav", "mm_data/image/track.png"],
    "daily_omni/qa.json": ["Videos/door01/door01_video.mp4"],
    "worldsense/worldsense_qa.json": ["videos/harbour.mp4"],
    "av_odyssey/av_odyssey.json": [
        "pictures/drum.png",
        "pictures/pictures/flute.png",
        "sounds/note.wav",
        "clips/clips/step.mp4",
    ],
    "video_mme/videomme.jsonl": ["data/river-_01.mp4", "data/road-_02.MP4"],
    "mvbench/json/action_sequence.json": ["video/star/Charades_v1_480/KITCHEN.mp4"],
    "mvbench/json/character_order.json": ["video/data0613/perception/videos/video_1.mp4"],
    "mvbench/json/episodic_reasoning.json": [
        f"video/tvqa/frames_fps3_hq/show_s01e01_seg01_clip_00/{number:05d}.jpg"
        for number in range(1, 13)
    ],
    "lvbench/video_info.meta.jsonl": ["all_videos/long-_video1.mkv"],
    "video_holmes/test_Video-Holmes.json": ["videos/film_-01.mp4"],
    "mmvu/validation.json": ["videos/Chemistry/0.mp4", "videos/Art/0.mp4"],
    "tomato/data/shape&trend.json": ["videos/human/0001-00.mp4", "videos/simulated/0002-01.mp4"],
    "intentbench/qa.json": ["videos/talk.mp4", "videos/sample_1.mp4", "trial.mp4"],
    "cg_av_counting/cg-av-counting.json": ["cg_videos_720p/market.mp4"],
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """All samples with their media: every video lasts 2 s and beeps, every sound file 1.5 s."""
    made = tmp_path_factory.mktemp("made")
    write_sound(made / "clip.mp4", beeps(2.0, [0.5]), codec="aac", layout="mono", video_seconds=2.0)
    shutil.copy(made / "clip.mp4", made / "clip.MP4")
    write_video(made / "clip.mkv", 20)
    write_sound(made / "clip.wav", beeps(NOTE, [0.5]))
    picture = Image.fromarray(np.full((48, 64, 3), 90, np.uint8))
    for suffix in ("png", "jpg"):
        picture.save(made / f"clip.{suffix}")
    top = tmp_path_factory.mktemp("benchmarks")
    shutil.copytree(SAMPLES, top, dirs_exist_ok=True)
    for annotation, media in MEDIA.items():
        for path in media:
            target = top / annotation.split("/")[0] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made / f"clip{target.suffix}", target)
    return top


def read(tree: Path, annotation: str, clip: ClipSpec = CLIP):
    name = annotation.split("/")[0]
    return load_dialogues(name, tree / annotation, root=tree / name, clip=clip)[0]


def choice(text, letter, options, category, sound=""):
    return Question(text, letter, "multiple_choice", tuple(options), category, sound)


EXPECTED = {
    "omnibench/dataset/sample.jsonl": {
        "0": choice(
            "What is the man about to do?",
            "B",
            ["He ties his shoe.", "He starts to run.", "He falls asleep.", "He leaves the track."],
            "Action and Activity",
            "A starting whistle.",
        ),
        "1": choice(
            "How many cups are asked for?",
            "C",
            ["One", "Two", "Three", "Four"],
            "Count and Quantity",
            "Two more, please.",
        ),
    },
    "daily_omni/qa.json": {
        "door01_0": choice(
            "Which sound is heard while the door closes?",
            "C",
            ["A bell", "A dog", "Rain", "A train"],
            "AV Event Alignment",
        ),
        "door01_1": choice(
            "What happens after the door closes?",
            "A",
            ["The light goes out", "A dog comes in", "It opens", "Nothing"],
            "Event Sequence",
        ),
    },
    "worldsense/worldsense_qa.json": {
        "harbour_task0": choice(
            "How often does the horn sound?",
            "B",
            ["Once.", "Twice.", "Three times.", "Never."],
            "Daily Life",
        ),
        "harbour_task1": choice(
            "What comes first?",
            "C",
            ["The bow turns.", "A rope falls.", "The horn sounds."],
            "Daily Life",
        ),
    },
    "av_odyssey/av_odyssey.json": {
        "1_0": choice(
            "Which of [img1] and [img2] makes the sound of [audio1]?",
            "B",
            ["The first", "The second", "Both", "Neither"],
            "Timbre",
        ),
        "9_4": choice(
            "Does [audio1] fit [video1]?",
            "A",
            ["Yes", "It comes too early", "It comes too late", "It is another"],
            "Time",
        ),
    },
    "video_mme/videomme.jsonl": {
        "001-1": choice(
            "How many bridges are shown?", "D", ["One.", "Two.", "Three.", "Four."], "short"
        ),
        "301-2": choice(
            "Why does the car stop?", "B", ["A gate.", "A cow.", "No fuel.", "Snow."], "medium"
        ),
    },
    "mvbench/json/action_sequence.json": {
        "action_sequence_0": choice(
            "What happened after the person opened the box?",
            "B",
            ["Sat down.", "Took the cup.", "Closed the door.", "Held the towel."],
            "action_sequence",
        ),
    },
    "mvbench/json/character_order.json": {
        "character_order_0": choice(
            "Which letter is written first?", "B", ["B", "A", "C"], "character_order"
        ),
    },
    "mvbench/json/episodic_reasoning.json": {
        "episodic_reasoning_0": choice(
            "Where does she put the letter?",
            "B",
            ["On the table", "In a book", "In her coat", "On the bed", "In a box"],
            "episodic_reasoning",
        ),
    },
    "lvbench/video_info.meta.jsonl": {
        "0": choice(
            "What year is written on the wall?",
            "B",
            ["1632", "1636", "1640", "1648"],
            "key information retrieval",
        ),
        "1": choice(
            "Who leads the walk?",
            "A",
            ["A guide", "A child", "A dog", "Nobody"],
            "entity recognition",
        ),
    },
    "video_holmes/test_Video-Holmes.json": {
        "film_-01_1": choice(
            "Who are the two people in the lift to each other?",
            "E",
            [
                *("Strangers", "Sisters", "Mother and daughter"),
                *("Teacher and pupil", "Neighbours", "Rivals"),
            ],
            "SR",
        ),
    },
    "mmvu/validation.json": {
        "validation_0": choice(
            "How many grams of solid are formed?",
            "C",
            ["1.0", "2.0", "4.0", "8.0", "16.0"],
            "Chemistry",
        ),
        "validation_1": Question(
            "Which way of painting is shown?", "Wet on wet", "free_form", category="Art"
        ),
    },
    "tomato/data/shape&trend.json": {
        "shape&trend_0": choice(
            "What does the hand draw?",
            "B",
            ["A square.", "A circle.", "A line.", "Nothing at all."],
            "shape&trend",
        ),
        "shape&trend_7": choice(
            "Does the pile grow?", "A", ["It grows.", "It shrinks.", "It stays."], "shape&trend"
        ),
    },
    "intentbench/qa.json": {
        "q_why_1": choice(
            "Why does the woman look away?",
            "B",
            ["She is bored", "She is ashamed", "She hears a noise", "She is cold"],
            "why",
        ),
        "sample_1_1": Question(
            "Which emotions does the man show?\n"
            f"A. angry\nB. calm\nC. hurt\nD. happy\n{ALL_LETTERS}",
            "A,C",
            "exact",
            category="emotion",
        ),
        "trial_2": Question(
            f'The person was asked "Did you take it?" Is the answer a lie?\n{YES_OR_NO}',
            "Yes",
            "exact",
            category="deception",
        ),
    },
    "cg_av_counting/cg-av-counting.json": {
        "0": Question("How often does the bell ring?", "3", "numeric", category="event"),
        "1": Question("How many different hats are shown?", "12", "numeric", category="attribute"),
    },
}


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
    assert turn.video
    assert turn.audio is None
    assert turn.time == 3.0


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


def test_mmvu_leaves_out_empty_choices(tree, tmp_path):
    path = edited(tree, tmp_path, "mmvu/validation.json", put("choices", "E", ""))
    first = load_dialogues("mmvu", path, root=tree / "mmvu", clip=CLIP)[0][0]
    assert first.question.options == ("1.0", "2.0", "4.0", "8.0")


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


def edited(tree: Path, tmp_path: Path, annotation: str, edit) -> Path:
    """A copy of an annotation file whose (first) record was edited."""
    text = (tree / annotation).read_text()
    path = tmp_path / Path(annotation).name
    if path.suffix == ".jsonl":
        first, *others = text.splitlines()
        row = json.loads(first)
        edit(row)
        path.write_text("\n".join([json.dumps(row), *others]))
    else:
        value = json.loads(text)
        edit(value[0] if isinstance(value, list) else value)
        path.write_text(json.dumps(value))
    return path


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def edit(row):
        for key in keys:
            row = row[key]
        row[last] = value

    return edit


WRONG = [
    ("omnibench/dataset/sample.jsonl", put("answer", "He swims."), "0", "answer", "text of one of"),
    ("omnibench/dataset/sample.jsonl", put("options", ["x"]), "0", "options", "2 to 26"),
    ("omnibench/dataset/sample.jsonl", put("audio_path", None), "0", "audio_path", "must be text"),
    ("omnibench/dataset/sample.jsonl", put("audio_path", "no.wav"), "0", "audio_path", "no such"),
    ("omnibench/dataset/sample.jsonl", put("task type", ""), "0", "task type", "is empty"),
    ("daily_omni/qa.json", put("Answer", "E"), "door01_0", "Answer", "one of 4 options, got 'E'"),
    ("daily_omni/qa.json", put("Answer", "Rain"), "door01_0", "Answer", "must be the letter"),
    ("daily_omni/qa.json", put("Question", " "), "door01_0", "Question", "is empty"),
    ("daily_omni/qa.json", put("Choice", "A. x"), "door01_0", "Choice", "must be a list"),
    ("daily_omni/qa.json", put("video_id", "gone"), "gone_0", "video_id", "no such file"),
    (
        "worldsense/worldsense_qa.json",
        put("harbour", "task0", "answer", None),
        "harbour_task0",
        "answer",
        "must be text, got nothing",
    ),
    ("worldsense/worldsense_qa.json", put("harbour", 3), "harbour", None, "must be a mapping"),
    ("worldsense/worldsense_qa.json", put("harbour", {}), "harbour", None, "has no task"),
    (
        "worldsense/worldsense_qa.json",
        put("harbour", "task0", []),
        "harbour_task0",
        None,
        "must be a mapping",
    ),
    (
        "av_odyssey/av_odyssey.json",
        put("audio_path", ["sounds/note.wav"] * 4),
        "1_0",
        "audio_path",
        "holds 4 files; a turn has room for one",
    ),
    (
        "av_odyssey/av_odyssey.json",
        put("video_path", ["clips/step.mp4"]),
        "1_0",
        "video_path",
        "beside image_path",
    ),
    ("av_odyssey/av_odyssey.json", put("image_path", "x.png"), "1_0", "image_path", "a list"),
    ("video_mme/videomme.jsonl", put("options", None), "001-1", "answer", "one of 0 options"),
    ("video_mme/videomme.jsonl", put("videoID", "gone"), "001-1", "videoID", "gone.mp4: no such"),
    (
        "mvbench/json/action_sequence.json",
        put("answer", "A"),
        "action_sequence_0",
        "answer",
        "text of one of 4 options, got 'A'",
    ),
    (
        "mvbench/json/action_sequence.json",
        put("start", 9.0),
        "action_sequence_0",
        "start",
        "must lie in",
    ),
    (
        "mvbench/json/episodic_reasoning.json",
        put("start", 4.0),
        "episodic_reasoning_0",
        "end",
        "must leave something of the 12 frames",
    ),
    (
        "mvbench/json/episodic_reasoning.json",
        put("video", "gone"),
        "episodic_reasoning_0",
        "video",
        "holds no frames",
    ),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "answer", "F"), "0", "answer", "got 'F'"),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "question", "Why?"), "0", "question", "options"),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "question_type", []), "0", "question_type", ""),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "text"), "long-_video1_0", None, "a mapping"),
    ("lvbench/video_info.meta.jsonl", put("qa", None), "long-_video1", None, "has no list qa"),
    (
        "video_holmes/test_Video-Holmes.json",
        put("Options", {"A": "x", "C": "y"}),
        "film_-01_1",
        "Options",
        "must have the letters A, B, C",
    ),
    (
        "video_holmes/test_Video-Holmes.json",
        put("Options", ["x", "y"]),
        "film_-01_1",
        "Options",
        "must be a mapping",
    ),
    ("mmvu/validation.json", put("question_type", "essay"), "validation_0", "question_type", "got"),
    ("mmvu/validation.json", put("metadata", {}), "validation_0", "metadata.subject", "must be"),
    ("tomato/data/shape&trend.json", put("0", "answer", 4), "shape&trend_0", "answer", "got 4"),
    ("tomato/data/shape&trend.json", put("0", "answer", 1.5), "shape&trend_0", "answer", "got 1.5"),
    ("tomato/data/shape&trend.json", put("0", "answer", "B"), "shape&trend_0", "answer", "number"),
    ("tomato/data/shape&trend.json", put("0", []), "shape&trend_0", None, "must be a mapping"),
    ("intentbench/qa.json", put("problem_type", "essay"), "q_why_1", "problem_type", "or judge"),
    ("intentbench/qa.json", put("problem_type", "judge"), "q_why_1", "solution", "Yes or No"),
    ("intentbench/qa.json", put("solution", "<answer></answer>"), "q_why_1", "solution", "empty"),
    ("cg_av_counting/cg-av-counting.json", put("answer", "few"), "0", "answer", "a number"),
    ("cg_av_counting/cg-av-counting.json", put("answer", True), "0", "answer", "a number"),
    ("cg_av_counting/cg-av-counting.json", put("question", None), "0", "question_en", "be text"),
]


@pytest.mark.parametrize(("annotation", "edit", "record", "field", "message"), WRONG)
def test_what_is_wrong_is_named(tree, tmp_path, annotation, edit, record, field, message):
    name = annotation.split("/")[0]
    path = edited(tree, tmp_path, annotation, edit)
    with pytest.raises(InputError) as caught:
        load_dialogues(name, path, root=tree / name, clip=CLIP)
    error = caught.value
    assert (error.file, error.record, error.field) == (str(path), record, field)
    assert message in error.message


@pytest.mark.parametrize(
    ("annotation", "gone", "kept"),
    [
        ("video_mme/videomme.jsonl", "data/road-_02.MP4", ["001-1"]),
        ("mmvu/validation.json", "videos/Chemistry/0.mp4", ["validation_1"]),
        ("tomato/data/shape&trend.json", "videos/human/0001-00.mp4", ["shape&trend_7"]),
        ("intentbench/qa.json", "trial.mp4", ["q_why_1", "sample_1_1"]),
        ("omnibench/dataset/sample.jsonl", "mm_data/audio/whistle.wav", []),
    ],
)
def test_a_missing_medium_costs_only_its_own_questions(tree, tmp_path, annotation, gone, kept):
    name = annotation.split("/")[0]
    shutil.copytree(tree / name, tmp_path / name)
    (tmp_path / name / gone).unlink()
    path = tmp_path / annotation
    skip = {"root": tmp_path / name, "clip": CLIP, "on_bad_record": "skip"}
    if not kept:
        with pytest.raises(InputError, match=r"no usable record; the first of 2 bad ones.*no such"):
            load_dialogues(name, path, **skip)
        return
    dialogues, skipped = load_dialogues(name, path, **skip)
    assert [dialogue.id for dialogue in dialogues] == kept
    assert all("no such file" in line for line in skipped)
    assert len(skipped) == len(EXPECTED[annotation]) - len(kept)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_files_that_hold_no_records_are_refused(tmp_path, name):
    module = BENCHMARKS[name]
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(InputError, match="not readable as JSON"):
        list(module.rows(path))
    path.write_text("3")
    with pytest.raises(InputError, match="must hold a"):
        list(module.rows(path))
    with pytest.raises(InputError, match="no file of user turns"):
        list(module.rows(path, user_turns=path))
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        list(module.rows(path))
    (tmp_path / "x.parquet").write_text("no table")
    if name not in ("worldsense", "tomato"):
        with pytest.raises(InputError, match="not readable as parquet"):
            list(module.rows(tmp_path / "x.parquet"))


def test_entries_that_are_no_records_are_refused_one_by_one(tree, tmp_path):
    rows = json.loads((tree / "daily_omni/qa.json").read_text())
    path = tmp_path / "qa.json"
    path.write_text(json.dumps([rows[0], "text", rows[1]]))
    kept = {"root": tree / "daily_omni", "clip": CLIP}
    dialogues, skipped = load_dialogues("daily_omni", path, on_bad_record="skip", **kept)
    assert [dialogue.id for dialogue in dialogues] == ["door01_0", "door01_2"]
    assert skipped == [f"{path}: record 'question_1': must be a mapping"]


def test_mvbench_files_are_called_after_their_task(tree, tmp_path):
    path = tmp_path / "mvbench.json"
    shutil.copy(tree / "mvbench/json/action_sequence.json", path)
    with pytest.raises(InputError, match=r"field 'task': the file must be called <task>\.json"):
        load_dialogues("mvbench", path, root=tree / "mvbench")
