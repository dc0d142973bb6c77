"""When a prompt is shown with its hint.

AVATAR adds a hint where a prompt stays hard and the policy has stopped exploring it: low moving
average reward and low KL (section "Buffer Update and Hinting"). The paper's KL is that of the
target policy from the behaviour policy, ``D_KL(pi_theta || pi_beta)``. Here, as in its published
code, it is that of the sampling policy from the frozen reference, the mean over sampled tokens of
``logp - ref_logp``: of fresh answers, which the target policy itself has sampled, the paper's would
be 0 always and low for every prompt. The code has a second trigger, a streak of rollouts that
earned nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwise_jax.rollout.prompt_stats import PromptStats


class HintRule(NamedTuple):
    """Thresholds of the two triggers; either is enough.

    ``reward_at_most``, ``kl_at_most``: moving average of the total reward and newest KL (nats per
    token), both bounds included; -inf turns this trigger off. ``min_history``: rollouts that the
    average must stand on. ``zero_streak``: newest rollouts in a row whose accuracy term earned
    nothing, 0 turns it off. The streak counts accuracy and not the total reward, in which a format
    term can be worth less or more than a wrong answer.
    """

    reward_at_most: float = float("-inf")
    kl_at_most: float = float("inf")
    zero_streak: int = 3
    min_history: int = 1


def wants_hint(prompt: str, stats: PromptStats, rule: HintRule) -> bool:
    """Whether the next visit of a prompt, given by its plain id, shows the hint.

    Only the plain prompt's statistics count, so a solved hinted visit does not hide that the plain
    prompt is still unsolved. After such a visit the plain prompt has the next one: either it is
    solved by now, or the triggers hold on. A prompt never seen gets no hint.
    """
    if stats.plain_next(prompt):
        return False
    stuck = (
        stats.average(prompt) <= rule.reward_at_most
        and stats.kl(prompt) <= rule.kl_at_most
        and stats.seen(prompt) >= max(rule.min_history, 1)
    )
    return stuck or 0 < rule.zero_streak <= stats.streak(prompt)
