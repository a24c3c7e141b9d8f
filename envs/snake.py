"""Two-player Snake, Snake-Standard and Snake-Poison (MS-GRPO, "Experimental setup" and appendix).

Rules, those of the engine the paper adapts:
- both snakes start as a head without body; both move at once;
- a snake dies on leaving the board, on entering a cell that any snake covered *before* the moves (a tail
  that is just moving away included), and when both heads enter the same cell, which kills both;
- a dead snake stays where it was; its step earns -3 and nothing else;
- eating an apple earns +1 (-1 for poison) and adds a segment: the tail does not move in that step;
- after the moves every eaten apple reappears on a random empty cell;
- the game ends when at most one snake lives, so also on the enemy's death.
The enemy moves uniformly among the moves that avoid the walls and its own body, or among all four if
there is none; the tail of three or more cells, which it believes to move away, does not deter it, though
to enter it is to die. The engine's own start sometimes overlaps heads and apples; here all start cells differ.

Bounds: a snake of `max_length` cells still earns for apples but grows no more. An apple that finds no
empty cell disappears.

A cell is row * size + column. A snake is stored as the age of each cell, so that a move needs no queue: the head has
the snake's length, the tail 1, and a step without an apple subtracts 1 everywhere.

    a snake of 4 cells eats an apple (A) and grows, then moves right:

    . . . . .        . . . . .        . . . . .
    . 3 4 A .   ->   . 3 4 5 .   ->   . 2 3 4 5
    . 2 . . .        . 2 . . .        . 1 . . .
    . 1 . . .        . 1 . . .        . . . . .
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs import grid_text
from nlrl_jax.envs.grid_text import ACTIONS
from nlrl_jax.envs.options import check_text_game, integer
from nlrl_jax.envs.random_cells import computed_once, distinct_cells, pack, pack_cell, random_cell, random_choice
from nlrl_jax.envs.shell import DiscreteGame, on_any_mesh
from nlrl_jax.gymnax_base import environment
from nlrl_jax.text.template import Literal, Template
from nlrl_jax.types import TextGame

YOU, ENEMY = 0, 1
DEATH_REWARD = -3.0

VIEW = 7  # side of what the compact prompt shows
SYMBOLS = ("_", "A", "T", "1", "2", "X", "x")
VIEW_SYMBOLS = (*SYMBOLS, "O")  # O: off the board
LEGEND = {
    "1": "own head", "2": "enemy's head", "T": "body of a snake", "A": "apple", "_": "empty", "X": "own head, dead",
    "x": "enemy's head, dead", "O": "off the board",
}  # fmt: skip
_WALL = len(SYMBOLS)
_EMPTY, _APPLE, _BODY, _HEAD, _ENEMY_HEAD, _DEAD_HEAD, _DEAD_ENEMY_HEAD = range(7)


@struct.dataclass
class SnakeState(environment.EnvState):
    """Two snakes and the apples on N = size * size cells; row 0 of each pair is you, row 1 the enemy.

    Attributes:
      time: int32 [].
      ages: int8 [2, N]; 0 where the snake is not, its length at the head, one less per segment, 1 at the tail.
      head: int32 [2], cell indices.
      length: int32 [2], cells covered, head included.
      alive: bool [2].
      apples: bool [N].
    """

    ages: jax.Array
    head: jax.Array
    length: jax.Array
    alive: jax.Array
    apples: jax.Array


@struct.dataclass
class SnakeParams(environment.EnvParams):
    """Lengths and rewards.

    Attributes:
      max_steps_in_episode: the paper trains with 10 and evaluates with 20.
      apple_reward: -1 for poison.
    """

    max_steps_in_episode: int = 100
    apple_reward: float = 1.0


def targets(head: jax.Array, action: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Moves heads [...] by actions [...]: (cell index, whether it is on the board), [...] each; shapes broadcast."""
    rows, columns = grid_text.offset(action)
    row, column = head // size + rows, head % size + columns
    inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
    return jnp.where(inside, row * size + column, head), inside


def covered(ages: jax.Array) -> jax.Array:
    """Which cells a snake covers: ages int8 [2, N] -> bool [N]."""
    # Not `any`: XLA would compute what `ages` follows from anew within its loop over the snakes, for every cell.
    return (ages[YOU] > 0) | (ages[ENEMY] > 0)


def enemy_moves(state: SnakeState, size: int) -> jax.Array:
    """Finds the enemy's valid actions: bool [4]; all four if none avoids the walls and its own body."""
    cells, inside = targets(state.head[ENEMY], np.arange(4), size)
    deters = jnp.where(state.length[ENEMY] > 2, 2, 1)  # the age from which on: a tail has age 1
    valid = inside & (state.ages[ENEMY][cells] < deters)
    has_none = ~functools.reduce(jnp.logical_or, valid)
    return valid | has_none


def advance(
    state: SnakeState, actions: jax.Array, size: int, max_length: int
) -> tuple[SnakeState, jax.Array, jax.Array]:
    """Moves both snakes, which die or eat; eaten apples go and are not yet replaced. A finished game stays as it is.

    Args:
      state: before the moves.
      actions: int32 [2], yours and the enemy's.

    Returns:
      (state, ate, died): after the moves; bool [2] who ate and who died in them.
    """
    cells = np.arange(size * size)
    # 1. Where the heads go; both look at the board before the moves.
    cell, inside = targets(state.head, actions, size)
    cell = computed_once(cell)
    occupied = covered(state.ages)
    playing = state.alive[YOU] & state.alive[ENEMY]
    # 2. Who dies: off the board, on a covered cell, or head to head.
    collide = inside[YOU] & inside[ENEMY] & (cell[YOU] == cell[ENEMY])
    died = computed_once(playing & (~inside | occupied[cell] | collide))
    moves = playing & ~died
    # 3. Who eats, and grows.
    ate = computed_once(moves & state.apples[cell])
    grows = ate & (state.length < max_length)
    length = state.length + grows
    # 4. Tails move, except of those that grow; 5. heads enter their cells; 6. eaten apples go.
    ages = state.ages - ((moves & ~grows)[:, None] & (state.ages > 0)).astype(jnp.int8)
    entered = cells == cell[:, None]
    eaten = ate[:, None] & entered
    after = state.replace(
        time=state.time + 1,
        ages=jnp.where(moves[:, None] & entered, length[:, None].astype(jnp.int8), ages),
        head=jnp.where(moves, cell, state.head),
        length=length,
        alive=state.alive & ~died,
        apples=state.apples & ~(eaten[YOU] | eaten[ENEMY]),
    )
    return after, ate, died


def respawn(state: SnakeState, ate: jax.Array, words: jax.Array) -> SnakeState:
    """Puts one new apple for each true `ate` [2] on uniformly random empty cells, from uint32 words [2]."""
    # The second apple is drawn from the cells that the first one leaves: its bit is cleared from the packed cells.
    cells = np.arange(state.apples.shape[-1])
    empty = pack(~(covered(state.ages) | state.apples))
    yours = jnp.where(ate[YOU], random_cell(words[YOU], empty), -1)
    enemys = jnp.where(ate[ENEMY], random_cell(words[ENEMY], empty & ~pack_cell(yours, len(empty))), -1)
    return state.replace(apples=state.apples | (cells == yours) | (cells == enemys))


class Snake(DiscreteGame):
    """gymnax environment for snake 1; snake 2 moves at random inside `advance`.

    Observations are float32 [size, size, 5]: your head, your body, enemy head, enemy body, apples.

    Args:
      size: side of the board, up to 32.
      num_apples: apples on the board.
      max_length: cells a snake may cover, head included, 2 to 127.

    Raises:
      ValueError: an argument outside its range, or a board too small for heads and apples.
    """

    def __init__(self, size: int = 10, num_apples: int = 5, max_length: int = 30):
        integer("size", size, 2, 32)  # a row of the board must fit 32 bits
        integer("num_apples", num_apples, 1)
        integer("max_length", max_length, 2, 127)
        if size * size < num_apples + 2:
            raise ValueError(
                f"size {size} and num_apples {num_apples}: two heads and at least one apple must fit on the board"
            )
        super().__init__(ACTIONS, (size, size, 5), SnakeParams())
        self.size, self.num_apples, self.max_length = size, num_apples, max_length

    def start(self, key: jax.Array, params: SnakeParams) -> SnakeState:
        """Puts two heads and the apples on different random cells."""
        cells = np.arange(self.size * self.size)
        places = distinct_cells(jax.random.bits(key, (2 + self.num_apples,), jnp.uint32), len(cells))
        return SnakeState(
            time=jnp.int32(0),
            ages=(cells == places[:2, None]).astype(jnp.int8),
            head=places[:2],
            length=jnp.ones(2, jnp.int32),
            alive=jnp.ones(2, bool),
            apples=functools.reduce(jnp.logical_or, [cells == place for place in places[2:]]),
        )

    def advance(self, key, state, action, params):
        """info["enemy_action"] is snake 2's move, int32 []."""
        words = jax.random.bits(key, (3,), jnp.uint32)
        enemy = random_choice(words[0], enemy_moves(state, self.size))
        actions = jnp.stack([jnp.asarray(action, jnp.int32), enemy])
        state, ate, died = advance(state, actions, self.size, self.max_length)
        state = respawn(state, ate, words[1:])
        reward = jnp.where(died[YOU], DEATH_REWARD, ate[YOU] * params.apple_reward).astype(jnp.float32)
        return state, reward, self.is_terminated(state, params), {"enemy_action": enemy}

    def is_terminated(self, state: SnakeState, params: SnakeParams) -> jax.Array:
        """Whether at most one snake lives: bool []."""
        return ~(state.alive[YOU] & state.alive[ENEMY])

    def observe(self, key, state, action, params) -> jax.Array:
        """Returns float32 [size, size, 5], planes of your head, your body, enemy head, enemy body and apples."""
        heads = np.arange(self.size * self.size) == state.head[:, None]
        bodies = (state.ages > 0) & ~heads
        planes = (heads[YOU], bodies[YOU], heads[ENEMY], bodies[ENEMY], state.apples)
        floats = jnp.stack([plane.astype(jnp.float32) for plane in planes], axis=-1)
        return floats.reshape(self.size, self.size, 5)

    @on_any_mesh
    def fields(self, state: SnakeState) -> dict[str, jax.Array]:
        """Computes what the text of a state reads, all int32; S = max_length - 1.

        Returns:
          num_apples []; apple_x, apple_y [num_apples], in reading order; head_x, head_y, enemy_head_x,
          enemy_head_y []; num_segments, num_enemy_segments []; segment_x, segment_y, enemy_segment_x,
          enemy_segment_y [S], from neck to tail; cells [size * size], indices into `SYMBOLS`; view [VIEW * VIEW], the
          cells around your head, indices into `VIEW_SYMBOLS`.
        """
        result = {"num_apples": state.apples.sum(dtype=jnp.int32)}
        apples = grid_text.first_cells(state.apples, self.num_apples)
        result["apple_x"], result["apple_y"] = grid_text.xy(apples, self.size)
        for snake, prefix in ((YOU, ""), (ENEMY, "enemy_")):
            x, y = grid_text.xy(state.head[snake], self.size)
            result[f"{prefix}head_x"], result[f"{prefix}head_y"] = x, y
            ages = state.length[snake] - 1 - np.arange(self.max_length - 1)  # from neck to tail
            segments = jnp.argmax(state.ages[snake] == jnp.maximum(ages, 1)[:, None], axis=1).astype(jnp.int32)
            x, y = grid_text.xy(segments, self.size)
            result[f"{prefix}segment_x"], result[f"{prefix}segment_y"] = x, y
            result[f"num_{prefix}segments"] = state.length[snake] - 1
        numbers = np.arange(self.size * self.size)
        cells = jnp.where((state.ages > 0).any(0), _BODY, jnp.where(state.apples, _APPLE, _EMPTY))
        marks = jnp.where(state.alive, np.array([_HEAD, _ENEMY_HEAD]), np.array([_DEAD_HEAD, _DEAD_ENEMY_HEAD]))
        for snake in (YOU, ENEMY):
            cells = jnp.where(numbers == state.head[snake], marks[snake], cells)
        result["cells"] = cells.astype(jnp.int32)
        padded = jnp.pad(result["cells"].reshape(self.size, self.size), VIEW // 2, constant_values=_WALL)
        corner = (state.head[YOU] // self.size, state.head[YOU] % self.size)
        result["view"] = jax.lax.dynamic_slice(padded, corner, (VIEW, VIEW)).reshape(-1)
        return result


def observation_template(size: int, num_apples: int, max_length: int, apple_reward: int) -> Template:
    """Returns the dynamic text of the paper prompt."""
    legend = (("1", "head of your snake"), ("2", "head of the enemy snake"), ("T", "body of a snake"))
    legend += (("A", "apple"), ("_", "empty cell"))
    segments = max_length - 1
    return Template(
        (
            Literal(f"{grid_text.conventions(size)}\nApples at: "),
            grid_text.points("apple", num_apples, size, empty="none"),
            Literal(f" (worth {apple_reward} points each)\nEnemy snakes positions:\n"),
            Literal("* Snake ID 2 has head at position "),
            *grid_text.point("enemy_head", size),
            Literal(" and body segments at ["),
            grid_text.points("enemy_segment", segments, size, empty=""),
            Literal("]\nYour snake (ID 1) has head at position "),
            *grid_text.point("head", size),
            Literal(" and body segments at ["),
            grid_text.points("segment", segments, size, empty=""),
            Literal("]\nYour head is at "),
            *grid_text.point("head", size),
            Literal(f"\n{grid_text.legend(legend)}"),
        )
    ) + grid_text.grid(SYMBOLS, size)


def _rules(poison: bool, prompt: str) -> str:
    if prompt == "compact":
        return "You are 1. Avoid A, 2, T and O." if poison else "You are 1. Eat A. Avoid 2, T and O."
    apple = (
        "- Apples are poisonous: avoid them. Eating one costs you 1 point and makes your snake one segment longer"
        if poison
        else "- Eating an apple earns you 1 point and makes your snake one segment longer"
    )
    return (
        "You control one of the snakes in a multiplayer game of Snake.\n"
        "Rules:\n"
        "- Each move takes your head one cell up, down, left or right\n"
        f"{apple}\n"
        "- You die if you run into a wall, your own body or another snake\n"
        f"{grid_text.ACTION_RULE}"
    )


def text_game(
    poison: bool = False,
    size: int = 10,
    prompt: str = "paper",
    max_steps: int = 100,
    num_apples: int = 5,
    max_length: int = 30,
) -> TextGame:
    """Makes Snake as a text game (MS-GRPO, appendix, Snake-Standard and Snake-PoisonApple).

    The wording is ours; fields, symbols, lists and layout are the paper's. The appendix calls the
    dynamic text of both variants the same; we read that as the same form, and write `worth -1 points
    each` for poison. `X` and `x` mark heads of dead snakes; no acting player sees them.

    The compact prompt, for very small models, shows the cells around your head alone, with `O` for what lies off
    the board: the model need not find itself first, and apples farther than three cells away are not seen.

    Args:
      poison: apples cost a point.
      size, num_apples, max_length: as in `Snake`.
      prompt: "paper" or "compact".
      max_steps: steps until truncation.

    Raises:
      ValueError: an argument outside its range.
    """
    check_text_game(prompt, max_steps)
    env = Snake(size, num_apples, max_length)
    board, view = grid_text.grid(SYMBOLS, size), grid_text.grid(VIEW_SYMBOLS, VIEW, "view")
    value = -1 if poison else 1
    return TextGame(
        name="snake_poison" if poison else "snake",
        env=env,
        params=SnakeParams(max_steps_in_episode=max_steps, apple_reward=float(value)),
        rules=_rules(poison, prompt),
        actions=ACTIONS,
        observation=view if prompt == "compact" else observation_template(size, num_apples, max_length, value),
        fields=env.fields,
        board=board,
        legend=LEGEND | {"A": "poisonous apple"} if poison else LEGEND,
    )
