"""Language TD: algorithm 2 of "Natural Language Reinforcement Learning". A value model learns to annotate positions.

Departures from the paper:
- evaluations of a position that several variations reach are computed once;
- `learn` decides whether SFT continues from the previous iteration's model or restarts (the paper does not say).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.config import part
from nlrl_jax.roles.board_games import Evaluated, Line, Ply, TDRoles, View, Viewer, side_of
from nlrl_jax.statistics import share
from nlrl_jax.types import BoardGame, Chat, LanguageModel, Learn, Pairs, Sampling


@dataclasses.dataclass(frozen=True)
class LanguageTDConfig:
    """Samplings of language TD. Defaults: the paper's tables 4 and 5, where both roles sample at temperature 1."""

    values: Sampling = part(Sampling(512, 1.0, 50, 0.95), without=("top_k", "top_p"))
    aggregation: Sampling = part(
        Sampling(512, 1.0, 50, 0.95),
        names={"max_tokens": "large_max_tokens"},
        without=("temperature", "top_k", "top_p"),
    )


class LookAhead(NamedTuple):
    """(s_t, V_{s_t}) of line 11: a position and the distinct variations that the policy played from it."""

    view: View
    variations: tuple[Line, ...]


class Target(NamedTuple):
    """V(s_t)_new: the aggregator's reply. evaluated: the variations and evaluations in its prompt."""

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

    def at(step):
        return jax.tree.map(lambda leaf: leaf[step], reached)

    after = [viewer.views(at(step)) for step in range(1, len(actions) + 1)]
    last = at(-1)  # a finished game stays where it ended
    outcome = np.asarray(jax.vmap(game.returns)(last))
    finished = np.asarray(jax.vmap(game.is_terminal)(last))
    buffer = []
    for n, view in enumerate(starts):
        # By the moves themselves: variations with the same moves are one.
        lines: dict[tuple[int, ...], Line] = {}
        for row in range(n * variations, (n + 1) * variations):
            moves = tuple(int(a) for a in actions[:, row] if a >= 0)
            if moves in lines:
                continue
            before, steps = view, []  # of one line: each ply with the views before and after it
            for i, action in enumerate(moves):
                steps.append(Ply(before, game.actions[action], after[i][row]))
                before = after[i][row]
            lines[moves] = Line(tuple(steps), bool(finished[row]), side_of(outcome[row], game.players))
        buffer.append(LookAhead(view, tuple(lines.values())))
    return buffer


class ValueFunction(NamedTuple):
    """V: a model, its prompt (view -> chat) and its sampling."""

    model: LanguageModel
    prompt: Callable[[View], Chat]
    sampling: Sampling


def td_estimate(
    buffer: Sequence[LookAhead],
    roles: TDRoles,
    value: ValueFunction,
    aggregator: LanguageModel,
    config: LanguageTDConfig,
    seed: int,
    counts: Counter[str],
) -> list[Target]:
    """Lines 9-15: G1({G2(d_n, V(s_{t+l}^n))}) of every state. An empty one is dropped and counted."""
    # 1. V at the ends of all variations, each position asked for once; a finished game needs no evaluation.
    last_views = list(dict.fromkeys(v.steps[-1].after for s in buffer for v in s.variations if not v.over))
    replies = value.model.complete(
        [value.prompt(end) for end in last_views], value.sampling, "value", seed
    )  # V(s_{t+l})
    words = {end: reply.text for end, reply in zip(last_views, replies, strict=True)}
    counts["value/calls"] += len(last_views)
    counts["value/undecided"] += sum(roles.read_advantage(text) is None for text in words.values())
    counts["value/never ended"] += sum(not reply.ended for reply in replies)
    evaluated = [tuple(Evaluated(v, "" if v.over else words[v.steps[-1].after]) for v in s.variations) for s in buffer]
    # 2. One aggregation per state reads all its variations (G2 and G1 in one call).
    chats = [roles.aggregate(s.view, lines) for s, lines in zip(buffer, evaluated, strict=True)]
    targets = []
    for s, lines, reply in zip(
        buffer, evaluated, aggregator.complete(chats, config.aggregation, "aggregator", seed), strict=True
    ):
        counts["aggregator/undecided"] += roles.read_advantage(reply.text) is None
        counts["aggregator/never ended"] += not reply.ended
        if not reply.text.strip():
            counts["aggregator/dropped"] += 1
            continue
        targets.append(Target(s.view, reply.text, lines))
    return targets


def iterate(
    buffer: Sequence[LookAhead],
    roles: TDRoles,
    value: LanguageModel,
    aggregator: LanguageModel,
    learn: Learn,
    config: LanguageTDConfig,
    seed: int,
    first_value: ValueFunction | None = None,
) -> tuple[LanguageModel, list[Target], dict[str, float]]:
    """Lines 9-17, one iteration: (the new value model, its targets, metrics).

    Args:
      first_value: evaluates the ends of the variations in place of `value`: in the first iteration, where the paper
        has the large model do it.
    """
    counts: Counter[str] = Counter()
    function = first_value or ValueFunction(value, roles.value, config.values)
    targets = td_estimate(buffer, roles, function, aggregator, config, seed, counts)
    D_V: Pairs = [(roles.value(target.view), target.text) for target in targets]
    value, learned = learn(value, D_V)  # line 17
    metrics = {f"sft/{name}": number for name, number in learned.items()}
    metrics["value/undecided"] = counts.pop("value/undecided") / max(counts["value/calls"], 1)
    counted = {f"count/{name.replace(' ', '_')}": float(number) for name, number in sorted(counts.items())}
    return value, targets, metrics | counted


class Judged(NamedTuple):
    """How well a value function says who is ahead.

    accuracy: share of correct answers among those that name a side, on positions that are not level.
    answered: share of these positions where it names a side.
    positions: how many are not level. level: how many are, and were left out.
    standard_error: of the accuracy over the answered positions, nan of fewer than two.
    """

    accuracy: float
    answered: float
    positions: int
    level: int
    standard_error: float


def assess(sides: Sequence[str | None], win_rates: np.ndarray, players: tuple[str, str], threshold: float) -> Judged:
    """The advantage judgement against win rates (section 5.2.1).

    Args:
      sides: [N], the side that is called ahead, or None.
      win_rates: [N], mean outcome for player 0, from -1 to 1, by playing out.
      threshold: positions whose win rate is nearer to 0 than this are level.
    """
    # Where neither side is clearly ahead there is no right answer.
    clear = np.flatnonzero(np.abs(win_rates) >= threshold)
    right = sum(sides[n] == players[0 if win_rates[n] > 0 else 1] for n in clear)
    answered = sum(sides[n] is not None for n in clear)
    return Judged(
        accuracy=right / max(answered, 1),
        answered=answered / max(len(clear), 1),
        positions=len(clear),
        level=len(win_rates) - len(clear),
        standard_error=share(right, answered).error,
    )


def judge(
    views: Sequence[View],
    roles: TDRoles,
    value: LanguageModel,
    sampling: Sampling,
    seed: int,
    clear: np.ndarray | None = None,
) -> tuple[list[str | None], list[str]]:
    """(the side that a language value model calls ahead in each position, its evaluations).

    Args:
      clear: bool [N], the positions that it is asked about, all by default; of the others it says nothing.
    """
    selected = np.arange(len(views)) if clear is None else np.flatnonzero(clear)
    replies = value.complete([roles.value(views[n]) for n in selected], sampling, "judge", seed)
    texts = dict(zip(selected.tolist(), (reply.text for reply in replies), strict=True))
    sides = [roles.read_advantage(texts[n]) if n in texts else None for n in range(len(views))]
    return sides, [texts.get(n, "") for n in range(len(views))]
