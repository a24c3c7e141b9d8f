"""Ablations of MS-GRPO: one command, a table and a picture.

    python -m launch.ablate_ms_grpo --study aaw --run_dir runs/aaw                  # the paper's Figure 3
    python -m launch.ablate_ms_grpo --study credit --run_dir runs/credit

`aaw` varies how many episodes a group has and how many of them are learned from, and draws reward against wall time;
"any" is our control, as many episodes drawn without regard to their advantage.
`credit` compares what the paper's discussion proposes against its algorithm: a temperature that rises while
returns stagnate, several prompt templates, return-to-go credit; the question is the spread between seeds.

Departures from the paper: Figure 3 is of Snake-Standard with Qwen2.5-3B; the default here is FrozenLake with the
built-in model, which learns it on a CPU. Wall time leaves out compilation.
"""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
from absl import flags

from launch import train_ms_grpo
from launch.reproduce_ms_grpo import EVAL_SEED
from launch.train_ms_grpo import TrainConfig, train_agents
from nlrl_jax.config import check, flat, make, option
from nlrl_jax.files import write_atomically
from nlrl_jax.run import app, loop
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.metrics import TIMINGS, read_metrics
from nlrl_jax.run.plots import Series, compare, deviation
from nlrl_jax.run.report import markdown, write_report
from nlrl_jax.weights.load import BUILT_IN

DEMO = train_ms_grpo.PRESETS["demo"]
EVENLY = 1e6  # a T_ep at which AAW draws all episodes alike
STUDIES = {  # panel -> label -> fields that differ
    "aaw": {
        "G = 100": {
            **{f"G' = {n}": {"group_size": 100, "group_sample": n} for n in (25, 50, 100)},
            "G' = 25, any": {"group_size": 100, "group_sample": 25, "sampling_temperature": EVENLY},
        },
        "G' = 25": {f"G = {n}": {"group_size": n, "group_sample": 25} for n in (25, 50, 100)},
    },
    "credit": {
        "final reward": {
            "MS-GRPO": {},
            "return-to-go": {"credit": "turn"},
        }
    },
}
COMMON = {
    "aaw": {**DEMO, "num_groups": 1, "sampling_temperature": 0.1, "iterations": 60, "eval_every": 10},
    "credit": {**DEMO, "iterations": 60, "eval_every": 10},
}
SEEDS = {"aaw": 2, "credit": 5}


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """What is run. The rest is as in train_ms_grpo's preset demo, or paper with another model than nano."""

    study: str = option("aaw", f"which: {', '.join(STUDIES)}", choices=tuple(STUDIES))
    model: str = option("nano", "nano or nano_snake (built in), smollm2, or a local Hugging Face folder or .gguf file")
    game: str = option("frozen_lake", "frozen_lake, frozen_lake_slippery, snake or snake_poison")
    seeds: int = option(0, "runs of each setting; 0: 2 for aaw, 5 for credit", least=0)
    iterations: int = option(0, "iterations of each run; 0: 60, or 700 with another model than nano", least=0)
    eval_episodes: int = option(100, "greedy episodes of an evaluation, always from the same initial states", least=1)

    def __post_init__(self):
        check(self)


def settings(config: AblationConfig) -> dict[str, dict[str, TrainConfig]]:
    """panel -> label -> the run's config."""
    nano = config.model in BUILT_IN
    common = COMMON[config.study] if nano else {"eval_every": 50}
    given = {"model": config.model, "game": config.game, "eval_episodes": config.eval_episodes}
    given |= {"iterations": config.iterations} if config.iterations else {}
    common = {**common, **given}
    if "decay_steps" in common:
        common["decay_steps"] = common["iterations"] * 5 // 4
    return {
        panel: {label: make(TrainConfig, **{**common, **fields}) for label, fields in labels.items()}
        for panel, labels in STUDIES[config.study].items()
    }


def folder_of(config: TrainConfig) -> str:
    """One folder for equal settings: two panels share the run that is in both."""
    learning = config.learning
    changed = [f"G{learning.group_size}", f"g{learning.group_sample}", learning.credit]
    changed += ["evenly"] if learning.sampling_temperature == EVENLY else []
    return "-".join(changed)


def series(label: str, folder: pathlib.Path, config: TrainConfig, start: float, seeds: int) -> tuple[Series, float]:
    """(evaluation against seconds of wall time, seconds an iteration), the compilation left out."""
    folders = loop.seed_dirs(folder, range(seeds))
    runs = [read_metrics(run) for run in folders]
    seconds = read_metrics(folders[0], TIMINGS)["seconds"]
    there = np.isfinite(runs[0][f"eval/{config.game}"])
    pace = float(np.median(seconds[~there])) / seeds  # iterations without evaluation; all seeds share one
    x = pace * np.concatenate([[0], runs[0]["iteration"][there] + 1])
    ys = np.array([[start, *run[f"eval/{config.game}"][there]] for run in runs])
    return Series(label, x, ys), pace


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(AblationConfig)
    panels, seeds = settings(config), config.seeds or SEEDS.get(config.study, 1)
    vectorize = config.model in BUILT_IN and jax.default_backend() != "cpu"  # a large model fits once, not five times
    run_dir, resume = app.take_run_dir("ablate_ms_grpo", config), flags.FLAGS.resume
    drawn, rows, finished = {}, [], {}
    for panel, labels in panels.items():
        drawn[panel] = []
        for label, run in labels.items():
            folder = run_dir / folder_of(run)
            if folder not in finished:
                print(f"{panel}, {label}: {seeds} seeds of {run.iterations} iterations", flush=True)
                finished[folder] = train_agents(run, seeds, (run.game,), EVAL_SEED, vectorize, folder, resume)
            result = finished[folder]
            line, pace = series(label, folder, run, result["before"][run.game], seeds)
            drawn[panel].append(line)
            final = np.array(result["after"][run.game])
            rows.append(
                {
                    "panel": panel,
                    "setting": label,
                    "start": f"{result['before'][run.game]:.3f}",
                    "final": f"{final.mean():.3f}",
                    "std over seeds": f"{deviation(final):.3f}",
                    "worst run": f"{final.min():.3f}",
                    "best run": f"{final.max():.3f}",
                    "s/iteration": f"{pace:.2f}",
                }
            )
    table = markdown(rows)
    write_atomically(run_dir / "table.md", table)
    picture = compare(drawn, run_dir / f"{config.study}.png", "wall time of one run, s", "environment reward")
    report = write_report(
        run_dir,
        title=f"MS-GRPO ablation: {config.study}",
        question={
            "aaw": "What does it gain, and cost, to learn from the extreme episodes of a group only?",
            "credit": "Do the paper's proposals against the spread between seeds help?",
        }[config.study],
        config=flat(config),
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
