"""Small files in the formats of public benchmarks, with real media, and what they hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from sound_files import beeps, write_sound
from video_files import write_video

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue, Question
from turnwise_jax.data.sources.benchmarks.intentbench import ALL_LETTERS, YES_OR_NO

SAMPLES = Path(__file__).parent / "benchmarks"
CLIP = ClipSpec(frames=4, sound=True)
SECONDS = 2.0  # of every video
NOTE = 1.5  # s of every sound file

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
    "mvbench/json/action_sequence.json": ["video/star/star/Charades_v1_480/KITCHEN.mp4"],
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


def write_benchmarks(made: Path, top: Path) -> Path:
    """All samples with their media below ``top``; what they are copied from goes to ``made``."""
    write_sound(made / "clip.mp4", beeps(SECONDS, [0.5]), codec="aac", video_seconds=SECONDS)
    shutil.copy(made / "clip.mp4", made / "clip.MP4")
    write_video(made / "clip.mkv", 20)
    write_sound(made / "clip.wav", beeps(NOTE, [0.5]))
    picture = Image.fromarray(np.full((48, 64, 3), 90, np.uint8))
    for suffix in ("png", "jpg"):
        picture.save(made / f"clip.{suffix}")
    shutil.copytree(SAMPLES, top, dirs_exist_ok=True)
    for annotation, media in MEDIA.items():
        for path in media:
            target = top / annotation.split("/")[0] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made / f"clip{target.suffix}", target)
    return top


def read(tree: Path, annotation: str, clip: ClipSpec = CLIP) -> list[Dialogue]:
    """The records of one annotation file of ``write_benchmarks``."""
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
