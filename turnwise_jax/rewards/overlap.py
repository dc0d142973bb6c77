"""How alike two texts are, by words: word error rate and ROUGE.

Words of the error rate are what blanks separate, without regard to case. Words of ROUGE are runs of
letters and digits in lower case, unstemmed (C.-Y. Lin, *ROUGE*, 2004; F with beta 1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")


def word_error_rate(reference: str, text: str) -> float:
    """Fewest words to insert, delete or replace that turn one into the other, per word of
    `reference`; may exceed 1. Of an empty reference: the words that `text` has."""
    wanted, said = reference.casefold().split(), text.casefold().split()
    row = list(range(len(said) + 1))
    for i, word in enumerate(wanted, 1):
        above = row
        row = [i]
        for j, other in enumerate(said, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
    return row[-1] / max(len(wanted), 1)


def rouge_words(text: str) -> list[str]:
    """The words of `text` that ROUGE compares."""
    return _WORD.findall(text.lower())


def rouge_n(reference: Sequence[str], words: Sequence[str], n: int) -> float:
    """ROUGE-n F1 of two lists of words; 0 if either is shorter than `n`."""
    wanted, said = _grams(reference, n), _grams(words, n)
    return _f1(sum((wanted & said).values()), sum(wanted.values()), sum(said.values()))


def rouge_l(reference: Sequence[str], words: Sequence[str]) -> float:
    """ROUGE-L F1 of two lists of words: by their longest common subsequence."""
    row = [0] * (len(words) + 1)
    for word in reference:
        above = row
        row = [0]
        for j, other in enumerate(words, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[-1]))
    return _f1(row[-1], len(reference), len(words))


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _f1(common: int, wanted: int, said: int) -> float:
    return 2 * common / (wanted + said) if common else 0.0
