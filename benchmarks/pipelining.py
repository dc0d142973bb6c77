"""What a slow judge costs a step, and how much of it sampling one batch ahead hides.

    python benchmarks/pipelining.py [--delay 1.0] [--rounds 3] [--steps 12] [--json FILE]

GRPO of a tiny policy in the embedded world, judged behind HTTP by a server on this machine that
takes `--delay` seconds for an answer and no processor; a batch's questions are asked at once. In
turn without and with `rollout.ahead`. Of each run the first two steps and the last are left out:
the first batch cannot be sampled ahead, and the last step samples none.

Printed are medians with the least and the most over the rounds: seconds a step, of these the
judge's, of these those in which nothing was sampled, and how many times as long a step takes
without. Both runs make updates of the same size; their numbers differ, for one is on policy and the
other is not.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from tiny_grpo import TinyGrpo
from workload import flag_parser, in_turn, keep_compiled, measure_and_report, summary, where

from turnwise_jax.train.metrics import TIMING, read_jsonl
from turnwise_jax.train.run import train

AHEAD = {"on policy": 0, "one batch ahead": 1}
FIGURES = ("seconds", "judge", "judge_wait")
MEASURED = slice(2, -1)  # steps


class Answering(BaseHTTPRequestHandler):
    """A judge that finds nothing repeated and all else middling."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        time.sleep(self.server.delay)
        answer = "no" if "Previous turns:" in asked else "2"
        body = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A line for every request would be in the report's way."""


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    delay = 0.0

    def handle_error(self, *_: object) -> None:
        """Connections that a run closes at its end."""


@contextmanager
def judge_server(delay: float) -> Iterator[str]:
    """Its address, while it runs."""
    with Server(("127.0.0.1", 0), Answering) as server:
        server.delay = delay
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """What :func:`print_report` prints."""
    keep_compiled(root / "compiled")
    with judge_server(args.delay) as url:
        found = measure_runs(root, url, args.rounds, args.steps)
    return {**where(), "rounds": args.rounds, "delay": args.delay, **found}


def measure_runs(root: Path, url: str, rounds: int, steps: int) -> dict[str, Any]:
    """Per variant, the medians over a run's steps of every figure, summed up over the rounds."""
    tiny = TinyGrpo.make(root)

    def run(name: str, number: int, *, steps: int = steps) -> dict[str, float]:
        config = tiny.config(f"{AHEAD[name]}-{number}", steps)
        config.rollout.ahead = AHEAD[name]
        config.data.batch_size = 2
        config.judge.update(kind="openai", url=url, concurrency=128)
        lines = read_jsonl(train(config)[0] / TIMING)[MEASURED]
        return {figure: float(np.median([line[figure] for line in lines])) for figure in FIGURES}

    for name in AHEAD:
        run(name, -1, steps=4)  # compiles
    found: dict[str, list[dict[str, float]]] = {name: [] for name in AHEAD}
    for number, name in in_turn(AHEAD, rounds):
        found[name].append(run(name, number))
    seconds = {name: [figures["seconds"] for figures in found[name]] for name in AHEAD}
    return {
        "steps": steps,
        "runs": {
            name: {figure: summary([run[figure] for run in runs]) for figure in FIGURES}
            for name, runs in found.items()
        },
        "times_as_long": summary(
            [slow / fast for slow, fast in zip(*seconds.values(), strict=True)]
        ),
    }


def print_report(report: dict[str, Any]) -> None:
    def cell(values: dict[str, float]) -> str:
        return f"{values['median']:.2f} ({values['least']:.2f} - {values['most']:.2f})"

    print(
        f"{report['rounds']} rounds of {report['steps']} steps, answers after {report['delay']} s, "
        f"{report['device']}, {report['cores']} cores, jax {report['jax']}"
    )
    print(f"{'':<18}{'s a step':>22}{'judge, s':>22}{'of it waited, s':>22}")
    for name, figures in report["runs"].items():
        print(f"{name:<18}" + "".join(f"{cell(figures[figure]):>22}" for figure in FIGURES))
    print(f"on policy a step takes {cell(report['times_as_long'])} times as long")


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--delay", type=float, default=1.0, help="seconds that an answer takes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="updates of each run, at least 4")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps must be at least 4")
    measure_and_report(args, measure, print_report)


if __name__ == "__main__":
    main()
