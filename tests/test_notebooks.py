"""The notebooks run from top to bottom in a fresh kernel, and what is stored of them is sound."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
NAMES = ("01_kernels", "02_turnwise", "03_avatar")
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/turnwise/turnwise_jax/blob/main/notebooks/{}.ipynb)"
)
ADDRESS = "https://github.com/turnwise/turnwise_jax"
# GitHub shows large ones slowly
MAX_BYTES = {"01_kernels": 400_000, "02_turnwise": 600_000, "03_avatar": 700_000}


def read(name: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell wrote to standard output."""
    return "".join(out.text for out in cell.outputs if out.get("name") == "stdout")


def pictures(cell: nbformat.NotebookNode) -> int:
    return sum("image/png" in out.get("data", {}) for out in cell.outputs)


def execute(name: str, folder: Path) -> dict[str, nbformat.NotebookNode]:
    """The code cells after a run in a fresh kernel; a failing cell raises with its traceback."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TURNWISE_SMALL": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    environment.pop("XLA_FLAGS", None)  # one device, as in a user's kernel
    notebook = read(name)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return code_cells(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve_wherever_a_notebook_is_opened(name):
    text = "".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all(link.startswith("https://") for link in links)
    for path in re.findall(rf"{ADDRESS}/blob/main/([^)]+)\)", text):
        assert (ROOT / path).is_file(), path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """name -> executed code cells, each notebook run once."""
    return {name: execute(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs_and_every_picture_is_drawn(run, name):
    for key, cell in run[name].items():
        assert cell.execution_count, f"{key} was not run"
        assert not [out for out in cell.outputs if out.output_type == "error"], key
        draws = cell.source.count("plt.show()") + cell.source.count("show(runs")
        assert pictures(cell) == draws, key


def test_credit_of_the_hand_made_dialogue(run):
    lines = printed(run["01_kernels"]["credit"]).splitlines()
    assert lines == [
        "redundant reply   shared +1.15   turn-level -1.47",
        "useful follow-up  shared -0.66   turn-level +1.04",
    ]


def test_table_of_the_demo_has_its_rows_and_silence_is_worth_25(run):
    (out,) = run["02_turnwise"]["evaluate"].outputs[-1:]
    table = [line for line in out.data["text/markdown"].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    assert [row[0] for row in rows[2:]] == [
        "always silent",
        "SFT",
        "TurnWise",
        "TurnWise, frames swapped",
    ]
    pauc = rows[0].index("PAUC")
    assert rows[2][pauc].split()[0] == "25.0"


def test_stored_outputs_of_01_are_those_of_its_code(run):
    stored = code_cells(read("01_kernels"))
    assert [cell.execution_count for cell in stored.values()] == list(range(1, len(stored) + 1))
    for key, cell in run["01_kernels"].items():
        assert not [out for out in stored[key].outputs if out.output_type == "error"], key
        assert pictures(stored[key]) == pictures(cell), key
        if "perf_counter" not in cell.source:
            assert printed(stored[key]) == printed(cell), key


def test_vanished_advantages_come_back_from_the_reference_score(run):
    """Rows of the notebook's table: reward, average | advantage then, baseline, multiplicative."""
    lines = printed(run["03_avatar"]["vcrs"]).splitlines()[1:]
    then, baseline, _ = np.array([line.split("|")[1].split() for line in lines], float).T
    assert then.tolist() == [1.5, 0.0, -0.5, 0.0, 0.0]
    assert np.sign(baseline).tolist() == [1, 1, -1, 0, 0]


def test_a_clip_can_be_listened_to(run):
    for cells in (run["03_avatar"], code_cells(read("03_avatar"))):
        (player,) = (out for out in cells["world"].outputs if "<audio" in str(out.get("data")))
        assert "data:audio/wav;base64," in player.data["text/html"]


def test_both_runs_of_03_generate_the_same_number_of_answers(run):
    """Half as many fresh samples of a prompt, twice as many updates."""
    lines = printed(run["03_avatar"]["curves"]).splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == ["8 fresh", "4 fresh, 4 replayed"]
    updates = [int(re.search(r"(\d+) updates", line)[1]) for line in lines]
    assert updates[1] == 2 * updates[0]


def test_stored_outputs_of_03_are_those_of_its_code(run):
    """What is printed before the world is made is the same everywhere; training is not."""
    stored = code_cells(read("03_avatar"))
    assert [cell.execution_count for cell in stored.values()] == list(range(1, len(stored) + 1))
    keys = list(stored)
    for key, cell in run["03_avatar"].items():
        assert not [out for out in stored[key].outputs if out.output_type == "error"], key
        assert pictures(stored[key]) == pictures(cell), key
        if keys.index(key) < keys.index("world"):
            assert printed(stored[key]) == printed(cell), key


@pytest.mark.parametrize("name", NAMES)
def test_form(name):
    notebook = read(name)
    assert notebook.metadata.kernelspec.name == "python3"
    assert BADGE.format(name) in notebook.cells[0].source
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MAX_BYTES[name]
    for key, cell in code_cells(notebook).items():
        ast.parse(cell.source)  # plain Python, no magics
        assert not [line for line in cell.source.splitlines() if len(line) > 100], key


def test_01_needs_only_jax_numpy_and_matplotlib():
    allowed = {*sys.stdlib_module_names, "jax", "numpy", "matplotlib"}
    for key, cell in code_cells(read("01_kernels")).items():
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                continue
            foreign = {module for module in found if module.split(".")[0] not in allowed}
            assert foreign <= {"turnwise_jax.kernels"}, key
