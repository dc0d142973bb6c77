"""google-tunix's side of ``tunix.py``: its GRPO update and its sampler, in its own environment.

    TUNIX_PYTHON benchmarks/tunix_worker.py FOLDER

``FOLDER`` holds ``qwen2/`` (a text-only Qwen2 in safetensors), ``rows.npz`` and
``settings.json``, as ``tunix.py`` leaves them. Every line of standard input asks for one thing and
is answered with one line of JSON: ``step`` updates once, ``checked_step`` computes the
log-probability of the actions first, ``sample`` answers all prompts. Imports nothing of this
library.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen2.model import ModelConfig
from tunix.models.qwen2.params import create_model_from_safe_tensors
from tunix.rl import common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix.rl.trainer import Trainer
from tunix.sft.peft_trainer import TrainingConfig


class Words:
    """A tokenizer for prompts that are ids already, written with blanks between them."""

    def __init__(self, pad: int, eos: int):
        self._pad, self._eos = pad, eos

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> None:
        return None

    def pad_id(self) -> int:
        return self._pad

    def eos_id(self) -> int:
        return self._eos


class Update:
    """The trainer that ``GRPOLearner`` makes, with its loss, on one batch."""

    def __init__(self, model: nnx.Module, rows: dict[str, np.ndarray], settings: dict[str, Any]):
        self.model, self.settings = model, settings
        self.algorithm = GRPOConfig(num_generations=settings["group"], beta=0.0)
        self.algorithm.temperature = settings["temperature"]
        self.example = TrainExample(
            prompt_ids=jnp.asarray(rows["prompt"]),
            prompt_mask=jnp.asarray(rows["prompt"] != settings["pad"]),
            completion_ids=jnp.asarray(rows["completion"]),
            completion_mask=jnp.asarray(rows["is_action"]),
            advantages=jnp.asarray(rows["advantage"]),
            ref_per_token_logps=None,
            old_per_token_logps=None,
        )
        self.trainer = Trainer(
            model,
            _optimizer(settings["optimizer"]),
            TrainingConfig(eval_every_n_steps=10**9, max_steps=10**9),
            custom_checkpoint_metadata_fn=dict,
        )
        loss = function_registry.get_policy_loss_fn(self.algorithm.policy_loss_fn)
        ids = {"pad_id": settings["pad"], "eos_id": settings["eos"]}
        self.trainer.with_loss_fn(
            lambda model, train_example: loss(
                model, train_example, algo_config=self.algorithm, **ids
            ),
            has_aux=True,
        )
        self.trainer.with_gen_model_input_fn(lambda example: {"train_example": example})
        self.step, _ = self.trainer.jit_train_and_eval_step(cache_nnx_graph=True)

    def __call__(self) -> dict[str, float]:
        loss, _, norm = jax.block_until_ready(self.step(self.example))
        return {"loss": float(loss), "grad_norm": float(norm)}

    def logp(self) -> float:
        """Mean log-probability of the actions, as tunix computes it."""
        example, (graphdef, state) = self.example, nnx.split(self.model)
        logp = common.compute_per_token_logps(
            graphdef,
            state,
            prompt_tokens=example.prompt_ids,
            completion_tokens=example.completion_ids,
            pad_id=self.settings["pad"],
            eos_id=self.settings["eos"],
            temperature=self.settings["temperature"],
        )
        return float(np.asarray(logp)[np.asarray(example.completion_mask)].mean())


class Rollouts:
    """K greedy replies of every rollout, each a call of the sampler on the dialogue so far."""

    def __init__(self, model: nnx.Module, settings: dict[str, Any]):
        self.model, self.settings = model, settings
        self.samplers: dict[int, Sampler] = {}

    def __call__(self) -> list[list[list[int]]]:
        """Ids of every reply, ``[N][K]``, with the marker that ends it."""
        marker = self.settings["marker"]
        said: list[list[int]] = [[] for _ in self.settings["pieces"]]
        replies: list[list[list[int]]] = [[] for _ in said]
        for k in range(len(self.settings["pieces"][0])):
            for row, pieces in zip(said, self.settings["pieces"], strict=True):
                row.extend(pieces[k])
            for row, own, reply in zip(said, replies, self._reply(said), strict=True):
                own.append(reply)
                row.extend(reply)
                if reply[-1] != marker:
                    row.append(marker)
        return replies

    def _reply(self, prompts: list[list[int]]) -> list[list[int]]:
        """One reply to each prompt; the sampler's room is exactly what it needs."""
        marker, limit = self.settings["marker"], self.settings["limit"]
        width = max(map(len, prompts))
        made = self._sampler(width + limit)(
            [" ".join(map(str, prompt)) for prompt in prompts],
            max_generation_steps=limit,
            max_prompt_length=width,
            eos_tokens=[marker],
        )
        # Its replies end before the marker, so one that is shorter than the limit had one.
        cut = [np.asarray(ids).tolist() for ids in made.tokens]
        return [ids if len(ids) == limit else [*ids, marker] for ids in cut]

    def _sampler(self, room: int) -> Sampler:
        if room not in self.samplers:
            config = self.model.config
            cache = CacheConfig(room, config.num_layers, config.num_kv_heads, config.head_dim)
            tokenizer = Words(self.settings["pad"], self.settings["eos"])
            self.samplers[room] = Sampler(self.model, tokenizer, cache)
        return self.samplers[room]


def _optimizer(fields: dict[str, float]) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(fields["clip_norm"]),
        optax.adamw(
            fields["learning_rate"],
            b1=fields["b1"],
            b2=fields["b2"],
            eps=fields["eps"],
            weight_decay=fields["weight_decay"],
        ),
    )


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # tunix prints
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    with np.load(folder / "rows.npz") as stored:
        rows = {name: stored[name] for name in stored.files}
    config = ModelConfig(**settings["model"])

    def load() -> nnx.Module:
        return create_model_from_safe_tensors(str(folder / "qwen2"), config, dtype=jnp.float32)

    update, rollouts = Update(load(), rows, settings), Rollouts(load(), settings)
    tasks = {
        "step": update,
        "checked_step": lambda: {"logp": update.logp(), **update()},
        "sample": rollouts,
        "versions": lambda: {"jax": jax.__version__, "device": jax.devices()[0].device_kind},
    }
    for line in sys.stdin:
        print(json.dumps(tasks[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
