"""Pong on 80 x 80 cells, the game of ULTRA (appendix A2 and B): two rackets, a ball, first to 21 points.

The paper calls the row x and the column y; rackets move along the rows only. Our racket stands on columns 70-71, the
opponent's on 8-9, each 8 rows long; the ball covers two rows of one column. "Move right" lowers the row by 2.

    0 ------------------------------ column ------------------------------ 79
    |         8-9                                            70-71
    |          #                                               |
   row         #        o -> (row, column) velocity            |
    |          #                                               |

The paper's Pong is ALE's. This is a game with the same geometry and its own simple dynamics, whole numbers throughout:

- The ball flies 2 columns per step. One that is hit leaves with a row velocity that depends on where it met the racket,
  from -4 at one end to 4 at the other.
- The opponent follows the ball by at most two rows per step while it comes, aiming to meet it with a spot of its racket
  that it draws anew at each of our hits; so it misses what is played far and fast enough.
- Our racket moves `racket_speed` rows per step, without inertia.
- A point ends when the ball is past a racket; the next serve goes to whoever lost it, from the middle column.

docs/lab/measurements_ultra.md compares both games. With `points=1` an episode is one point.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from nlrl_jax.envs.options import integer
from nlrl_jax.envs.pong import prompts, rule_based
from nlrl_jax.envs.pong.frames import LOWEST, OURS, RACKET, SIZE, THEIRS, case_frames, frames
from nlrl_jax.envs.pong.prompts import ACTIONS
from nlrl_jax.envs.shell import DiscreteGame
from nlrl_jax.gymnax_base import environment
from nlrl_jax.types import ControlGame

TOP = SIZE - RACKET  # a racket's top row is 0..72
STAY, RIGHT, LEFT = range(3)
OBSERVED = ("racket", "opponent", "ball row", "ball column", "row velocity", "column velocity")
SPEED = 2  # columns a step, of the ball


@struct.dataclass
class PongState(environment.EnvState):
    """The rackets, the ball and the score, all int32, in rows and columns of the screen.

    Attributes:
      time: [].
      racket, opponent: [], top rows.
      ball, velocity: [2], row and column.
      aim: [], the row of its racket with which the opponent wants to meet the ball.
      score: [2], ours and theirs.
    """

    racket: jax.Array
    opponent: jax.Array
    ball: jax.Array
    velocity: jax.Array
    aim: jax.Array
    score: jax.Array


@struct.dataclass
class PongParams(environment.EnvParams):
    """How long a game lasts and how fast the rackets are.

    Attributes:
      points: how many win the game.
      racket_speed, opponent_speed: rows per step.
    """

    max_steps_in_episode: int = 10_000
    points: int = 21
    racket_speed: int = 2
    opponent_speed: int = 2


class Pong(DiscreteGame):
    """One player's view, as a gymnax environment. Actions: 0 stay, 1 move right (row down), 2 move left."""

    def __init__(self):
        low, high = jnp.array([0, 0, 0, 0, -4, -2.0]), jnp.array([TOP, TOP, LOWEST, SIZE - 1, 4, 2.0])
        super().__init__(ACTIONS, (len(OBSERVED),), PongParams(), low, high)

    def start(self, key, params):
        """Puts the rackets in the middle and serves to either side."""
        middle = jnp.int32(TOP // 2)
        key_side, key_serve = jax.random.split(key)
        ball, velocity, aim = _serve(key_serve, jnp.where(jax.random.bernoulli(key_side), 1, -1))
        zero = jnp.int32(0)
        return PongState(zero, middle, middle, ball, velocity, aim, jnp.zeros(2, jnp.int32))

    def advance(self, key, state, action, params):
        """Reward 1 for a point won, -1 for one lost. info["point"] is the same; the episode ends at `points` points."""
        # 1. Both rackets move, 2. then the ball flies, and is hit or missed.
        racket = move(state.racket, action, params.racket_speed)
        opponent = follow(state, params.opponent_speed)
        key_serve, key_aim = jax.random.split(key)
        ball, velocity, hit, point = fly(state.ball, state.velocity, racket, opponent)
        # 3. At our hit the opponent draws the row of its racket with which it will meet the ball.
        aim = jnp.where(hit, jax.random.randint(key_aim, (), 0, RACKET), state.aim)
        # 4. Where the point is over, the next one is served to its loser.
        served = _serve(key_serve, -point)
        is_over = point != 0
        ball, velocity, aim = (jnp.where(is_over, new, old) for new, old in zip(served, (ball, velocity, aim)))
        score = state.score + jnp.stack([point > 0, point < 0]).astype(jnp.int32)
        state = PongState(state.time + 1, racket, opponent, ball, velocity, aim, score)
        reward = point.astype(jnp.float32)
        return state, reward, self.is_terminated(state, params), {"point": reward}

    def observe(self, key, state, action, params):
        """float32 [6], see `OBSERVED`."""
        numbers = [state.racket, state.opponent, *state.ball, *state.velocity]
        return jnp.stack(numbers).astype(jnp.float32)

    def is_terminated(self, state, params):
        return jnp.max(state.score) >= params.points


def move(racket: jax.Array, action: jax.Array, speed: int) -> jax.Array:
    """Moves our racket: its top row, int32 [], after one of our actions."""
    return jnp.clip(racket + jnp.array([0, -1, 1])[action] * speed, 0, TOP)


def follow(state: PongState, speed: int) -> jax.Array:
    """Moves the opponent's racket towards the ball while it comes, else towards the middle: its top row, int32 []."""
    comes = state.velocity[1] < 0
    target = jnp.where(comes, state.ball[0] + 1 - state.aim, TOP // 2)
    return jnp.clip(state.opponent + jnp.clip(target - state.opponent, -speed, speed), 0, TOP)


def fly(ball, velocity, racket, opponent):
    """Moves the ball one step past walls and rackets.

    Args:
      ball, velocity: int32 [2], row and column. racket, opponent: top rows, already moved.

    Returns: (ball, velocity, our racket has hit it, point: 1 we have won one, -1 lost one, else 0).
    """
    # 1. The ball flies on; a wall throws it back as a mirror does.
    row, column = ball[0] + velocity[0], ball[1] + velocity[1]
    row_velocity = jnp.where((row < 0) | (row > LOWEST), -velocity[0], velocity[0])
    row = jnp.where(row < 0, -row, jnp.where(row > LOWEST, 2 * LOWEST - row, row))
    # 2. A racket hits a ball that passes the column it faces while their rows overlap.
    our_hit = _met(row, racket) & (ball[1] < OURS) & (column >= OURS)
    their_hit = _met(row, opponent) & (ball[1] > THEIRS) & (column <= THEIRS)
    hit = our_hit | their_hit
    angle = _bounce(row - jnp.where(our_hit, racket, opponent))
    velocity = jnp.where(hit, jnp.stack([angle, -velocity[1]]), jnp.stack([row_velocity, velocity[1]]))
    column = jnp.where(our_hit, OURS - 1, jnp.where(their_hit, THEIRS + 1, column))
    # 3. Past the racket, the ball's point is decided though it is still on the board.
    point = jnp.where(column < THEIRS - 1, 1, jnp.where(column > OURS + 1, -1, 0))
    return jnp.stack([row, column]), velocity, our_hit, point


def _met(row, top):
    """Whether the ball's two rows and a racket's eight overlap."""
    return (row + 1 >= top) & (row <= top + RACKET - 1)


def _bounce(offset):
    """Returns the row velocity, -4 to 4, of a ball that meets a racket.

    Its upper row is `offset`, -1 to 7, below the top of the racket.
    """
    return jnp.clip(offset, -1, RACKET - 1) - 3


def _serve(key, side):
    """Serves from the middle column and a random row: (ball, velocity, aim); side 1 is ours, -1 the opponent's."""
    key_row, key_angle, key_aim = jax.random.split(key, 3)
    row = jax.random.randint(key_row, (), SIZE // 4, 3 * SIZE // 4)
    angle = jnp.array([-2, -1, 1, 2])[jax.random.randint(key_angle, (), 0, 4)]
    aim = jax.random.randint(key_aim, (), 0, RACKET)
    return jnp.stack([row, jnp.int32(SIZE // 2)]), jnp.stack([angle, SPEED * side]).astype(jnp.int32), aim


def state_code(obs: jax.Array, cell: int = 1) -> jax.Array:
    """Encodes all of an observation that our racket's fate depends on as one number: float [..., 6] -> int32 [...].

    Ball, its velocity and our racket; where the opponent stands is left out. With `cell` 1 different states have
    different codes; otherwise rows and columns count in blocks of so many.
    """
    # A number in mixed radix: rows and columns count to SIZE, velocities from -4 to 4.
    racket, _, row, column, row_velocity, column_velocity = jnp.moveaxis(obs.astype(jnp.int32), -1, 0)
    code = racket // cell
    for number, base in ((row // cell, SIZE), (column // cell, SIZE), (row_velocity + 4, 9), (column_velocity + 4, 9)):
        code = code * base + number
    return code


def control_game(points: int = 1, cell: int = 1, **params) -> ControlGame:
    """Makes Pong for control agents.

    Args:
      points: 1 (an episode is one point) or 21, the whole game.
      cell: side of the blocks of rows and columns within which states are equal (`state_code`); 1 is exact.
      **params: other fields of `PongParams`.

    Raises:
      ValueError: a number outside its range.
    """
    integer("points", points, 1)
    integer("cell", cell, 1, SIZE)
    for name, minimum in (("max_steps_in_episode", 1), ("racket_speed", 0), ("opponent_speed", 0)):
        integer(name, params.get(name, minimum), minimum)
    limit = {"max_steps_in_episode": 1000 if points == 1 else 10_000}
    return ControlGame(
        name="pong" if points == 1 else f"pong_{points}",
        env=Pong(),
        params=PongParams(points=points, **{**limit, **params}),
        actions=ACTIONS,
        state_code=functools.partial(state_code, cell=cell),
        roles=prompts.roles(points=points),
        scripts=rule_based.SCRIPTS,
        draw=frames,
        draw_case=case_frames,
        score="mean outcome of a point" if points == 1 else f"points won less points lost, first to {points}",
        human_reward=pong_return,
    )


_SPEED = OBSERVED.index("column velocity")


def pong_return(steps: Any) -> jax.Array:
    """Pays 1 where our racket returns the ball, else 0: float32 [T, B].

    The ball came to us before the step and flies away after it. A serve never looks like that: the ball is served to
    us after a point lost to a ball that came, and to the opponent after one won with a ball that flew away.
    """
    returned = (steps.obs[..., _SPEED] > 0) & (steps.next_obs[..., _SPEED] < 0)
    return returned.astype(jnp.float32)
