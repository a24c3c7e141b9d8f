"""A text game of the device, played by text on the host, as an algorithm of many calls per step needs it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.config import check_seed
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.text.template import Template
from nlrl_jax.types import HostGame, Outcome, Start, TextGame

BLOCK, BLOCKS = 16, 64  # states of a program, and of one where there are more
LEVEL = "xla_backend_optimization_level"
NOTHING = "Nothing happens."  # stands before the observation after a text that is none of the game's actions
ONE_ACTION = "Here every line of actions holds one of them."


def of_text_game(
    game: TextGame,
    texts: Callable[[Any], list[tuple[str, str]]] | None = None,
    optimal: Callable[[Any], int] | None = None,
    max_steps: int = 0,
    kinds: Sequence[str] = ("",),
    draw: Callable[[np.ndarray, np.ndarray], Any] | None = None,
) -> HostGame:
    """Wraps a text game of the device so that it is played by text on the host.

    A text that is none of its actions takes a step, the game's `unknown_action` or one of time alone. An action after
    which nothing but the time has changed (a wall in the way) is invalid and `idle`; one that `info["illegal_move"]`
    marks is only invalid.

    A task has one stream of chance; listed several times in one `reset`, it has another one each time.

    Args:
      kinds, draw: kinds of tasks, and (seeds uint32 [N], indices of kinds int32 [N]) -> the states that episodes begin
        in, with a leading axis; by default one kind and the game's own beginning.
      texts: states with a leading axis -> (goal, observation) of each; by default the first line of the rules and the
        game's observation.
      optimal: one state -> minimum number of actions; by default the game's.
      max_steps: horizon; 0 is the game's own.
    """
    env, params, optimal = game.env, game.params, optimal or game.optimal
    words = {folded(action): i for i, action in enumerate(game.actions)}

    def beginning(seed, _):
        return env.reset_env(jax.random.key(seed), params)[1]

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

    draw, step = draw or in_blocks(beginning), in_blocks(transition)
    won = in_blocks(game.success) if game.success else None
    observe, draw_board = (in_blocks(_fields_of(game, template)) for template in (game.observation, game.board))
    goal = game.rules.strip().partition("\n")[0]

    def read(states) -> list[tuple[str, str]]:
        """Goals and observations of states with a leading axis."""
        if texts:
            return texts(states)
        return [(goal, game.observation.render(row)) for row in _rows(observe(states))]

    def start(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        for kind, *_ in tasks:
            if kind not in kinds:
                raise ValueError(f"{game.name} has no tasks {kind!r}; it has {', '.join(map(repr, kinds))}")
        seeds = np.array([check_seed(seed) for _, seed, _ in counted(tasks)], np.uint32)
        chance = [_chance(seed, repetition) for _, seed, repetition in counted(tasks)]
        states = draw(seeds, np.array([kinds.index(kind) for kind, *_ in tasks], np.int32))
        pairs = zip(chance, _rows(states), read(states), strict=True)
        return [Start((seed, state), *text) for seed, state, text in pairs]

    def advance(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        ids = np.array([words.get(folded(action), -1) for action in actions], np.int32)
        seeds = np.array([seed for seed, _ in states], np.uint32)
        before = jax.tree.map(lambda *leaves: np.stack(leaves), *(state for _, state in states))
        after, reward, terminated, truncated, valid, idle = step(seeds, before, ids)
        success = won(after) if won else np.zeros(len(ids), bool)
        outcomes = []
        for i, (state, text) in enumerate(zip(_rows(after), read(after), strict=True)):
            observation = text[1] if ids[i] >= 0 else f"{NOTHING} {text[1]}"
            ended = bool(terminated[i] | truncated[i]), bool(success[i]), bool(valid[i])
            outcomes.append(Outcome((seeds[i], state), observation, float(reward[i]), *ended, idle=bool(idle[i])))
        return outcomes

    def board(state) -> str:
        return game.board.render(_rows(draw_board(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state[1])))[0])

    return HostGame(
        name=game.name,
        rules=f"{game.rules}\n{ONE_ACTION}",
        actions=game.actions,
        max_steps=max_steps or int(params.max_steps_in_episode),
        kinds=tuple(kinds),
        reset=start,
        step=advance,
        board=board,
        optimal=(lambda state: optimal(state[1])) if optimal else None,
        legend=game.legend,
        score="" if game.success else "return",
        has_success=game.success is not None,
        reversible=True,
    )


def in_blocks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of one state (or of several arguments' rows) for any number of them: trees of numpy arrays with a
    leading axis go in and come out.

    All calls share one program, of `BLOCK` rows, or of `BLOCKS` where there are more: it is computed in a millisecond
    and compiled in seconds. Compiled with little optimisation on a CPU: in half the time.
    """

    @functools.cache
    def program():  # made when it is first called: not before a process has joined others
        options = {} if jax.default_backend() != "cpu" or LEVEL in os.environ.get("XLA_FLAGS", "") else {LEVEL: 0}
        return jax.jit(jax.vmap(function), compiler_options=options)

    def call(*trees):
        n = len(jax.tree.leaves(trees)[0])
        size = BLOCK if n <= BLOCKS else BLOCKS
        results = []
        for at in range(0, n, size):
            block = jax.tree.map(lambda leaf, at=at: _filled(leaf[at : at + size], size), trees)
            results.append(program()(*block))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *jax.device_get(results))

    return call


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """So many rows, the last one repeated."""
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def _rows(tree: Any) -> list[Any]:
    """The trees of the rows."""
    leaves, structure = jax.tree.flatten(tree)
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def _fields_of(game: TextGame, template: Template) -> Callable[[Any], dict[str, jax.Array]]:
    """(state) -> the fields that a template reads; what it does not read is not compiled."""
    names = {field for field, *_ in template.reads()}

    def fields(state):
        return {name: value for name, value in game.fields(state).items() if name in names}

    return fields


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
