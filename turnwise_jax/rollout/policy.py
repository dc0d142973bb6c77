"""A policy: network, parameters and everything that turns dialogues into its input and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.tokens import Vocab
from turnwise_jax.errors import InputError
from turnwise_jax.models import MODELS
from turnwise_jax.models import io as checkpoints
from turnwise_jax.models.lora import Lora
from turnwise_jax.models.params import Path as ParamPath
from turnwise_jax.rollout.placement import Placement, make_mesh

DTYPES = ("float32", "bfloat16")
PARAM_DTYPES = ("same", *DTYPES)


@dataclass(frozen=True, eq=False)
class Policy:
    """A checkpoint directory, ready to use.

    Attributes:
      directory: where it was read from.
      graphdef: structure of the network; static.
      params: parameters as read; functions take parameters as arguments, never from here.
      config: the model family's configuration.
      family: the model family's package, an entry of ``MODELS``.
      vocab, spec, template: tokenizer, frame preprocessing and chat format.
      lora: how the parameters' adapters are applied, None without any.
    """

    directory: Path
    graphdef: nnx.GraphDef
    params: nnx.State
    config: Any
    family: Any
    vocab: Vocab
    spec: FrameSpec
    template: ChatTemplate
    lora: Lora | None = None

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        dtype: DTypeLike = "float32",
        param_dtype: DTypeLike | Callable[[ParamPath], DTypeLike] = "float32",
        remat: str = "none",
        lora: Lora | None = None,
        seed: int = 0,
        shardings: Callable[[nnx.State, Any], nnx.State] | None = None,
        max_pixels: int = 0,
    ) -> Policy:
        """Reads a Hugging Face checkpoint directory.

        Args:
          directory: config.json, weights, tokenizer and preprocessor files.
          dtype: compute dtype.
          param_dtype: dtype of the parameters, or a function of their names.
          remat: what the backward pass recomputes, see ``scan_layers``.
          lora: adapters to add; they are part of the parameters.
          seed: of the adapters' first values.
          shardings: where the parameters go, see ``models.io.load``; one device by default.
          max_pixels: of a resized frame, see ``FrameSpec.at_most``; 0: what the directory says.

        Raises:
          InputError: a file is missing or wrong, or the parts do not belong together.
        """
        vocab = Vocab.from_pretrained(directory)
        spec = FrameSpec.from_pretrained(directory).at_most(max_pixels)
        graphdef, params, config = checkpoints.load(
            directory,
            dtype=dtype,
            param_dtype=param_dtype,
            remat=remat,
            lora=lora,
            seed=seed,
            shardings=shardings,
        )
        family = MODELS[config.model_type]
        sound = SoundSpec.from_pretrained(directory) if config.sound_tokens else None
        policy = cls(
            directory=Path(directory),
            graphdef=graphdef,
            params=params,
            config=config,
            family=family,
            vocab=vocab,
            spec=spec,
            template=ChatTemplate(vocab, spec, style=family.CHAT, sound=sound),
            lora=lora,
        )
        policy._check()
        return policy

    def save(self, directory: str | os.PathLike[str], params: nnx.State | None = None) -> None:
        """Writes a checkpoint directory that transformers and :meth:`load` read, adapters merged.

        The tokenizer, preprocessor and other non-weight files are the source directory's, with
        the bounds of frames that the policy was loaded with.

        Args:
          directory: the target.
          params: the parameters; those that were read if None.
        """
        params = self.params if params is None else params
        checkpoints.save(
            directory,
            self.config,
            params,
            source=self.directory,
            lora=self.lora,
            texts=self.spec.settings_in(self.directory),
        )

    @property
    def dtype(self) -> np.dtype:
        """What the decoder computes in."""
        return nnx.merge(self.graphdef, self.params).text.embed.dtype

    @property
    def rows(self) -> int:
        """V: rows of the output head, at least the tokenizer's ids."""
        head = jax.eval_shape(lambda params: nnx.merge(self.graphdef, params).head(), self.params)
        return head.shape[1]

    @property
    def allowed(self) -> np.ndarray:
        """bool ``[V]``: the ids that may be sampled."""
        return ~self.vocab.forbidden_mask(self.rows)

    def _check(self) -> None:
        vocab, config = self.vocab, self.config
        if vocab.size > self.rows:
            raise InputError(
                f"the tokenizer has {vocab.size} ids, the model only {self.rows} rows",
                file=self.directory,
                field="vocab_size",
            )
        for field, token in self._markers():
            if getattr(config, field) != token:
                raise InputError(
                    f"is {getattr(config, field)}, but the tokenizer's placeholder is {token}",
                    file=self.directory / "config.json",
                    field=field,
                )
        for field, ours, theirs in self._sizes():
            if ours != theirs:
                raise InputError(
                    f"the preprocessor says {ours}, the model {theirs}",
                    file=self.directory,
                    field=field,
                )

    def _markers(self) -> list[tuple[str, int | None]]:
        """Configuration fields with the tokenizer's ids. Where there is sound, positions depend on
        the markers around it too."""
        vocab = self.vocab
        markers = [("image_token_id", vocab.image_pad), ("video_token_id", vocab.video_pad)]
        if self.template.sound is None:
            return markers
        return [
            *markers,
            ("audio_token_id", vocab.audio_pad),
            ("audio_start_token_id", vocab.audio_start),
            ("audio_end_token_id", vocab.audio_end),
            ("vision_start_token_id", vocab.vision_start),
            ("vision_end_token_id", vocab.vision_end),
        ]

    def _sizes(self) -> list[tuple[str, int, int]]:
        """Preprocessor fields, with what the preprocessor and the model say."""
        spec, sound, config = self.spec, self.template.sound, self.config
        sizes = [
            ("merge_size", spec.merge_size, config.merge),
            ("patch_size", spec.patch_size, config.vision.patch_size),
            (
                "temporal_patch_size",
                spec.temporal_patch_size,
                config.vision.temporal_patch_size,
            ),
        ]
        if sound is not None:
            sizes.append(("slice_frames", sound.slice_frames, config.audio.slice_frames))
        return sizes


def load_sampler(
    directory: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    param_dtype: str = "same",
    max_pixels: int = 0,
    mesh: Mapping[str, int],
) -> tuple[Policy, Placement]:
    """A policy that only samples, and where it does: parameters split over a mesh as in training.

    Args:
      directory, max_pixels: see :meth:`Policy.load`.
      dtype: compute dtype, of ``DTYPES``.
      param_dtype: of ``PARAM_DTYPES``. "same" keeps parameters in the compute dtype: nothing is
        trained, so wider ones would be rounded before every product.
      mesh: devices on the axes ``data``, ``fsdp`` and ``tensor``.

    Raises:
      InputError: what :meth:`Policy.load` refuses, a dtype that is none of these, a mesh that there
        are no devices for or that the model cannot be split over.
    """
    for field, value, allowed in (
        ("policy.dtype", dtype, DTYPES),
        ("policy.param_dtype", param_dtype, PARAM_DTYPES),
    ):
        if value not in allowed:
            raise InputError(f"is {value!r}; allowed: {', '.join(allowed)}", field=field)
    placement = Placement(make_mesh(mesh))
    policy = Policy.load(
        directory,
        dtype=dtype,
        param_dtype=dtype if param_dtype == "same" else param_dtype,
        shardings=placement.param_shardings,
        max_pixels=max_pixels,
    )
    return policy, placement
