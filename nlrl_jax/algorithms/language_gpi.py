"""Algorithm 1 of the NLRL paper, language generalized policy iteration by prompting, and the two baselines of Table 1.

Departures from the listing, all as in the paper's maze experiment (section 5.1, appendix B.1):
- every candidate action gets K variations, where the listing samples one action a variation;
- one call per action does the work of G2 and of G1: it reads all K variations with their evaluations;
- a variation is the action and N steps behind it; the policy pi of those steps is the game's `look_ahead` (fully random
  in the maze).

The paper does not say what happens to an answer that cannot be read. Here an unreadable or illegal action becomes a
random candidate, and an evaluation that is no JSON goes on as the text it is; both are counted. Nothing is asked again.

Calls are batched by phase: all variations of all actions of all states go to V together, then all aggregations, then
all improvements.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nlrl_jax.types import Chat, LanguageModel, Sampling

State, Variation = Any, Any
POLICY, VALUE, Q, AGGREGATOR, IMPROVER = "policy", "value", "q", "aggregator", "improver"
RANDOM = "random"  # counted where an action was drawn because none could be read
NEVER_ENDED = "never ended"  # counted where a reply was cut, readable or not


class Roles(Protocol):
    """What the algorithm asks of a game. States and variations are the game's own; actions are ids.

    Attributes:
      actions: the words of the actions.
    """

    actions: tuple[str, ...]

    def candidates(self, state: State) -> Sequence[int]:
        """The actions to choose from, at least one."""

    def look_ahead(
        self, states: Sequence[State], actions: Sequence[int], steps: int, rng: np.random.Generator
    ) -> list[Variation]:
        """A variation each: the action, then `steps` steps of the policy that is evaluated."""

    def policy(self, state: State) -> Chat:
        """pi_L."""

    def q(self, state: State, action: int) -> Chat:
        """Q^L(s, a) with no look-ahead."""

    def value(self, state: State, variation: Variation) -> Chat:
        """V^L of the state in which the variation ends."""

    def describe(self, state: State, variation: Variation) -> str:
        """d, the variation in words."""

    def aggregate(self, state: State, action: int, descriptions: Sequence[str], evaluations: Sequence[str]) -> Chat:
        """G2 and G1: the evaluation of an action out of its variations."""

    def improve(self, state: State, values: Mapping[int, str]) -> Chat:
        """I: the best action by the evaluations, {action: text}."""

    def read_action(self, text: str) -> tuple[int, str]:
        """(action or -1, problem or "")."""

    def read_evaluation(self, text: str) -> tuple[str, str]:
        """(evaluation as text, problem or "")."""


@dataclasses.dataclass(frozen=True)
class GPIConfig:
    """Attributes:
    look_ahead: steps behind the action in a variation [N]; at least 0.
    variations: of each action [K]; at least 1.
    sampling: of every role; the paper's temperature is 0.7.
    """

    look_ahead: int = 3
    variations: int = 4
    sampling: Sampling = Sampling(max_tokens=512, temperature=0.7)

    def __post_init__(self):
        if self.look_ahead < 0:
            raise ValueError(f"look_ahead is {self.look_ahead}; it must be 0 or above")
        if self.variations < 1:
            raise ValueError(f"variations is {self.variations}; it must be at least 1")


@dataclasses.dataclass(frozen=True, eq=False)
class Thinking:
    """Everything that was written about one state.

    Attributes:
      chat, reply: the last call (I, or the policy alone) and its answer.
      variations: {action: [(description, evaluation of its end), ...]}; empty without look-ahead.
      values: {action: evaluation}, what I read; empty for the policy alone.
    """

    chat: Chat
    reply: str
    variations: Mapping[int, list[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    values: Mapping[int, str] = dataclasses.field(default_factory=dict)


class Decisions(NamedTuple):
    """One action for each of B states.

    actions: int64 [B].
    drawn: bool [B], the action was drawn because none could be read.
    thinking: B records.
    problems: how often which role's answer had which problem, {"improver/illegal": 2, ...}; "improver/random" counts
      the actions that were drawn instead, and "improver/never ended" the replies that were cut, readable or not.
    calls: {role: calls}.
    """

    actions: np.ndarray
    drawn: np.ndarray
    thinking: list[Thinking]
    problems: Counter
    calls: Counter


def language_gpi(
    models: LanguageModel | Mapping[str, LanguageModel],
    roles: Roles,
    states: Sequence[State],
    config: GPIConfig,
    seed: int,
) -> Decisions:
    """Algorithm 1: 4K + 4 + 1 calls a state where there are four actions, in three batches.

    Args:
      models: one model for all roles, or {"value", "aggregator", "improver": model}.
      states: s_t of each of B games.
      seed: of the look-ahead, of the models' sampling and of what replaces unreadable actions.
    """
    desk, rng = _Desk(models, config.sampling, seed), np.random.default_rng(seed)
    # 1: for each state s_t (and each action a of it)
    pairs = [(b, action) for b, state in enumerate(states) for action in roles.candidates(state)]
    # 3: for i = 1 to K
    tried = [pair for pair in pairs for _ in range(config.variations)]
    # 4, 5: a_t^(i) = a; simulate N steps ahead to get the trajectories tau^(i)
    tau = roles.look_ahead([states[b] for b, _ in tried], [a for _, a in tried], config.look_ahead, rng)
    # 6: V^L(s_{t+N}^(i))
    chats = [roles.value(states[b], variation) for (b, _), variation in zip(tried, tau, strict=True)]
    V = desk.evaluations(VALUE, chats, roles)
    # 7: d^(i) = d(a_t^(i), r_t^(i), s_{t+1}^(i))
    d = [roles.describe(states[b], variation) for (b, _), variation in zip(tried, tau, strict=True)]
    # 8, 10: V^(i) = G2(d^(i), V^L(s_{t+N}^(i))), and Q^L(s_t, a) = G1({V^(i)}) in the same call
    K = config.variations
    chats = [
        roles.aggregate(states[b], a, d[i * K : i * K + K], V[i * K : i * K + K]) for i, (b, a) in enumerate(pairs)
    ]
    values = desk.evaluations(AGGREGATOR, chats, roles)
    # 12: the improvement operator I chooses a_t
    variations = [list(zip(d[i * K : i * K + K], V[i * K : i * K + K], strict=True)) for i in range(len(pairs))]
    return _improve(desk, roles, states, _by_state(pairs, values), _by_state(pairs, variations), rng)


def value_and_improve(
    models: LanguageModel | Mapping[str, LanguageModel],
    roles: Roles,
    states: Sequence[State],
    sampling: Sampling,
    seed: int,
) -> Decisions:
    """Baseline of Table 1: Q^L(s, a) by prompting with no look-ahead, then I."""
    desk, rng = _Desk(models, sampling, seed), np.random.default_rng(seed)
    pairs = [(b, action) for b, state in enumerate(states) for action in roles.candidates(state)]
    values = desk.evaluations(Q, [roles.q(states[b], action) for b, action in pairs], roles)
    return _improve(desk, roles, states, _by_state(pairs, values), {}, rng)


def policy_alone(
    models: LanguageModel | Mapping[str, LanguageModel],
    roles: Roles,
    states: Sequence[State],
    sampling: Sampling,
    seed: int,
) -> Decisions:
    """Baseline of Table 1: the language policy pi_L by prompting."""
    desk, rng = _Desk(models, sampling, seed), np.random.default_rng(seed)
    chats = [roles.policy(state) for state in states]
    actions, drawn, replies = desk.actions(POLICY, chats, roles, states, rng)
    thinking = [Thinking(chat, reply) for chat, reply in zip(chats, replies, strict=True)]
    return Decisions(actions, drawn, thinking, desk.problems, desk.calls)


def _improve(desk, roles, states, values, variations, rng) -> Decisions:
    chats = [roles.improve(state, values[b]) for b, state in enumerate(states)]
    actions, drawn, replies = desk.actions(IMPROVER, chats, roles, states, rng)
    thinking = [
        Thinking(chat, reply, variations.get(b, {}), values[b])
        for b, (chat, reply) in enumerate(zip(chats, replies, strict=True))
    ]
    return Decisions(actions, drawn, thinking, desk.problems, desk.calls)


def _by_state(pairs, items) -> dict[int, dict[int, Any]]:
    """{state's position: {action: item}}."""
    found: dict[int, dict[int, Any]] = {}
    for (b, action), item in zip(pairs, items, strict=True):
        found.setdefault(b, {})[action] = item
    return found


class _Desk:
    """Asks the models, reads the answers and keeps the counts of one decision."""

    def __init__(self, models, sampling: Sampling, seed: int):
        self.models, self.sampling, self.seed = models, sampling, seed
        self.problems, self.calls = Counter(), Counter()

    def evaluations(self, role: str, chats: Sequence[Chat], roles: Roles) -> list[str]:
        texts = []
        for reply in self._ask(role, chats):
            text, problem = roles.read_evaluation(reply)
            texts.append(text)
            self._count(role, problem)
        return texts

    def actions(self, role: str, chats, roles: Roles, states, rng: np.random.Generator):
        """(actions int64 [B], which were drawn bool [B], replies)."""
        replies, actions = self._ask(role, chats), []
        drawn = np.zeros(len(chats), bool)
        for i, (state, reply) in enumerate(zip(states, replies, strict=True)):
            action, problem = roles.read_action(reply)
            candidates = roles.candidates(state)
            if action >= 0 and action not in candidates:
                action, problem = -1, "illegal"
            self._count(role, problem)
            if action < 0:
                self._count(role, RANDOM)
                action, drawn[i] = int(rng.choice(candidates)), True
            actions.append(action)
        return np.array(actions, np.int64), drawn, replies

    def _ask(self, role: str, chats: Sequence[Chat]) -> list[str]:
        model = self.models[role] if isinstance(self.models, Mapping) else self.models
        self.calls[role] += len(chats)
        replies = model.complete(chats, self.sampling, role, self.seed) if chats else []
        for reply in replies:
            self._count(role, "" if reply.ended else NEVER_ENDED)
        return [reply.text for reply in replies]

    def _count(self, role: str, problem: str) -> None:
        if problem:
            self.problems[f"{role}/{problem}"] += 1
