"""Checkpoints: whole or not there, exact, and independent of the number of devices."""

from __future__ import annotations

import shutil

import jax
import numpy as np
import pytest
import toy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from turnwise_jax.errors import InputError
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.metrics import count_compiles

META = {"iteration": 4, "loader": {"records": [1, {"x": None}]}, "skipped": ["a: b"]}


@pytest.fixture(scope="module")
def state():
    """A state in which every array differs from its initial value."""
    fresh = toy.state(("vision",))
    return jax.tree.map(lambda x: (x * 3 + 1).astype(x.dtype), fresh)


def save(directory, state, *steps: int, keep: int = 5) -> None:
    saved = Checkpointer(directory, keep=keep)
    for step in steps:
        saved.save(step, state, META)
    saved.close()


def test_state_and_position_come_back_exactly(tmp_path, state):
    save(tmp_path, state, 4)
    saved = Checkpointer(tmp_path)
    assert saved.latest_step() == 4
    back, meta = saved.restore(4, toy.state(("vision",)))
    toy.assert_equal(back, state)
    assert meta == META
    assert type(back) is type(state)
    saved.close()


def test_saving_what_several_devices_have_compiles_nothing(tmp_path):
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("rows", "columns"))
    values = np.arange(256, dtype=np.float32).reshape(16, 16)
    state = {
        "everywhere": jax.device_put(values, NamedSharding(mesh, PartitionSpec())),
        "in_parts": jax.device_put(values, NamedSharding(mesh, PartitionSpec("rows"))),
    }
    with count_compiles() as compiles:
        save(tmp_path, state, 1)
    assert compiles.names == []
    saved = Checkpointer(tmp_path)
    toy.assert_equal(saved.restore(1, state)[0], state)
    saved.close()


def test_memory_of_any_size_comes_back_and_its_absence_too(tmp_path, state):
    memory = {"a.x": np.arange(5, dtype=np.int32), "b": np.array([7], np.uint8)}
    saved = Checkpointer(tmp_path, keep=5)
    saved.save(1, state, META)
    saved.save(2, state, META, memory)
    saved.save(3, state, META, {"a.x": np.arange(9, dtype=np.int32)})
    saved.close()
    fresh = Checkpointer(tmp_path)
    assert fresh.memory(1) == {}
    back = fresh.memory(2)
    assert back.keys() == memory.keys()
    for name, array in memory.items():
        np.testing.assert_array_equal(back[name], array)
        assert np.asarray(back[name]).dtype == array.dtype
    assert len(fresh.memory(3)["a.x"]) == 9
    toy.assert_equal(fresh.restore(2, toy.state(("vision",)))[0], state)
    fresh.close()
    shutil.rmtree(tmp_path / "2" / "memory")
    (tmp_path / "2" / "memory").mkdir()
    damaged = Checkpointer(tmp_path)
    with pytest.raises(InputError, match="step 2"):
        damaged.memory(2)
    damaged.close()


def test_only_the_newest_are_kept(tmp_path, state):
    save(tmp_path, state, 1, 2, 3, keep=2)
    saved = Checkpointer(tmp_path)
    assert saved.steps() == [2, 3]
    saved.close()


def test_saved_values_are_those_at_the_time_of_saving(tmp_path):
    """Saving goes on in the background while the state is donated to the next update."""
    bump = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = {"x": jax.numpy.zeros((256, 1024))}
    saved = Checkpointer(tmp_path, keep=4)
    for step in range(4):
        saved.save(step, state, META)
        state = bump(state)
    saved.close()
    saved = Checkpointer(tmp_path)
    for step in range(4):
        back, _ = saved.restore(step, state)
        np.testing.assert_array_equal(back["x"], step)
    saved.close()


def test_leftover_of_a_killed_save_is_never_read(tmp_path, state):
    save(tmp_path, state, 4)
    torn = tmp_path / "6.orbax-checkpoint-tmp-7"
    shutil.copytree(tmp_path / "4", torn)
    shutil.rmtree(torn / "meta")
    looking = Checkpointer(tmp_path, read_only=True)
    assert looking.steps() == [4]
    assert torn.exists()  # it may be another process's save in progress
    looking.close()
    saved = Checkpointer(tmp_path)
    assert saved.latest_step() == 4
    saved.save(6, state, META)
    saved.close()
    assert not torn.exists()
    assert (tmp_path / "6").exists()


@pytest.mark.parametrize("part", ["state", "meta", "state/_METADATA"])
def test_damaged_checkpoint_is_refused_in_one_line(tmp_path, state, part):
    save(tmp_path, state, 4)
    whole = tmp_path / "4" / part
    shutil.rmtree(whole) if whole.is_dir() else whole.unlink()
    saved = Checkpointer(tmp_path)
    with pytest.raises(InputError, match="step 4 cannot be read") as error:
        saved.restore(4, toy.state(("vision",)))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)
    saved.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s._replace(step=s.step[None]),
            "field 'step': the checkpoint of step 4 does not fit this configuration: "
            "it has int32[], int32[1] expected",
        ),
        (lambda s: s._replace(frozen={}), "field 'frozen.vision.frames.value'"),
        (lambda s: s._replace(skipped={"a": s.skipped}), "nothing expected"),
        (lambda s: s._replace(step=s.step.astype(np.float32)), "float32[] expected"),
    ],
)
def test_other_arrays_are_refused_by_name(tmp_path, state, change, message):
    save(tmp_path, state, 4)
    saved = Checkpointer(tmp_path)
    with pytest.raises(InputError) as error:
        saved.restore(4, change(state))
    assert message in str(error.value)
    saved.close()


def test_looking_at_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="no checkpoints"):
        Checkpointer(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def spread(tree, devices: int):
    """Arrays whose first axis divides are split over that many devices, the others copied."""
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("fsdp",))

    def put(x):
        split = x.ndim and x.shape[0] % devices == 0
        spec = PartitionSpec("fsdp") if split else PartitionSpec()
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


@pytest.mark.parametrize(("devices", "later"), [(8, 1), (1, 8), (8, 2)])
def test_restores_on_another_number_of_devices(tmp_path, devices, later):
    tree = {"kernel": np.arange(64.0, dtype=np.float32).reshape(16, 4), "count": np.int32(7)}
    save(tmp_path, spread(tree, devices), 4)
    saved = Checkpointer(tmp_path)
    like = spread(jax.tree.map(np.zeros_like, tree), later)
    back, _ = saved.restore(4, like)
    toy.assert_equal(back, tree)
    assert len(back["kernel"].sharding.device_set) == later
    assert back["kernel"].sharding == like["kernel"].sharding
    saved.close()
