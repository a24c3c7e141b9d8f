"""Episodes under `lax.scan` against hand-worked ones and against a plain Python loop over the environment."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.frozen_lake import FrozenLake, FrozenLakeState
from nlrl_jax.rollouts import text_games
from nlrl_jax.text.host import of_text_game
from nlrl_jax.text.parser import ParsedReply
from nlrl_jax.text.policy import TokenTurn

UP, DOWN, LEFT, RIGHT = range(4)
NO = -1  # an invalid action
GAME = envs.make("frozen_lake")


class Scripted:
    """Plays `table[episode, cell]`, up to three actions; writes random bits where a prompt would be; counts turns."""

    def __init__(self, table):
        self.table, self.calls, self.prefixes = jnp.asarray(table, jnp.int32), 0, 0

    def prefix(self, variables):
        self.prefixes += 1

    def act(self, variables, prefix, key, fields, active):
        jax.debug.callback(self._count)
        B = active.shape[0]
        cell = 4 * (3 - fields["player_y"]) + fields["player_x"]
        actions = self.table[jnp.arange(B), cell]
        valid = jnp.sum(actions >= 0, axis=1)
        zeros = jnp.zeros(B, jnp.int32)
        parsed = ParsedReply(actions, valid, 3 - valid, zeros, zeros > 0, jnp.zeros(B))
        bits = jax.random.bits(key, (B, 1)).astype(jnp.int32)
        return TokenTurn(bits, zeros + 1, zeros[:, None], zeros + 1, jnp.zeros((B, 1)), zeros == 0, parsed)

    def _count(self):
        self.calls += 1


def lake(holes=(), position=0):
    return FrozenLakeState(time=np.int32(0), position=np.int32(position), holes=np.isin(np.arange(16), holes))


def play(policy, states, max_turns, max_steps, game=GAME, seeds=(0,)):
    """Episodes on the host; a list of them for several seeds."""
    f = jax.jit(lambda key: text_games.play(policy, game, {}, key, states, max_turns, max_steps))
    out = [jax.device_get(f(jax.random.key(seed))) for seed in seeds]
    jax.effects_barrier()
    return out[0] if len(out) == 1 else out


def script(**cells):
    """A table row from c0=(...) and so on; elsewhere nothing valid is said."""
    row = np.full((16, 3), NO)
    for cell, actions in cells.items():
        row[int(cell[1:])] = actions
    return row


def test_invalid_actions_after_the_end_are_not_fined():
    """Right reaches the goal, or the step limit; what is named after it is nobody's action any more."""
    table = [script(c14=(RIGHT, NO, NO)), script(c14=(NO, RIGHT, NO)), script(c14=(NO, LEFT, NO))]
    states = jax.tree.map(lambda *x: jnp.stack(x), *[lake(position=14)] * 3)
    out = play(Scripted(np.stack(table)), states, max_turns=1, max_steps=1)
    np.testing.assert_array_equal(out.turns.invalid, [[0, 1, 1]])
    out = play(Scripted(np.stack(table)), states, max_turns=1, max_steps=5)
    np.testing.assert_array_equal(out.turns.invalid, [[0, 1, 2]])


def test_fields_are_those_before_the_turn():
    row = script(c8=(DOWN, RIGHT, RIGHT), c14=(RIGHT, LEFT, LEFT))
    out = play(Scripted(row[None]), jax.tree.map(lambda x: jnp.asarray(x)[None], lake(position=8)), 4, 5)
    assert out.turns.fields["player_x"][:2, 0].tolist() == [0, 2]
    assert out.turns.fields["player_y"][:2, 0].tolist() == [1, 0]


def test_every_turn_has_its_own_key_and_the_prefix_is_computed_once():
    policy = Scripted(np.full((7, 16, 3), NO))
    out = play(policy, jax.tree.map(lambda x: jnp.stack([x] * 7), lake()), max_turns=4, max_steps=5)
    assert len(np.unique(out.turns.turn.prompts)) == out.turns.turn.prompts.size == 28
    assert policy.prefixes == 1 and policy.calls == 4


def test_nothing_is_said_once_all_episodes_are_over():
    policy = Scripted(np.stack([script(c0=(RIGHT, NO, NO)), script(c14=(RIGHT, NO, NO))]))
    states = jax.tree.map(lambda *x: jnp.stack(x), lake(holes=[1]), lake(position=14))
    out = play(policy, states, max_turns=5, max_steps=10)
    assert policy.calls == 1
    np.testing.assert_array_equal(out.turns.active, [[1, 1]] + [[0, 0]] * 4)
    assert not any(x[1:].any() for x in jax.tree.leaves(out.turns))


def test_equals_a_python_loop_over_the_environment():
    B, max_turns, max_steps = 200, 4, 8
    rng = np.random.default_rng(0)
    table = rng.choice([NO, UP, DOWN, LEFT, RIGHT], p=[0.15, 0.1, 0.3, 0.1, 0.35], size=(B, 16, 3))
    states = text_games.reset(GAME, jax.random.key(1), B)
    assert len(np.unique(np.asarray(states.holes), axis=0)) > B // 2  # different maps
    out = play(Scripted(table), states, max_turns, max_steps)
    step = jax.jit(GAME.env.step_env)
    row = lambda b, tree: jax.tree.map(lambda x: x[b], tree)
    ends = set()
    for b in range(B):
        (state, final_fields), terminated, taken = row(b, (states, out.final_fields)), False, 0
        for t in range(max_turns):
            active, reward, steps, invalid = not terminated and taken < max_steps, 0.0, 0, 0
            if active:
                for action in table[b, int(state.position)]:
                    if terminated or taken == max_steps:
                        break
                    if action == NO:
                        invalid += 1
                        continue
                    _, state, r, terminated, _ = step(jax.random.key(0), state, action, GAME.params)
                    reward, steps, taken = reward + float(r), steps + 1, taken + 1
            turns = out.turns
            got = (turns.active[t, b], turns.reward[t, b], turns.steps[t, b], turns.invalid[t, b])
            assert got == (active, reward, steps, invalid), (b, t)
        success = int(state.position) == 15
        assert (out.terminated[b], out.success[b]) == (bool(terminated), success)
        jax.tree.map(np.testing.assert_array_equal, final_fields, jax.device_get(GAME.fields(state)))
        ends.add((bool(terminated), success, taken == max_steps))
    kinds = {(True, True, False), (True, True, True), (True, False, False), (False, False, True), (False, False, False)}
    assert kinds <= ends


def test_slippery_steps_follow_the_key():
    game = envs.make("frozen_lake_slippery")
    policy = Scripted(np.full((64, 16, 3), RIGHT))
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (64, *x.shape)), jax.tree.map(jnp.asarray, lake()))
    first, same, other = play(policy, states, 2, 6, game, seeds=(0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, same)
    ends = lambda out: list(zip(out.final_fields["player_x"], out.final_fields["player_y"]))
    assert ends(first) != ends(other)
    assert len(set(ends(first))) > 4  # rows slip independently


class Drawn:
    """Random valid actions, as many as the game takes in a reply."""

    def __init__(self, game):
        self.each, self.number = game.max_actions_per_turn, len(game.actions)

    def prefix(self, variables):
        return None

    def act(self, variables, prefix, key, fields, active):
        B = active.shape[0]
        actions = jax.random.randint(key, (B, self.each), 0, self.number)
        zeros = jnp.zeros(B, jnp.int32)
        parsed = ParsedReply(actions, zeros + self.each, zeros, zeros, zeros > 0, jnp.zeros(B))
        return TokenTurn(zeros[:, None], zeros + 1, zeros[:, None], zeros + 1, jnp.zeros((B, 1)), zeros == 0, parsed)


@pytest.mark.parametrize(
    "name",
    [
        "frozen_lake",
        "snake",
        "maze_medium",
        "tic_tac_toe",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("babyai", "breakthrough", "crafter")),
    ],
)
def test_an_episode_ends_at_the_environments_own_limit(name):
    """Not at the caller's, which is later; the next reply finds it over."""
    game = envs.make(name, max_steps=4)
    states = jax.jit(lambda key: text_games.reset(game, key, 32))(jax.random.key(3))
    out = play(Drawn(game), states, 10, 10, game)
    steps = out.turns.steps.sum(0)
    assert steps.max() == 4 and (steps[~out.terminated] == 4).all() and (steps >= 1).all()
    assert not out.terminated.all()
    np.testing.assert_array_equal(out.turns.active.sum(0), -(-steps // game.max_actions_per_turn))


@pytest.mark.parametrize(("limit", "success"), [(3, False), (4, True)])
def test_the_device_and_the_host_end_an_episode_at_the_same_step(limit, success):
    """Down, then three times right, is the goal: a success after the environment's limit is none."""
    game = envs.make("frozen_lake", max_steps=limit)
    row = script(c8=(DOWN, RIGHT, RIGHT), c14=(RIGHT, NO, NO), c12=(NO, NO, NO))
    out = play(Scripted(row[None]), jax.tree.map(lambda x: jnp.asarray(x)[None], lake(position=8)), 4, 10, game)
    assert out.turns.steps.sum() == limit and out.success[0] == out.terminated[0] == success
    assert out.turns.reward.sum() == success and out.turns.invalid.sum() == 0
    host, state = of_text_game(game), (np.uint32(0), lake(position=8))
    for action in ("Down", "Right", "Right", "Right"):
        (outcome,) = host.step([state], [action])
        state = outcome.state
        if outcome.done:
            break
    assert (state[1].time, outcome.success, outcome.reward) == (limit, success, float(success))


def test_a_limit_that_is_no_number_of_steps_ends_episodes_too():
    """An environment's own `is_truncated`, on the device and on the host; an environment without one has no limit."""

    class Strict(FrozenLake):
        def is_truncated(self, state, params):
            return state.position == 14

    game = dataclasses.replace(GAME, env=Strict())
    row = script(c8=(DOWN, RIGHT, RIGHT), c14=(RIGHT, NO, NO))
    states = jax.tree.map(lambda x: jnp.asarray(x)[None], lake(position=8))
    out = play(Scripted(row[None]), states, 4, 10, game)
    assert out.turns.steps.sum() == 3 and not out.terminated[0] and not out.success[0]
    (outcome,) = of_text_game(game).step([(np.uint32(0), lake(position=13))], ["Right"])
    assert outcome.done and not outcome.success
    bare = types.SimpleNamespace(reset_env=GAME.env.reset_env, step_env=GAME.env.step_env)
    assert play(Scripted(row[None]), states, 4, 10, dataclasses.replace(GAME, env=bare)).success[0]


def test_a_game_without_success_never_succeeds():
    game = dataclasses.replace(GAME, success=None)
    states = jax.tree.map(lambda x: jnp.asarray(x)[None], lake(position=14))
    out = play(Scripted(script(c14=(RIGHT, NO, NO))[None]), states, 1, 1, game)
    assert out.terminated[0] and not out.success[0] and out.turns.reward[0, 0] == 1
