"""The public benchmarks' rules a second time, from their published descriptions.

Nothing of the package is used: the objects of a predictions file go in, numbers in percent come
out. Where the package works with arrays and masks, this walks through the file record by record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

Line = Mapping[str, Any]
SILENT = "NO REPLY"


def percent(hits: Iterable[bool | float]) -> float:
    """100 x the mean; 0 of nothing."""
    values = [float(hit) for hit in hits]
    return 100.0 * sum(values) / len(values) if values else 0.0


def spoken(line: Line) -> list[tuple[float, str]]:
    pairs = zip(line["times"], line["replies"], strict=True)
    return [(time, text) for time, text in pairs if text.strip() != SILENT]


# OVO-Timing


def timing(lines: Iterable[Line]) -> dict[str, float]:
    rates: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        due = line["target"].get("times", [])
        detected = [time for time, text in spoken(line) if text.strip()]
        taken: set[int] = set()
        for truth in due:
            for number, time in enumerate(detected):
                if number not in taken and -2.0 <= time - truth <= 2.0:
                    taken.add(number)
                    break
        precision = len(taken) / len(detected) if detected else 0.0
        recall = len(taken) / len(due) if due else 0.0
        rates[line["target"]["subset"]].append((precision, recall))
    found = {}
    for task, pairs in rates.items():
        p, r = (100.0 * fmean(column) for column in zip(*pairs, strict=True))
        found |= {
            f"precision/{task}": p,
            f"recall/{task}": r,
            f"f1/{task}": 2 / (1 / p + 1 / r) if p and r else 0.0,
        }
    for name in ("precision", "recall", "f1"):
        found[name] = fmean(found[f"{name}/{task}"] for task in rates)
    return found


# OVO-Bench

OVO_GROUP = {
    **dict.fromkeys(["EPM", "ASI", "HLD"], "backward"),
    **dict.fromkeys(["STU", "OJR", "ATR", "ACR", "OCR", "FPD"], "realtime"),
    **dict.fromkeys(["REC", "SSR", "CRR"], "forward"),
}


def ovo_right(task: str, response: str, truth: str) -> bool:
    if task == "REC":
        return [c for c in response if c in "0123456789"] == list(truth)
    if task in ("SSR", "CRR") and len(response) == 1:
        return response == {"Yes": "Y", "No": "N"}[truth]
    return response.find(truth) >= 0


def ovo_starts(task: str, response: str, truth: str) -> bool:
    return response.startswith(truth)


def ovo(lines: Iterable[Line]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, rule in (("accuracy", ovo_right), ("accuracy_strict", ovo_starts)):
        tasks: dict[str, list[bool]] = defaultdict(list)
        for line in lines:
            task = line["target"]["subset"]
            tasks[task].append(rule(task, line["replies"][0], line["question"]["answer"]))
        groups: dict[str, list[float]] = defaultdict(list)
        for task, hits in tasks.items():
            found[f"{name}/{task}"] = percent(hits)
            groups[OVO_GROUP[task]].append(percent(hits))
        for group, values in groups.items():
            found[f"{name}/{group}"] = fmean(values)
        found[name] = fmean(fmean(values) for values in groups.values())
        found[f"{name}_over_tasks"] = fmean(percent(hits) for hits in tasks.values())
    return found


# StreamingBench


def first_letters(lines: Iterable[Line]) -> dict[str, float]:
    by_type: dict[str, list[bool]] = defaultdict(list)
    empty = 0
    for line in lines:
        response = line["replies"][0]
        kept = by_type[line["target"]["subset"]]
        if response == "":
            empty += 1
        else:
            kept.append(response[0] == line["question"]["answer"])
    every = [hit for hits in by_type.values() for hit in hits]
    return {
        "accuracy": percent(every),
        "accuracy_of_all": percent([*every, *[False] * empty]),
        **{f"accuracy/{name}": percent(hits) for name, hits in by_type.items()},
    }


def proactive(lines: Iterable[Line]) -> dict[str, float]:
    timely, right, some = [], [], []
    for line in lines:
        truth, text = line["target"]["times"][0], line["target"]["text"]
        good = [(abs(time - truth) <= 2.0, text in said) for time, said in spoken(line)]
        in_time, has_text = good[0] if good else (False, False)
        timely.append(in_time)
        right.append(in_time and has_text)
        some.append((True, True) in good)
    return {
        "accuracy": percent(right),
        "timing_accuracy": percent(timely),
        "accuracy_of_any": percent(some),
    }


def polling(lines: Iterable[Line]) -> dict[str, float]:
    """The official loop acted out on recorded responses."""
    recorded: dict[tuple[str, str], dict[float, str]] = defaultdict(dict)
    truths = {}
    for line in lines:
        target = line["target"]
        recorded[target["item"], target["subset"]][line["times"][0]] = line["replies"][0]
        truths[target["item"]] = (target["times"][0], target["text"])
    timely, right = [], []
    for item, (truth, text) in truths.items():
        history: list[tuple[float, str]] = []
        for now in sorted(recorded[item, "poll"]):
            response = recorded[item, "poll"][now]
            history.append((now, response))
            if "yes" in response.casefold():
                history.append((now, recorded[item, "output"][now]))
                break
        else:
            history.append((truth + 4.0, ""))  # the poll that nothing follows
        last_time, last_response = history[-1]
        timely.append(-2 <= last_time - truth <= 2)
        right.append(timely[-1] and text in last_response)
    return {"accuracy": percent(right), "timing_accuracy": percent(timely)}


# ProactiveVideoQA


def pauc(
    lines: Iterable[Line],
    grade: Callable[[str], float | None],
    repeats: Callable[[str, str], float | None],
) -> dict[str, float]:
    """``grade``: the three-level judge less 1; ``repeats``: of (all said before, new reply)."""
    omegas = {"pauc": 0.5, "pauc_omega_0": 0.0, "pauc_omega_1": 1.0}
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        subset = line["target"]["subset"]
        for window in line["windows"]:
            curve = window_points(line, window, grade)
            for name, omega in omegas.items():
                values[name, subset].append(100.0 * curve_area(curve, window, omega))
        values["repetition_rate", subset] += repetitions(line, repeats)
    found: dict[str, float] = {}
    for (name, subset), numbers in values.items():
        found[f"{name}/{subset}"] = fmean(numbers) if numbers else 0.0
    for name in [*omegas, "repetition_rate"]:
        parts = [fmean(v) for (n, _), v in values.items() if n == name and v]
        found[name] = fmean(parts) if parts else 0.0
    return found


def window_points(
    line: Line, window: Line, grade: Callable[[str], float | None]
) -> list[tuple[float, float]]:
    """(time, score) of the replies that count in one window."""
    inside = [(t, s.strip()) for t, s in spoken(line) if window["start"] <= t <= window["end"]]
    told: dict[str, float] = {}
    for time, text in inside:
        told.setdefault(text, time)
    scored = []
    for count, time in enumerate(told.values(), start=1):
        score = grade(" ".join(list(told)[:count]))
        if score is not None:
            scored.append((time, score))
    if window.get("event_end") is None or len(scored) < 2:
        return scored
    floor, kept = 0.0, []
    for time, score in scored:
        if time <= window["event_end"]:
            floor = score
        elif score < floor:
            continue
        kept.append((time, score))
    return kept


def curve_area(points: list[tuple[float, float]], window: Line, omega: float) -> float:
    """Of the step curve from 0.5, as a share of the largest area (top score 2)."""
    start, length = window["start"], window["end"] - window["start"]
    if not points:
        return 0.25
    if length == 0:
        return points[-1][1] / 2
    steps = [(0.0, 0.5), *[((1 - omega) * (time - start), score) for time, score in points]]
    total = 0.0
    for number, (begin, height) in enumerate(steps):
        end = steps[number + 1][0] if number + 1 < len(steps) else length
        total += height * (end - begin)
    return total / (2 * length)


def repetitions(line: Line, repeats: Callable[[str, str], float | None]) -> list[float]:
    """100 or 0 for every reply whose repetition is known."""
    told = [text.strip() for text in line.get("history", [])]
    verdicts = []
    for _, text in spoken(line):
        text = text.strip()
        if text in told:
            verdicts.append(100.0)
            continue
        verdict = repeats(" ".join(told), text)
        told.append(text)
        if verdict is not None:
            verdicts.append(100.0 * verdict)
    return verdicts
