"""Whatever stands in a record: its reader refuses it in one line or reads it, and never fails."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable

import pytest
from benchmark_files import SAMPLES
from made_files import LIST, TOUR
from test_mmduet2_rl import ROW
from video_files import write_video

from turnwise_jax.data.making import plain
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.data.sources.benchmarks import proactive_videoqa
from turnwise_jax.errors import InputError

SFT = {
    "messages": [
        {"role": "system", "content": "Watch."},
        {"role": "user", "content": "<image><image>What is he doing?"},
        {"role": "assistant", "content": "NO REPLY"},
        {"role": "user", "content": "<image>"},
        {"role": "assistant", "content": "He cuts an onion."},
    ],
    "images": [{"path": "a.mp4#t=1.0"}, {"path": "a.mp4#t=2.0"}, "b.jpg"],
    "metadata": {
        "question_id": "q",
        "times": [2.0, 4.0],
        "answer": [
            {
                "content": "He cuts an onion.",
                "question": "What is he doing?",
                "reply_timespan": [1, 3],
                "related_timespan": [1, 2],
            }
        ],
        "prev_assistant_replies": ["He waits."],
    },
}
ODD = [
    *(None, 0, -1, 1.5, float("nan"), float("inf"), True, "", "x", "<image>", "1:75"),
    *([], {}, [None], [[]], ["x"], {"a": 1}),
]


def places(value, at=()):
    """The path of every entry below a value."""
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        yield from places(inner, (*at, key))


def spoilt(row, rng: random.Random):
    """The row with one or two entries replaced by something odd, or taken away."""
    row = copy.deepcopy(row)
    for _ in range(rng.choice([1, 1, 2])):
        found = list(places(row))
        if not found:
            break
        *parents, last = rng.choice(found)
        holder = row
        for key in parents:
            holder = holder[key]
        if rng.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(rng.choice(ODD))
    return row


TV = json.loads((SAMPLES / "proactive_videoqa/TV/anno.json").read_text())[0]
READERS: dict[str, tuple[dict, Callable]] = {
    "mmduet2_rl": (ROW, mmduet2_rl.parse),
    "mmduet2_sft": (SFT, mmduet2_sft.parse),
    "plain": (LIST[1], plain.parse),
    "proactive_videoqa": (TV, proactive_videoqa.parse),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where the videos of the records lie."""
    folder = tmp_path_factory.mktemp("odd")
    for name in (LIST[1]["video"], f"TV/videos/{TV['video']}"):
        (folder / name).parent.mkdir(parents=True)
        write_video(folder / name, int(TOUR), rate=1, audio_seconds=TOUR)
    return folder


@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse_what_is_odd_in_one_line(reader, root):
    row, parse = READERS[reader]
    file = str(root / "file")
    rng = random.Random(0)
    refused = []
    for _ in range(800):
        try:
            parse("name", spoilt(row, rng), file=file, root=root)
        except InputError as error:
            refused.append(str(error))
    assert 200 < len(refused) < 750
    assert all(line.startswith(f"{file}: record 'name'") for line in refused)
    assert not any("\n" in line for line in refused)
