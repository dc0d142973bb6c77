"""Batches made one ahead: the same batches, positions and errors as without, only sooner."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from PIL import Image

from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.pipeline import make_loader
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.errors import InputError
from turnwise_jax.train.ahead import Ahead

SPEC = FrameSpec(min_pixels=28 * 28, max_pixels=28 * 28)
PATIENCE = 60.0  # seconds; a slow machine is no failure
COUNT = 9
BAD = (2, 7)


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory) -> list[Dialogue]:
    """Records of one picture; those in ``BAD`` name a file that is not there."""
    folder = tmp_path_factory.mktemp("ahead")
    Image.new("RGB", (28, 28)).save(folder / "p.png")

    def record(number: int) -> Dialogue:
        path = folder / ("gone.png" if number in BAD else "p.png")
        return Dialogue(f"d{number}", (Turn((Frame(str(path)),), "What?", 0.0),), file="d.jsonl")

    return [record(number) for number in range(COUNT)]


def names(examples) -> list[str]:
    return [example.dialogue.id for example in examples]


def open_ahead(dialogues, threaded: bool, *, skipped=None, make=names, bad="skip") -> Ahead:
    refused: list[str] = []
    loader = make_loader(
        dialogues,
        SPEC,
        batch_size=2,
        seed=1,
        shuffle=False,
        epochs=2,
        workers=2 if threaded else 0,
        on_bad_record=bad,
        skipped=refused,
    )
    skipped = [] if skipped is None else skipped
    return Ahead(loader, make, refused=refused, skipped=skipped, threaded=threaded)


def steps(ahead: Ahead, skipped: list[str]) -> list[tuple]:
    """What can be seen behind every batch, to the end."""
    seen = []
    for examples, made in ahead:
        assert made == names(examples)
        seen.append((made, json.dumps(ahead.get_state()), tuple(skipped)))
    return seen


@pytest.fixture(scope="module")
def whole(dialogues) -> list[tuple]:
    skipped: list[str] = ["known before"]
    ahead = open_ahead(dialogues, False, skipped=skipped)
    seen = steps(ahead, skipped)
    ahead.close()
    assert len(seen) == len(ahead) == 8
    assert len({known for _, _, known in seen}) == 3  # the bad records come at different steps
    return seen


def test_batches_positions_and_refusals_do_not_depend_on_reading_ahead(dialogues, whole):
    skipped: list[str] = ["known before"]
    ahead = open_ahead(dialogues, True, skipped=skipped)
    ahead.start()
    assert steps(ahead, skipped) == whole
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize("done", range(8))
def test_a_run_goes_on_behind_the_last_batch_it_was_handed(dialogues, whole, done):
    """Also if the one that is taken up has read ahead before it is told where it stands."""
    expected = whole[done:]
    first = open_ahead(dialogues, True)
    for _ in range(done):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    first.close()
    skipped = list(whole[done - 1][2]) if done else ["known before"]
    again = open_ahead(dialogues, True, skipped=skipped)
    again.start()
    again.set_state(state)
    again.start()
    assert steps(again, skipped) == expected
    again.close()


@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_comes_with_its_batch(dialogues, threaded):
    ahead = open_ahead(dialogues, threaded, bad="raise")
    assert next(ahead)[1] == ["d0", "d1"]
    ahead.start()
    with pytest.raises(InputError, match=r"gone\.png") as caught:
        next(ahead)
    assert caught.value.record == "d2"
    ahead.close()


@pytest.mark.parametrize("threaded", [False, True])
def test_what_making_raises_comes_with_its_batch(dialogues, threaded):
    calls = []

    def make(examples):
        calls.append(names(examples))
        if len(calls) == 3:
            raise InputError("fits no bucket")
        return names(examples)

    ahead = open_ahead(dialogues, threaded, make=make)
    assert [next(ahead)[1] for _ in range(2)] == calls[:2]
    with pytest.raises(InputError, match="fits no bucket"):
        next(ahead)
    ahead.close()


def test_the_next_batch_is_made_while_the_caller_works(dialogues):
    """One ahead, in another thread; further ones wait for it to be taken."""
    made, begun = [], [threading.Event() for _ in range(9)]

    def make(examples):
        made.append(threading.current_thread())
        begun[len(made) - 1].set()
        return names(examples)

    ahead = open_ahead(dialogues, True, make=make)
    assert not made  # nothing is read before it is asked for or started
    ahead.start()
    for count in range(1, 6):
        assert begun[count - 1].wait(PATIENCE)  # without being asked
        next(ahead)
        assert begun[count].wait(PATIENCE)
        assert not begun[count + 1].wait(0.02)
    assert threading.current_thread() not in made
    ahead.close()


def test_without_threads_a_batch_is_made_when_it_is_asked_for(dialogues):
    made = []
    ahead = open_ahead(dialogues, False, make=lambda examples: made.append(names(examples)))
    ahead.start()
    assert not made
    next(ahead)
    assert len(made) == 1
    ahead.close()


def test_closing_ends_the_threads(dialogues):
    before = set(threading.enumerate())
    ahead = open_ahead(dialogues, True)
    next(ahead)
    ahead.close()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("ahead")]


def test_the_first_bad_record_is_named_once(dialogues, whole):
    assert all(len(set(known)) == len(known) for _, _, known in whole)
    assert [Path(line.split(": ")[-2]).name for line in whole[-1][2][1:]] == ["gone.png"] * 2
