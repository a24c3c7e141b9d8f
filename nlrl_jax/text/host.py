"""A text game of the device, played by text on the host, as an algorithm of many calls per step needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.config import check_seed
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.types import HostGame, Outcome, Start, TextGame

NOTHING = "Nothing happens."  # stands before the observation after a text that is none of the game's actions
_ONE_ACTION = "Here every line of actions holds one of them."


def of_text_game(
    game: TextGame,
    texts: Callable[[Any], list[tuple[str, str]]] | None = None,
    optimal: Callable[[Any], int] | None = None,
    max_steps: int = 0,
    kinds: Sequence[str] = ("",),
    reset: Callable[[jax.Array, jax.Array], Any] | None = None,
) -> HostGame:
    """A text game of the device, played on the host.

    Args:
      kinds, reset: kinds of tasks, and (key, index of the kind) -> the state an episode begins in; by default one kind
        and the game's own beginning. Works under `vmap`.
      texts: states with a leading axis -> (goal, observation) of each; by default the first line of the rules and the
        game's observation.
      optimal: one state -> minimum number of actions; by default the game's.
      max_steps: horizon; 0 is the game's own.
    """
    env, params, optimal = game.env, game.params, optimal or game.optimal
    words = {folded(action): i for i, action in enumerate(game.actions)}
    begin = reset or (lambda key, kind: env.reset_env(key, params)[1])
    draw = jax.jit(jax.vmap(lambda seed, kind: begin(jax.random.key(seed), kind)))

    def one_step(key, state, action):
        _, after, reward, terminated, _ = env.step_env(key, state, action, params)
        return after, reward, terminated, game.truncated(after)

    step = jax.jit(jax.vmap(one_step))
    won = jax.jit(jax.vmap(game.success)) if game.success else None
    fields = jax.jit(jax.vmap(game.fields))

    def rows(states, n: int) -> list[Any]:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(n)]

    def render(template, states, n: int) -> list[str]:
        return [template.render(row) for row in rows(jax.device_get(fields(states)), n)]

    goal, most = game.rules.strip().partition("\n")[0], 1

    def read(states, n: int) -> list[tuple[str, str]]:
        """Goals and observations of the first n of these states."""
        return texts(states)[:n] if texts else [(goal, text) for text in render(game.observation, states, n)]

    def size_for(n: int) -> int:
        """A power of two rows, and as many as there once were: a step may take half a minute to compile."""
        nonlocal most
        most = max(most, 1 << max(0, n - 1).bit_length())
        return most

    def padded(trees: Sequence[Any], size: int):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *trees, *[trees[-1]] * (size - len(trees)))

    def start(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        for kind, _ in tasks:
            if kind not in kinds:
                raise ValueError(f"{game.name} has no tasks {kind!r}; it has {', '.join(map(repr, kinds))}")
        seeds = [np.uint32(check_seed(seed)) for _, seed in tasks]
        numbers, size = [np.int32(kinds.index(kind)) for kind, _ in tasks], size_for(len(tasks))
        states = jax.device_get(draw(padded(seeds, size), padded(numbers, size)))
        pairs = zip(seeds, rows(states, len(seeds)), read(states, len(seeds)), strict=True)
        return [Start((seed, state), *text) for seed, state, text in pairs]

    def advance(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        ids = [words.get(folded(action), -1) for action in actions]
        size = size_for(len(ids))  # once: another thread may begin more episodes meanwhile
        before = padded([state for _, state in states], size)
        seeds = padded([np.uint32(seed) for seed, _ in states], size)
        keys = jax.vmap(lambda seed, time: jax.random.fold_in(jax.random.key(seed), time))(seeds, before.time)
        ids_or_first = padded([np.int32(max(i, 0)) for i in ids], size)
        after, reward, terminated, truncated = jax.device_get(step(keys, before, ids_or_first))
        success = jax.device_get(won(after)) if won else terminated & (reward > 0)
        old, new, outcomes = read(before, len(ids)) if min(ids) < 0 else [], read(after, len(ids)), []
        for i, (action, state) in enumerate(zip(ids, rows(after, len(ids)))):
            if action < 0:
                outcomes.append(Outcome(states[i], f"{NOTHING} {old[i][1]}", valid=False))
            else:
                ended = bool(terminated[i] | truncated[i]), bool(success[i])
                outcomes.append(Outcome((states[i][0], state), new[i][1], float(reward[i]), *ended))
        return outcomes

    return HostGame(
        name=game.name,
        rules=f"{game.rules}\n{_ONE_ACTION}",
        actions=game.actions,
        max_steps=max_steps or int(params.max_steps_in_episode),
        kinds=tuple(kinds),
        reset=start,
        step=advance,
        board=lambda state: render(game.board, jax.tree.map(lambda leaf: np.asarray(leaf)[None], state[1]), 1)[0],
        optimal=(lambda state: optimal(state[1])) if optimal else None,
        legend=game.legend,
        reversible=True,
    )
