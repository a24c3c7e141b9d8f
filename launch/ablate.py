"""Ablations: every setting of a study under several seeds, then one page with a table and curves.

    nlrl-jax ablate --study aaw,credit --run_dir runs/figure_3                        # MS-GRPO, its Figure 3
    nlrl-jax ablate --study look_ahead,variations,states --run_dir runs/figure_5      # language TD
    nlrl-jax ablate --study epochs,k,buffer,games,top_m,mask --run_dir runs/figures_7_8   # actor-critic
    nlrl-jax ablate --study td --states 12000 --test_states 1000 --iterations 1 --seeds 3 --run_dir runs/td
    nlrl-jax ablate --study words,correct --seeds 3 --run_dir runs/words              # actor-critic
    nlrl-jax ablate --study ppo --seeds 3 --run_dir runs/ppo                          # LLM-PPO, its baseline
    nlrl-jax ablate --study alpha,learning_rate --bases 3 --run_dir runs/sweeps       # ULTRA
    nlrl-jax ablate --study look_ahead --dry_run                                      # NLRL, ULTRA: calls and tokens

A study is a list of command lines: a script and, for each setting, the options that differ, in studies.toml beside this
file, which says what each study is for. Options that are not listed below go to every run, such as --game snake or
--aggregator endpoint. A run is in RUN_DIR/SETTING/seed_N, a setting that several studies share is run once, and all
settings play under the same seeds. `--resume` continues, also with more studies or seeds. The page of a study,
RUN_DIR/STUDY.html, is what `nlrl-jax compare SETTING=FOLDER,FOLDER ...` draws.

Departures from the papers: the sizes of the models and of the data. Figure 3 of MS-GRPO is of Snake-Standard with
Qwen2.5-3B; the default here is FrozenLake with the built-in model. The actor-critic plays 128 games per iteration as
in the paper's ablations and evaluates the mean of the last three iterations' weights (`--average 1`: only the last).
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import flags

from nlrl_jax.config import check, listed, option, seed_option
from nlrl_jax.files import read_json, write_atomically, write_json
from nlrl_jax.run import app
from nlrl_jax.run.compared_runs import parts_of
from nlrl_jax.run.directory import holds_run
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import comparison
from nlrl_jax.run.stand_ins import HELP
from nlrl_jax.weights.load import BUILT_IN

Options = Mapping[str, Any]
FINISHED = "finished.json"  # {folder: the command line that has ended well}


class Study(NamedTuple):
    """Runs of a script that differ in few options.

    Attributes:
      script: its name.
      settings: label -> the options that differ.
      options: those of all settings.
      seeds: runs of a setting, if not given.
      parts: names of the parts of a run that are compared; () for all.
    """

    script: str
    settings: Mapping[str, Options]
    options: Options
    seeds: int = 1
    parts: Sequence[str] = ()


def read_options(text: str) -> dict[str, str | None]:
    """{name: value} of options as they stand on a command line; None for one without a value."""
    words, options = shlex.split(text), {}
    while words:
        name, is_given, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            raise ValueError(f"unexpected argument {name!r}; options are written --name=value or --name value")
        if not is_given:
            value = words.pop(0) if words and not words[0].startswith("--") else None
        options[name[2:]] = value
    return options


def read_studies() -> dict[str, Study]:
    """The studies of studies.toml."""
    tables = tomllib.loads(pathlib.Path(__file__).with_name("studies.toml").read_text(encoding="utf-8"))
    studies = {}
    for name, table in tables["studies"].items():
        shared = tables["scripts"][table["script"]]
        options = read_options(shared["options"]) | read_options(table.get("options", ""))
        settings = {label: read_options(text) for label, text in table["settings"].items()}
        studies[name] = Study(**{**shared, **table, "options": options, "settings": settings})
    return studies


STUDIES = read_studies()
COUNTED = ("train_language_td", "train_language_actor_critic", "reproduce_ultra")  # have --dry_run


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """What is run."""

    study: str = option("", f"one, or several of one script by commas: {', '.join(STUDIES)}")
    seeds: int = option(0, "runs of each setting; 0: the study's own number, 1 to 8", least=0)
    seed: int = seed_option("the first seed", counted_up=True)
    options: str = option("", "further options of every run in one text; they may also be given as they are")

    def __post_init__(self):
        check(self)
        names = listed("study", self.study) if self.study else []  # `main` asks for it
        scripts = {STUDIES[name].script if name in STUDIES else None for name in names}
        if None in scripts or len(scripts) > 1:
            raise ValueError(f"--study is {self.study!r}; choose one or more of one script: {by_script()}")


def by_script() -> str:
    """The studies of each script."""
    scripts = dict.fromkeys(study.script for study in STUDIES.values())
    lists = {script: [name for name, study in STUDIES.items() if study.script == script] for script in scripts}
    return "; ".join(f"{script}: {', '.join(names)}" for script, names in lists.items())


class Planned(NamedTuple):
    """A run: of a study's setting, in a folder, by a command line. seeds: how many are in it or beside it."""

    study: str
    label: str
    folder: pathlib.Path
    command: list[str]
    seeds: int


def shared_options(study: Study, extra: Options, run_dir: pathlib.Path) -> Options:
    """The options of all runs of a study: its own, and extra ones."""
    options = dict(study.options)
    if study.script == "train_ms_grpo":
        if extra.get("model", "nano") not in BUILT_IN:
            options = {"game": "frozen_lake", "eval_every": 50, "eval_episodes": 100}
        elif "iterations" in extra:
            options["decay_steps"] = int(extra["iterations"]) * 5 // 4
    if "endpoint" in extra.values():
        options["cache_dir"] = run_dir / "cache"  # settings share the replies that are paid for
    return options | extra


def planned(config: AblationConfig, run_dir: pathlib.Path) -> Iterator[Planned]:
    """Every run of the studies; several may be in one folder, and are one run."""
    extra, trained = read_options(config.options), None
    for name in listed("study", config.study):
        study = STUDIES[name]
        shared, seeds = shared_options(study, extra, run_dir), config.seeds or study.seeds
        for label, setting in study.settings.items():
            differing = [key for key, value in setting.items() if str(value) != str(shared.get(key))]
            place = run_dir / study.script / ("-".join(f"{key}_{setting[key]}" for key in differing) or "base")
            runs = {place / f"seed_{seed}": {"seed": seed} for seed in range(config.seed, config.seed + seeds)}
            if study.script == "reproduce_ultra":  # its seeds, and base agents that the first setting trains
                trained = trained or place
                base = {"base": trained} if trained != place and "base" not in extra else {}
                runs = {place: {"seed": config.seed, "seeds": seeds} | base}
            for folder, options in runs.items():
                if study.script == "train_language_td":
                    options["positions_dir"] = run_dir / "positions" / folder.name  # settings share them
                yield Planned(name, label, folder, command_line(study.script, shared | setting | options), seeds)


def command_line(script: str, options: Options) -> list[str]:
    """The words after nlrl-jax."""
    return [script, *(f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items())]


def call(command: list[str], *options: str) -> None:
    """Runs a script in a process of its own, which prints where this one does.

    Raises:
      ValueError: it has failed, after it said why.
    """
    if subprocess.run([sys.executable, "-m", "nlrl_jax.launch", *command, *options]).returncode:
        raise ValueError(f"stopped: nlrl-jax {shlex.join([*command, *options])}")


def train(runs: Iterable[Planned], run_dir: pathlib.Path) -> None:
    """Runs everything that has not ended well before."""
    path = run_dir / FINISHED
    finished = read_json(path) if path.exists() else {}
    for run in runs:
        folder = str(run.folder.relative_to(run_dir))
        if finished.get(folder) == run.command:
            continue
        print(f"{run.study}, {run.label}: nlrl-jax {shlex.join(run.command)}", flush=True)
        call(run.command, f"--run_dir={run.folder}", *["--resume"] * holds_run(run.folder))
        finished[folder] = run.command
        write_json(path, finished, indent=1)


def groups_of(runs: Iterable[Planned]) -> dict[str, list[pathlib.Path]]:
    """{setting: folders of its seeds} of a study, for `comparison.write`; several parts of a run are settings."""
    folders: dict[tuple[str, str], list[pathlib.Path]] = {}
    for run in runs:
        parts, compared = parts_of(run.folder), STUDIES[run.study].parts
        for part in (part for part in parts if not compared or part.name in compared):
            name = re.sub(r"^base_\d+/", "", part.relative_to(run.folder).as_posix())  # base agents are like seeds
            folders.setdefault((name, run.label), []).append(part)
    has_parts = len({name for name, _ in folders}) > 1
    return {f"{name}, {label}" if has_parts else label: parts for (name, label), parts in folders.items()}


COMMAND = app.Command(
    "ablate", AblationConfig, dry_run="NLRL, ULTRA: print the calls and tokens of every setting, then stop",
    metrics=False, may_change=("study", "seeds", "options"),
)  # fmt: skip


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_platforms", "cpu")  # this process trains nothing: an accelerator's memory is for the runs
    config = COMMAND.parse()
    names = listed("study", config.study) if config.study else []
    if not names:
        raise ValueError(f"say what is varied: --study, one or more of one script: {by_script()}")
    script = STUDIES[names[0]].script
    if flags.FLAGS.dry_run:
        if script not in COUNTED:
            raise ValueError(f"--dry_run counts what other models are asked; {config.study} prompts none")
        firsts = {(run.study, run.label): run for run in reversed([*planned(config, pathlib.Path("runs"))])}
        for run in {run.folder: run for run in reversed(firsts.values())}.values():
            print(f"\n{run.study}, {run.label}, {run.seeds} times:", flush=True)
            call(run.command, "--dry_run")
        return
    run_dir, _ = COMMAND.open(config)
    runs = [*planned(config, run_dir)]
    train(runs, run_dir)
    text, in_seconds = "", script == "train_ms_grpo"  # as in its paper
    for name in names:
        groups, out = groups_of(run for run in runs if run.study == name), run_dir / f"{name}.html"
        tables, files = comparison.write(groups, out, True, in_seconds, f"{name}: what each choice changes")
        for table in reversed([table for table in tables if table.rows]):  # results first
            text += f"{name}: {table.title}. {table.note}\n\n{markdown(table.rows)}\n"
        print(f"report: {files[0]}")
    write_atomically(run_dir / "table.md", text)
    print(f"\n{text}")


def gathered(arguments: list[str]) -> list[str]:
    """A command line on which the options of the runs have become one --options."""
    own_words, run_words, into = [], [], None
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            is_own = name in flags.FLAGS or name.removeprefix("no") in flags.FLAGS or word in HELP
            into = own_words if is_own else run_words
        (own_words if into is None else into).append(word)
    return [*own_words, *([f"--options={shlex.join(run_words)}"] if run_words else [])]


if __name__ == "__main__":
    COMMAND.define_flags()
    sys.argv[1:] = gathered(sys.argv[1:])
    app.run(main)
