"""The ablations of NLRL: one command a study, a table and a picture.

    python -m launch.ablate_nlrl --study variations --run_dir runs/variations

Language TD on breakthrough (Figure 5): `look_ahead`, `variations`, `states`. The actor-critic on tic-tac-toe (Figures 7
and 8 and the mask of Figure 6): `epochs`, `k`, `buffer`, `games`, `top_m`, `mask`; those play 128 games an iteration,
as the paper's do. Everything else is as in train_language_td and train_language_actor_critic at nano scale; `--states`
and the other sizes below make a study smaller.

Departures from the paper: the sizes of the models and of the data; the values that are compared are the paper's, or
a smaller range of the same kind where nano scale has no room for them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from absl import flags

from launch import config_flags, setup, train_language_actor_critic, train_language_td
from launch.config_flags import option
from nlrl_jax.backends.usage import Usage
from nlrl_jax.run.directory import write_atomically
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import markdown, write_report

TD = {  # study -> label -> fields that differ
    "look_ahead": {f"{n} steps": {"look_ahead": n} for n in (1, 2, 4, 8)},
    "variations": {f"{n} variations": {"variations": n} for n in (1, 2, 4, 8)},
    "states": {f"{n} states": {"states": n} for n in (400, 1000, 2500, 6000)},
}
ACTOR_CRITIC = {
    "epochs": {f"{n} epochs": {"epochs": n} for n in (1, 2, 3)},
    "k": {f"K_MC = {n}": {"k": n} for n in (1, 2, 5)},
    "buffer": {f"K_buffer = {n}": {"buffer": n} for n in (1, 2, 3)},
    "games": {f"{n} games": {"games": n} for n in (64, 128, 256)},
    "top_m": {f"m = {n}": {"top_m": n} for n in (2, 5, 10)},
    "mask": {"with the mask": {"mask": True}, "without": {"mask": False}},
}


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """What is run."""

    study: str = option("variations", f"which: {', '.join([*TD, *ACTOR_CRITIC])}")
    model: str = option("nano_board", "the model that learns")
    opponent: str = option("random", "of tic-tac-toe: random or first_move")
    iterations: int = option(5, "iterations of each run")
    states: int = option(1500, "positions that language TD learns from, unless they are what varies")
    test_states: int = option(400, "positions that language TD is judged on")
    games: int = option(128, "games an iteration of the actor-critic, unless they are what varies")
    eval_games: int = option(200, "greedy games of an evaluation")
    seed: int = option(0, "everything random follows from it")


def settings(config: AblationConfig) -> dict[str, Any]:
    """label -> the run's config.

    Raises:
      ValueError: an unknown study.
    """
    common = {"model": config.model, "iterations": config.iterations, "seed": config.seed}
    if config.study in TD:
        common |= {"states": config.states, "test_states": config.test_states}
        runs, kind = TD[config.study], train_language_td.RunConfig
    elif config.study in ACTOR_CRITIC:
        common |= {"games": config.games, "eval_games": config.eval_games, "opponent": config.opponent}
        runs, kind = ACTOR_CRITIC[config.study], train_language_actor_critic.RunConfig
    else:
        raise ValueError(f"--study is {config.study!r}; choose one of {', '.join([*TD, *ACTOR_CRITIC])}")
    return {label: kind(**{**common, **fields}) for label, fields in runs.items()}


def main(argv: list[str]) -> None:
    del argv
    config = config_flags.parse(AblationConfig)
    runs, resume = settings(config), flags.FLAGS.resume
    run_dir = setup.take_run_dir(config)
    td = config.study in TD
    metric = "accuracy" if td else "win"
    lines, rows = [], []
    for label, run in runs.items():
        folder = run_dir / label.replace(" ", "_").replace("=", "")
        folder.mkdir(parents=True, exist_ok=True)
        done = folder / "ablation.json"
        if not (resume and done.exists()):
            print(f"{config.study}, {label}", flush=True)
            if td:
                results = train_language_td.train(run, folder, resume)
            else:
                found = train_language_actor_critic.train_actor_critic(run, run.opponent, folder, resume, Usage())
                results = {when: {metric: found[when][f"eval/{metric}"]} for when in found}
            write_atomically(done, json.dumps(results))
        results = json.loads(done.read_text())
        metrics = read_metrics(folder)
        there = np.isfinite(metrics[f"eval/{metric}"])
        y = np.array([results["before"][metric], *metrics[f"eval/{metric}"][there]])
        lines.append(Series(label, [0, *(metrics["iteration"][there] + 1)], y[None]))
        rows.append(
            {"setting": label, "before": y[0], "after": y[-1], "best": y.max(), "last drop": max(0.0, y.max() - y[-1])}
        )
    table = markdown([{k: v if isinstance(v, str) else f"{v:.3f}" for k, v in row.items()} for row in rows])
    write_atomically(run_dir / "table.md", table)
    ylabel = "advantage accuracy" if td else f"win rate against {config.opponent}"
    picture = compare({config.study: lines}, run_dir / f"{config.study}.png", "iteration", ylabel)
    report = write_report(
        run_dir,
        title=f"NLRL ablation: {config.study}",
        question="What does this choice change?",
        config=dataclasses.asdict(config),
        summary=rows,
        curves=[picture],
    )
    print(f"\n{table}\npicture: {picture}\nreport:  {report}")


def define_flags() -> None:
    config_flags.define(AblationConfig)
    setup.define_run_flags()


if __name__ == "__main__":
    define_flags()
    setup.run(main)
