"""A language model behind an OpenAI-compatible chat endpoint (vLLM, SGLang, a hosted API) as judge.

What happens to a request:

- An answer that parses (`prompts.parse`) is its number; one that does not is a failure, not asked
  again, since a greedy judge would say the same.
- No connection, a timeout, a torn or garbled response, 408, 429 and 5xx are asked again, up to
  ``retries`` times, after ``backoff``, 2 ``backoff``, 4 ``backoff`` ... seconds (at most
  ``max_wait``). ``Retry-After`` holds back *all* requests for that long; one that asks for more
  than ``max_wait`` is a failure at once.
- Any other 4xx is a failure, except those that tell of a wrong setting: 401, 403, 404, 405 and
  redirects stop the run.
- A failure is None in the result. It is a missing score, not a zero, and is not cached.
- A stepwise request shows its frames as JPEG pictures (``data:`` addresses of base64), if the judge
  was given a ``picture`` function; it is taken to show the same for the same name, so that frames
  are cached by name. Each is made once while it is in use, one at a time.

Three more things stop the run with one clear line, since a policy must not be trained on the
silence of its judge: no connection was ever made; a whole ``ask`` of several requests went without
a response and so did all before it; ``give_up_after`` requests failed in a row, for any reason.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import functools
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import httpx

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import prompts
from turnwise_jax.rewards.judges.protocol import Closing, OnAnswer, Request

_log = logging.getLogger(__name__)
_FATAL = frozenset({401, 403, 404, 405})
_AGAIN = frozenset({408, 425, 429})
_RESERVED = frozenset({"model", "messages", "stream", "n"})
_PICTURES_KEPT = 256


class _Failure(NamedTuple):
    """Why one call brought no answer; whether another may; how long the server asks to wait."""

    reason: str
    again: bool
    wait: float = 0.0


class OpenAIJudge(Closing):
    """Asks `model` at `url`; a synchronous interface over ``concurrency`` threads.

    Args:
      url: base of the API, such as ``http://127.0.0.1:8000/v1``.
      api_key_env: name of the environment variable that holds the key; unset means no key is sent.
        The key itself is never part of a message, a log or a cache.
      concurrency: most calls in flight at once, over all threads that use this judge.
      timeout: seconds for one call, from sending it to the last byte of the response.
      retries, backoff, max_wait, give_up_after: see the module.
      max_tokens: budget of one answer, reasoning included.
      levels: 5 for scores 0..4 (the reward), 3 for 0..2 (the benchmark).
      extra_body: further fields of the request; None removes one of ours
        (``{"max_tokens": None, "max_completion_tokens": 2048}``).
      picture: JPEG file of a frame by its name (`Request`), InputError if there is none. Without
        it the judge sees no frames.

    ``counters`` counts (kind, "retried"). Close the judge, or use it as a context manager.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        concurrency: int = 32,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 2.0,
        max_wait: float = 60.0,
        give_up_after: int = 64,
        max_tokens: int = 2048,
        levels: int = 5,
        extra_body: Mapping[str, Any] | None = None,
        picture: Callable[[str], bytes] | None = None,
    ):
        _check_counts(concurrency=concurrency, give_up_after=give_up_after, max_tokens=max_tokens)
        _check_counts(least=0, retries=retries)
        _check_seconds(timeout=timeout, backoff=backoff, max_wait=max_wait)
        if levels not in prompts.LEVELS:
            raise InputError(f"must be 3 or 5, got {levels!r}", field="judge.levels")
        if not isinstance(model, str) or not model:
            raise InputError(f"must be a model name, got {model!r}", field="judge.model")
        self.name, self.levels = model, levels
        self.retries, self.backoff, self.max_wait = retries, backoff, max_wait
        self.give_up_after, self.timeout = give_up_after, timeout
        self._url, self._shown_url = _endpoint(url)
        self._settings = _settings(max_tokens, extra_body)
        self._key_env, self._key = api_key_env, _api_key(api_key_env)
        self._address = None if picture is None else _addresses(picture)
        self._lock = threading.Lock()
        self._picture_lock = threading.Lock()
        self._counters: Counter[tuple[str, str]] = Counter()
        self._connected = self._responded = False
        self._failed_in_a_row, self._last_reason, self._not_before = 0, "", 0.0
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="judge")

    @property
    def counters(self) -> Counter[tuple[str, str]]:
        with self._lock:
            return Counter(self._counters)

    def close(self) -> None:
        """End the threads and connections; what is in flight is waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def seen(self, request: Request) -> Mapping[str, Any]:
        """The request's body, frames by name, and the version of prompt and parse rule; neither
        address nor key."""
        shown = () if self._address is None else request.frames
        return {"prompt_version": prompts.version(request.kind), **self._body(request, shown)}

    def ask(
        self, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> list[float | None]:
        """Answers in order; InputError if the judge cannot be used at all (see the module)."""
        answers: list[float | None] = [None] * len(requests)
        stop = threading.Event()
        futures = {self._pool.submit(self._answer, r, stop): i for i, r in enumerate(requests)}
        try:
            for future in as_completed(futures):
                index = futures[future]
                answers[index] = future.result()
                if on_answer is not None:
                    on_answer(index, answers[index])
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
        if len(requests) > 1 and not self._responded:
            raise self._unusable(f"none of {len(requests)} requests succeeded: {self._last_reason}")
        return answers

    def _body(self, request: Request, pictures: Sequence[str]) -> dict[str, Any]:
        return {
            "model": self.name,
            "messages": prompts.messages(request, self.levels, pictures),
            **self._settings,
        }

    def _pictures(self, request: Request) -> list[str]:
        """Addresses of the frames that the judge is shown."""
        if self._address is None:
            return []
        with self._picture_lock:
            return [self._address(frame) for frame in request.frames]

    def _answer(self, request: Request, stop: threading.Event) -> float | None:
        """One request to its end; the first that finds the judge unusable calls off the others."""
        try:
            return self._pursue(request, stop)
        except InputError:
            stop.set()
            raise

    def _pursue(self, request: Request, stop: threading.Event) -> float | None:
        """Calls, waits and parsing. None for a failure or when called off."""
        body = json.dumps(self._body(request, self._pictures(request))).encode()
        for attempt in range(self.retries + 1):
            if attempt:
                with self._lock:
                    self._counters[request.kind, "retried"] += 1
            if stop.wait(max(0.0, self._not_before - time.monotonic())):
                return None
            outcome = self._call(body)
            if isinstance(outcome, str):
                return self._read(outcome, request.kind)
            last = attempt == self.retries or not outcome.again or outcome.wait > self.max_wait
            if last or stop.wait(min(self.backoff * 2**attempt, self.max_wait)):
                break
        if not stop.is_set():
            self._note_failure(outcome.reason)
        return None

    def _read(self, text: str, kind: str) -> float | None:
        """The number in the model's message."""
        self._responded = True
        answer = prompts.parse(text, kind, self.levels)
        if answer is None:
            self._note_failure(f"cannot read the answer {prompts.final_text(text)[:60]!r}")
        else:
            with self._lock:
                self._failed_in_a_row = 0
        return answer

    def _call(self, body: bytes) -> str | _Failure:
        """One HTTP call: the text of the model's message, or why there is none."""
        try:
            response, content = self._post(body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _Failure(_reason(error), again=True)
        except httpx.HTTPError as error:
            self._connected = True
            return _Failure(_reason(error), again=True)
        self._connected = True
        status = response.status_code
        if status in _FATAL or 300 <= status < 400:
            raise self._unusable(self._refusal(response, content))
        if status in _AGAIN or status >= 500:
            return _Failure(f"status {status}", again=True, wait=self._hold(response))
        if status != 200:
            return _Failure(self._refusal(response, content), again=False)
        try:
            text = json.loads(content)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            return _Failure("the response is no chat completion", again=True)
        return text if isinstance(text, str) else ""

    def _post(self, body: bytes) -> tuple[httpx.Response, bytes]:
        """Send `body`; the whole call, however slowly its bytes drip, is bounded by the timeout."""
        deadline = time.monotonic() + self.timeout
        content = bytearray()
        with self._client.stream("POST", self._url, content=body) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the response took too long")
        return response, bytes(content)

    def _hold(self, response: httpx.Response) -> float:
        """Seconds that the server asks to wait; holds back every request if that is acceptable."""
        wait = retry_after(response.headers.get("retry-after"), time.time())
        if 0 < wait <= self.max_wait:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + wait)
        return wait

    def _note_failure(self, reason: str) -> None:
        if not self._connected:
            raise self._unusable(f"cannot be reached: {reason}")
        _log.warning("judge %s: no score: %s", self._shown_url, reason)
        with self._lock:
            self._failed_in_a_row += 1
            self._last_reason = reason
            give_up = self._failed_in_a_row >= self.give_up_after
        if give_up:
            raise self._unusable(f"failed {self.give_up_after} requests in a row: {reason}")

    def _refusal(self, response: httpx.Response, content: bytes) -> str:
        """Status and the start of the body, without the key should a server echo it."""
        text = content[:500].decode(errors="replace")
        if self._key:
            text = text.replace(self._key, "***")
        elif self._key_env and response.status_code in (401, 403):
            text += f" (environment variable {self._key_env} is not set)"
        if response.has_redirect_location:
            text = f"(redirects) {text}"
        return f"status {response.status_code} {text[:300]}".strip()

    def _unusable(self, message: str) -> InputError:
        return InputError(f"judge {self._shown_url} (model {self.name}): {message}", field="judge")


def retry_after(value: str | None, now: float) -> float:
    """Seconds to wait by a ``Retry-After`` header, a number or an HTTP date; 0 if there is none."""
    if value is None:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    return 0.0


def _addresses(picture: Callable[[str], bytes]) -> Callable[[str], str]:
    """``data:`` addresses of what `picture` gives, the latest ones kept."""

    @functools.lru_cache(_PICTURES_KEPT)
    def address(frame: str) -> str:
        return "data:image/jpeg;base64," + base64.b64encode(picture(frame)).decode()

    return address


def _reason(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__} {error}".strip()


def _endpoint(url: str) -> tuple[httpx.URL, str]:
    """Address of the chat call, and the same for messages: without user, password and query."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError("must be http://host:port/v1 or the like", field="judge.url")
    path = parsed.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
    parsed = parsed.copy_with(path=path)
    shown = parsed.copy_with(username="", password="", query=None)
    return parsed, str(shown)


def _settings(max_tokens: int, extra_body: Mapping[str, Any] | None) -> dict[str, Any]:
    extra = dict(extra_body or {})
    if reserved := sorted(_RESERVED & extra.keys()):
        raise InputError(f"must not set {', '.join(reserved)}", field="judge.extra_body")
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise InputError(f"is no JSON: {error}", field="judge.extra_body") from None
    settings = {"temperature": 0, "max_tokens": max_tokens, **extra}
    return {name: value for name, value in settings.items() if value is not None}


def _api_key(variable: str | None) -> str:
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"environment variable {variable} holds characters that cannot be sent",
            field="judge.api_key_env",
        )
    return key


def _check_counts(least: int = 1, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(
                f"must be a whole number of at least {least}, got {value!r}", field=f"judge.{name}"
            )


def _check_seconds(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(
                f"must be a positive number of seconds, got {value!r}", field=f"judge.{name}"
            )
