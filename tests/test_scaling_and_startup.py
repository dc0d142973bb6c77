"""The benchmarks of growth with length and branches, and of the time to the first update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from benchmark_scripts import script

SMALL = [
    *("--hidden=32", "--layers=1", "--vocabulary=500", "--pixels=56", "--vision-hidden=32"),
    *("--vision-layers=1", "--turns=2", "--reply-tokens=4", "--rounds=2"),
    *("--frames=2,4", "--groups=1,2", "--branch-frames=2", "--group=2"),
]
# A study's files as `turnwise study` leaves them. It takes 5 s on a clock of its own, and 60 s more
# without a compilation cache; runs other than sft need sft's report, and a finished sft stays.
STUDY = """
import json, os, sys, time
from pathlib import Path
flags = dict(flag[len("--config."):].split("=") for flag in sys.argv[1:])
study, cache = Path(flags.pop("dir")), Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
(run,) = [key.split(".")[1] for key in flags if key.endswith("checkpoint_every")]
steps = flags.get("runs.sft.run.steps")
began = time.time()
log = Path(sys.argv[0]).with_suffix(".log")
with open(log, "a") as handle:
    handle.write(f"{run} {steps} {cache.exists()} {(study / run).exists()}\\n")
cold = not cache.exists()
cache.mkdir(parents=True, exist_ok=True)

def mark(path, seconds):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (began + seconds, began + seconds))

mark(study / ".world.lock", 1)
if not (study / "world" / "manifest.json").exists():
    mark(study / "world" / "manifest.json", 3 if run == "sft" else 0)
mark(study / run / "config.json", 3)
late = 60 if cold else 0
mark(study / run / "compiles.jsonl", 4 + late)
lines = json.dumps({"step": 0, "time": began + 5 + late}) + "\\n"
(study / run / "timing.jsonl").write_text(lines)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def scaling():
    return script("scaling")


@pytest.fixture(scope="module")
def startup():
    return script("startup")


class Idle:
    """An update that changes nothing, of a size that tells which batch it was made for."""

    def __init__(self, work):
        self.batch = work.batch(shared=True)

    def memory(self):
        return float(self.batch.tokens_NT.size + self.batch.context.tokens.size)

    def __call__(self):
        return {"loss": 0.5, "logp": -3.0, "grad_norm": 1.0}


@pytest.fixture(scope="module")
def grown(scaling, tmp_path_factory):
    """Both series with updates that do nothing, their flags and their folder."""
    args, folder = scaling.arguments(SMALL), tmp_path_factory.mktemp("scaling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling.Work, "make", lambda work, name: Idle(work))
        return scaling.measure(args, folder), args, folder


def test_both_series_grow_by_what_they_say(grown):
    report, _, _ = grown
    contexts, branches = report["context"], report["branches"]
    assert [row["frames"] for row in contexts] == [2, 4]
    assert [row["branches"] for row in contexts] == [2, 2]
    assert contexts[1]["tokens"] > contexts[0]["tokens"] + 4
    assert [row["branches"] for row in branches] == [1, 2]
    assert len({row["tokens"] for row in branches}) == 1
    assert branches[1] == {k: v for k, v in contexts[0].items() if k != "exponent"}
    assert contexts[1]["compiled_mb"] > contexts[0]["compiled_mb"] > 0
    assert "exponent" not in contexts[0]
    assert np.isfinite(contexts[1]["exponent"])


def test_the_report_prints_and_draws(scaling, grown, tmp_path, capsys):
    report, _, _ = grown
    json.dumps(report)
    scaling.print_report(report)
    out = capsys.readouterr().out
    assert "exponent over all contexts" in out
    assert "decoder 1 x 32" in out
    scaling.draw(report, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_exponents_and_lines_are_those_of_known_curves(scaling):
    lengths = [100.0, 200.0, 400.0]
    assert scaling.slope(lengths, [3 * n**1.5 for n in lengths]) == pytest.approx(1.5)

    def row(tokens, seconds):
        return {"tokens": tokens, "seconds": {"median": seconds}}

    rows = scaling.with_exponents([row(100, 1.0), row(200, 2.0), row(400, 8.0)])
    assert [row.get("exponent") for row in rows] == [None, pytest.approx(1.0), pytest.approx(2.0)]
    exact = scaling.line([1, 2, 4], [2.5, 3.0, 4.0])
    assert exact == pytest.approx({"fixed": 2.0, "each": 0.5, "off": 0.0})
    assert scaling.line([1, 2, 4], [1.0, 4.0, 16.0])["off"] > 0.3


def test_the_longest_context_makes_real_updates(scaling, grown, capsys):
    _, args, folder = grown
    report = scaling.measure_long(args, folder)
    assert report["frames"] == 4
    assert report["context_tokens"] == grown[0]["context"][1]["tokens"]
    assert len(report["seconds"]) == 2
    assert 0 < report["memory_mb"]["imported"] <= report["memory_mb"]["peak"]
    scaling.print_long(report)
    assert "update 2:" in capsys.readouterr().out


def test_an_update_that_is_none_is_refused(scaling, grown, monkeypatch):
    _, args, folder = grown

    monkeypatch.setattr(scaling.Work, "make", lambda work, name: Idle(work))
    with pytest.raises(SystemExit, match="no real update"):
        scaling.measure_long(args, folder)


@pytest.mark.parametrize("text", ["4", "4,2", "2,2", "0,1", "a,b"])
def test_sizes_ascend(scaling, capsys, text):
    with pytest.raises(SystemExit):
        scaling.arguments([f"--frames={text}"])
    assert "ascending numbers like 1,2,4" in capsys.readouterr().err


def test_first_updates_are_timed_cold_and_warm(startup, tmp_path, capsys):
    study = tmp_path / "study.py"
    study.write_text(STUDY)
    found = startup.measure_runs(
        ["sft", "grpo"], 2, tmp_path / "root", [sys.executable, str(study)]
    )
    assert set(found) == {"sft", "grpo"}
    for run, caches in found.items():
        for cache, late in (("cold", 60), ("warm", 0)):
            total = caches[cache]["total"]
            assert 5 + late <= total["least"] <= total["most"] < 35 + late
            parts = {name: caches[cache][name]["median"] for name in startup.PARTS}
            assert sum(parts.values()) == pytest.approx(total["median"])
            assert parts["world"] == pytest.approx(2 if run == "sft" else 0, abs=0.01)
            assert parts["policy"] == pytest.approx(0 if run == "sft" else 2, abs=0.01)
            assert parts["compile"] == pytest.approx(1 + late, abs=0.01)
            assert parts["step"] == pytest.approx(1, abs=0.01)
    calls = Counter(study.with_suffix(".log").read_text().splitlines())
    assert calls == {
        "grpo 2 False False": 3,  # one of them prepares the folder
        "grpo 2 True False": 2,
        "sft None False False": 2,
        "sft None True False": 2,
    }
    startup.print_report({**script("workload").where(), "rounds": 2, "first_update": found})
    out = capsys.readouterr().out
    assert out.count("cold") == out.count("warm") == 2


def test_a_study_that_fails_is_told(startup, tmp_path):
    study = tmp_path / "study.py"
    study.write_text("raise SystemExit('no such world')")
    with pytest.raises(SystemExit, match="sft made no update: no such world"):
        startup.measure_runs(["sft"], 1, tmp_path, [sys.executable, str(study)])
    study.write_text("import time; time.sleep(600)")
    command = [sys.executable, str(study)]
    with pytest.raises(SystemExit, match="made no update"):
        startup.first_update(command, tmp_path / "s", "sft", tmp_path / "c", patience=0.5)


def test_the_timed_command_is_that_of_the_demo(startup):
    made = (startup.ROOT / "Makefile").read_text()
    assert " ".join(startup.DEMO[3:]) in made
    assert os.path.exists(startup.ROOT / startup.DEMO[-1].removeprefix("--config="))


def test_pictures_are_not_waited_for():
    """matplotlib is imported after the last update."""
    program = "import sys, turnwise_jax.cli.study, turnwise_jax.study.runner; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "turnwise_jax.train.run" in done.stdout.split()
    assert "matplotlib" not in done.stdout.split()


def test_each_script_says_its_command(scaling, startup):
    for module, name in ((scaling, "scaling"), (startup, "startup")):
        assert f"python benchmarks/{name}.py" in module.__doc__
