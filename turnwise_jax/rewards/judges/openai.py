"""A language model behind an OpenAI-compatible chat endpoint (vLLM, SGLang, a hosted API) as judge.

What becomes of calls that fail, which are made again and which stop the run, is said in `client`.
Beyond that:

- An answer that parses (`prompts.parse`) is its number; one that does not is a failure, not asked
  again, since a greedy judge would say the same.
- A failure is None in the result. It is a missing score, not a zero, and is not cached.
- A stepwise request shows its frames as JPEG pictures (``data:`` addresses of base64), if the judge
  was given a ``picture`` function; it is taken to show the same for the same name, so that frames
  are cached by name. Each is made once while it is in use, one at a time.

A judge that cannot be used stops the run with one clear line, since a policy must not be trained on
the silence of its judge.
"""

from __future__ import annotations

import base64
import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import prompts
from turnwise_jax.rewards.judges.client import ChatClient
from turnwise_jax.rewards.judges.protocol import Closing, OnAnswer, Request

_PICTURES_KEPT = 256


class OpenAIJudge(Closing):
    """Asks `model` at `url`; a synchronous interface over ``concurrency`` threads.

    Args:
      url, model, api_key_env, concurrency, timeout, retries, backoff, max_wait, give_up_after,
        max_tokens, extra_body: see `client.ChatClient`. The key is never part of a cache either.
      levels: 5 for scores 0..4 (the reward), 3 for 0..2 (the benchmark).
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
        if levels not in prompts.LEVELS:
            raise InputError(f"must be 3 or 5, got {levels!r}", field="judge.levels")
        self.name, self.levels = model, levels
        self._address = None if picture is None else _addresses(picture)
        self._lock = threading.Lock()
        self._picture_lock = threading.Lock()
        self._counters: Counter[tuple[str, str]] = Counter()
        self.client = ChatClient(
            url,
            model,
            api_key_env=api_key_env,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            max_wait=max_wait,
            give_up_after=give_up_after,
            max_tokens=max_tokens,
            extra_body=extra_body,
        )

    @property
    def counters(self) -> Counter[tuple[str, str]]:
        with self._lock:
            return Counter(self._counters)

    def close(self) -> None:
        """End the threads and connections; what is in flight is waited for."""
        self.client.close()

    def seen(self, request: Request) -> Mapping[str, Any]:
        """The request's body, frames by name, and the version of prompt and parse rule; neither
        address nor key."""
        shown = () if self._address is None else request.frames
        body = self.client.body(prompts.messages(request, self.levels, shown))
        return {"prompt_version": prompts.version(request.kind), **body}

    def ask(
        self, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> list[float | None]:
        """Answers in order; InputError if the judge cannot be used at all (see `client`)."""
        return self.client.each(self._answer, requests, on_answer)

    def _answer(self, request: Request, stop: threading.Event) -> float | None:
        """One request to its end. None for a failure or when called off."""
        messages = prompts.messages(request, self.levels, self._pictures(request))
        text = self.client.complete(messages, stop, lambda: self._count_retry(request.kind))
        if text is None:
            return None
        answer = prompts.parse(text, request.kind, self.levels)
        if answer is None:
            self.client.failed(f"cannot read the answer {prompts.final_text(text)[:60]!r}")
        else:
            self.client.usable()
        return answer

    def _pictures(self, request: Request) -> list[str]:
        """Addresses of the frames that the judge is shown."""
        if self._address is None:
            return []
        with self._picture_lock:
            return [self._address(frame) for frame in request.frames]

    def _count_retry(self, kind: str) -> None:
        with self._lock:
            self._counters[kind, "retried"] += 1


def _addresses(picture: Callable[[str], bytes]) -> Callable[[str], str]:
    """``data:`` addresses of what `picture` gives, the latest ones kept."""

    @functools.lru_cache(_PICTURES_KEPT)
    def address(frame: str) -> str:
        return "data:image/jpeg;base64," + base64.b64encode(picture(frame)).decode()

    return address
