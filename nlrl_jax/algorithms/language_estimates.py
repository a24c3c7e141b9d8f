"""Language Monte-Carlo and temporal-difference estimates of moves (NLRL, equations 7 and 8) out of played games.

The TD estimate is of the state-action value: it looks at the position where the same side moves again and at the value
model's words about the move made there. The paper leaves the form of V(s') open; its experiment uses MC only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from nlrl_jax.roles.board_games import ActorCriticRoles, Evaluated, Line, View, Viewer
from nlrl_jax.rollouts.board_games import Act, Opponent, PlayedGame, play_on
from nlrl_jax.types import BoardGame, Chat, LanguageModel, Sampling

Pair = tuple[View, str]  # a position and a move


class ValueTarget(NamedTuple):
    """The aggregator's evaluation of a move. prompt: the chat it replied to."""

    view: View
    action: str
    text: str
    prompt: Chat


def chunks_of_lines(games: Sequence[PlayedGame], k: int, seed: int) -> list[tuple[Pair, list[Line]]]:
    """For every (position, move) of the agent: the continuations of the games with it, in chunks of at most k.

    The lines are shuffled; the remainder is a chunk of its own, so a pair may have several.
    """
    lines: dict[Pair, list[Line]] = defaultdict(list)
    for played in games:
        steps = played.line.steps
        for n, step in enumerate(steps):
            if step.before.player == played.agent:
                lines[step.before, step.action].append(Line(steps[n:], played.line.over, played.line.winner))
    rng = np.random.default_rng(seed)
    chunks = []
    for pair, continuations in lines.items():
        # Shuffled, so that a chunk is no run of games that were played after each other.
        order = rng.permutation(len(continuations))
        # At most k games to a chunk; the remainder is a chunk of its own.
        chunks += [(pair, [continuations[n] for n in order[i : i + k]]) for i in range(0, len(order), k)]
    return chunks


def fresh_lines(
    game: BoardGame, viewer: Viewer, act: Act, opponent: Opponent, games: Sequence[PlayedGame], k: int, seed: int
) -> list[tuple[Pair, list[Line]]]:
    """For every (position, move) of the agent: k new games from there, in which `act` plays the side that made the move
    (line 13 of algorithm 3)."""
    pairs = list(dict.fromkeys(pair for pair, _ in chunks_of_lines(games, k, seed)))
    # Row i * k + j is game j of pair i, here, in the positions and in what comes back.
    repeated = [pair for pair in pairs for _ in range(k)]
    starts = [game.parse(view.board, view.player) for view, _ in pairs]
    positions = jax.tree.map(lambda *leaves: np.repeat(np.stack(leaves), k, axis=0), *starts)
    agents = np.array([game.players.index(view.player) for view, _ in repeated])
    played = play_on(game, viewer, act, opponent, positions, agents, seed, [action for _, action in repeated])
    return [(pair, [game.line for game in played[i * k : (i + 1) * k]]) for i, pair in enumerate(pairs)]


def monte_carlo(
    chunks: Sequence[tuple[Pair, list[Line]]],
    roles: ActorCriticRoles,
    aggregator: LanguageModel,
    sampling: Sampling,
    seed: int,
    counts: Counter[str],
) -> list[ValueTarget]:
    """v = G1({tau_k}): an evaluation of each chunk's complete games."""
    prompts = [roles.monte_carlo(*pair, lines) for pair, lines in chunks]
    return _targets(chunks, prompts, roles, aggregator.complete(prompts, sampling, "monte_carlo", seed), counts)


def temporal_difference(
    chunks: Sequence[tuple[Pair, list[Line]]],
    roles: ActorCriticRoles,
    value: LanguageModel,
    value_sampling: Sampling,
    aggregator: LanguageModel,
    sampling: Sampling,
    seed: int,
    counts: Counter[str],
) -> list[ValueTarget]:
    """v = G1({G2(d_k, V(s'_k))}): an evaluation of each chunk's next moves and of V after them."""
    transitions = [[next_turn(line) for line in lines] for _, lines in chunks]
    pairs = list(dict.fromkeys(pair for chunk in transitions for _, pair in chunk if pair is not None))
    replies = value.complete([roles.value(*pair) for pair in pairs], value_sampling, "value", seed)
    # Each V(s'_k) is asked for once, however many transitions lead there.
    words = {pair: reply.text for pair, reply in zip(pairs, replies, strict=True)}
    prompts = [
        roles.temporal_difference(*pair, [Evaluated(line, words.get(after, "")) for line, after in chunk])
        for (pair, _), chunk in zip(chunks, transitions, strict=True)
    ]
    return _targets(chunks, prompts, roles, aggregator.complete(prompts, sampling, "temporal_difference", seed), counts)


def next_turn(line: Line) -> tuple[Line, Pair | None]:
    """(the line up to where its first mover moves again, that position and move, or None if the game ends before)."""
    # The opponent's reply lies between: V is that of the position where the same side moves again.
    side = line.steps[0].before.player
    next_index = next((n for n, step in enumerate(line.steps[1:], 1) if step.before.player == side), None)
    if next_index is None:
        return line, None
    return Line(line.steps[:next_index], False, None), (line.steps[next_index].before, line.steps[next_index].action)


def _targets(chunks, prompts, roles, replies, counts) -> list[ValueTarget]:
    """A reply whose number cannot be read is counted, and kept if it has any words: the value model learns words."""
    targets = []
    for (pair, _), chat, reply in zip(chunks, prompts, replies, strict=True):
        if roles.read_value(reply.text) is None:
            counts["aggregator/no number"] += 1
        if not reply.ended:
            counts["aggregator/never ended"] += 1
        if not reply.text.strip():
            counts["aggregator/dropped"] += 1
            continue
        targets.append(ValueTarget(*pair, reply.text, chat))
    return targets
