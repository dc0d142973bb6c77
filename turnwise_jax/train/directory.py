"""A run's directory: whose it is, who works in it, and what it leaves."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.files import write_text
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.config import declared
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.state import TrainState
from turnwise_jax.train.validate import flatten

CONFIG, REPORT, EXPORT, LOCK = "config.json", "report.json", "policy", ".lock"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # of a stage or variant, a folder's name too

# Fields that may differ when a run is resumed, on another machine for instance: they say where and
# how batches and updates are computed, not which.
RESUMABLE = (
    *("run.dir", "run.checkpoint_every", "run.keep_checkpoints", "run.export"),
    *("policy.remat", "policy.logprob_chunk", "optimizer.accumulate", "shapes.shared_context"),
    *("data.workers", "data.keep_mb", "data.features_mb", "data.cache_dir", "data.cache_gb"),
    "replay.keep_mb",
    *("mesh.data", "mesh.fsdp", "mesh.tensor"),
    *("hosts.count", "hosts.index", "hosts.coordinator", "hosts.timeout"),
    *("judge.url", "judge.api_key_env", "judge.concurrency", "judge.timeout", "judge.retries"),
    "judge.cache",
)


@contextmanager
def claimed(directory: Path, config: ConfigDict, hosts: Hosts = ALONE) -> Iterator[None]:
    """Work in a run's directory, alone, and only if it is this config's run or a new one.

    On several hosts, which share the directory, the main process claims it for all of them.

    Raises:
      InputError: another run's process works there, or the run was started with other settings;
        names the first field that differs.
    """
    if not hosts.main:
        hosts.wait()
        if not directory.is_dir():
            raise InputError("is not shared with the process that made it", file=directory)
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=directory) from error
    with open(directory / LOCK, "w") as lock:
        _lock(lock, directory)
        _check_config(directory, config)
        hosts.wait()
        yield


def _lock(handle: Any, directory: Path) -> None:
    """Hold the lock until the file is closed or the process ends, however it ends."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError("another process is training in it", file=directory) from error
    except OSError:  # a file system without locks
        return


def _check_config(directory: Path, config: ConfigDict) -> None:
    """Write the run's config, or refuse a directory that belongs to a different run.

    A field that is younger than the run had its default.
    """
    path = directory / CONFIG
    mine = _as_json(config)
    if path.exists():
        theirs = flatten(_as_json(declared(config))) | flatten(json.loads(path.read_text()))
        for field, value in flatten(mine).items():
            free = field in RESUMABLE or field.startswith("compile.")
            if not free and theirs[field] != value:
                raise InputError(
                    f"this run was started with {theirs[field]!r}, not {value!r}; "
                    "choose another --config.run.dir or remove the old one",
                    file=directory,
                    field=field,
                )
    write_text(path, json.dumps(mine, indent=2) + "\n")


def _as_json(config: ConfigDict) -> dict[str, Any]:
    """Tuples are lists there."""
    return json.loads(json.dumps(config.to_dict()))


def export(policy: Policy, state: TrainState, directory: Path, hosts: Hosts = ALONE) -> None:
    """Write the policy as a Hugging Face directory, whole or not at all.

    Called by all processes: each gives its part of the parameters, the main one writes.
    """
    temporary = directory.with_name(directory.name + ".partial")
    if hosts.main:
        shutil.rmtree(temporary, ignore_errors=True)
    policy.save(temporary, state.params)
    if hosts.main:
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(temporary, directory)
    hosts.wait()


def is_finished(directory: Path, config: ConfigDict) -> bool:
    """Whether nothing is left to do: the report is written last."""
    exported = (directory / EXPORT / CONFIG).exists()
    return (directory / REPORT).exists() and (exported or not config.run.export)


def write_report(directory: Path, report: Mapping[str, Any]) -> None:
    """``report.json``: that the run is finished, and what it left out."""
    write_text(directory / REPORT, json.dumps(report, indent=2) + "\n")
