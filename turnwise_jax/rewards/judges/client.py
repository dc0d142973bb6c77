"""Talking to an OpenAI-compatible chat endpoint (vLLM, SGLang, a hosted API) from many threads.

What happens to a request:

- No connection, a timeout, a torn or garbled response, 408, 425, 429 and 5xx are asked again, up to
  ``retries`` times, after ``backoff``, 2 ``backoff``, 4 ``backoff`` ... seconds (at most
  ``max_wait``). ``Retry-After`` holds back *all* requests for that long; one that asks for more
  than ``max_wait`` is a failure at once.
- Any other 4xx is a failure, except those that tell of a wrong setting: 401, 403, 404, 405 and
  redirects stop the work.

Three more things stop the work with one clear line: no connection was ever made; none of several
requests of one ``each`` had a response and neither had any before; ``give_up_after`` failed in a
row, for any reason.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple, TypeVar

import httpx

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Closing

T = TypeVar("T")
U = TypeVar("U")
Messages = Sequence[Mapping[str, Any]]

_log = logging.getLogger(__name__)
_FATAL = frozenset({401, 403, 404, 405})
_AGAIN = frozenset({408, 425, 429})
_RESERVED = frozenset({"model", "messages", "stream", "n"})


class _Failure(NamedTuple):
    """Why one call brought no answer; whether another may; how long the server asks to wait."""

    reason: str
    again: bool
    wait: float = 0.0


class ChatClient(Closing):
    """Asks `model` at `url`; close it, or use it as a context manager.

    Args:
      url: base of the API, such as ``http://127.0.0.1:8000/v1``.
      role: what messages call the endpoint, and the section of its settings.
      api_key_env: name of the environment variable that holds the key; unset means no key is sent.
        The key itself is never part of a message or a log.
      concurrency: most calls in flight at once, over all threads that use this client.
      timeout: seconds for one call, from sending it to the last byte of the response.
      retries, backoff, max_wait, give_up_after: see the module.
      max_tokens: budget of one answer, reasoning included.
      extra_body: further fields of the request; None removes one of ours
        (``{"max_tokens": None, "max_completion_tokens": 2048}``).

    Raises:
      InputError: a setting that cannot work.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        role: str = "judge",
        api_key_env: str | None = None,
        concurrency: int = 32,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 2.0,
        max_wait: float = 60.0,
        give_up_after: int = 64,
        max_tokens: int = 2048,
        extra_body: Mapping[str, Any] | None = None,
    ):
        self.model, self.role = model, role
        counts = {"concurrency": concurrency, "give_up_after": give_up_after}
        self._check_counts(1, **counts, max_tokens=max_tokens)
        self._check_counts(0, retries=retries)
        self._check_seconds(timeout=timeout, backoff=backoff, max_wait=max_wait)
        if not isinstance(model, str) or not model:
            raise InputError(f"must be a model name, got {model!r}", field=f"{role}.model")
        self.retries, self.backoff, self.max_wait = retries, backoff, max_wait
        self.give_up_after, self.timeout = give_up_after, timeout
        self._url, self._shown_url = self._endpoint(url)
        self._settings = self._body_settings(max_tokens, extra_body)
        self._key_env, self._key = api_key_env, self._api_key(api_key_env)
        self._lock = threading.Lock()
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
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix=role)

    def close(self) -> None:
        """End the threads and connections; what is in flight is waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def body(self, messages: Messages) -> dict[str, Any]:
        """The request that asks for an answer to `messages`; neither address nor key."""
        return {"model": self.model, "messages": list(messages), **self._settings}

    def each(
        self,
        work: Callable[[T, threading.Event], U],
        items: Sequence[T],
        on_result: Callable[[int, U], None] | None = None,
    ) -> list[U]:
        """What ``work(item, stop)`` gives for each item, in order; it runs in the client's threads.

        ``stop`` is set when the work is called off. ``on_result(i, result)`` is called in this
        thread after each item, in the order in which they end.

        Raises:
          InputError: the endpoint cannot be used at all (see the module), or `work` raised it.
        """
        results: list[Any] = [None] * len(items)
        stop = threading.Event()

        def run(item: T) -> U:
            try:
                return work(item, stop)
            except InputError:
                stop.set()
                raise

        futures = {self._pool.submit(run, item): index for index, item in enumerate(items)}
        try:
            for future in as_completed(futures):
                index = futures[future]
                results[index] = future.result()
                if on_result is not None:
                    on_result(index, results[index])
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
        if len(items) > 1 and not self._responded and self._last_reason:
            raise self._unusable(f"none of {len(items)} requests succeeded: {self._last_reason}")
        return results

    def complete(
        self,
        messages: Messages,
        stop: threading.Event,
        on_retry: Callable[[], None] = lambda: None,
    ) -> str | None:
        """The model's message; None for a failure, or when `stop` was set meanwhile.

        What the caller can use of it is to be told to :meth:`usable`, what not to :meth:`failed`.
        """
        body = json.dumps(self.body(messages)).encode()
        reason = ""
        for attempt in range(self.retries + 1):
            if attempt:
                on_retry()
            if stop.wait(max(0.0, self._not_before - time.monotonic())):
                return None
            outcome = self._call(body)
            if isinstance(outcome, str):
                self._responded = True
                return outcome
            reason = outcome.reason
            last = attempt == self.retries or not outcome.again or outcome.wait > self.max_wait
            if last or stop.wait(min(self.backoff * 2**attempt, self.max_wait)):
                break
        if not stop.is_set():
            self.failed(reason)
        return None

    def usable(self) -> None:
        """An answer was of use: no row of failures."""
        with self._lock:
            self._failed_in_a_row = 0

    def failed(self, reason: str) -> None:
        """A request brought nothing of use.

        Raises:
          InputError: too many in a row, or the endpoint was never reached.
        """
        if not self._connected:
            raise self._unusable(f"cannot be reached: {reason}")
        _log.warning("%s %s: no answer: %s", self.role, self._shown_url, reason)
        with self._lock:
            self._failed_in_a_row += 1
            self._last_reason = reason
            give_up = self._failed_in_a_row >= self.give_up_after
        if give_up:
            raise self._unusable(f"failed {self.give_up_after} requests in a row: {reason}")

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
        where = f"{self.role} {self._shown_url} (model {self.model})"
        return InputError(f"{where}: {message}", field=self.role)

    def _endpoint(self, url: str) -> tuple[httpx.URL, str]:
        """Address of the chat call, and the same for messages: without user, password, query."""
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError("must be http://host:port/v1 or the like", field=f"{self.role}.url")
        path = parsed.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        parsed = parsed.copy_with(path=path)
        return parsed, str(parsed.copy_with(username="", password="", query=None))

    def _body_settings(
        self, max_tokens: int, extra_body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        extra, field = dict(extra_body or {}), f"{self.role}.extra_body"
        if reserved := sorted(_RESERVED & extra.keys()):
            raise InputError(f"must not set {', '.join(reserved)}", field=field)
        try:
            json.dumps(extra)
        except (TypeError, ValueError) as error:
            raise InputError(f"is no JSON: {error}", field=field) from None
        settings = {"temperature": 0, "max_tokens": max_tokens, **extra}
        return {name: value for name, value in settings.items() if value is not None}

    def _api_key(self, variable: str | None) -> str:
        key = os.environ.get(variable, "").strip() if variable else ""
        if not (key.isascii() and key.isprintable()):
            raise InputError(
                f"environment variable {variable} holds characters that cannot be sent",
                field=f"{self.role}.api_key_env",
            )
        return key

    def _check_counts(self, least: int, **values: int) -> None:
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(
                    f"must be a whole number of at least {least}, got {value!r}",
                    field=f"{self.role}.{name}",
                )

    def _check_seconds(self, **values: float) -> None:
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(
                    f"must be a positive number of seconds, got {value!r}",
                    field=f"{self.role}.{name}",
                )


def retry_after(value: str | None, now: float) -> float:
    """Seconds to wait by a ``Retry-After`` header, a number or an HTTP date; 0 if there is none."""
    if value is None:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    return 0.0


def _reason(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__} {error}".strip()
