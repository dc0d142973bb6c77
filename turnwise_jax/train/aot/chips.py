"""TPU generations: what one device can hold and do.

A *device* is what jax shows: a chip, or on v4 and tpu7x one of its two cores. Memory is what libtpu
0.0.52 gives to a program on one device ("available HBM" when it refuses a program). Peak and
bandwidth are Google's published figures per chip, divided by the devices of a chip:
https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e and /tpu7x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turnwise_jax.errors import InputError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Chip:
    """One device of a TPU generation.

    ``name`` as in a topology. ``usable``: bytes of HBM for a program. ``flops``: bfloat16
    operations per second. ``bandwidth``: bytes of HBM per second. ``devices``: per chip.
    """

    name: str
    usable: float
    flops: float
    bandwidth: float
    devices: int = 1


CHIPS: Mapping[str, Chip] = {  # by jax's device_kind
    "TPU v4": Chip("v4", 15.25 * GIB, 275e12 / 2, 1228e9 / 2, 2),
    "TPU v5 lite": Chip("v5e", 15.75 * GIB, 197e12, 819e9),
    "TPU v5": Chip("v5p", 95.73 * GIB, 459e12, 2765e9),
    "TPU v6 lite": Chip("v6e", 31.24 * GIB, 918e12, 1638e9),
    "TPU7x": Chip("tpu7x", 94.74 * GIB, 2307e12 / 2, 7380e9 / 2, 2),
}


def chip_of(device_kind: str) -> Chip:
    """The chip of a device.

    Raises:
      InputError: a generation that the table lacks.
    """
    if device_kind not in CHIPS:
        known = ", ".join(chip.name for chip in CHIPS.values())
        raise InputError(f"{device_kind!r} is not in the table of chips: {known}", field="topology")
    return CHIPS[device_kind]
