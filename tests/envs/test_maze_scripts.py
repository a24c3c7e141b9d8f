"""The maze's prompts and the scripts that answer them: nothing is known that is not written."""

import json
import random
import re

import numpy as np
import pytest

from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze import rule_based as scripts
from nlrl_jax.envs.maze.prompts import NO_EVALUATION, MazeRoles
from tests.envs.test_maze import NAMES, distances, neighbour

DOUBLE_T = mazes.maze("double_t")
UP, DOWN, LEFT, RIGHT = range(4)


def cell(row, column, maze=DOUBLE_T):
    return row * maze.columns + column


def walk(*cells, actions=()):
    return mazes.Walk(tuple(cell(*c) for c in cells), tuple(actions))


def answer(role, chat, seed=0):
    return json.loads(scripts.SCRIPTS[role](chat.context, random.Random(seed)))


def steps_of(role, chat):
    return float(re.search(r"about ([\d.]+) steps", answer(role, chat)["final_evaluation"])[1])


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def all_chats(roles, state):
    ahead = roles.look_ahead([state] * 3, [UP, UP, UP], 3, np.random.default_rng(0))
    told, values = [roles.describe(state, v) for v in ahead], ["good", "bad, about 3 steps", "worse"]
    return {
        "policy": roles.policy(state),
        "q": roles.q(state, LEFT),
        "value": roles.value(state, ahead[0]),
        "aggregator": roles.aggregate(state, UP, told, values),
        "improver": roles.improve(state, {a: f"evaluation {a}" for a in range(4)}),
    }


@pytest.mark.parametrize("observation", ["full", "partial"])
def test_scripts_see_only_what_the_messages_say(observation):
    roles = MazeRoles(DOUBLE_T, observation, history=1)
    state = walk((1, 3), (1, 4), (1, 5), actions=(RIGHT, RIGHT))
    for role, chat in all_chats(roles, state).items():
        said = "\n".join(message["content"] for message in chat.messages)
        keys = {"observations", "actions", "before", "action", "descriptions", "evaluations"}
        assert set(chat.context) <= keys, role
        for text in texts_in(list(chat.context.values())):
            assert text in said, (role, text)
        assert chat.context.get("before", 1) == 1
        assert json.loads(scripts.SCRIPTS[role](chat.context, random.Random(0)))
        if observation == "partial":
            assert not re.search(r"position \d", said) or role == "improver"


@pytest.mark.parametrize("name", NAMES)
def test_every_observation_is_read_back(name):
    maze = mazes.maze(name)
    roles = MazeRoles(maze)
    goal = next(c for c, steps in distances(name).items() if steps == 0)
    for row, column in distances(name):
        seen = scripts.read_observation(
            roles.policy(mazes.Walk((cell(row, column, maze),))).context["observations"][-1]
        )
        assert (seen.position, seen.goal) == ((row, column), goal)
        for word in mazes.ACTIONS:
            assert (word in seen.open) == (neighbour(name, row, column, word) != (row, column))
            assert seen.after(word) == neighbour(name, row, column, word)


@pytest.mark.parametrize("name", NAMES)
def test_policy_alone_earns_what_its_markov_chain_says(name):
    # exp(-Manhattan distance / 0.5) over open moves, written out again over the drawing; 20 steps.
    cells = list(distances(name))
    goal = next(c for c, steps in distances(name).items() if steps == 0)
    far = lambda c: abs(c[0] - goal[0]) + abs(c[1] - goal[1])
    value = dict.fromkeys(cells, 0.0)
    for _ in range(20):
        new = {goal: 0.0}
        for c in cells:
            if c != goal:
                open_to = [there for word in mazes.ACTIONS if (there := neighbour(name, *c, word)) != c]
                weights = np.exp([-far(there) / 0.5 for there in open_to])
                reached = [value[there] - (there != goal) for there in open_to]
                new[c] = float(weights @ reached / weights.sum())
        value = new
    expected = np.mean([value[c] for c in cells if c != goal])
    maze, roles, rng = mazes.maze(name), MazeRoles(mazes.maze(name)), random.Random(0)
    returns = []
    for start in np.repeat(maze.starts, 40):
        position, total = int(start), 0.0
        for _ in range(20):
            reply = scripts.policy(roles.policy(mazes.Walk((position,))).context, rng)
            action, problem = roles.read_action(reply)
            assert not problem
            position, reward, arrived = (x.item() for x in mazes.step(maze, position, action))
            total += float(reward)
            if arrived:
                break
        returns.append(total)
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - expected) < 4 * error


def test_value_reads_distance_walls_dead_ends_and_earlier_visits():
    roles = MazeRoles(DOUBLE_T)
    at = lambda *cells: roles.value(walk(cells[0]), walk(*cells, actions=(UP,) * (len(cells) - 1)))
    assert steps_of("value", at((5, 6))) == 3  # straight down the stem
    assert steps_of("value", at((1, 1))) == 12 + 2  # a dead end, but the way out leads to the goal
    assert steps_of("value", at((1, 5))) == 8 + 2 + 2  # a dead end behind a wall: (1, 6) and (2, 5) are closed
    assert steps_of("value", at((5, 5), (5, 4))) == 5
    assert steps_of("value", at((5, 4), (5, 5), (5, 4))) == 5 + 1
    assert steps_of("value", at((7, 6), (8, 6))) == 0


def test_history_adds_earlier_visits_only_where_it_is_shown():
    state = walk((5, 4), (5, 5), actions=(RIGHT,))
    ahead = walk((5, 5), (5, 4), actions=(LEFT,))
    assert steps_of("value", MazeRoles(DOUBLE_T, history=5).value(state, ahead)) == 6
    assert steps_of("value", MazeRoles(DOUBLE_T, history=0).value(state, ahead)) == 5
    assert "(earlier moves not shown: 1)" in MazeRoles(DOUBLE_T, history=0).policy(state).messages[1]["content"]


def test_q_without_look_ahead_goes_by_arithmetic():
    roles = MazeRoles(DOUBLE_T)
    state = walk((1, 4))
    assert steps_of("q", roles.q(state, RIGHT)) == 1 + 8
    assert steps_of("q", roles.q(state, LEFT)) == 1 + 10
    assert steps_of("q", roles.q(state, DOWN)) == 1 + 9 + 1  # a wall: it stays where it has been
    assert steps_of("q", roles.q(walk((7, 6)), DOWN)) == 1


def test_aggregator_and_improver_go_by_the_texts_they_are_given():
    roles, state = MazeRoles(DOUBLE_T), walk((5, 5))
    ahead = [walk((5, 5), (5, 6), (6, 6), actions=(RIGHT, DOWN)), walk((5, 5), (5, 6), actions=(RIGHT,))]
    told = [roles.describe(state, variation) for variation in ahead]
    said = [
        '{"thoughts": "about 99 steps", "final_evaluation": "Fair, about 7 steps to go."}',
        "about 2.5 steps, I think",
    ]
    assert steps_of("aggregator", roles.aggregate(state, RIGHT, told, said)) == ((2 + 7) + (1 + 2.5)) / 2
    assert steps_of("aggregator", roles.aggregate(state, RIGHT, told, [said[0], NO_EVALUATION])) == 9
    assert "cannot be told" in answer("aggregator", roles.aggregate(state, RIGHT, told, ["?", "!"]))["final_evaluation"]
    # The best action by the texts is up, though the goal lies the other way.
    texts = {a: f'{{"final_evaluation": "about {n} steps to go."}}' for a, n in {UP: 1, DOWN: 2.5, RIGHT: 10}.items()}
    assert answer("improver", roles.improve(state, texts | {LEFT: "no idea"}))["action"] == "move up"
    picks = {
        answer("improver", roles.improve(state, dict.fromkeys(range(4), "?")), seed)["action"] for seed in range(60)
    }
    assert picks == set(mazes.ACTIONS)


def test_descriptions_name_moves_reward_and_end():
    text = MazeRoles(DOUBLE_T).describe(walk((6, 6)), walk((6, 6), (6, 6), (7, 6), (8, 6), actions=(LEFT, DOWN, DOWN)))
    assert text.startswith(
        "Moves: move left, move down, move down. Reward: -2. Final observation: The goal is at position 8, 6."
    )


@pytest.mark.parametrize(
    ("text", "action", "problem"),
    [
        ('{"thoughts": "", "action": "move left"}', LEFT, ""),
        ('{"action": " Move  Up\\n"}', UP, ""),
        ('{"action": "up"}', UP, ""),
        ('{"action": "Go left"}', LEFT, ""),
        ('{"action": "jump"}', -1, "illegal"),
        ('{"action": "up or down"}', -1, "illegal"),
        ('{"action": 3}', -1, "illegal"),
        ('{"thoughts": "hm"}', -1, "missing"),
        ("move left", -1, "nothing"),
        ("", -1, "empty"),
    ],
)
def test_actions_are_read_and_problems_named(text, action, problem):
    assert MazeRoles(DOUBLE_T).read_action(text) == (action, problem)


@pytest.mark.parametrize(
    ("text", "evaluation", "problem"),
    [
        ('{"thoughts": ["a"], "final_evaluation": "b"}', '{"thoughts": ["a"], "final_evaluation": "b"}', ""),
        ('{"final evaluation": {"x": 1}}', '{"final_evaluation": {"x": 1}}', ""),
        ('{"thoughts": "a"}', '{"thoughts": "a"}', "missing"),
        (" It is good. ", "It is good.", "nothing"),
        ("", NO_EVALUATION, "empty"),
    ],
)
def test_evaluations_are_read_and_problems_named(text, evaluation, problem):
    assert MazeRoles(DOUBLE_T).read_evaluation(text) == (evaluation, problem)


def test_look_ahead_is_a_forced_step_and_then_uniformly_random():
    # Where a walk ends after a forced step right from (5, 5) and two random ones, by the chain over the drawing.
    chance = {(5, 6): 1.0}
    for _ in range(2):
        after = {}
        for c, p in chance.items():
            for word in mazes.ACTIONS:
                there = c if c == (8, 6) else neighbour("double_t", *c, word)
                after[there] = after.get(there, 0) + p / 4
        chance = after
    roles, n = MazeRoles(DOUBLE_T), 20000
    walks = roles.look_ahead([walk((5, 5))] * n, [RIGHT] * n, 2, np.random.default_rng(0))
    ends, counts = np.unique([w.positions[-1] for w in walks], return_counts=True)
    got = {divmod(int(end), 13): count / n for end, count in zip(ends, counts)}
    assert got == pytest.approx(chance, abs=0.015)
    assert all(w.actions[0] == RIGHT and len(w.actions) == 3 and len(w.positions) == 4 for w in walks)


def test_look_ahead_stops_at_the_goal_and_follows_the_rules():
    roles = MazeRoles(DOUBLE_T)
    walks = roles.look_ahead([walk((6, 6))] * 300, [DOWN] * 300, 6, np.random.default_rng(1))
    for found in walks:
        assert len(found.positions) == len(found.actions) + 1
        for before, action, after in zip(found.positions, found.actions, found.positions[1:]):
            assert divmod(after, 13) == neighbour("double_t", *divmod(before, 13), mazes.ACTIONS[action])
        assert DOUBLE_T.goal not in found.positions[:-1]
        assert found.positions[-1] == DOUBLE_T.goal or len(found.actions) == 7
    assert any(len(found.actions) == 2 for found in walks)
