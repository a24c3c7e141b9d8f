"""Host games in shares: two processes, here two threads, play what one plays, and each only its own groups."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from nlrl_jax import multihost
from nlrl_jax.rollouts.host_games import StepDecisions, play
from nlrl_jax.run.host_games import shares
from nlrl_jax.types import EpisodeFault, HostGame, Outcome, Start


def dice(begun):
    """Draws from the task's seed; an episode ends by itself, is cut, or breaks off."""

    def reset(tasks):
        begun.extend(tasks)
        return [Start((seed, 0), f"goal {seed}", "déjà vu") for _, seed in tasks]

    def step(states, actions):
        outcomes = []
        for (seed, t), action in zip(states, actions, strict=True):
            roll = random.Random(f"{seed} {t} {action}")
            error = "lost" if roll.random() < 0.1 else ""
            reward, done = np.float32(roll.random()), bool(error) or roll.random() < 0.2
            outcomes.append(Outcome((seed, t + 1), f"{roll.random()}", reward, done, done, np.bool_(t), error, True))
        return outcomes

    def closing_reward(state):
        if state[0] % 2:
            raise EpisodeFault("no reward")
        return np.int64(state[0])

    return HostGame("dice", "", (), 5, ("",), reset, step, board=str, closing_reward=closing_reward)


def decide(histories, t):
    actions = [f"{history.task[1]} {len(history.steps)}" for history in histories]
    return StepDecisions(actions, [""] * len(actions), [[]] * len(actions), [{}] * len(actions))


def test_two_play_what_one_plays(monkeypatch):
    tasks, begun = [("", seed) for seed in range(8) for _ in range(4)], ([], [])
    alone = play(dice([]), decide, tasks, pictured=6)
    process, rows, barrier = threading.local(), {}, threading.Barrier(2, timeout=20)

    def every(value):
        rows[process.index] = value
        barrier.wait()
        values = [rows[0], rows[1]]
        barrier.wait()
        return values

    def play_share(index):
        process.index = index
        return play(shares.shared(dice(begun[index])), decide, tasks, pictured=6)

    assert shares.shared(game := dice([])) is game  # alone
    monkeypatch.setattr(multihost, "several", lambda: True)
    monkeypatch.setattr(multihost, "every", every)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: process.index)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(play_share, range(2))
    assert first == second == alone
    assert {episode.error for episode in alone} == {"", "lost", "no reward"} and alone[0].boards
    assert begun == (tasks[:16], tasks[16:])
