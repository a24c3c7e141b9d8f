"""Algorithm 1 of the NLRL paper, language generalized policy iteration by prompting, and the two baselines of Table 1.

Departures from the listing, all as in the paper's maze experiment (section 5.1, appendix B.1):
- every candidate action gets K variations, where the listing samples one action per variation;
- one call per action does the work of G2 and of G1: it reads all K variations with their evaluations;
- a variation is the action and the N steps after it; the policy pi of those steps is the game's `look_ahead` (fully
  random in the maze).

The paper does not say what happens to a reply that cannot be read. Here an unreadable or illegal action becomes a
random candidate, and an evaluation that is not JSON is passed on as plain text; both are counted, without a retry.

Calls are batched by phase: all variations of all actions of all states go to V together, then all aggregations, then
all improvements.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.config import check, option
from nlrl_jax.roles.gpi import GPIRoles, State
from nlrl_jax.types import Chat, LanguageModel, Sampling

POLICY, VALUE, Q, AGGREGATOR, IMPROVER = "policy", "value", "q", "aggregator", "improver"
RANDOM = "random"  # the problem of a reply without a readable action, where a random one is taken
NEVER_ENDED = "never ended"  # the problem of a reply that was cut, readable or not


@dataclasses.dataclass(frozen=True)
class GPIConfig:
    """Language GPI by prompting. One sampling for all roles; the paper's temperature is 0.7."""

    look_ahead: int = option(3, "steps after the action in a variation [N]", least=0)
    variations: int = option(4, "variations of each action [K]", least=1)
    sampling: Sampling = Sampling(max_tokens=512, temperature=0.7)

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Thinking:
    """All replies about one state.

    Attributes:
      chat, reply: the last call (I, or the policy alone) and its reply.
      variations: {action: [(description, evaluation of its end), ...]}; empty without look-ahead.
      values: {action: evaluation}, what I read; empty for the policy alone.
    """

    chat: Chat
    reply: str
    variations: Mapping[int, list[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    values: Mapping[int, str] = dataclasses.field(default_factory=dict)


class GPIDecisions(NamedTuple):
    """An action for each of B states.

    actions: int64 [B].
    is_random: bool [B], no action could be read, so a random candidate was taken.
    thinking: B records.
    problems: counts by role and problem, {"improver/illegal": 2, ...}; "improver/random" counts random actions, and
      "improver/never ended" the replies that were cut, readable or not.
    calls: {role: calls}.
    """

    actions: np.ndarray
    is_random: np.ndarray
    thinking: list[Thinking]
    problems: Counter
    calls: Counter


def language_gpi(
    model: LanguageModel, roles: GPIRoles, states: Sequence[State], config: GPIConfig, seed: int
) -> GPIDecisions:
    """Algorithm 1: 4K + 4 + 1 calls per state with four actions, in three batches.

    Args:
      states: s_t of each of B games.
      seed: of the look-ahead, the model's sampling and the random actions.
    """
    caller, rng = _Caller(model, config.sampling, seed), np.random.default_rng(seed)
    # 1: for each state s_t (and each action a of it)
    pairs = [(b, action) for b, state in enumerate(states) for action in roles.candidates(state)]
    # 3: for i = 1 to K
    tried = [pair for pair in pairs for _ in range(config.variations)]
    # 4, 5: a_t^(i) = a; simulate N steps ahead to get the trajectories tau^(i)
    tau = roles.look_ahead([states[b] for b, _ in tried], [a for _, a in tried], config.look_ahead, rng)
    # 6: V^L(s_{t+N}^(i))
    chats = [roles.value(states[b], variation) for (b, _), variation in zip(tried, tau, strict=True)]
    V = caller.evaluations(VALUE, chats, roles)
    # 7: d^(i) = d(a_t^(i), r_t^(i), s_{t+1}^(i))
    d = [roles.describe(states[b], variation) for (b, _), variation in zip(tried, tau, strict=True)]
    # 8, 10: V^(i) = G2(d^(i), V^L(s_{t+N}^(i))), and Q^L(s_t, a) = G1({V^(i)}) in the same call
    K = config.variations
    chats = [
        roles.aggregate(states[b], a, d[i * K : i * K + K], V[i * K : i * K + K]) for i, (b, a) in enumerate(pairs)
    ]
    values = caller.evaluations(AGGREGATOR, chats, roles)
    # 12: the improvement operator I chooses a_t
    variations = [list(zip(d[i * K : i * K + K], V[i * K : i * K + K], strict=True)) for i in range(len(pairs))]
    return _improve(caller, roles, states, _by_state(pairs, values), _by_state(pairs, variations), rng)


def value_and_improve(
    model: LanguageModel, roles: GPIRoles, states: Sequence[State], sampling: Sampling, seed: int
) -> GPIDecisions:
    """Baseline of Table 1: Q^L(s, a) by prompting with no look-ahead, then I."""
    caller, rng = _Caller(model, sampling, seed), np.random.default_rng(seed)
    pairs = [(b, action) for b, state in enumerate(states) for action in roles.candidates(state)]
    values = caller.evaluations(Q, [roles.q(states[b], action) for b, action in pairs], roles)
    return _improve(caller, roles, states, _by_state(pairs, values), {}, rng)


def policy_alone(
    model: LanguageModel, roles: GPIRoles, states: Sequence[State], sampling: Sampling, seed: int
) -> GPIDecisions:
    """Baseline of Table 1: the language policy pi_L by prompting."""
    caller, rng = _Caller(model, sampling, seed), np.random.default_rng(seed)
    chats = [roles.policy(state) for state in states]
    actions, is_random, replies = caller.actions(POLICY, chats, roles, states, rng)
    thinking = [Thinking(chat, reply) for chat, reply in zip(chats, replies, strict=True)]
    return GPIDecisions(actions, is_random, thinking, caller.problems, caller.calls)


def _improve(caller, roles, states, values, variations, rng) -> GPIDecisions:
    chats = [roles.improve(state, values[b]) for b, state in enumerate(states)]
    actions, is_random, replies = caller.actions(IMPROVER, chats, roles, states, rng)
    thinking = [
        Thinking(chat, reply, variations.get(b, {}), values[b])
        for b, (chat, reply) in enumerate(zip(chats, replies, strict=True))
    ]
    return GPIDecisions(actions, is_random, thinking, caller.problems, caller.calls)


def _by_state(pairs, items) -> dict[int, dict[int, Any]]:
    """{state's position: {action: item}}."""
    nested: dict[int, dict[int, Any]] = {}
    for (b, action), item in zip(pairs, items, strict=True):
        nested.setdefault(b, {})[action] = item
    return nested


class _Caller:
    """Calls the model, reads its replies and counts both, for one decision."""

    def __init__(self, model: LanguageModel, sampling: Sampling, seed: int):
        self.model, self.sampling, self.seed = model, sampling, seed
        self.problems, self.calls = Counter(), Counter()

    def evaluations(self, role: str, chats: Sequence[Chat], roles: GPIRoles) -> list[str]:
        texts = []
        for reply in self._call(role, chats):
            text, problem = roles.read_evaluation(reply)
            texts.append(text)
            self._count(role, problem)
        return texts

    def actions(self, role: str, chats, roles: GPIRoles, states, rng: np.random.Generator):
        """(actions int64 [B], which are random bool [B], replies)."""
        replies, actions = self._call(role, chats), []
        is_random = np.zeros(len(chats), bool)
        for i, (state, reply) in enumerate(zip(states, replies, strict=True)):
            action, problem = roles.read_action(reply)
            candidates = roles.candidates(state)
            # A word of the game that is not allowed in this state.
            if action >= 0 and action not in candidates:
                action, problem = -1, "illegal"
            self._count(role, problem)
            if action < 0:
                self._count(role, RANDOM)
                action, is_random[i] = int(rng.choice(candidates)), True
            actions.append(action)
        return np.array(actions, np.int64), is_random, replies

    def _call(self, role: str, chats: Sequence[Chat]) -> list[str]:
        self.calls[role] += len(chats)
        replies = self.model.complete(chats, self.sampling, role, self.seed) if chats else []
        for reply in replies:
            self._count(role, "" if reply.ended else NEVER_ENDED)
        return [reply.text for reply in replies]

    def _count(self, role: str, problem: str) -> None:
        if problem:
            self.problems[f"{role}/{problem}"] += 1
