"""The natural-language actor-critic: algorithm 3 of "Natural Language Reinforcement Learning".

Departures from the paper:
- candidates, values and the improvement of a position are computed once however often it was visited (the paper asks
  again each time); every visit still counts as an example for the policy;
- by default the lines for a (state, action) pair are those that the iteration's own games contain, in chunks of K, the
  last one with what is left (so does the authors' code); `fresh_lines` plays K new ones, as the algorithm is written;
- the value model learns from all data of the last K_buffer iterations, of which one may have more than another (table
  10 merges them by "equal sampling" and does not say how);
- form of the TD estimate: see `language_estimates.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.algorithms import language_estimates as estimates
from nlrl_jax.algorithms.language_estimates import ValueTarget
from nlrl_jax.roles.board_games import ActorCriticRoles, View, Viewer
from nlrl_jax.rollouts.board_games import Act, Opponent, Played, language_act, play_games, random_act, rates
from nlrl_jax.types import BoardGame, LanguageModel, Learn, Pairs, Sampling

ESTIMATES = ("mc", "td")


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig:
    """Defaults: the paper's tables 8, 10 and 11; samplings as in the authors' code.

    Attributes:
      games: N, games an iteration.
      estimate: "mc" (equation 7) or "td" (equation 8).
      k: K_MC or K_TD, lines that one estimate aggregates.
      fresh_lines: play k new games from every pair for its estimate, and do not use those of the iteration.
      num_samples: N_sample, moves the policy proposes for a position.
      top_m: at most so many of the distinct ones, the most frequent first, are compared.
      num_values: evaluations drawn of each move that is compared; the improver gets them all (the paper: 1).
      mask: False compares all legal moves (the ablation "without action selection mask").
      max_visits: how often a position counts at most in an iteration's policy data; 0 is no limit (the paper). Without
        one, the openings, which all games share, are learned by heart before their values are known.
      buffer: K_buffer, iterations whose value targets the value model is trained on.
      random_first: the first iteration plays, and proposes, at random and not by the model.
      rollout, candidates, values, aggregation, improvement: samplings of the roles.
    """

    games: int = 512
    estimate: str = "mc"
    k: int = 5
    fresh_lines: bool = False
    num_samples: int = 10
    top_m: int = 10
    num_values: int = 1
    mask: bool = True
    max_visits: int = 0
    buffer: int = 3
    random_first: bool = True
    rollout: Sampling = Sampling(512, 1.0, 50, 0.95)
    candidates: Sampling = Sampling(1024, 0.7)
    values: Sampling = Sampling(512, 0.0)
    aggregation: Sampling = Sampling(1024, 0.1)
    improvement: Sampling = Sampling(1024, 0.1)

    def __post_init__(self):
        if self.estimate not in ESTIMATES:
            raise ValueError(f"estimate is {self.estimate!r}; choose one of {', '.join(ESTIMATES)}")
        for name in ("games", "k", "num_samples", "top_m", "num_values", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_values > 1 and self.values.temperature == 0:
            raise ValueError(
                f"num_values is {self.num_values}, but at temperature 0 all are the same; raise it or use 1"
            )


class Setting(NamedTuple):
    """What does not learn: the game, the other side, prompts, the large models, and how the small ones are trained."""

    game: BoardGame
    opponent: Opponent
    roles: ActorCriticRoles
    aggregator: LanguageModel
    improver: LanguageModel
    learn_policy: Learn
    learn_value: Learn
    config: ActorCriticConfig


class State(NamedTuple):
    """What learns: pi_L, V_pi^L, and the value data of the last iterations, oldest first."""

    policy: LanguageModel
    value: LanguageModel
    buffer: tuple[Pairs, ...] = ()
    iteration: int = 0


class PolicyTarget(NamedTuple):
    """A member of D_pi (line 31). evaluations: [(action, words of the value model)]. visits: how often it counts."""

    view: View
    action: str
    text: str
    evaluations: tuple[tuple[str, str], ...]
    visits: int


class Record(NamedTuple):
    """What an iteration leaves to be read."""

    games: list[Played]
    values: list[ValueTarget]
    improvements: list[PolicyTarget]
    metrics: dict[str, float]


def iterate(state: State, setting: Setting, viewer: Viewer, seed: int) -> tuple[State, Record]:
    """One iteration of algorithm 3. The same arguments give the same result where the models allow it."""
    config, roles = setting.config, setting.roles
    counts: Counter[str] = Counter()
    at_random = config.random_first and state.iteration == 0

    # Lines 3-8: collect trajectories with the language policy
    act = random_act if at_random else language_act(state.policy, roles, config.rollout, counts)
    tau = play_games(setting.game, viewer, act, setting.opponent, config.games, seed)

    # Lines 9-20: language value estimation
    if config.fresh_lines:
        chunks = estimates.fresh_lines(setting.game, viewer, act, setting.opponent, tau, config.k, seed + 1)
    else:
        chunks = estimates.chunks_of_lines(tau, config.k, seed)
    aggregate = (roles, setting.aggregator, config.aggregation, seed, counts)
    if config.estimate == "mc":
        targets = estimates.monte_carlo(chunks, *aggregate)
    else:
        aggregate = (roles, state.value, config.values, *aggregate[1:])
        targets = estimates.temporal_difference(chunks, *aggregate)
    D_V = [(roles.value(target.view, target.action), target.text) for target in targets]

    # Lines 21-23: update the value function on the last K_buffer buffers
    buffer = (*state.buffer, D_V)[-config.buffer :]
    value, value_metrics = setting.learn_value(state.value, [pair for data in buffer for pair in data])

    # Lines 24-32: language policy improvement
    proposals = None if at_random else state.policy
    improvements = improve(tau, setting, proposals, value, seed, counts)
    most = config.max_visits or config.games
    D_pi = [(roles.policy(t.view), t.text) for t in improvements for _ in range(min(t.visits, most))]

    # Lines 33-34: update the policy
    policy, policy_metrics = setting.learn_policy(state.policy, D_pi)

    metrics = {f"rollout/{name}": share for name, share in rates(tau).items()}
    metrics["games"] = len(tau) + config.fresh_lines * sum(len(lines) for _, lines in chunks)
    metrics["random_moves"] = 1.0 if at_random else random_share(counts)
    metrics |= {f"value_sft/{name}": number for name, number in value_metrics.items()}
    metrics |= {f"policy_sft/{name}": number for name, number in policy_metrics.items()}
    metrics |= {f"count/{name.replace(' ', '_')}": float(number) for name, number in sorted(counts.items())}
    return State(policy, value, buffer, state.iteration + 1), Record(tau, targets, improvements, metrics)


def improve(
    games: Sequence[Played],
    setting: Setting,
    policy: LanguageModel | None,
    value: LanguageModel,
    seed: int,
    counts: Counter[str],
) -> list[PolicyTarget]:
    """Lines 26-32 for every position the agent met. A reply without one of its moves is dropped and counted.

    Args:
      policy: proposes the moves that are compared; None proposes at random.
    """
    config, roles = setting.config, setting.roles
    visits = Counter(s.before for g in games for s in g.line.steps if s.before.player == g.agent)
    views = list(visits)
    moves = propose(views, roles, policy, config, seed, counts)  # A_k
    pairs = [(n, action) for n, words in enumerate(moves) for action in words for _ in range(config.num_values)]
    asked = [roles.value(views[n], action) for n, action in pairs]
    evaluations: list[list[tuple[str, str]]] = [[] for _ in views]  # Q^L
    for (n, action), reply in zip(pairs, value.complete(asked, config.values, "value", seed), strict=True):
        counts["value/calls"] += 1
        counts["value/no number"] += roles.read_value(reply.text) is None
        counts["value/never ended"] += not reply.ended
        evaluations[n].append((action, reply.text))
    chats = [roles.improve(view, known) for view, known in zip(views, evaluations, strict=True)]
    replies = setting.improver.complete(chats, config.improvement, "improver", seed)  # pi_new, c <- I(Q^L, T_L)
    targets = []
    for view, known, words, reply in zip(views, evaluations, moves, replies, strict=True):
        move = roles.read_move(reply.text, words)
        if move.problem:
            counts[f"improver/{move.problem}"] += 1
        if move.word is None:
            counts["improver/dropped"] += 1
            continue
        targets.append(PolicyTarget(view, move.word, roles.clean(reply.text), tuple(known), visits[view]))
    return targets


def propose(
    views: Sequence[View],
    roles: ActorCriticRoles,
    policy: LanguageModel | None,
    config: ActorCriticConfig,
    seed: int,
    counts: Counter[str],
) -> list[list[str]]:
    """Lines 27-28, the action selection mask: the most frequent legal moves among N_sample of the policy."""
    if not config.mask:
        return [list(view.legal) for view in views]
    repeated = [view for view in views for _ in range(config.num_samples)]
    if policy is None:
        words: list[str | None] = list(random_act(repeated, seed))
    else:
        replies = policy.complete([roles.policy(view) for view in repeated], config.candidates, "candidates", seed)
        words = [roles.read_move(r.text, v.legal).word for v, r in zip(repeated, replies, strict=True)]
    rng = np.random.default_rng(seed)
    chosen = []
    for n, view in enumerate(views):
        proposed = words[n * config.num_samples : (n + 1) * config.num_samples]
        counts["candidates/unusable"] += sum(word is None for word in proposed)
        ranked = [word for word, _ in Counter(word for word in proposed if word).most_common(config.top_m)]
        counts["candidates/none"] += not ranked
        chosen.append(ranked or [view.legal[rng.integers(len(view.legal))]])
    return chosen


def evaluate(
    state: State, setting: Setting, viewer: Viewer, num: int, sampling: Sampling, seed: int
) -> tuple[dict[str, float], list[Played]]:
    """Win, tie and loss of the policy as it is judged (the paper: temperature 0), "random_moves", and the games."""
    counts: Counter[str] = Counter()
    act: Act = language_act(state.policy, setting.roles, sampling, counts)
    games = play_games(setting.game, viewer, act, setting.opponent, num, seed)
    return {**rates(games), "random_moves": random_share(counts)}, games


def random_share(counts: Counter[str]) -> float:
    """The share of the policy's moves that were drawn by lot because its reply named no legal one."""
    return counts["policy/random move"] / max(counts["policy/moves"], 1)
