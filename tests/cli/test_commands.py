"""The commands as a user calls them: what they print and write, and how they refuse bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from turnwise_jax.cli import rollout
from turnwise_jax.cli.flags import KINDS, config_of, define_config, parse
from turnwise_jax.cli.main import COMMANDS, main
from turnwise_jax.data.reply_styles import STYLES
from turnwise_jax.eval.predictions import read_predictions
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import generate

# The worked example of facts section 2; judgements given, so no judge is asked.
DIALOGUE = {
    "id": "worked",
    "group": "prompt",
    "times": [2.0, 4.0, 6.0, 8.0, 10.0],
    "replies": ["a", "b", "NO REPLY", "c", "d"],
    "windows": [{"start": 4.0, "end": 8.0, "question": "?", "answer": "!"}],
    "quality": [[None], [2], [None], [4], [None]],
    "repetitive": [0, 0, None, 0, 1],
}
SILENT = {
    **DIALOGUE,
    "id": "silent",
    "replies": ["NO REPLY"] * 5,
    "quality": [[None]] * 5,
    "repetitive": [None] * 5,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "world"
    return generate(
        folder,
        World(history_turns=1, target_turns=3, dialogues_per_video=1),
        train=4,
        test=2,
        seed=3,
        progress=False,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("cli") / "policy", World(), vocab_size=320)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "dialogues.jsonl"
    path.write_text(json.dumps(DIALOGUE) + "\n" + json.dumps(SILENT) + "\n")
    return path


def refused(capsys, *argv: str) -> str:
    """The one line in which a command refuses, with status 2; progress may come before it."""
    assert main(argv) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert not any("rror" in line or "Traceback" in line for line in progress)
    return error


def write_config(path, body: str):
    path.write_text(f"from turnwise_jax.train.config import rl_config, sft_config\n{body}\n")
    return path


def test_score_prints_and_writes_the_worked_example(lines, tmp_path, capsys):
    out = tmp_path / "scores.jsonl"
    assert main(["score", f"--input={lines}", f"--output={out}"]) == 0
    scored, silent = (json.loads(line) for line in out.read_text().splitlines())
    np.testing.assert_allclose(scored["prefix_scores"], [0.375, 0.125, 1.25, 1.25, 2.0, 1.25])
    np.testing.assert_allclose(scored["increments"], [-0.25, 1.125, 0.0, 0.75, -0.75], atol=1e-6)
    assert scored["reward"] == pytest.approx(1.25)
    assert silent["reward"] == pytest.approx(0.375)
    # Two rollouts: the shared advantage is +-1/sqrt(2); the repeated last reply turns negative.
    assert scored["shared_advantage"] == pytest.approx(0.7071, abs=1e-3)
    assert scored["turn_advantages"][0] == pytest.approx(0.7071, abs=1e-3)
    assert scored["turn_advantages"][-1] < 0
    assert "worked" in capsys.readouterr().out


def test_score_refuses_a_group_of_different_times_and_counts_what_a_log_lacks(lines, capsys):
    assert main(["score", f"--input={lines}"]) == 0
    assert "failed" not in capsys.readouterr().out
    lacking = {**DIALOGUE, "quality": [[None]] * 5}  # two replies in the window
    lines.write_text(json.dumps(lacking) + "\n")
    assert main(["score", f"--input={lines}"]) == 0
    assert "2 judgements failed" in capsys.readouterr().out
    moved = {**SILENT, "times": [*DIALOGUE["times"][:4], 11.0]}
    lines.write_text(json.dumps(DIALOGUE) + "\n" + json.dumps(moved) + "\n")
    error = refused(capsys, "score", f"--input={lines}")
    assert f"{lines}: record 'silent': field 'times[4]': decides at 11 s where worked" in error


def test_score_warns_where_the_rule_judge_is_asked_about_other_data(lines, tmp_path, capsys):
    assert main(["score", f"--input={lines}"]) == 0
    assert "WARNING" not in capsys.readouterr().err  # the file has its judgements
    unjudged = {key: DIALOGUE[key] for key in DIALOGUE if key not in ("quality", "repetitive")}
    lines.write_text(
        json.dumps({**unjudged, "replies": ["NO REPLY", "It fell.", *["NO REPLY"] * 3]})
    )
    windows = [{**DIALOGUE["windows"][0], "answer": "The cup fell."}]
    lines.write_text(json.dumps({**json.loads(lines.read_text()), "windows": windows}))
    assert main(["score", f"--input={lines}"]) == 0
    assert "1 of 1 reference answers" in (warning := capsys.readouterr().err)
    assert "--judge=openai" in warning


def test_rollout_prints_a_timeline_and_appends_the_dialogue(world, checkpoint, tmp_path, capsys):
    out = tmp_path / "said.jsonl"
    video = next(iter(sorted(world.videos.glob("*.mp4"))))
    command = [
        *("rollout", f"--checkpoint={checkpoint}", f"--video={video}"),
        *("--question=Which shapes appear?", "--question=4:Which colours does it turn?"),
        *("--frame_interval=1", "--max_new_tokens=4", f"--output={out}"),
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[-3:] == ["Which", "shapes", "appear?"]
    assert sum("user:" in line for line in printed) == 2
    (said,) = read_predictions(out)
    assert said.times == (2.0, 4.0, 6.0, 8.0)
    assert len(printed) == len(said.times) + 2
    assert main(command) == 0
    first, second = read_predictions(out)
    assert first == second  # greedy: the same video and question, the same replies


STYLED = {
    "thinkstream": ("<think>a ring</think><silent>", "<think>new</think><response>A ring appears."),
    "streampro": ("</Silence>", "</Response>A ring appears."),
}


@pytest.mark.parametrize("style", STYLED)
def test_rollout_reads_replies_in_the_style_they_are_written_in(
    style, world, checkpoint, tmp_path, capsys, monkeypatch
):
    texts, systems = STYLED[style], []

    class Scripted(StreamEngine):
        def stream(self, params, example, **options):
            systems.append(example.dialogue.system)
            for result in super().stream(params, example, **options):
                yield result._replace(text=texts[result.turn % 2])

    monkeypatch.setattr(rollout, "StreamEngine", Scripted)
    out = tmp_path / "said.jsonl"
    video = next(iter(sorted(world.videos.glob("*.mp4"))))
    command = [
        *("rollout", f"--checkpoint={checkpoint}", f"--video={video}", "--question=What happens?"),
        *("--frame_interval=1", "--max_new_tokens=4", f"--output={out}", f"--replies={style}"),
    ]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(" s  ")[1].removesuffix(" [cut]") for line in lines] == [
        "-",
        "reply: A ring appears.",
    ] * 2
    (said,) = read_predictions(out)
    assert said.replies == ("NO REPLY", "A ring appears.") * 2
    assert said.raw == texts * 2
    assert main([*command, "--system=Look."]) == 0
    assert systems == [STYLES[style].system, "Look."]


def test_rollout_on_several_devices_says_the_same(world, checkpoint, tmp_path):
    video = next(iter(sorted(world.videos.glob("*.mp4"))))
    command = [
        *("rollout", f"--checkpoint={checkpoint}", f"--video={video}", "--question=What happens?"),
        *("--frame_interval=1", "--max_new_tokens=4"),
    ]
    for name, devices in (("one", ()), ("four", ("--fsdp=2", "--tensor=2"))):
        assert main([*command, f"--output={tmp_path / name}", *devices]) == 0
    assert read_predictions(tmp_path / "one") == read_predictions(tmp_path / "four")


def test_checkpoints_go_from_one_form_to_the_other_and_back(checkpoint, tmp_path, capsys):
    there, back = tmp_path / "orbax", tmp_path / "hf"
    forms = ["--format=orbax", "--dtype=float32"], ["--dtype=float32"]
    for source, target, form in zip((checkpoint, there), (there, back), forms, strict=True):
        assert main(["convert", f"--checkpoint={source}", f"--output={target}", *form]) == 0
        assert not list(target.parent.glob("*.partial"))
    assert not list(there.glob("*.safetensors"))
    policies = [Policy.load(path) for path in (checkpoint, there, back)]
    for a, b, c in zip(*map(exported_leaves, policies), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    capsys.readouterr()
    assert "by --run or by --checkpoint" in refused(capsys, "convert", f"--output={tmp_path}/x")


def test_train_convert_and_eval_chain(world, checkpoint, tmp_path, capsys):
    config = write_config(
        tmp_path / "sft.py",
        "def get_config():\n"
        "    c = sft_config()\n"
        "    c.policy.update(dtype='float32', remat='none', freeze=())\n"
        "    c.data.batch_size = 2\n"
        "    c.run.update(steps=2, checkpoint_every=1)\n"
        "    return c",
    )
    run = tmp_path / "run"
    command = [
        *("train", f"--config={config}", f"--config.policy.checkpoint={checkpoint}"),
        *(f"--config.data.path={world.sft('train')}", f"--config.run.dir={run}"),
    ]
    assert main(command) == 0
    assert f"finished: {run}/policy" in capsys.readouterr().out
    assert main(["convert", f"--run={run}", f"--output={tmp_path / 'hf'}"]) == 0
    exported, converted = Policy.load(run / "policy"), Policy.load(tmp_path / "hf")
    for a, b in zip(exported_leaves(exported), exported_leaves(converted), strict=True):
        np.testing.assert_array_equal(a, b)
    capsys.readouterr()
    assert "already" in refused(capsys, "convert", f"--run={run}", f"--output={tmp_path / 'hf'}")
    message = refused(capsys, "convert", f"--run={run}", f"--output={tmp_path}/x", "--step=9")
    assert "there are: 1, 2" in message
    evaluation = [
        *("eval", "--config=configs/eval/streaming.py", f"--config.policy.checkpoint={run}/policy"),
        *(f"--config.data.path={world.rl('test')}", f"--config.dir={tmp_path / 'eval'}"),
        *("--config.policy.dtype=float32", "--config.decoding.max_new_tokens=4"),
        "--config.resamples=10",
    ]
    assert main(evaluation) == 0
    report = json.loads((tmp_path / "eval/report.json").read_text())
    said = tmp_path / "eval/predictions.jsonl"
    again = [
        *("eval", "--config=configs/eval/streaming.py", f"--predictions={said}"),
        *(f"--config.dir={tmp_path / 'again'}", "--config.resamples=10"),
    ]
    assert main(again) == 0
    assert json.loads((tmp_path / "again/report.json").read_text()) == report


def exported_leaves(policy):
    import jax

    return jax.tree.leaves(policy.params)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("--config.run.stepz=3", "unknown config field run.stepz"),
        ("--config.data.batch_size=many", "--config.data.batch_size=many"),
        ("--config.data.batch_size=0", "field 'data.batch_size': must be at least 1"),
        ("--config.algorithm.dual_clip=0.9", "dual_clip is 0.9"),
        ("--config.policy.checkpoint=/nowhere", "/nowhere"),
        ("--config.data.path=/nowhere.parquet", "/nowhere.parquet"),
        ("--config.judge.kind=oracle", "oracle"),
    ],
)
def test_train_refuses_in_one_line(override, expected, world, checkpoint, tmp_path, capsys):
    config = write_config(tmp_path / "rl.py", "def get_config():\n    return rl_config()")
    message = refused(
        capsys,
        *("train", f"--config={config}", f"--config.policy.checkpoint={checkpoint}"),
        *(f"--config.data.path={world.rl('train')}", f"--config.run.dir={tmp_path / 'run'}"),
        *("--config.data.batch_size=2", override),
    )
    assert expected in message


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("train",), "--config=FILE is required, for instance configs/turnwise/"),
        (("eval",), "--config=FILE is required, for instance configs/eval/"),
        (("study",), "--config=FILE is required, for instance configs/worlds/"),
        (("shapes",), "--config=FILE is required, for instance configs/turnwise/"),
        (("compile",), "--config=FILE is required, for instance configs/turnwise/"),
        (("compile", "--config=configs/avatar/curriculum.py"), "--topology is required"),
        (("eval", "--markdown=x"), "field 'markdown': is for a comparison"),
        (("eval", "--compare=x,y", "--predictions=z"), "field 'predictions': cannot be given"),
        (("world", "--kind=sound"), "--output is required"),
        (("world", "stray"), "unexpected argument 'stray'"),
        (("train", "--config=/none.py"), "/none.py"),
        (("score",), "--input is required"),
        (("score", "--input=/none.jsonl"), "/none.jsonl: no such file"),
        (("score", "--inputs=x"), "'inputs'. Did you mean: input"),
        (("rollout", "--checkpoint=x", "--video=/none.mp4", "--question=?"), "/none.mp4"),
        (("eval", "--config=configs/eval/streaming.py"), "policy.checkpoint"),
        (("convert", "--run=/none", "--output=/tmp/never"), "/none: is no training run"),
        (("score", "stray"), "unexpected argument 'stray'"),
        (("nonsense",), "unknown command 'nonsense'"),
    ],
)
def test_commands_refuse_in_one_line(argv, expected, capsys):
    assert expected in refused(capsys, *argv)


def test_config_files_that_fail_are_named(tmp_path, capsys):
    broken = write_config(tmp_path / "broken.py", "def get_config():\n    return nothing")
    assert f"{broken}: cannot be used: NameError" in refused(capsys, "train", f"--config={broken}")
    with_argument = write_config(
        tmp_path / "a.py", "def get_config(name='grpo'):\n    return rl_config(name)"
    )
    message = refused(capsys, "train", f"--config={with_argument}:foo")
    assert "unknown algorithm 'foo'" in message


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        ("train", ("one training run", "a curriculum")),
        ("shapes", ("one training run",)),
        ("compile", ("one training run", "a curriculum")),
        ("eval", ("an evaluation",)),
        ("study", ("a study",)),
    ],
)
def test_configs_of_other_kinds_are_refused(command, takes, tmp_path, capsys):
    files = {
        "one training run": "configs/baselines/thinkstream.py",
        "a curriculum": "configs/avatar/curriculum.py:3b",
        "an evaluation": "configs/eval/qa.py",
        "a study": "configs/worlds/exact.py",
    }
    assert files.keys() == {kind.name for kind in KINDS}
    strange = tmp_path / "strange.py"
    strange.write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
        "    return ConfigDict({'some': 1})\n"
    )
    files["nothing known"] = str(strange)
    for kind in set(files) - set(takes):
        file = files[kind].partition(":")[0]
        error = refused(capsys, command, f"--config={files[kind]}")
        assert error.startswith(f"turnwise {command}: error: {file}: describes {kind}")
        assert f"takes {takes[0]}, for instance configs/" in error


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_config_is_told_by_its_example(kind):
    assert kind.command in COMMANDS
    values = parse([f"--config={kind.example}"], "", define_config)
    assert config_of(values, kind) is values.config


def test_help_of_eval_lists_the_flags_of_comparisons(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    out = capsys.readouterr().out
    for name in ("config", "predictions", "compare", "markdown"):
        assert re.search(rf"^  --{name}  ", out, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert not stop.value.code
    assert f"usage: turnwise {name}" in capsys.readouterr().out


def test_help_does_not_load_jax():
    code = (
        "import sys; from turnwise_jax.cli.main import main; main(['--help']); "
        "sys.exit('jax' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    assert (
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).returncode == 0
    )
