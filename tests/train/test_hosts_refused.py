"""What several processes cannot do is refused in one line; ``jax`` is made to count two."""

from __future__ import annotations

import jax
import pytest
from ml_collections import ConfigDict
from runs import rl

from turnwise_jax.errors import InputError
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.run import evaluate
from turnwise_jax.study.config import check, study_config
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.hosts import joined
from turnwise_jax.train.mesh import make_mesh
from turnwise_jax.train.validate import validate


@pytest.fixture
def two(monkeypatch):
    """Two processes with four of the eight devices each."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)


def hosts_fields(**changes) -> ConfigDict:
    fields = rl_config().hosts
    fields.update(changes)
    return fields


def test_one_of_several_processes_does_not_train_alone(two):
    with (
        pytest.raises(InputError, match=r"one of 2 processes; --config.hosts.count=0"),
        joined(hosts_fields()),
    ):
        pass


def test_processes_that_no_environment_describes_are_refused(monkeypatch):
    def nothing_there(**arguments):
        assert "num_processes" not in arguments
        raise ValueError("coordinator_address should be defined.\nmore")

    monkeypatch.setattr(jax.distributed, "initialize", nothing_there)
    with (
        pytest.raises(InputError, match=r"did not find each other: coordinator_\w+ should be def"),
        joined(hosts_fields(count=0)),
    ):
        pass


def test_evaluation_among_several_processes_is_refused(two):
    with pytest.raises(InputError, match="one of 2 processes; evaluation runs in one"):
        evaluate(eval_config())


def test_study_of_several_processes_is_refused():
    run = rl_config()
    run.hosts.count = 2
    with pytest.raises(InputError, match="a study runs in one process") as error:
        check(study_config(runs={"a": run}, labels={}))
    assert error.value.field == "runs.a.hosts.count"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 2, 1), "leaves devices of some host out: there are 8"),
        ((1, 1, 8), "8 parts do not stay on one host of 4 devices"),
    ],
)
def test_mesh_that_hosts_cannot_share_is_refused(two, sizes, message):
    with pytest.raises(InputError, match=message):
        make_mesh(ConfigDict(dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"count": 2}, "hosts.coordinator"),
        ({"count": 2, "coordinator": "host"}, "hosts.coordinator"),
        ({"count": 2, "index": 2, "coordinator": "host:1"}, "hosts.index"),
        ({"index": 1}, "hosts.index"),
        ({"count": -1}, "hosts.count"),
        ({"timeout": 0.5}, "hosts.timeout"),
    ],
)
def test_fields_that_cannot_work_are_named(place, tmp_path, changes, field):
    config = rl(place, tmp_path)
    config.hosts.update(changes)
    with pytest.raises(InputError) as error:
        validate(config)
    assert error.value.field == field
