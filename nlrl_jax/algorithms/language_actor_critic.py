"""The natural-language actor-critic: algorithm 3 of "Natural Language Reinforcement Learning".

Departures from the paper:
- the first iteration plays and proposes at random, as in the authors' code, where Algorithm 3 uses the policy;
- candidates, values and the improvement of a position are computed once however often it was visited (the paper asks
  again each time); every visit still counts as an example for the policy;
- by default the lines for a (state, action) pair are those that the iteration's own games contain, in chunks of K, the
  last one with what is left (so does the authors' code); `fresh_lines` plays K new ones, as Algorithm 3 states;
- the value model learns from all data of the last K_buffer iterations, of which one may have more than another (table
  10 merges them by "equal sampling" and does not say how);
- evaluations of the value model that contradict themselves are counted, and `correct` teaches it how they should go on:
  its own words are read as far as they are right, and what they imply is learned;
- form of the TD estimate: see `language_estimates.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms import language_estimates as estimates
from nlrl_jax.algorithms.language_estimates import ValueTarget
from nlrl_jax.config import check, option, part
from nlrl_jax.roles.board_games import ActorCriticRoles, View, Viewer
from nlrl_jax.rollouts.board_games import Act, Opponent, PlayedGame, language_act, play_games, random_act, rates
from nlrl_jax.types import BoardGame, LanguageModel, Learn, Pairs, Piece, Sampling

ESTIMATES = ("mc", "td")


def _sampling(sampling: Sampling, **names: str) -> Any:
    """A role's sampling of which only the fields in `names` are options, called so."""
    return part(sampling, names=names, without={"max_tokens", "temperature", "top_k", "top_p"} - set(names))


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig:
    """The natural-language actor-critic.

    Defaults: the paper's tables 8, 10 and 11; samplings as in the authors' code.
    """

    games: int = option(512, "games per iteration [N]", least=1)
    estimate: str = option("mc", "language value estimate: mc (equation 7) or td (equation 8)", choices=ESTIMATES)
    k: int = option(5, "games, or transitions, per estimate [K_MC, K_TD]", least=1)
    fresh_lines: bool = option(False, "play k new games for each estimate; false: use the iteration's own games")
    num_samples: int = option(10, "moves that the policy proposes for a position [N_sample]", least=1)
    top_m: int = option(10, "maximum number of distinct proposals compared, the most frequent first [m]", least=1)
    num_values: int = option(1, "evaluations sampled for each compared move; the improver gets them all", least=1)
    mask: bool = option(True, "compare the policy's own proposals only; false: all legal moves")
    max_visits: int = option(
        0, "maximum visits of a position that count in an iteration's policy data, so that openings are not memorised "
        "before their values are known; 0: no limit (the paper)", least=0,
    )  # fmt: skip
    buffer: int = option(3, "iterations of value data that the value model learns from [K_buffer]", least=1)
    correct: bool = option(
        False, "teach the value model in the next iteration how its contradictory evaluations should have continued; "
        "the paper: no",
    )  # fmt: skip
    rollout: Sampling = _sampling(Sampling(512, 1.0, 50, 0.95), max_tokens="max_tokens")
    candidates: Sampling = _sampling(Sampling(1024, 0.7), temperature="candidate_temperature")
    values: Sampling = _sampling(Sampling(512, 0.0), temperature="value_temperature")
    aggregation: Sampling = _sampling(Sampling(1024, 0.1), max_tokens="large_max_tokens")
    improvement: Sampling = Sampling(1024, 0.1)

    def __post_init__(self):
        check(self)
        if self.num_values > 1 and self.values.temperature == 0:
            raise ValueError(
                f"num_values is {self.num_values}, but at temperature 0 all are the same; raise it or use 1"
            )


class ActorCriticSetup(NamedTuple):
    """The fixed side: game, opponent, prompts, the large models, and how the small ones are trained."""

    game: BoardGame
    opponent: Opponent
    roles: ActorCriticRoles
    aggregator: LanguageModel
    improver: LanguageModel
    learn_policy: Learn
    learn_value: Learn
    config: ActorCriticConfig


class ActorCriticState(NamedTuple):
    """The learning side: pi_L, V_pi^L, and the value data of the last iterations, oldest first."""

    policy: LanguageModel
    value: LanguageModel
    buffer: tuple[Pairs, ...] = ()
    iteration: int = 0


class PolicyTarget(NamedTuple):
    """A member of D_pi (line 31). evaluations: [(action, words of the value model)]. visits: its weight in the data."""

    view: View
    action: str
    text: str
    evaluations: tuple[tuple[str, str], ...]
    visits: int


class IterationLog(NamedTuple):
    """An iteration's games, training targets and metrics. corrections: of evaluations that contradict themselves."""

    games: list[PlayedGame]
    values: list[ValueTarget]
    improvements: list[PolicyTarget]
    corrections: Pairs
    metrics: dict[str, float]


def iterate(
    state: ActorCriticState, setup: ActorCriticSetup, viewer: Viewer, seed: int
) -> tuple[ActorCriticState, IterationLog]:
    """One iteration of algorithm 3. The same arguments give the same result where the models allow it."""
    config, roles = setup.config, setup.roles
    counts: Counter[str] = Counter()
    at_random = state.iteration == 0  # moves and proposals of the first iteration

    # Lines 3-8: collect trajectories with the language policy
    act = random_act if at_random else language_act(state.policy, roles, config.rollout, counts)
    tau = play_games(setup.game, viewer, act, setup.opponent, config.games, seed)

    # Lines 9-20: language value estimation
    if config.fresh_lines:
        chunks = estimates.fresh_lines(setup.game, viewer, act, setup.opponent, tau, config.k, seed + 1)
    else:
        chunks = estimates.chunks_of_lines(tau, config.k, seed)
    aggregate = (roles, setup.aggregator, config.aggregation, seed, counts)
    if config.estimate == "mc":
        targets = estimates.monte_carlo(chunks, *aggregate)
    else:
        aggregate = (roles, state.value, config.values, *aggregate[1:])
        targets = estimates.temporal_difference(chunks, *aggregate)
    D_V = [(roles.value(target.view, target.action), target.text) for target in targets]

    # Lines 21-23: update the value function on the last K_buffer buffers
    buffer = (*state.buffer, D_V)[-config.buffer :]
    value, value_metrics = setup.learn_value(state.value, [pair for data in buffer for pair in data])

    # Lines 24-32: language policy improvement
    proposals = None if at_random else state.policy
    improvements, corrections = improve(tau, setup, proposals, value, seed, counts)
    if config.correct:
        buffer = (*buffer[:-1], [*buffer[-1], *corrections])
    max_visits = config.max_visits or config.games
    D_pi = [(roles.policy(t.view), t.text) for t in improvements for _ in range(min(t.visits, max_visits))]

    # Lines 33-34: update the policy
    policy, policy_metrics = setup.learn_policy(state.policy, D_pi)

    metrics = {f"rollout/{name}": share for name, share in rates(tau).items()}
    metrics["value/contradicts"] = counts.pop("value/contradicts", 0) / max(counts["value/calls"], 1)
    metrics["games"] = len(tau) + config.fresh_lines * sum(len(lines) for _, lines in chunks)
    metrics["random_moves"] = 1.0 if at_random else random_share(counts)
    metrics |= {f"value_sft/{name}": number for name, number in value_metrics.items()}
    metrics |= {f"policy_sft/{name}": number for name, number in policy_metrics.items()}
    metrics |= {f"count/{name.replace(' ', '_')}": float(number) for name, number in sorted(counts.items())}
    return ActorCriticState(policy, value, buffer, state.iteration + 1), IterationLog(
        tau, targets, improvements, corrections, metrics
    )


def improve(
    games: Sequence[PlayedGame],
    setup: ActorCriticSetup,
    policy: LanguageModel | None,
    value: LanguageModel,
    seed: int,
    counts: Counter[str],
) -> tuple[list[PolicyTarget], Pairs]:
    """Lines 26-32 for every position the agent met. A reply without one of its moves is dropped and counted.

    Args:
      policy: proposes the moves that are compared; None proposes at random.

    Returns: (members of D_pi, value prompts with corrections of the evaluations that contradict themselves).
    """
    config, roles = setup.config, setup.roles
    # 1. Positions where the agent was to move, and how often it came there.
    visits = Counter(s.before for g in games for s in g.line.steps if s.before.player == g.agent)
    views = list(visits)
    # 2. Candidates.
    moves = propose(views, roles, policy, config, seed, counts)  # A_k
    pairs = [(n, action) for n, words in enumerate(moves) for action in words for _ in range(config.num_values)]
    prompts = [roles.value(views[n], action) for n, action in pairs]
    # 3. Each candidate evaluated `num_values` times, all in one call.
    evaluations: list[list[tuple[str, str]]] = [[] for _ in views]  # Q^L
    corrections: Pairs = []
    for (n, action), chat, reply in zip(
        pairs, prompts, value.complete(prompts, config.values, "value", seed), strict=True
    ):
        counts["value/calls"] += 1
        counts["value/no number"] += roles.read_value(reply.text) is None
        counts["value/never ended"] += not reply.ended
        evaluations[n].append((action, reply.text))
        counts["value/contradicts"] += roles.contradicts(reply.text)
        if corrected := roles.correction(reply.text):
            # The words before the contradiction are read, what follows them is learned anew.
            right, rest = corrected
            corrections.append((chat, [Piece(right, 0.0), Piece(rest), Piece(None)]))
    # 4. The improver chooses one of the candidates, and says why.
    chats = [roles.improve(view, texts) for view, texts in zip(views, evaluations, strict=True)]
    replies = setup.improver.complete(chats, config.improvement, "improver", seed)  # pi_new, c <- I(Q^L, T_L)
    targets = []
    for view, texts, words, reply in zip(views, evaluations, moves, replies, strict=True):
        move = roles.read_move(reply.text, words)
        if move.problem:
            counts[f"improver/{move.problem}"] += 1
        if move.word is None:
            counts["improver/dropped"] += 1
            continue
        targets.append(PolicyTarget(view, move.word, roles.clean(reply.text), tuple(texts), visits[view]))
    return targets, corrections


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
        # Without a usable proposal the set is one random legal move, so that no position is lost.
        chosen.append(ranked or [view.legal[rng.integers(len(view.legal))]])
    return chosen


def evaluate(
    state: ActorCriticState, setup: ActorCriticSetup, viewer: Viewer, num: int, sampling: Sampling, seed: int
) -> tuple[dict[str, float], list[PlayedGame]]:
    """Win, tie and loss of the policy as it is judged (the paper: temperature 0), "random_moves", and the games."""
    counts: Counter[str] = Counter()
    act: Act = language_act(state.policy, setup.roles, sampling, counts)
    games = play_games(setup.game, viewer, act, setup.opponent, num, seed)
    return {**rates(games), "random_moves": random_share(counts)}, games


def random_share(counts: Counter[str]) -> float:
    """Share of the policy's moves that were taken at random because its reply named no legal one."""
    return counts["policy/random move"] / max(counts["policy/moves"], 1)
