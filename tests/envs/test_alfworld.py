"""ALFWorld in the TextWorld engine: text, worker processes that die, a local download."""

import importlib.util
import json
import os
import random
import signal
import sys

import pytest

if any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld", "fast_downward")):
    pytest.skip("needs ALFWorld's engine (`make install` puts it there)", allow_module_level=True)

from nlrl_jax import envs
from nlrl_jax.envs.alfworld import data, games
from nlrl_jax.envs.alfworld.engine import Engine, names_of
from nlrl_jax.envs.alfworld.host import plain
from nlrl_jax.envs.alfworld.workers import EngineRequest, Workers
from nlrl_jax.envs.alfworld.world import World, plan
from nlrl_jax.rollouts.host_games import StepDecisions, play
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.lac.episodes import as_json

DATA = games.package() / "data"


def small_seed(kind):
    """Of a game in a small room, where the engine is fast."""
    return min(range(40), key=lambda seed: len(games.make(kind, seed).receptacles))


@pytest.fixture(scope="module")
def small():
    return games.make("clean", small_seed("clean"))


@pytest.fixture(scope="module")
def pool():
    return Workers(DATA, 1)


def anything(game, rng):
    """A command with names at random."""
    forms = (
        "take {o} from {p}",
        "put {o} in/on {p}",
        "heat {o} with {p}",
        "close {p}",
        "use {o}",
        "examine {o}",
        "look",
    )
    return rng.choice(forms).format(o=rng.choice(list(game.objects)), p=rng.choice(list(game.receptacles)))


FAST = ("clean", "cool", "examine")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k in FAST else pytest.mark.slow) for k in games.KINDS])
def test_the_engine_tells_what_our_rules_tell(kind):
    """Words, ends and what is possible; also that our plan wins in the engine."""
    rng = random.Random(kind)
    game = games.make(kind, small_seed(kind))
    engine, world = Engine(games.problem(game), DATA), World(game)
    assert engine.reset() == (world.intro(), False)
    for _ in range(16):
        chosen = {
            "any": anything(game, rng),
            "possible": rng.choice(engine.env.state["admissible_commands"]),
            "best": plan(world)[0],
        }
        command = chosen[rng.choice(["any", "possible", "possible", "best"])]
        told = world.step(command)
        assert engine.step(command) == (told, world.won()), command
        if world.won():
            break
    for command in plan(world):
        assert engine.step(command) == (world.step(command), world.won()), command
    assert world.won()


def test_the_engines_planner_finds_nothing_shorter(small):
    for game in (small, games.make("examine", small_seed("examine"))):
        engine = Engine(games.problem(game), DATA)
        engine.reset()
        costs = lambda commands: sum(5 if line.split()[0] in ("clean", "use") else 1 for line in commands)
        assert costs(engine.plan()) == costs(plan(World(game)))


def test_what_heat_and_water_do_to_things_is_told_alike():
    game = games.make("heat", small_seed("heat"))
    engine, world = Engine(games.problem(game), DATA), World(game)
    engine.reset()
    commands = plan(world)
    thing = commands[-1].split(" in/on ")[0].removeprefix("put ")
    machine = lambda kind: next(name for name, sort in game.receptacles.items() if sort == kind)
    took = next(i for i, command in enumerate(commands) if command.startswith("take")) + 1
    looks = [f"examine {thing}", "inventory", "look"]
    fridge = machine("Fridge")
    rest = [*looks, f"go to {fridge}", f"cool {thing} with {fridge}", *looks]
    rest += [f"go to {fridge}", f"open {fridge}", f"close {fridge}", f"examine {fridge}"]
    rest += [f"go to {(sink := machine('SinkBasin'))}", f"clean {thing} with {sink}", *looks]
    rest += [f"go to {(oven := machine('Microwave'))}", f"heat {thing} with {oven}", *looks]
    for command in (*commands[:took], *rest):
        assert engine.step(command) == (world.step(command), world.won()), command


def test_ids_of_alfworlds_own_files_get_the_papers_names():
    ids = ["cabinet_bar__minus_01", "cabinet_bar__plus_00", "sink_bar__plus_01_bar_sinkbasin", "agent1", "loc_bar_3"]
    names = names_of(ids)
    assert names["cabinet_bar__minus_01"] == "cabinet 2" and names["cabinet_bar__plus_00"] == "cabinet 1"
    assert names["sink_bar__plus_01_bar_sinkbasin"] == "sinkbasin 1" and names["agent1"] == "agent1"


def test_a_worker_that_is_killed_or_hangs_is_replaced_and_its_episode_goes_on(small):
    pool, problem = Workers(DATA, 1, patience=30), games.problem(small)
    commands = plan(World(small))
    world = World(small)
    assert pool.ask([EngineRequest(problem, (), None)])[0].observation == world.intro()
    (worker,) = pool.workers
    process = worker.process.pid
    os.kill(process, signal.SIGKILL)
    told = pool.ask([EngineRequest(problem, (), commands[0])])[0]
    assert (told.observation, told.error) == (world.step(commands[0]), "") and worker.process.pid != process
    worker.patience = 0.5
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.ask(EngineRequest(problem, tuple(commands[:1]), commands[1]))  # hangs, then starts too slowly
    assert worker.process is None
    worker.patience = 30
    told = pool.ask([EngineRequest(problem, tuple(commands[:1]), commands[1])])[0]
    assert told.observation == world.step(commands[1])


def test_going_back_to_an_earlier_state(pool, small):
    problem, commands = games.problem(small), plan(World(small))
    for n in (0, 1, 3, 2):
        world = World(small)
        expected = [world.step(command) for command in commands[: n + 1]][-1]
        assert pool.ask([EngineRequest(problem, tuple(commands[:n]), commands[n])])[0].observation == expected


def test_what_the_engine_prints_is_not_taken_for_an_answer(monkeypatch, small):
    monkeypatch.setenv("TW_PDDL_DEBUG", "1")  # it then prints while it translates
    assert Workers(DATA, 1).ask([EngineRequest(games.problem(small), (), None)])[0].observation == World(small).intro()


def test_an_engine_that_is_lost_twice_ends_its_episode_and_no_other(monkeypatch, tmp_path):
    game = envs.make_host("alfworld", max_steps=6, workers=2)
    tasks = [("put", small_seed("put")), ("examine", small_seed("examine"))]
    program = tmp_path / "engine.py"
    program.write_text("import sys; sys.exit(1)")

    def decide(histories, step):
        if step == 1:  # from now on the second worker, once killed, cannot start again
            monkeypatch.setattr(pool.workers[1], "command", [sys.executable, str(program)])
            os.kill(pool.workers[1].process.pid, signal.SIGKILL)
        n = len(histories)
        return StepDecisions(["look"] * n, [""] * n, [[]] * n, [{}] * n)

    (engine,) = game.step.args
    (pool,) = [cell.cell_contents for cell in engine.__closure__]
    first, second = play(game, decide, tasks)
    assert (first.error, first.success, first.steps) == ("", False, 6)
    assert "lost twice" in second.error and not second.success and second.steps == 2
    assert as_json(second)["error"] == second.error


def test_actions_may_be_written_as_sentences():
    """That the plans win is in test_experts.py."""
    game = envs.make_host("alfworld")
    assert game.kinds == games.KINDS and game.max_steps == 40 and game.actions == ()
    task = ("put", small_seed("put"))
    commands = plan(World(games.make(*task)))
    decide = lambda histories, step: StepDecisions([f" {commands[step].capitalize()}."], [""], [[]], [{}])
    (episode,) = play(game, decide, [task])
    assert episode.success and episode.reward == 1 and episode.steps == episode.optimal == len(commands)
    with pytest.raises(ValueError, match="alfworld has no tasks 'juggle'"):
        game.reset([("juggle", 0)])


def test_a_command_is_read_in_other_forms():
    """All forms are in tests/roles/test_actions.py."""
    assert plain("1. `Go  to desk 1`.") == "go to desk 1" and plain("hello [x]") == "hello [x]"


def own_folder(root, problem, goal="put a pen in drawer"):
    """A folder in the layout of ALFWorld's download."""
    split = root / "json_2.1.1" / "valid_unseen"
    for i, name in enumerate(
        ("pick_and_place_simple-Pen-None-Drawer-301", "pick_two_obj_and_place-Cup-None-Shelf-302")
    ):
        for trial in range(2 - i):
            folder = split / name / f"trial_T{trial}"
            folder.mkdir(parents=True)
            grammar = f'"task": [{{"rhs": "Your task is to: {goal}."}}] {{__import__("os").abort()}}'
            grammar += 'action PutObject { template :: "move {o} to {r}"; }'  # as games of 0.4 have it
            content = {"pddl_domain": "", "grammar": grammar, "pddl_problem": problem, "solvable": True}
            (folder / "game.tw-pddl").write_text(json.dumps(content))
    return split


def test_the_users_own_folder(tmp_path):
    made = games.make("put", 1)
    split = own_folder(tmp_path, games.problem(made), made.goal)
    unsolvable = split / "look_at_obj_in_light-Pen-None-DeskLamp-301" / "trial_T0"
    unsolvable.mkdir(parents=True)
    (unsolvable / "game.tw-pddl").write_text(json.dumps({"solvable": False}))
    for folder in (tmp_path, tmp_path / "json_2.1.1", split):
        found = data.game_files(str(folder))
        assert {kind: len(files) for kind, files in found.items() if files} == {"put": 2, "put two": 1}
    game = envs.make_host("alfworld", data=str(tmp_path), workers=1)
    assert game.kinds == ("put", "put two") and tasks_of(game, game.kinds, 5, 0) == [
        ("put", 0), ("put two", 0), ("put", 1)
    ]  # fmt: skip
    (start,) = game.reset([("put", 0)])
    assert start.goal == made.goal and start.observation == World(made).intro() and game.optimal(start.state) == -1
    state, world = start.state, World(made)
    for command in plan(World(made)):
        (outcome,) = game.step([state], [command])
        assert outcome.observation == world.step(command)
        state = outcome.state
    assert outcome.success and outcome.done and outcome.reward == 1


def test_another_version_is_refused_with_the_one_that_works(tmp_path, monkeypatch):
    again = games.engine_data.__wrapped__  # without the memory of its first call
    assert again() == DATA
    (tmp_path / "data").mkdir()
    grammar = (DATA / "alfred.twl2").read_text().replace("put {o} in/on {r}", "move {o} to {r}")  # 0.4.2's
    (tmp_path / "data" / "alfred.twl2").write_text(grammar)
    monkeypatch.setattr(games, "package", lambda: tmp_path)
    with pytest.raises(ValueError, match="says 'move X to Y'.*alfworld==0.3.5"):
        again()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fast_downward" else name)
    with pytest.raises(ValueError, match=r"not installed \(fast_downward\); pip install"):
        again()


def test_folders_and_files_that_are_not_what_they_say(tmp_path):
    with pytest.raises(ValueError, match="which is not a folder"):
        envs.make_host("alfworld", data=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="there is no game in it"):
        envs.make_host("alfworld", data=str(tmp_path))
    split = own_folder(tmp_path, "(define (problem broken)")
    game = envs.make_host("alfworld", data=str(tmp_path), workers=1)
    with pytest.raises(ValueError, match="trial_T0/game.tw-pddl does not load: "):
        game.reset([("put", 0)])
    path = next(split.glob("*/trial_T0/game.tw-pddl"))
    path.write_text(json.dumps({"grammar": "Your task is to: jump.\n"}))
    with pytest.raises(ValueError, match="has no pddl_problem"):
        data.load(path)
    path.write_text("not json")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        data.game_files(str(tmp_path))
