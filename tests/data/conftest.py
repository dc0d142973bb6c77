"""Fixtures of the data tests: the real Qwen vocabulary, made once a session."""

from __future__ import annotations

import pytest
from qwen_vocab import qwen_ranks, write_qwen_tokenizer

from turnwise_jax.data.tokens import Vocab


@pytest.fixture(scope="session")
def ranks():
    return qwen_ranks()


@pytest.fixture(scope="session")
def qwen_dir(tmp_path_factory, ranks):
    directory = tmp_path_factory.mktemp("qwen")
    write_qwen_tokenizer(directory, ranks)
    return directory


@pytest.fixture(scope="session")
def qwen(qwen_dir) -> Vocab:
    return Vocab.from_pretrained(qwen_dir)
