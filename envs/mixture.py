"""Several host games as one, whose kinds of tasks are the games': `--game a,b,c` trains on all of them.

A prompt cannot know which game is next, so that each game's rules, and the form of its replies, stand in the goal; a
reply is read here, as its game reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.roles import messages, reply_forms
from nlrl_jax.types import EpisodeFault, HostGame, Outcome, Start


class MixedState(NamedTuple):
    """name: of the game. state: the game's own. steps: actions so far."""

    name: str
    state: Any
    steps: int = 0


def names_of(name: str) -> list[str]:
    """Splits `a,b,c`, but not at commas within brackets."""
    return re.split(r",(?![^\[\](){}]*[\])}])", name)


def mixture(games: Mapping[str, HostGame]) -> HostGame:
    """Mixes games by name.

    Raises:
      ValueError: one has tools, which a chat template shows to all tasks alike.
    """
    if with_tools := [name for name, game in games.items() if game.tools]:
        raise ValueError(f"{with_tools[0]} has tools, and cannot be one of several games")
    kinds = {_kind(name, kind): (name, kind) for name, game in games.items() for kind in game.kinds}

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        starts: list[Any] = [None] * len(tasks)
        for name, numbers in _by_game([kinds[kind][0] for kind, _ in tasks]).items():
            game = games[name]
            for i, start in zip(
                numbers, game.reset([(kinds[tasks[i][0]][1], tasks[i][1]) for i in numbers]), strict=True
            ):
                goal = "\n".join(filter(None, (game.rules, messages.reply_form(game), start.goal)))
                starts[i] = Start(MixedState(name, start.state), goal, start.observation)
        return starts

    def step(states: Sequence[MixedState], actions: Sequence[str]) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(states)
        for name, numbers in _by_game([state.name for state in states]).items():
            game = games[name]
            replies = [messages.read_reply(actions[i], game) for i in numbers]
            results = game.step([states[i].state for i in numbers], [action for action, _ in replies])
            for i, outcome, (_, problem) in zip(numbers, results, replies, strict=True):
                outcomes[i] = _ended(game, outcome, MixedState(name, outcome.state, states[i].steps + 1), bool(problem))
        return outcomes

    def of_state(field: str) -> Callable[[MixedState], Any] | None:
        """A function of states that all games have, else None."""
        functions = {name: getattr(game, field) for name, game in games.items()}
        return (lambda mixed: functions[mixed.name](mixed.state)) if all(functions.values()) else None

    def closing_reward(mixed: MixedState) -> float:
        function = games[mixed.name].closing_reward
        return function(mixed.state) if function else 0.0

    return HostGame(
        name=", ".join(games),
        rules="",
        actions=(),
        max_steps=max(game.max_steps for game in games.values()),
        kinds=tuple(kinds),
        reset=reset,
        step=step,
        expert=of_state("expert"),
        optimal=of_state("optimal"),
        score="reward",
        has_success=all(game.has_success for game in games.values()),
        reversible=all(game.reversible for game in games.values()),
        limits={_kind(name, kind): limit for name, game in games.items() for kind, limit in game.limits.items()},
        read_action=reply_forms.whole,
        closing_reward=closing_reward,
    )


def _kind(name: str, kind: str) -> str:
    return f"{name} {kind}".strip()


def _by_game(names: Sequence[str]) -> dict[str, list[int]]:
    """Game -> the positions of its episodes."""
    positions: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        positions.setdefault(name, []).append(i)
    return positions


def _ended(game: HostGame, outcome: Outcome, state: MixedState, is_unread: bool) -> Outcome:
    """The outcome of a step, which ends the episode where the game's own horizon is reached."""
    reward, is_cut = outcome.reward, not outcome.done and state.steps >= game.max_steps
    error = outcome.error
    if is_cut and game.closing_reward:
        try:
            reward += game.closing_reward(outcome.state)
        except EpisodeFault as fault:
            error = str(fault)
    return outcome._replace(
        state=state, reward=reward, done=outcome.done or is_cut, valid=outcome.valid and not is_unread, error=error
    )
