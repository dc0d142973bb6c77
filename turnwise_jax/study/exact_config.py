"""The fields of the exact study, and what cannot be their values."""

from __future__ import annotations

import dataclasses

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.study.exact_problem import Setting

HALF_TRAINED = "half-trained"  # the policy that the study makes from the one learning starts at


def exact_config() -> ConfigDict:
    """Defaults; ``problem`` marks the config as one of an exact study."""
    return ConfigDict(
        {
            "dir": "runs/exact",
            "seed": 0,  # of the policies' noise, the sampled groups and the sampled runs
            "problem": dataclasses.asdict(Setting()),
            # Other problems, as what differs from `problem`; their groups of two are enumerated.
            "problems": {
                "one_window": {"times": (2.0, 4.0, 6.0, 8.0), "windows": ((2.0, 10.0),)},
                "two_windows": {
                    "times": (2.0, 4.0, 6.0, 8.0),
                    "windows": ((2.0, 5.0), (7.0, 10.0)),
                },
                "three_windows": {
                    "times": (2.0, 5.0, 8.0),
                    "windows": ((2.0, 4.0), (5.0, 7.0), (8.0, 10.0)),
                },
            },
            # Biases of the policy's logits by what an entry chooses: "silence", "fact 1", "fact 2"
            # .., "brief", "long".
            "policies": {
                "silent": {"silence": 2.0},
                "uniform": {},
                "talkative": {"silence": -1.5, "long": 1.0},
            },
            "noise": 0.3,  # deviation of what is added to every logit
            "alphas": (0.0, 0.25, 0.5, 0.75, 1.0),
            "groups": (2, 4, 8),  # group sizes G
            "max_pairs": 1_000_000,  # up to here G = 2 is enumerated, beyond it is sampled
            "samples": 20_000,  # groups sampled for the other sizes
            "lengths": (4, 8, 12, 24, 48),  # tokens of a long reply in the sweep over lengths
            "learning": {
                "start": "silent",
                "updates": 150,
                "length": 0.2,  # of an update, in logits
                "half_trained": 30,  # updates along the true gradient that make `half-trained`
                "runs": 32,  # starts that differ in their noise; of sampled runs also in their seed
                "groups": 8,  # a sampled update's groups
                "group_size": 4,
            },
        }
    )


def setting_of(config: ConfigDict) -> Setting:
    """The problem of a config; InputError for fields that make none."""
    return Setting.from_dict(config.problem.to_dict())


def other_settings(config: ConfigDict) -> dict[str, Setting]:
    """The other problems by name; InputError for fields that make none."""
    found = {}
    for name, changes in config.problems.items():
        try:
            found[name] = Setting.from_dict({**config.problem.to_dict(), **changes.to_dict()})
        except InputError as error:
            field = (error.field or "").removeprefix("problem.")
            raise InputError(error.message, field=f"problems.{name}.{field}") from error
    return found


def check(config: ConfigDict) -> None:
    """Refuse what cannot work before anything is computed.

    Raises:
      InputError: names the field.
    """
    if not config.dir:
        raise InputError("must name a directory", field="dir")
    setting = setting_of(config)
    for name, other in other_settings(config).items():
        if other.num_trajectories**2 > config.max_pairs:
            raise InputError("has too many pairs to enumerate", field=f"problems.{name}")
    if not config.policies or HALF_TRAINED in config.policies:
        raise InputError(f"must name policies, none of them {HALF_TRAINED!r}", field="policies")
    if config.learning.start not in config.policies:
        known = ", ".join(config.policies)
        raise InputError(f"must be one of {known}", field="learning.start")
    if not config.alphas or not all(0.0 <= alpha <= 1.0 for alpha in config.alphas):
        raise InputError("must be numbers from 0 to 1, at least one", field="alphas")
    if not config.groups or min(config.groups) < 2:
        raise InputError("must be group sizes of at least 2", field="groups")
    if not config.lengths or min(config.lengths) < 2:
        raise InputError("must be at least 2 tokens each", field="lengths")
    least = {"samples": 20, "learning.updates": 1, "learning.runs": 2, "learning.groups": 1}
    for field, lowest in {**least, "learning.group_size": 2}.items():
        if _value(config, field) < lowest:
            raise InputError(f"must be at least {lowest}", field=field)
    if not config.learning.length > 0:
        raise InputError("must be above 0", field="learning.length")
    if config.learning.half_trained < 1:
        raise InputError("must be at least 1", field="learning.half_trained")
    num_facts = len(setting.windows)
    known = ("silence", *(f"fact {n + 1}" for n in range(num_facts)), "brief", "long")
    for name, biases in config.policies.items():
        for choice in biases:
            if choice not in known:
                raise InputError(
                    f"{choice!r} is no choice; known are {', '.join(known)}",
                    field=f"policies.{name}",
                )


def _value(config: ConfigDict, field: str) -> int:
    for key in field.split("."):
        config = config[key]
    return config
