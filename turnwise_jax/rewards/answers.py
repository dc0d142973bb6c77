"""The parts of a reply in the form ``<think>...</think><answer>...</answer>`` (paper, eq. 7).

Tags are taken as written: lower case, without attributes. A *block* is an opening tag, a text that
holds none of the four tags, and the closing tag.
"""

from __future__ import annotations

import re

_TEXT = r"((?:(?!</?(?:think|answer)>).)*+)"
_THINK = re.compile(rf"<think>{_TEXT}</think>", re.DOTALL)
_ANSWER = re.compile(rf"<answer>{_TEXT}</answer>", re.DOTALL)
_REPLY = re.compile(rf"\s*{_THINK.pattern}\s*{_ANSWER.pattern}\s*", re.DOTALL)


def final_answer(text: str) -> str:
    """The text of the last answer block, stripped; without one the whole of `text`, stripped."""
    found = _ANSWER.findall(text)
    return (found[-1] if found else text).strip()


def reasoning(text: str) -> str:
    """The text of the first think block, stripped; "" without one."""
    found = _THINK.search(text)
    return found[1].strip() if found else ""


def well_formed(text: str) -> bool:
    """Whether `text` is one think block, then one answer block, and nothing else but blanks.

    Blocks may be empty: what an answer is worth is the business of its accuracy.
    """
    return _REPLY.fullmatch(text) is not None
