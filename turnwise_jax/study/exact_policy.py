"""A tabular softmax policy over the tokens of the exact problem, and its gradient in float64.

In every state (decision, what has been told) the policy has a table for the first token (silence or
a fact) and, for each fact, one for the second (brief or long). Every other token follows from
those and has probability 1: like most tokens of a fluent reply it is trained on and teaches
nothing, but it is counted wherever tokens are counted. A table's entries are its softmax's logits;
all entries of all tables in a row are the S parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.study.exact_problem import FORCED, Trajectories, slots_per_state


class Tables:
    """Where the tables of a problem's policy lie among its S parameters.

    Attributes:
      size: S.
      table_S: i64, the table of each entry.
      names_S: what each entry chooses: "silence", "fact 1" .., "brief", "long".
      state_S: i64, the state of each entry.
    """

    def __init__(self, trajectories: Trajectories):
        self.trajectories = trajectories
        num_facts = len(trajectories.setting.windows)
        per_state = slots_per_state(num_facts)
        num_states = len(trajectories.states)
        self.size = num_states * per_state
        within = [0] * (1 + num_facts) + [1 + f for f in range(num_facts) for _ in range(2)]
        names = ["silence", *(f"fact {f + 1}" for f in range(num_facts))]
        names += ["brief", "long"] * num_facts
        self.table_S = np.concatenate(
            [np.array(within) + s * (1 + num_facts) for s in range(num_states)]
        )
        self.names_S = np.array(names * num_states)
        self.state_S = np.repeat(np.arange(num_states), per_state)

    def logits(
        self, biases: Mapping[str, float], *, noise: float = 0.0, seed: int = 0
    ) -> np.ndarray:
        """f64[S]: the same bias for every entry of a name, and seeded normal noise.

        Raises:
          InputError: a name that no entry has.
        """
        for name in biases:
            if name not in set(self.names_S):
                known = ", ".join(dict.fromkeys(self.names_S))
                raise InputError(f"unknown; known are {known}", field=name)
        bias_S = np.array([float(biases.get(name, 0.0)) for name in self.names_S])
        return bias_S + noise * np.random.default_rng(seed).normal(size=self.size)

    def log_probs(self, logits_S: np.ndarray) -> np.ndarray:
        """f64[S]: log-softmax within each table."""
        highest = np.full(self.table_S.max() + 1, -np.inf)
        np.maximum.at(highest, self.table_S, logits_S)
        shifted = logits_S - highest[self.table_S]
        total = np.bincount(self.table_S, np.exp(shifted))
        return shifted - np.log(total)[self.table_S]

    def probabilities(self, logits_S: np.ndarray) -> np.ndarray:
        """f64[N]: the probability of every trajectory; they add up to 1."""
        slots = self.trajectories.slot_NA
        logp_S = self.log_probs(logits_S)
        return np.exp(np.where(slots == FORCED, 0.0, logp_S[slots]).sum(axis=1))

    def gradient(self, weight_NA: np.ndarray, logits_S: np.ndarray) -> np.ndarray:
        """f64[S]: the sum over all tokens of weight times the gradient of the log-probability."""
        slots = self.trajectories.slot_NA
        free = slots != FORCED
        taken_S = np.bincount(slots[free], weight_NA[free], minlength=self.size)
        among = np.bincount(self.table_S, taken_S)[self.table_S]
        return taken_S - np.exp(self.log_probs(logits_S)) * among

    def scores(self, weight_NA: np.ndarray, logits_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same by decision, for single trajectories, without the zeros.

        Returns:
          (i64[N, K, Q] entries, f64[N, K, Q] weighted gradients of the decision's log-probability
          there); unused places hold entry 0 and value 0.
        """
        data = self.trajectories
        prob_S = np.exp(self.log_probs(logits_S))
        num_facts = len(data.setting.windows)
        num_trajectories, num_turns = data.reply_NK.shape
        entry = np.zeros((num_trajectories, num_turns, 3 + num_facts), np.int64)
        value = np.zeros(entry.shape)
        rows, places = np.nonzero(data.slot_NA != FORCED)
        slots, turns = data.slot_NA[rows, places], data.turn_NA[rows, places]
        first = slots % slots_per_state(num_facts) <= num_facts  # a topic, else a detail
        for chosen, begin, width in ((first, 0, 1 + num_facts), (~first, 1 + num_facts, 2)):
            n, k, slot, place = rows[chosen], turns[chosen], slots[chosen], places[chosen]
            start = np.searchsorted(self.table_S, self.table_S[slot])
            for q in range(width):
                entry[n, k, begin + q] = start + q
                value[n, k, begin + q] = weight_NA[n, place] * (
                    (start + q == slot) - prob_S[start + q]
                )
        return entry, value


def true_gradient(tables: Tables, logits_S: np.ndarray) -> np.ndarray:
    """f64[S]: the gradient of the expected reward, ``sum_n p_n R_n grad log p_n``."""
    data = tables.trajectories
    weight_N = tables.probabilities(logits_S) * data.reward_N
    return tables.gradient(np.broadcast_to(weight_N[:, None], data.slot_NA.shape), logits_S)


def expected_reward(tables: Tables, logits_S: np.ndarray) -> float:
    """The mean of eq. 1 over all trajectories of the policy."""
    return float(tables.probabilities(logits_S) @ tables.trajectories.reward_N)
