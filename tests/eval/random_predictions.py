"""Random prediction files in the form of each public benchmark, from fixed seeds.

Times lie on a grid of halves, so that decisions often meet the edges of what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turnwise_jax.data.records import Question, Target, Window
from turnwise_jax.eval.ovo_bench import TASKS as OVO_TASKS
from turnwise_jax.eval.predictions import Prediction

SILENT = "NO REPLY"
Rng = np.random.Generator


def pick(rng: Rng, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def halves(rng: Rng, count: int, low: int = 0, high: int = 30) -> tuple[float, ...]:
    """Sorted times from low to high seconds."""
    return tuple((np.sort(rng.integers(2 * low, 2 * high + 1, count)) / 2).tolist())


def ovo_timing(rng: Rng, number: int) -> Prediction:
    times = halves(rng, int(rng.integers(1, 12)))
    replies = tuple(pick(rng, [SILENT, SILENT, " NO REPLY ", "now", "", " \n"]) for _ in times)
    due = tuple(rng.permutation(halves(rng, int(rng.integers(0, 5)))).tolist())
    target = Target(pick(rng, ["CRR", "SSR", "REC"]), str(number), due)
    return Prediction(f"r{number}", times, replies, video=f"v{number % 17}", target=target)


def ovo_bench(rng: Rng, number: int) -> Prediction:
    task = pick(rng, OVO_TASKS)
    if task == "REC":
        answer, kind = str(rng.integers(0, 14)), "numeric"
        replies = ["", answer, f"{answer} times", "1 or 2", "13", "one", f"Answer: {answer}."]
    elif task in ("SSR", "CRR"):
        answer, kind = pick(rng, ["Yes", "No"]), "exact"
        replies = ["Y", "N", "Yes", "No", "yes", "Not yet, No", "NO REPLY", "", "Yes and No"]
    else:
        answer, kind = pick(rng, "ABCD"), "multiple_choice"
        replies = [*"ABCDE", "(B)", "b", "The answer is C", "", f"{answer}. it", "NO REPLY"]
    options = ("a", "b", "c", "d") if kind == "multiple_choice" else ()
    question = Question("q", answer, kind, options)
    target = Target(task, f"i{number // 3}")
    return Prediction(
        f"r{number}",
        (10.0,),
        (pick(rng, replies),),
        video=f"v{number % 23}",
        question=question,
        target=target,
    )


def streamingbench(rng: Rng, number: int) -> Prediction:
    replies = [*"ABCD", "B.", "(C)", "", "", "The answer is A", "NO REPLY", " D", "b"]
    question = Question("q", pick(rng, "ABCD"), "multiple_choice", ("a", "b", "c", "d"))
    target = Target(pick(rng, ["Object Recognition", "Counting", "Causal Reasoning"]))
    return Prediction(
        f"r{number}",
        (10.0,),
        (pick(rng, replies),),
        video=f"v{number % 11}",
        question=question,
        target=target,
    )


def streamingbench_proactive(rng: Rng, number: int) -> Prediction:
    truth = float(rng.integers(4, 20))
    times = halves(rng, int(rng.integers(1, 6)), 2, int(truth) + 4)
    texts = [SILENT, SILENT, SILENT, "3", 'it is "3"', "three", "", "GOAL", "goal"]
    target = Target("Proactive Output", f"i{number}", (truth,), pick(rng, ["3", "GOAL"]))
    replies = tuple(pick(rng, texts) for _ in times)
    return Prediction(f"r{number}", times, replies, video=f"v{number % 13}", target=target)


def polled(rng: Rng, number: int) -> list[Prediction]:
    """All polls of one question and the plain question at each of their times."""
    query, gap = int(rng.integers(0, 20)), int(rng.integers(0, 8))
    truth, text = float(query + gap), pick(rng, ["3", "GOAL"])
    polls = ["no", "No.", "no", "not now", "NO REPLY", "", "Yes.", "yes", "Yesterday"]
    outputs = ["3", "GOAL!", "goal", "", "it is 3"]
    found = []
    for now in range(query + 1, query + gap + 5):
        for kind, words in (("poll", polls), ("output", outputs)):
            found.append(
                Prediction(
                    f"i{number}_{now}_{kind}",
                    (float(now),),
                    (pick(rng, words),),
                    video=f"v{number % 7}",
                    target=Target(kind, f"i{number}", (truth,), text),
                )
            )
    return found


def proactive_videoqa(rng: Rng, number: int) -> Prediction:
    times = halves(rng, int(rng.integers(1, 9)))
    texts = [SILENT, SILENT, "a 0", "b 1", "c 2", "d 2", "e x", "NO REPLY. 1", "a 0 b 1", " c 2"]
    windows = []
    for _ in range(int(rng.integers(0, 4))):
        start, length = rng.integers(0, 60) / 2, rng.integers(0, 20) / 2
        event = [None, float(start + rng.integers(0, 2 * length + 1) / 2)][rng.integers(2)]
        windows.append(Window(float(start), float(start + length), "q", "a", event))
    return Prediction(
        f"r{number}",
        times,
        tuple(pick(rng, texts) for _ in times),
        tuple(windows),
        ("b 1",) if rng.random() < 0.2 else (),
        video=f"v{number % 29}",
        target=Target(pick(rng, ["EGO", "TV", "VAD", "WEB"])),
    )


ONE: dict[str, Callable[[Rng, int], Prediction]] = {
    "proactive_videoqa": proactive_videoqa,
    "ovo_timing": ovo_timing,
    "ovo_bench": ovo_bench,
    "streamingbench": streamingbench,
    "streamingbench_proactive": streamingbench_proactive,
}


def predictions(benchmark: str, count: int, seed: int) -> list[Prediction]:
    """``count`` annotations of a benchmark, in an order that says nothing."""
    rng = np.random.default_rng(seed)
    if benchmark == "streamingbench_polling":
        found = [p for number in range(count) for p in polled(rng, number)]
    else:
        found = [ONE[benchmark](rng, number) for number in range(count)]
    return [found[i] for i in rng.permutation(len(found))]
