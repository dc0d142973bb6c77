"""Agreement with the majority of a prompt's own answers (paper, eq. 9 and 10).

Answers are compared after the normalisation of the question's kind (`accuracy.answer_key`), so that
"B", "(b)" and the text of option B are one answer. Of equally frequent answers the one given first
is the majority's, as in the public code. An answer that cannot be read, or is empty, has no vote
and earns 0: a group that agrees on saying nothing is not to be paid for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def self_consistency(prompts: Sequence[str], keys: Sequence[str | None]) -> npt.NDArray[np.float32]:
    """1 for answers that are the majority's among those of the same prompt, else 0.

    Args:
      prompts: N names; rollouts of one prompt share theirs, in any order.
      keys: what each rollout answered; None has no vote.

    Returns:
      float32 [N].
    """
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for prompt, key in zip(prompts, keys, strict=True):
        if key is not None:
            votes[prompt][key] += 1
    majority = {prompt: counts.most_common(1)[0][0] for prompt, counts in votes.items()}
    agrees = [
        key is not None and key == majority[prompt]
        for prompt, key in zip(prompts, keys, strict=True)
    ]
    return np.array(agrees, dtype=np.float32)
