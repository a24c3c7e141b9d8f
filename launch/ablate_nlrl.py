"""The ablations of NLRL: one command, a table and a picture with a panel a study.

    python -m launch.ablate_nlrl --study look_ahead,variations,states --run_dir runs/figure_5
    python -m launch.ablate_nlrl --study epochs,k,buffer,games,top_m,mask --run_dir runs/figures_7_8

Language TD on breakthrough (Figure 5): `look_ahead`, `variations`, `states`. The actor-critic on tic-tac-toe (Figures 7
and 8 and the mask of Figure 6): `epochs`, `k`, `buffer`, `games`, `top_m`, `mask`; those play 128 games an iteration,
as the paper's do. Everything else is as in train_language_td and train_language_actor_critic at nano scale; `--states`
and the other sizes below make a study smaller. A setting that several studies share is run once.

Departures from the paper: the sizes of the models and of the data; the values that are compared are the paper's, or
a smaller range of the same kind where nano scale has no room for them; the policy that is judged is the mean of the
last three iterations' weights (`--average 1`: the last), which makes all curves of the actor-critic steadier.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
from absl import flags

from launch import train_language_actor_critic, train_language_td
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import flat, make, option, replace
from nlrl_jax.files import write_atomically
from nlrl_jax.run import app, results
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import markdown, write_report

TD = {  # study -> label -> field that differs
    "look_ahead": {f"{n} steps": {"look_ahead": n} for n in (1, 2, 4, 8)},
    "variations": {f"{n} variations": {"variations": n} for n in (1, 2, 4, 8)},
    "states": {f"{n} states": {"states": n} for n in (400, 1000, 2500, 6000)},
}
ACTOR_CRITIC = {
    "epochs": {f"{n} epochs": {"epochs": n} for n in (1, 2, 4)},
    "k": {f"K_MC = {n}": {"k": n} for n in (1, 2, 5)},
    "buffer": {f"K_buffer = {n}": {"buffer": n} for n in (1, 2, 3)},
    "games": {f"{n} games": {"games": n} for n in (64, 128, 256)},
    "top_m": {f"m = {n}": {"top_m": n} for n in (2, 5, 10)},
    "mask": {"with the mask": {"mask": True}, "without": {"mask": False}},
}


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """What is run."""

    study: str = option("variations", f"one or more, comma-separated: {', '.join(TD)}; {', '.join(ACTOR_CRITIC)}")
    model: str = option("nano_board", "the model that learns")
    opponent: str = option("random", "of tic-tac-toe: random or first_move")
    iterations: int = option(5, "iterations of each run")
    states: int = option(1500, "positions that language TD learns from, unless they are what varies")
    test_states: int = option(400, "positions that language TD is judged on")
    games: int = option(128, "games an iteration of the actor-critic, unless they are what varies")
    eval_games: int = option(1000, "greedy games of an evaluation of the actor-critic")
    average: int = option(3, "iterations whose policies' mean is judged; the paper: 1")
    seed: int = option(0, "everything random follows from it")

    def __post_init__(self):
        if self.opponent not in train_language_actor_critic.OPPONENTS:
            known = ", ".join(train_language_actor_critic.OPPONENTS)
            raise ValueError(f"--opponent is {self.opponent!r}; choose one of {known}")


def base_of(config: AblationConfig) -> Any:
    """The run that the settings differ from, each in one field: a RunConfig of one of the two scripts.

    Raises:
      ValueError: an unknown study, or studies of both algorithms.
    """
    studies, common = set(config.study.split(",")), {"model": config.model, "seed": config.seed}
    common["iterations"] = config.iterations
    if studies <= set(TD):
        return make(train_language_td.RunConfig, **common, states=config.states, test_states=config.test_states)
    if studies <= set(ACTOR_CRITIC):
        return make(
            train_language_actor_critic.RunConfig,
            **common,
            games=config.games,
            eval_games=config.eval_games,
            opponent=config.opponent,
            average=config.average,
        )
    raise ValueError(f"--study is {config.study!r}; choose from {', '.join(TD)}, or from {', '.join(ACTOR_CRITIC)}")


def settings(config: AblationConfig) -> dict[str, dict[str, Any]]:
    """study -> label -> the run's config. Raises as `base_of`."""
    base, known = base_of(config), {**TD, **ACTOR_CRITIC}
    return {
        study: {label: replace(base, **fields) for label, fields in known[study].items()}
        for study in config.study.split(",")
    }


def folder_of(run: Any, base: Any) -> str:
    """One folder for equal settings: two studies share the run that is in both."""
    told, usual = flat(run), flat(base)
    return "-".join(f"{name}_{told[name]}" for name in told if told[name] != usual[name]) or "base"


def train(run: Any, folder: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Trains, or with `resume` continues, or reads what is finished. Returns results.json's content."""
    folder.mkdir(parents=True, exist_ok=True)
    if resume and (folder / results.RESULTS).exists():
        return results.read(folder)
    if isinstance(run, train_language_td.RunConfig):
        return train_language_td.train(run, folder, resume)
    return train_language_actor_critic.train_actor_critic(run, run.opponent, folder, resume, Usage())


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(AblationConfig)
    base, studies, resume = base_of(config), settings(config), flags.FLAGS.resume
    script = train_language_td if isinstance(base, train_language_td.RunConfig) else train_language_actor_critic
    script.validate(base)
    run_dir = app.take_run_dir("ablate_nlrl", config, may_change=("study",))
    algorithm, metric = ("language_td", "accuracy") if set(studies) <= set(TD) else ("actor_critic", "win")
    panels, rows, finished = {}, [], {}
    for study, runs in studies.items():
        panels[study] = []
        for label, run in runs.items():
            folder = run_dir / algorithm / folder_of(run, base)
            if folder not in finished:
                print(f"{study}, {label}", flush=True)
                finished[folder] = train(run, folder, resume)
            metrics = read_metrics(folder)
            there = np.isfinite(metrics[f"eval/{metric}"])
            y = np.array([finished[folder]["before"][metric], *metrics[f"eval/{metric}"][there]])
            panels[study].append(Series(label, [0, *(metrics["iteration"][there] + 1)], y[None]))
            numbers = {"before": y[0], "after": y[-1], "best": y.max(), "last drop": y.max() - y[-1]}
            rows.append({"study": study, "setting": label, **{name: f"{n:.3f}" for name, n in numbers.items()}})
    table = markdown(rows)
    write_atomically(run_dir / "table.md", table)
    ylabel = "advantage accuracy" if metric == "accuracy" else f"win rate against {config.opponent}"
    picture = compare(panels, run_dir / "ablation.png", "iteration", ylabel)
    report = write_report(
        run_dir,
        title=f"NLRL ablations: {', '.join(studies)}",
        question="What does each choice change?",
        config=dataclasses.asdict(config),
        summary=rows,
        curves=[picture],
    )
    print(f"\n{table}\npicture: {picture}\nreport:  {report}")


def define_flags() -> None:
    config_flags.define(AblationConfig)
    app.define_run_flags()


if __name__ == "__main__":
    define_flags()
    app.run(main)
