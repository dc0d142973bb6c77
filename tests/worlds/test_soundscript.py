"""Questions cannot be answered without what they ask about, and texts keep to what they may say."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from turnwise_jax.data.tokens import build_tokenizer
from turnwise_jax.errors import InputError
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.soundscript import (
    HINTS,
    STAGES,
    SYSTEM,
    Asked,
    Scene,
    corpus,
    order_by_ear,
    sample_scene,
)
from turnwise_jax.worlds.soundsettings import MODALITY, QUESTIONS, SOUNDWORLDS, SoundWorld
from turnwise_jax.worlds.soundworld import Clip, clips

DEMO = SoundWorld(per_clip=7)
COUNT = 6000
Feature = Callable[[Scene], object]

SEEN: dict[str, Feature] = {
    "shapes": lambda scene: frozenset(t.shape for t in scene.things),
    "spots": lambda scene: frozenset((t.shape, t.spot) for t in scene.things),
    "number": lambda scene: len(scene.things),
    "turn": lambda scene: scene.turn and scene.turn.slot,
    "turning": lambda scene: scene.turn and (scene.turn.colour, scene.things[scene.turn.thing]),
}
HEARD: dict[str, Feature] = {
    "voice": lambda scene: (scene.source.shape, scene.high),
    "beeps": lambda scene: scene.beeps,
    "slot": lambda scene: scene.slot,
}


@pytest.fixture(scope="module")
def made() -> list[Clip]:
    return list(clips(DEMO, "train", COUNT, 11))


def truth(asked: Asked) -> str:
    question = asked.question
    return question.options["ABCD".index(question.answer)] if question.options else question.answer


def chance(asked: list[Asked]) -> float:
    """Of questions of one family."""
    answers = {truth(a) for a in asked}
    return float(np.mean([1 / (len(a.question.options) or len(answers)) for a in asked]))


def family(made: list[Clip], name: str) -> list[tuple[Scene, Asked]]:
    return [(clip.scene, a) for clip in made for a in clip.asked if a.family == name]


def best_guess(pairs: list[tuple[Scene, Asked]], feature: Feature) -> float:
    """How often one is right on half of the questions by what was most often right, given the
    question, its options and ``feature``, on the other half."""
    said: dict[object, Counter] = defaultdict(Counter)
    half = len(pairs) // 2
    right = []
    for number, (scene, asked) in enumerate(pairs):
        question = asked.question
        key = (question.text, frozenset(question.options), feature(scene))
        if number < half:
            said[key][truth(asked)] += 1
        else:
            known = said[key].most_common(1)
            guess = known[0][0] if known else (question.options or ("2",))[0]
            right.append(guess == truth(asked))
    return float(np.mean(right))


def margin(pairs: list[tuple[Scene, Asked]]) -> float:
    """Three standard deviations of the share of right guesses, and the gain of picking the most
    frequent of a few."""
    return 3 * 0.5 / np.sqrt(len(pairs) / 2) + 0.01


@pytest.mark.parametrize("name", MODALITY)
def test_answers_are_balanced(made, name):
    pairs = family(made, name)
    asked = [a for _, a in pairs]
    assert len(pairs) > 1000
    assert best_guess(pairs, lambda scene: None) < chance(asked) + margin(pairs)
    letters = Counter(a.question.answer for a in asked)
    for count in {len(a.question.options) for a in asked} - {0}:
        letters = Counter(a.question.answer for a in asked if len(a.question.options) == count)
        assert max(letters.values()) / sum(letters.values()) < 1 / count + margin(pairs)


def cut_off() -> list[tuple[str, str]]:
    """(family, what a policy that lacks a modality still perceives)."""
    out = []
    for name, modality in MODALITY.items():
        if modality != "visual":
            out += [(name, feature) for feature in SEEN]
        if modality != "sound":
            out += [(name, feature) for feature in HEARD]
    return out


@pytest.mark.parametrize(("name", "feature"), cut_off())
def test_one_modality_alone_leaves_the_other_ones_questions_at_chance(made, name, feature):
    pairs = family(made, name)
    bound = chance([a for _, a in pairs])
    if (name, feature) == ("order", "slot"):
        bound = order_by_ear(DEMO)
    assert best_guess(pairs, (SEEN | HEARD)[feature]) < bound + margin(pairs)


def test_the_sounds_time_alone_says_as_much_about_the_order_as_was_promised(made):
    pairs = family(made, "order")
    assert order_by_ear(DEMO) == pytest.approx(0.6)
    assert best_guess(pairs, HEARD["slot"]) == pytest.approx(0.6, abs=margin(pairs))


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("count", SEEN["number"]),
        ("beeps", HEARD["beeps"]),
        ("pitch", HEARD["voice"]),
        ("where", lambda scene: (scene.source.shape, SEEN["spots"](scene))),
        ("order", lambda scene: (scene.slot, scene.turn.slot)),
    ],
)
def test_both_modalities_together_give_the_answer(made, name, feature):
    assert best_guess(family(made, name), feature) > 0.95


def test_a_lone_shape_is_not_asked_for_among_others(made):
    for clip in made[:1000]:
        options = [
            a.question.options for a in clip.asked if a.family in ("place", "source", "where")
        ]
        assert all(2 <= len(names) <= 4 for names in options)
        assert bool(options) == (len(clip.scene.things) > 1)


@pytest.mark.parametrize("name", MODALITY)
def test_every_clip_of_a_world_with_one_family_asks_its_question(name):
    world = replace(DEMO, families=(name,), turns=0.5)
    assert [[a.family for a in clip.asked] for clip in clips(world, "test", 50, 3)] == [[name]] * 50


def test_scenes_show_each_shape_colour_and_spot_once():
    rng = np.random.default_rng(0)
    for _ in range(300):
        scene = sample_scene(SOUNDWORLDS["hard"], rng)
        for part in ("shape", "colour", "spot"):
            assert len({getattr(t, part) for t in scene.things}) == len(scene.things)
        if scene.turn is not None:
            assert scene.turn.colour not in {t.colour for t in scene.things}
            assert scene.slot in (scene.turn.slot - 1, scene.turn.slot)
            assert scene.sound_first == (scene.slot < scene.turn.slot)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d", text.lower())


def test_hints_are_strategies_that_give_nothing_away(made):
    for clip in made[:500]:
        for asked in clip.asked:
            assert asked.question.hint == HINTS[asked.family]
            given = {truth(asked), *asked.question.options}
            assert not given & set(words(asked.question.hint))
    telling = {"one", "two", "three", "four", "red", "square", "left", "yes", "no"}
    assert not telling & {word for hint in HINTS.values() for word in words(hint)}


def test_the_teacher_reasons_in_a_few_words_and_gives_the_answer(made):
    for clip in made[:500]:
        for asked in clip.asked:
            think, said = re.fullmatch(
                r"<think>([^<]+)</think><answer>([^<]+)</answer>", asked.reply
            ).groups()
            assert said == truth(asked)
            assert 4 <= len(words(think)) <= 20
            if MODALITY[asked.family] != "sound":
                assert any(t.shape in words(think) for t in clip.scene.things)
            if MODALITY[asked.family] != "visual":
                assert clip.scene.source.shape in words(think)
                assert "beep" in think
    lettered = next(clips(replace(DEMO, letters=True), "train", 1, 0)).asked
    for asked in lettered:
        assert f"<answer>{asked.question.answer}</answer>" in asked.reply


def test_the_vocabulary_is_closed_and_small(made):
    known = {word for sentence in corpus(DEMO) for word in words(sentence)}
    used = set(words(SYSTEM))
    for clip in made[:2000]:
        for asked in clip.asked:
            used |= set(words(f"{asked.question.text} {asked.question.hint} {asked.reply}"))
            used |= {word for option in asked.question.options for word in words(option)}
    assert used <= known
    spoken = {w for clip in made[:2000] for a in clip.asked for w in words(a.reply)}
    assert len(spoken) < 50
    assert len(used - {w for hint in HINTS.values() for w in words(hint)}) < 80


def test_the_tokenizer_of_the_corpus_has_a_token_for_most_words(tmp_path):
    vocab = build_tokenizer(corpus(DEMO), 700, tmp_path)
    reply = "<think>I hear: square, two low beeps.</think><answer>2</answer>"
    assert len(vocab.encode(reply)) <= 22
    assert vocab.decode(vocab.encode(reply)) == reply


def test_a_tiny_policy_belongs_to_one_of_either_world(tmp_path):
    options = {"family": "qwen2_5_omni", "vocab_size": 400}
    make_tiny_policy(tmp_path / "heard", DEMO, **options)
    make_tiny_policy(tmp_path / "heard", DEMO, **options)
    make_tiny_policy(tmp_path / "seen", World(), **options)
    for world in (World(), replace(DEMO, beeps=3)):
        with pytest.raises(InputError, match="no untrained policy"):
            make_tiny_policy(tmp_path / "heard", world, **options)


def test_stages_go_from_seeing_to_hearing_to_finding():
    assert {MODALITY[f] for f in STAGES["stage1"]} == {"visual"}
    assert set(STAGES["stage1"]) < set(STAGES["stage2"])
    assert {MODALITY[f] for f in STAGES["stage3"]} == {"audio-visual"}
    assert set(QUESTIONS) == set(MODALITY) == set(HINTS) == set().union(*STAGES.values())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"things": (2, 4)}, "things"),
        ({"things": (2, 2)}, "things"),
        ({"things": (1, 1)}, "things"),
        ({"things": (0, 2)}, "things"),
        ({"colours": 3}, "colours"),
        ({"shapes": 6}, "shapes"),
        ({"families": ("smell",)}, "families"),
        ({"families": ()}, "families"),
        ({"beeps": 5}, "beeps"),
        ({"turns": 0.0}, "turns"),
        ({"turns": 1.0}, "turns"),
        ({"turns": 2.0}, "turns"),
        ({"seconds": 2.7}, "seconds"),
        ({"size": 50}, "size"),
        ({"fps": 5}, "fps"),
        ({"rate": 8000}, "rate"),
        ({"level": (0.5, 1.2)}, "level"),
        ({"object_size": (0.2, 0.5)}, "object_size"),
        ({"hiss": -0.1}, "hiss"),
        ({"letters": 1}, "letters"),
        ({"wordings": 3}, "wordings"),
        ({"per_clip": 0}, "per_clip"),
        ({"spots": 4}, "spots"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(values, field):
    with pytest.raises(InputError) as caught:
        SoundWorld.from_dict(values)
    assert caught.value.field == field


def test_settings_come_from_plain_mappings():
    assert SoundWorld.from_dict({"things": [1, 3], "seconds": 4}) == SoundWorld(seconds=4)
    assert SoundWorld.from_dict({"families": ["pitch"], "turns": 0}).families == ("pitch",)
