"""``train(config)``: build everything a run needs, fit, export."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.errors import InputError
from turnwise_jax.models.lora import Lora
from turnwise_jax.models.params import Path as ParamPath
from turnwise_jax.rewards.judges import misplaced_rule
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.answer_setup import make_answer_collector
from turnwise_jax.train.collect import make_collector
from turnwise_jax.train.compiled import Update
from turnwise_jax.train.config import algorithm_settings
from turnwise_jax.train.data import Data, read_data
from turnwise_jax.train.directory import (
    CONFIG,
    EXPORT,
    REPORT,
    claimed,
    export,
    is_finished,
    write_report,
)
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.held_out import make_held_out
from turnwise_jax.train.hosts import ALONE, Hosts, joined
from turnwise_jax.train.loop import Collector, Run, fit
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.optim import Optimizer, make_optimizer
from turnwise_jax.train.padding import mean_padding
from turnwise_jax.train.starvation import starvation
from turnwise_jax.train.state import towers_fixed, trained_names
from turnwise_jax.train.supervised import SupervisedCollector
from turnwise_jax.train.validate import validate

__all__ = ["CONFIG", "EXPORT", "REPORT", "build", "export", "train"]


def train(config: ConfigDict) -> tuple[Path, bool]:
    """Run or resume one training run.

    The same call on the same ``run.dir`` goes on where the newest checkpoint ends; a finished run
    returns at once.

    Args:
      config: from ``train.config``, with overrides applied.

    Returns:
      (run directory, finished). Unfinished means that SIGTERM asked for a checkpoint and an end.
      A finished run has its policy as a Hugging Face directory under ``policy/`` (if
      ``run.export``) and ``report.json``.

    Raises:
      InputError: a value, file, record or checkpoint that cannot be used.
    """
    validate(config)
    directory = Path(config.run.dir).absolute()
    with joined(config.hosts) as hosts, claimed(directory, config, hosts):
        check_share(config, hosts)
        finished = hosts.once(lambda: is_finished(directory, config))
        finished = finished or _train(config, directory, hosts)
    return directory, finished


def check_share(config: ConfigDict, hosts: Hosts) -> None:
    """Refuse a batch whose prompts the processes cannot share; a group stays in one process."""
    if config.data.batch_size % hosts.count:
        raise InputError(
            f"{config.data.batch_size} prompts are no equal parts for {hosts.count} processes",
            field="data.batch_size",
        )


def _train(config: ConfigDict, directory: Path, hosts: Hosts) -> bool:
    layout = Layout.of(make_mesh(config.mesh))
    policy = load_policy(config, layout.param_shardings)
    data = read_data(config, policy)
    if hosts.main:
        _warn_of_judge(config, data)
        _warn_of_no_held_out(config, data)
    run = build(config, directory, layout, policy, data, hosts)
    policy = without_params(policy)
    try:
        state, finished = fit(run)
    finally:
        run.collect.close()
    fed = starvation(directory)
    if hosts.main and fed.steps:
        print(f"train: {fed.line()}", file=sys.stderr, flush=True)
    if finished:
        if config.run.export:
            export(policy, state, directory / EXPORT, hosts)
        report = {
            "iterations": run.iterations,
            "updates": int(state.step),
            "skipped_updates": int(state.skipped),
            "skipped_records": sorted(set().union(*hosts.gather(data.skipped))),
            "starvation": fed.share,
            "padding": mean_padding(directory),
        }
        if data.held_out:
            report["held_out_records"] = len(data.held_out)
        if hosts.main:
            write_report(directory, report)
        hosts.wait()
    return finished


def _warn_of_judge(config: ConfigDict, data: Data) -> None:
    """Say before the first step that rewards would come from a judge made for other data."""
    if "judge" not in config:
        return
    answers = (window.answer for dialogue in data.dialogues for window in dialogue.windows)
    if warning := misplaced_rule(config.judge.kind, answers):
        print(f"train: WARNING: {warning}", file=sys.stderr, flush=True)


def _warn_of_no_held_out(config: ConfigDict, data: Data) -> None:
    """Say before the first step that a share was to be held out and few records hold none."""
    share = config.data.held_out if "held_out" in config.data else 0.0
    if share and not data.held_out:
        total = len(data.dialogues)
        line = f"data.held_out={share:g} holds out none of {total} records: no held-out loss"
        print(f"train: WARNING: {line}", file=sys.stderr, flush=True)


def check_features(config: ConfigDict, params: nnx.State) -> None:
    """Refuse to keep the features of towers that are trained."""
    if not config.data.features_mb or towers_fixed(params, config.policy.freeze):
        return
    adapted = config.policy.lora["rank"] > 0
    how = "adapt none (policy.lora.targets)" if adapted else "freeze all (policy.freeze)"
    raise InputError(
        f"features change where towers are trained: set it to 0, or {how}", field="data.features_mb"
    )


def load_policy(
    config: ConfigDict, shardings: Callable[[nnx.State, Any], nnx.State] | None = None
) -> Policy:
    """The policy that ``config.policy`` describes, with its adapters, frozen parts in their dtype.

    Args:
      shardings: where the parameters go; one device by default.
    """
    fields = config.policy
    return Policy.load(
        fields.checkpoint,
        dtype=fields.dtype,
        param_dtype=partial(stored_dtype, config),
        remat=fields.remat,
        lora=Lora.from_config(fields.lora),
        seed=config.run.seed,
        shardings=shardings,
        # an older run's config.json has no such field
        max_pixels=config.data.max_pixels if "max_pixels" in config.data else 0,
    )


def stored_dtype(config: ConfigDict, path: ParamPath) -> str:
    """The dtype that a parameter of this name is kept in."""
    fields = config.policy
    if fields.frozen_dtype == "same" or trains(config, path):
        return fields.param_dtype
    return fields.frozen_dtype


def trains(config: ConfigDict, path: ParamPath) -> bool:
    """Whether a run trains the parameter of this name."""
    fields = config.policy
    return trained_names(fields.freeze, adapted=fields.lora["rank"] > 0)(path)


def keeps_reference(config: ConfigDict) -> bool:
    """Whether a run needs the policy with which it began."""
    return bool(getattr(algorithm_settings(config), "reference", False))


def samples_ahead(config: ConfigDict) -> bool:
    """Whether batches are sampled from the policy before the last update."""
    return config.algorithm.name not in ("sft", "avatar") and config.rollout.ahead > 0


def step_arguments(
    config: ConfigDict, graphdef: nnx.GraphDef, layout: Layout, optimizer: Optimizer
) -> dict[str, Any]:
    """The static arguments of ``train_step``."""
    temperature = config.rollout.temperature if "rollout" in config else 1.0
    loss = ALGORITHMS[config.algorithm.name].loss
    return {
        "forward": Forward(graphdef, temperature, config.policy.logprob_chunk, layout.rows),
        "loss": partial(loss, settings=algorithm_settings(config)),
        "optimizer": optimizer,
        "accumulate": config.optimizer.accumulate,
    }


def build(
    config: ConfigDict,
    directory: Path,
    layout: Layout,
    policy: Policy,
    data: Data,
    hosts: Hosts = ALONE,
) -> Run:
    """All parts of a run, from a loaded policy and its data.

    Args:
      layout: of the mesh on which the run goes.
      policy: its parameters become the run's initial state and are the run's from here on.
      data: from ``read_data``, the same in every process.
      hosts: the processes that share the run.

    Raises:
      InputError: less data than one batch, or features to keep that change.
    """
    batch_size = config.data.batch_size
    per_epoch = len(data.dialogues) // batch_size
    if not per_epoch:
        raise InputError(
            f"{len(data.dialogues)} usable records do not fill one batch of {batch_size}",
            file=config.data.path,
        )
    check_features(config, policy.params)
    iterations = config.run.steps or config.run.epochs * per_epoch
    settings = algorithm_settings(config)
    optimizer = make_optimizer(config.optimizer, iterations * config.optimizer.inner_epochs)
    state = layout.create_state(
        policy.params,
        optimizer,
        config.policy.freeze,
        policy.config,
        reference=keeps_reference(config),
    )
    arguments = step_arguments(config, policy.graphdef, layout, optimizer)
    policy = without_params(policy)
    update = Update(
        arguments,
        inner_epochs=config.optimizer.inner_epochs,
        layout=layout,
        shardings=jax.tree.map(lambda array: array.sharding, state),
        recorded=samples_ahead(config),
        reference=keeps_reference(config) and config.algorithm.name != "avatar",
    )
    collect: Collector
    if config.algorithm.name == "avatar":
        forward = arguments["forward"]
        collect = make_answer_collector(
            config, policy, data, settings, iterations, layout, forward, hosts
        )
    else:
        algorithm = ALGORITHMS[config.algorithm.name]
        collect = make_collector(
            config, policy, data, algorithm, settings, iterations, layout, hosts, update.prepare
        )
    held_out = None
    if isinstance(collect, SupervisedCollector):
        held_out = make_held_out(
            config, policy, data, collect, arguments, iterations, layout, hosts
        )
    return Run(
        directory=directory,
        state=state,
        collect=collect,
        update=update,
        iterations=iterations,
        checkpoint_every=config.run.checkpoint_every,
        keep_checkpoints=config.run.keep_checkpoints,
        hosts=hosts,
        held_out=held_out,
    )


def without_params(policy: Policy) -> Policy:
    """The policy with shapes in place of parameters.

    Once a run has begun nothing but its state may hold them: a second copy would fill the device.
    """
    return dataclasses.replace(policy, params=jax.eval_shape(lambda: policy.params))
