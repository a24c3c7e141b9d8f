"""PPO end to end beside PureJaxRL and stable-baselines3: environment steps a second, return after equal steps.

    python -m benchmarks.ppo --purejaxrl DIR --sb3_python PYTHON [--games CartPole-v1 Acrobot-v1] [--steps 500000]
    python -m benchmarks.ppo --together 1 4 16 --steps 50000

Every subject trains with 4 environments, 128 steps an update, 4 epochs of 4 minibatches, Adam at 2.5e-4 falling to 0,
networks of 64, 64: PureJaxRL's own defaults. Ours runs as `PPOConfig` is (observations and rewards normalised) and once
more as close to PureJaxRL as it goes; stable-baselines3 with these hyperparameters and with its own (10 epochs, batches
of 64, a constant 3e-4, no entropy bonus), and ours with the latter too. A training is one program of JAX, compiled
beforehand; stable-baselines3 has one torch thread, `learn` counts.
The programs of JAX take turns within each seed, stable-baselines3 follows. Steps a second: the median over seeds.
"last 10 %": mean return of the last tenth of a training's episodes, of the updates that hold them for the JAX programs.
"greedy", "sampled": 100 episodes afterwards. All of them: means over the seeds.

With --together only our agents train, so many at once, as one program by `vmap` over their keys, and in turn as many
one after another, each by the program of one agent: updates of all agents a second of the process on all cores.

PureJaxRL: a checkout, see `peers/purejaxrl.py`. stable-baselines3: a Python that has it, see `peers/sb3.py`. Either may
be left out. gymnax's and Gymnasium's CartPole and Acrobot have the same rules and limits (500 steps).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import purejaxrl
from benchmarks.timing import (
    ROOT,
    both_clocks,
    in_turns,
    last_json,
    machine,
    medians,
    parser_of,
    print_head,
    print_row,
    timed,
)
from nlrl_jax.algorithms import ppo
from nlrl_jax.rollouts.control import ControlPlayer, evaluate
from nlrl_jax.statistics import estimate, header

NUM_ENVS, NUM_STEPS = 4, 128
# Its value loss is half the squared error; it clips values as it clips ratios.
LIKE_PUREJAXRL = {"normalize_obs": False, "normalize_reward": False, "value_coef": 0.25, "value_clip": 0.2}
LIKE_SB3 = {"normalize_obs": False, "normalize_reward": False, "anneal": 0, "learning_rate": 3e-4, "entropy_coef": 0.0}
LIKE_SB3 |= {"epochs": 10, "num_minibatches": 8}
SB3_STEPS = {"n_steps": 128}
SB3_SAME = SB3_STEPS | {"n_epochs": 4, "batch_size": 128, "learning_rate": 2.5e-4, "anneal": True, "ent_coef": 0.01}


@dataclasses.dataclass
class Run:
    """One training. last: mean return of its last tenth of episodes; greedy, sampled: of 100 episodes afterwards."""

    seconds: float
    steps: int
    last: float = np.nan
    greedy: float = np.nan
    sampled: float = np.nan


def updates_of(steps: int) -> int:
    return steps // (NUM_ENVS * NUM_STEPS)


def config_of(steps: int, **options) -> ppo.PPOConfig:
    usual = {"num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "anneal": updates_of(steps)}
    return ppo.PPOConfig(**usual | options)


def train_ours(game: str, steps: int, config: ppo.PPOConfig) -> Callable[..., Any]:
    """A key -> (state, metrics), all updates as one scan."""
    env, params = gymnax.make(game)
    update = ppo.make_update(env, params, config)

    def train(key):
        key, key_init = jax.random.split(key)
        state = ppo.init_state(env, params, config, key_init)
        return jax.lax.scan(update, state, jax.random.split(key, updates_of(steps)))

    return train


def compiled(train: Callable[[jax.Array], Any]) -> tuple[float, Callable[[jax.Array], Any]]:
    """(how long compiling took, the program)."""
    return timed(jax.jit(train).lower(jax.random.key(0)).compile)


def last_tenth(sums, counts) -> float:
    """Mean return of the updates at the end that hold a tenth of all episodes. sums, counts: [U], of the episodes."""
    sums, counts = np.asarray(sums)[::-1], np.asarray(counts)[::-1]
    end = np.searchsorted(np.cumsum(counts), 0.1 * counts.sum()) + 1
    return float(sums[:end].sum() / counts[:end].sum())


def after(game: str, config: ppo.PPOConfig, params, moments, seed: int) -> dict[str, float]:
    """Mean returns of 100 episodes, greedy and sampled."""
    env, env_params = gymnax.make(game)
    player = ControlPlayer(env, env_params, ppo.agent_of(env, env_params, config), params, moments)
    key = jax.random.key(seed)
    return {name: float(jnp.mean(evaluate(player, key, 100, name == "greedy")[0])) for name in ("greedy", "sampled")}


def our_subject(game: str, steps: int, **options):
    config = config_of(steps, **options)
    compiling, program = compiled(train_ours(game, steps, config))

    def run(seed: int) -> Run:
        seconds, (state, metrics) = timed(program, jax.random.key(seed))
        last = last_tenth(metrics["env_return"] * metrics["episodes"], metrics["episodes"])
        scores = after(game, config, state.params, state.obs_moments, 1000 + seed)
        return Run(seconds, updates_of(steps) * NUM_ENVS * NUM_STEPS, last, **scores)

    return run, compiling


def purejaxrl_subject(directory: str, game: str, steps: int):
    compiling, program = compiled(purejaxrl.make_train(directory, game, steps))

    def run(seed: int) -> Run:
        seconds, out = timed(program, jax.random.key(seed))
        done, returned = (np.asarray(out["metrics"][k]) for k in ("returned_episode", "returned_episode_returns"))
        last = last_tenth((returned * done).sum((1, 2)), done.sum((1, 2)))
        # The networks are the same as ours but for the names.
        layers = out["runner_state"][0].params["params"]
        params = {
            "actor": {f"Dense_{i}": layers[f"Dense_{i}"] for i in range(3)},
            "critic": {f"Dense_{i}": layers[f"Dense_{3 + i}"] for i in range(3)},
        }
        config = config_of(steps, **LIKE_PUREJAXRL)
        return Run(seconds, done.size, last, **after(game, config, params, ppo.RunningMoments.of(), 1000 + seed))

    return run, compiling


def sb3_subject(python: str, game: str, steps: int, options: dict[str, Any]):
    def run(seed: int) -> Run:
        script = str(ROOT / "benchmarks" / "peers" / "sb3.py")
        command = [python, script, game, str(steps), str(seed), json.dumps(options)]
        result = last_json(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        returns = result["returns"][-max(1, len(result["returns"]) // 10) :]
        return Run(result["seconds"], result["steps"], statistics.mean(returns), result["greedy"], result["sampled"])

    return run, 0.0


def learning(game: str, args: argparse.Namespace) -> None:
    """Prints the rows of one game."""
    ours = functools.partial(our_subject, game, args.steps)
    subjects = {"nlrl_jax": ours(), "nlrl_jax, as PureJaxRL": ours(**LIKE_PUREJAXRL)}
    if args.purejaxrl:
        subjects["PureJaxRL"] = purejaxrl_subject(args.purejaxrl, game, args.steps)
    if args.sb3_python:
        subjects["nlrl_jax, stable-baselines3's own hyperparameters"] = ours(**LIKE_SB3)
    runs = in_turns({name: run for name, (run, _) in subjects.items()}, args.seeds)
    if args.sb3_python:
        for name, options in (("same", SB3_SAME), ("its own", SB3_STEPS)):
            name = f"stable-baselines3, {name} hyperparameters"
            subjects[name] = sb3_subject(args.sb3_python, game, args.sb3_steps, options)
            runs |= in_turns({name: subjects[name][0]}, args.sb3_seeds)
    speed = medians({name: [run.steps / run.seconds for run in rows] for name, rows in runs.items()})
    for name, rows in runs.items():
        best = max(run.steps / run.seconds for run in rows)
        cells = [game, name, f"{rows[0].steps:,} x {len(rows)}", f"{speed[name]:,.0f}", f"{best:,.0f}"]
        cells += [f"{speed['nlrl_jax'] / speed[name]:.2f}", f"{subjects[name][1]:.1f}"]
        for field in ("last", "greedy", "sampled"):
            cells.append(estimate([getattr(run, field) for run in rows]).text(".1f"))
        print_row(*cells)


def together(game: str, args: argparse.Namespace) -> None:
    """Prints the rows of one game for agents that train as one program."""
    train = train_ours(game, args.steps, config_of(args.steps))
    _, alone = compiled(train)
    for number in args.together:
        keys = jax.random.split(jax.random.key(0), number)
        compiling, program = timed(jax.jit(jax.vmap(train)).lower(keys).compile)
        subjects = {
            "one program": lambda _: both_clocks(program, keys)[1],
            "one after another": lambda _: both_clocks(lambda: [alone(key) for key in keys])[1],
        }
        seconds = medians(in_turns(subjects, args.seeds))
        updates = number * updates_of(args.steps)
        rates = {name: updates / seconds[name] for name in subjects}
        ratio = rates["one program"] / rates["one after another"]
        print_row(game, number, *(f"{rate:,.1f}" for rate in rates.values()), f"{ratio:.2f}", f"{compiling:.1f}")


def main() -> None:
    parser = parser_of(__doc__, games=["CartPole-v1", "Acrobot-v1"], steps=500_000, seeds=3, sb3_steps=500_000)
    parser.add_argument("--sb3_seeds", type=int, default=1)
    parser.add_argument("--purejaxrl", help="a checkout")
    parser.add_argument("--sb3_python", help="a Python that has stable-baselines3")
    parser.add_argument("--together", nargs="+", type=int, help="numbers of agents that train as one program")
    args = parser.parse_args()
    print(machine("flax", "gymnax"))
    if args.together:
        print("\nupdates of all agents per CPU second\n")
        print_head("game", "agents", "one program", "one after another", "ratio", "compiling, s")
        for game in args.games:
            together(game, args)
        return
    print(f"\n{header('seeds of each row')}\n")
    titles = ("game", "subject", "steps x seeds", "steps/s", "best", "nlrl_jax's ratio to it", "compiling, s")
    print_head(*titles, "last 10 %", "greedy", "sampled")
    for game in args.games:
        learning(game, args)


if __name__ == "__main__":
    main()
