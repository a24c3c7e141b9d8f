"""GEM, TextArena and OpenEnv themselves; each part is skipped where its package is not installed.

pip install 'nlrl_jax[gem,textarena,openenv]' openenv==0.10.0 && pip install --no-deps gem-llm==0.1.0
python -m pytest tests/envs/test_outside_packages.py
"""

import json
import random
import re
import subprocess
import sys
import time

import httpx
import pytest

from nlrl_jax import envs
from nlrl_jax.envs import restorable


def played(game, actions, seed=3):
    """An episode's (observation, reward, done, success, valid), until it ends."""
    (start,) = game.reset([("", seed)])
    state, outcomes = start.state, []
    for action in actions:
        (outcome,) = game.step([state], [action])
        assert not outcome.error
        state = outcome.state
        outcomes.append(outcome[1:6])
        if outcome.done:
            break
    return outcomes


GEM = [
    ("gem:game:GuessTheNumber-v0-easy", r"\boxed{5}", 4),
    ("gem:game:TowerofHanoi-v0-easy", r"\boxed{A C}", 10),
    ("gem:game:Minesweeper-v0-easy", r"\boxed{reveal 1 1}", 25),
    ("gem:game:Game2048-v0-easy", r"\boxed{left}", 50),
    ("gem:rg:letter_counting", r"\boxed{1}", 1),
]


@pytest.mark.parametrize("name, action, horizon", GEM)
def test_gem(name, action, horizon):
    pytest.importorskip("gem")
    game = envs.make_host(name)
    before = random.getstate()
    starts = game.reset([("", 1), ("", 2), ("", 1)])
    assert starts[0][1:] == starts[2][1:] and starts[0].goal and game.max_steps == horizon
    assert played(game, [action] * 3) == played(game, [action] * 3) and random.getstate() == before
    assert game.read_action(f"I think {action}, yes.") == action and game.read_action("I think 5.") is None


def test_gem_s_fine_for_a_reply_without_a_box():
    pytest.importorskip("gem")
    game = envs.make_host("gem:game:GuessTheNumber-v0-easy")
    assert played(game, ["5"]) == [("At turn 1, you did not provide a valid guess.", -0.1, True, False, False)]
    guesses = [played(game, [rf"\boxed{{{guess}}}"])[0] for guess in range(1, 11)]
    won = [guess for guess in guesses if guess[3]]
    assert len(won) == 1 and won[0][1:] == (1.0, True, True, True)
    assert guesses[0][0].endswith("Enter your next guess.")  # GEM's own wrappers show the suffix, too
    with pytest.raises(ValueError, match="GEM has no environment 'game:Guess'; did you mean "):
        envs.make_host("gem:game:Guess")


def test_each_task_of_reasoning_gym_is_a_question_of_its_own():
    pytest.importorskip("gem")
    tasks = [("", 10_000 * seed + i) for seed in (1, 2) for i in range(300)]
    goals = {start.goal for start in envs.make_host("gem:rg:letter_counting").reset(tasks)}
    assert len(goals) == len(tasks)  # GEM's own pool has 500
    pool = {start.goal for start in envs.make_host("gem:rg:letter_counting?size=5").reset(tasks[:100])}
    assert len(pool) == 5


def test_an_answer_that_reasoning_gym_cannot_parse_is_a_wrong_one():
    gem = pytest.importorskip("gem")
    game = envs.make_host("gem:rg:prime_factorization")
    assert played(game, [r"\boxed{three times five}"]) == [("", 0.0, True, False, False)]
    questions = gem.make("rg:prime_factorization", seed=6, size=2).ds  # of which task 3 is one
    rewards = [played(game, [rf"\boxed{{{question['answer']}}}"])[0][1] for question in questions]
    assert max(rewards) == 1 and min(rewards) < 1


TEXTARENA = [
    ("textarena:GuessTheNumber-v0", "[5]", 22),
    ("textarena:FrozenLake-v0-random", "[down]", 202),
    ("textarena:Mastermind-v0", "[1 2 3 4]", 42),
    ("textarena:2048-v0-mega-easy", "[left]", None),
    ("textarena:TicTacToe-v0", "[4]", 60),
    ("textarena:KuhnPoker-v0", "[check]", 60),
    ("textarena:Nim-v0", "[2 1]", 60),
    ("textarena:ConnectFour-v0", "[col 1]", 60),
]


@pytest.mark.parametrize("name, action, horizon", TEXTARENA)
def test_textarena(name, action, horizon):
    pytest.importorskip("textarena")
    game = envs.make_host(name)
    before = random.getstate()
    starts = game.reset([("", 1), ("", 2), ("", 1)])
    assert starts[0][1:] == starts[2][1:] and "[" in starts[0].goal and horizon in (None, game.max_steps)
    courses = [played(game, [action] * 3) for _ in range(2)]
    assert courses[0] == courses[1] and random.getstate() == before
    for earlier, later in zip(courses[0], courses[0][1:]):  # an observation is what is new
        assert earlier[0] == later[0] or not later[0].startswith(earlier[0])
    assert game.read_action(f"From [1] on: {action}") == action and game.read_action("5") is None
    copied = restorable.restorable(game, ("", 1))
    (start,) = copied.reset([("", 1)])
    assert len({copied.step([start.state], [action])[0].observation for _ in range(3)}) == 1


def test_textarena_s_rewards_and_invalid_moves():
    pytest.importorskip("textarena")
    game = envs.make_host("textarena:GuessTheNumber-v0")
    guesses = [played(game, [f"[{guess}]"])[0] for guess in range(1, 21)]
    assert [guess[1:] for guess in guesses if guess[3]] == [(1.0, True, True, True)]
    once, twice = played(game, ["hm", "hm"])
    assert once[1:] == (0.0, False, False, False) and "attempted an invalid move" in once[0]
    assert twice[1:] == (0.0, True, False, False)


@pytest.mark.parametrize("name", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0"])
def test_textarena_s_games_that_swap_reward_and_reason(name):
    pytest.importorskip("textarena")
    once, twice = played(envs.make_host(f"textarena:{name}"), ["hm", "hm"])
    assert not once[2] and "attempted an invalid move" in once[0] and twice[2] and not twice[4]
    assert 0 <= twice[1] < 1 and "Invalid Move: Bad action format" in twice[0].replace("Invalid action", "Bad action")


@pytest.mark.parametrize("name", ["GermanWhist-v0", "Golf-v0", "TwoDollar-v0"])
def test_textarena_s_games_of_two_that_refuse_one_with_a_value_error(name):
    pytest.importorskip("textarena")
    few, two = (envs.make_host(f"textarena:{name}", players=players).reset([("", 0)])[0] for players in (0, 2))
    assert few.goal and few[1:] == two[1:]


def reply(heard):
    assert "Tic Tac Toe" in heard
    return "[0]" if "[0]" in heard[heard.rfind("Available") :] else "[8]"


def test_textarena_s_opponents(monkeypatch):
    pytest.importorskip("textarena")
    monkeypatch.setitem(sys.modules, "replies", sys.modules[__name__])
    game = envs.make_host("textarena:TicTacToe-v0?opponent=replies:reply")
    outcomes = played(game, ["[4]", "[3]", "[5]"])
    assert " X | 1 | 2 " in outcomes[0][0] and " X |   | X " not in outcomes[0][0]
    assert outcomes[-1][1:] == (1.0, True, True, True)
    free = envs.make_host("textarena:TicTacToe-v0", opponent=lambda heard: "You took [4], so I take [0].")
    assert " X | 1 | 2 " in played(free, ["[4]"])[0][0]
    chance = envs.make_host("textarena:TicTacToe-v0")
    firsts = {played(chance, ["[4]"], seed)[0][0] for seed in range(8)}
    assert len(firsts) > 2 and all("placed their symbol (X)" in first for first in firsts)


def test_each_opponent_hears_what_it_was_told():
    pytest.importorskip("textarena")
    heard = []
    envs.make_host("textarena:ThreePlayerIPD-v0", opponent=lambda text: heard.append(text) or "hm")
    assert {re.search(r"You are Player (\d)", text)[1] for text in heard} == {"1", "2"}
    assert all(len(set(re.findall(r"You are Player (\d)", text))) == 1 for text in heard)


def registered(package):
    """The names of all games of a package, without variants of one game's prompts and what needs a download."""
    registry = pytest.importorskip(f"{package}.envs.registration").ENV_REGISTRY
    apart = ("-train", "-raw") if package == "textarena" else ()
    fetched = ("math:", "code:", "qa:", "logic:", "eval:", "visual:")
    return [f"{package}:{name}" for name in registry if not name.endswith(apart) and not name.startswith(fetched)]


SLOW_TO_DRAW = "Sokoban", "Sudoku-v0-hard", "arc_agi", "number_sequence"  # half a minute for a task, and more


@pytest.mark.slow
@pytest.mark.parametrize(
    "package, actions, least", [("gem", [r"\boxed{1}", r"\boxed{A B}"], 120), ("textarena", ["[1]", "hm"], 175)]
)
def test_every_game_is_played_or_says_why_not(package, actions, least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some leave files
    refusals, names = {}, [name for name in registered(package) if not any(slow in name for slow in SLOW_TO_DRAW)]
    for name in names:
        try:
            assert played(envs.make_host(name), actions) is not None
        except (ValueError, AssertionError) as error:  # an episode whose step fails is an assertion of `played`
            refusals[name] = str(error).splitlines()[0]
    print(
        *(f"{name}: {text}" for name, text in refusals.items()),
        f"{len(names) - len(refusals)} of {len(names)}",
        sep="\n",
    )
    assert len(names) - len(refusals) >= least


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it can be read there")
def test_a_game_for_a_later_python():
    pytest.importorskip("textarena")
    with pytest.raises(ValueError, match="TextArena's Chess-v0 cannot be read by Python 3.11; use Python 3.12"):
        envs.make_host("textarena:Chess-v0")


SERVER = """
import random, sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Guess(Action):
    guess: str

class Hint(Observation):
    hint: str

class Numbers(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(1, 1000)
        return Hint(hint=f"Guess the number that ends in {self.number % 100}.")

    def step(self, action):
        if not action.guess.isdigit():
            raise ValueError("a guess is a number")
        guess = int(action.guess)
        hint = "right" if guess == self.number else "higher" if guess < self.number else "lower"
        return Hint(hint=hint, done=hint == "right", reward=float(hint == "right"))

class Seedless(Numbers):
    def reset(self):
        return super().reset()

env = {"Numbers": Numbers, "Seedless": Seedless}[sys.argv[1]]
app = create_fastapi_app(env, Guess, Hint, max_concurrent_envs=int(sys.argv[2]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="error")
"""


TOOL_SERVER = """
import random, sys
import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

class Safe(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS, state = True, State()

    def __init__(self):
        server = FastMCP("safe")

        @server.tool
        def turn(code: int) -> str:
            "Turns the dial."
            if code < 0:
                raise RuntimeError("the dial does not turn that way")
            self.is_open = code == self.code
            return "open" if self.is_open else "higher" if code < self.code else "lower"

        super().__init__(server)

    def reset(self, seed=None, **options):
        self.code, self.is_open = random.Random(seed).randint(1, 99), False
        return Observation(metadata={"message": f"The safe of {seed}: a code from 1 to 99."})

    def _step_impl(self, action, timeout_s=None, **options):
        return Observation()

    async def step_async(self, action, timeout_s=None, **options):
        observation = await super().step_async(action, timeout_s=timeout_s, **options)
        observation.done, observation.reward = self.is_open, float(self.is_open)
        return observation

app = create_fastapi_app(Safe, CallToolAction, CallToolObservation, max_concurrent_envs=int(sys.argv[2]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="error")
"""


@pytest.fixture
def openenv_server(tmp_path, unused_port):
    pytest.importorskip("openenv"), pytest.importorskip("fastmcp")
    processes = []

    def serve(kind, sessions):
        port = unused_port()
        (tmp_path / "server.py").write_text(TOOL_SERVER if kind == "Safe" else SERVER)
        process = subprocess.Popen([sys.executable, str(tmp_path / "server.py"), kind, str(sessions), str(port)])
        processes.append(process)
        for _ in range(150):
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        return f"openenv:http://127.0.0.1:{port}", process

    yield serve
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def unused_port():
    import socket

    def port():
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            return listening.getsockname()[1]

    return port


def test_openenv(openenv_server):
    name, process = openenv_server("Numbers", 16)
    game = envs.make_host(name)
    starts = game.reset([("", i // 2) for i in range(12)])
    assert all(starts[2 * i].observation == starts[2 * i + 1].observation for i in range(6))
    number = random.Random(3).randint(1, 1000)
    assert [outcome[0] for outcome in played(game, ["0", "1001", str(number)])] == ["higher", "lower", "right"]
    assert played(game, ["one"]) == [(f"the server {name[8:]} refused: a guess is a number", 0.0, False, False, False)]
    process.kill()
    process.wait()
    (outcome,) = game.step([starts[0].state], ["5"])
    assert outcome.done and "was lost" in outcome.error


@pytest.mark.parametrize("kind, sessions, says", [
    ("Seedless", 4, "does not follow its seed: two episodes of seed 0 began with "),
    ("Numbers", 1, "let it allow as many as there are episodes at a time"),
])  # fmt: skip
def test_openenv_servers_that_do_not_suit(openenv_server, kind, sessions, says):
    name, _ = openenv_server(kind, sessions)
    with pytest.raises(ValueError, match=says):
        envs.make_host(name)


def test_openenv_server_of_tools(openenv_server):
    name, _ = openenv_server("Safe", 8)
    game = envs.make_host(name)
    assert [tool["function"]["name"] for tool in game.tools] == ["turn"]
    assert game.tools[0]["function"]["parameters"]["properties"] == {"code": {"type": "integer"}}
    (start,) = game.reset([("", 3)])
    assert start.observation == "The safe of 3: a code from 1 to 99."
    number = random.Random(3).randint(1, 99)
    codes = (0, 100, -1, "x", number)
    calls = [json.dumps({"name": "turn", "arguments": {"code": code}}) for code in codes]
    outcomes = played(game, [json.dumps({"name": "push", "arguments": {}}), "I do not know.", *calls])
    texts, rewards, ends, _, valid = zip(*outcomes)
    assert texts[0] == "error: Unknown tool: 'push'" and texts[1].startswith("An action is ")
    assert texts[2:4] == ("higher", "lower") and "the dial does not turn that way" in texts[4]
    assert "should be a valid integer" in texts[5] and texts[6] == "open"
    assert valid == (False, False, True, True, False, False, True)
    assert rewards == (0, 0, 0, 0, 0, 0, 1) and ends == (False,) * 6 + (True,)
