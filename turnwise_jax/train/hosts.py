"""The processes of one run: how they find each other, agree, and learn of each other's end.

Arrays travel between devices inside compiled programs. What the processes must agree on besides
(shapes, texts, failures) is small and goes as JSON through the key-value store of
``jax.distributed``, which works while a device is busy or another process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError

T = TypeVar("T")

FOREVER_MS = 10**9  # the end of another process ends every wait
GRACE_SECONDS = 2.0  # for the others to hear why this process ends
START_TIMEOUTS = 5  # times the timeout: processes need not start at the same moment
ENDED = "turnwise/ended"
AGAIN = "start all of them again with the same command: the run goes on from its last checkpoint"


class Hosts:
    """The processes of a run, here one that agrees with itself.

    ``index`` of ``count``. Every method but the properties must be called by all processes, in the
    same order.
    """

    index = 0
    count = 1

    @property
    def main(self) -> bool:
        """Whether this process writes the files that a run has once."""
        return self.index == 0

    def gather(self, value: Any) -> list[Any]:
        """Every process's JSON-able value, in process order, to all of them."""
        return [value]

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return any(self.gather(flag))

    def wait(self) -> None:
        """Until all processes are here."""
        self.gather(None)

    def once(self, act: Callable[[], T]) -> T:
        """What ``act`` gives in the main process, JSON-able; the others do not call it."""
        return self.gather(act() if self.main else None)[0]

    def dealt(self, lists: list[list[Any]]) -> list[Any]:
        """What every process has of a batch, in the order of a single process's batch.

        The loader deals a batch out like cards: entry i of process p is entry ``i * count + p``.
        """
        return [entry for row in zip(*lists, strict=True) for entry in row]


ALONE = Hosts()


class Joined(Hosts):
    """Several processes that ``jax.distributed`` has brought together."""

    def __init__(self) -> None:
        from jax._src.distributed import global_state  # no public name for the key-value store

        self.index, self.count = jax.process_index(), jax.process_count()
        self._store = global_state.client
        self._round = 0
        self._ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def gather(self, value: Any) -> list[Any]:
        self._round += 1
        name = f"turnwise/{self._round}"
        self._store.key_value_set(f"{name}/{self.index}", json.dumps(value))
        told = [
            json.loads(self._store.blocking_key_value_get(f"{name}/{process}", FOREVER_MS))
            for process in range(self.count)
        ]
        if self._round > 1:  # whoever is in this round has read all of the one before
            self._store.key_value_delete(f"turnwise/{self._round - 1}/{self.index}")
        return told

    def tell_end(self, error: BaseException) -> None:
        """Let the others know why this process ends, and give them time to hear it.

        An error of the devices is most often another process's end: that one may have told why.
        """
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(GRACE_SECONDS)  # the listener ends this process if there is more to say
        self._ending = True
        said = f"process {self.index} ended: {_first_line(error)}"
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._store.key_value_set(ENDED, said)
        time.sleep(GRACE_SECONDS)

    def _listen(self) -> None:
        """End this process when another says that it ends, wherever the main thread waits."""
        try:
            reason = self._store.blocking_key_value_get(ENDED, FOREVER_MS)
        except jax.errors.JaxRuntimeError:
            return  # the store is gone
        if self._ending:
            return
        print(f"turnwise: error: {reason}; put that right and {AGAIN}", file=sys.stderr, flush=True)
        if self.main:  # the store goes with this process, and with it all that have not left yet
            time.sleep(2 * GRACE_SECONDS)
        os._exit(2)


@contextmanager
def joined(fields: ConfigDict) -> Iterator[Hosts]:
    """The processes of a run, as ``config.hosts`` says; nothing may have touched a device before.

    Args:
      fields: ``count`` processes of which this is ``index``, meeting at ``coordinator``
        ("host:port" of process 0); ``timeout`` seconds after which a silent process counts as dead.
        ``count`` 0 asks the environment: a TPU pod, SLURM, MPI or Kubernetes.

    Raises:
      InputError: the processes do not find each other, or there are more than were asked for.
    """
    arguments = _arguments(fields)
    if fields.count != 1 and not jax.distributed.is_initialized():
        _join(arguments)
    if jax.process_count() == 1:
        yield ALONE
        return
    if fields.count == 1:
        raise InputError(
            f"this is one of {jax.process_count()} processes; --config.hosts.count=0 lets them "
            "work together",
            field="hosts.count",
        )
    hosts = Joined()
    try:
        yield hosts
    except jax.errors.JaxRuntimeError as error:
        hosts.tell_end(error)
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise InputError(f"another process is gone ({_first_line(error)}); {AGAIN}") from error
    except BaseException as error:
        hosts.tell_end(error)
        raise
    jax.distributed.shutdown()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _arguments(fields: ConfigDict) -> dict[str, Any]:
    """``config.hosts`` as ``jax.distributed.initialize`` wants it."""
    timeout = int(fields.timeout)
    given = {
        "num_processes": fields.count,
        "process_id": fields.index,
        "coordinator_address": fields.coordinator,
        "cluster_detection_method": "deactivate",
    }
    return {
        **(given if fields.count else {}),
        "initialization_timeout": START_TIMEOUTS * timeout,
        "heartbeat_timeout_seconds": timeout,
        "shutdown_timeout_seconds": timeout,
    }


def _join(arguments: dict[str, Any]) -> None:
    try:
        jax.distributed.initialize(**arguments)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"the processes did not find each other: {_first_line(error)}", field="hosts"
        ) from error
