"""A real HTTP server on this machine that answers like a chat endpoint, or misbehaves as told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler"], None]


def says(text: Any) -> Act:
    """A well-formed completion whose message is `text`."""
    return sends({"choices": [{"message": {"role": "assistant", "content": text}}]})


def sends(payload: Any) -> Act:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return lambda handler: handler.respond(200, body)


def status(code: int, body: str = "{}", **headers: str) -> Act:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.respond(code, body.encode(), named)


def after(seconds: float, act: Act) -> Act:
    """`act`, `seconds` later, unless the server is being stopped."""

    def slow(handler: Handler) -> None:
        handler.server.owner.stopping.wait(seconds)
        act(handler)

    return slow


def closes(act: Act) -> Act:
    """`act`, and the connection is not kept."""

    def last(handler: Handler) -> None:
        handler.close_connection = True
        act(handler)

    return last


def half(text: str) -> Act:
    """The promised length is never sent: the connection closes in the middle of the body."""

    def torn(handler: Handler) -> None:
        body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        handler.send_response(200)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.close_connection = True

    return torn


def drips(pause: float) -> Act:
    """One byte now and then, for ever: no single read is slow."""

    def slow(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        while not handler.server.owner.stopping.wait(pause):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    return slow


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self) -> None:
        owner: JudgeServer = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        act = owner.enter(self.path, dict(self.headers), body)
        try:
            act(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up, as the test wants
        finally:
            owner.leave()

    def respond(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("connection", "close")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: the tests read `JudgeServer.bodies`."""


class JudgeServer:
    """Listens on a free port. ``script(n, body)`` says how the n-th request is treated.

    ``bodies``, ``headers``, ``times`` and ``paths`` record the requests; ``busiest`` is the largest
    number that were being served at once.
    """

    def __init__(self, script: Callable[[int, dict], Act]):
        self.script = script
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.busiest = self._busy = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> JudgeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def enter(self, path: str, headers: dict[str, str], body: dict) -> Act:
        with self._lock:
            self.paths.append(path)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            self.bodies.append(body)
            self.times.append(time.monotonic())
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            return self.script(len(self.bodies) - 1, body)

    def leave(self) -> None:
        with self._lock:
            self._busy -= 1


def in_turn(*acts: Act) -> Callable[[int, dict], Act]:
    """The n-th request gets the n-th treatment; the last one stays."""
    return lambda n, body: acts[min(n, len(acts) - 1)]
