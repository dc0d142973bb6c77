"""The engine: reproducibility, independence of rows, groups, streams, compiles, bad input."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from rollout_checks import NEW_TOKENS, shapes_for
from tiny import make_example

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiles():
    """The durations of all compilations since the test began."""
    seen: list[float] = []

    def listen(event, duration, **_):
        if event == COMPILE_EVENT:
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_shapes_and_masks_of_the_result(rollouts, examples, shapes, policy):
    b, g, k, length = len(examples), 3, shapes.turns, NEW_TOKENS
    assert rollouts.ids == ("plain", "text-turn", "wide", "video", "short")
    assert rollouts.tokens.shape == rollouts.logp.shape == (b, g, k, length)
    assert rollouts.turn_mask.sum(axis=1).tolist() == [3, 3, 4, 3, 1]
    assert rollouts.time[0].tolist() == [4.0, 6.0, 8.0, 8.0]
    there = np.broadcast_to(rollouts.turn_mask[:, None], (b, g, k))
    assert ((rollouts.length > 0) == there).all()
    sampled = np.arange(length) < rollouts.length[..., None]
    assert (rollouts.tokens[~sampled] == 0).all()
    assert (rollouts.logp[~sampled] == 0).all()
    assert (rollouts.logp[sampled] < 0).all()
    last = np.take_along_axis(rollouts.tokens, np.maximum(rollouts.length - 1, 0)[..., None], 3)
    ended = last[..., 0] == policy.vocab.im_end
    np.testing.assert_array_equal(rollouts.truncated[there], ~ended[there])
    assert (rollouts.length[rollouts.truncated] == length).all()
    assert ((rollouts.tokens == policy.vocab.im_end).sum(axis=-1) == ended).all()


def test_text_is_the_reply_without_marker_and_blanks(rollouts, policy):
    for (b, g, k), n in np.ndenumerate(rollouts.length):
        ids = rollouts.tokens[b, g, k, :n]
        text = policy.vocab.decode(ids).removesuffix("<|im_end|>").strip()
        assert rollouts.text[b][g][k] == text
    assert rollouts.text[4][0][1:] == ["", "", ""]


def test_same_seed_same_rollouts_other_seed_or_step_others(engine, policy, examples, rollouts):
    def run(seed, step=0):
        return engine.rollout(policy.params, examples, group_size=3, seed=seed, step=step)

    again = run(11)
    np.testing.assert_array_equal(again.tokens, rollouts.tokens)
    np.testing.assert_array_equal(again.logp, rollouts.logp)
    for other in (run(12), run(11, step=1)):
        for b in range(len(examples)):
            assert (other.tokens[b] != rollouts.tokens[b]).any()


def test_a_prompt_does_not_depend_on_its_batch(engine, policy, examples):
    """The same prompt at the same place among others, and at another place."""
    alone = engine.rollout(policy.params, examples[2:3], group_size=3, seed=7)
    others = [examples[0], examples[3], examples[2], examples[4]]
    moved = engine.rollout(policy.params, others, group_size=3, seed=7)
    np.testing.assert_array_equal(moved.tokens[2], alone.tokens[0])
    np.testing.assert_allclose(moved.logp[2], alone.logp[0], atol=2e-5)
    swapped = [examples[4], examples[0], examples[2], examples[3]]
    again = engine.rollout(policy.params, swapped, group_size=3, seed=7)
    np.testing.assert_array_equal(again.tokens[2], moved.tokens[2])
    np.testing.assert_array_equal(again.logp[2], moved.logp[2])


def test_a_rollout_does_not_depend_on_the_group_size(engine, policy, examples, rollouts):
    pair = engine.rollout(policy.params, examples, group_size=2, seed=11)
    np.testing.assert_array_equal(pair.tokens, rollouts.tokens[:, :2])
    np.testing.assert_allclose(pair.logp, rollouts.logp[:, :2], atol=2e-5)


def test_rollouts_of_a_group_differ_but_share_their_frames(rollouts, examples, policy):
    for one, other in itertools.combinations(range(3), 2):
        assert (rollouts.tokens[:3, one] != rollouts.tokens[:3, other]).any(axis=(1, 2)).all()
    frames = rollouts.prompts.media.vision
    used = sum(len(example.slices) for example in examples)
    assert frames.valid.any(axis=(1, 2)).sum() == used


def test_greedy_rollouts_of_a_group_are_equal(policy, examples, greedy_engine):
    made = greedy_engine.rollout(policy.params, examples, group_size=3, seed=0)
    for g in (1, 2):
        np.testing.assert_array_equal(made.tokens[:, g], made.tokens[:, 0])
    other = greedy_engine.rollout(policy.params, examples, group_size=3, seed=99)
    np.testing.assert_array_equal(other.tokens, made.tokens)


@pytest.mark.parametrize("name", ["engine", "greedy_engine"])
def test_placeholders_and_padded_rows_are_never_sampled(policy, examples, request, name):
    """Fault 22: even when the policy wants nothing else."""
    params = jax.tree.map(lambda x: x, policy.params)
    kernel = params["text"]["head"]["kernel"]
    banned = np.flatnonzero(~policy.allowed)
    kernel[...] = kernel[...].at[:, banned].multiply(50.0)
    made = request.getfixturevalue(name).rollout(params, examples, group_size=3, seed=1)
    sampled = made.tokens[np.arange(NEW_TOKENS) < made.length[..., None]]
    assert not np.isin(sampled, banned).any()
    vocab = policy.vocab
    assert np.isin([vocab.image_pad, vocab.video_pad, vocab.size, policy.rows - 1], banned).all()
    assert made.logp.min() < -20  # the full-vocabulary value says how unlikely the draws were


def test_a_stream_is_a_rollout_decision_by_decision(engine, policy, examples):
    made = engine.rollout(policy.params, examples[3:4], group_size=1, seed=4, step=2)
    stream = engine.stream(policy.params, examples[3], seed=4, step=2)
    first = next(stream)
    assert (first.turn, first.time) == (0, made.time[0, 0])
    results = [first, *stream]
    assert [result.turn for result in results] == [0, 1, 2]
    for k, result in enumerate(results):
        n = made.length[0, 0, k]
        np.testing.assert_array_equal(result.tokens, made.tokens[0, 0, k, :n])
        np.testing.assert_allclose(result.logp, made.logp[0, 0, k, :n], atol=2e-5)
        assert result.text == made.text[0][0][k]
        assert result.truncated == made.truncated[0, 0, k]


def test_one_compilation_per_bucket_and_parameters_are_arguments(policy, compiles):
    """Faults 30, 35: ragged batches and new parameters compile nothing, and do have an effect."""
    ragged = [
        make_example("a", 2, seed=1),
        make_example("b", 3, seed=2, per_turn=(1, 2, 0, 1)),
        make_example("c", 1, seed=3, size=(56, 84)),
    ]
    other = io.init(policy.config, 5)
    engine = StreamEngine(policy, Sampling(top_k=5), shapes_for(policy, ragged, batch_size=2))
    engine.warm_up(policy.params, group_size=2)
    assert compiles
    compiles.clear()
    old = engine.rollout(policy.params, ragged[:2], group_size=2, seed=0)
    new = engine.rollout(other, ragged[:2], group_size=2, seed=0)
    engine.rollout(policy.params, ragged[1:], group_size=2, seed=1, step=3)
    engine.rollout(policy.params, ragged[2:], group_size=2, seed=2)
    back = engine.rollout(policy.params, ragged[:2], group_size=2, seed=0)
    assert not compiles
    assert (new.tokens != old.tokens).any()
    np.testing.assert_array_equal(back.tokens, old.tokens)


def test_a_batch_takes_the_smallest_bucket_that_holds_it(policy):
    small = [make_example(f"small-{i}", 1, seed=i) for i in range(3)]
    large = [make_example(f"large-{i}", 2, given=9, seed=i) for i in range(2)]
    buckets = shapes_for(policy, small + large, batch_size=2, buckets=3)
    assert len(buckets) == 2
    assert buckets[0].context < buckets[1].context
    assert buckets[0].slices == 4
    engine = StreamEngine(policy, Sampling(), buckets)
    assert engine.prepare(small[:2]).shapes == buckets[0]
    assert engine.prepare([small[0], large[0]]).shapes == buckets[1]
    assert engine.prepare(large).shapes == buckets[1]


def test_shapes_are_the_exact_need_rounded_up(policy):
    example = make_example("one", 3, seed=1, per_turn=(1, 2, 0, 1))
    (bucket,) = shapes_for(policy, [example], batch_size=2)
    template = policy.template
    context = len(template.context(example.dialogue, example.grids).tokens)
    turns = [len(template.turn(example.dialogue, k, example.grids).tokens) for k in (1, 2)]
    assert bucket.context == -(-context // 32) * 32
    assert bucket.turn == -(-max(turns) // 8) * 8
    assert bucket.branch == -(-(1 + sum(turns) + 3 * (NEW_TOKENS + 1)) // 32) * 32
    assert bucket.slices == 2 * 4  # the only dialogue may come twice


@pytest.mark.parametrize(
    ("change", "field"),
    [("context", "context"), ("turn", "turn"), ("turns", "turns"), ("branch", "branch"),
     ("slices", "slices")],
)  # fmt: skip
def test_what_does_not_fit_is_named(policy, change, field):
    example = make_example("large", 2, seed=1)
    (bucket,) = shapes_for(policy, [example])
    tight = bucket._replace(**{change: 1})
    with pytest.raises(InputError, match=f"tiny.jsonl: record 'large': field '{field}': needs"):
        StreamEngine(policy, Sampling(), tight).prepare([example])


def test_frames_too_large_for_the_shape_are_named(policy):
    (bucket,) = shapes_for(policy, [make_example("square", 1)])
    wide = make_example("wide", 1, size=(56, 84))
    engine = StreamEngine(policy, Sampling(), bucket._replace(context=200, turn=99, branch=400))
    with pytest.raises(InputError, match=r"record 'wide': field 'frames': frames of \[\(4, 6\)\]"):
        engine.prepare([wide])


def test_bad_requests_are_one_clear_line(engine, policy, examples, shapes):
    given = make_example("given", 2, replies=True)
    with pytest.raises(InputError, match="record 'given': every turn has a reply"):
        engine.prepare([given])
    with pytest.raises(InputError, match="6 dialogues, the shape holds 5"):
        engine.prepare([*examples, examples[0]])
    with pytest.raises(InputError, match="no dialogue to batch"):
        engine.prepare([])
    with pytest.raises(InputError, match="field 'group_size'"):
        engine.rollout(policy.params, examples, group_size=0, seed=0)
    with pytest.raises(InputError, match="field 'new_tokens'"):
        StreamEngine(policy, Sampling(), [shapes, shapes._replace(new_tokens=3)])
    with pytest.raises(InputError, match="no dialogue to choose shapes for"):
        shapes_for(policy, [], batch_size=1)
