"""docs/pods.md tells the truth: its scripts can be pasted, fields, files and commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from turnwise_jax.cli.flags import CURRICULUM, config_of, define_config, parse
from turnwise_jax.cli.main import COMMANDS
from turnwise_jax.errors import InputError
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.run import check_share
from turnwise_jax.train.validate import flatten

ROOT = Path(__file__).resolve().parent.parent
DOC = (ROOT / "docs" / "pods.md").read_text()
SCRIPTS = re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)


def section(title: str) -> str:
    return DOC.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.split()[0])
def test_scripts_can_be_pasted(script):
    assert not re.search(r"\[-", script)  # no optional parts in brackets
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fields_and_files_exist():
    fields = re.findall(r"--config\.([\w.]+)=", DOC)
    assert len(fields) > 20
    assert {*fields} - {"order"} <= flatten(rl_config().to_dict()).keys()
    for name in re.findall(r"(?:configs|tests)/[\w/]+\.py", DOC):
        assert (ROOT / name).is_file(), name


def test_a_task_for_each_gpu_needs_the_batch_that_the_page_gives():
    nodes, tasks = re.search(r"--nodes=(\d+)", DOC), re.search(r"`--ntasks-per-node=(\d+)`", DOC)
    (size,) = re.findall(r"also give `--config\.data\.batch_size=(\d+)`", DOC)
    hosts = Hosts()
    hosts.count = int(nodes[1]) * int(tasks[1])
    config = rl_config()
    with pytest.raises(InputError, match="no equal parts for 16 processes"):
        check_share(config, hosts)
    config.data.batch_size = int(size)
    check_share(config, hosts)


def test_it_says_of_every_command_where_it_runs():
    named = re.findall(r"`(?:turnwise )?(\w+)`", section("What runs on one host only"))
    assert set(COMMANDS) <= set(named)


def test_the_stages_of_a_curriculum_run_one_by_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    (file, order) = re.findall(r"--config=(\S+) --config\.order=\"(.*)\"", DOC)[0]
    values = parse([f"--config={file}", f"--config.order={order}"], "", define_config)
    assert config_of(values, CURRICULUM).order == ("cold_start",)
