"""ULTRA's tables 1 and 2: sub-optimal PPO agents, an analyst's findings on them, and refinement by every method.

    nlrl-jax reproduce_ultra --game pong --run_dir runs/ultra_pong
    nlrl-jax reproduce_ultra --game hopper --bases 5 --methods PPO,RICE,ULTRA-RA --run_dir runs/ultra_hopper
    nlrl-jax reproduce_ultra --analyst endpoint --base_url http://localhost:8000/v1 --endpoint_model NAME ...
    nlrl-jax reproduce_ultra --scale paper --dry_run
    nlrl-jax reproduce_ultra --run_dir runs/ultra_pong --resume

First PPO trains the base agents (once; `--base RUN_DIR` copies those of other runs). The analyst reads their episodes:
a rule-based one that sees only the prompts, a local model, or an endpoint. Then every method refines the same agents
with the same number of environment steps, all seeds of a base agent as one program; agents are evaluated without the
lookup table, by their most likely actions and by sampled ones. `--resume` skips finished stages and may add methods,
and loses at most `--checkpoint_every` updates; `--contact_forces` plays the Ant of version 4 that observes them;
the tables and report cover every method run in this folder. The last line reads
`ULTRA-RA over PPO: <PPO> -> <ULTRA-RA>, <gain> ± <half-width of its 95 % interval>`.

Departures from the paper: see `nlrl_jax/algorithms/ultra.py` and `envs/pong/env.py`. RICE and MASK-R also use
environment steps to train the mask network (`--mask_iterations`), which do not count in their budget.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms.analyst import Findings
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import cached, metered
from nlrl_jax.config import flat
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.rollouts import control
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.run import app, endpoints, limits, local_models, loop, models, results
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import read_run
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import ultra as report
from nlrl_jax.run.reports.tidy import rounded
from nlrl_jax.run.ultra import stages
from nlrl_jax.run.ultra.base_agents import base_of
from nlrl_jax.run.ultra.config import RefinementConfig
from nlrl_jax.run.ultra.dry_run import EPISODES, plan
from nlrl_jax.run.ultra.stages import SCRIPT, Analysis, Arena
from nlrl_jax.types import ControlGame, LanguageModel

ROBOTS, OWN = ("hopper", "walker2d", "ant"), "your own games"
# Options without effect in other games.
ONLY_FOR = {
    "cell": ("pong",),
    "points": ("pong",),
    "physics": ROBOTS,
    "contact_forces": ("ant",),
    **dict.fromkeys(("radius", "advice", "step"), (*ROBOTS, OWN)),
}
OF_METHODS = {  # options without effect on other methods
    "rice_learning_rate": ("RICE",),
    "mask_iterations": refiners.MASKED,
}
# Hyperparameters of the base agents; refinement has another learning rate.
DEFAULT_PPO = PPOConfig(epochs=10, num_minibatches=32, learning_rate=3e-4)
PPO = {"pong": dataclasses.replace(DEFAULT_PPO, normalize_reward=False)}
PPO |= dict.fromkeys(ROBOTS, dataclasses.replace(DEFAULT_PPO, entropy_coef=0.0))

PRESETS = {  # by scale
    "quick": {},
    "paper": {
        "seeds": 5, "eval_episodes": 100, "endpoint_model": "gpt-4o", "analyst": "endpoint", "base_iterations": 500,
        "iterations": 500, "episodes": 100, "episode_steps": 1000,
    },
}  # fmt: skip
ROBOT_PRESETS = {  # by scale: also for every game but Pong
    "quick": {
        "alpha": 0.1, "base_iterations": 300, "iterations": 50, "episodes": 60, "episode_steps": 1000,
        "eval_episodes": 100, "curve_episodes": 20, "eval_every": 25, "floor": -math.inf,
    },
    "paper": {"alpha": 0.1, "curve_episodes": 20, "floor": -math.inf},
}  # fmt: skip
COMMAND = app.Command(
    SCRIPT, RefinementConfig, PRESETS, "scale", f". Other games also: {config_flags.listed(ROBOT_PRESETS)}",
    dry_run="print the analyst's calls and tokens and the environment steps, then stop",
    may_change=("methods", "checkpoint_every"),
)  # fmt: skip


def parse_config() -> RefinementConfig:
    """The config of the flags; defaults depend on the scale (quick, if none is named) and the game.

    Raises:
      ValueError: a value outside its bounds, or an option without effect in this game.
    """
    options = flags.FLAGS
    stored = read_run(options.run_dir, SCRIPT) if options.run_dir and options.resume else {}
    is_pong = (options["game"].value or stored.get("game", "pong")) == "pong"
    config = app.parse(RefinementConfig, presets(is_pong) | {None: presets(is_pong)["quick"]}, "scale", SCRIPT)
    kind = OWN if ":" in config.game else config.game
    for name in config_flags.given(RefinementConfig):
        if name in ONLY_FOR and kind in (*envs.CONTROL_GAMES, OWN) and kind not in ONLY_FOR[name]:
            raise ValueError(f"--{name} does nothing for {kind}, only for {', '.join(ONLY_FOR[name])}; leave it out")
    endpoints.check_endpoint_is_used(config.analyst)
    if config.base:
        config_flags.leave_out("with --base, whose agents are already trained", "base_iterations")
    return config


def presets(is_pong: bool) -> dict[str, dict[str, Any]]:
    """The scales, for Pong or for any other game."""
    return {scale: values if is_pong else values | ROBOT_PRESETS[scale] for scale, values in PRESETS.items()}


def make_game(config: RefinementConfig) -> ControlGame:
    """The game with the options that it takes. ValueError: an unknown game."""
    names = [name for name in ("cell", "points", "physics", "contact_forces") if config.game in ONLY_FOR[name]]
    return envs.make_control(config.game, **{name: getattr(config, name) for name in names})


def check_options(config: RefinementConfig, game: ControlGame, methods: Sequence[str]) -> None:
    """Refuses options on the command line that have no effect with the others."""
    limits.check_horizon(game, "episode_steps")
    for name, needed in OF_METHODS.items():
        if not set(methods) & set(needed):
            config_flags.leave_out(f"without {' or '.join(needed)} among --methods", name)
    local_models.check_templates(config.templates, config.analyst)


def load_analyst(
    name: str, game: ControlGame, endpoint: endpoints.Endpoint, templates: TemplateOptions, run_dir: pathlib.Path
) -> LanguageModel | None:
    """The analyst's language model, its replies cached on disk and its calls counted; None where the game has no
    prompts for one. Errors: see `models.large_model`."""
    if game.roles is None:
        return None
    usage = Usage(run_dir)
    model = models.large_model(name, game.scripts, run_dir, usage, endpoint, templates=templates)
    if name not in ("scripted", "endpoint"):  # rules cost nothing, and an endpoint has its own cache
        model = cached(model, DiskCache(run_dir / "cache"))
    return metered(model, usage)


def show(about: str, scores: Mapping[str, np.ndarray], continuous: bool) -> None:
    """Prints mean scores."""
    names = report.headings(continuous)
    means = (f"{title} {rounded(scores[kind].mean())}" for kind, title in names.items())
    print(f"{about} {', '.join(means)}", flush=True)


def write(
    run_dir: pathlib.Path,
    config: dict[str, Any],
    arena: Arena,
    seeds: Mapping[pathlib.Path, Sequence[int]],
    agents: tuple[PPOState, dict[str, PPOState]],
    trajectories: Trajectories,
    findings: Findings,
) -> str:
    """The tables and the page of all base agents; returns the tables and the last line.

    Args:
      config: flat.
      arena: of the first base agent, whose films and cases the page shows.
      seeds: folder of a base agent -> the seeds of its refinement.
      agents: the first base agent, and {method: its seeds' agents}.
      trajectories: its episodes. findings: the analyst's, about them.
    """
    scores, continuous = stages.stored_scores(list(seeds)), arena.agent.continuous
    guided = {folder: results.read(folder / "guided") for folder in seeds}
    bases = [report.Base(x, seeds[x], stored["before"], stored["after"]) for x, stored in guided.items()]
    everything = report.Refined(scores, bases, arena.steps_per_update, continuous, arena.game.roles is not None)
    text = "\n".join([f"{everything.header}\n", *map(markdown, everything.tables())])
    write_atomically(run_dir / "tables.md", text)
    base, refined = agents
    main = report.main_score(continuous)
    best = max(refined, key=lambda name: scores[name][main][0].mean())
    after = jax.tree.map(lambda leaf: leaf[scores[best][main][0].argmax()], refined[best])
    filmed = {"before": base, f"after {best}": after}
    films = {label: arena.record(agent, 5, 1, continuous) for label, agent in filmed.items()}
    page = report.write(run_dir, arena.game, config, everything, trajectories, findings, films)
    return f"\n{text}\nreport: {page}\n{everything.last_line()}"


def main(argv: list[str]) -> None:
    del argv
    config = parse_config()
    game, base_ppo = make_game(config), PPO.get(config.game, DEFAULT_PPO)
    methods = refiners.known(config.methods, game)
    check_options(config, game, methods)
    arenas = [Arena(game, base_ppo, config.seed + number, config.episode_steps) for number in range(config.bases)]
    if flags.FLAGS.dry_run:
        arena = arenas[0]
        short = control.episodes_of(arena.record(arena.fresh_agent(), 2, EPISODES)) if game.roles else []
        print(plan(config, game, methods, arena.steps_per_update, short))
        return
    source_of = functools.partial(base_of, config.base, config.game, contact_forces=config.contact_forces)
    if config.base and not flags.FLAGS.resume:  # a resumed run has its copies
        for number in range(config.bases):
            source_of(number)
    if config.analyst == "endpoint" and not flags.FLAGS.resume:
        models.check_large_model(config.analyst, config.endpoint, 0)
    run_dir, resume = COMMAND.open(config)

    # A wrong address or model fails before anything is trained.
    analyst = load_analyst(config.analyst, game, config.endpoint, config.templates, run_dir)
    refining, every = config.refining, config.checkpoint_every
    seeds, first = {}, None
    for number, arena in enumerate(arenas):
        folder = run_dir / f"base_{number}" if config.bases > 1 else run_dir
        seeds[folder] = [config.seed + number * config.seeds + n for n in range(config.seeds)]
        continuous = arena.agent.continuous
        # 1. The base agent.
        if config.base:
            base = stages.copy_base(folder / "base", arena.fresh_agent(), functools.partial(source_of, number), resume)
        else:
            base = stages.train_base(folder / "base", arena, config.base_iterations, every, resume)
        start = stages.base_scores(folder / "guided", arena, base, refining.eval_episodes)
        show(f"base agent {number}: {game.score},", start, continuous)
        # 2. What the analyst and the mask network find in its episodes.
        trajectories = arena.record(base, 2, config.episodes)
        analysis = Analysis(folder, game.roles, analyst, arena.seed)
        shared, findings = stages.share(analysis, arena, base, trajectories, methods, refining, resume)
        guided = stages.guided_scores(folder / "guided", arena, base, shared, start, refining.eval_episodes)
        if game.roles:
            show("guided before learning:", guided, continuous)
        # 3. Every method refines it.
        schedule = loop.Schedule(seeds[folder], refining.iterations, every, stages.COLUMNS, resume, rate="")
        refined = {}
        for name in methods:
            states = stages.starts(name, shared, base, arena.seed, config.seeds)
            update = refiners.update(name, shared)
            refined[name] = stages.refine(folder / name, arena, update, states, start, schedule, refining)
            show(f"{name}:", stages.scores_after(folder / name), continuous)
        # The others' episodes need not stay in memory.
        first = first or ((base, refined), trajectories, findings)
    print(write(run_dir, flat(config), arenas[0], seeds, *first))


if __name__ == "__main__":
    COMMAND.run(main)
