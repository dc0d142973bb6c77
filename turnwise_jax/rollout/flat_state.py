"""Python values as flat NumPy arrays for checkpoints, and back without loss.

No array has size zero, since not every checkpoint format keeps those, and none needs 64 bits,
which JAX cuts to 32 unless told otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

Arrays = dict[str, np.ndarray]


def pack_text(values: Iterable[str]) -> np.ndarray:
    """uint8 ``[M]``: the strings as a JSON list."""
    return np.frombuffer(json.dumps(list(values)).encode(), np.uint8).copy()


def unpack_text(array: np.ndarray) -> list[str]:
    """The strings that :func:`pack_text` was given."""
    return json.loads(np.asarray(array, np.uint8).tobytes())


def pack_floats(values: Iterable[float]) -> np.ndarray:
    """uint32 ``[2 M]``: the bits of M float64; ``[2]`` if there are none."""
    return not_empty(np.fromiter(values, np.float64)).view(np.uint32)


def unpack_floats(array: np.ndarray, count: int) -> list[float]:
    """The first ``count`` numbers that :func:`pack_floats` was given."""
    return np.array(array, np.uint32).view(np.float64)[:count].tolist()


def pack_ints(values: Iterable[int]) -> np.ndarray:
    """int32 ``[M]``, ``[1]`` if there are none."""
    return not_empty(np.fromiter(values, np.int32))


def unpack_ints(array: np.ndarray, count: int) -> list[int]:
    """The first ``count`` numbers that :func:`pack_ints` was given."""
    return np.asarray(array, np.int32)[:count].tolist()


def pack_ragged(rows: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """Rows of any lengths, laid end to end; one zero if nothing is in them."""
    return not_empty(np.concatenate(rows or [np.zeros(0)]).astype(dtype, copy=False))


def unpack_ragged(array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """The rows that :func:`pack_ragged` was given, as views."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return [
        np.asarray(array)[end - length : end] for end, length in zip(ends, lengths, strict=True)
    ]


def not_empty(array: np.ndarray) -> np.ndarray:
    """The array, or one zero in place of none; the reader knows how many there were."""
    return array if array.size else np.zeros(1, array.dtype)
