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
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms.analyst import Findings
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.config import flat
from nlrl_jax.files import write_atomically
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.run import app, endpoints, limits, local_models, models
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import read_run
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import ultra as report
from nlrl_jax.run.reports.tidy import rounded
from nlrl_jax.run.ultra.base_agents import base_of
from nlrl_jax.run.ultra.config import RefinementConfig
from nlrl_jax.run.ultra.dry_run import plan
from nlrl_jax.run.ultra.stages import SCRIPT, Run, stored_scores
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


def runs_of(config: RefinementConfig, run_dir: pathlib.Path, resume: bool) -> list[Run]:
    """The run with each of its base agents."""
    game, base_ppo = make_game(config), PPO.get(config.game, DEFAULT_PPO)
    return [Run(config, game, base_ppo, run_dir, resume, number) for number in range(config.bases)]


def reproduce(runs: Sequence[Run]) -> str:
    """All stages with each base agent in the opened folder of their run; returns the tables and the last line."""
    run, config, run_dir = runs[0], runs[0].config, runs[0].run_dir
    analyst = run.analyst()  # a wrong address or model fails before anything is trained
    base, trajectories, findings, refined = refine(run, analyst)  # the page shows the films and cases of this agent
    for next_run in runs[1:]:
        refine(next_run, analyst)
    scores, continuous = stored_scores(runs), run.agent.continuous
    bases = [report.Base(each.folder, each.seeds, *each.before_learning()) for each in runs]
    everything = report.Refined(scores, bases, run.steps_per_update, continuous, run.game.roles is not None)
    text = "\n".join([f"{everything.header}\n", *map(markdown, everything.tables())])
    write_atomically(run_dir / "tables.md", text)
    main = report.main_score(continuous)
    best = max(refined, key=lambda name: scores[name][main][0].mean())
    after = jax.tree.map(lambda leaf: leaf[scores[best][main][0].argmax()], refined[best])
    agents = (("before", base), (f"after {best}", after))
    films = {label: run.record(agent, run.key(5), 1, continuous) for label, agent in agents}
    page = report.write(run_dir, run.game, flat(config), everything, trajectories, findings, films)
    return f"\n{text}\nreport: {page}\n{everything.last_line()}"


def refine(run: Run, analyst: LanguageModel | None) -> tuple[PPOState, Trajectories, Findings, dict[str, PPOState]]:
    """All stages with one base agent: (the agent, its episodes, the findings in them, {method: its seeds' agents})."""

    def text(scores: dict[str, Any]) -> str:
        names = report.headings(run.agent.continuous)
        return ", ".join(f"{name} {rounded(scores[kind].mean())}" for kind, name in names.items())

    base = run.base()
    start = run.start(base)
    print(f"base agent {run.number}: {run.game.score}, {text(start)}", flush=True)
    trajectories = run.record(base, run.key(2), run.config.episodes)
    shared, findings = run.shared(base, trajectories, analyst)
    guided = run.guided(base, shared, start)
    if run.game.roles:
        print(f"guided before learning: {text(guided)}", flush=True)
    refined = {}
    for name in run.methods:
        refined[name] = run.refine(name, shared, base, start)
        print(f"{name}: {text(run.scored(name))}", flush=True)
    return base, trajectories, findings, refined


def main(argv: list[str]) -> None:
    del argv
    config = parse_config()
    run_dir, resume = pathlib.Path(os.path.expanduser(flags.FLAGS.run_dir)).absolute(), flags.FLAGS.resume
    run, *more_runs = runs = runs_of(config, run_dir, resume)
    limits.check_horizon(run.game, "episode_steps")
    for name, methods in OF_METHODS.items():
        if not set(run.methods) & set(methods):
            config_flags.leave_out(f"without {' or '.join(methods)} among --methods", name)
    if flags.FLAGS.dry_run:
        print(plan(run))
        return
    local_models.check_templates(config.templates, config.analyst)
    if config.base and not resume:  # a resumed run has its copies
        for each in (run, *more_runs):
            base_of(config.base, config.game, each.number, config.contact_forces)
    if config.analyst == "endpoint" and not resume:
        models.check_large_model(config.analyst, config.endpoint, 0)
    COMMAND.open(config)
    print(reproduce(runs))


if __name__ == "__main__":
    COMMAND.run(main)
