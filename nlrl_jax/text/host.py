"""A text game of the device, played by text on the host, as an algorithm of many calls per step needs it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
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
    """Wraps a text game of the device so that it is played by text on the host.

    A text that is none of its actions takes a step, the game's `unknown_action` or one of time alone. An action after
    which nothing but the time has changed (a wall in the way) is invalid and `idle`; one that `info["illegal_move"]`
    marks is only invalid.

    A task has one stream of chance; listed several times in one `reset`, it has another one each time.

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
    initial_state = reset or (lambda key, kind: env.reset_env(key, params)[1])
    draw = jax.jit(jax.vmap(lambda seed, kind: initial_state(jax.random.key(seed), kind)))

    def transition(seed, state, action):
        """Steps one state, by the key that its seed has at this time.

        Returns (state, reward, terminated, truncated, whether the action is valid, whether it had no effect).
        """
        key = jax.random.fold_in(jax.random.key(seed), state.time)
        is_action, unknown = action >= 0, game.unknown_action
        played = jnp.where(is_action, action, unknown or 0)
        _, after, reward, terminated, info = env.step_env(key, state, played, params)
        # What the state would be had only time passed: an action that leads there had no effect.
        waited = _at(state, after.time)
        idle = jnp.all(jnp.stack([jnp.all(a == b) for a, b in zip(*map(jax.tree.leaves, (after, waited)))]))
        legal = is_action & ~jnp.asarray(info.get("illegal_move", False), bool)
        if unknown is None:
            after = jax.tree.map(lambda a, b: jnp.where(is_action, a, b), after, waited)
            reward, terminated = jnp.where(is_action, reward, 0), is_action & terminated
        return after, reward, terminated, game.truncated(after), legal & ~idle, legal & idle

    step = jax.jit(jax.vmap(transition))
    won = jax.jit(jax.vmap(game.success)) if game.success else None
    fields = jax.jit(jax.vmap(game.fields))

    def rows(states, n: int) -> list[Any]:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(n)]

    def render(template, states, n: int) -> list[str]:
        return [template.render(row) for row in rows(jax.device_get(fields(states)), n)]

    goal, largest = game.rules.strip().partition("\n")[0], 1

    def read(states, n: int) -> list[tuple[str, str]]:
        """Goals and observations of the first n of these states."""
        return texts(states)[:n] if texts else [(goal, text) for text in render(game.observation, states, n)]

    def size_for(n: int) -> int:
        """Rounds up to a power of two rows, never fewer than before: a step may take half a minute to compile."""
        nonlocal largest
        largest = max(largest, 1 << max(0, n - 1).bit_length())
        return largest

    def padded(trees: Sequence[Any], size: int):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *trees, *[trees[-1]] * (size - len(trees)))

    def start(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        for kind, *_ in tasks:
            if kind not in kinds:
                raise ValueError(f"{game.name} has no tasks {kind!r}; it has {', '.join(map(repr, kinds))}")
        seeds = [np.uint32(check_seed(seed)) for _, seed, _ in counted(tasks)]
        chance = [_chance(seed, repetition) for _, seed, repetition in counted(tasks)]
        numbers, size = [np.int32(kinds.index(kind)) for kind, *_ in tasks], size_for(len(tasks))
        states = jax.device_get(draw(padded(seeds, size), padded(numbers, size)))
        pairs = zip(chance, rows(states, len(seeds)), read(states, len(seeds)), strict=True)
        return [Start((seed, state), *text) for seed, state, text in pairs]

    def advance(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        ids = [words.get(folded(action), -1) for action in actions]
        size = size_for(len(ids))  # once: another thread may begin more episodes meanwhile
        before = padded([state for _, state in states], size)
        seeds = padded([np.uint32(seed) for seed, _ in states], size)
        results = step(seeds, before, padded([np.int32(i) for i in ids], size))
        after, reward, terminated, truncated, valid, idle = jax.device_get(results)
        success = jax.device_get(won(after)) if won else np.zeros(size, bool)
        outcomes = []
        for i, (state, text) in enumerate(zip(rows(after, len(ids)), read(after, len(ids)), strict=True)):
            observation = text[1] if ids[i] >= 0 else f"{NOTHING} {text[1]}"
            ended = bool(terminated[i] | truncated[i]), bool(success[i]), bool(valid[i])
            outcomes.append(Outcome((seeds[i], state), observation, float(reward[i]), *ended, idle=bool(idle[i])))
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
        score="" if game.success else "return",
        has_success=game.success is not None,
        reversible=True,
    )


def counted(tasks: Sequence[tuple]) -> list[tuple[str, int, int]]:
    """Adds to each task how often it stands before in the list: (kind, seed, count); counted tasks stay as they are."""
    before: Counter = Counter()
    rows = []
    for task in tasks:
        rows.append(tuple(task) if len(task) == 3 else (*task, before[tuple(task)]))
        before[tuple(task)] += 1
    return rows


def divided(tasks: Sequence[tuple], places: int, together: bool) -> list[int]:
    """Divides tasks among places, in order, equal tasks at one place -> the place of each.

    Args:
      together: also where there are fewer different tasks than places. So it must be where a task's repetitions are
        counted (`counted`).
    """
    ranks: dict[tuple, int] = {}
    rank_of_task = [ranks.setdefault(tuple(task), len(ranks)) for task in tasks]
    number = len(ranks)
    if number < places and not together:
        rank_of_task, number = range(len(tasks)), len(tasks)
    return [rank * places // number for rank in rank_of_task]


def _chance(seed: int, repetition: int) -> np.uint32:
    """Seeds a stream of chance: the task's own seed for its first episode."""
    return (
        np.uint32(seed)
        if not repetition
        else np.random.SeedSequence((seed, repetition)).generate_state(1, np.uint32)[0]
    )


def _at(state: Any, time: Any) -> Any:
    """Sets the state's time."""
    return dataclasses.replace(state, time=time) if dataclasses.is_dataclass(state) else state._replace(time=time)
