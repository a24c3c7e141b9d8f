"""Environments in worker processes: the same episodes, and what a worker that dies or hangs costs."""

import copy
import gc
import pickle

import pytest

from nlrl_jax import envs
from nlrl_jax.envs import restorable, workers
from nlrl_jax.envs.workers import serve
from nlrl_jax.rollouts.host_games import StepDecisions, play
from tests.envs import rooms


@pytest.fixture(scope="module")
def remote():
    return envs.make_host("tests.envs.rooms:Rooms", env_workers="2", env_timeout=20)


def pool_of(game):
    """The workers of a game: those of as many episodes."""
    return list({start.state.worker: None for start in game.reset([("", seed) for seed in range(8)])})


def played(game, tasks, special=None):
    """Episodes whose actions tell the episode and the step; special: {(seed, step): action}."""

    def decide(histories, t):
        actions = [(special or {}).get((history.task[1], t), f"{history.task[1]} {t}") for history in histories]
        return StepDecisions(actions, [""] * len(actions), [[]] * len(actions), [{}] * len(actions))

    return play(game, decide, tasks)


def test_episodes_are_those_of_one_process(remote):
    local, tasks = envs.make_host("tests.envs.rooms:Rooms"), [("", seed) for seed in range(3) for _ in range(4)]
    assert played(remote, tasks) == played(local, tasks)
    assert len(pool_of(remote)) == 2


def test_states_that_nobody_holds_are_dropped():
    server = serve.GameServer()
    server.answer("make", ["tests.envs.rooms:Rooms", 0, {}], [])
    ((first, _, _), (second, _, text)) = server.answer("reset", [[("", 3), ("", 4)]], [])["value"]
    after, *_ = server.answer("step", [first, "go"], [])["value"]
    assert text.endswith("of 4") and server.states.keys() == {first, second, after}
    assert server.answer("step", [after, "go"], [first, second])["value"][0] == max(server.states)
    assert len(server.states) == 2
    assert server.answer("step", [first, "go"], [])["type"] == "KeyError"


@pytest.mark.parametrize("fault, says", [("die", "ended (status 3)"), ("hang", "took longer than 3 seconds")])
def test_a_lost_worker_costs_its_episodes_and_no_other(remote, fault, says):
    tasks = [("", seed) for seed in range(4)]
    for worker in pool_of(remote):
        worker.patience = 3
    whole = played(remote, tasks)
    episodes = played(remote, tasks, {(1, 0): fault})
    lost = [episode for episode in episodes if episode.error]
    reason = f"its worker process {says} at the action {fault!r} of type str"
    assert [episode.error for episode in lost] == [reason] * 2 and episodes[1] in lost
    assert all(episode.steps == 1 and episode.history.steps[-1].observation.endswith("stopped.") for episode in lost)
    assert [episode for episode in episodes if not episode.error] == [
        episode for episode, other in zip(whole, episodes, strict=True) if not other.error
    ]
    assert played(remote, tasks) == whole  # it was replaced


def test_states_are_copied_in_their_worker(remote):
    (start,) = remote.reset([("", 5)])
    (outcome,) = remote.step([copy.deepcopy(start.state)], ["go"])
    assert remote.step([start.state], ["go"])[0][1:] == outcome[1:]
    assert pickle.dumps(start.state) == pickle.dumps(copy.deepcopy(start.state)) != pickle.dumps(outcome.state)


def test_what_imagines_copies_a_state_or_repeats_its_episode():
    game = envs.make_host("tests.envs.rooms:Locked", env_workers="1")
    with pytest.raises(ValueError, match="cannot pickle '_thread.lock' object"):
        copy.deepcopy(game.reset([("", 5)])[0].state)
    again = restorable.restorable(game, ("", 0))
    (start,) = again.reset([("", 5)])
    first, second = (again.step([start.state], ["go"])[0][1:] for _ in range(2))
    assert again.reversible and first == second
    (worker,) = {state.state.worker for state in game.reset([("", 1)])}
    process = worker.channel.process
    del game, again, worker, start
    gc.collect()
    assert process.wait(20)  # it ends with its game


@pytest.mark.parametrize(
    "name, chosen, says",
    [
        ("tests.envs.rooms:Unseeded", "2", "does not follow its seed: two episodes of seed 0 began with 'room "),
        ("tests.envs.rooms:Here", "1", "no display"),
        *(
            (
                "tests.envs.rooms:Rooms",
                text,
                f"--env_workers is '{text}'; it must be a number of processes, ray or ray:N",
            )
            for text in ("two", "-1", "ray:", "ray:0")
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(name, chosen, says, monkeypatch):
    monkeypatch.setattr(rooms, "IS_HERE", True)
    with pytest.raises(ValueError, match=says):
        envs.make_host(name, env_workers=chosen).reset([("", 0)] * 2)


def test_choices():
    assert workers.choice("") is workers.choice("0") is None
    assert workers.choice("8") == (8, False) and workers.choice("ray") == (0, True)
    assert workers.choice("ray:3") == (3, True)
