"""Which operations a device spent its time on, from what ``jax.profiler`` writes.

Beside its own format the profiler writes a Chrome trace, gzipped JSON, of which the standard
library reads all that is needed: events with a name, a thread, a begin and a duration. A device's
operations are on its thread "XLA Ops", or on its streams where it has none; on a CPU they are the
events that name an operation of a program. Operations lie in one another (a loop contains its
body), so what counts is the time that is an event's own.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

OPERATIONS, STREAM = "XLA Ops", "Stream"
Event = Mapping[str, Any]


def traced(program: Callable[[], Any], folder: Path) -> None:
    """Run a program once under the profiler, without the calls of Python."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        jax.block_until_ready(program())


def read_events(folder: Path) -> list[Event]:
    """The events of the newest trace below a folder; none if the profiler left no trace."""
    files = sorted(folder.rglob("*.trace.json.gz"), key=lambda file: file.stat().st_mtime)
    if not files:
        return []
    with gzip.open(files[-1]) as file:
        return json.load(file).get("traceEvents", [])


def top_operations(events: Iterable[Event], count: int) -> list[dict[str, Any]]:
    """The operations that took most time, the longest first.

    Returns:
      ``{"name", "source", "calls", "milliseconds", "share"}`` each; ``share`` is of all operations'
      time, ``source`` the line of the program that they come from, "" if the trace has none.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    sources: dict[str, str] = {}
    for event, own in own_times(_operations(list(events))):
        name = _name(event)
        sources.setdefault(name, str(event.get("args", {}).get("tf_op", "")))
        totals[name][0] += 1
        totals[name][1] += own
    whole = sum(time for _, time in totals.values())
    longest = sorted(totals.items(), key=lambda item: -item[1][1])[:count]
    return [
        {
            "name": name,
            "source": sources[name],
            "calls": int(calls),
            "milliseconds": time / 1e3,
            "share": time / whole if whole else 0.0,
        }
        for name, (calls, time) in longest
    ]


def kinds(events: Iterable[Event]) -> dict[str, float]:
    """Share of all operations' time by name without number, the largest first."""
    totals: dict[str, float] = defaultdict(float)
    for event, own in own_times(_operations(list(events))):
        totals[re.sub(r"\.\d+$", "", _name(event))] += own
    whole = sum(totals.values())
    return {k: t / whole for k, t in sorted(totals.items(), key=lambda item: -item[1])}


def profiled(program: Callable[[], Any], count: int = 12) -> dict[str, float]:
    """The largest ``count`` of :func:`kinds` in one run of a program, and print them."""
    with tempfile.TemporaryDirectory() as folder:
        traced(program, Path(folder))
        shares = dict(list(kinds(read_events(Path(folder))).items())[:count])
    for kind, share in shares.items():
        print(f"{kind:<42}{share:>26.1%}")
    return shares


def _name(event: Event) -> str:
    return event.get("args", {}).get("hlo_op") or event["name"]


def _operations(events: list[Event]) -> list[Event]:
    labels = {"process_name": {}, "thread_name": {}}
    for event in events:
        if event.get("ph") == "M" and event.get("name") in labels:
            place = (event["pid"], event.get("tid"))
            labels[event["name"]][place] = str(event["args"].get("name", ""))
    devices = {
        pid for (pid, _), name in labels["process_name"].items() if name.startswith("/device:")
    }
    spans = [event for event in events if event.get("ph") == "X"]
    for wanted in (OPERATIONS, STREAM):
        threads = {
            place
            for place, name in labels["thread_name"].items()
            if place[0] in devices and name.startswith(wanted)
        }
        found = [event for event in spans if (event["pid"], event["tid"]) in threads]
        if found:
            return found
    return [event for event in spans if "hlo_op" in event.get("args", {})]


def own_times(events: Iterable[Event]) -> list[tuple[Event, float]]:
    """Every event with the microseconds in which no other event of its thread lay in it."""
    own: list[list[Any]] = []
    around: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0.0))):
        begin, length = event["ts"], event.get("dur", 0.0)
        open_ = around[event["pid"], event["tid"]]
        while open_ and _end(own[open_[-1]][0]) <= begin:
            open_.pop()
        if open_:
            outer = own[open_[-1]]
            outer[1] -= min(length, _end(outer[0]) - begin)
        open_.append(len(own))
        own.append([event, length])
    return [(event, max(time, 0.0)) for event, time in own]


def _end(event: Event) -> float:
    return event["ts"] + event.get("dur", 0.0)
