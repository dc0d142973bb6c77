"""Batches made one ahead: decoding and laying out the next while the device works on this one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from turnwise_jax.data.pipeline import Example, Loader

Make = Callable[[Sequence[Example]], Any]


class _Made(NamedTuple):
    examples: list[Example] | None  # None: the loader has come to its end
    made: Any
    state: dict[str, Any]  # of the loader behind this batch
    refused: tuple[str, ...]  # lines about the records left out so far


class Ahead:
    """A loader's batches, each with what ``make`` makes of it.

    Whatever has been read ahead, position and records left out are those behind the last batch that
    was handed out, and an error comes with the batch that it belongs to. So nothing but the time
    depends on ``threaded``.
    """

    def __init__(
        self,
        loader: Loader,
        make: Make,
        *,
        refused: list[str],
        skipped: list[str],
        threaded: bool,
    ):
        """
        Args:
          loader: read by nobody else from now on.
          make: may not wait for other processes; runs in a thread beside the caller's.
          refused: where the loader lists the records that it leaves out, this process's alone.
          skipped: where they are listed, each once, when the batch is handed out that lacks them.
          threaded: make the next batch while the caller works on this one; else when asked.
        """
        self._loader, self._make = loader, make
        self._refused, self._skipped = refused, skipped
        self._pool = ThreadPoolExecutor(1, "ahead") if threaded else None
        self._next: Future[_Made] | None = None
        self._state = loader.get_state()

    def __len__(self) -> int:
        return len(self._loader)

    def start(self) -> None:
        """Begins with the next batch, if it is to be made ahead."""
        if self._pool and not self._next:
            self._next = self._pool.submit(self._one)

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> tuple[list[Example], Any]:
        """The next examples and what was made of them.

        Raises:
          InputError: what reading or making them raised.
        """
        self.start()
        made = self._next.result() if self._next else self._one()
        self._next = None
        if made.examples is None:
            raise StopIteration
        self.start()
        self._state = made.state
        self._skipped += [line for line in made.refused if line not in self._skipped]
        return made.examples, made.made

    def get_state(self) -> dict[str, Any]:
        """Where the loader stood behind the batch that was handed out last; survives JSON."""
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a state of an equal loader; what was read ahead is dropped."""
        self._settle()
        self._loader.set_state(state)
        self._refused.clear()
        self._state = self._loader.get_state()

    def close(self) -> None:
        """Stops all threads."""
        self._settle()
        if self._pool:
            self._pool.shutdown()
        self._loader.close()

    def _settle(self) -> None:
        """Waits for the batch that is being made, if there is one, and forgets it."""
        if self._next and not self._next.cancel():
            self._next.exception()
        self._next = None

    def _one(self) -> _Made:
        examples = next(self._loader, None)
        made = None if examples is None else self._make(examples)
        state = copy.deepcopy(self._loader.get_state())
        return _Made(examples, made, state, tuple(self._refused))
