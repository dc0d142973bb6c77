"""``turnwise shapes``: the lengths of a run's data, and the buckets that pad them least."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from turnwise_jax.cli.flags import RUN, config_of, define_config, parse
from turnwise_jax.errors import InputError
from turnwise_jax.train.aot.plan import planned_policy
from turnwise_jax.train.buckets.report import as_json, find, markdown
from turnwise_jax.train.validate import validate

USAGE = """usage: turnwise shapes --config=FILE.py [--run=DIR] [--output=DIR] [--config.field=value]

Reads the records and file headers of a training run, no weights and no frames, and prints how long
contexts, rollouts or rows are, what share of the token slots holds nothing, and which buckets make
it least: the best one, two, ... six, with the flags that use them. How long training rows get in RL
is read from the logs of a run on these data (--run; by default that of the config itself). Leaves
shapes.md, shapes.json and shapes.png in --output.
"""


def define(values: flags.FlagValues) -> None:
    define_config(values)
    at = {"flag_values": values}
    flags.DEFINE_string("output", "", "folder for table, figures and picture", **at)
    flags.DEFINE_string("run", "", "run whose logs are read (default: config.run.dir)", **at)


def main(argv: Sequence[str]) -> None:
    values = parse(argv, USAGE, define)
    config = config_of(values, RUN).copy_and_resolve_references()
    validate(config)
    directory = Path(values.run or config.run.dir)
    if values.run and not directory.is_dir():
        raise InputError("is no directory", file=values.run, field="run")
    if values.output and Path(values.output).is_file():
        raise InputError("is a file; name a directory", file=values.output, field="output")
    found = find(config, planned_policy(config), directory)
    text = markdown(found)
    print(text, end="")
    if values.output:
        from turnwise_jax.files import write_text
        from turnwise_jax.study.shapes_plot import plot_lengths  # matplotlib is slow to import
        from turnwise_jax.study.style import save

        output = Path(values.output)
        write_text(output / "shapes.md", text)
        write_text(output / "shapes.json", json.dumps(as_json(found), indent=2) + "\n")
        save(plot_lengths(found), output / "shapes.png")
        print(f"\nwrote shapes.md, shapes.json and shapes.png to {output}")
