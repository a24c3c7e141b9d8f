"""A text game on the host equals its environment."""

import dataclasses

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.roles.dialogues import read_action
from nlrl_jax.text.host import divided, in_blocks, of_text_game

TASKS = [("", 3), ("", 4), ("", 5)]


@pytest.fixture(scope="module")
def game():
    return envs.make("frozen_lake", prompt="compact")


def test_episodes_equal_the_environments(game):
    host = of_text_game(game)
    states = [start.state for start in host.reset(TASKS)]
    keys = [jax.random.key(seed) for _, seed in TASKS]
    expected = [game.env.reset_env(key, game.params)[1] for key in keys]
    for word in ("Right", "Down", "Down"):
        outcomes = host.step(states, [word] * 3)
        states = [outcome.state for outcome in outcomes]
        action = game.actions.index(word)
        for i, outcome in enumerate(outcomes):
            _, expected[i], reward, terminated, _ = game.env.step_env(keys[i], expected[i], action, game.params)
            jax.tree.map(np.testing.assert_array_equal, outcome.state[1], expected[i])
            assert outcome.observation == game.observation.render(jax.device_get(game.fields(expected[i])))
            assert (outcome.reward, outcome.done) == (float(reward), bool(terminated))
            assert outcome.success == bool(game.success(expected[i]))
    assert host.board(states[0]) == game.board.render(jax.device_get(game.fields(expected[0])))


def test_a_text_game_is_a_host_game(game):
    (start,) = of_text_game(game).reset(TASKS[:1])
    assert start.goal == game.rules.splitlines()[0] and "\n" not in start.goal  # the rules are among the instructions
    assert of_text_game(game).rules.endswith("every line of actions holds one of them.")
    assert read_action(" right.", game.actions) == ("Right", "") == read_action("Right, then down", game.actions)
    assert read_action("go right", ("turn left", "go right")) == ("go right", "")


def test_slippery_ice_does_not_depend_on_the_other_episodes():
    host = of_text_game(envs.make("frozen_lake_slippery", prompt="compact"))
    together = [start.state for start in host.reset(TASKS)]
    alone = host.reset(TASKS[2:])[0].state
    for word in ("Right", "Down", "Right"):
        outcomes = host.step(together, [word] * 3)
        together = [outcome.state for outcome in outcomes]
        (only,) = host.step([alone], [word])
        alone = only.state
        assert only.observation == outcomes[2].observation


def test_a_step_compiles_once_also_when_few_episodes_go_on(game):
    traced = []
    host = of_text_game(dataclasses.replace(game, success=lambda state: traced.append(1) or game.success(state)))
    states = [start.state for start in host.reset(TASKS)]
    together, (alone,) = host.step(states, ["Right"] * 3), host.step(states[2:], ["Right"])
    assert len(traced) == 1 and alone.observation == together[2].observation


def test_any_number_of_states_is_computed_in_blocks_of_two_sizes():
    traced = []
    double = in_blocks(lambda x: {"twice": traced.append(x) or 2 * x, "same": x})
    for n in (1, 16, 17, 64, 65, 200):
        rows = np.arange(3 * n).reshape(n, 3)
        got = double(rows)
        np.testing.assert_array_equal(got["twice"], 2 * rows)
        np.testing.assert_array_equal(got["same"], rows)
    assert len(traced) == 2


def test_a_batch_that_begins_meanwhile_changes_no_step(game):
    host = of_text_game(game)
    states = [start.state for start in host.reset(TASKS[:1])]

    class Interrupted(list):
        times = 0

        def __iter__(self):
            self.times += 1
            host.reset(TASKS * self.times)  # as another thread may, with more episodes each time
            return super().__iter__()

    (calm,), (hurried,) = host.step(states, ["Right"]), host.step(Interrupted(states), ["Right"])
    assert hurried.observation == calm.observation


def test_words_that_are_no_action_let_time_pass_and_say_so(game):
    host = of_text_game(game)
    (start,) = host.reset(TASKS[:1])
    (outcome,) = host.step([start.state], ["fly"])
    jax.tree.map(np.testing.assert_array_equal, outcome.state[1], start.state[1].replace(time=np.int32(1)))
    assert (outcome.reward, outcome.done, outcome.valid, outcome.idle) == (0, False, False, False)
    assert outcome.observation == f"Nothing happens. {start.observation}"
    with pytest.raises(ValueError, match="no tasks 'swim'"):
        host.reset([("swim", 1)])


def played(host, *actions):
    """The outcomes of these actions in the first task of each kind."""
    states, outcomes = [start.state for start in host.reset([(host.kinds[0], 0)])], []
    for action in actions:
        outcomes += host.step(states, [action])
        states = [outcomes[-1].state]
    return outcomes


@pytest.mark.parametrize(
    "name, actions, valid, idle",
    [
        ("frozen_lake", ("Left", "Up", "left"), (0, 0, 0), (1, 1, 1)),
        ("maze_double_t", ("move up",) * 12, None, 1),  # the wall comes at last
        ("babyai", ("drop", "turn left", "pick up", "pirouette"), (0, 1, 0, 0), (1, 0, 1, 0)),
        ("crafter", ("noop", "move west", "bow"), (1, 1, 0), (0, 0, 0)),  # the world moves on
        ("snake", ("Up", "xyzzy"), (1, 0), (0, 0)),
    ],
)
def test_an_action_that_changes_nothing_is_invalid_and_not_fined(name, actions, valid, idle):
    outcomes = played(envs.make_host(name), *actions)
    if valid is None:
        outcomes, valid, idle = outcomes[-1:], (0,), (1,)
    assert [outcome.valid for outcome in outcomes] == list(map(bool, valid))
    assert [outcome.idle for outcome in outcomes] == list(map(bool, idle))


def test_a_game_without_success_has_a_return():
    host = envs.make_host("snake")
    outcomes = played(host, *["Up"] * 6)  # into the wall at last
    assert (host.score, host.has_success) == ("return", False) and not any(outcome.success for outcome in outcomes)
    lake = envs.make_host("frozen_lake")
    assert (lake.score, lake.has_success) == ("", True)


def test_an_unknown_word_costs_what_the_original_says():
    """LMRL-Gym's mazes: -4 and a step."""
    one, other = played(envs.make_host("maze_double_t"), "fly", "move up")
    assert (one.reward, one.valid, one.idle, other.reward) == (-4.0, False, False, -1.0)
    assert (one.state[1].time, other.state[1].time) == (1, 2) and one.observation.startswith("Nothing happens. ")


def test_an_illegal_move_is_invalid():
    game = envs.make("tic_tac_toe", side="X")
    first, again = played(of_text_game(game), game.actions[0], game.actions[0])
    assert first.valid and not again.valid and not again.idle and again.state[1].time == 2


def test_unknown_words_cost_time_in_babyai_as_steps_do_in_minigrid():
    minigrid_env = pytest.importorskip("minigrid.envs.babyai").GoToObj(max_steps=30)
    host = envs.make_host("babyai")
    (start,) = host.reset([("go to", 0)])
    steps, (outcome,) = 0, [start]
    while not getattr(outcome, "done", False):
        action = "abracadabra" if steps < 20 else host.expert(outcome.state)
        (outcome,), steps = host.step([outcome.state], [action]), steps + 1
    minigrid_env.reset(seed=0)
    for _ in range(steps):
        minigrid_env.step(minigrid_env.actions.done)
    assert steps > 20 and outcome.success and outcome.reward == pytest.approx(minigrid_env._reward())


def test_a_task_that_is_listed_again_has_chance_of_its_own():
    host = envs.make_host("frozen_lake_slippery")

    def walks():
        states, seen = [start.state for start in host.reset(TASKS[:1] * 8)], []
        for word in ("Right", "Down") * 3:
            outcomes = host.step(states, [word] * 8)
            states = [outcome.state for outcome in outcomes]
            seen.append([outcome.observation for outcome in outcomes])
        return list(zip(*seen))

    starts, first = {start.observation for start in host.reset(TASKS[:1] * 8)}, walks()
    assert len(starts) == 1 and len(set(first)) > 4 and walks() == first
    (alone,) = host.step([host.reset(TASKS[:1])[0].state], ["Right"])
    assert alone.observation == first[0][0]


def test_worlds_that_are_made_apart_have_chance_of_their_own():
    starts = envs.make_host("crafter").reset([("", 1)] * 10)
    assert len({int(start.state[0]) for start in starts}) == 10
    assert len({start.observation for start in starts}) == 1


def test_babyai_tasks_and_optimum():
    host = envs.make_host("babyai")
    starts = host.reset([("go to", 1), ("open door", 2)])
    assert starts[0].goal.startswith("go to the ") or starts[0].goal.startswith("go to a ")
    assert starts[1].goal.startswith("open the ")
    assert "Goal" not in starts[0].observation
    assert host.optimal(starts[1].state) > host.optimal(starts[0].state) >= 1
    with pytest.raises(ValueError, match="my_module:host_game"):
        envs.make_host("chess")


A, B, C, D = (("", seed) for seed in range(4))


@pytest.mark.parametrize(
    "tasks, number, together, places",
    [
        ([A, A, B, B, C, C, D, D], 2, False, [0, 0, 0, 0, 1, 1, 1, 1]),  # whole groups
        ([A, A, B, B, A, A, C, C], 2, False, [0, 0, 0, 0, 0, 0, 1, 1]),
        ([A, A, A, A, B, B], 3, False, [0, 0, 1, 1, 2, 2]),  # fewer groups than places
        ([A, A, A, A, B, B], 3, True, [0, 0, 0, 0, 1, 1]),
        ([A, B], 4, False, [0, 2]),
        ([], 2, True, []),
    ],
)
def test_tasks_are_divided_among_places(tasks, number, together, places):
    assert divided(tasks, number, together) == places
