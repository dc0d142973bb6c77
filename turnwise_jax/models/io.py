"""Hugging Face checkpoint directories in and out, without torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.typing import DTypeLike

from turnwise_jax.errors import InputError
from turnwise_jax.models import ALIASES, MODELS, orbax_files
from turnwise_jax.models.layers import REMAT
from turnwise_jax.models.lora import Lora, adapt, init_adapters, is_adapter
from turnwise_jax.models.params import Path, named, replaced
from turnwise_jax.models.safetensors import INDEX, Checkpoint, Tensor, write_checkpoint
from turnwise_jax.models.weights import check_names, read_params, tensors

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
MAX_SHARD_BYTES = 5 * 10**9


def build(
    config: Any,
    *,
    dtype: DTypeLike = "float32",
    param_dtype: DTypeLike = "float32",
    remat: str = "none",
    lora: Lora | None = None,
) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure and its parameters' shapes and dtypes; computes nothing.

    Adapters are float32 whatever ``param_dtype``.
    """
    if remat not in REMAT:
        raise InputError(f"{remat!r} is not one of {', '.join(REMAT)}", field="remat")
    family = MODELS[config.model_type]

    def make() -> nnx.Module:
        model = family.Model(
            config,
            rngs=nnx.Rngs(params=0),
            dtype=jnp.dtype(dtype),
            param_dtype=jnp.dtype(param_dtype),
            remat=remat,
        )
        if lora is not None:
            adapt(model, lora)
        return model

    return nnx.split(nnx.eval_shape(make))


def init(config: Any, seed: int, *, param_dtype: DTypeLike = "float32") -> nnx.State:
    """Random parameters; the same seed always gives the same ones."""
    family = MODELS[config.model_type]

    @jax.jit
    def draw(key):
        rngs = nnx.Rngs(params=key)
        return nnx.state(
            family.Model(config, rngs=rngs, param_dtype=jnp.dtype(param_dtype)), nnx.Param
        )

    return draw(jax.random.key(seed))


def load_config(directory: str | os.PathLike[str]) -> Any:
    """The family's ``Config`` from ``config.json``, with the preprocessor's mean and deviation.

    Raises:
      InputError: no such file, broken JSON, unknown model type, impossible field.
    """
    file = FilePath(directory) / CONFIG
    raw = _read_json(file)
    kind = raw.get("model_type")
    kind = ALIASES.get(str(kind), kind)
    if kind not in MODELS:
        raise InputError(
            f"{kind!r} is not one of {', '.join(MODELS)}", file=file, field="model_type"
        )
    config = MODELS[kind].Config.from_hf(raw, file=file)
    preprocessor = FilePath(directory) / PREPROCESSOR
    if preprocessor.is_file():
        config = config.with_preprocessor(_read_json(preprocessor), file=preprocessor)
    return config


def load(
    directory: str | os.PathLike[str],
    *,
    dtype: DTypeLike = "float32",
    param_dtype: DTypeLike | Callable[[Path], DTypeLike] = "float32",
    remat: str = "none",
    lora: Lora | None = None,
    seed: int = 0,
    shardings: Callable[[nnx.State, Any], nnx.State] | None = None,
) -> tuple[nnx.GraphDef, nnx.State, Any]:
    """Read a checkpoint directory: ``(graphdef, params, config)``.

    The host holds one tensor at a time beside what the devices hold.

    Args:
      directory: holds ``config.json`` and ``model.safetensors``, indexed shards, or parameters
        that ``save_orbax`` wrote.
      dtype: compute dtype.
      param_dtype: dtype of the parameters, whatever the file's; or a function of their names.
      remat: one of ``REMAT``.
      lora: adapters to add.
      seed: of the adapters.
      shardings: ``(parameters without values, config) -> a sharding for each``; a process then
        reads only its own devices' blocks.

    Raises:
      InputError: naming the file and the field or tensor that does not fit.
    """
    config = load_config(directory)
    graphdef, abstract = build(config, dtype=dtype, remat=remat, lora=lora)
    dtype_of = param_dtype if callable(param_dtype) else lambda path: param_dtype
    shapes = {
        path: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype if is_adapter(path) else jnp.dtype(dtype_of(path))
        )
        for path, leaf in named(abstract).items()
    }
    places = None if shardings is None else named(shardings(abstract, config))
    base = {path: shape for path, shape in shapes.items() if not is_adapter(path)}
    if (FilePath(directory) / orbax_files.PARAMS).is_dir():
        values = orbax_files.read_params(FilePath(directory), base, places)
    else:
        values = _read_tensors(directory, config, base, places)
    if lora is not None:
        values |= init_adapters(shapes, seed, places)
    return graphdef, replaced(abstract, values), config


def _read_tensors(
    directory: str | os.PathLike[str],
    config: Any,
    shapes: Mapping[Path, jax.ShapeDtypeStruct],
    places: Mapping[Path, Any] | None,
) -> dict[Path, jax.Array]:
    weights = MODELS[config.model_type].weights
    rows = weights.entries(config)
    checkpoint = Checkpoint(directory)
    spelling = weights.spelling(checkpoint.names())
    if config.tie_word_embeddings:
        _check_tied_head(checkpoint, spelling, weights)
    check_names(rows, checkpoint, spelling, weights.ignored)
    return read_params(rows, checkpoint, spelling, shapes, places)


def save(
    directory: str | os.PathLike[str],
    graphdef_or_config: Any,
    params: nnx.State,
    *,
    source: str | os.PathLike[str] | None = None,
    lora: Lora | None = None,
    texts: Mapping[str, str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a directory that transformers loads: ``config.json`` and weights in the params' dtype.

    Everything is written to a temporary directory beside the target and moved into place;
    ``config.json`` comes last, so a directory that has one is complete. Other files of an existing
    target stay. On several processes all must call this; the first one writes, and all return when
    it is done.

    Args:
      directory: the target.
      graphdef_or_config: the model's structure, or its configuration.
      params: all parameters.
      source: a checkpoint directory whose tokenizer and preprocessor files are copied along.
      lora: of parameters with adapters; these are merged into the kernels.
      texts: files, name -> content, that are written in place of the source's.
      max_shard_bytes: weights above this size are split into indexed shards.
    """
    config = graphdef_or_config
    if isinstance(config, nnx.GraphDef):
        config = nnx.merge(graphdef_or_config, params).config
    target = FilePath(directory).absolute()
    listed = tensors(MODELS[config.model_type].weights.entries(config), params, lora)
    if jax.process_index() == 0:
        _write(target, config, listed, source, texts or {}, max_shard_bytes)
    else:
        for tensor in listed:
            tensor.read()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("saved")


def save_orbax(
    directory: str | os.PathLike[str],
    config: Any,
    params: nnx.State,
    *,
    source: str | os.PathLike[str],
) -> None:
    """Write a directory that :func:`load` reads, its parameters as an Orbax checkpoint.

    Each process writes what its devices hold, in the parameters' own dtype. ``config.json`` comes
    last, so a directory that has one is complete.

    Args:
      directory: the target, without parameters yet.
      config: the model's configuration.
      params: all parameters, without adapters.
      source: a checkpoint directory whose tokenizer and preprocessor files are copied along.
    """
    target, values = FilePath(directory).absolute(), named(params)
    orbax_files.write_params(target, values)
    if jax.process_index() == 0:
        _copy_others(FilePath(source), target)
        raw = _with_dtype(config.to_hf(), np.dtype(next(iter(values.values())).dtype))
        (target / CONFIG).write_text(json.dumps(raw, indent=2) + "\n")
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("saved")


def _write(
    target: FilePath,
    config: Any,
    listed: list[Tensor],
    source: str | os.PathLike[str] | None,
    texts: Mapping[str, str],
    max_shard_bytes: int,
) -> None:
    staging = target.parent / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if source is not None:
            _copy_others(FilePath(source), staging)
        for name, text in texts.items():
            (staging / name).write_text(text)
        write_checkpoint(staging, listed, max_shard_bytes=max_shard_bytes)
        raw = _with_dtype(config.to_hf(), listed[0].dtype)
        (staging / CONFIG).write_text(json.dumps(raw, indent=2) + "\n")
        _move(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _read_json(file: FilePath) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise InputError("no such file", file=file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON: {error}", file=file) from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", file=file)
    return value


def _check_tied_head(checkpoint: Checkpoint, spelling: dict[str, str], weights: Any) -> None:
    """A tied model's head may be stored again, if it is the embedding."""
    head, embedding = spelling.pop(weights.HEAD, None), spelling.get(weights.EMBEDDING)
    if head is None or embedding is None:
        return
    if not np.array_equal(checkpoint.read(head), checkpoint.read(embedding)):
        raise InputError(
            "differs from the embedding, but tie_word_embeddings is set",
            file=checkpoint.file_of(head),
            field=head,
        )
    checkpoint.drop(head)


def _with_dtype(raw: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    for section in _sections(raw):
        for name in ("torch_dtype", "dtype"):
            if name in section:
                section[name] = dtype.name
    if "torch_dtype" not in raw:
        raw["dtype"] = dtype.name
    return raw


def _sections(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The file and those of its sections that describe what was written, at every depth."""
    yield raw
    for name in ("thinker_config", "text_config", "vision_config", "audio_config"):
        if name in raw:
            yield from _sections(raw[name])


def _is_weight_file(file: FilePath) -> bool:
    return file.name == INDEX or file.suffix in (".safetensors", ".bin", ".pt")


def _copy_others(source: FilePath, staging: FilePath) -> None:
    if not source.is_dir():
        raise InputError("no such directory", file=source)
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name != CONFIG and not _is_weight_file(file):
            shutil.copy2(file, staging / file.name)


def _move(staging: FilePath, target: FilePath) -> None:
    if not target.exists():
        os.rename(staging, target)
        return
    (target / CONFIG).unlink(missing_ok=True)
    for file in target.iterdir():
        if file.is_file() and _is_weight_file(file):
            file.unlink()
    for file in sorted(staging.iterdir(), key=lambda file: file.name == CONFIG):
        os.replace(file, target / file.name)
