"""``data.max_pixels``: one bound of a frame, from the config to training, plan, policy and eval."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from asking import avatar
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.cli import rollout
from turnwise_jax.cli.main import main
from turnwise_jax.data.images import FrameSpec, frame_grid
from turnwise_jax.errors import InputError
from turnwise_jax.eval import run as evaluation
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.throughput import Meter
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train import directory
from turnwise_jax.train.aot.plan import assumed_frame, planned_policy
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.data import read_data
from turnwise_jax.train.run import load_policy
from turnwise_jax.train.validate import validate

STOCK = 12_845_056  # max_pixels as published
BOUND, TOKENS = 100_352, 128


@pytest.fixture(scope="module")
def stock(place, tmp_path_factory):
    """The tiny policy with the published bounds of frames."""
    path = tmp_path_factory.mktemp("stock") / "policy"
    shutil.copytree(place.policy, path)
    FrameSpec(max_pixels=STOCK).save(path)
    return path


def tokens(policy: Policy) -> int:
    """Of a frame of 1280 x 720 pixels."""
    return int(np.prod(frame_grid(720, 1280, policy.spec))) // policy.spec.merge_size**2


@pytest.mark.parametrize("kind", [rl, sft])
def test_training_its_plan_and_the_saved_policy_see_the_bounded_frame(place, stock, tmp_path, kind):
    config = kind(place._replace(policy=stock), tmp_path / "run")
    assert tokens(load_policy(config)) == 1196
    config.data.max_pixels = BOUND
    policy = load_policy(config)
    assert tokens(policy) <= TOKENS
    assert policy.template.spec == policy.spec
    assert planned_policy(config).spec == policy.spec
    policy.save(tmp_path / "saved")
    assert Policy.load(tmp_path / "saved").spec == policy.spec
    config.data.max_pixels = 28 * 28
    (first, *_) = read_data(config, load_policy(config)).grids
    assert {tuple(grid) for grid in first} == {(1, 2, 2)}


def test_a_policy_that_hears_keeps_its_sound_settings(asking, tmp_path):
    config = avatar(asking, tmp_path / "run")
    config.data.max_pixels = 1600
    policy = load_policy(config)
    policy.save(tmp_path / "saved")
    saved = Policy.load(tmp_path / "saved")
    assert saved.spec == policy.spec != Policy.load(asking.policy).spec
    assert saved.template.sound == policy.template.sound is not None


def test_evaluation_needs_no_flag_for_a_saved_policy_and_takes_one(
    place, stock, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(evaluation, "generate", lambda policy, *_, **how: seen.append(policy) or [])
    Policy.load(stock, max_pixels=BOUND).save(tmp_path / "saved")
    for path, bound in ((stock, 0), (stock, BOUND), (tmp_path / "saved", 0)):
        config = eval_config()
        config.policy.update(checkpoint=str(path), dtype="float32")
        config.data.update(path=str(place.world.rl("test")), max_pixels=bound)
        evaluation.run_policy(config, tmp_path / "p.jsonl", [], Meter())
    whole, flag, saved = seen
    assert tokens(whole) == 1196
    assert tokens(flag) <= TOKENS
    assert saved.spec == flag.spec


def test_a_rollout_from_the_command_line_takes_the_bound(place, stock, monkeypatch, capsys):
    seen = []

    def looked(dialogue, spec, sound):
        seen.append(spec)
        raise InputError("enough")

    monkeypatch.setattr(rollout, "load_example", looked)
    video = next(iter(sorted(place.world.videos.glob("*.mp4"))))
    command = ["rollout", f"--checkpoint={stock}", f"--video={video}", "--question=What?"]
    assert main([*command, f"--max_pixels={BOUND}"]) == main(command) == 2
    assert [spec.max_pixels for spec in seen] == [BOUND, STOCK]


def test_a_run_of_before_had_the_checkpoints_own_frames(place, tmp_path):
    """Its config does not name the field: the default is no other value, anything else is."""
    config = rl(place, tmp_path)
    stored = config.to_dict()
    del stored["data"]["max_pixels"]
    stored["compile"]["frame"] = (8, 16)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    config.data.max_pixels = BOUND
    with pytest.raises(InputError, match=f"started with 0, not {BOUND}") as caught:
        directory._check_config(tmp_path, config)
    assert caught.value.field == "data.max_pixels"
    config.data.max_pixels = 0
    directory._check_config(tmp_path, config)
    assert load_policy(ConfigDict(stored)).spec == load_policy(config).spec


# what `turnwise compile` assumes


@pytest.mark.parametrize(
    ("bound", "factor", "size"),
    [(0, 28, (8, 16)), (100_352, 28, (8, 16)), (50_176, 28, (8, 8)), (131_072, 32, (8, 16)),
     (784, 28, (1, 1)), (3 * 784, 28, (1, 2)), (100_351, 28, (9, 14))],
)  # fmt: skip
def test_the_assumed_frame_follows_the_bound(bound, factor, size):
    config = rl_config()
    config.data.max_pixels = bound
    assert assumed_frame(config, factor) == size


def test_an_assumed_frame_that_contradicts_the_bound_is_refused():
    config = rl_config()
    config.compile.frame = (8, 16)
    config.data.max_pixels = 100_352
    assert assumed_frame(config, 28) == (8, 16)
    config.data.max_pixels = 50_176
    with pytest.raises(InputError, match=r"128 tokens, but .* 50176 leaves a frame 64"):
        assumed_frame(config, 28)
    config.compile.frame = (8,)
    with pytest.raises(InputError, match="two numbers of tokens"):
        assumed_frame(config, 28)


@pytest.mark.parametrize("bound", [-1, 1.5])
def test_an_impossible_bound_is_refused_by_name(place, tmp_path, bound):
    config = ConfigDict(rl(place, tmp_path / "run").to_dict())
    config.data = ConfigDict({**config.data.to_dict(), "max_pixels": bound})
    with pytest.raises(InputError) as caught:
        validate(config)
    assert caught.value.field == "data.max_pixels"
