"""Decoded examples within a bounded amount of memory."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from video_files import grey

from turnwise_jax.data import kept
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.kept import KeptExamples
from turnwise_jax.data.pipeline import load_example
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.errors import InputError

SPEC = FrameSpec(min_pixels=56 * 56, max_pixels=56 * 56)
EACH = 16 * 1176  # bytes of one example


@pytest.fixture
def dialogues(tmp_path) -> dict[str, Dialogue]:

    found = {}
    for n in range(5):
        path = tmp_path / f"{n}.png"
        Image.fromarray(grey(n, (56, 56))).save(path)
        turn = Turn(frames=(Frame(str(path)),), text="What?", time=0.0, reply=None, video=False)
        found[f"d{n}"] = Dialogue(f"d{n}", (turn,), file="d.jsonl")
    return found


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Names of what was decoded, in order."""
    names = []

    def load(dialogue, *how):
        names.append(dialogue.id)
        return load_example(dialogue, *how)

    monkeypatch.setattr(kept, "load_example", load)
    return names


def test_what_is_kept_is_not_decoded_again(dialogues, decoded):
    examples = KeptExamples(dialogues, SPEC, None, 5 * EACH)
    first = examples["d1"]
    assert examples["d1"] is first
    examples.add(load_example(dialogues["d2"], SPEC, None))
    examples["d2"]
    assert decoded == ["d1"]
    assert (len(examples), examples.nbytes) == (2, 2 * EACH)


def test_those_used_longest_ago_go_first(dialogues, decoded):
    examples = KeptExamples(dialogues, SPEC, None, 2 * EACH)
    for name in ("d0", "d1", "d0", "d2", "d0", "d1"):  # d1 goes for d2
        examples[name]
    assert decoded == ["d0", "d1", "d2", "d1"]
    assert (len(examples), examples.nbytes) == (2, 2 * EACH)


def test_adding_what_is_there_counts_as_use_and_takes_no_room(dialogues, decoded):
    examples = KeptExamples(dialogues, SPEC, None, 2 * EACH)
    first = examples["d0"]
    examples["d1"]
    examples.add(load_example(dialogues["d0"], SPEC, None))
    assert examples.nbytes == 2 * EACH
    examples["d2"]
    assert examples["d0"] is first
    assert decoded == ["d0", "d1", "d2"]


@pytest.mark.parametrize("room", [0, EACH - 1])
def test_what_does_not_fit_is_read_every_time_and_is_the_same(dialogues, decoded, room):
    examples = KeptExamples(dialogues, SPEC, None, room)
    one, other = examples["d3"], examples["d3"]
    assert decoded == ["d3", "d3"]
    assert (len(examples), examples.nbytes) == (0, 0)
    np.testing.assert_array_equal(one.patches[0], other.patches[0])


def test_never_more_than_the_room(dialogues, decoded):
    examples = KeptExamples(dialogues, SPEC, None, 3 * EACH)
    for pick in np.random.default_rng(0).integers(0, 5, 60):
        name = f"d{pick}"
        assert examples[name].dialogue is dialogues[name]
        assert examples.nbytes == len(examples) * EACH <= 3 * EACH
    assert 5 < len(decoded) < 60


def test_a_file_that_is_gone_is_named_when_it_is_needed_again(dialogues, tmp_path):
    examples = KeptExamples(dialogues, SPEC, None, 0)
    examples["d4"]
    (tmp_path / "4.png").unlink()
    with pytest.raises(InputError, match=r"4\.png") as caught:
        examples["d4"]
    assert caught.value.record == "d4"
