"""ULTRA's tables 1 and 2: a sub-optimal PPO agent, what an analyst says of it, and refinement by every method.

    python -m launch.reproduce_ultra --game pong --run_dir runs/ultra_pong
    python -m launch.reproduce_ultra --game hopper --methods PPO,RICE,ULTRA-RA --run_dir runs/ultra_hopper
    python -m launch.reproduce_ultra --analyst endpoint --base_url http://localhost:8000/v1 --endpoint_model NAME ...
    python -m launch.reproduce_ultra --scale paper --dry_run

First PPO trains the base agent (once; `--base RUN_DIR` takes that of another run). Its episodes go to the analyst: the
scripted one that reads the trajectory, a local model, or an endpoint. Then every method refines the same agent with the
same number of environment steps, several seeds as one program, and is evaluated alone, without the lookup table.
Whatever is there already is not done again with `--resume`, which may name other methods; tables and report are of all
that ever ran there. The last line reads `ULTRA-RA over PPO: <PPO> -> <ULTRA-RA>`.

Departures from the paper: see `nlrl_jax/algorithms/ultra.py` and `envs/pong/env.py`. RICE and MASK-R also use
environment steps to train the mask network (`--mask_iterations`), which is not counted in their budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

import envs
from launch import ultra_games, ultra_plan
from launch.ultra_games import Setting
from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.analyst import Findings, analyse, load, save
from nlrl_jax.algorithms.ppo import PPOState
from nlrl_jax.algorithms.refiners import methods as ultra_methods
from nlrl_jax.algorithms.refiners import state_mask
from nlrl_jax.algorithms.refiners.methods import Shared
from nlrl_jax.backends.cache import DiskCache
from nlrl_jax.backends.cached import CachedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.trajectories import Episode, Verdict
from nlrl_jax.rollouts import control
from nlrl_jax.run import app, loop, models
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import part_of, read_config
from nlrl_jax.run.plots import deviation
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import ultra as ultra_report
from nlrl_jax.types import LanguageModel
from nlrl_jax.updates import keep_finite
from nlrl_jax.weights.checkpoint import Checkpoints

ROBOT_NAMES = ("hopper", "walker2d", "ant")
# Options that do nothing in the other games.
ONLY_FOR = {
    "cell": ("pong",),
    "points": ("pong",),
    "physics": ROBOT_NAMES,
    "radius": ROBOT_NAMES,
    "hlc": ("pong", "ant"),
}


@dataclasses.dataclass(frozen=True)
class RunConfig(models.EndpointOptions):
    """Everything that decides what a run computes. The defaults are those of Pong at scale quick.

    Raises:
      ValueError: a number that cannot be, or an option that does nothing in this game.
    """

    game: str = option("pong", "pong, hopper, walker2d or ant")
    methods: str = option("all", f"comma-separated, or all: {', '.join(ultra_methods.METHODS)}")
    seeds: int = option(3, "seeds of refinement")
    seed: int = option(0, "everything random follows from it")
    base: str = option("", "run folder whose base agent is refined; empty trains one")
    base_iterations: int = option(60, "updates of 2048 steps that make the base agent")
    iterations: int = option(200, "updates of 2048 steps of refinement, each seed and method")
    learning_rate: float = option(1e-4, "of refinement")
    episodes: int = option(3000, "episodes of the base agent that the analyst reads")
    episode_steps: int = option(400, "steps of an episode that it reads at most")
    analyst: str = option("scripted", "who analyses: scripted, endpoint, or a local model's name")
    alpha: float = option(0.5, "weight of the analyst's rewards; the paper: 0.5 for Pong, 0.1 for the robots")
    floor: float = option(3.0, "least normalised advantage of a suggested action; -inf is algorithm 1 to the letter")
    radius: float = option(0.3, "how near a robot's state must be to a critical one, in deviations a dimension")
    cell: int = option(2, "Pong: rows and columns that count as one in the lookup table; 1 is exact")
    points: int = option(1, "Pong: points of a game")
    mask_iterations: int = option(50, "updates that train the mask network of RICE and MASK-R")
    mask_share: float = option(0.2, "share of an episode's timeslots that MASK-R takes for critical")
    hlc: float = option(0.1, "weight of the rewards by hand of HLC")
    eval_episodes: int = option(3000, "episodes of the evaluation before and after")
    curve_episodes: int = option(200, "episodes of the evaluations on the way")
    eval_every: int = option(20, "updates between these")
    physics: str = option("auto", "robots: mjx, c, or auto: c on a CPU")
    checkpoint_every: int = option(50, "updates between checkpoints")
    endpoint_model: str = option("", "an endpoint's name for its model")

    def __post_init__(self):
        check_numbers(
            self,
            at_least_one=(
                "seeds", "iterations", "episodes", "episode_steps", "cell", "points", "eval_episodes",
                "curve_episodes", "eval_every", "checkpoint_every", "concurrency",
            ),
            not_negative=("base_iterations", "learning_rate", "alpha", "mask_iterations", "token_budget"),
            positive=("radius",),
            finite=("hlc",),
        )  # fmt: skip
        if not 0 < self.mask_share <= 1:
            raise ValueError(f"--mask_share is {self.mask_share!r}; it must be above 0 and at most 1")
        if math.isnan(self.floor) or self.floor == math.inf:
            raise ValueError(f"--floor is {self.floor!r}; it must be a number or -inf")
        for name, games in ONLY_FOR.items():
            given = getattr(self, name) != getattr(RunConfig, name)
            if given and self.game in envs.CONTROL_GAMES and self.game not in games:
                raise ValueError(f"--{name} does nothing for {self.game}, only for {', '.join(games)}; leave it out")


PRESETS = {  # by scale
    "quick": {},
    "paper": {
        "seeds": 5, "eval_episodes": 100, "endpoint_model": "gpt-4o", "analyst": "endpoint", "base_iterations": 500,
        "iterations": 500, "episodes": 100, "episode_steps": 1000,
    },
}  # fmt: skip
ROBOTS = {  # by scale: what every game but Pong takes besides
    "quick": {
        "alpha": 0.1, "base_iterations": 150, "iterations": 50, "episodes": 60, "episode_steps": 1000,
        "eval_episodes": 100, "curve_episodes": 20, "eval_every": 25, "floor": -math.inf,
    },
    "paper": {"alpha": 0.1, "curve_episodes": 20, "floor": -math.inf},
}  # fmt: skip


def parse_config() -> RunConfig:
    """The config of the flags; what is not given depends on the scale (quick, if that is not given) and the game."""
    is_pong = (flags.FLAGS["game"].value or RunConfig.game) == "pong"
    presets = {scale: values if is_pong else values | ROBOTS[scale] for scale, values in PRESETS.items()}
    return app.parse(RunConfig, presets | {None: presets["quick"]}, "scale")


class Run:
    """A run's parts, each made once and kept in its folder."""

    def __init__(self, config: RunConfig, run_dir: pathlib.Path, resume: bool):
        self.config, self.run_dir, self.resume = config, run_dir, resume
        self.setting: Setting = ultra_games.make(config.game, config.physics, config.cell, config.points)
        self.ppo = dataclasses.replace(self.setting.ppo, learning_rate=config.learning_rate, guided_floor=config.floor)
        self.methods = ultra_methods.known(config.methods, self.setting)
        game = self.setting.game
        self.agent = ppo.agent_of(game.env, game.params, self.ppo)
        play = functools.partial(control.evaluate, game.env, game.params, self.agent)
        by_seed = lambda episodes: jax.jit(
            jax.vmap(lambda params, moments, key: play(params, moments, key, episodes)[0], in_axes=(0, 0, None))
        )
        self.evaluate_whole, self.evaluate_some = by_seed(config.eval_episodes), by_seed(config.curve_episodes)
        self.key = lambda number: jax.random.fold_in(jax.random.key(config.seed), number)

    def scores(self, states: PPOState, whole: bool = True) -> np.ndarray:
        """Mean returns of a stack of agents, all on the same episodes' seeds: [n]."""
        evaluate = self.evaluate_whole if whole else self.evaluate_some
        return np.asarray(evaluate(states.params, states.obs_moments, self.key(1))).mean(axis=1)

    def fresh_agent(self) -> PPOState:
        """The base agent before its training."""
        game = self.setting.game
        return models.on_device(ppo.init_state(game.env, game.params, self.setting.ppo, self.key(0)))

    def base(self) -> PPOState:
        """The sub-optimal agent: trained, or copied from another run once.

        Raises:
          ValueError: `--base` names no run, one of another game, or one whose agent is not there or not finished.
        """
        config, game = self.config, self.setting.game
        folder = self.run_dir / "base"
        state = loop.restore(folder, self.fresh_agent()) if self.resume else self.fresh_agent()
        if config.base:
            return state if int(state.iteration) else self._copied(folder, state)
        update = jax.jit(keep_finite(ppo.make_update(game.env, game.params, self.setting.ppo)))
        if int(state.iteration) >= config.base_iterations:
            return state
        columns = ("env_return", "env_steps", "entropy", "value_loss")
        print(f"base agent: {config.base_iterations} updates of PPO", flush=True)
        return self._train(folder, update, state, config.seed, config.base_iterations, columns, None)

    def _copied(self, folder: pathlib.Path, fresh: PPOState) -> PPOState:
        """The agent of `--base`, from now on our own, whatever becomes of that run."""
        theirs, step = _base_of(self.config)
        _, learned, _ = Checkpoints(theirs / "checkpoints").restore(fresh.learned(), step, part_of(theirs))
        state = fresh.replace(**learned)
        _save(folder, state)
        return state

    def record(self, base: PPOState) -> control.Record:
        """Episodes of the base agent."""
        config, game = self.config, self.setting.game
        record = functools.partial(control.record, game.env, game.params, self.agent)
        played = jax.jit(lambda s, k: record(s.params, s.obs_moments, k, config.episodes, config.episode_steps))
        return played(base, self.key(2))

    def analyst(self) -> LanguageModel:
        """The language model of ULTRA's roles, its replies kept on disk and its calls counted."""
        config = self.config
        name, usage = config.analyst, Usage(self.run_dir)
        metered = models.large_model(name, self.setting.scripts, self.run_dir, usage, config, config.endpoint_model)
        if name in ("scripted", "endpoint"):  # rules cost nothing, and an endpoint has its cache
            return metered
        return dataclasses.replace(metered, model=CachedModel(metered.model, DiskCache(self.run_dir / "cache")))

    def findings(self, name: str, episodes: list[Episode], analyst: LanguageModel, verdicts=None) -> Findings:
        """What the analyst says of the episodes; kept in a file."""
        path = self.run_dir / f"{name}.json"
        if path.exists():
            return load(path)
        findings = analyse(episodes, self.setting.roles, analyst, self.config.seed, verdicts=verdicts)
        save(findings, path)
        return findings

    def shared(
        self, base: PPOState, record: control.Record, episodes: list[Episode], analyst: LanguageModel
    ) -> tuple[Shared, Findings]:
        """Everything that the methods have in common."""
        config, setting = self.config, self.setting
        findings = self.findings("findings", episodes, analyst)
        critical = findings.counts.get("identify/critical", 0)
        print(f"analyst: {critical} critical of {findings.counts.get('identify/timeslots', 0)} timeslots", flush=True)
        if not findings.states:
            print("the analyst marked no state: ULTRA's methods will be plain PPO", flush=True)
        obs, steps = np.asarray(record.obs), np.asarray(record.steps)
        statistics = ultra_games.statistics(obs, steps)
        table = functools.partial(ultra.make_table, game=setting.game, mean=statistics[0], scale=statistics[1])
        weight = mask_table = None
        if set(self.methods) & set(ultra_methods.MASKED):
            weight = self.importance(base)(record.obs)
        if "MASK-R" in self.methods:
            chosen = np.asarray(state_mask.critical_share(weight, record.steps, config.mask_share))
            verdicts = [
                [Verdict(int(t), True, None, "", judged=False) for t in np.flatnonzero(chosen[:, n])]
                for n in range(len(episodes))
            ]
            mask_table = table(self.findings("mask_findings", episodes, analyst, verdicts).states)
        shared = Shared(
            setting,
            self.ppo,
            record,
            table(findings.states),
            mask_table,
            weight,
            config.alpha,
            config.radius,
            config.hlc,
        )
        return shared, findings

    def importance(self, base: PPOState) -> Callable[[jax.Array], jax.Array]:
        """How much the base agent's action matters, by the mask network: obs [..., D] -> float [...]."""
        config, folder = self.config, self.run_dir / "mask"
        network = ultra_methods.MaskNetwork(self.setting, base)
        key_init, key_train = jax.random.split(self.key(3))
        mask = network.init(key_init)
        mask = loop.restore(folder, mask) if self.resume else mask
        if int(mask.iteration) < config.mask_iterations:
            print(f"mask network: {config.mask_iterations} updates", flush=True)
            mask, blinded = network.train(mask, config.mask_iterations, key_train)
            print(f"it blinds {blinded:.2f} of the steps", flush=True)
            _save(folder, mask)
        return functools.partial(network.importance, mask)

    def refine(self, name: str, shared: Shared, base: PPOState) -> tuple[PPOState, np.ndarray]:
        """A method's seeds as one program: (their states, their scores [n])."""
        config, folder = self.config, self.run_dir / name
        folder.mkdir(exist_ok=True)
        keys = jax.random.split(self.key(4), config.seeds)
        states = jax.vmap(lambda key: ultra_methods.start(name, shared, base, key))(keys)
        states = models.on_device(states)
        update = jax.jit(keep_finite(jax.vmap(ultra_methods.update(name, shared))))
        states = loop.restore(folder, states) if self.resume else states
        if int(states.iteration[0]) < config.iterations:
            seeds = [config.seed + n for n in range(config.seeds)]
            columns = ("env_return", "eval/score", "critical", "guided", "value_loss")
            print(f"{name}: {config.seeds} seeds of {config.iterations} updates", flush=True)

            def evaluate(done: int, states: PPOState) -> dict[str, Any]:
                due = done % config.eval_every == 0 or done == config.iterations
                return {"eval/score": self.scores(states, whole=False)} if due else {}

            states = self._train(folder, update, states, seeds, config.iterations, columns, evaluate)
        return states, self.scores(states)

    def _train(self, folder, update, state, seed, iterations, columns, evaluate):
        every = self.config.checkpoint_every
        return loop.train(
            folder, update, state, seed=seed, iterations=iterations, checkpoint_every=every, columns=columns,
            resume=self.resume, evaluate=evaluate,
        )  # fmt: skip


def _save(folder: pathlib.Path, state: PPOState) -> None:
    """Leaves a state where `loop.restore(folder)` finds it."""
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(int(state.iteration), state.learned(), {"run": part_of(folder)})


def _base_of(config: RunConfig) -> tuple[pathlib.Path, int]:
    """(the folder of the finished base agent that `--base` names, its iterations). Errors: see `Run.base`."""
    folder = pathlib.Path(config.base)
    if not (folder / "config.json").is_file() or not (folder / "base").is_dir():
        raise ValueError(f"--base {config.base} holds no base agent (no config.json or no folder base)")
    told = read_config(folder)
    game = told.get("game")
    if game != config.game:
        raise ValueError(f"--base {config.base} is an agent of {game!r}, not of {config.game!r}")
    done = Checkpoints(folder / "base" / "checkpoints").latest_step()
    if done is None:
        raise ValueError(f"--base {config.base} holds no checkpoint of its base agent yet")
    needed = done if told.get("base") else told["base_iterations"]  # a copy was finished when it was made
    if done < needed:
        raise ValueError(
            f"--base {config.base}: its base agent has {done} of {needed} iterations; finish that run first (--resume)"
        )
    return folder / "base", done


def tables(scores: dict[str, np.ndarray], start: float) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of tables 1 and 2 for the methods that were run, and by how much ULTRA-RA is above its baselines' mean.

    That is how the paper's percentages for the robots come about (Hopper 7.68, Walker2d 13.77, Ant 5.55), PPO counted
    in. Its Pong has 165 %, where its rounded scores give 156 %.
    """
    shown = lambda name: f"{scores[name].mean():.3f} ± {deviation(scores[name]):.3f}"
    rows = lambda names: [{"method": name, "score": shown(name)} for name in names if name in scores]
    first = [{"method": "base agent", "score": f"{start:.3f}"}, *rows(ultra_methods.TABLE_1)]
    baselines = [name for name in ultra_methods.BASELINES if name in scores]
    level = np.mean([scores[name].mean() for name in baselines]) if baselines else 0.0
    if "ULTRA-RA" in scores and level > 0:
        gain = scores["ULTRA-RA"].mean() / level - 1
        first.append({"method": f"ULTRA-RA over the mean of {', '.join(baselines)}", "score": f"{100 * gain:+.1f} %"})
    return first, rows(ultra_methods.TABLE_2)


def main(argv: list[str]) -> None:
    del argv
    config = parse_config()
    ultra_methods.known(config.methods, ultra_games.make(config.game, config.physics, config.cell, config.points))
    if flags.FLAGS.dry_run:
        print(ultra_plan.plan(Run(config, pathlib.Path(), resume=False), flags.FLAGS.critical_share))
        return
    if config.base and not flags.FLAGS.resume:  # going on, a copy is there
        _base_of(config)
    may_change = ("methods", "checkpoint_every", "base_url", *models.MAY_CHANGE)
    run_dir = app.take_run_dir("reproduce_ultra", config, may_change)
    run = Run(config, run_dir, flags.FLAGS.resume)
    analyst = run.analyst()  # a wrong address or model shows before anything is trained
    base = run.base()
    one = jax.tree.map(lambda leaf: leaf[None], (base.params, base.obs_moments))
    start = float(run.scores(base.replace(params=one[0], obs_moments=one[1]))[0])
    print(f"base agent: {run.setting.score} {start:.3f}", flush=True)
    record = run.record(base)
    episodes = control.episodes_of(record)
    shared, findings = run.shared(base, record, episodes, analyst)
    final, path = {}, run_dir / "results.json"
    earlier = json.loads(path.read_text())["scores"] if path.exists() else {}  # of methods not asked for this time
    scores = {name: np.array(score, np.float32) for name, score in earlier.items()}
    for name in run.methods:
        final[name], scores[name] = run.refine(name, shared, base)
        print(f"{name}: {scores[name].mean():.3f} ± {deviation(scores[name]):.3f}", flush=True)
        kept = {other: score.tolist() for other, score in scores.items()}
        write_atomically(path, json.dumps({"start": start, "scores": kept}, indent=2))
    first, second = tables(scores, start)
    told = "\n".join(markdown(rows) for rows in (first, second) if rows)
    write_atomically(run_dir / "tables.md", told)
    report = ultra_report.write(run, base, final, record, episodes, findings, scores, start, (first, second))
    print(f"\n{told}\nreport: {report}")
    if {"PPO", "ULTRA-RA"} <= scores.keys():
        print(f"ULTRA-RA over PPO: {scores['PPO'].mean():.3f} -> {scores['ULTRA-RA'].mean():.3f}")


def define_flags() -> None:
    config_flags.define(RunConfig, PRESETS, "scale", f". Robots besides: {config_flags.listed(ROBOTS)}")
    flags.DEFINE_boolean("dry_run", False, "print what the run would ask of the analyst and the machine, and stop")
    flags.DEFINE_float("critical_share", 0.2, "dry run: share of the timeslots taken for critical", 1e-3, 1.0)
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
