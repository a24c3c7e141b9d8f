"""Language TD: algorithm 2 of "Natural Language Reinforcement Learning". A value model learns to annotate positions.

Departures from the paper:
- evaluations of a position that several variations reach are computed once;
- whether SFT goes on from the model of the iteration before or starts anew is up to `learn` (the paper does not say).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.roles.board_games import Evaluated, Line, Step, TDRoles, View, Viewer
from nlrl_jax.types import BoardGame, Chat, LanguageModel, Learn, Pairs, Sampling


@dataclasses.dataclass(frozen=True)
class LanguageTDConfig:
    """Samplings of the roles; the defaults are the paper's, tables 4 and 5 (both roles there draw at temperature 1)."""

    values: Sampling = Sampling(512, 1.0, 50, 0.95)
    aggregation: Sampling = Sampling(512, 1.0, 50, 0.95)


class LookAhead(NamedTuple):
    """(s_t, V_{s_t}) of line 11: a position and the distinct variations that the policy played from it."""

    view: View
    variations: tuple[Line, ...]


class Target(NamedTuple):
    """V(s_t)_new: what the aggregator wrote. evaluated: the variations with the evaluations it was shown."""

    view: View
    text: str
    evaluated: tuple[Evaluated, ...]


def look_ahead(
    game: BoardGame, viewer: Viewer, positions: Any, actions: np.ndarray, reached: Any, variations: int
) -> list[LookAhead]:
    """Lines 2-6: the rollouts of a policy as text, duplicates removed.

    Args:
      positions: N states D_s, leading axis [N]; none of them over.
      actions: int [l, N * K], K rollouts of each state side by side, -1 after the end of a game.
      reached: positions before and after each move, leading axes [l + 1, N * K].
      variations: K.
    """
    starts = viewer.views(positions)
    at = lambda step: jax.tree.map(lambda leaf: leaf[step], reached)
    after = [viewer.views(at(step)) for step in range(1, len(actions) + 1)]
    last = at(-1)
    outcome = np.asarray(jax.vmap(game.returns)(last))
    over = np.asarray(jax.vmap(game.is_terminal)(last))
    winner = {1.0: game.players[0], -1.0: game.players[1], 0.0: None}
    found = []
    for n, view in enumerate(starts):
        lines: dict[tuple[int, ...], Line] = {}
        for row in range(n * variations, (n + 1) * variations):
            moves = tuple(int(a) for a in actions[:, row] if a >= 0)
            if moves in lines:
                continue
            before, steps = view, []
            for i, action in enumerate(moves):
                steps.append(Step(before, game.actions[action], after[i][row]))
                before = after[i][row]
            lines[moves] = Line(tuple(steps), bool(over[row]), winner[float(outcome[row])])
        found.append(LookAhead(view, tuple(lines.values())))
    return found


class Evaluator(NamedTuple):
    """Who evaluates where the variations end: a model, what it is told (a view -> its chat), and its sampling."""

    model: LanguageModel
    prompt: Callable[[View], Chat]
    sampling: Sampling


def td_estimate(
    buffer: Sequence[LookAhead],
    roles: TDRoles,
    value: Evaluator,
    aggregator: LanguageModel,
    config: LanguageTDConfig,
    seed: int,
    counts: Counter[str],
) -> list[Target]:
    """Lines 9-15: G1({G2(d_n, V(s_{t+l}^n))}) of every state. An empty one is dropped and counted."""
    ends = list(dict.fromkeys(v.steps[-1].after for s in buffer for v in s.variations if not v.over))
    replies = value.model.complete([value.prompt(end) for end in ends], value.sampling, "value", seed)  # V(s_{t+l})
    words = {end: reply.text for end, reply in zip(ends, replies, strict=True)}
    counts["value/calls"] += len(ends)
    counts["value/undecided"] += sum(roles.read_advantage(text) is None for text in words.values())
    counts["value/never ended"] += sum(not reply.ended for reply in replies)
    evaluated = [tuple(Evaluated(v, "" if v.over else words[v.steps[-1].after]) for v in s.variations) for s in buffer]
    chats = [roles.aggregate(s.view, known) for s, known in zip(buffer, evaluated, strict=True)]
    targets = []
    for s, known, reply in zip(
        buffer, evaluated, aggregator.complete(chats, config.aggregation, "aggregator", seed), strict=True
    ):
        counts["aggregator/undecided"] += roles.read_advantage(reply.text) is None
        counts["aggregator/never ended"] += not reply.ended
        if not reply.text.strip():
            counts["aggregator/dropped"] += 1
            continue
        targets.append(Target(s.view, reply.text, known))
    return targets


def iterate(
    buffer: Sequence[LookAhead],
    roles: TDRoles,
    value: LanguageModel,
    aggregator: LanguageModel,
    learn: Learn,
    config: LanguageTDConfig,
    seed: int,
    evaluator: Evaluator | None = None,
) -> tuple[LanguageModel, list[Target], dict[str, float]]:
    """Lines 9-17, one iteration: (the value model that learned, what it learned from, metrics).

    Args:
      evaluator: evaluates where the variations end in place of `value`, whose prompt and sampling are those of `roles`
        and `config`; for the first iteration, where the paper has the large model do it.
    """
    counts: Counter[str] = Counter()
    evaluator = evaluator or Evaluator(value, roles.value, config.values)
    targets = td_estimate(buffer, roles, evaluator, aggregator, config, seed, counts)
    D_V: Pairs = [(roles.value(target.view), target.text) for target in targets]
    value, learned = learn(value, D_V)  # line 17
    metrics = {f"sft/{name}": number for name, number in learned.items()}
    metrics["value/undecided"] = counts.pop("value/undecided") / max(counts["value/calls"], 1)
    counted = {f"count/{name.replace(' ', '_')}": float(number) for name, number in sorted(counts.items())}
    return value, targets, metrics | counted


class Judged(NamedTuple):
    """How well a value model says who is ahead.

    accuracy: share of right answers among those that name a side, on positions that are not level.
    answered: share of the positions that are not level where it names a side; the others are "undecided".
    positions: how many are not level. level: how many were left out as such.
    """

    accuracy: float
    answered: float
    positions: int
    level: int


def judge(
    views: Sequence[View],
    win_rates: np.ndarray,
    players: tuple[str, str],
    roles: TDRoles,
    value: LanguageModel,
    sampling: Sampling,
    seed: int,
    threshold: float = 0.2,
) -> tuple[Judged, list[str]]:
    """The advantage judgement against win rates (section 5.2.1), and the evaluations of the positions that count.

    Args:
      win_rates: [N], mean outcome for player 0, from -1 to 1, by playing out.
      threshold: positions whose win rate is nearer to 0 than this are level.
    """
    clear = np.flatnonzero(np.abs(win_rates) >= threshold)
    replies = value.complete([roles.value(views[n]) for n in clear], sampling, "judge", seed)
    said = [roles.read_advantage(reply.text) for reply in replies]
    right = [side == players[0 if win_rates[n] > 0 else 1] for n, side in zip(clear, said, strict=True)]
    answered = sum(side is not None for side in said)
    judged = Judged(
        accuracy=sum(right) / max(answered, 1),
        answered=answered / max(len(clear), 1),
        positions=len(clear),
        level=len(views) - len(clear),
    )
    return judged, [reply.text for reply in replies]
