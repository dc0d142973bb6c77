"""How a policy writes silence and replies: reading what it said, writing what it is to learn.

``plain`` (MMDuet2, TurnWise): ``NO REPLY`` is silence, anything else is the reply; only an empty
one is not well formed.

``thinkstream`` (johncaged/ThinkStream: thinkstream/trainer/grpo.py and
data/stream_data_processor.py): a think block, then ``<response>text`` or ``<silent>``. The reply is
what follows the first ``<response>`` outside the think block; without one the turn is silent,
whatever else it says. Well formed is a text that is one such turn from its first character to its
last. There a ``<response>`` inside the block would count as one; here it does not.

``streampro`` (arXiv 2605.16381, section 4.1): ``</Silence>`` alone, or ``</Response>`` and a text
that is not empty. A turn without ``</Response>`` is silent.

Everything behind this module sees normalised replies: the visible text, or ``NO REPLY``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from turnwise_jax.data.records import SILENCE, Dialogue, is_silent
from turnwise_jax.errors import InputError


class Utterance(NamedTuple):
    """One turn as its style reads it. ``visible``: the reply without blanks around it, None for
    silence. ``thought``: the think block with its tags, None without one."""

    visible: str | None
    thought: str | None = None
    well_formed: bool = True


class ReplyStyle(NamedTuple):
    """``read``: a sampled text. ``write``: a plain reply, or ``NO REPLY``, in this style.

    ``marks``: a text with any of these is written in it. ``system``: what tells a policy so; None:
    the template's own text. ``openings``: how a silent turn and a reply begin.
    """

    read: Callable[[str], Utterance]
    write: Callable[[str], str]
    marks: tuple[str, ...] = ()
    system: str | None = None
    openings: tuple[str, str] = (SILENCE, "")


_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_THINKSTREAM = re.compile(r"<think>.*?</think>(?:<response>.*|<silent>)", re.DOTALL)


def _read_plain(text: str) -> Utterance:
    text = text.strip()
    return Utterance(None if is_silent(text) else text, well_formed=bool(text))


def _read_thinkstream(text: str) -> Utterance:
    block = _THOUGHT.search(text)
    spoken = _THOUGHT.sub("", text, count=1)
    _, mark, reply = spoken.partition("<response>")
    return Utterance(
        visible=reply.strip() if mark else None,
        thought=block[0] if block else None,
        well_formed=_THINKSTREAM.fullmatch(text.strip()) is not None,
    )


def _read_streampro(text: str) -> Utterance:
    before, mark, reply = text.strip().partition("</Response>")
    if not mark:
        return Utterance(None, well_formed=before == "</Silence>")
    return Utterance(reply.strip(), well_formed=not before and bool(reply.strip()))


STYLES: dict[str, ReplyStyle] = {
    "plain": ReplyStyle(_read_plain, lambda reply: reply),
    "thinkstream": ReplyStyle(
        _read_thinkstream,
        lambda reply: (
            "<think></think>" + ("<silent>" if is_silent(reply) else f"<response>{reply.strip()}")
        ),
        marks=("<think>", "<response>", "<silent>"),
        system=(
            "You are a helpful assistant watching a video as it plays. After each segment, think "
            "between <think> and </think>. Then, if the user should be told something now, write "
            "<response> and the reply; if not, write <silent>."
        ),
        openings=("<think>", "<think>"),
    ),
    "streampro": ReplyStyle(
        _read_streampro,
        lambda reply: "</Silence>" if is_silent(reply) else f"</Response>{reply.strip()}",
        marks=("</Silence>", "</Response>"),
        system=(
            "You are a helpful assistant watching a video as it plays. After each segment, write "
            "</Silence> if an event that matters is not over or the segment has nothing to do with "
            "the question; write </Response> and the complete answer once you can give it."
        ),
        openings=("</Silence>", "</Response>"),
    ),
}


def style_of(name: str, field: str = "policy.replies") -> ReplyStyle:
    """The style of that name; InputError naming ``field`` if there is none."""
    if name not in STYLES:
        raise InputError(f"is {name!r}; allowed: {', '.join(STYLES)}", field=field)
    return STYLES[name]


def normalised(text: str, style: str) -> str:
    """The reply that a text shows, or ``NO REPLY``; plain texts stay as they are."""
    if style == "plain":
        return text
    visible = style_of(style).read(text).visible
    return SILENCE if visible is None else visible


def restyled(dialogue: Dialogue, style: str) -> Dialogue:
    """A dialogue with its given replies and its instructions in a style.

    Texts that bear the style's marks stay; the instructions too if they name one of them. Replies
    of the history become plain, as rewards compare them with what is visible.
    """
    if style == "plain":
        return dialogue
    own = style_of(style)

    def marked(text: str | None) -> bool:
        return text is not None and any(mark in text for mark in own.marks)

    turns = tuple(
        turn
        if turn.reply is None or marked(turn.reply)
        else replace(turn, reply=own.write(turn.reply))
        for turn in dialogue.turns
    )
    history = [normalised(h, style) if marked(h) else h for h in dialogue.history]
    return replace(
        dialogue,
        turns=turns,
        history=tuple(text for text in history if not is_silent(text)),
        system=dialogue.system if marked(dialogue.system) else own.system,
    )
