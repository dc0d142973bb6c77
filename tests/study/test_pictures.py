"""Pictures are written, are not blank, and hold what they are given."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Report
from turnwise_jax.rewards.judges import RuleJudge
from turnwise_jax.study.credit import draw_credit
from turnwise_jax.study.dialogues import MARKS, draw_dialogue, grade, shown_frames, transcript
from turnwise_jax.study.plots import SFT_PANELS, plot_curves, plot_results, trailing_mean

SILENT = "NO REPLY"
WINDOWS = (
    Window(3.0, 6.0, "What happens?", "A red circle appears."),
    Window(7.0, 10.0, "What happens?", "The circle turns blue."),
)


def pixels(path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def words(figure) -> str:
    """Every text of a figure, in one string."""
    found = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
    return " ".join(" ".join(found).split())


@pytest.fixture
def dialogue(tmp_path) -> Dialogue:
    turns = []
    for k in range(5):
        file = tmp_path / f"{k}.png"
        Image.fromarray(np.full((40, 60, 3), (50 * k, 255 - 50 * k, 90), np.uint8)).save(file)
        turns.append(
            Turn(
                frames=(Frame("never-drawn.png"), Frame(f"{k}.png")),
                text="What happens?" if k == 0 else "",
                time=2.0 * (k + 1),
                reply="Nothing yet." if k == 0 else None,
            )
        )
    return Dialogue("clip-7", tuple(turns), WINDOWS, history=("Nothing yet.",))


def said(*replies: str) -> Prediction:
    return Prediction("clip-7", (4.0, 6.0, 8.0, 10.0), replies, WINDOWS, ("Nothing yet.",))


SFT = said("A green circle appears.", "A red circle appears.", "A red circle appears.", SILENT)
BEST = said("A red circle appears.", SILENT, "The circle turns blue.", SILENT)


def test_marks_tell_right_wrong_repeated_and_stray_replies_apart():
    assert grade(SFT, RuleJudge()) == ["wrong", "right", "repeated", None]
    assert grade(BEST, RuleJudge()) == ["right", None, "right", None]
    stray = Prediction("x", (1.0,), ("A red circle appears.",), WINDOWS)
    assert grade(stray, RuleJudge()) == ["outside"]


def test_a_dialogue_is_drawn_with_all_that_was_said(dialogue, tmp_path):
    path = tmp_path / "out" / "d.png"
    figure = draw_dialogue(
        dialogue, {"SFT": SFT, "TurnWise": BEST}, path, judge=RuleJudge(), root=tmp_path
    )
    assert pixels(path).std() > 20
    text = words(figure)
    for part in ("SFT", "TurnWise", "What happens?", "A green", "turns blue.", "Nothing yet."):
        assert part in text
    images = figure.findobj(lambda artist: hasattr(artist, "get_array") and hasattr(artist, "_A"))
    shades = {tuple(a.get_array()[0, 0]) for a in images if np.ndim(a.get_array()) == 3}
    assert shades == {(50 * k, 255 - 50 * k, 90) for k in range(5)}


def test_any_text_can_be_drawn(dialogue, tmp_path):
    odd = said("$x_1 = \\frac$", "\x1d bell\n\nline", "\u7ea2\u8272", "")
    figure = draw_dialogue(
        dialogue, {"odd": odd}, tmp_path / "d.png", judge=RuleJudge(), root=tmp_path
    )
    for part in ("$x_1 =", "bell line", "\u7ea2\u8272", "(empty)"):
        assert part in words(figure)
    lines = transcript(dialogue, {"odd": odd}, judge=RuleJudge()).splitlines()
    assert sum("odd: bell line " in line for line in lines) == 1


def test_the_last_frame_of_each_turn_is_shown(dialogue, tmp_path):
    frames = shown_frames(dialogue, tmp_path)
    assert [tuple(frame[0, 0]) for frame in frames] == [
        (50 * k, 255 - 50 * k, 90) for k in range(5)
    ]


def test_the_transcript_is_in_time_order_with_marks(dialogue):
    lines = transcript(dialogue, {"SFT": SFT}, judge=RuleJudge()).splitlines()
    assert lines[0] == "clip-7"
    times = [float(line.split(" s ")[0]) for line in lines[1:]]
    assert times == sorted(times)
    assert [line.split(" s  ")[1] for line in lines[1:4]] == [
        "user: What happens?",
        "given: Nothing yet.",
        "window 3-6 s: A red circle appears.",
    ]
    assert lines[4].endswith(f"SFT: A green circle appears.   [{MARKS['wrong'].word}]")
    assert "NO REPLY" not in "\n".join(lines)


def log(length: int, **metrics: float) -> list[dict]:
    return [{"step": s, **{k: v * (s + 1) for k, v in metrics.items()}} for s in range(length)]


def test_curves_are_drawn_smoothed_and_shaded(tmp_path):
    runs = {"GRPO": log(40, reward=0.1), "TurnWise": log(40, reward=0.2, signal=0.01)}
    figure = plot_curves(runs, tmp_path / "c.png", window=4, warmup=6)
    assert pixels(tmp_path / "c.png").std() > 5
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Reward (eq. 1)", "Groups with a learning signal, %"]
    raw, smooth = figure.axes[0].lines[:2]
    np.testing.assert_allclose(raw.get_ydata(), 0.1 * np.arange(1, 41))
    np.testing.assert_allclose(smooth.get_ydata()[10:], 0.1 * (np.arange(11, 41) - 1.5))
    (signal,) = [line for line in figure.axes[1].lines if line.get_alpha()]
    np.testing.assert_allclose(signal.get_ydata(), np.arange(1, 41))
    assert figure.axes[0].patches[0].get_extents().width > 0
    assert "credit warm-up" in words(figure)


def test_supervised_curves_and_missing_values(tmp_path):
    lines = [{"step": 0, "loss": 2.0}, {"step": 1, "loss": None}, {"step": 2, "loss": 1.0}]
    figure = plot_curves({"SFT": lines}, tmp_path / "c.png", panels=SFT_PANELS)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [0, 2])
    assert len(figure.axes) == 1
    assert "credit warm-up" not in words(figure)
    lines = [line | ({"held_out_loss": 1.5} if line["step"] else {}) for line in lines]
    figure = plot_curves({"SFT": lines}, tmp_path / "c.png", panels=SFT_PANELS)
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xdata(), [1, 2])


def test_trailing_means_leave_out_missing_values():
    found = trailing_mean([1.0, np.nan, 3.0, 5.0, np.nan], 2)
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 4.0, 5.0])
    assert np.isnan(trailing_mean([np.nan, 1.0], 2)[0])


def test_results_show_every_value_and_the_mark_of_silence(tmp_path):
    reports = {
        "always silent": Report("streaming", "", {"pauc": 25.0, "reward": 0.375}),
        "TurnWise": Report(
            "streaming", "", {"pauc": 61.3, "reward": -1.25}, {"pauc": (55.0, 66.0)}
        ),
    }
    figure = plot_results(
        reports,
        tmp_path / "r.png",
        metrics={"pauc": "PAUC", "reward": "Reward"},
        reference={"pauc": 25.0},
    )
    assert pixels(tmp_path / "r.png").std() > 5
    text = words(figure)
    for part in ("always silent", "TurnWise", "25.0", "61.3", "0.38", "\N{MINUS SIGN}1.25"):
        assert part in text


def test_credit_is_drawn_from_arrays(tmp_path):
    figure = draw_credit(
        [2.0, 4.0, 6.0],
        ["hello", SILENT, "A red circle appears."],
        [0.375, 0.125, 0.125, 1.0],
        0.62,
        [0.62, -0.4, 0.9],
        windows=WINDOWS,
        path=tmp_path / "credit.png",
    )
    assert pixels(tmp_path / "credit.png").std() > 20
    text = words(figure)
    for part in ("hello", "\N{MINUS SIGN}0.25", "+0.88", "\N{MINUS SIGN}0.40", "+0.62", "shared"):
        assert part in text
    bars = [p.get_height() for p in figure.axes[2].patches if p.get_width() == pytest.approx(1.0)]
    assert bars == pytest.approx([0.62, -0.4, 0.9])


def test_credit_arrays_of_different_length_are_refused():
    with pytest.raises(ValueError, match="do not belong together"):
        draw_credit([1.0], ["a"], [0.0], 0.1, [0.1])
