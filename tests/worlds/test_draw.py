"""The contact sheet shows every frame of a dialogue and marks replies by their windows."""

from __future__ import annotations

import numpy as np
from PIL import Image

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.worlds.draw import contact_sheet

RED, GREEN = (0xB3, 0x26, 0x1E), (0x1A, 0x7F, 0x37)


def colours(path) -> set[tuple[int, ...]]:
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 3)
    return set(map(tuple, np.unique(pixels, axis=0).tolist()))


def test_replies_inside_and_outside_windows_are_told_apart(files, tmp_path):
    dialogue = load_dialogues("mmduet2_rl", files.rl("test"))[0][0]
    inside = [
        any(window.start <= turn.time <= window.end for window in dialogue.windows)
        for turn in dialogue.open_turns
    ]
    assert True in inside
    assert False in inside
    for said, drawn, absent in ((True, GREEN, RED), (False, RED, GREEN)):
        replies = ["A red ring appears." if i is said else "NO REPLY" for i in inside]
        contact_sheet(dialogue, tmp_path / "sheet.png", replies=replies)
        seen = colours(tmp_path / "sheet.png")
        assert drawn in seen
        assert absent not in seen


def test_frames_are_found_from_a_root(files, tmp_path):
    dialogue = load_dialogues("mmduet2_sft", files.sft("test"), root="")[0][0]
    assert dialogue.turns[0].frames[0].path.startswith("videos")
    contact_sheet(dialogue, tmp_path / "sheet.png", root=files.root, title="a title")
    with Image.open(tmp_path / "sheet.png") as sheet:
        width, height = sheet.size
    assert width > 1000
    assert height > 400
