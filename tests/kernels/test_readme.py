"""The README's example runs and prints what it says; its table names every public function; the
examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from turnwise_jax import kernels

README = Path(kernels.__file__).with_name("README.md")
MODULES = sorted(path.stem for path in README.parent.glob("*.py") if path.stem[0] != "_")


def test_the_readme_example_prints_what_it_says():
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 10
    assert result.failed == 0


def test_the_readme_table_names_every_public_function_and_nothing_else():
    rows = [line for line in README.read_text().splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[4])}
    functions = {name for name in kernels.__all__ if not isinstance(getattr(kernels, name), type)}
    assert named == functions


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_hold(module):
    result = doctest.testmod(importlib.import_module(f"turnwise_jax.kernels.{module}"))
    assert result.failed == 0


def test_some_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(f"turnwise_jax.kernels.{name}") for name in MODULES]
    examples = sum(len(test.examples) for module in modules for test in finder.find(module))
    assert examples >= 5
