"""Configuration: every declared field is used, and what cannot work is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.cli.flags import RUN, config_of, define_config, parse
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import make_judge
from turnwise_jax.train import directory, run
from turnwise_jax.train.config import EXAMPLES, rl_config, sft_config
from turnwise_jax.train.validate import flatten, validate

ROOT = Path(__file__).resolve().parents[2]

METHODS = [name for name in ALGORITHMS if name != "sft"]


def ready(config: ConfigDict) -> ConfigDict:
    config.policy.checkpoint, config.data.path = "policy", "data"
    return config


@pytest.mark.parametrize("config", [*map(rl_config, METHODS), sft_config()], ids=[*METHODS, "sft"])
def test_defaults_are_allowed_once_the_paths_are_named(config):
    with pytest.raises(InputError, match="must name"):
        validate(config)
    validate(ready(config))


def test_defaults_are_the_papers():
    """TurnWise section 4.1."""
    config = rl_config()
    assert config.data.batch_size == 8
    assert config.rollout.to_dict() == {
        "group_size": 4, "temperature": 1.2, "top_k": 10, "top_p": 1.0, "max_new_tokens": 100,
        "ahead": 0, "desynchronised": False, "show_at": 0.0,
    }  # fmt: skip
    assert config.reward.to_dict() == {
        "quality": 3.0, "repetition": 2.0, "out_of_window": 0.5, "shared_prefix": 2.0,
        "omega": 0.5, "prefix_chars": 50, "on_failure": "drop_rollout", "kind": "pauc",
    }  # fmt: skip
    assert config.algorithm.to_dict() == {
        "name": "turnwise", "credit": "turn", "reduction": "turn", "alpha": 1.0,
        "alpha_warmup": 0.1, "max_advantage": 5.0, "eps": 1e-6, "clip_low": 0.2,
        "clip_high": 0.2, "dual_clip": 3.0,
    }  # fmt: skip
    assert (config.optimizer.learning_rate, sft_config().optimizer.learning_rate) == (1e-6, 1e-5)
    assert config.policy.freeze == ("vision",)


IMPOSSIBLE = [
    ("run.seed", -1), ("run.seed", 2**32), ("run.steps", -1), ("run.epochs", 0),
    ("run.checkpoint_every", 0), ("run.keep_checkpoints", 0),
    ("policy.dtype", "float16"), ("policy.param_dtype", "int8"), ("policy.remat", "some"),
    ("policy.logprob_chunk", 0), ("policy.checkpoint", ""),
    ("data.source", "imagenet"), ("data.path", ""), ("data.on_bad_record", "ignore"),
    ("data.batch_size", 0), ("data.workers", -1), ("data.keep_mb", -1), ("data.features_mb", -1),
    ("data.cache_gb", 0.0), ("data.cache_gb", float("inf")),
    ("shapes.rollout_buckets", 0), ("shapes.row_buckets", 0),
    ("shapes.rollout_lengths", (64, 32)), ("shapes.rollout_lengths", (0,)),
    ("shapes.row_lengths", (8, 8)), ("shapes.row_lengths", (8.0,)),
    ("optimizer.learning_rate", 0.0), ("optimizer.learning_rate", float("nan")),
    ("optimizer.learning_rate", float("inf")), ("optimizer.schedule", "linear"),
    ("optimizer.warmup_steps", -1), ("optimizer.weight_decay", -0.1),
    ("optimizer.clip_norm", 0.0), ("optimizer.b1", 1.0), ("optimizer.b2", -0.1),
    ("optimizer.eps", 0.0), ("optimizer.accumulate", 3), ("optimizer.accumulate", 0),
    ("optimizer.inner_epochs", 0), ("mesh.data", 0), ("mesh.fsdp", 0), ("mesh.tensor", 0),
    ("rollout.group_size", 0), ("rollout.temperature", 0.0), ("rollout.top_k", -1),
    ("rollout.top_p", 0.0), ("rollout.top_p", 1.1), ("rollout.max_new_tokens", 0),
    ("rollout.ahead", -1), ("rollout.ahead", 2), ("rollout.show_at", 1.1),
    ("reward.quality", float("nan")), ("reward.repetition", -1.0), ("reward.out_of_window", -1.0),
    ("reward.shared_prefix", -1.0), ("reward.omega", 1.1), ("reward.omega", -0.1),
    ("reward.prefix_chars", 0), ("reward.on_failure", "zero"), ("judge.kind", "oracle"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE)
def test_impossible_value_is_refused_by_name(field, value):
    config = ready(rl_config())
    section, name = field.split(".")
    config[section][name] = value
    with pytest.raises(InputError) as error:
        validate(config)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("dual_clip", 1.0, "c > 1"), ("clip_low", -0.1, "clip range"), ("credit", "all", "credit")],
)
def test_impossible_setting_of_the_method_is_refused(field, value, message):
    config = ready(rl_config())
    config.algorithm[field] = value
    with pytest.raises(InputError, match=message):
        validate(config)


def test_unknown_fields_and_methods_are_refused():
    with pytest.raises(AttributeError, match="learning_rat"):
        rl_config().optimizer.learning_rat = 1.0
    with pytest.raises(InputError, match="unknown algorithm 'ppo'"):
        rl_config("ppo")
    config = ready(rl_config())
    config.algorithm.name = "grpo"  # has no credit, alpha, ...
    with pytest.raises(InputError, match="grpo has no such setting") as error:
        validate(config)
    assert error.value.message.endswith("--config=configs/turnwise/qwen2_5_vl_3b.py:grpo")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_that_is_recommended_for_an_algorithm_is_one(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    values = parse([f"--config={EXAMPLES[name]}"], "", define_config)
    assert config_of(values, RUN).algorithm.name == name


@pytest.mark.parametrize("section", ["optimizer", "rollout"])
def test_fields_of_a_config_that_was_read_from_a_file_are_checked(section):
    tree = ready(rl_config()).to_dict()
    tree[section]["extra"] = 1
    with pytest.raises(InputError, match=f"'{section}.extra'"):
        validate(ConfigDict(tree))
    del tree[section]["extra"]
    name, value = tree[section].popitem()
    with pytest.raises(InputError, match=f"'{section}.{name}': is missing"):
        validate(ConfigDict(tree))
    tree[section][name] = str(value)
    with pytest.raises(InputError, match=f"'{section}.{name}': must be like"):
        validate(ConfigDict(tree))


def test_sft_makes_one_update_per_batch():
    config = ready(sft_config())
    config.optimizer.inner_epochs = 2
    with pytest.raises(InputError, match="one update per batch"):
        validate(config)


@pytest.mark.parametrize(
    ("field", "value"),
    [("data.held_out", 1.0), ("data.held_out", -0.1), ("run.validate_every", 0)],
)
def test_impossible_share_to_hold_out_is_refused(field, value):
    config = ready(sft_config())
    section, name = field.split(".")
    config[section][name] = value
    with pytest.raises(InputError) as error:
        validate(config)
    assert error.value.field == field


class Spy:
    """A config that remembers which of its fields were read one by one."""

    def __init__(self, config: ConfigDict, read: set[str], prefix: str = ""):
        self._config, self._read, self._prefix = config, read, prefix

    def __getattr__(self, name):
        return self[name]

    def __getitem__(self, name):
        self._read.add(self._prefix + name)
        value = self._config[name]
        if isinstance(value, ConfigDict):
            return Spy(value, self._read, f"{self._prefix}{name}.")
        return value

    def __contains__(self, name):
        return name in self._config

    def __iter__(self):
        return iter(self._config)

    def keys(self):
        return self._config.keys()


@pytest.mark.parametrize("kind", [rl, sft])
def test_every_declared_field_is_read_by_a_run(place, tmp_path, monkeypatch, kind):
    """Beside the checks, which read all: a field that no part of a run reads does nothing."""
    config = kind(place, tmp_path / "run")
    config.run.steps = 0
    config.data.batch_size = 8
    monkeypatch.setattr(run, "validate", lambda config: None)
    monkeypatch.setattr(directory, "_check_config", lambda directory, config: None)
    monkeypatch.setattr(run, "fit", lambda run: (run.state, True))
    read: set[str] = set()
    assert run.train(Spy(config, read))[1]
    unread = flatten(config.to_dict()).keys() - read
    assert {name for name in unread if not name.startswith("compile.")} == set()


@pytest.mark.parametrize(
    ("freeze", "message"),
    [(("audio",), "no parameter group 'audio'; it has text, vision"),
     (("text", "vision"), "every parameter is frozen")],
)  # fmt: skip
def test_impossible_freezing_is_refused(place, tmp_path, freeze, message):
    config = sft(place, tmp_path / "run")
    config.policy.freeze = freeze
    with pytest.raises(InputError, match=message) as error:
        run.train(config)
    assert error.value.field == "policy.freeze"


def test_judge_takes_every_field_of_its_section():
    """Fields that only other kinds of judge know are passed over; a typing error is not."""
    fields = copy.deepcopy(rl_config().judge.to_dict())
    for kind in ("rule", "openai"):
        make_judge({**fields, "kind": kind}).close()
    with pytest.raises(InputError, match="modell"):
        make_judge({**fields, "modell": "x"})


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [(rl, "sft", "nothing is left to decide"), (sft, "rl", "reply")],
)
def test_records_of_the_other_kind_are_refused_in_one_line(place, tmp_path, kind, source, message):
    config = kind(place, tmp_path / "run")
    config.data.source = f"mmduet2_{source}"
    config.data.path = str(getattr(place.world, source)("train"))
    with pytest.raises(InputError, match=message) as error:
        run.train(config)
    assert error.value.record is not None
    assert "\n" not in str(error.value)


def test_a_limit_takes_the_first_records(place, tmp_path):
    config = rl(place, tmp_path / "run")
    policy = run.load_policy(config)
    whole = run.read_data(config, policy)
    config.data.limit = 3
    some = run.read_data(config, policy)
    assert some.dialogues == whole.dialogues[:3]
    assert some.grids == whole.grids[:3]
