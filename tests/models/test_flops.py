"""Counted operations against XLA's own count, where nothing is hidden in a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from turnwise_jax.models import MODELS, io
from turnwise_jax.models.flops import Use, media_use, update_passes, work
from turnwise_jax.models.lora import Lora, is_adapter
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.params import Path, named
from turnwise_jax.models.qwen2_5_omni.audio import audio_input

ROWS, LENGTH = 2, 96
TEXT = Use(tokens=ROWS * LENGTH, pairs=ROWS * LENGTH**2, heads=ROWS * LENGTH)
SIZES = {
    "text_num_hidden_layers": 1,
    "text_hidden_size": 256,
    "text_intermediate_size": 512,
    "text_head_dim": 64,
}


def model(family="qwen2_5_vl", *, remat="none", **changes):
    config = MODELS[family].Config.tiny(512, **changes)
    return config, *io.build(config, remat=remat)


def counted(function, *arguments) -> float:
    """XLA's count of a function's operations."""
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


def logits(graphdef):
    tokens = jnp.zeros((ROWS, LENGTH), jnp.int32)
    places = jnp.zeros((ROWS, 3, LENGTH), jnp.int32)

    def forward(params):
        network = nnx.merge(graphdef, params)
        return network(tokens, places)[0] @ network.head()

    return forward


@pytest.mark.parametrize("tied", [True, False])
def test_a_forward_pass(tied):
    config, graphdef, params = model(
        text_mrope_section=(8, 12, 12), tie_word_embeddings=tied, **SIZES
    )
    found = work(config, params, TEXT)
    assert found.flops == pytest.approx(counted(logits(graphdef), params), rel=0.05)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_gradient(remat):
    config, graphdef, params = model(remat=remat, text_mrope_section=(8, 12, 12), **SIZES)

    def trains(path: Path) -> bool:
        return path[0] == "text"

    forward = logits(graphdef)
    trained, rest = nnx.split_state(params, lambda path, _: trains(path), ...)

    def loss(trained, rest):
        return jnp.sum(jnp.sin(forward(nnx.merge_state(trained, rest))))

    passes = update_passes(params, trains, remat)
    # The log-prob kernel makes the logits once more than a plain product does.
    plain = passes._replace(
        projections=lambda path: passes.projections(path) - (path[:2] == ("text", "head"))
    )
    found = work(config, params, TEXT, passes=plain)
    assert found.flops == pytest.approx(counted(jax.grad(loss), trained, rest), rel=0.06)


@pytest.mark.parametrize("family", sorted(MODELS))
def test_a_vision_tower(family):
    kind = MODELS[family]
    changes = {"vision_depth": 1, "vision_hidden_size": 256, "vision_intermediate_size": 512}
    changes |= (
        {"vision_deepstack_visual_indexes": (0,)}
        if family == "qwen3_vl"
        else {"vision_fullatt_block_indexes": (0,)}
    )
    config, graphdef, params = model(family, **changes)
    grid = (8, 8)
    media = kind.media_input([], [], config, slots=kind.slots_for([grid], config), num_slices=3)

    def encode(params, media):
        return nnx.merge(graphdef, params).encode_media(MediaInput(media))

    found = work(config, params, media_use(config, media))
    wanted = counted(encode, params, media.vision)
    assert found.flops == pytest.approx(wanted, rel=0.06)


AUDIO = {
    "audio_encoder_layers": 1,
    "audio_d_model": 512,
    "audio_encoder_ffn_dim": 1024,
    "audio_n_window": 64,
    "audio_num_mel_bins": 128,
}


def hearing(graphdef):
    def encode(params, sounds):
        return nnx.merge(graphdef, params).encode_media(MediaInput(audio=sounds))

    return encode


def test_an_audio_tower():
    config, graphdef, params = model("qwen2_5_omni", **AUDIO)
    sounds = audio_input([], config.audio, num_sounds=3)
    found = work(config, params, media_use(config, MediaInput(audio=sounds)))
    wanted = counted(hearing(graphdef), params, sounds)
    assert found.flops == pytest.approx(wanted, rel=0.06)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_gradient_of_sounds_beside_a_frozen_vision_tower(remat):
    """As Qwen2.5-Omni is trained: its audio tower is, its vision tower is not."""
    config, graphdef, params = model("qwen2_5_omni", remat=remat, **AUDIO)
    sounds = audio_input([], config.audio, num_sounds=3)
    encode = hearing(graphdef)

    def trains(path: Path) -> bool:
        return path[0] != "vision"

    trained, rest = nnx.split_state(params, lambda path, _: trains(path), ...)

    def loss(trained, rest, sounds):
        parts = jax.tree.leaves(encode(nnx.merge_state(trained, rest), sounds))
        return sum(jnp.sum(jnp.sin(part)) for part in parts)

    passes = update_passes(params, trains, remat)
    found = work(config, params, media_use(config, MediaInput(audio=sounds)), passes=passes)
    wanted = counted(jax.grad(loss), trained, rest, sounds)
    assert found.flops == pytest.approx(wanted, rel=0.06)
    assert passes.vision == 1.0


def test_adapters_of_a_tower_are_differentiated_through_its_frozen_kernels():
    lora = Lora(4, targets="vision/blocks/.*")
    _, params = io.build(MODELS["qwen2_5_vl"].Config.tiny(512), lora=lora)
    frozen = next(p for p in named(params) if p[0] == "vision" and p[-1] == "kernel")
    passes = update_passes(params, is_adapter, "none")
    assert passes.projections(frozen) == 2.0
    assert passes.vision == passes.attention > 1.0
    assert passes.audio == 1.0
    assert update_passes(params, lambda path: False, "none").vision == 1.0
