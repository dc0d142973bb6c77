"""One process of a run on many hosts, watched by the command that started it.

When another process disappears, JAX ends this one at once, from a thread of its own, with a stack
trace and no word on what to do. So the work is done by a child process, and the command says how it
ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from turnwise_jax.errors import InputError
from turnwise_jax.train.hosts import AGAIN

WORKER = "TURNWISE_WORKER"  # set in the child's environment


def is_worker() -> bool:
    """Whether this process is the child."""
    return WORKER in os.environ


def watch(argv: Sequence[str]) -> None:
    """Run ``turnwise ARGV`` as a child process to its end; SIGTERM is passed on.

    Raises:
      SystemExit: the child's status, after it has said what is wrong.
      InputError: it was ended from outside or by JAX.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "turnwise_jax.cli.main", *argv],
        env={**os.environ, WORKER: "1"},
        stdin=subprocess.PIPE,  # held open while this process lives
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child as well
    status = child.wait()
    if status == -signal.SIGABRT:
        raise InputError(f"another process of this run is gone or never came; {AGAIN}")
    if status < 0:
        raise InputError(f"the process was ended by {signal.Signals(-status).name}; {AGAIN}")
    if status:
        raise SystemExit(status)


def work(act: Callable[[], None]) -> None:
    """Do the child's work; if it fails, say so and leave without waiting for other processes."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        act()
    except InputError as error:
        print(f"turnwise: error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _leave_with_parent() -> None:
    os.read(0, 1)  # ends when the parent does, however it ends
    os._exit(1)
