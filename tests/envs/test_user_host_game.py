"""Host games of one's own: every fault is a sentence that names the field, what came and what would be right."""

import dataclasses
import random
import secrets
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.roles.dialogues import History
from nlrl_jax.types import HostGame, Outcome, Start


def reset(tasks):
    return [Start(seed % 3, "9", f"at {seed % 3}") for _, seed in tasks]


def step(states, actions):
    moved = [x + {"up": 1, "down": -1}.get(action, 0) for x, action in zip(states, actions, strict=True)]
    return [Outcome(x, f"at {x}", float(x == 9), x == 9, x == 9) for x in moved]


GOOD = HostGame(
    "count", "Count to 9.", ("up", "down"), 12, ("",), reset, step, board=str, optimal=lambda x: 9 - x, score="points",
    examples=lambda label, number: [History("9", "at 0")] * number, expert=lambda x: "up", commands=lambda x: ["up"],
    reversible=True,
)  # fmt: skip


def of(**changes):
    return lambda: dataclasses.replace(GOOD, **changes)


def start(**changes):
    return of(reset=lambda tasks: [one._replace(**changes) for one in reset(tasks)])


def outcome(**changes):
    return of(step=lambda states, actions: [one._replace(**changes) for one in step(states, actions)])


def later(**changes):
    """Only an action that cannot be read leads to the fault."""

    def fails(states, actions):
        return [o._replace(**(changes if a == "nothing" else {})) for o, a in zip(step(states, actions), actions)]

    return of(step=fails)


class Environment:
    """A live one; the class is a fault where an instance is meant, and so are wrong names of its methods."""

    def __init__(self):
        self.x = 0

    def board(self, state):
        return str(state)


one = Environment()


def in_place(envs, actions):
    for env in envs:
        env.x += 1
    return [Outcome(env, f"at {env.x}") for env in envs]


def with_state_kept(states, actions):
    """Says that it is reversible and changes its states."""
    for state in states:
        state["x"] += 1
    return [Outcome(state, f"at {state['x']}") for state in states]


def unknown_word(states, actions):
    return [Outcome({"up": 1, "down": 0}[action], "x") for action in actions]


async def late(tasks):
    return reset(tasks)


TEXT = "it must be a string"
FAULTY = {
    # fields
    "kinds is a string": (of(kinds="easy"), "kinds is 'easy' of type str; it must be a tuple of different strings"),
    "kinds is empty": (of(kinds=()), "kinds is () of type tuple; it must be a tuple of different strings"),
    "kinds twice": (of(kinds=("a", "a")), "kinds is ('a', 'a')"),
    "max_steps 0": (of(max_steps=0), "max_steps is 0 of type int; it must be a whole number of at least 1"),
    "max_steps a float": (of(max_steps=2.5), "max_steps is 2.5 of type float; it must be a whole number"),
    "max_steps True": (of(max_steps=True), "max_steps is True of type bool; it must be a whole number"),
    "actions a list": (of(actions=["up", "down"]), "actions is ['up', 'down'] of type list; it must be a tuple of str"),
    "actions a string": (of(actions="up"), "actions is 'up' of type str; it must be a tuple of strings"),
    "actions twice": (of(actions=("up", "down", "Up")), "actions has 'up' more than once"),
    "an empty action": (of(actions=("up", "")), "an action in `actions` is '' of type str; it must be one line"),
    "name None": (of(name=None), "name is None; it must be a string that is not empty"),
    "rules a list": (of(rules=["Count."]), "rules is ['Count.'] of type list; it must be a string"),
    "reset None": (of(reset=None), "reset is None; it must be a function: tasks -> a list of Start"),
    "step a string": (of(step="step"), "step is 'step' of type str; it must be a function: (states, actions) -> a lis"),
    "board a string": (of(board="[ ]"), "board is '[ ]' of type str; it must be a function of a state; None where"),
    "expert a class": (of(expert=Environment), "in expert, failed with TypeError: Environment.__init__() takes 1"),
    "score None": (of(score=None), "score is None; it must be a string: the reward's name in tables, or ''"),
    "reversible text": (of(reversible="yes"), "reversible is 'yes' of type str; it must be True or False"),
    "limits of other kinds": (of(limits={"easy": 5}), "limits has 'easy', which is none of the kinds: ''"),
    "limits of 0": (of(limits={"": 0}), "limits is {'': 0} of type dict; it must be a dict: kind -> number of its tas"),
    "read_action a word": (of(read_action="boxed"), "read_action is 'boxed' of type str; it must be a function: a re"),
    "read_action gives a number": (of(read_action=len), "what read_action returned is 14 of type int; it must be a s"),
    "reply_form None": (of(reply_form=None), "reply_form is None; it must be a string: the form in which a reply"),
    "tools a list": (of(tools=[{"function": {"name": "up"}}]), "of type list; it must be a tuple of JSON schemas"),
    "a tool without a name": (of(tools=({"type": "function"},)), "it must be a tuple of JSON schemas, {"),
    "simulator a function": (of(simulator=lambda: GOOD), "it must be a HostGame or None"),
    "simulator at fault": (of(simulator=dataclasses.replace(GOOD, kinds=())), "kinds is () of type tuple"),
    # what functions return
    "reset gives None": (of(reset=lambda tasks: None), "reset returned None; it must be a list of Start(state, goal, "),
    "reset gives too few": (of(reset=lambda tasks: reset(tasks)[:1]), "reset returned 1 values for 2; it must be a li"),
    "reset gives tuples": (of(reset=lambda tasks: [tuple(s) for s in reset(tasks)]), "reset returned a list with (0, "),
    "reset gives a generator": (of(reset=lambda tasks: (s for s in reset(tasks))), "of type generator; it must be a l"),
    "reset is async": (of(reset=late), "of type coroutine; it must be a list of Start"),
    "reset takes a task": (of(reset=lambda kind, seed: 0), "failed with TypeError:"),
    "a goal None": (start(goal=None), f"a Start's goal is None; {TEXT}"),
    "a first observation of numbers": (start(observation=np.zeros(3)), "observation is array([0., 0., 0.]) of type nd"),
    "an observation of JAX": (outcome(observation=jnp.arange(2)), "an Outcome's observation is Array([0, 1], dtype=in"),
    "half a character": (outcome(observation="\ud83d"), "with half of a character (a lone surrogate)"),
    "a reward None": (outcome(reward=None), "an Outcome's reward is None; it must be one number"),
    "a reward NaN": (outcome(reward=float("nan")), "an Outcome's reward is nan of type float; it must be a finite num"),
    "a reward NaN, at the end only": (later(reward=jnp.nan), "it must be a finite number (after the action 'nothing'"),
    "a reward in text": (outcome(reward="1"), "an Outcome's reward is '1' of type str; it must be one number"),
    "rewards of players": (outcome(reward=np.array([1.0, -1.0])), "an Outcome's reward is array([ 1., -1.]) of type n"),
    "done in text": (outcome(done="no"), "an Outcome's done is 'no' of type str; it must be True or False"),
    "success a score": (outcome(success=0.5), "an Outcome's success is 0.5 of type float; it must be True or False"),
    "valid None": (later(valid=None), "an Outcome's valid is None; it must be True or False (after the action 'nothin"),
    "error None": (outcome(error=None), f"an Outcome's error is None; {TEXT}"),
    "step as in Gymnasium": (of(step=lambda s, a: ("obs", 0.0, False, False, {})), "step returned 5 values for 1; it "),
    "step takes one": (of(step=lambda state, action: state.x), "in step, failed with AttributeError: 'list' object ha"),
    "step knows listed words only": (of(step=unknown_word), "in step, failed with KeyError: 'nothing'"),
    "board gives None": (of(board=lambda x: None), f"board is None; {TEXT}"),
    "board takes nothing": (of(board=lambda: "x"), "in board, failed with TypeError:"),
    "optimal gives text": (of(optimal=lambda x: "3"), "optimal is '3' of type str; it must be one number"),
    "optimal gives a half": (of(optimal=lambda x: 2.5), "optimal is 2.5 of type float; it must be a whole number of a"),
    "expert gives None": (of(expert=lambda x: None), f"what expert returned is None; {TEXT}"),
    "expert gives another word": (of(expert=lambda x: "Up"), "expert returned 'Up' of type str, which is none of the "),
    "expert gives two lines": (of(actions=(), expert=lambda x: "a\nb"), "it must be one line that is not empty"),
    "expert fails": (of(expert=lambda x: 1 / 0), "in expert, failed with ZeroDivisionError: division by zero ("),
    "commands gives text": (of(actions=(), commands=lambda x: "up"), "commands returned 'up' of type str; it must be "),
    "commands gives numbers": (of(actions=(), commands=lambda x: [1]), f"a line of commands is 1 of type int; {TEXT}"),
    "examples takes nothing": (of(examples=lambda: []), "in examples, failed with TypeError:"),
    # what is no game, and games that are not what they say
    "None": (lambda: None, "game() returned None; it must return a HostGame"),
    "a dict": (lambda: {"step": step}, "game() returned {'step': <function step at"),
    "an instance": (Environment(), "has no HostGame or TextGame named 'game'"),
    "the class HostGame": (HostGame, "failed with TypeError: HostGame.__init__() missing 7 required positional"),
    "a misspelt field": (lambda: HostGame(**{"nam": "x"}), "got an unexpected keyword argument 'nam'"),
    "raises": (lambda: 1 / 0, "failed with ZeroDivisionError: division by zero ("),
    "wants arguments": (lambda size: GOOD, "missing 1 required positional argument: 'size'"),
    "one state for all": (
        of(reset=lambda tasks: [Start(one, "", "") for _ in tasks], step=in_place, reversible=False, optimal=None,
           expert=None, board=None), "reset gave two tasks one state, <test_user_host_game.Environment object",
    ),
    "not reversible": (
        of(reset=lambda tasks: [Start({"x": 0}, "", "") for _ in tasks], step=with_state_kept, optimal=None),
        "reversible is True, but the same state, stepped twice with the same actions, led to ('at 1', 0.0, False, Fals",
    ),
}  # fmt: skip


@pytest.fixture
def made(monkeypatch):
    """(a game or function) -> the host game that `my_module:game` names."""

    def made(game):
        module = types.ModuleType("my_module")
        module.game = game
        monkeypatch.setitem(sys.modules, "my_module", module)
        return envs.make_host("my_module:game")

    return made


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_one_sentence(made, name):
    game, says = FAULTY[name]
    with pytest.raises(ValueError) as error:
        made(game)
    text = str(error.value)
    assert says in text and text.startswith("game 'my_module:game'") and "\n" not in text and len(text) < 330


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": np.float32(0.5)}, {"reward": jnp.float32(0.5)}, {"reward": 1}, {"reward": np.array(0.5)},
        {"done": np.bool_(False)}, {"done": jnp.bool_(False), "valid": 1}, {"observation": np.str_("x")},
        {"observation": ""}, {"observation": "two\nlines"},
    ],
)  # fmt: skip
def test_what_means_the_same_is_taken(made, changes):
    game = made(outcome(**changes))
    (got,) = game.step([0], ["up"])
    assert [type(value) for value in got[1:]] == [str, float, bool, bool, bool, str, bool]


def test_a_fault_that_shows_late_is_the_same_sentence(made):
    late = of(step=lambda s, a: [o._replace(reward=float("nan") if o.success else 0.0) for o in step(s, a)])
    game = made(late)
    with pytest.raises(ValueError, match="game 'my_module:game': an Outcome's reward is nan of type float"):
        game.step([8], ["up"])
    none = made(of(optimal=lambda x: None, max_steps=np.int64(5)))
    assert none.optimal(0) == -1 and none.max_steps == 5


def test_what_is_not_the_same_twice_is_warned_about(made, capsys):
    made(GOOD)
    assert not capsys.readouterr().err
    made(of(reset=lambda tasks: [Start(0, "9", secrets.token_hex()) for _ in tasks], reversible=False,
            step=lambda s, a: [Outcome(x, "") for x in s], optimal=None))  # fmt: skip
    warned = capsys.readouterr().err
    assert warned.startswith("warning: count: the task ('', 0) was played twice") and warned.count("\n") == 1


class Dice:
    """Seeds Python's global generator, or not, and draws from it at each step, as TextArena's environments do."""

    def __init__(self, seed=None):
        if seed:
            random.seed(seed)
        self.faces = [random.randint(1, 6)]

    def roll(self):
        self.faces.append(random.randint(1, 6))
        return str(self.faces[-1])


def dice(seeded=True):
    begin = lambda tasks: [Start(Dice(seed if seeded else None), "roll", "") for _, seed in tasks]
    roll = lambda states, actions: [Outcome(one, one.roll()) for one in states]
    board = lambda one: " ".join(map(str, one.faces))
    return HostGame("dice", "Roll.", ("roll",), 9, ("",), begin, roll, board=board)


def rolled(game, tasks):
    """Four rolls of episodes in lockstep."""
    states, seen = [start.state for start in game.reset(tasks)], []
    for _ in range(4):
        outcomes = game.step(states, ["roll"] * len(states))
        states = [one.state for one in outcomes]
        seen.append([one.observation for one in outcomes])
    return [list(row) for row in zip(*seen)], states


@pytest.mark.parametrize("seeded", [True, False])
def test_episodes_of_a_game_that_draws_from_the_global_generator_have_one_of_their_own(made, seeded, capsys):
    tasks = [("", seed) for seed in range(1, 9)]
    random.seed(7)
    before, game = random.getstate(), made(lambda: dice(seeded))
    together, states = rolled(game, tasks)
    assert together == [rolled(game, [task])[0][0] for task in tasks] and random.getstate() == before
    assert game.board(states[0]).endswith(" ".join(together[0])) and len(set(map(tuple, together))) == 8
    assert not capsys.readouterr().err
    if seeded:  # as the environment draws where nothing else does
        one = Dice(3)
        assert together[2] == [one.roll() for _ in range(4)]


def test_a_function_that_refuses_no_horizon_is_called_without_one(monkeypatch):
    def picky(max_steps=6):
        if max_steps < 1:
            raise ValueError("max_steps must be positive")
        return of(max_steps=max_steps)()

    monkeypatch.setitem(sys.modules, "picky", module := types.ModuleType("picky"))
    module.host_game = picky
    assert envs.context_of("picky:host_game") == "transcript"
    assert [envs.make_host("picky:host_game", steps).max_steps for steps in (0, 3)] == [6, 3]
