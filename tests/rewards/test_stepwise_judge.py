"""Reasoning judged step by step: what is asked, what is shown, and how the grades are read."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time

import pytest
from judge_server import JudgeServer, in_turn, says, status

from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import (
    CachedJudge,
    Counts,
    JudgeStats,
    OpenAIJudge,
    Request,
    RuleJudge,
    make_judge,
)
from turnwise_jax.rewards.judges.prompts import CRITERIA, messages, parse
from turnwise_jax.rewards.judges.rule import grounding
from turnwise_jax.rewards.stepwise import FRAMES, middles, stepwise_request

WHERE = Question(
    "Where is the shape that sounds?",
    "A",
    "multiple_choice",
    ("left", "right"),
    sound="Two high beeps from the circle.",
)
REPLY = "<think>I hear the circle.\nIt is at the left.</think><answer>(b)</answer>"
CLIP = tuple(f"/clips/a.mp4#t={n / 2}" for n in range(4))
ASKED = stepwise_request(REPLY, WHERE, CLIP)
GRADES = {name: 0.5 for name in CRITERIA}


def test_the_request_puts_letters_into_words():
    request = stepwise_request(REPLY, WHERE, CLIP)
    assert request == Request(
        "stepwise",
        question="Where is the shape that sounds? A. left B. right",
        answer="A. left",
        reply="B. right",
        sound="Two high beeps from the circle.",
        reasoning="I hear the circle.\nIt is at the left.",
        frames=CLIP,
    )


def test_answers_that_name_no_option_stay_as_they_are():
    count = Question("How many beeps?", "2", "numeric")
    request = stepwise_request("<think>beep beep</think><answer>two</answer>", count)
    assert (request.question, request.answer, request.reply) == ("How many beeps?", "2", "two")
    lettered = Question("Which? A. left B. right", "A", "multiple_choice")
    request = stepwise_request("<think>hm</think><answer>both</answer>", lettered)
    assert (request.question, request.answer, request.reply) == (lettered.text, "A", "both")


@pytest.mark.parametrize("text", ["A", "<answer>A</answer>", "<think> </think><answer>A</answer>"])
def test_without_reasoning_nothing_is_asked(text):
    assert stepwise_request(text, WHERE) is None


def test_frames_are_the_middles_of_equal_parts():
    names = [str(n) for n in range(32)]
    assert middles(names, 8) == ("2", "6", "10", "14", "18", "22", "26", "30")
    assert middles(names, 1) == ("16",)
    assert middles(names[:8], 8) == tuple(names[:8])
    assert middles([], 8) == ()
    for count in range(9, 40):
        chosen = [int(name) for name in middles([str(n) for n in range(count)], FRAMES)]
        assert len(set(chosen)) == FRAMES
        assert chosen == sorted(chosen)
        assert max(abs(n - (i + 0.5) * count / FRAMES) for i, n in enumerate(chosen)) <= 1


# --- the rule


@pytest.mark.parametrize(
    ("reasoning", "score"),
    [
        # heard: 2, high, beep, circle; true: left; place: left
        ("Two high beeps, the circle: left.", 1.0),
        ("I hear 2 high beeps of the circle. The circle is at the left.", 1.0),
        ("I hear the circle. The circle is at the left.", (1 / 4 + 1 + 1) / 3),
        ("I hear the circle at the right.", (1 / 4 + 0 + 0) / 3),
        ("Two high beeps, the circle: left or right.", (1 + 1 + 0) / 3),
        ("A square.", 0.0),
        ("", 0.0),
    ],
)
def test_the_rule_by_hand(reasoning, score):
    assert grounding(reasoning, WHERE.sound, "A. left") == pytest.approx(score)
    request = ASKED._replace(reasoning=reasoning)
    assert RuleJudge().ask([request]) == [pytest.approx(score)]


def test_the_rule_leaves_out_what_is_not_there():
    assert grounding("a red circle", "", "B. red") == 1.0
    assert grounding("a blue circle", "", "red") == 0.0
    assert grounding("a red square", "", "A red circle") == 0.5
    assert grounding("one low beep", "One low beep.", "yes") == 1.0
    assert grounding("three", "", "3") == grounding("3", "", "three") == 1.0
    assert grounding("it turned, now green", "", "the square turns green") == pytest.approx(1 / 3)
    assert grounding("anything", "", "no") == 0.0


def test_saying_every_place_is_not_naming_the_place():
    every = "left right top bottom middle"
    assert grounding(every, "", "left") == grounding("left", "", "left") / 2


# --- the model's instructions and its answer


def test_the_prompt_names_every_criterion_and_shows_every_text():
    system, user = (message["content"] for message in messages(ASKED, 5))
    assert all(f"\n{name}: " in system for name in CRITERIA)
    assert user.splitlines() == [
        "Question: Where is the shape that sounds? A. left B. right",
        "Sound caption: Two high beeps from the circle.",
        "True answer: A. left",
        "Reasoning: I hear the circle. It is at the left.",
        "Final answer: B. right",
    ]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (json.dumps(GRADES), 0.5),
        ('{"audio_grounding": 1, "visual_identification": 0.5}', 0.75),
        ('{"location_accuracy": 0}', 0.0),
        ('```json\n{"caption_correctness": 0.25}\n```', 0.25),
        ('Here: {"caption_correctness": 1.0} as asked', 1.0),
        ('<think>{"audio_grounding": 0}</think>{"audio_grounding": 1}', 1.0),
        ('{"audio_grounding": 0} or rather {"audio_grounding": 1}', 1.0),
        ('{"scores": {"audio_grounding": 0.5}}', 0.5),
        ('{"audio_grounding": 1, "more": {"audio_grounding": 0}}', 1.0),
        ('{"audio_grounding": 1} {"note": "fine"}', 1.0),
        ('{} { {"audio_grounding": 1}', 1.0),
        # entries that are no grades are passed over
        ('{"audio_grounding": 1, "visual_identification": "0.5"}', 1.0),
        ('{"audio_grounding": 1, "visual_identification": null}', 1.0),
        ('{"audio_grounding": 0.5, "visual_identification": true}', 0.5),
        ('{"audio_grounding": 0.5, "location_accuracy": 7}', 0.5),
        ('{"audio_grounding": 0.5, "location_accuracy": -0.1}', 0.5),
        ('{"audio_grounding": 0.5, "location_accuracy": NaN}', 0.5),
        ('{"audio_grounding": 0.5, "elegance": 1}', 0.5),
        # nothing to read
        ('{"audio_grounding": 7}', None),
        ('{"audio_grounding": "1"}', None),
        ('{"audio_grounding": true}', None),
        ('{"audio_grounding": Infinity}', None),
        ('{"elegance": 1}', None),
        ('{"audio_grounding": 1', None),
        ("[1, 1, 1, 1]", None),
        ("1", None),
        ("{}", None),
        ("yes", None),
        ("", None),
        ("{" * 3000, None),
        ('{"a":' * 1500, None),
    ],
)
def test_grades_become_their_mean_or_nothing(text, score):
    assert parse(text, "stepwise", 5) == score
    assert parse(text, "stepwise", 3) == score


# --- the model behind its endpoint


class Camera:
    """Pictures by name; notes what was taken, and whether two were at once."""

    def __init__(self):
        self.taken: list[str] = []
        self.overlapped = False
        self._one = threading.Lock()

    def __call__(self, frame: str) -> bytes:
        self.overlapped |= not self._one.acquire(blocking=False)
        time.sleep(0.001)
        self.taken.append(frame)
        with contextlib.suppress(RuntimeError):
            self._one.release()
        return b"\xff\xd8" + frame.encode()


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def start(script, **settings):
            server = stack.enter_context(JudgeServer(script))
            quick = {"timeout": 5.0, "retries": 2, "backoff": 0.01, "concurrency": 4}
            judge = OpenAIJudge(server.url, "tiny-judge", **quick | settings)
            return server, stack.enter_context(judge)

        yield start


def test_frames_are_sent_as_pictures_before_the_text(serve):
    server, judge = serve(in_turn(says(json.dumps(GRADES))), picture=Camera())
    assert judge.ask([ASKED]) == [0.5]
    *pictures, text = server.bodies[0]["messages"][1]["content"]
    assert text == {"type": "text", "text": messages(ASKED, 5)[1]["content"]}
    assert len(pictures) == len(CLIP)
    for frame, picture in zip(CLIP, pictures, strict=True):
        assert picture["type"] == "image_url"
        head, _, data = picture["image_url"]["url"].partition(",")
        assert head == "data:image/jpeg;base64"
        assert base64.b64decode(data) == b"\xff\xd8" + frame.encode()


def test_without_frames_or_without_a_camera_only_text_is_sent(serve):
    for settings, request in (({}, ASKED), ({"picture": Camera()}, ASKED._replace(frames=()))):
        server, judge = serve(in_turn(says(json.dumps(GRADES))), **settings)
        assert judge.ask([request]) == [0.5]
        assert server.bodies[0]["messages"] == messages(ASKED, 5)


def test_each_frame_is_made_once_and_one_at_a_time(serve):
    camera = Camera()
    _, judge = serve(in_turn(says(json.dumps(GRADES))), picture=camera)
    requests = [ASKED._replace(reasoning=f"reason {n}") for n in range(12)]
    assert judge.ask(requests) == [0.5] * 12
    assert sorted(camera.taken) == sorted(CLIP)
    assert not camera.overlapped


def test_a_frame_that_cannot_be_had_stops_with_its_file(serve):
    def picture(frame):
        raise InputError("cannot be read", file=frame)

    server, judge = serve(in_turn(says(json.dumps(GRADES))), picture=picture)
    with pytest.raises(InputError, match=r"a\.mp4#t=0\.0: cannot be read"):
        judge.ask([ASKED, ASKED])
    assert server.bodies == []


def test_an_answer_without_grades_is_missing_and_not_a_zero(serve):
    server, judge = serve(in_turn(says("well done"), says('{"audio_grounding": 0}')), concurrency=1)
    assert judge.ask([ASKED]) == [None]
    assert judge.ask([ASKED]) == [0.0]
    assert len(server.bodies) == 2


def test_a_passing_fault_is_asked_again_with_the_same_pictures(serve):
    script = in_turn(status(503), says(json.dumps(GRADES)))
    server, judge = serve(script, picture=Camera())
    assert judge.ask([ASKED]) == [0.5]
    assert judge.counters == {("stepwise", "retried"): 1}
    assert server.bodies[0] == server.bodies[1]


# --- caches and counts


def test_what_is_seen_names_the_frames_and_takes_no_picture():
    camera = Camera()
    with (
        OpenAIJudge("http://127.0.0.1:1/v1", "m", picture=camera) as looking,
        OpenAIJudge("http://127.0.0.1:1/v1", "m") as blind,
    ):
        seen = looking.seen(ASKED)
        assert seen == looking.seen(ASKED)
        others = [ASKED._replace(frames=CLIP[:3]), ASKED._replace(sound="silence")]
        others.append(ASKED._replace(reasoning="I guess."))
        assert all(looking.seen(other) != seen for other in others)
        assert blind.seen(ASKED) != seen
        assert blind.seen(ASKED) == blind.seen(others[0])
    assert CLIP[0] in json.dumps(seen)
    assert camera.taken == []


@pytest.mark.parametrize("picture", [None, Camera()])
def test_answers_kept_before_there_was_a_stepwise_judge_are_still_found(picture):
    quality = Request("quality", "what?", "a ring", reply="ring")
    assert RuleJudge().seen(quality) == {
        "rule": 1,
        "levels": 5,
        "request": ["quality", "what?", "a ring", "", "ring"],
    }
    with OpenAIJudge("http://127.0.0.1:1/v1", "m", max_tokens=9, picture=picture) as judge:
        seen = judge.seen(quality)
    text = "Question: what?\nReference answer: a ring\nAssistant's answer: ring"
    assert list(seen) == ["prompt_version", "model", "messages", "temperature", "max_tokens"]
    assert seen["prompt_version"] == 1
    assert seen["messages"][1] == {"role": "user", "content": text}


def test_rule_and_request_decide_the_key_of_the_rule():
    seen = RuleJudge().seen(ASKED)
    assert seen == RuleJudge(levels=3).seen(ASKED)
    assert seen != RuleJudge().seen(ASKED._replace(reasoning="I guess."))
    json.dumps(seen)


def test_a_cache_keeps_stepwise_answers(tmp_path):
    with make_judge({"kind": "rule", "cache": str(tmp_path / "judge.jsonl")}) as judge:
        (first,) = judge.ask([ASKED])
    (line,) = (tmp_path / "judge.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["reasoning"] == ASKED.reasoning
    assert record["frames"] == list(CLIP)
    with CachedJudge(RuleJudge(), tmp_path / "judge.jsonl") as judge:
        assert judge.ask([ASKED, ASKED._replace(reasoning="left")]) == [first, pytest.approx(2 / 3)]
        assert judge.counters == {("stepwise", "cached"): 1}


def test_make_judge_hands_on_the_camera_to_who_looks():
    fields = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    with make_judge({"kind": "openai", **fields}, picture=Camera()) as judge:
        assert CLIP[0] in json.dumps(judge.seen(ASKED))
    with make_judge({"kind": "rule", **fields}, picture=Camera()) as judge:
        assert isinstance(judge, RuleJudge)
    with pytest.raises(InputError, match=r"judge\.picture.*unknown"):
        make_judge({"kind": "openai", **fields, "picture": "camera"})


def test_stats_count_the_stepwise_kind_where_it_was_asked():
    stats = JudgeStats(stepwise=Counts(3, 1, 1, 2)) + JudgeStats(quality=Counts(asked=4))
    assert stats.total == Counts(7, 1, 1, 2)
    assert stats.stepwise == Counts(3, 1, 1, 2)
    assert JudgeStats(quality=Counts(asked=4)).stepwise == Counts()
