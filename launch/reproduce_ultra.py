"""ULTRA's tables 1 and 2: a sub-optimal PPO agent, an analyst's findings on it, and refinement by every method.

    python -m launch.reproduce_ultra --game pong --run_dir runs/ultra_pong
    python -m launch.reproduce_ultra --game hopper --methods PPO,RICE,ULTRA-RA --run_dir runs/ultra_hopper
    python -m launch.reproduce_ultra --analyst endpoint --base_url http://localhost:8000/v1 --endpoint_model NAME ...
    python -m launch.reproduce_ultra --scale paper --dry_run
    python -m launch.reproduce_ultra --run_dir runs/ultra_pong --resume

First PPO trains the base agent (once; `--base RUN_DIR` copies that of another run). The analyst reads its episodes: a
rule-based one that sees only the prompts, a local model, or an endpoint. Then every method refines the same agent with
the same number of environment steps, all seeds as one program; agents are evaluated without the lookup table.
`--resume` skips finished stages and may add methods; the tables and report cover every method run in this folder. The
last line reads `ULTRA-RA over PPO: <PPO> -> <ULTRA-RA>`.

Departures from the paper: see `nlrl_jax/algorithms/ultra.py` and `envs/pong/env.py`. RICE and MASK-R also use
environment steps to train the mask network (`--mask_iterations`), which do not count in their budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import envs
from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.analyst import AnalysisConfig, Findings, analyse, load, save
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.algorithms.refiners import state_mask
from nlrl_jax.algorithms.refiners.methods import Shared
from nlrl_jax.algorithms.ultra import GuidanceConfig
from nlrl_jax.backends.cache import DiskCache
from nlrl_jax.backends.cached import CachedModel
from nlrl_jax.backends.scripted import CHARACTERS, CountingModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check, flat, option, part
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.rollouts import control
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.run import app, cost, loop, models, results
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import part_of, read_config
from nlrl_jax.run.plots import deviation
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import ultra as report
from nlrl_jax.types import ControlGame, LanguageModel
from nlrl_jax.updates import keep_finite
from nlrl_jax.weights.checkpoint import Checkpoints

SCRIPT = "reproduce_ultra"
ROBOTS, OWN = ("hopper", "walker2d", "ant"), "your own games"
# Options without effect in other games.
ONLY_FOR = {
    "cell": ("pong",),
    "points": ("pong",),
    "physics": ROBOTS,
    "radius": (*ROBOTS, OWN),
    "hlc": ("pong", "ant", OWN),
}
# Hyperparameters of the base agents; refinement has another learning rate.
DEFAULT_PPO = PPOConfig(epochs=10, num_minibatches=32, learning_rate=3e-4)
PPO = {"pong": dataclasses.replace(DEFAULT_PPO, normalize_reward=False)}
PPO |= dict.fromkeys(ROBOTS, dataclasses.replace(DEFAULT_PPO, entropy_coef=0.0))
EPISODES = 16  # of a dry run


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes. The defaults are those of Pong at scale quick."""

    game: str = option("pong", "pong, hopper, walker2d, ant, or your own as my_module:control_game")
    methods: str = option("all", f"comma-separated, or all: {', '.join(refiners.METHODS)}")
    seeds: int = option(3, "seeds of refinement", least=1)
    seed: int = option(0, "everything random follows from it", least=0)
    base: str = option("", "run folder whose base agent is refined; empty trains one")
    base_iterations: int = option(60, "updates of 2048 steps that train the base agent", least=0)
    iterations: int = option(200, "updates of 2048 steps of refinement, for each seed and method", least=1)
    learning_rate: float = option(1e-4, "PPO's learning rate in refinement", least=0)
    episodes: int = option(3000, "episodes of the base agent that the analyst reads", least=1)
    episode_steps: int = option(400, "maximum steps of such an episode", least=1)
    analyst: str = option("scripted", "scripted, endpoint, or a local model's name")
    endpoint_model: str = option("", "endpoint: its name for the model")
    endpoint: models.EndpointOptions = part(models.EndpointOptions())
    guidance: GuidanceConfig = part(GuidanceConfig(floor=3.0), without=("actions", "rewards"))
    cell: int = option(2, "Pong: side of the blocks that count as one state in the lookup table; 1 is exact", least=1)
    points: int = option(1, "Pong: points of a game", least=1)
    physics: str = option("auto", "robots: mjx, c, or auto: c on a CPU", choices=("auto", "mjx", "c"))
    mask_iterations: int = option(50, "updates that train the mask network of RICE and MASK-R", least=0)
    mask_share: float = option(0.2, "share of an episode's timeslots that are critical for MASK-R", above=0, most=1)
    hlc: float = option(0.1, "weight of HLC's hand-designed reward")
    eval_episodes: int = option(3000, "episodes of the evaluations before and after", least=1)
    curve_episodes: int = option(200, "episodes of the evaluations during refinement", least=1)
    eval_every: int = option(20, "updates between these", least=1)
    checkpoint_every: int = option(50, "updates between checkpoints", least=1)

    def __post_init__(self):
        check(self)


PRESETS = {  # by scale
    "quick": {},
    "paper": {
        "seeds": 5, "eval_episodes": 100, "endpoint_model": "gpt-4o", "analyst": "endpoint", "base_iterations": 500,
        "iterations": 500, "episodes": 100, "episode_steps": 1000,
    },
}  # fmt: skip
ROBOT_PRESETS = {  # by scale: also for every game but Pong
    "quick": {
        "alpha": 0.1, "base_iterations": 150, "iterations": 50, "episodes": 60, "episode_steps": 1000,
        "eval_episodes": 100, "curve_episodes": 20, "eval_every": 25, "floor": -math.inf,
    },
    "paper": {"alpha": 0.1, "curve_episodes": 20, "floor": -math.inf},
}  # fmt: skip


def parse_config() -> RunConfig:
    """The config of the flags; defaults depend on the scale (quick, if none is named) and the game.

    Raises:
      ValueError: a value outside its bounds, or an option without effect in this game.
    """
    options = flags.FLAGS
    stored = read_config(options.run_dir) if options.run_dir and options.resume else {}
    is_pong = (options["game"].value or stored.get("game", "pong")) == "pong"
    presets = {scale: values if is_pong else values | ROBOT_PRESETS[scale] for scale, values in PRESETS.items()}
    config = app.parse(RunConfig, presets | {None: presets["quick"]}, "scale")
    kind = OWN if ":" in config.game else config.game
    for name in config_flags.given(RunConfig):
        if name in ONLY_FOR and kind in (*envs.CONTROL_GAMES, OWN) and kind not in ONLY_FOR[name]:
            raise ValueError(f"--{name} does nothing for {kind}, only for {', '.join(ONLY_FOR[name])}; leave it out")
    return config


def make_game(config: RunConfig) -> ControlGame:
    """The game with the options that it takes.

    Raises:
      ValueError: an unknown game, or one without an analyst's prompts or pictures.
    """
    names = [name for name in ("cell", "points", "physics") if config.game in ONLY_FOR[name]]
    game = envs.make_control(config.game, **{name: getattr(config, name) for name in names})
    if game.roles is None or game.draw is None:
        raise ValueError(f"game {config.game!r} needs ControlGame.roles (prompts) and ControlGame.draw (pictures)")
    return game


class Run:
    """The stages of a run, each done once and stored in its folder."""

    def __init__(self, config: RunConfig, run_dir: pathlib.Path, resume: bool):
        self.config, self.run_dir, self.resume = config, run_dir, resume
        self.game = game = make_game(config)
        self.methods = refiners.known(config.methods, game)
        self.base_ppo = PPO.get(config.game, DEFAULT_PPO)
        self.ppo = dataclasses.replace(self.base_ppo, learning_rate=config.learning_rate)
        self.steps_per_update = self.ppo.num_envs * self.ppo.num_steps
        agent = ppo.agent_of(game.env, game.params, self.ppo)
        self._record = functools.partial(control.record, game.env, game.params, agent)
        returns = lambda params, moments, key, episodes: jax.vmap(
            lambda *one: control.evaluate(game.env, game.params, agent, *one, key, episodes)[0]
        )(params, moments)
        self._evaluate = jax.jit(returns, static_argnums=3)
        self._train = functools.partial(loop.train, checkpoint_every=config.checkpoint_every, resume=resume)

    def key(self, number: int) -> jax.Array:
        """The randomness of one stage."""
        return jax.random.fold_in(jax.random.key(self.config.seed), number)

    def scores(self, states: PPOState, episodes: int) -> np.ndarray:
        """Mean returns of a stack of agents, all on the same episodes' seeds: [n]."""
        return np.asarray(self._evaluate(states.params, states.obs_moments, self.key(1), episodes)).mean(axis=1)

    def fresh_agent(self) -> PPOState:
        """The base agent before its training."""
        return models.on_device(ppo.init_state(self.game.env, self.game.params, self.base_ppo, self.key(0)))

    def base(self) -> PPOState:
        """The sub-optimal agent: trained, or copied from another run once. Errors: see `_base_of`."""
        config, folder = self.config, self.run_dir / "base"
        state = loop.restore(folder, self.fresh_agent()) if self.resume else self.fresh_agent()
        if config.base:
            return state if int(state.iteration) else self._copied(folder, state)
        update = jax.jit(keep_finite(ppo.make_update(self.game.env, self.game.params, self.base_ppo)))
        if int(state.iteration) >= config.base_iterations:
            return state
        print(f"base agent: {_count(config.base_iterations, 'update')} of PPO", flush=True)
        columns, iterations = ("env_return", "env_steps", "entropy", "value_loss"), config.base_iterations
        return self._train(folder, update, state, seed=config.seed, iterations=iterations, columns=columns)

    def _copied(self, folder: pathlib.Path, fresh: PPOState) -> PPOState:
        """The agent of `--base`, stored in this run's folder: the other run may change from now on."""
        other, step = _base_of(self.config.base, self.config.game)
        _, learned, _ = Checkpoints(other / "checkpoints").restore(fresh.learned(), step, part_of(other))
        state = fresh.replace(**learned)
        _save(folder, state)
        return state

    def record(self, agent: PPOState, key: jax.Array, episodes: int) -> Trajectories:
        """Episodes of an agent."""
        play = lambda params, moments, key: self._record(params, moments, key, episodes, self.config.episode_steps)
        return jax.jit(play)(agent.params, agent.obs_moments, key)

    def analyst(self) -> LanguageModel:
        """The analyst's language model, its replies cached on disk and its calls counted."""
        config, name, usage = self.config, self.config.analyst, Usage(self.run_dir)
        address = (config.endpoint, config.endpoint_model)
        metered = models.large_model(name, self.game.scripts, self.run_dir, usage, *address)
        if name in ("scripted", "endpoint"):  # rules cost nothing, and an endpoint has its own cache
            return metered
        return dataclasses.replace(metered, model=CachedModel(metered.model, DiskCache(self.run_dir / "cache")))

    def findings(self, name: str, trajectories: Trajectories, analyst: LanguageModel, verdicts=None) -> Findings:
        """The analyst's findings in the trajectories, stored in a file."""
        path = self.run_dir / f"{name}.json"
        if path.exists():
            return load(path)
        episodes = control.episodes_of(trajectories)
        findings = analyse(episodes, self.game.roles, analyst, self.config.seed, verdicts=verdicts)
        save(findings, path)
        return findings

    def mask_verdicts(self, weight: Any, steps: Any) -> list[list[Verdict]]:
        """MASK-R's verdicts: the most important timeslots of each episode. weight: float [T, N]. steps: [N]."""
        chosen = np.asarray(state_mask.critical_share(weight, steps, self.config.mask_share)).T
        return [[Verdict(int(t), True, None, "", judged=False) for t in np.flatnonzero(row)] for row in chosen]

    def shared(self, base: PPOState, trajectories: Trajectories, analyst: LanguageModel) -> tuple[Shared, Findings]:
        """What all methods have in common, and the findings."""
        findings = self.findings("findings", trajectories, analyst)
        critical = findings.counts.get("identify/critical", 0)
        print(f"analyst: {critical} critical of {findings.counts.get('identify/timeslots', 0)} timeslots", flush=True)
        if not findings.states:
            print("the analyst marked no state: ULTRA's methods will be plain PPO", flush=True)
        mean, scale = ultra.statistics(np.asarray(trajectories.obs), np.asarray(trajectories.steps))
        table = lambda findings: ultra.make_table(findings.states, self.game, mean, scale)
        weight = mask_table = None
        if set(self.methods) & set(refiners.MASKED):
            weight = self.importance(base)(trajectories.obs)
        if "MASK-R" in self.methods:
            verdicts = self.mask_verdicts(weight, trajectories.steps)
            mask_table = table(self.findings("mask_findings", trajectories, analyst, verdicts))
        ours, guidance, hlc = table(findings), self.config.guidance, self.config.hlc
        return Shared(self.game, self.ppo, trajectories, ours, mask_table, weight, guidance, hlc), findings

    def importance(self, base: PPOState) -> Callable[[jax.Array], jax.Array]:
        """How much the base agent's action matters, by the mask network: obs [..., D] -> float [...]."""
        config, folder = self.config, self.run_dir / "mask"
        network = state_mask.MaskNetwork(self.game, self.base_ppo, base)
        key_init, key_train = jax.random.split(self.key(3))
        mask = network.init(key_init)
        mask = loop.restore(folder, mask) if self.resume else mask
        if int(mask.iteration) < config.mask_iterations:
            print(f"mask network: {_count(config.mask_iterations, 'update')}", flush=True)
            mask, blinded = network.train(mask, config.mask_iterations, key_train)
            print(f"it blinds {blinded:.2f} of the steps", flush=True)
            _save(folder, mask)
        return functools.partial(network.importance, mask)

    def refine(self, name: str, shared: Shared, base: PPOState, start: float) -> PPOState:
        """Refines all seeds by a method as one program, and stores their scores. start: the base agent's."""
        config, folder = self.config, self.run_dir / name
        folder.mkdir(exist_ok=True)
        seeds = [config.seed + n for n in range(config.seeds)]
        keys = jax.random.split(self.key(4), config.seeds)
        states = models.on_device(jax.vmap(lambda key: refiners.start(name, shared, base, key))(keys))
        update = jax.jit(keep_finite(jax.vmap(refiners.update(name, shared))))
        states = loop.restore(folder, states) if self.resume else states
        if int(states.iteration[0]) < config.iterations:
            columns = ("env_return", "eval/score", "critical", "replaced", "value_loss")
            print(f"{name}: {_count(config.seeds, 'seed')} of {_count(config.iterations, 'update')}", flush=True)

            def evaluate(done: int, states: PPOState) -> dict[str, Any]:
                due = done % config.eval_every == 0 or done == config.iterations
                return {"eval/score": self.scores(states, config.curve_episodes)} if due else {}

            iterations = config.iterations
            states = self._train(
                folder, update, states, seed=seeds, iterations=iterations, columns=columns, evaluate=evaluate
            )
        after = {"score": self.scores(states, config.eval_episodes)}
        results.write(folder, script=SCRIPT, before={"score": start}, after=after, seeds=seeds)
        return states


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _save(folder: pathlib.Path, state: PPOState) -> None:
    """Stores a state where `loop.restore(folder)` reads it."""
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(int(state.iteration), state.learned(), {"run": part_of(folder)})


def _base_of(base: str, game: str) -> tuple[pathlib.Path, int]:
    """(the folder of the finished base agent that `--base` names, its iterations).

    Raises:
      ValueError: no run, one of another game, or one whose base agent is missing or not finished.
    """
    folder = pathlib.Path(base)
    if not (folder / "config.json").is_file() or not (folder / "base").is_dir():
        raise ValueError(f"--base {base} holds no base agent (no config.json or no folder base)")
    stored = read_config(folder)
    if stored.get("game") != game:
        raise ValueError(f"--base {base} is an agent of {stored.get('game')!r}, not of {game!r}")
    done = Checkpoints(folder / "base" / "checkpoints").latest_step()
    if done is None:
        raise ValueError(f"--base {base} holds no checkpoint of its base agent yet")
    needed = done if stored.get("base") else stored["base_iterations"]  # a copy was finished when it was made
    if done < needed:
        raise ValueError(f"--base {base}: its agent has {done} of {needed} iterations; finish it first (--resume)")
    return folder / "base", done


def stored_scores(run_dir: pathlib.Path) -> dict[str, np.ndarray]:
    """The scores [seeds] of every method that has finished in a run's folder."""
    finished = [name for name in refiners.METHODS if (run_dir / name / results.RESULTS).is_file()]
    return {name: np.array(results.read(run_dir / name)["after"]["score"]) for name in finished}


def dry_run(run: Run) -> str:
    """The calls and tokens of the analyst, counted on a few episodes of an untrained agent, and environment steps."""
    config, game = run.config, run.game
    trajectories = run.record(run.fresh_agent(), run.key(2), EPISODES)
    episodes, steps = control.episodes_of(trajectories), trajectories.steps
    longest = "x" * CHARACTERS * AnalysisConfig().analysis.max_tokens  # what the prompts for rewards quote
    model, usage = CountingModel({**game.scripts, "analyse": lambda context, rng: longest}), Usage()
    counts = analyse(episodes, game.roles, Metered(model, usage)).counts
    rows = usage.rows()
    if "MASK-R" in run.methods:
        verdicts, usage = run.mask_verdicts(jnp.zeros(trajectories.reward.shape), steps), Usage()
        analyse(episodes, game.roles, Metered(model, usage), verdicts=verdicts)
        rows += [{**row, "role": f"{row['role']} (MASK-R)"} for row in usage.rows()]
    share = counts["identify/critical"] / counts["identify/timeslots"]
    lines = [
        cost.calls_table(rows, config.episodes / EPISODES),
        f"Counted on an untrained agent ({steps.mean():.0f} steps per episode, {share:.0%} of them critical for the "
        f"rule-based analyst).\nA better agent's episodes may be longer, up to {config.episode_steps} steps.",
    ]
    is_masked = bool(set(run.methods) & set(refiners.MASKED))
    updates = {
        "base agent": 0 if config.base else config.base_iterations,
        "mask network": config.mask_iterations * is_masked,
        f"{_count(len(run.methods), 'method')} x {_count(config.seeds, 'seed')}": (
            len(run.methods) * config.seeds * config.iterations
        ),
    }
    lines += [f"{name}: {n * run.steps_per_update:,} environment steps" for name, n in updates.items() if n]
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    del argv
    config = parse_config()
    run = Run(config, pathlib.Path(flags.FLAGS.run_dir).expanduser().absolute(), flags.FLAGS.resume)
    if flags.FLAGS.dry_run:
        print(dry_run(run))
        return
    if config.base and not run.resume:  # a resumed run has its copy
        _base_of(config.base, config.game)
    run_dir = app.take_run_dir(SCRIPT, config, ("methods", "checkpoint_every", "base_url", *models.MAY_CHANGE))
    analyst = run.analyst()  # a wrong address or model fails before anything is trained
    base = run.base()
    alone = jax.tree.map(lambda leaf: leaf[None], {"params": base.params, "obs_moments": base.obs_moments})
    start = float(run.scores(base.replace(**alone), config.eval_episodes)[0])
    print(f"base agent: {run.game.score} {start:.3f}", flush=True)
    trajectories = run.record(base, run.key(2), config.episodes)
    shared, findings = run.shared(base, trajectories, analyst)
    refined = {}
    for name in run.methods:
        refined[name] = run.refine(name, shared, base, start)
        score = stored_scores(run_dir)[name]
        print(f"{name}: {score.mean():.3f} ± {deviation(score):.3f}", flush=True)
    scores = stored_scores(run_dir)
    tables = report.tables(scores, start)
    text = "\n".join(markdown(rows) for rows in tables if rows)
    write_atomically(run_dir / "tables.md", text)
    best = max(refined, key=lambda name: scores[name].mean())
    after = jax.tree.map(lambda leaf: leaf[scores[best].argmax()], refined[best])
    films = {label: run.record(agent, run.key(5), 1) for label, agent in (("before", base), (f"after {best}", after))}
    page = report.write(
        run_dir, run.game, flat(config), tables, scores, start, run.steps_per_update, trajectories, findings, films
    )
    print(f"\n{text}\nreport: {page}\n{report.headline(scores)}")


define_flags = app.flags_of(
    RunConfig, PRESETS, "scale", f". Other games also: {config_flags.listed(ROBOT_PRESETS)}",
    dry_run="print the analyst's calls and tokens and the environment steps, and stop",
)  # fmt: skip

if __name__ == "__main__":
    define_flags()
    app.run(main)
