"""A replay buffer that is saved and goes on, and what it costs when it is full."""

from __future__ import annotations

import time
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from replay_samples import everything, graded, make_sample, same_list, stats_of

from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import DRAWS, ReplayBuffer, Sample


class Life:
    """A run in small: visits, records, draws; `step` by `step`."""

    def __init__(self, how: str, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.stats = PromptStats(window=4)
        self.buffer = ReplayBuffer(25, draw=how, minimum=5, max_age=9)

    def step(self, step: int) -> list[Sample]:
        drawn = self.buffer.draw(4, stats=self.stats, rng=self.rng, step=step)
        prompt = f"näme {self.rng.integers(9)}"
        rewards = self.rng.normal(size=4)
        self.stats.record(prompt, rewards.tolist(), [0.0] * 4, float(self.rng.random()))
        fresh = [
            make_sample(
                *(prompt, int(self.rng.integers(1, 6)), step),
                reward=float(reward),
                advantage=float(reward) / 3,
                kl=float(self.rng.normal()),
            )
            for reward in rewards
        ]
        self.buffer.add(fresh, self.stats)
        return drawn


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize("stop", [0, 1, 2, 30])
def test_a_saved_run_goes_on_as_if_nothing_had_happened(tmp_path, how, stop):
    whole = Life(how)
    for step in range(stop):
        whole.step(step)
    arrays = {**whole.buffer.state(), **{f"of {k}": v for k, v in whole.stats.state().items()}}
    np.savez(tmp_path / "state.npz", **arrays)
    again = Life(how, seed=1)
    again.rng.bit_generator.state = whole.rng.bit_generator.state
    again.step(50)  # what was there before does not matter
    again.rng.bit_generator.state = whole.rng.bit_generator.state
    with np.load(tmp_path / "state.npz") as file:
        again.buffer.load_state(file)
        again.stats.load_state({name: file[f"of {name}"] for name in whole.stats.state()})
    for step in range(stop, stop + 25):
        assert same_list(whole.step(step), again.step(step))
        assert whole.buffer.sizes() == again.buffer.sizes()
    for name, array in whole.buffer.state().items():
        np.testing.assert_array_equal(again.buffer.state()[name], array)


def test_the_state_is_flat_never_empty_and_survives_32_bit_arrays():
    life, empty = Life("priority"), Life("priority")
    for step in range(20):
        life.step(step)
    for state in (life.buffer.state(), empty.buffer.state()):
        for array in state.values():
            assert array.ndim == 1
            assert array.size > 0
            assert array.dtype.itemsize <= 4
    copy = Life("priority")
    copy.buffer.load_state({name: jnp.asarray(a) for name, a in life.buffer.state().items()})
    drawn = [
        b.draw(99, stats=life.stats, rng=np.random.default_rng(0), step=20)
        for b in (life.buffer, copy.buffer)
    ]
    assert len(drawn[0]) > 10
    assert same_list(*drawn)


def test_samples_without_a_token_survive_saving():
    buffer, copy = ReplayBuffer(10, minimum=0), ReplayBuffer(10, minimum=0)
    samples = [make_sample(length=length) for length in (0, 2, 0)]
    for some in (samples[:1], samples):
        buffer.add(some, PromptStats())
        copy.load_state(buffer.state())
        assert sum(len(s.tokens) for s in copy.draw(**everything())) == sum(
            len(s.tokens) for s in some
        )


def test_a_smaller_buffer_takes_the_newest():
    stats, samples = graded(8)
    large, small = ReplayBuffer(100, draw="fifo"), ReplayBuffer(4, draw="fifo", minimum=0)
    large.add(samples, stats)
    small.load_state(large.state())
    assert small.sizes() == {"easy": 1, "medium": 1, "hard": 2}
    drawn = small.draw(4, stats=stats, rng=np.random.default_rng(0), step=0)
    assert sorted(sample.advantage for sample in drawn) == [6.0, 7.0, 7.0, 7.0]


def test_memory_stays_bounded():
    stats, buffer = PromptStats(), ReplayBuffer(60, max_age=500)
    rng = np.random.default_rng(0)
    sizes = []
    tracemalloc.start()
    try:
        for step in range(20_000):
            prompt = str(rng.integers(40))
            reward = float(rng.integers(3))
            batch = np.zeros((4, 256), np.int32)  # a row of it must not keep the others
            row = batch[0, : rng.integers(1, 30)]
            stats.record(prompt, [reward], [reward], 0.1)
            buffer.add([Sample(prompt, row, row, row, False, reward, 1.0, 0.1, step)], stats)
            if step % 10 == 0:
                buffer.draw(4, stats=stats, rng=rng, step=step)
            if step % 2000 == 1999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(buffer) <= 60
    assert max(sizes) < 200_000
    assert max(sizes[2:]) < 1.05 * max(sizes[:2])


def test_a_full_buffer_of_ten_thousand_stays_quick():
    """Bound far above what it takes, far below what comparing all pairs would."""
    rng = np.random.default_rng(0)
    stats = stats_of({str(number): float(rng.random()) for number in range(5000)})
    buffer = ReplayBuffer(10_000)
    buffer.add([make_sample(str(rng.integers(5000))) for _ in range(20_000)], stats)
    assert len(buffer) == 10_000
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        buffer.add([make_sample(str(number)) for number in range(8)], stats)
        buffer.draw(4, stats=stats, rng=rng, step=0)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.3
