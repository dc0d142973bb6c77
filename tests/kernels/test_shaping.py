"""Temporal advantage shaping: the U of AVATAR eq. 6 and its ablations."""

from __future__ import annotations

import numpy as np
import pytest

from .compiled import tas_weights

CURVES = {
    "u": lambda place: (2 * place - 1) ** 2,
    "linear_decay": lambda place: 1 - place,
    "linear_incline": lambda place: place,
    "uniform": lambda place: 0.0,
}


@pytest.mark.parametrize("shape", CURVES)
@pytest.mark.parametrize("length", [2, 3, 7])
def test_weights_equal_the_formula(shape, length):
    expected = [1 + 0.3 * CURVES[shape](t / (length - 1)) for t in range(length)]
    np.testing.assert_allclose(tas_weights([True] * length, shape=shape), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", CURVES)
def test_a_one_token_sequence_has_weight_one(shape):
    assert tas_weights([True], shape=shape).tolist() == [1.0]
    assert tas_weights([False, True, False], shape=shape).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("shape", CURVES)
def test_fault_10_places_are_ranks_among_trained_tokens_whatever_the_padding(shape):
    plain = np.asarray(tas_weights([True] * 5, shape=shape))
    mask = np.array([False, True, True, False, True, False, False, True, True, False])
    padded = np.asarray(tas_weights(mask, shape=shape))
    np.testing.assert_array_equal(padded[mask], plain)
    assert not np.any(padded[~mask])


def test_strength_scales_the_rise():
    np.testing.assert_allclose(tas_weights([True] * 3, strength=1.0), [2.0, 1.0, 2.0])
    np.testing.assert_allclose(tas_weights([True] * 3, strength=0.0), [1.0, 1.0, 1.0])


def test_nothing_trained_has_no_weight():
    assert tas_weights([False, False]).tolist() == [0.0, 0.0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="shape should be one of u, linear_decay"):
        tas_weights([True], shape="v")
    with pytest.raises(ValueError, match="strength must not be negative"):
        tas_weights([True], strength=-0.1)
