"""A policy of two matrices that compiles in no time, behind the trainer's own interface."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict
from runs import loss_of

from turnwise_jax.train.compiled import Update
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.optim import Optimizer, make_optimizer
from turnwise_jax.train.state import Batch, TrainState, create_state

ROWS, LENGTH, ACTIONS, TURNS = 4, 24, 10, 3
VOCAB, WIDTH, SLICES, PATCH = 11, 6, 5, 7
REPLIES = ((4, 1, 2), (3,), (), (1, 1, 6))  # tokens of each turn; the third row trains nothing


class ToyForward:
    """``forward.Forward`` of a bag-of-words model whose frames are one linear layer."""

    def media(self, params, vision):
        return None if vision is None else jnp.tanh(vision @ params["vision"]["frames"][...])

    def logprobs(self, params, media, rows: Batch):
        x = params["text"]["embed"][...][rows.tokens_NT]
        if media is not None:
            seen = rows.media_index_NT[..., None] >= 0
            x = jnp.where(seen, media[jnp.maximum(rows.media_index_NT, 0)], x)
        past = jnp.cumsum(jnp.where(rows.valid_NT[..., None], x, 0.0), axis=1)
        logp = jax.nn.log_softmax(jnp.tanh(past) @ params["text"]["head"][...], axis=-1)
        chosen = jnp.take_along_axis(logp, rows.action_pos_NA[..., None], axis=1)
        value = jnp.take_along_axis(chosen, rows.action_target_NA[..., None], axis=2)[..., 0]
        return jnp.where(rows.action_mask_NA, value, 0.0)


@jax.jit
def logprobs(params, batch: Batch):
    """f32[N, A] of the toy policy."""
    forward = ToyForward()
    return forward.logprobs(params, forward.media(params, batch.media), batch)


@jax.jit
def pull_back(params, batch: Batch, slope_NA):
    """Gradient of ``sum(slope * logp)``: the policy's own derivative, and nothing else."""
    return jax.grad(lambda params: jnp.sum(slope_NA * logprobs(params, batch)))(params)


def params(dtype=np.float32) -> nnx.State:
    rng = np.random.default_rng(1)

    def draw(*shape):
        return nnx.Param(jnp.asarray(rng.normal(size=shape), dtype))

    return nnx.State(
        {
            "text": {"embed": draw(VOCAB, WIDTH), "head": draw(WIDTH, VOCAB)},
            "vision": {"frames": draw(PATCH, WIDTH)},
        }
    )


def batch() -> Batch:
    """Rows as ``REPLIES`` says; every row sees frames of its own and one that all share."""
    rng = np.random.default_rng(2)
    mask = np.zeros((ROWS, ACTIONS), bool)
    turn = np.zeros((ROWS, ACTIONS), np.int32)
    for n, replies in enumerate(REPLIES):
        mask[n, : sum(replies)] = True
        turn[n, : sum(replies)] = np.repeat(np.arange(len(replies)), replies)
    media = np.full((ROWS, LENGTH), -1, np.int32)
    media[:, 1], media[:, 4] = 0, 1 + np.arange(ROWS)
    return Batch(
        media=rng.normal(size=(SLICES, PATCH)).astype(np.float32),
        tokens_NT=rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32),
        positions_N3T=np.zeros((ROWS, 3, LENGTH), np.int32),
        media_index_NT=media,
        valid_NT=np.arange(LENGTH)[None] < rng.integers(LENGTH - 4, LENGTH, (ROWS, 1)),
        action_pos_NA=np.sort(rng.integers(5, LENGTH, (ROWS, ACTIONS))).astype(np.int32),
        action_target_NA=rng.integers(0, VOCAB, (ROWS, ACTIONS)).astype(np.int32),
        action_mask_NA=mask,
        turn_id_NA=turn,
        sampler_logp_NA=np.where(mask, -1.0, 0.0).astype(np.float32),
        old_logp_NA=np.where(mask, rng.uniform(-4, -1, mask.shape), 0.0).astype(np.float32),
        advantage_NK=(2 * rng.normal(size=(ROWS, TURNS))).astype(np.float32),
    )


def optimizer(steps: int = 100, **changes) -> Optimizer:
    fields = {
        "learning_rate": 1e-2, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.01,
        "clip_norm": 1.0, "b1": 0.9, "b2": 0.999, "eps": 1e-8,
        "moments_dtype": "float32",
    }  # fmt: skip
    return make_optimizer(ConfigDict({**fields, **changes}), steps)


def state(freeze: tuple[str, ...] = ("vision",), **changes) -> TrainState:
    return create_state(params(), optimizer(**changes), freeze)


def layout() -> Layout:
    return Layout.of(make_mesh(ConfigDict({"data": 1, "fsdp": 1, "tensor": 1})))


def placed(state: TrainState) -> TrainState:
    """On the device of ``layout``, as a run's state is."""
    return jax.device_put(state, layout().whole)


def update(freeze: tuple[str, ...] = ("vision",), *, inner_epochs: int = 1, **changes) -> Update:
    """The updates of a batch of :func:`batch`."""
    arguments = {
        "forward": ToyForward(),
        "loss": loss_of(),
        "optimizer": optimizer(),
        "accumulate": 1,
        **changes,
    }
    places = jax.tree.map(lambda _: layout().whole, state(freeze))
    return Update(arguments, inner_epochs=inner_epochs, layout=layout(), shardings=places)


def weights(mask_NA: np.ndarray, turn_id_NA: np.ndarray, reduction: str) -> np.ndarray:
    """What each token's loss counts in the batch's (eq. 7, eq. 8, or one mean over all tokens)."""
    weight = np.zeros(mask_NA.shape, np.float64)
    trajectories = mask_NA.any(axis=1).sum()
    for n, a in zip(*np.nonzero(mask_NA), strict=True):
        turns = turn_id_NA[n, mask_NA[n]]
        weight[n, a] = {
            "turn": 1 / (trajectories * len(set(turns)) * (turns == turn_id_NA[n, a]).sum()),
            "trajectory_token": 1 / (trajectories * len(turns)),
            "batch_token": 1 / mask_NA.sum(),
        }[reduction]
    return weight


def leaves(tree) -> dict[str, np.ndarray]:
    """Path -> value."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def assert_close(ours, theirs, tolerance: float) -> None:
    """Each leaf of ``ours`` within ``tolerance`` times the largest entry of its like."""
    ours, theirs = leaves(ours), leaves(theirs)
    assert ours
    for name, value in ours.items():
        scale = np.abs(theirs[name]).max()
        np.testing.assert_allclose(value, theirs[name], atol=tolerance * scale, err_msg=name)


def assert_equal(ours, theirs) -> None:
    """Bit for bit, NaN included."""
    ours, theirs = leaves(ours), leaves(theirs)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype, name
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
