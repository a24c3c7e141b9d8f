import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs import snake

STEPS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}  # Up, Down, Left, Right as (row, column)


class Reference:
    """The rules of FACTS.md and the paper, slowly: snakes are lists of (row, column), head first."""

    def __init__(self, size, max_length, heads, apples):
        self.size, self.max_length = size, max_length
        self.snakes = [[head] for head in heads]
        self.apples = set(apples)

    def moves(self, who):
        row, column = self.snakes[who][0]
        return [(row + down, column + right) for down, right in STEPS.values()]

    def on_board(self, cell):
        return all(0 <= part < self.size for part in cell)

    def enemy_valid(self):
        body = self.snakes[1][: -1 if len(self.snakes[1]) > 2 else None]
        valid = {a for a, cell in enumerate(self.moves(1)) if self.on_board(cell) and cell not in body}
        return valid or set(STEPS)

    def step(self, actions):
        """(reward of snake 1, whether the game is over, number of eaten apples)."""
        before = set(self.snakes[0]) | set(self.snakes[1])
        to = [self.moves(who)[action] for who, action in enumerate(actions)]
        dead = [not self.on_board(cell) or cell in before or to[0] == to[1] for cell in to]
        ate = [not dead[who] and to[who] in self.apples for who in (0, 1)]
        for who in (0, 1):
            if dead[who]:
                continue
            self.snakes[who].insert(0, to[who])
            if not ate[who] or len(self.snakes[who]) > self.max_length:
                self.snakes[who].pop()
            self.apples.discard(to[who])
        reward = -3 if dead[0] else int(ate[0])
        return reward, any(dead), sum(ate)


def cells_of(flags, size):
    return {(int(cell) // size, int(cell) % size) for cell in np.flatnonzero(flags)}


def body_of(ages, size):
    """Head-first list of cells from an age plane."""
    order = np.argsort(-ages.astype(int), kind="stable")[: (ages > 0).sum()]
    return [(int(cell) // size, int(cell) % size) for cell in order]


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def rollout(env, key, games, steps):
    """Random games without reset; snake 1 mostly avoids walls and itself. Leaves [steps, games, ...]."""
    params = env.default_params

    def step(state, key):
        key_choice, key_rash, key_step = jax.random.split(key, 3)
        swapped = state.replace(ages=state.ages[:, ::-1], head=state.head[:, ::-1])
        careful = jax.vmap(lambda s: snake.enemy_moves(s, env.size))(swapped)
        rash = jax.random.bernoulli(key_rash, 0.1, (games, 1))
        action = jax.random.categorical(key_choice, jnp.where(careful | rash, 0.0, -jnp.inf))
        keys = jax.random.split(key_step, games)
        _, after, reward, over, info = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, action, params)
        return after, (action, info["enemy_action"], after, reward, over)

    key_reset, key_steps = jax.random.split(key)
    _, start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, games), params)
    return start, jax.lax.scan(step, start, jax.random.split(key_steps, steps))[1]


CASES = {"paper": (10, 5, 30, 5000, 25), "bound": (5, 5, 5, 4000, 25), "crowded": (3, 7, 9, 1000, 12)}


@functools.cache
def played(case):
    """(environment, first states, history) of a case; every test of the case reads the same games."""
    size, num_apples, max_length, games, steps = CASES[case]
    env = snake.Snake(size, num_apples, max_length)
    return env, *jax.tree.map(np.asarray, rollout(env, jax.random.key(size), games, steps))


@pytest.mark.parametrize("case", CASES)
def test_lockstep_with_the_slow_reference(case):
    size, _, max_length, games, steps = CASES[case]
    _, start, history = played(case)
    actions, enemy_actions, after, rewards, overs = history
    longest, both_died, enemy_died, ended = 1, 0, 0, 0
    for game in range(games):
        heads = [(int(cell) // size, int(cell) % size) for cell in start.head[game]]
        reference = Reference(size, max_length, heads, cells_of(start.apples[game], size))
        for t in range(steps):
            enemy = int(enemy_actions[t, game])
            assert enemy in reference.enemy_valid()
            reward, over, eaten = reference.step((int(actions[t, game]), enemy))
            assert (reward, over) == (rewards[t, game], overs[t, game])
            for who in (0, 1):
                ages = after.ages[t, game, who]
                assert body_of(ages, size) == reference.snakes[who]
                assert len(reference.snakes[who]) == after.length[t, game, who] == ages.max()
                assert reference.snakes[who][0] == divmod(int(after.head[t, game, who]), size)
            apples = cells_of(after.apples[t, game], size)
            new = apples - reference.apples
            covered = set(reference.snakes[0]) | set(reference.snakes[1])
            room = size * size - len(covered) - len(reference.apples)
            assert reference.apples <= apples and len(new) == min(eaten, room) and not new & covered
            reference.apples = apples
            longest = max(longest, len(reference.snakes[0]))
            if over:
                alive = after.alive[t, game]
                both_died, enemy_died, ended = both_died + (not alive.any()), enemy_died + alive[0], ended + 1
                break
    assert longest >= 5
    assert both_died and enemy_died and ended > games / 4  # the games met every kind of end


def test_a_finished_game_stays_as_it_is():
    _, _, after, rewards, overs = played("bound")[2]
    ended = overs[:-1]
    assert ended.any() and overs[1:][ended].all() and (rewards[1:][ended] == 0).all()
    for leaf in (after.ages, after.head, after.length, after.alive, after.apples):
        np.testing.assert_array_equal(leaf[:-1][ended], leaf[1:][ended])


def test_observations_are_planes_of_the_state():
    env, _, (_, _, after, _, _) = played("bound")
    obs = np.asarray(jax.vmap(lambda state: env.observe(None, state, None, None))(jax.tree.map(lambda x: x[5], after)))
    np.testing.assert_array_equal(obs[..., 4].reshape(after.apples[5].shape), after.apples[5])
    np.testing.assert_array_equal(obs[..., 0].reshape(len(obs), -1).argmax(-1), after.head[5, :, 0])


def test_starts_never_overlap_and_are_uniform():
    env = snake.Snake()
    keys = jax.random.split(jax.random.key(0), 20_000)
    _, state = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, env.default_params)
    ages, apples = np.asarray(state.ages), np.asarray(state.apples)
    assert (ages.sum(-1) == 1).all() and (apples.sum(-1) == 5).all()
    assert ((ages > 0).sum(1) + apples).max() == 1
    for flags, expected in ((ages[:, 0], 0.01), (ages[:, 1], 0.01), (apples, 0.05)):
        error = np.sqrt(expected * (1 - expected) / 20_000)
        np.testing.assert_allclose(flags.mean(0), expected, atol=4.5 * error)


def state_of(env, you, enemy, apples) -> snake.SnakeState:
    """A state from lists of (x, y) text coordinates, heads first."""
    number = lambda point: (env.size - 1 - point[1]) * env.size + point[0]
    ages = np.zeros((2, env.size**2), np.int8)
    for who, points in enumerate((you, enemy)):
        for i, point in enumerate(points):
            ages[who, number(point)] = len(points) - i
    flags = np.zeros(env.size**2, bool)
    flags[[number(point) for point in apples]] = True
    return snake.SnakeState(
        time=jnp.int32(0),
        ages=jnp.asarray(ages),
        head=jnp.array([number(you[0]), number(enemy[0])], jnp.int32),
        length=jnp.array([len(you), len(enemy)], jnp.int32),
        alive=jnp.array([True, True]),
        apples=jnp.asarray(flags),
    )


def test_poison_costs_a_point():
    env, start, history = played("crowded")  # apples on every cell: each step off the start eats or kills
    state = jax.tree.map(lambda leaf: leaf[:200], start)
    params = envs.make("snake_poison").params
    keys = jax.random.split(jax.random.key(0), 200)
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    reward = np.asarray(step(keys, state, history[0][0, :200], params)[2])
    assert set(reward.tolist()) == {-1.0, -3.0}


PAPER_TEXT = """\
The board has 5x5 cells. A cell is written as (X, Y), where X is the column and Y is the row; \
(0, 0) is the bottom left corner and (4, 4) the top right one. \
Up adds 1 to Y, Down subtracts 1 from Y, Right adds 1 to X, Left subtracts 1 from X.
Apples at: (4, 4), (0, 1) (worth 1 points each)
Enemy snakes positions:
* Snake ID 2 has head at position (3, 1) and body segments at []
Your snake (ID 1) has head at position (1, 3) and body segments at [(1, 2), (2, 2)]
Your head is at (1, 3)
Symbols used in the state:
- 1: head of your snake
- 2: head of the enemy snake
- T: body of a snake
- A: apple
- _: empty cell
State:
_ _ _ _ A
_ 1 _ _ _
_ T T _ _
A _ _ 2 _
_ _ _ _ _"""


def test_paper_text():
    game = envs.make("snake", size=5, num_apples=2)
    state = state_of(game.env, [(1, 3), (1, 2), (2, 2)], [(3, 1)], [(0, 1), (4, 4)])
    assert game.observation.render(game.fields(state)) == PAPER_TEXT
    poison = envs.make("snake_poison", size=5, num_apples=2)
    assert "(worth -1 points each)" in poison.observation.render(poison.fields(state))
    assert "costs you 1 point" in poison.rules and "earns you 1 point" in game.rules
    assert game.success is None
    bare = state_of(game.env, [(1, 3)], [(3, 1), (3, 0)], [])
    text = game.observation.render(game.fields(bare))
    assert "Apples at: none (" in text and "segments at [(3, 0)]\nYour" in text


def test_compact_text_is_the_surroundings_of_the_head():
    game = envs.make("snake", size=4, prompt="compact")
    assert "\n" not in game.rules
    state = state_of(game.env, [(1, 3), (1, 2)], [(3, 1), (3, 0), (2, 0)], [(0, 0)])
    board = "_ 1 _ _\n_ T _ _\n_ _ _ 2\nA _ T T"
    assert game.board.render(game.fields(state)) == board
    off = "O O O O O O O\n"
    around = "O O _ 1 _ _ O\nO O _ T _ _ O\nO O _ _ _ 2 O\nO O A _ T T O"
    assert game.observation.render(game.fields(state)) == off * 3 + around
    # your snake is dead, the enemy lives; then both are dead
    lost = game.fields(state.replace(alive=jnp.array([False, True])))
    assert game.board.render(lost) == board.replace("1", "X")
    draw = game.fields(state.replace(alive=jnp.array([False, False])))
    assert game.board.render(draw) == board.replace("1", "X").replace("2", "x")


@pytest.mark.parametrize("case", CASES)
def test_thousands_of_states_render(case):
    size, num_apples, max_length, _, steps = CASES[case]
    game = envs.make("snake", size=size, num_apples=num_apples, max_length=max_length)
    states = jax.tree.map(lambda leaf: leaf[:, :50].reshape(50 * steps, *leaf.shape[2:]), played(case)[2][2])
    fields = jax.tree.map(np.asarray, jax.jit(jax.vmap(game.fields))(states))
    ages, apples = np.asarray(states.ages), np.asarray(states.apples)
    for i in range(len(ages)):
        text = game.observation.render({name: value[i] for name, value in fields.items()})
        grid = text.split("State:\n")[1].split()
        np.testing.assert_array_equal(np.array([mark in "12TXx" for mark in grid]), (ages[i] > 0).any(0))
        np.testing.assert_array_equal(np.array([mark == "A" for mark in grid]), apples[i])
        (line,) = (line for line in text.splitlines() if line.startswith("Your snake"))
        points = ", ".join(f"({column}, {size - 1 - row})" for row, column in body_of(ages[i, 0], size)[1:])
        assert line.endswith(f"body segments at [{points}]")


@pytest.mark.parametrize(
    ("you", "enemy", "apples", "actions", "reward", "alive", "lengths"),
    [
        # 1 A . 2      eats: +1 and one longer
        ([(0, 0)], [(3, 0)], [(1, 0)], ("Right", "Up"), 1, (True, True), (2, 1)),
        # 1 . 2        both heads enter the middle cell, apple or not
        ([(0, 0)], [(2, 0)], [(1, 0)], ("Right", "Left"), -3, (False, False), (1, 1)),
        # 1 2          the heads change places: each enters a cell covered before the moves
        ([(0, 0)], [(1, 0)], [], ("Right", "Left"), -3, (False, False), (1, 1)),
        # T 1          following the own vacating tail round a 2x2 block kills
        # T T
        ([(1, 1), (0, 1), (0, 0), (1, 0)], [(3, 3)], [], ("Down", "Left"), -3, (False, True), (4, 1)),
        # T 2 over 1   your head enters the enemy's vacating tail
        ([(0, 0)], [(1, 1), (0, 1)], [], ("Up", "Right"), -3, (False, True), (1, 2)),
        # a wall
        ([(0, 0)], [(3, 3)], [], ("Left", "Left"), -3, (False, True), (1, 1)),
        # the enemy meets a wall while you eat: the game ends with your point
        ([(0, 0)], [(3, 3)], [(1, 0)], ("Right", "Up"), 1, (True, False), (2, 1)),
    ],
)
def test_hand_made_moves(you, enemy, apples, actions, reward, alive, lengths):
    env = snake.Snake(4, 5)
    state = state_of(env, you, enemy, apples)
    ids = jnp.array([snake.ACTIONS.index(action) for action in actions])
    after, ate, died = jax.jit(snake.advance, static_argnums=(2, 3))(state, ids, 4, 30)
    assert tuple(after.alive.tolist()) == alive and tuple(after.length.tolist()) == lengths
    assert (-3 if died[0] else int(ate[0])) == reward
