"""Demonstrations of mixed quality, made on the device: what the nano model is pretrained on, and what
a real model learns the reply format from (`launch/warm_start.py`).

Half of the walkers know the way, and half do not see danger. A model trained on both *can* do the
right thing and often does not: reinforcement learning then has something to select.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs import frozen_lake, grid_text, snake
from nlrl_jax.envs.babyai import rules as babyai
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import TextGame

FAR = 1_000


def frozen_lake_walk(
    key: jax.Array, state: frozen_lake.FrozenLakeState, skilled: jax.Array, habit: bool
) -> tuple[Any, jax.Array]:
    """Puts a player on a random tile of its map and walks three moves from there.

    Args:
      skilled: bool []; True takes any shortest safe path, False any shortest path of the empty board.
      habit: the unskilled walker always goes down before it goes right. Where that leads into a hole, a model of
        both walkers usually follows the habit, though it knows better.

    Returns: (state, actions int32 [3]); -1 once the walk has ended.
    """
    tiles = state.holes.shape[-1]
    size = int(np.sqrt(tiles))
    goal = tiles - 1
    cells, directions = jnp.arange(tiles), jnp.arange(4)
    neighbours = jax.vmap(lambda d: frozen_lake.move(cells, d, size))(directions).T  # [tiles, 4]

    def distances(free):
        def relax(_, dist):
            return jnp.where(free, jnp.minimum(dist, 1 + dist[neighbours].min(axis=1)), FAR)

        return jax.lax.fori_loop(0, tiles, relax, jnp.where(cells == goal, 0, FAR))

    safe = distances(~state.holes)
    dist = jnp.where(skilled, safe, distances(jnp.ones_like(state.holes)))
    key, key_start = jax.random.split(key)
    startable = (safe < FAR) & (cells != goal)
    position = jax.random.categorical(key_start, jnp.where(startable, 0.0, -jnp.inf))
    state = state.replace(position=position.astype(jnp.int32))

    def walk(carry, key):
        position, ended = carry
        options = dist[neighbours[position]]
        noise = jax.random.uniform(key, (4,), maxval=0.5) * (skilled | (not habit))  # breaks ties
        action = jnp.argmin(options + noise)
        after = neighbours[position, action]
        done = (after == goal) | state.holes[after]
        return (jnp.where(ended, position, after), ended | done), jnp.where(ended, -1, action)

    _, actions = jax.lax.scan(walk, (position, jnp.array(False)), jax.random.split(key, 3))
    return state, actions


def snake_walk(
    key: jax.Array, state: snake.SnakeState, skilled: jax.Array, habit: bool = False
) -> tuple[Any, jax.Array]:
    """Walks three moves of a snake that heads for the nearest apple.

    Args:
      skilled: bool []; False looks at nothing in its way but walls.
      habit: the unskilled snake does not look for apples either: it goes down, else right, else up.

    Returns: (state, actions int32 [3]).
    """
    size = int(np.sqrt(state.apples.shape[-1]))
    cells = jnp.arange(size * size)
    apples, occupied = state.apples, (state.ages > 0).any(0)

    def nearest(cell):
        apart = jnp.abs(cell // size - cells // size) + jnp.abs(cell % size - cells % size)
        return jnp.min(jnp.where(apples, apart, FAR))

    def walk(head, key):
        to, inside = snake.targets(head, jnp.arange(4), size)
        cost = jax.vmap(nearest)(to) + jax.random.uniform(key, (4,), maxval=0.5)
        if habit:
            cost = jnp.where(skilled, cost, jnp.array([2.0, 0.0, 3.0, 1.0]))  # Up, Down, Left, Right
        cost = cost + 4 * FAR * ~inside + jnp.where(skilled, 2 * FAR * occupied[to], 0)
        action = jnp.argmin(cost)
        return to[action], action

    _, actions = jax.lax.scan(walk, state.head[snake.YOU], jax.random.split(key, 3))
    return state, actions


def babyai_walk(
    key: jax.Array, state: babyai.BabyAIState, skilled: jax.Array, habit: bool = False
) -> tuple[Any, jax.Array]:
    """Walks three actions towards the nearest target in sight and picks it up, else turns right.

    Args:
      skilled: bool []; False goes forward until something is in the way, then turns to any side.
      habit: not used.

    Returns: (state, actions int32 [3]); -1 once the mission is fulfilled.
    """

    def walk(now, key):
        code, at = babyai.codes(now), babyai.view_index(now)
        target = jnp.where(now.done > 0, babyai.matches(now, 1), babyai.matches(now, 0))
        sideward, forward = at // babyai.VIEW - babyai.VIEW // 2, babyai.VIEW - 1 - at % babyai.VIEW
        in_sight = target & (at >= 0) & (code[at] > 0)
        nearest = jnp.argmin(jnp.where(in_sight, jnp.abs(sideward) + forward, FAR))
        sideward, forward = sideward[nearest], forward[nearest]
        free = code[babyai.HERE - 1] == babyai.EMPTY
        aside = jnp.where(sideward < 0, babyai.TURN_LEFT, babyai.TURN_RIGHT)
        onward = free & (forward > 0)
        faces = (sideward == 0) & (forward == 1)
        action = jnp.where(in_sight.any(), jnp.where(onward, babyai.FORWARD, aside), babyai.TURN_RIGHT)
        action = jnp.where(in_sight.any() & faces, babyai.PICK_UP, action)
        blind = jnp.where(free, babyai.FORWARD, jax.random.bernoulli(key).astype(jnp.int32))
        action = jnp.where(skilled, action, blind)
        is_done = babyai.success(now)
        after = jax.tree.map(lambda a, b: jnp.where(is_done, a, b), now, babyai.step(now, action))
        return after, jnp.where(is_done, -1, action)

    _, actions = jax.lax.scan(walk, state, jax.random.split(key, 3))
    return state, actions


WALKS = {
    "frozen_lake": frozen_lake_walk,
    "frozen_lake_slippery": frozen_lake_walk,  # as if the ice were not
    "snake": snake_walk,
    "snake_poison": snake_walk,
    "babyai": babyai_walk,
}
HABITS = tuple(name for name, walk in WALKS.items() if walk is not babyai_walk)  # games with walkers of habit


def demonstrate(
    game: TextGame, key: jax.Array, num: int, skilled_share: float, habit: bool
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Makes `num` states and the actions shown for them.

    Returns the fields, each [num, ...], and the actions, int32 [num, A], -1 after the last.

    Between one action and as many as a reply may name [A]. A game without a walker of its own shows random actions in
    states that random actions lead to: the form of a reply and nothing of how to play.
    """
    max_actions = game.max_actions_per_turn

    def example(key):
        key_reset, key_skill, key_walk, key_length, key_play = jax.random.split(key, 5)
        _, state = game.env.reset_env(key_reset, game.params)
        if game.name not in WALKS:
            state = _play_on(game, key_play, state, lambda key, state: _random_action(game, key))
            actions = jax.vmap(lambda key: _random_action(game, key))(jax.random.split(key_walk, max_actions))
        else:
            walk = WALKS[game.name]
            if walk in (snake_walk, babyai_walk):
                state = _play_on(game, key_play, state, lambda key, state: walk(key, state, jnp.array(True))[1][0])
            skilled = jax.random.bernoulli(key_skill, skilled_share)
            state, actions = walk(key_walk, state, skilled, habit)
        num_shown = jax.random.randint(key_length, (), 1, max_actions + 1)
        return game.fields(state), jnp.where(jnp.arange(max_actions) < num_shown, actions, -1)

    return jax.vmap(example)(jax.random.split(key, num))


def _random_action(game: TextGame, key: jax.Array) -> jax.Array:
    """Draws an action, int32 []."""
    return jax.random.randint(key, (), 0, len(game.actions))


def _play_on(game: TextGame, key: jax.Array, state: Any, act: Callable[[jax.Array, Any], jax.Array]) -> Any:
    """Plays up to 20 moves into the game, so that not only beginnings are seen."""
    moves = jax.random.randint(jax.random.fold_in(key, 0), (), 0, 20)

    def play(i, state):
        key_act, key_step = jax.random.split(jax.random.fold_in(key, i + 1))
        _, after, _, terminated, _ = game.env.step_env(key_step, state, act(key_act, state), game.params)
        go = (i < moves) & ~terminated  # a move that ends the game is not made
        return jax.tree.map(lambda a, b: jnp.where(go, a, b), after, state)

    return jax.lax.fori_loop(0, 20, play, state)


def reply_template(game: TextGame, prompt: str) -> Template:
    """Returns the form of a reply that names given actions with little thought.

    The actions are the first "num_shown" of the field "shown", int [A].
    """
    word = Choice("shown", game.actions)

    def listed(separator: str) -> Repeat:
        return Repeat("num_shown", game.max_actions_per_turn, (word,), separator)

    action = Template((Literal("<action>"), listed(" || "), Literal("</action>")))
    if prompt == "compact":
        return action
    if WALKS.get(game.name) in (None, babyai_walk):
        observed = (
            Literal("<observe>The state is given above.</observe>\n<think>Any action that is listed counts.</think>\n"),
        )
        return Template((*observed, Literal("<plan>I choose "), listed(", then "), Literal(".</plan>\n"))) + action
    size = math.isqrt(len([part for part in game.board.parts if isinstance(part, Choice)]))
    subject, aim = ("head", "Apples") if game.name.startswith("snake") else ("player", "The goal")
    observed = (Literal("<observe>I am at "), *grid_text.point(subject, size), Literal(".</observe>\n"))
    thought = Literal(f"<think>{aim} and what ends the game are given as (X, Y).</think>\n<plan>I go ")
    return Template((*observed, thought, listed(", then "), Literal(".</plan>\n"))) + action
