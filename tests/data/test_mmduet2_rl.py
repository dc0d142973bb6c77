"""MMDuet2 RL records: what is read from them and what is refused."""

from __future__ import annotations

import copy

import pytest

from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl
from turnwise_jax.errors import InputError

# A record as in the public data: a past of two turns, then three turns that the policy decides.
ROW = {
    "data_source": "mmduet2",
    "ability": "proactive",
    "prompt": [
        {"role": "system", "content": "Watch.", "last_image_time": None},
        {"role": "user", "content": "<image><image>What is he doing?", "last_image_time": 4.0},
        {"role": "assistant", "content": "He cuts an onion.", "last_image_time": None},
        {"role": "user", "content": "<image><image>", "last_image_time": 8.0},
        {"role": "assistant", "content": "NO REPLY", "last_image_time": None},
        {"role": "user", "content": "<image>And now?", "last_image_time": 10.0},
    ],
    "images": [{"type": "image", "image": f"frames/{i:06d}.jpg"} for i in range(1, 5)]
    + [{"type": "image", "image": "videos/a.mp4#t=8.0"}],
    "reward_model": {
        "style": "rule",
        "ground_truth": {
            "answer": [
                {
                    "role": "assistant",
                    "content": "He peels a carrot.",
                    "question": "What is he doing?",
                    "reply_timespan": [9.0, 14.5],
                },
                {
                    "role": "assistant",
                    "content": "He washes up.",
                    "question": "And now?",
                    "reply_timespan": [15, 15],
                    "related_timespan": [13.0, 14.0],
                },
            ],
            "model_pred_timestamps": [10.0, 14.0, 18.0],
            "question_id": "clip_7%Q1",
            "prev_assistant_replies": ["He cuts an onion."],
        },
    },
    "extra_info": {"num_images": 5, "question_id": "clip_7%Q1"},
    "user_turns": [
        {
            "content": [
                {"type": "image", "image": "frames/000001.jpg"},
                {"type": "image", "image": "frames/000002.jpg"},
                {"type": "text", "text": "What is he doing?"},
            ]
        },
        {"content": [{"type": "image", "image": f"frames/{i:06d}.jpg"} for i in (3, 4)]},
        {
            "content": [
                {"type": "image", "image": "videos/a.mp4#t=8.0"},
                {"type": "text", "text": "And now?"},
            ]
        },
        {
            "content": [
                {"type": "image", "image": "videos/a.mp4#t=12"},
                {"type": "image", "image": "/data/b.mp4#t=1.5e1"},
            ]
        },
        {"content": [{"type": "text", "text": "Still?"}]},
    ],
}


def parse(row) -> Dialogue:
    return mmduet2_rl.parse("clip_7%Q1", row, file="train.parquet", root="/root")


def changed(path: str, value):
    """ROW with one entry replaced; the path is keys and indices joined by dots."""
    row = copy.deepcopy(ROW)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = row
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return row


TRUTH = "reward_model.ground_truth"


def test_a_record_is_read_whole():
    dialogue = parse(ROW)
    assert dialogue.id == "clip_7%Q1"
    assert dialogue.system == "Watch."
    assert dialogue.file == "train.parquet"
    jpg = [Frame(f"/root/frames/{i:06d}.jpg") for i in range(1, 5)]
    assert dialogue.turns == (
        Turn((jpg[0], jpg[1]), "What is he doing?", 4.0, "He cuts an onion."),
        Turn((jpg[2], jpg[3]), "", 8.0, "NO REPLY"),
        Turn((Frame("/root/videos/a.mp4", 8.0),), "And now?", 10.0),
        Turn((Frame("/root/videos/a.mp4", 12.0), Frame("/data/b.mp4", 15.0)), "", 14.0),
        Turn((), "Still?", 18.0),
    )
    assert dialogue.windows == (
        Window(9.0, 14.5, "What is he doing?", "He peels a carrot."),
        Window(15.0, 15.0, "And now?", "He washes up.", event_end=14.0),
    )
    assert dialogue.history == ("He cuts an onion.",)
    assert dialogue.first_open == 2


def test_earlier_replies_may_stand_beside_the_ground_truth():
    row = changed(f"{TRUTH}.prev_assistant_replies", None)
    row["reward_model"]["prev_assistant_replies"] = ["Before.", "He cuts an onion."]
    assert parse(row).history == ("Before.", "He cuts an onion.")
    row["reward_model"]["ground_truth"]["prev_assistant_replies"] = []
    assert parse(row).history == ("Before.", "He cuts an onion.")
    row["reward_model"]["ground_truth"]["prev_assistant_replies"] = ["Within."]
    assert parse(row).history == ("Within.",)
    row["reward_model"]["prev_assistant_replies"] = [3]
    with pytest.raises(InputError, match=r"field 'reward_model\.prev_assistant_replies\[0\]'"):
        parse(row)


def test_without_a_list_of_earlier_replies_those_of_the_prompt_count():
    assert parse(changed(f"{TRUTH}.prev_assistant_replies", KeyError)).history == (
        "He cuts an onion.",
    )
    assert parse(changed(f"{TRUTH}.prev_assistant_replies", [])).history == ()


def test_times_of_the_past_are_counted_back_by_frames_where_they_are_missing():
    row = copy.deepcopy(ROW)
    for message in row["prompt"]:
        message["last_image_time"] = None
    # open turns: 10 s, then 2 frames until 14 s, none until 18 s -> 4 s a frame
    assert [turn.time for turn in parse(row).turns] == [0.0, 6.0, 10.0, 14.0, 18.0]
    row["prompt"][1]["last_image_time"] = 3.0
    assert [turn.time for turn in parse(row).turns] == [3.0, 6.0, 10.0, 14.0, 18.0]


def test_with_one_open_turn_the_past_is_counted_from_the_start_of_the_video():
    row = copy.deepcopy(ROW)
    for message in row["prompt"]:
        del message["last_image_time"]
    row["user_turns"] = row["user_turns"][:3]
    row["reward_model"]["ground_truth"]["model_pred_timestamps"] = [10.0]
    assert [turn.time for turn in parse(row).turns] == [4.0, 8.0, 10.0]


def test_the_question_id_may_stand_in_either_place():
    assert parse(changed(f"{TRUTH}.question_id", None)).id == "clip_7%Q1"
    assert parse(changed("extra_info", None)).id == "clip_7%Q1"


def test_blanks_between_pictures_are_not_text():
    dialogue = parse(changed("prompt.1.content", "<image>\n<image>\nWhat?"))
    assert dialogue.turns[0].text == "\nWhat?"


BAD = [
    ("reward_model", None, "reward_model", "must be a mapping, got nothing"),
    (TRUTH, "x", TRUTH, "must be a mapping, got 'x'"),
    ("prompt", None, "prompt", "must be a list"),
    ("prompt", [], "prompt", "must end with a message of the user"),
    ("prompt.0", "hi", "prompt[0]", "must be a mapping"),
    ("prompt.1.role", "assistant", "prompt[1].role", "must be 'user' here, got 'assistant'"),
    ("prompt.2.role", "user", "prompt[2].role", "must be 'assistant' here, got 'user'"),
    ("prompt.3.role", "system", "prompt[3].role", "must be 'user' here, got 'system'"),
    ("prompt.5", KeyError, "prompt", "must end with a message of the user"),
    ("prompt.0.content", 3, "prompt[0].content", "must be text, got 3"),
    ("prompt.2.content", None, "prompt[2].content", "must be text, got nothing"),
    ("prompt.1.content", "Well <image><image>", "prompt[1].content", "text before an <image>"),
    ("prompt.5.content", "<image><image>", "images", "has 2 <image>s, 1 pictures left"),
    ("prompt.5.content", "And now?", "images", "holds 5 pictures for 4 <image>s in prompt"),
    ("prompt.1.last_image_time", float("nan"), "prompt[1].last_image_time", "must be finite"),
    ("prompt.1.last_image_time", 9.0, "prompt[1].last_image_time", "between 0 and 8 s"),
    ("prompt.3.last_image_time", 11.0, "prompt[3].last_image_time", "between 0 and 10 s"),
    ("images", "x", "images", "must be a list"),
    ("images.1", "x.jpg", "images[1]", "must be a mapping"),
    ("images.1.image", None, "images[1].image", "must be text"),
    ("images.1.image", "", "images[1].image", "is an empty path"),
    ("images.4.image", "a.mp4#t=soon", "images[4].image", "needs #t=seconds"),
    ("images.4.image", "a.mp4#t=nan", "images[4].image", "must be finite and not negative"),
    ("images.4.image", "a.mp4#t=-1", "images[4].image", "must be finite and not negative"),
    (f"{TRUTH}.answer", None, f"{TRUTH}.answer", "must be a list"),
    (f"{TRUTH}.answer.1.content", None, f"{TRUTH}.answer[1].content", "must be text"),
    (f"{TRUTH}.answer.1.question", 5, f"{TRUTH}.answer[1].question", "must be text"),
    (
        f"{TRUTH}.answer.1.reply_timespan",
        [15.0, 14.0],
        f"{TRUTH}.answer[1].reply_timespan",
        "ends at 14 s, before it starts at 15 s",
    ),
    (
        f"{TRUTH}.answer.0.reply_timespan",
        [1.0],
        f"{TRUTH}.answer[0].reply_timespan",
        r"must be \[start, end\]",
    ),
    (
        f"{TRUTH}.answer.0.reply_timespan",
        [1.0, float("nan")],
        f"{TRUTH}.answer[0].reply_timespan[1]",
        "must be finite, got nan",
    ),
    (
        f"{TRUTH}.answer.1.related_timespan",
        [2.0, 1.0],
        f"{TRUTH}.answer[1].related_timespan",
        "ends at 1 s",
    ),
    (f"{TRUTH}.model_pred_timestamps", None, f"{TRUTH}.model_pred_timestamps", "must be a list"),
    (
        f"{TRUTH}.model_pred_timestamps",
        [10.0, 14.0],
        f"{TRUTH}.model_pred_timestamps",
        "has 2 times for 3 open turns",
    ),
    (
        f"{TRUTH}.model_pred_timestamps",
        [10.0, 14.0, 12.0],
        f"{TRUTH}.model_pred_timestamps[2]",
        "goes back in time: 12 after 14",
    ),
    (
        f"{TRUTH}.model_pred_timestamps",
        [10.0, float("inf"), 12.0],
        f"{TRUTH}.model_pred_timestamps[1]",
        "must be finite",
    ),
    (
        f"{TRUTH}.model_pred_timestamps",
        [-1.0, 1.0, 2.0],
        f"{TRUTH}.model_pred_timestamps[0]",
        "must not be negative",
    ),
    (
        f"{TRUTH}.prev_assistant_replies",
        [3],
        f"{TRUTH}.prev_assistant_replies[0]",
        "must be text, got 3",
    ),
    ("extra_info.question_id", "other", "extra_info.question_id", "is 'other', but"),
    ("user_turns", None, "user_turns", "has no such question id"),
    ("user_turns", [], "user_turns", "lists 0 turns, the prompt alone has 3"),
    ("user_turns.0", [], "user_turns[0]", "must be a mapping"),
    ("user_turns.3.content", None, "user_turns[3].content", "must be a list"),
    (
        "user_turns.3.content.0.type",
        "gif",
        "user_turns[3].content[0].type",
        "'image', 'audio' or 'text'",
    ),
    ("user_turns.3.content.0.image", 1, "user_turns[3].content[0].image", "must be text"),
    ("user_turns.4.content.0.text", None, "user_turns[4].content[0].text", "must be text"),
    ("user_turns.1.content", [], "user_turns[1].content", "has 0 pictures, the same turn of the"),
    (
        "user_turns.4.content",
        [{"type": "text", "text": "a"}, {"type": "image", "image": "b.jpg"}],
        "user_turns[4].content[1]",
        "a picture after text",
    ),
]


@pytest.mark.parametrize(("path", "value", "field", "message"), BAD)
def test_a_bad_record_is_one_line_with_file_record_and_field(path, value, field, message):
    with pytest.raises(InputError, match=message) as caught:
        parse(changed(path, value))
    error = caught.value
    assert (error.file, error.record, error.field) == ("train.parquet", "clip_7%Q1", field)
    assert "\n" not in str(error)


def test_a_record_without_any_question_id_is_refused():
    row = changed("extra_info", None)
    row["reward_model"]["ground_truth"]["question_id"] = None
    with pytest.raises(InputError, match="question_id': must be text, got nothing"):
        parse(row)
