"""ULTRA: from findings to arrays, equations 1 and 2 against plain loops, and its limits: no table is PPO."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.analyst import CriticalState, analyse
from nlrl_jax.algorithms.ultra import GuidanceConfig
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.pong import prompts
from nlrl_jax.envs.pong import rule_based as scripted
from nlrl_jax.gymnax_base import spaces
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.types import ControlGame
from tests.algorithms.pong_agent import CONFIG, GAME, recorded


class Spaces:
    """As much of an environment as a table needs: 3 numbers, 2 continuous actions."""

    def observation_space(self, params):
        return spaces.Box(-1, 1, (3,))

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (2,))


ROBOT = ControlGame("robot", Spaces(), None)
NAN, INF, BALL = float("nan"), float("inf"), [36, 30, 20, 40, 1, 2]


def critical(obs, taken, suggested=None, rewards=None, judged=True):
    verdict = Verdict(0, True, suggested, "", judged)
    return CriticalState(0, verdict, np.asarray(obs, np.float32), taken, rewards or {}, {})


@pytest.fixture(scope="module")
def findings():
    return analyse(recorded(), prompts.roles(points=1), ScriptedModel(scripted.SCRIPTS))


def test_equal_states_are_one_row_by_vote_and_mean():
    other_opponent = [36, 10, 20, 40, 1, 2]
    table = ultra.make_table(
        [
            critical(BALL, 0, 1, {0: -1.0, 1: 0.5}),
            critical(other_opponent, 0, 1, {0: -0.5, 1: 1.0}),
            critical(BALL, 1, 2, {1: 0.0}),
            critical([36, 30, 20, 42, 1, 2], 2, None, {2: 0.25}),
        ],
        GAME,
    )
    assert table.codes.shape == (2,) and table.suggested.tolist() == [True, False]
    row = int(ultra.look_up(table, GAME, 0.3, jnp.asarray([BALL], jnp.float32))[1][0])
    assert table.action[row] == 1
    rewards = {
        int(a): float(r) for a, r, known in zip(table.judged[row], table.rewards[row], table.known[row]) if known
    }
    assert rewards == pytest.approx({0: -0.75, 1: 0.5})


def test_the_exact_table_is_met_by_its_states_and_no_other(findings):
    episodes = recorded()
    table = ultra.make_table(findings.states, GAME)
    inside = {tuple(np.delete(state.observation, 1)) for state in findings.states}
    everything = np.concatenate([episode.observations for episode in episodes])
    hit, row = ultra.look_up(table, GAME, 0.3, jnp.asarray(everything))
    expected = [tuple(np.delete(obs, 1)) in inside for obs in everything]
    np.testing.assert_array_equal(hit, expected)
    assert 0 < np.mean(expected) < 1
    codes = np.asarray(GAME.state_code(jnp.asarray(everything)))
    np.testing.assert_array_equal(np.asarray(table.codes)[np.asarray(row)[expected]], codes[expected])


def test_the_nearest_critical_state_counts_within_the_radius():
    rng = np.random.default_rng(0)
    keys, seen = rng.normal(size=(20, 3)), rng.normal(size=(50, 3))
    mean, scale = np.array([0.1, -0.2, 0.3]), np.array([1.0, 2.0, 0.5])
    table = ultra.make_table([critical(key, (0.0, 0.0)) for key in keys], ROBOT, mean, scale)
    hit, row = ultra.look_up(table, ROBOT, 0.6, jnp.asarray(seen, jnp.float32))
    distance = np.sqrt((((seen[:, None] - keys[None]) / scale) ** 2).mean(-1))
    np.testing.assert_array_equal(row, distance.argmin(1))
    np.testing.assert_array_equal(hit, distance.min(1) <= 0.6)
    assert 0 < np.mean(hit) < 1


def test_the_nearest_critical_state_is_the_nearest_far_from_the_origin_too():
    """Where |x|^2 is 1e8, float32 knows it to within 8."""
    rng = np.random.default_rng(0)
    keys = (1e4 + np.arange(40)[:, None] + rng.uniform(-0.2, 0.2, (40, 3))).astype(np.float32)
    near = (keys + rng.uniform(-0.1, 0.1, keys.shape)).astype(np.float32)
    table = ultra.make_table([critical(key, (0.0, 0.0)) for key in keys], ROBOT)
    hit, row = ultra.look_up(table, ROBOT, 0.3, jnp.asarray(near))
    assert hit.all() and row.tolist() == list(range(40))


@pytest.mark.parametrize(
    "game, state, says",
    [
        (GAME, critical(BALL, 3), "action 3 is not one of the game's; it must be a whole number from 0 to 2"),
        (GAME, critical(BALL, 0, -1), "action -1"),
        (GAME, critical(BALL, 0, None, {1: NAN}), "the reward of action 1 is nan"),
        (GAME, critical(BALL, 0, None, {7: 0.5}), "action 7"),
        (ROBOT, critical([0, 0, 0], (0.0, 1.5)), "it must be 2 numbers within the action space's bounds"),
        (ROBOT, critical([0, 0, 0], (0.0, 0.5), (0.0, 0.5, 0.1)), "action (0.0, 0.5, 0.1)"),
        (ROBOT, critical([0, 0, 0], (0.0, 0.5), None, {(NAN, 0.0): 1.0}), "episode 0, timeslot 0: action (nan"),
        (ROBOT, critical([0, 0, 0], (0.0, 0.5), None, {(0.0, 0.5): INF}), "is inf; it must be a finite number"),
    ],
)
def test_a_table_refuses_impossible_actions_and_rewards(game, state, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        ultra.make_table([state], game)


def test_equation_1_replaces_where_there_is_a_suggestion():
    obs = jnp.asarray([[36, 30, 20, 40, 1, 2], [36, 30, 20, 42, 1, 2], [0, 0, 0, 0, 0, 2]], jnp.float32)
    table = ultra.make_table([critical(obs[0], 0, 1), critical(obs[1], 2, None)], GAME)
    hit, row = ultra.look_up(table, GAME, 0.3, obs)
    assert hit.tolist() == [True, True, False]
    action, replaced = ultra.true_action(table, hit, row, jnp.array([2, 2, 2]))
    assert action.tolist() == [1, 2, 2] and replaced.tolist() == [True, False, False]


def test_who_says_nothing_usable_of_an_action_has_no_vote():
    unread = [critical(BALL, 1, judged=False)] * 2
    for others, suggestion in (([critical(BALL, 1, 2)], 2), ([critical(BALL, 1, 2), *[critical(BALL, 1)] * 2], 1)):
        table = ultra.make_table([*unread, *others], GAME)
        assert table.suggested.tolist() == [True] and table.action.tolist() == [suggestion]
    assert not ultra.make_table(unread, GAME).suggested.any()


def test_equation_2_pays_for_judged_actions_only():
    obs = jnp.asarray([[36, 30, 20, 40, 1, 2]] * 3 + [[0, 0, 0, 0, 0, 2]], jnp.float32)
    table = ultra.make_table([critical(obs[0], 0, 1, {0: -1.0, 1: 0.5})], GAME)
    hit, row = ultra.look_up(table, GAME, 0.3, obs)
    assert ultra.language_reward(table, hit, row, jnp.array([0, 1, 2, 0])).tolist() == [-1.0, 0.5, 0.0, 0.0]


def test_a_continuous_action_gets_the_reward_of_the_nearest_judged_one():
    state = critical([0, 0, 0], (1.0, 1.0), (-1.0, -1.0), {(1.0, 1.0): -0.5, (-1.0, -1.0): 0.8})
    unread = critical([9, 9, 9], (1.0, 1.0))
    table = ultra.make_table([state, unread], ROBOT)
    obs = jnp.asarray([[0.0, 0, 0], [0.1, 0, 0], [9, 9, 9], [5, 5, 5]])
    hit, row = ultra.look_up(table, ROBOT, 0.3, obs)
    assert hit.tolist() == [True, True, True, False]
    action = jnp.asarray([[0.9, 0.2], [-0.3, -0.1], [1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(ultra.language_reward(table, hit, row, action), [-0.5, 0.8, 0.0, 0.0], rtol=1e-6)
    replaced, where = ultra.true_action(table, hit, row, action)
    np.testing.assert_allclose(replaced, [[-1, -1], [-1, -1], [1, 1], [1, 1]])
    assert where.tolist() == [True, True, False, False]


def test_advice_as_an_offset_moves_the_agents_own_action():
    """Near the state, by the offset alone; where the advice is the base agent's own mean action, not at all."""
    own = lambda obs: 0.5 * obs[:, :2]  # the base agent's mean action
    states = [
        critical([0.4, 0.8, 0], (0.9, 0.9), (0.7, -0.6), {(0.9, 0.9): -1.0, (0.7, -0.6): 1.0}),
        critical([8.0, 8.0, 0], (0.0, 0.0), (0.4, 0.4)),
        critical([-0.6, 0.2, 0], (0.0, 0.0), (-0.3, 0.1)),
    ]
    table = ultra.make_table(states, ROBOT, mean_action=own)
    obs = jnp.asarray([[0.5, 0.7, 0.1], [-0.6, 0.3, 0.0], [3.0, 3.0, 3.0]])
    action = jnp.asarray([[0.3, 0.3], [0.3, 0.3], [0.3, 0.3]])
    hit, row = ultra.look_up(table, ROBOT, 0.3, obs)
    moved, where = ultra.true_action(table, hit, row, action, 0.5)
    assert where.tolist() == [True, True, False]
    # the first advice is (0.7, -0.6) where the agent's mean is (0.2, 0.4)
    np.testing.assert_allclose(moved, [[0.3 + 0.5 * 0.5, 0.3 - 0.5 * 1.0], [0.3, 0.3], [0.3, 0.3]], atol=1e-6)
    copied = ultra.true_action(ultra.make_table(states, ROBOT), hit, row, action)[0]
    np.testing.assert_allclose(copied, [[0.7, -0.6], [-0.3, 0.1], [0.3, 0.3]], atol=1e-6)


def test_rated_actions_are_compared_by_their_offsets():
    """The same torque is the good one in the rated state and the bad one where the agent's mean lies 1 higher."""
    own = lambda obs: obs[:, :2]
    state = critical([0.0, 0, 0], (0.5, 0.0), (-0.5, 0.0), {(0.5, 0.0): 1.0, (-0.5, 0.0): -1.0})
    table = ultra.make_table([state], ROBOT, mean_action=own)
    hooks = ultra.guidance(ROBOT, GuidanceConfig(alpha=2.0, radius=9.0), own)
    obs = jnp.asarray([[[0.0, 0, 0]], [[1.0, 0, 0]]])  # [T, B, D]
    zeros = jnp.zeros((2, 1))
    steps = ppo.Transitions(obs, jnp.asarray([[[0.6, 0.0]]] * 2), zeros, obs, *[zeros] * 3, {}, zeros, zeros)
    paid, _, metrics = hooks.bonus(table, steps, None)
    assert paid.tolist() == [[2.0], [-2.0]] and metrics["critical"] == 1


@pytest.fixture(scope="module")
def plain():
    state = ppo.init_state(GAME.env, GAME.params, CONFIG, jax.random.key(0))
    return state, jax.jit(ppo.make_update(GAME.env, GAME.params, CONFIG))(state, jax.random.key(1))[0]


@pytest.fixture(scope="module")
def guided():
    return jax.jit(ppo.make_update(GAME.env, GAME.params, CONFIG, ultra.guidance(GAME, GuidanceConfig())))


def test_suggested_actions_are_executed_and_learned_from(plain, findings):
    state, _ = plain
    table = ultra.make_table(findings.states, GAME)
    hooks = ultra.guidance(GAME, GuidanceConfig())
    _, steps = jax.jit(ppo.make_collect(GAME.env, GAME.params, CONFIG, hooks))(
        state.replace(aux=table), jax.random.key(1)
    )
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    hit, row = ultra.look_up(table, GAME, 0.3, flat(steps.obs))
    expected = np.asarray(hit & table.suggested[row])
    np.testing.assert_array_equal(flat(steps.replaced), expected)
    np.testing.assert_array_equal(flat(steps.action)[expected], table.action[row][expected])


def test_a_replaced_action_has_at_least_the_floors_advantage(plain):
    """The loss with a floor equals the loss of advantages that a plain loop has raised."""
    state, _ = plain
    rng = np.random.default_rng(0)
    obs = np.asarray(state.obs)
    N = len(obs)
    batch = {
        "obs": obs,
        "action": np.zeros(N, int),
        "old_log_probs": np.full(N, -1.0),
        "advantages": rng.normal(size=N),
        "targets": np.zeros(N),
        "replaced": np.arange(N) % 2 == 0,
    }
    agent, arrays = ppo.agent_of(GAME.env, GAME.params, CONFIG), jax.tree.map(jnp.asarray, batch)
    hooks = lambda **fields: ultra.guidance(GAME, GuidanceConfig(**fields))
    loss = lambda hooks: ppo.surrogate(agent, CONFIG, state.params, state.obs_moments, arrays, hooks)[1]["policy_loss"]
    A = (batch["advantages"] - batch["advantages"].mean()) / batch["advantages"].std()
    raised = np.array([max(a, 2.0) if replaced else a for a, replaced in zip(A, batch["replaced"])])
    log_prob = jax.nn.log_softmax(agent.policy(state.params, state.obs_moments, obs)[0])[:, 0]
    ratio = np.exp(np.asarray(log_prob) + 1.0)
    expected = lambda A: -np.minimum(ratio * A, np.clip(ratio, 0.8, 1.2) * A).mean()
    np.testing.assert_allclose(loss(hooks(floor=2.0)), expected(raised), rtol=1e-4)
    for plain_hooks in (ppo.Hooks(), hooks(), hooks(floor=2.0, actions=False)):
        np.testing.assert_allclose(loss(plain_hooks), expected(A), rtol=1e-4)


NONSENSE = ("", "I do not know.", "{timeslot 0, <critical>, <jump>, <>}", "reward = nan", "{" * 500, "timeslot 9999999")


@pytest.mark.parametrize("text", NONSENSE)
def test_an_analyst_that_says_nothing_useful_leaves_plain_ppo(plain, guided, text):
    model = ScriptedModel(dict.fromkeys(scripted.SCRIPTS, lambda context, rng: text))
    found = analyse(recorded(), prompts.roles(points=1), model)
    assert all(state.verdict.action is None and not state.rewards for state in found.states)
    assert text or not found.states  # no critical state at all
    ours, metrics = guided(plain[0].replace(aux=ultra.make_table(found.states, GAME)), jax.random.key(1))
    assert metrics["finite"] and metrics["replaced"] == metrics["language_reward"] == 0
    assert found.states or metrics["critical"] == 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours.params, plain[1].params)


def test_statistics_are_of_the_steps_that_count():
    obs = np.arange(12.0).reshape(3, 2, 2)
    mean, std = ultra.statistics(obs, np.array([3, 1]))
    rows = np.array([[0, 1], [4, 5], [8, 9], [2, 3]])
    np.testing.assert_allclose(mean, rows.mean(0))
    np.testing.assert_allclose(std, rows.std(0))
