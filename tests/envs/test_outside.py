"""Environments that are not ours: classes by name, Gymnasium's, servers, and what faults of theirs cost."""

import dataclasses
import json
import random
import sys
import threading
import types

import gymnasium
import numpy as np
import pytest
from transformers.utils import get_json_schema

from nlrl_jax import envs
from nlrl_jax.envs import outside, restorable
from nlrl_jax.roles.dialogues import History
from nlrl_jax.rollouts import host_games
from nlrl_jax.run.host_games.tasks import distinct
from nlrl_jax.types import Outcome


class Notebook:
    """Multiply with the calculator and write the product into the notebook."""

    def __init__(self, digits: int = 3):
        self.largest = 10**digits

    def reset(self, seed: int = 0, **task) -> str | None:
        self.factors = task.get("factors") or random.Random(seed).sample(range(self.largest), 2)
        self.notes = []
        return f"How much is {self.factors[0]} * {self.factors[1]}?"

    def multiply(self, a: int, b: int) -> int:
        """
        Multiplies two numbers.

        Args:
            a: The first factor.
            b: The second factor.
        """
        return a * b

    async def note(self, text: str) -> str:
        """
        Writes into the notebook.

        Args:
            text: What is written.
        """
        self.notes.append(text)
        return "noted"

    def get_reward(self) -> float:
        return float(str(self.factors[0] * self.factors[1]) in self.notes)


class Count:
    """Count to 3."""

    reply_form, max_steps = "boxed", 6

    def reset(self, seed=None):
        self.at = 0
        return "0", {}

    def step(self, action):
        self.at += action == "up"
        return str(self.at), float(self.at == 3), self.at == 3, False, {"invalid": action != "up"}


class Dice(Count):
    """Draws from Python's global generator, and takes no seed."""

    def reset(self):
        return str([random.randint(1, 6) for _ in range(5)])

    def step(self, action):
        return str(random.randint(1, 6)), 0.0, False, False, {}


class Unseeded(Count):
    def reset(self, seed=None):
        return str(random.SystemRandom().random()), {}


class Untyped(Notebook):
    def add(self, a, b):
        return a + b


class Unrewarded:
    def reset(self):
        return None


class Raising(Count):
    def step(self, action):
        return {"up": 1}[action]


class Numbered(Count):
    def reset(self, seed=None):
        return np.zeros(2), {}


class Unready(Count):
    def reset(self, seed=None):
        raise RuntimeError("no display")


FAULTY = {
    "Unrewarded": "Unrewarded has no get_reward(), so that there is nothing to learn from",
    "Untyped": "the tool add cannot be described: Cannot generate JSON schema for add because it has no docstring!",
    "Raising": "its first step, with 'nothing', fails: KeyError: 'nothing'",
    "Numbered": "reset returned ndarray; it must return a string or None",
    "Unready": "RuntimeError: no display",
    "Unseeded": "does not follow its seed: two episodes of seed 0 began with ",
    "Count?size=3": "Count() takes no arguments",
    "Count?size": "'size' is no option; write my_classes:Count?option=value",
    "one": "has no HostGame or TextGame named 'one'; name its class, my_classes:Count, of which each episode has an",
}


@pytest.fixture(autouse=True)
def my_classes(monkeypatch):
    module = types.ModuleType("my_classes")
    vars(module).update({name: value for name, value in globals().items() if isinstance(value, type)}, one=Count())
    monkeypatch.setitem(sys.modules, "my_classes", module)
    return module


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def stepped(game, *actions, seed=0):
    (start,) = game.reset([("", seed)])
    state, outcomes = start.state, []
    for action in actions:
        (outcome,) = game.step([state], [action])
        state = outcome.state
        outcomes.append(outcome)
    return start, outcomes


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_class_is_one_sentence(name):
    with pytest.raises(ValueError) as error:
        envs.make_host(f"my_classes:{name}")
    assert FAULTY[name] in str(error.value) and "\n" not in str(error.value)


def test_a_class_of_tools():
    game = envs.make_host("my_classes:Notebook?digits=2")
    sample = Notebook()
    assert list(game.tools) == [get_json_schema(method) for method in (sample.multiply, sample.note)]
    assert game.read_action("<tool_call>" + call("note", text="1") + "</tool_call>") == call("note", text="1")
    sample.largest = 100
    assert game.reset([("", 4)])[0].observation == sample.reset(seed=4)
    a, b = sample.factors
    product, noted = call("multiply", a=a, b=b), call("note", text=str(a * b))
    replies = product, call("divide", a=a), call("multiply", a=a), "<tool_call>{", noted, "Done."
    _, outcomes = stepped(game, *replies, seed=4)
    texts = [outcome.observation for outcome in outcomes]
    assert texts[0] == str(a * b) and texts[4] == "noted"
    assert texts[1] == "There is no tool 'divide'. Tools are: multiply, note."
    assert texts[2].startswith("error: TypeError: ") and "missing 1 required" in texts[2]
    assert texts[3].startswith("This call cannot be read.")
    assert [outcome.valid for outcome in outcomes] == [True, False, False, False, True, True]
    assert [outcome.reward for outcome in outcomes] == [0, 0, 0, 0, 0, 1] and outcomes[-1].done


class Attribute:
    """Paid by an attribute, as TRL's examples are."""

    def __init__(self):
        self.reward = 0.0

    def reset(self, **task):
        self.reward = 0.0

    def press(self, times: int) -> str:
        """Presses.

        Args:
            times: how often.
        """
        self.reward += times
        return "pressed"


def test_an_attribute_may_stand_for_get_reward(my_classes):
    my_classes.make = lambda: Attribute()
    for name in ("my_classes:Attribute", "my_classes:make"):  # a function may make the environments, too
        _, outcomes = stepped(envs.make_host(name), call("press", times=2), "Done.")
        assert [outcome.reward for outcome in outcomes] == [0, 2] and outcomes[-1].done


@pytest.mark.parametrize("name, says", [
    ("TextArena:Nim-v0", "did you mean textarena:Nim-v0?"), ("gym:FrozenLake-v1", "mean gymnasium:FrozenLake-v1?"),
    ("textarena/Nim-v0", "did you mean textarena:Nim-v0? There are "), ("mine", "did you mean mine:Tools? There are "),
    ("mine.py", "did you mean mine:Tools? "), ("mine:tools", "named 'tools'; it has Tools"),
    ("Nim-v0", "another package's, such as gem:game:GuessTheNumber-v0-easy"),
])  # fmt: skip
def test_a_name_that_is_nearly_right_is_understood(name, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("class Tool:\n    pass\nclass Tools(Tool):\n    def reset(self):\n        pass\n")
    with pytest.raises(ValueError) as error:
        envs.make_host(name)
    assert says in str(error.value)
    sys.modules.pop("mine", None)


def test_an_episode_of_tools_that_is_cut_off_is_paid_too():
    game = dataclasses.replace(envs.make_host("my_classes:Notebook"), max_steps=1)
    env = Notebook()
    env.reset(seed=3)
    action = call("note", text=str(env.factors[0] * env.factors[1]))

    def decide(histories, t):
        return host_games.StepDecisions([action], [""], [[]], [{}])

    assert host_games.play(game, decide, [("", 3)])[0].rewards == (1.0,)

    def given_up(history: History, outcome: Outcome) -> Outcome:
        return outcome._replace(done=True)

    longer = dataclasses.replace(game, max_steps=5)
    assert host_games.play(longer, decide, [("", 3)], rule=given_up)[0].rewards == (1.0,)


def test_tasks_from_a_file(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"Task {i}."}], "factors": [i, 2], "other": None} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    game = envs.make_host("my_classes:Notebook", data=str(path))
    (start,) = game.reset([("", 5)])  # lines are counted on from the first one
    assert (start.goal, start.observation) == ("Task 2.", "How much is 2 * 2?") and game.limits == {"": 3}
    path.write_text("[1]")
    with pytest.raises(ValueError, match="must hold a JSON object on each line"):
        envs.make_host("my_classes:Notebook", data=str(path))


def test_a_class_like_those_of_gymnasium():
    game = envs.make_host("my_classes:Count", max_steps=4)
    assert (game.max_steps, envs.context_of("my_classes:Count"), game.read_action(r"\boxed{up}")) == (
        4,
        "transcript",
        "up",
    )
    _, outcomes = stepped(game, "up", "hm", "up", "up")
    assert [outcome.observation for outcome in outcomes] == ["1", "1", "2", "3"]
    assert [outcome.valid for outcome in outcomes] == [True, False, True, True]
    assert outcomes[-1].done and outcomes[-1].success and not outcomes[0].done


def test_episodes_have_the_global_generator_to_themselves():
    game = envs.make_host("my_classes:Dice")
    tasks = [("", 1), ("", 2), ("", 1)]
    before = random.getstate()
    starts = game.reset(tasks)
    assert starts[0].observation == starts[2].observation != starts[1].observation
    states, rolls = [start.state for start in starts], []
    for _ in range(4):
        outcomes = game.step(states, ["roll"] * 3)
        states = [outcome.state for outcome in outcomes]
        rolls.append([outcome.observation for outcome in outcomes])
    first, second, again = zip(*rolls)
    assert first == again != second and random.getstate() == before


@pytest.mark.parametrize("name", ["my_classes:Count", "my_classes:Dice", "gymnasium:FrozenLake-v1"])
def test_planners_step_copies(name):
    game = envs.make_host(f"{name}?reversible=True")
    (start,) = game.reset([("", 7)])
    outcomes = game.step([start.state] * 2, ["up"] * 2) + game.step([start.state], ["up"])
    assert game.reversible and len({outcome.observation for outcome in outcomes}) == 1


PLAIN = """
class Fixed:
    max_steps = 4
    def reset(self, seed=None):
        self.size = seed % 2 if type(self).follows else 0
        return "Begin.", {}
    def step(self, action):
        return "fine", 0.5, False, False, {}
    follows = False
class Following(Fixed):
    follows = True
"""


@pytest.mark.parametrize("name, number", [("plain:Fixed", 1), ("plain:Following", 2), ("my_classes:Dice", 6)])
def test_tasks_that_differ_in_unused_generators_alone_are_one(name, number, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    game = envs.make_host(name)
    assert len(distinct(game, [("", seed) for seed in range(6)])) == number
    sys.modules.pop("plain", None)


LAKE = "[S]FFF\nFHFH\nFFFH\nHFFG"


def test_gymnasium_in_words(capsys):
    game = envs.make_host("gymnasium:FrozenLake-v1?is_slippery=False")
    assert game.actions == ("left", "down", "right", "up") and game.max_steps == 100 and game.has_success
    start, outcomes = stepped(game, "right", "fly", "Down")
    assert start.observation == LAKE
    assert outcomes[0].observation.endswith("S[F]FF\nFHFH\nFFFH\nHFFG") and not outcomes[1].valid
    assert outcomes[2].done and not outcomes[2].success
    _, outcomes = stepped(game, *"down down right right down right".split())
    assert outcomes[-1].success and outcomes[-1].reward == 1
    taxi = envs.make_host("gymnasium:Taxi-v3")
    if "Taxi-v3" not in gymnasium.registry:
        assert "Please use `Taxi-v4` instead. It is taken." in capsys.readouterr().err
    (start,) = taxi.reset([("", 3)])
    assert start.observation.endswith("The passenger waits at R (row 0, column 0) and wants to Y (row 4, column 0).")
    _, outcomes = stepped(envs.make_host("gymnasium:CliffWalking-v1"), "up", *["right"] * 11, "down")
    assert outcomes[-1].success and sum(outcome.reward for outcome in outcomes) == -13
    assert envs.make_host("gymnasium:CartPole-v1", max_steps=7).reset([("", 3)])[0].observation.startswith("[-0.04")


def test_views_of_minigrid_are_those_of_our_babyai():
    game = envs.make_host("gymnasium:BabyAI-GoToLocal-v0")
    start, outcomes = stepped(game, "turn left", seed=3)
    assert start.goal == "go to the red key" and game.max_steps == 64
    lines = start.observation.splitlines()
    assert "You see a red key 2 steps right and 3 steps forward." in lines
    assert "You see a wall 1 step left." in lines and "You see a wall 6 steps forward." in lines
    assert "You see a grey ball 3 steps right." in outcomes[0].observation.splitlines()
    door = envs.make_host("gymnasium:MiniGrid-DoorKey-5x5-v0").reset([("", 3)])[0].observation
    assert "You see a locked yellow door 1 step left and 1 step forward." in door


def describe(observation, env):
    return f"angle {observation[0]:.1f}"


def act(text):
    return np.array([float(text)]) if text.lstrip("-").isdigit() else None


def test_functions_of_ones_own_for_gymnasium(my_classes):
    my_classes.describe, my_classes.act = describe, act
    game = envs.make_host("gymnasium:Pendulum-v1?describe=my_classes:describe&act=my_classes:act")
    start, outcomes = stepped(game, "1", "left")
    assert start.observation.startswith("angle ") and [outcome.valid for outcome in outcomes] == [True, False]


@pytest.mark.parametrize("name, says", [
    ("gymnasium:Nope-v1", "Environment `Nope` doesn't exist"),
    ("gymnasium:Pendulum-v1", "for which there are no words; give ?act=my_module:function"),
    ("gymnasium:FrozenLake-v1?map_name=None", "does not follow its seed: two episodes of seed 0 began with '"),
    ("gymnasium:FrozenLake", "did you mean FrozenLake-v1 or "),
    ("gymnasium:FrozenLake-v1?size=3", "unexpected keyword argument 'size'"),
    ("gymnasium:Pendulum-v1?act=nowhere:act", "act=nowhere:act: No module named 'nowhere'; write my_module:function"),
    ("openenv:http://127.0.0.1:9", "there is no OpenEnv server at http://127.0.0.1:9: "),
])  # fmt: skip
def test_what_another_package_cannot_make_is_one_sentence(name, says):
    with pytest.raises(ValueError) as error:
        envs.make_host(name)
    assert (
        says in str(error.value)
        and "\n" not in str(error.value)
        and str(error.value).startswith(f"game '{name.partition('?')[0]}': ")
    )


@pytest.mark.parametrize("scheme", outside.SCHEMES)
def test_a_package_that_is_missing_is_named(monkeypatch, scheme):
    monkeypatch.setattr(outside.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=f"needs the package {outside.SCHEMES[scheme].package}: pip install 'nlrl_jax.{scheme}.'"
    ):
        envs.make_host(f"{scheme}:x")


class Server:
    """An OpenEnv server's messages, without its package: count to `goal`, which follows from the seed."""

    def __init__(self, monkeypatch, fields=("text",)):
        self.fields, self.lost, self.sessions = fields, False, 0
        pages = {"schema": {"action": {"properties": {name: {"type": "string"} for name in fields}}}, "metadata": {}}
        module = sys.modules["nlrl_jax.envs.outside.openenv_server"]
        monkeypatch.setattr(module, "_get", lambda address, path, patience: pages[path])

    def play(self, socket):
        self.sessions += 1
        for message in socket:
            request = json.loads(message)
            if request["type"] == "reset":
                goal, at = request["data"]["seed"] % 3 + 1, 0
            elif request["data"] == {"text": "boom"}:
                socket.send(json.dumps({"type": "error", "data": {"message": "boom", "code": "EXECUTION_ERROR"}}))
                continue
            elif request["data"] == {"text": "sleep"}:
                continue
            else:
                at += 1
            observation = {"text": f"{at} of {goal}", "note": None}
            answer = {"observation": observation, "reward": float(at == goal), "done": at == goal}
            socket.send(json.dumps({"type": "observation", "data": answer}))


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("websockets")
    from websockets.sync.server import serve

    import nlrl_jax.envs.outside.openenv_server  # noqa: F401

    game_server = Server(monkeypatch)
    with serve(game_server.play, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        game_server.address = f"openenv:http://127.0.0.1:{listening.socket.getsockname()[1]}"
        game_server.stop = listening.shutdown
        yield game_server
        listening.shutdown()
        thread.join()


def test_a_server_of_environments(server):
    game = envs.make_host(f"{server.address}?patience=0.3")
    tried = server.sessions
    starts = game.reset([("", seed) for seed in (0, 1, 1, 2)])
    assert [start.observation for start in starts] == ["0 of 1", "0 of 2", "0 of 2", "0 of 3"]
    assert server.sessions == tried + 4
    outcomes = game.step([start.state for start in starts], ["go", "go", "sleep", "boom"])
    assert [outcome.done for outcome in outcomes] == [True, False, True, False]
    assert [outcome.reward for outcome in outcomes] == [1.0, 0.0, 0.0, 0.0]
    assert "took longer than 0.3 s for a step" in outcomes[2].error
    assert outcomes[3].observation.endswith("refused: boom") and not outcomes[3].valid and not outcomes[3].error
    restored = restorable.restorable(game, ("", 2))  # a session cannot be copied; its actions are repeated
    (start,) = restored.reset([("", 2)])
    assert [restored.step([start.state], ["go"])[0].observation for _ in range(2)] == ["1 of 3"] * 2


def test_a_lost_server_ends_episodes_and_not_the_run(server):
    game = envs.make_host(server.address)
    (start,) = game.reset([("", 2)])
    start.state.env.socket.close()
    (outcome,) = game.step([start.state], ["go"])
    assert outcome.done and "was lost" in outcome.error
    server.stop()
    (start,) = game.reset([("", 2)])
    (outcome,) = game.step([start.state], ["go"])
    assert outcome.done and "does not answer" in outcome.error


def test_a_mixture_of_games():
    name = "gymnasium:FrozenLake-v1?is_slippery=False,my_classes:Count"
    game = envs.make_host(name)
    lake, count = name.split(",")
    assert game.kinds == (lake, count) and game.max_steps == 100 and envs.context_of(name) == "transcript"
    starts = game.reset([(count, 0), (lake, 0)])
    assert r"\boxed{...}" in starts[0].goal and starts[0].goal.endswith("Count to 3.")
    assert "Actions: left, down, right, up." in starts[1].goal and starts[1].observation == LAKE
    outcomes = game.step([start.state for start in starts], [r"I think \boxed{up}", "So:\nAction: right"])
    assert outcomes[0].observation == "1" and "S[F]FF" in outcomes[1].observation
    assert all(outcome.valid for outcome in outcomes)
    outcomes = game.step([outcome.state for outcome in outcomes], ["I do not know", "fly"])
    assert not any(outcome.valid for outcome in outcomes)
    state = game.reset([(count, 0)])[0].state
    for t in range(6):  # its own horizon
        (outcome,) = game.step([state], ["hm"])
        state = outcome.state
        assert outcome.done == (t == 5)
    with pytest.raises(ValueError, match="my_classes:Notebook has tools, and cannot be one of several games"):
        envs.make_host("frozen_lake,my_classes:Notebook")


NLTK = "\n****\n  Resource \x1b[93mwords\x1b[0m not found.\n  Please use the NLTK Downloader:\n"


@pytest.mark.parametrize("error, says", [
    (LookupError(NLTK), "it needs NLTK's data 'words': python -m nltk.downloader words"),
    (RuntimeError("no\ndisplay"), "RuntimeError: no display"),
])  # fmt: skip
def test_what_another_package_raises_is_one_sentence(monkeypatch, error, says):
    def failing(*arguments, **options):
        raise error

    monkeypatch.setattr("nlrl_jax.envs.outside.gymnasium_games.host_game", failing)
    with pytest.raises(ValueError) as raised:
        envs.make_host("gymnasium:X-v0")
    assert str(raised.value) == f"game 'gymnasium:X-v0': {says}"
