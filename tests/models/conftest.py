"""One tiny Qwen2.5-VL for all tests of the models."""

from __future__ import annotations

import pytest
from tiny_model import Tiny, full_pass, make_tiny


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """Structure, parameters and configuration."""
    return make_tiny()


@pytest.fixture(scope="session")
def run(tiny):
    """``run(params, vision, tokens, positions, index, valid) -> hidden``, jitted."""
    return full_pass(tiny.graphdef)
