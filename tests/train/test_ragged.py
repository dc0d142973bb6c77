"""A longer run on dialogues of all lengths: every shape is compiled before the first step."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from ml_collections import ConfigDict
from runs import rl
from tiny import make_checkpoint

from turnwise_jax.data.records import SILENCE, Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl
from turnwise_jax.kernels import token_logprobs
from turnwise_jax.rollout.shapes import Shapes
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train import run
from turnwise_jax.train.aot.plan import planned_policy
from turnwise_jax.train.collect import RolloutCollector
from turnwise_jax.train.data import read_data
from turnwise_jax.train.directory import REPORT
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.loop import CHECKPOINTS
from turnwise_jax.train.metrics import COMPILES, METRICS, TIMING, read_jsonl
from turnwise_jax.train.optim import Optimizer

STEPS, SEED = 12, 1
ROLLOUT = ("encode", "begin", "take_turn")  # compiled once for each rollout bucket
# (turns to answer, turns given, frames of each turn, words of the question)
SHAPES = [
    *((1, 0, 1, 3), (1, 1, 1, 9), (2, 0, 1, 5), (2, 0, 2, 3)),
    *((4, 2, 2, 30), (5, 3, 1, 12), (3, 0, 3, 40), (5, 1, 2, 3)),
]


class QuickForward(Forward):
    """Looks at the last token only: the shapes matter here, and six real ones take a minute."""

    def logprobs(self, params, media, rows):
        model = nnx.merge(self.graphdef, params)
        last = rows.tokens_NT[jnp.arange(len(rows.tokens_NT))[:, None], rows.action_pos_NA]
        logp = token_logprobs(
            model.text.embed(last.reshape(-1)), model.head(), rows.action_target_NA.reshape(-1)
        )
        return logp.reshape(last.shape)


def quick_optimizer(config, total_steps) -> Optimizer:
    return Optimizer(*optax.sgd(config.learning_rate), lambda count: config.learning_rate)


def dialogue(name: str, video: str, turns: int, given: int, frames: int, words: int) -> Dialogue:
    times = [1.0 + 0.5 * i for i in range((turns + given) * frames)]
    made = []
    for k in range(turns + given):
        own = times[k * frames : (k + 1) * frames]
        made.append(
            Turn(
                frames=tuple(Frame(video, time) for time in own),
                text=" ".join(["what"] * words) if k == 0 else "",
                time=own[-1],
                reply=SILENCE if k < given else None,
            )
        )
    window = Window(made[given].time, times[-1], made[0].text, "The red square appears.")
    return Dialogue(name, tuple(made), (window,), system="Watch.")


@pytest.fixture(scope="module")
def config(place, tmp_path_factory) -> ConfigDict:
    """Of a run on ragged dialogues, 8 of them, by a policy that says 1 to 4 tokens a turn."""
    root = tmp_path_factory.mktemp("ragged")
    path = root / "ragged.parquet"
    records = [dialogue(f"d{i}", "videos/train-0000.mp4", *shape) for i, shape in enumerate(SHAPES)]
    mmduet2_rl.write(records, path, root=place.world.root)
    make_checkpoint(root / "policy", marker_gain=2.5)
    config = rl(place, root / "run")
    config.policy.checkpoint = str(root / "policy")
    config.data.update(path=str(path), root=str(place.world.root), shuffle=True)
    config.rollout.max_new_tokens = 4
    config.shapes.update(rollout_buckets=2, row_buckets=3)
    config.run.update(steps=STEPS, checkpoint_every=5, seed=SEED)
    return config


def quick_run(config, monkeypatch) -> tuple[Path, Counter, list[tuple[int, int]]]:
    """(run directory, shapes that its batches had, random numbers that its rollouts used)."""
    seen, randomness = Counter(), []
    collect, rollout = RolloutCollector.__call__, StreamEngine.rollout

    def spy(collector, state, iteration):
        collected = collect(collector, state, iteration)
        batch = collected.batch
        seen[batch.advantage_NK.shape[1], batch.action_pos_NA.shape[1]] += 1
        return collected

    def spy_rollout(engine, *args, seed, step, **options):
        randomness.append((seed, step))
        return rollout(engine, *args, seed=seed, step=step, **options)

    monkeypatch.setattr(RolloutCollector, "__call__", spy)
    monkeypatch.setattr(StreamEngine, "rollout", spy_rollout)
    monkeypatch.setattr(run, "Forward", QuickForward)
    monkeypatch.setattr(run, "make_optimizer", quick_optimizer)
    directory, _ = run.train(config)
    return directory, seen, randomness


@pytest.fixture(scope="module")
def ragged(config):
    """A :func:`quick_run` of the halvings that the config asks for."""
    with pytest.MonkeyPatch.context() as patch:
        return quick_run(config, patch)


def assert_nothing_compiled(directory: Path, steps: int) -> None:
    """Each line counts the compiles from the warm-up to the step's end."""
    lines = read_jsonl(directory / TIMING)
    assert len(lines) == steps
    assert {(line["compiles"], line.get("compiled", ())) for line in lines} == {(0, ())}


def test_nothing_compiles_after_the_warm_up(ragged):
    directory, _, _ = ragged
    assert_nothing_compiled(directory, STEPS)


def test_the_run_met_several_shapes(ragged):
    """Else the test above would show nothing."""
    _, seen, _ = ragged
    assert len({turns for turns, _ in seen}) == 2
    assert len(seen) >= 3, seen


def test_compiles_are_bounded_by_the_buckets_and_logged(ragged):
    directory, _, _ = ragged
    (line,) = read_jsonl(directory / COMPILES)
    names = line["names"]
    assert names["jit(train_step)"] == 6  # 2 rollout buckets x 3 row buckets
    for program in ROLLOUT:
        assert names[f"jit({program})"] == 2
    assert names["jit(_assign)"] == 2
    assert line["programs"] == sum(names.values())
    assert line["programs"] <= 6 + 6 + 2 + 10  # and a few one-operation programs
    assert line["seconds"] > 0


def test_a_resumed_run_compiles_before_its_first_step(ragged, config, tmp_path, monkeypatch):
    """Killed after ten of its steps; the two that are left meet shapes new to the process."""
    whole, _, _ = ragged
    again = tmp_path / "run"
    shutil.copytree(whole, again)
    (again / REPORT).unlink()
    shutil.rmtree(again / CHECKPOINTS / str(STEPS))
    config = ConfigDict(config.to_dict())
    config.run.dir = str(again)
    quick_run(config, monkeypatch)
    assert (again / METRICS).read_bytes() == (whole / METRICS).read_bytes()
    first, second = read_jsonl(again / COMPILES)
    assert (first["step"], second["step"]) == (0, 10)
    for program in ("train_step", *ROLLOUT):
        assert second["names"][f"jit({program})"] == first["names"][f"jit({program})"]
    assert_nothing_compiled(again, STEPS)


@pytest.mark.parametrize("name", ["rl_run", "sft_run", "avatar_run"])
def test_no_kind_of_run_compiles_after_its_warm_up(request, name):
    """Checkpoints, replayed answers and the end of an epoch included."""
    assert_nothing_compiled(request.getfixturevalue(name), 6)


def test_every_step_has_random_numbers_of_its_own(ragged):
    _, _, randomness = ragged
    assert randomness == [(SEED, step) for step in range(STEPS)]


def test_ragged_groups_get_finite_credit(ragged):
    directory, _, _ = ragged
    for line in read_jsonl(directory / METRICS):
        assert line["skipped_updates"] == 0
        assert line["reward"] is not None


def test_given_lengths_are_compiled_and_nothing_else(config, tmp_path, monkeypatch):
    """The rollouts of the halvings named by their lengths, and rows of other ones."""
    planned = planned_policy(config)
    data = read_data(config, planned)
    given = {"batch_size": config.data.batch_size, "new_tokens": config.rollout.max_new_tokens}
    halved = Shapes.for_dialogues(data.dialogues, data.grids, planned, buckets=2, **given)
    lengths = tuple(shapes.context - 1 + shapes.branch for shapes in halved)
    named = Shapes.for_dialogues(data.dialogues, data.grids, planned, lengths=lengths, **given)
    assert len(named) == 2
    config = ConfigDict(config.to_dict())
    most = max(shapes.turns for shapes in named) * config.rollout.max_new_tokens
    config.shapes.update(rollout_lengths=lengths, row_lengths=(12, most))
    config.run.update(dir=str(tmp_path / "run"), steps=4, export=False)
    directory, seen, _ = quick_run(config, monkeypatch)
    (line,) = read_jsonl(directory / COMPILES)
    rooms = {(s.turns, min(a, s.turns * 4)) for s in named for a in (12, most)}
    assert line["names"]["jit(train_step)"] == len(rooms)
    for program in ROLLOUT:
        assert line["names"][f"jit({program})"] == 2
    assert seen.keys() <= rooms
    assert {line["compiles"] for line in read_jsonl(directory / TIMING)} == {0}
