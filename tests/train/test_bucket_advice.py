"""``turnwise shapes``: what it says about buckets against batches put together one by one."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from asking import avatar
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.cli import shapes as shapes_command
from turnwise_jax.cli.flags import parse
from turnwise_jax.cli.main import main
from turnwise_jax.data.records import SILENCE, Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.shapes import RowShapes, Shapes, choose, row_buckets
from turnwise_jax.train.answer_setup import answer_rooms
from turnwise_jax.train.aot.plan import planned_policy
from turnwise_jax.train.buckets.data import Records, histograms, rollout_advice, supervised_advice
from turnwise_jax.train.buckets.logs import logged_batches, row_advice
from turnwise_jax.train.hosts import ALONE
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.metrics import METRICS, append_jsonl, read_jsonl
from turnwise_jax.train.validate import validate

ROOT = Path(__file__).resolve().parents[2]
COUNT, BATCH, GROUP, LIMIT = 14, 2, 2, 6
LOGGED = (("d0", "d1"), ("d2", "d3"), ("d4", "d5"), ("d6", "d7"), ("d8", "d9"), ("d10", "d11"))


def ragged(rng: np.random.Generator, number: int, video: str) -> Dialogue:
    """1 to 3 open turns behind up to 3 given ones; a question of 1 to 40 words."""
    given, turns = int(rng.integers(0, 4)), int(rng.integers(1, 4))
    times = [1.0 + 0.5 * i for i in range(given + turns)]
    words = int(rng.integers(1, 40))
    made = tuple(
        Turn(
            frames=(Frame(video, time),),
            text=" ".join(["what"] * words) if k == 0 else "",
            time=time,
            reply=SILENCE if k < given else None,
        )
        for k, time in enumerate(times)
    )
    window = Window(times[given], times[-1] + 0.1, made[0].text or "what", "A square.")
    return Dialogue(f"d{number}", made, (window,), system="Watch.")


@pytest.fixture(scope="module")
def config(place, tmp_path_factory) -> ConfigDict:
    """Of RL on ragged dialogues."""
    root = tmp_path_factory.mktemp("advice")
    rng = np.random.default_rng(4)
    records = [ragged(rng, number, "videos/train-0000.mp4") for number in range(COUNT)]
    mmduet2_rl.write(records, root / "ragged.parquet", root=place.world.root)
    config = rl(place, root / "run")
    config.data.update(path=str(root / "ragged.parquet"), root=str(place.world.root), shuffle=True)
    config.shapes.update(rollout_buckets=2, row_buckets=3)
    return config


@pytest.fixture(scope="module")
def records(config) -> Records:
    return Records.read(config, planned_policy(config))


def changed(records: Records, **values) -> Records:
    """The same records under another config."""
    config = ConfigDict(records.config.to_dict())
    for name, value in values.items():
        section, field = name.split("__")
        config[section][field] = value
    return dataclasses.replace(records, config=config)


def rollout_padding(records: Records, lengths, batches) -> float:
    """Over batches that are given as numbers of records, each in the bucket that takes it.

    Media are left aside: a bucket has room for those of any batch that it is made for, and only a
    batch that is not, but happens to fit, may show more.
    """
    buckets = Shapes.for_dialogues(
        records.dialogues, records.grids, records.policy, batch_size=BATCH, new_tokens=LIMIT,
        buckets=2, lengths=lengths,
    )  # fmt: skip
    buckets = [bucket._replace(slices=10**9) for bucket in buckets]
    held = slots = 0
    for batch in batches:
        needs = [records.needs[n] for n in batch]
        bucket = choose(buckets, needs, [records.dialogues[n] for n in batch])
        held += sum(need.context + GROUP * need.branch for need in needs)
        slots += BATCH * (bucket.context + GROUP * bucket.branch)
    return 1 - held / slots


@pytest.mark.parametrize("shuffle", [True, False])
def test_padding_of_rollouts_is_that_of_all_batches(records, shuffle):
    records = changed(records, data__shuffle=shuffle)
    batches = (
        list(combinations(range(COUNT), BATCH)) if shuffle else np.arange(COUNT).reshape(-1, 2)
    )
    advice = rollout_advice(records)
    assert advice.now.padding == pytest.approx(rollout_padding(records, (), batches), rel=1e-9)
    assert len(advice.options) >= 3
    for number, option in enumerate(advice.options, 1):
        assert len(option.lengths) == len(option.rooms) == number
        expected = rollout_padding(records, option.lengths, batches)
        assert option.padding == pytest.approx(expected, rel=1e-9)
        assert sum(option.shares) == pytest.approx(1)
    paddings = [option.padding for option in advice.options]
    assert paddings == sorted(paddings, reverse=True)
    assert advice.options[1].padding <= advice.now.padding
    assert advice.advised in advice.options


def test_options_are_as_good_as_any_lengths(records):
    """All pairs of lengths that rooms can have, each with the shapes that it really makes."""
    advice = rollout_advice(records)
    batches = list(combinations(range(COUNT), BATCH))
    wholes = {-(-need.whole // 32) * 32 for need in records.needs}
    pairs = [(low, max(wholes)) for low in wholes if low < max(wholes)]
    paddings = [rollout_padding(records, pair, batches) for pair in pairs]
    assert advice.options[1].padding == pytest.approx(min(paddings), rel=1e-9)


def test_padding_of_given_replies(place, tmp_path):
    config = sft(place, tmp_path / "run")
    config.data.batch_size = 3
    records = Records.read(config, planned_policy(config))
    advice = supervised_advice(records)
    (rows, _) = histograms(records)
    needs = records.row_needs
    assert rows.values.tolist() == [need.length for need in needs]
    for option in advice.options:
        buckets = RowShapes.for_dialogues(
            records.dialogues, records.grids, records.policy, batch_size=3, lengths=option.lengths
        )
        held = slots = 0
        for batch in combinations(range(len(needs)), 3):
            own = [needs[n] for n in batch]
            held += sum(need.length for need in own)
            slots += 3 * choose(buckets, own, [records.dialogues[n] for n in batch]).length
        assert option.padding == pytest.approx(1 - held / slots, rel=1e-9)


def log(records: Records, directory) -> list[dict]:
    """Logs of made-up replies of 1 to 5 tokens and an end marker, two rollouts a dialogue."""
    rng = np.random.default_rng(7)
    turns = {d.id: len(d.open_turns) for d in records.dialogues}
    lines = [
        {"step": step, "group": name, "replies": ["a" * int(rng.integers(0, 5))] * turns[name]}
        for step, names in enumerate(LOGGED)
        for name in names
        for _ in range(GROUP)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    append_jsonl(directory / "groups.jsonl", lines)
    return lines


@pytest.mark.parametrize("shared", [True, False])
def test_padding_of_logged_rows(records, tmp_path, shared):
    records = changed(records, shapes__shared_context=shared)
    lines = log(records, tmp_path)
    batches = logged_batches(records, tmp_path)
    tokens = {n: len(records.policy.vocab.encode("a" * n)) + 1 for n in range(5)}
    assert len(set(tokens.values())) > 2
    advice = row_advice(records, batches)
    numbers = {d.id: n for n, d in enumerate(records.dialogues)}
    for option in [advice.now, *advice.options]:
        held = slots = 0
        for step, names in enumerate(LOGGED):
            own = [line for line in lines if line["step"] == step]
            needs = [records.needs[numbers[name]] for name in names]
            bucket = choose(records.rollout_shapes, needs, [records.dialogues[0]] * 2)
            said = [sum(tokens[len(text)] for text in line["replies"]) for line in own]
            rooms = row_buckets(bucket, 3, shared=shared, lengths=option.lengths)
            length = next(length for length, actions in rooms if max(said) <= actions)
            shown = [need.branch - need.turns * (LIMIT + 1) for need in needs]
            contexts = [need.context - 1 for need in needs]
            held += sum(said) + GROUP * sum(shown) + sum(contexts) * (1 if shared else GROUP)
            slots += BATCH * (GROUP * length + (bucket.context if shared else 0))
        assert option.padding == pytest.approx(1 - held / slots, rel=1e-9)
    most = max(bucket.turns for bucket in records.rollout_shapes) * LIMIT
    assert all(option.lengths[-1] == most for option in advice.options)
    assert advice.options[-1].padding < advice.options[0].padding


def test_logged_rows_have_the_padding_that_the_run_logged(rl_run, place):
    """Replies of a policy that was not trained need not be spelt as they were sampled."""
    records = Records.read(rl(place, rl_run), planned_policy(rl(place, rl_run)))
    batches = logged_batches(records, rl_run)
    logged = [line["padding"] for line in read_jsonl(rl_run / METRICS)]
    assert len(batches) == len(logged)
    assert row_advice(records, batches).now.padding == pytest.approx(np.mean(logged), abs=0.02)
    report = json.loads((rl_run / "report.json").read_text())
    assert report["padding"] == pytest.approx(np.mean(logged))


def test_padding_of_logged_answers(asking, tmp_path):
    """Two fresh and two replayed answers of two prompts, one of them asked with its hint."""
    config = avatar(asking, tmp_path / "run")
    config.shapes.row_buckets = 3
    records = Records.read(config, planned_policy(config))
    assert len(records.dialogues) > records.plain == len({d.id[:2] for d in records.dialogues})
    names = [records.dialogues[0].id, records.dialogues[-1].id]
    sampled = [(1, 2, 3, 2, 3, 1, 1, 1), (6, 1, 1, 1, 2, 2, 2, 2), (2, 1, 1, 1, 2, 1, 1, 2)]
    lines = [
        {"step": step, "group": names[n % 2], "tokens": count, "replayed": n >= 4}
        for step, counts in enumerate(sampled)
        for n, count in enumerate(counts)
    ]
    wholes = [need.whole for need in records.needs]  # a hinted form may be the longest
    assert all(o.lengths[-1] >= max(wholes) for o in rollout_advice(records).options)
    (tmp_path / "run").mkdir()
    append_jsonl(tmp_path / "run" / "groups.jsonl", lines)
    advice = row_advice(records, logged_batches(records, tmp_path / "run"))
    layout = Layout.of(make_mesh(config.mesh))
    asked = {dialogue.id: dialogue for dialogue in records.dialogues}
    grids = dict(zip(asked, records.grids, strict=True))
    rooms = answer_rooms(config, records.policy, asked, grids, layout, ALONE).mixed
    contexts = {
        d.id: need.context for d, need in zip(records.dialogues, records.needs, strict=True)
    }
    held = sum(map(sum, sampled)) + 3 * 4 * sum(contexts[name] for name in names)
    fits = [next(r for r in rooms if max(counts) <= r.actions) for counts in sampled]
    assert advice.now.rooms == tuple(str(room.actions) for room in rooms)
    slots = sum(room.batch * room.length for room in fits)
    assert advice.now.padding == pytest.approx(1 - held / slots)


def test_logs_of_other_records_are_refused(records, tmp_path):
    append_jsonl(tmp_path / "groups.jsonl", [{"step": 0, "group": "x", "replies": ["a"]}])
    with pytest.raises(InputError, match=r"record 'x': is not in the data .* --run=DIR"):
        logged_batches(records, tmp_path)


def test_lengths_that_do_not_hold_the_data_are_refused(records):
    with pytest.raises(InputError, match="this dialogue needs") as error:
        _ = changed(records, shapes__rollout_lengths=(64,)).rollout_shapes
    assert error.value.field == "shapes.rollout_lengths"
    assert error.value.record in {dialogue.id for dialogue in records.dialogues}


def test_commands_of_the_doc_exist(monkeypatch):
    monkeypatch.chdir(ROOT)
    section = (ROOT / "docs" / "performance.md").read_text().split("## Shapes")[1]
    (block,) = re.findall(r"```bash\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:2] == ["turnwise", "shapes"]
    parse(words[2:], "", shapes_command.define)


@pytest.fixture
def file(config, tmp_path):
    """The config as a file that the command line takes."""
    path = tmp_path / "config.py"
    data = {name: config.data[name] for name in ("path", "root", "shuffle", "batch_size")}
    path.write_text(
        "from turnwise_jax.train.config import rl_config\n\n\n"
        "def get_config():\n"
        "    config = rl_config()\n"
        f"    config.policy.checkpoint = {config.policy.checkpoint!r}\n"
        f"    config.data.update(**{data})\n"
        f"    config.rollout.update(group_size={GROUP}, max_new_tokens={LIMIT})\n"
        "    return config\n"
    )
    return path


def test_the_command_says_which_flags_to_use(file, records, tmp_path, capsys):
    log(records, tmp_path / "run")
    command = ["shapes", f"--config={file}", f"--run={tmp_path / 'run'}"]
    assert main([*command, f"--output={tmp_path / 'out'}"]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "out" / "shapes.md").read_text() in out
    assert (tmp_path / "out" / "shapes.png").stat().st_size > 1000
    flags = shlex.split(out[out.index("use:") + 4 : out.index("wrote")])
    found = json.loads((tmp_path / "out" / "shapes.json").read_text())
    values = parse([f"--config={file}", *flags], "", shapes_command.define)
    validate(values.config)
    for field in ("rollout_lengths", "row_lengths"):
        advised = found["buckets"][f"shapes.{field}"]["advised"]
        assert list(values.config.shapes[field]) == advised
        assert advised
    assert sum(count for _, count in found["lengths"]["contexts"]["counts"]) == COUNT


def test_without_logs_the_command_says_how_to_get_rows(file, capsys):
    assert main(["shapes", f"--config={file}"]) == 0
    out = capsys.readouterr().out
    assert "run this again once it has been trained" in out
    assert "--config.shapes.row_lengths" not in out
    assert main(["shapes", f"--config={file}", "--run=nowhere"]) == 2
    assert main(["shapes", "--config=configs/avatar/curriculum.py"]) == 2
    assert "curriculum.py: describes a curriculum" in capsys.readouterr().err
