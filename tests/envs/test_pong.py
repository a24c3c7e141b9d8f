"""Pong: its rules step by step, the frame, and that a state's code says everything that matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.envs.pong import env as pong
from nlrl_jax.envs.pong import frames
from nlrl_jax.envs.pong.env import LEFT, RIGHT, STAY, PongState

GAME = pong.control_game(points=1)
STEP = jax.jit(GAME.env.step_env)


def state_of(ball, velocity, racket=36, opponent=36, score=(0, 0), aim=4):
    whole = lambda x: jnp.asarray(x, jnp.int32)
    return PongState(*(whole(x) for x in (0, racket, opponent, ball, velocity, aim, score)))


def step(state, action=STAY, game=GAME, seed=0):
    _, state, reward, terminated, _ = STEP(jax.random.key(seed), state, jnp.int32(action), game.params)
    return state, float(reward), bool(terminated)


def test_move_right_lowers_the_row_by_two():
    for action, row in ((STAY, 36), (RIGHT, 34), (LEFT, 38)):
        assert step(state_of((20, 40), (1, 2)), action)[0].racket == row
    assert step(state_of((20, 40), (1, 2), racket=0), RIGHT)[0].racket == 0
    assert step(state_of((20, 40), (1, 2), racket=72), LEFT)[0].racket == 72


@pytest.mark.parametrize(
    "ball, velocity", [((36, 40), (3, 2)), ((5, 30), (-4, 2)), ((70, 41), (4, 2)), ((0, 68), (0, 2))]
)
def test_the_way_in_a_case_is_the_way_that_the_ball_flies(ball, velocity):
    """Until it reaches our racket's column; the racket stands out of its way."""
    way, state = frames.path(ball, velocity), state_of(ball, velocity, racket=72 if ball[0] < 40 else 0)
    for row, column in way[:-1]:
        state, _, _ = step(state, STAY)
        assert tuple(state.ball) == (row, column)
    assert way[-1][1] == pong.OURS and len(way) == -(-(pong.OURS - ball[1]) // 2)
    assert frames.path(ball, (velocity[0], -2)) == []


def test_a_case_shows_the_arrival_beside_our_racket():
    states = jax.tree.map(lambda *x: jnp.stack(x), state_of((36, 40), (0, 2)), state_of((36, 40), (0, -2)))
    plain, case = GAME.draw(states), GAME.draw_case(states, [0, 1], [None, 2])
    np.testing.assert_array_equal(plain[1], case[1])  # it flies away
    rows, columns = np.nonzero((case[0] == frames._ARRIVAL).all(-1))
    assert set(rows // frames.SCALE) == {36, 37} and (columns // frames.SCALE > pong.OURS).all()
    changed = (plain[0] != case[0]).any(-1)
    assert changed[3 * 37 - 1 : 3 * 37 + 1, 3 * 42 : 3 * 70].any() and not changed[:, : 3 * 42].any()


@pytest.mark.parametrize(
    "ball, velocity, then, there",
    [
        ((40, 40), (3, 2), (43, 42), (3, 2)),
        ((1, 40), (-3, 2), (2, 42), (3, 2)),
        ((77, 40), (4, -2), (75, 38), (-4, -2)),
    ],
)
def test_the_ball_flies_straight_and_bounces_off_the_walls(ball, velocity, then, there):
    after, _, _ = step(state_of(ball, velocity))
    assert tuple(after.ball) == then and tuple(after.velocity) == there


@pytest.mark.parametrize("offset, angle", [(-1, -4), (0, -3), (1, -2), (3, 0), (5, 2), (7, 4)])
def test_where_the_racket_is_met_decides_the_angle(offset, angle):
    after, reward, over = step(state_of((36 + offset, 68), (0, 2)))
    assert tuple(after.velocity) == (angle, -2) and tuple(after.ball) == (36 + offset, 69)
    assert reward == 0 and not over


@pytest.mark.parametrize("row", (34, 44))  # one row beyond either end
def test_a_missed_ball_is_a_point_for_the_other_side(row):
    state, rewards = state_of((row, 68), (0, 2)), []
    for _ in range(3):
        state, reward, over = step(state)
        rewards.append(reward)
    assert rewards[:2] == [0, -1] and tuple(state.score) == (0, 1)
    state = state_of((row, 11), (0, -2), opponent=row + 20 if row < 40 else row - 20)
    state, reward, _ = step(state)
    state, reward, over = step(state)
    assert reward == 1 and over


def test_the_loser_of_a_point_is_served():
    game = pong.control_game(points=21)
    assert step(state_of((0, 70), (0, 2)), game=game)[0].velocity[1] == 2
    assert step(state_of((0, 9), (0, -2), opponent=60), game=game)[0].velocity[1] == -2


def test_the_opponent_follows_the_ball_two_rows_a_step():
    assert step(state_of((70, 40), (1, -2)))[0].opponent == 38
    assert step(state_of((70, 40), (1, 2), opponent=50))[0].opponent == 48  # back to the middle while it leaves


def test_a_game_is_over_at_21_points():
    game = pong.control_game(points=21)
    final, _, over = step(state_of((0, 70), (0, 2), score=(3, 20)), game=game)
    assert over and tuple(final.score) == (3, 21)
    assert not step(state_of((0, 70), (0, 2), score=(3, 19)), game=game)[2]


def play(key, steps, policy):
    """A point and more under `policy`: every state, observation and reward."""
    obs, state = GAME.env.reset_env(key, GAME.params)

    def one(carry, key):
        obs, state = carry
        action = policy(obs, key)
        next_obs, next_state, reward, _, _ = GAME.env.step_env(key, state, action, GAME.params)
        return (next_obs, next_state), (state, obs, action, reward)

    return jax.lax.scan(one, (obs, state), jax.random.split(key, steps))[1]


def test_equal_codes_are_equal_states_and_the_same_future():
    at_random = lambda obs, key: jax.random.randint(key, (), 0, 3)
    states, obs, _, _ = jax.jit(jax.vmap(lambda key: play(key, 200, at_random)))(
        jax.random.split(jax.random.key(0), 50)
    )
    flat = np.asarray(obs).reshape(-1, 6)
    codes = np.asarray(GAME.state_code(jnp.asarray(flat)))
    assert codes.min() >= 0
    relevant = np.delete(flat, 1, axis=1)
    assert len(np.unique(codes)) == len(np.unique(relevant, axis=0)) > 1000
    space = GAME.env.observation_space(GAME.params)
    assert (flat >= space.low).all() and (flat <= space.high).all()


def test_the_frame_shows_rackets_and_ball():
    frame = np.asarray(frames.draw(jnp.int32(10), jnp.int32(60), jnp.array([5, 30])))
    rows, columns = np.nonzero(frame == 0.5)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 17, 70, 71)
    rows, columns = np.nonzero(np.isclose(frame, 0.35))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (60, 67, 8, 9)
    assert np.argwhere(frame == 1).tolist() == [[5, 30], [6, 30]]


def test_who_looks_where_the_ball_will_be_beats_who_moves_at_random():
    at_random = lambda obs, key: jax.random.randint(key, (), 0, 3)
    follow = lambda obs, key: jnp.where(obs[2] - 3 < obs[0] - 1, RIGHT, jnp.where(obs[2] - 3 > obs[0] + 1, LEFT, STAY))
    keys = jax.random.split(jax.random.key(0), 100)
    mean = {}
    for name, policy in (("random", at_random), ("follow", follow)):
        rewards = jax.jit(jax.vmap(lambda key, policy=policy: play(key, 400, policy)[3]))(keys)
        mean[name] = float(rewards.sum() / jnp.abs(rewards).sum())
    assert mean["random"] < -0.5 and mean["follow"] > mean["random"] + 0.3
