"""Ablations: one command, a table and a picture with a panel per study.

    nlrl-jax ablate --study aaw,credit --run_dir runs/figure_3                        # MS-GRPO, its Figure 3
    nlrl-jax ablate --study look_ahead,variations,states --run_dir runs/figure_5      # language TD
    nlrl-jax ablate --study epochs,k,buffer,games,top_m,mask --run_dir runs/figures_7_8   # actor-critic
    nlrl-jax ablate --study td --states 12000 --test_states 1000 --iterations 1 --seeds 3 --run_dir runs/td
    nlrl-jax ablate --study words,correct --seeds 3 --run_dir runs/words              # actor-critic
    nlrl-jax ablate --study ppo --seeds 3 --run_dir runs/ppo                          # LLM-PPO, its baseline
    nlrl-jax ablate --study alpha,learning_rate --bases 3 --run_dir runs/sweeps       # ULTRA
    nlrl-jax ablate --study look_ahead --dry_run                                      # NLRL: calls and tokens

Studies of one algorithm go together; a setting that several of them share is run once, and each plays under the same
seeds. Everything that is not varied or named below is as in the algorithm's own script: preset demo (with another model
than the built-in ones: paper), nano scale, or scale quick. For NLRL, `--resume --seeds 5` adds two seeds to three.

`aaw` varies how many episodes a group has and how many of them are learned from; "any" is our control: as many
episodes, drawn without regard to their advantage. `aaw_control` has the four settings that tell whether the choice of
episodes matters, and whether it matters out of how many. `credit` compares the return of the episode with the
return-to-go of each turn, as the paper's discussion proposes. `sampling` varies the temperature and top-k of replies.
`td` and `actor_critic` vary nothing but the seed. `words` changes what the rules of the actor-critic write
(`envs/tic_tac_toe/rule_based.py`). `ppo` gives LLM-PPO the actor-critic's epochs, the threats that its rules read off
the board, and 13 times the iterations (30 of the 65 take as long as the actor-critic). `alpha` and `learning_rate`
(ULTRA's section 4.1) refine the same base agents by PPO and by ULTRA-RA.

Departures from the papers: the sizes of the models and of the data. Figure 3 of MS-GRPO is of Snake-Standard with
Qwen2.5-3B; the default here is FrozenLake with the built-in model. The actor-critic plays 128 games per iteration as
in the paper's ablations and evaluates the mean of the last three iterations' weights (`--average 1`: only the last).
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from absl import flags

from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check, flat, listed, make, option, part, replace, seed_option
from nlrl_jax.envs.tic_tac_toe.rule_based import WORDS, scripts
from nlrl_jax.launch import (
    reproduce_ultra,
    train_language_actor_critic,
    train_language_ppo,
    train_language_td,
    train_ms_grpo,
)
from nlrl_jax.launch.reproduce_ms_grpo import EVAL_SEED
from nlrl_jax.launch.train_ms_grpo import TrainConfig, train_agents
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import app, directory, loop, models, results
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.nlrl import actor_critic, language_td
from nlrl_jax.run.report import Table
from nlrl_jax.run.reports.ablation import beside, in_iterations, in_seconds, in_updates, write
from nlrl_jax.run.reports.ultra_tables import trials_header
from nlrl_jax.run.ultra.config import RunConfig as RefinementConfig
from nlrl_jax.statistics import header
from nlrl_jax.weights.load import BUILT_IN

AAW: dict[str, dict[str, Any]] = {
    **{f"G = 100, G' = {n}": {"group_size": 100, "group_sample": n} for n in (25, 50, 100)},
    "G = 100, G' = 25, any": {"group_size": 100, "group_sample": 25, "sampling_temperature": 1e6},  # T_ep
    **{f"G = {n}, G' = 25": {"group_size": n, "group_sample": 25} for n in (25, 50)},
}
SAMPLING = {
    f"T = {t:g}, {f'top-k {k}' if k else 'no top-k'}": {**AAW["G = 100, G' = 25"], "temperature": t, "top_k": k}
    for t, k in ((0.5, 3), (1.0, 3), (1.5, 3), (2.0, 3), (1.5, 2), (1.5, 10), (1.5, 0))
}
# algorithm -> study -> label -> options that differ
STUDIES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "ms_grpo": {
        "aaw": AAW,
        "aaw_control": {
            label: AAW[label]
            for label in ("G = 100, G' = 25", "G = 100, G' = 100", "G = 100, G' = 25, any", "G = 25, G' = 25")
        },
        "credit": {"MS-GRPO": {}, "return-to-go": {"credit": "turn"}},
        "sampling": SAMPLING,
    },
    "language_td": {
        "td": {"language TD": {}},
        "look_ahead": {f"{n} steps": {"look_ahead": n} for n in (1, 2, 4, 8)},
        "variations": {f"{n} variations": {"variations": n} for n in (1, 2, 4, 8)},
        "states": {f"{n} states": {"states": n} for n in (400, 1000, 2500, 6000)},
    },
    "actor_critic": {
        "actor_critic": {"actor-critic": {}},
        "epochs": {f"{n} epochs": {"epochs": n} for n in (1, 2, 4)},
        "k": {f"K_MC = {n}": {"k": n} for n in (1, 2, 5)},
        "buffer": {f"K_buffer = {n}": {"buffer": n} for n in (1, 2, 3)},
        "games": {f"{n} games": {"games": n} for n in (64, 128, 256)},
        "top_m": {f"m = {n}": {"top_m": n} for n in (2, 5, 10)},
        "mask": {"with the mask": {"mask": True}, "without": {"mask": False}},
        "words": {words: {"words": words} for words in WORDS},
        "correct": {"as it is": {}, "contradictions corrected": {"correct": True}},
    },
    "language_ppo": {
        "ppo": {
            "LLM-PPO": {},
            "4 epochs": {"epochs": 4},
            "4 epochs, threats": {"epochs": 4, "threats": True},
            "4 epochs, threats, 13 x iterations": {"epochs": 4, "threats": True, "iterations": 65},
        }
    },
    "ultra": {
        "alpha": {f"alpha = {x}": {"alpha": x} for x in (0.1, 0.5, 1.0)},
        "learning_rate": {f"learning rate {x:g}": {"learning_rate": x} for x in (1e-3, 1e-4, 1e-5)},
    },
}
NLRL = {
    "language_td": train_language_td,
    "actor_critic": train_language_actor_critic,
    "language_ppo": train_language_ppo,
}
_ASKING = ("language_td", "actor_critic")  # they prompt a model that does not learn
ONLY_FOR = {  # options without effect in the studies of other algorithms
    **dict.fromkeys(("game", "eval_episodes"), ("ms_grpo", "ultra")),
    **dict.fromkeys(("bases", "base"), ("ultra",)),
    **dict.fromkeys(("states", "test_states"), ("language_td",)),
    **dict.fromkeys(("games", "eval_games", "opponent"), ("actor_critic", "language_ppo")),
    "average": ("actor_critic",),
    "apart": ("ms_grpo",),
    "model": ("ms_grpo", *NLRL),
    "seed": ("ms_grpo", "ultra", *NLRL),
    **dict.fromkeys(("aggregator", *models.ENDPOINT), _ASKING),
}
AXES = {  # labels of x and y in the picture
    "ms_grpo": ("wall time of one run, s", "environment reward"),
    "language_td": ("iteration", "advantage accuracy"),
    **dict.fromkeys(("actor_critic", "language_ppo"), ("iteration", "win rate against the opponent")),
    "ultra": ("update", "score of ULTRA-RA"),
}
# runs of a setting if not given; of other studies 1
SEEDS = {"aaw": 2, "aaw_control": 8, "credit": 5, "sampling": 3, "alpha": 3, "learning_rate": 3}
# what an MS-GRPO study changes in the preset demo
DEMO = dict.fromkeys(("aaw", "aaw_control", "sampling"), {"num_groups": 1, "sampling_temperature": 0.1})
LISTED = "; ".join(f"{algorithm}: {', '.join(studies)}" for algorithm, studies in STUDIES.items())


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """What is run."""

    study: str = option("", f"one, or several of one algorithm by commas. {LISTED}")
    model: str = option("", "the model that learns; empty: nano, or nano_board for NLRL")
    templates: TemplateOptions = part(TemplateOptions(shared=True))
    iterations: int = option(
        0, "iterations of each run; 0: 60 for MS-GRPO (700 if not built in), 5 for NLRL, 50 for ULTRA", least=0
    )
    game: str = option("", "the game of MS-GRPO (empty: frozen_lake) or of ULTRA (empty: hopper)")
    seeds: int = option(
        0,
        "runs of each setting; 0: 2 for aaw, 8 for aaw_control, 5 for credit, 3 for sampling and for ULTRA, else 1",
        least=0,
    )
    eval_episodes: int = option(100, "MS-GRPO, ULTRA: episodes per evaluation, from the same initial states", least=1)
    bases: int = option(1, "ULTRA: base agents", least=1)
    base: str = option("", "ULTRA: run folders whose base agents are refined; empty trains them once")
    states: int = option(1500, "language TD: positions it learns from, unless they are what varies", least=1)
    test_states: int = option(400, "language TD: positions of the evaluation", least=1)
    games: int = option(128, "actor-critic, LLM-PPO: games per iteration, unless they are what varies", least=1)
    eval_games: int = option(1000, "actor-critic: greedy games per evaluation", least=1)
    opponent: str = option("random", "actor-critic, LLM-PPO: random or first_move", choices=("random", "first_move"))
    average: int = option(
        3, "actor-critic: iterations whose policies' weights are averaged for evaluation; the paper: 1", least=1
    )
    apart: bool = option(False, "MS-GRPO: spread the seeds over as many devices as can take equal numbers of them")
    seed: int = seed_option("MS-GRPO, NLRL: the first seed", counted_up=True)
    aggregator: str = option("scripted", "NLRL: aggregator and improver: scripted, endpoint, or a local model's name")
    endpoint: models.Endpoint = part(models.Endpoint(), without=("endpoint_tokenizer",))

    def __post_init__(self):
        check(self)
        chosen = set(listed("study", self.study) if self.study else ())  # `main` asks for it
        if not any(chosen <= set(studies) for studies in STUDIES.values()):
            raise ValueError(f"--study is {self.study!r}; choose one or more of one algorithm. {LISTED}")

    @property
    def algorithm(self) -> str:
        return next(name for name, studies in STUDIES.items() if listed("study", self.study)[0] in studies)


def base_of(config: AblationConfig, study: str) -> Any:
    """The config of the run that the settings of a study differ from, each in few options."""
    own = {name: value for name, value in flat(config).items() if config.algorithm in ONLY_FOR.get(name, ())}
    own = {name: value for name, value in own.items() if value != "" and name != "apart"} | flat(config.templates)
    own |= {"iterations": config.iterations} if config.iterations else {}
    if config.algorithm == "ms_grpo":
        own = {"model": "nano", "game": "frozen_lake", "eval_every": 50} | own
        if own["model"] in BUILT_IN:
            length = config.iterations or 60
            own |= {"eval_every": 10, "iterations": length, "decay_steps": length * 5 // 4}
            own = train_ms_grpo.PRESETS["demo"] | DEMO.get(study, {}) | own
        return make(TrainConfig, **own)
    if config.algorithm == "ultra":
        own = {"game": "hopper", "methods": "PPO,ULTRA-RA", "seeds": config.seeds or 3} | own
        return make(RefinementConfig, **(reproduce_ultra.presets(own["game"] == "pong")["quick"] | own))
    return make(NLRL[config.algorithm].RunConfig, **({"model": "nano_board", "iterations": 5} | own))


def settings_of(config: AblationConfig) -> Iterator[tuple[str, str, Any, Any]]:
    """(study, label, the config of its run, that of the study's base) of every setting."""
    for study in listed("study", config.study):
        base = base_of(config, study)
        for label, options in STUDIES[config.algorithm][study].items():
            yield study, label, replace(base, **options), base


def folder_of(run: Any, base: Any) -> str:
    """One folder for equal settings: two studies share the run that is in both."""
    values, usual = flat(run), flat(base)
    return "-".join(f"{name}_{values[name]}" for name in values if values[name] != usual[name]) or "base"


class Folders(NamedTuple):
    """Where a setting is trained, and what all settings share.

    run: the setting's folder. resume: of the whole ablation. paid, usage: where an endpoint's replies are cached and
    its tokens counted.
    """

    run: pathlib.Path
    resume: bool
    paid: pathlib.Path
    usage: Usage


def train_ultra(config: RefinementConfig, folder: pathlib.Path) -> list[reproduce_ultra.Run]:
    """The runs of all base agents, refined in a folder."""
    begun = directory.holds_run(folder)
    directory.open_run(folder, {"script": reproduce_ultra.SCRIPT, **flat(config)}, resume=begun)
    runs = reproduce_ultra.runs_of(config, folder, begun)
    reproduce_ultra.reproduce(runs)
    directory.close_run(folder)
    return runs


def train_td_seed(config: train_language_td.RunConfig, folders: Folders) -> None:
    """Trains one seed of language TD on positions that are kept beside the settings, which share them."""
    name = "-".join(str(value) for value in [*flat(config.data).values(), config.seed]).replace(",", "_")
    shared = folders.run.parents[1] / "positions" / name
    parts = train_language_td.parts_of(config, folders.run, folders.usage, shared, folders.paid)
    language_td.train(*parts, train_language_td.SCRIPT, config.iterations, folders.resume)


def train_ppo_seed(config: train_language_ppo.RunConfig, folders: Folders) -> None:
    """Trains one seed of LLM-PPO."""
    start = config.own.load(config.learning.train, config.seed)
    parts = train_language_ppo.parts_of(config, start, folders.resume)
    loop.learn(folders.run, train_language_ppo.SCRIPT, *parts)


def train_actor_critic_seed(config: train_language_actor_critic.RunConfig, folders: Folders) -> None:
    """Trains one seed of the actor-critic against one opponent."""
    large = config.models.large(config.models.aggregator, scripts(config.words), folders.paid, folders.usage)
    trainer = train_language_actor_critic.trainer_of(config, config.opponent, folders.run, folders.usage, large)
    actor_critic.train(trainer, train_language_actor_critic.SCRIPT, config.iterations, folders.resume)


TRAIN_NLRL = {"language_td": train_td_seed, "actor_critic": train_actor_critic_seed, "language_ppo": train_ppo_seed}


def train_nlrl(train: Callable[[Any, Folders], None], config: Any, seeds: int, folders: Folders) -> list[dict]:
    """Trains every seed in a folder of its own, or continues it. Returns their results."""
    stored, numbers = [], range(config.seed, config.seed + seeds)
    for seed, folder in zip(numbers, loop.seed_dirs(folders.run, numbers), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folders.resume and results.is_finished(folder, config.iterations)):
            train(replace(config, seed=seed), folders._replace(run=folder))
        stored.append(results.read(folder))
    return stored


def dry_run(config: AblationConfig) -> str:
    """The calls and tokens of every run of an NLRL study; see the dry runs of its scripts.

    Raises:
      ValueError: another study; `reproduce_ms_grpo --dry_run` counts MS-GRPO's memory and work.
    """
    if config.algorithm not in _ASKING:
        raise ValueError(f"--dry_run is for language TD and the actor-critic; {config.study} prompts no other model")
    texts: dict[str, str] = {}
    for study, label, run, base in settings_of(config):
        folder, run = folder_of(run, base), replace(run, token_budget=0)
        if folder in texts:
            texts[f"{study}, {label}"] = f"{study}, {label}: shared with an earlier setting"
            continue
        td = config.algorithm == "language_td"
        text = train_language_td.dry_run(run) if td else train_language_actor_critic.dry_run(run, (run.opponent,))
        texts[folder] = f"{study}, {label}, {config.seeds or 1} times:\n{text}"
    return "\n\n".join(texts.values())


COMMAND = app.Command(
    "ablate", AblationConfig, dry_run="NLRL: print the calls and tokens of every run, then stop",
    may_change=("study", "apart"),
)  # fmt: skip


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    if not config.study:
        raise ValueError(f"say what is varied: --study, one or more of one algorithm. {LISTED}")
    useless = [name for name, algorithms in ONLY_FOR.items() if config.algorithm not in algorithms]
    leave_out(f"for the study {config.study}", *useless)
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    if config.algorithm in _ASKING:
        NLRL[config.algorithm].validate(base_of(config, config.study), ask=not flags.FLAGS.resume)
    else:
        run = base_of(config, config.study.split(",")[0])
        models.check_templates(config.templates, run.analyst if config.algorithm == "ultra" else flat(run)["model"])
    nlrl, ultra = config.algorithm in NLRL, config.algorithm == "ultra"
    run_dir, resume = COMMAND.open(config, ("seeds",) if nlrl else ())
    usage, panels, rows, trained = models.ledger(run_dir), {}, [], {}
    for study, label, run, base in settings_of(config):
        seeds = config.seeds or SEEDS.get(study, 1)
        folder = run_dir / config.algorithm / (study if study in DEMO else "") / folder_of(run, base)
        if ultra and trained and not config.base:
            run = replace(run, base=str(next(iter(trained))))  # the first setting has trained them
        if folder not in trained:
            print(f"{study}, {label}: {run.iterations} iterations", flush=True)
            folders = Folders(folder, resume, run_dir, usage)
            if nlrl:
                trained[folder] = train_nlrl(TRAIN_NLRL[config.algorithm], run, seeds, folders)
            elif ultra:
                trained[folder] = train_ultra(run, folder)
            else:
                # a large model fits once, not five times
                together = run.model in BUILT_IN and jax.default_backend() != "cpu"
                trained[folder] = train_agents(
                    run, seeds, (run.game,), EVAL_SEED, together, folder, resume, config.apart
                )
        stored = trained[folder]
        if config.algorithm == "ms_grpo":
            line, row = in_seconds(label, folder, config.game or "frozen_lake", stored)
        elif ultra:
            line, row = in_updates(label, stored)
        else:
            metric = "accuracy" if config.algorithm == "language_td" else "win"
            folders = loop.seed_dirs(folder, range(config.seed, config.seed + seeds))
            line, row = in_iterations(label, folders, metric, stored)
        panels.setdefault(study, []).append(line)
        rows.append({"study": study, "setting": label, **row})
    trained_by = 'the seeds of training (column "seeds")'
    explained = trials_header(config.bases, config.seeds or 3) if ultra else header(trained_by)
    tables = [Table("Results", rows, explained)]
    if nlrl and (controls := beside({folder.name: stored for folder, stored in trained.items()})):
        note = "Without learning, on the same positions (one set per seed):"
        tables.append(Table("Without learning", controls, note))
    game = flat(base).get("game", "breakthrough" if config.algorithm == "language_td" else "tic_tac_toe")
    who = flat(base)["analyst" if ultra else "model"]
    title = f"Ablation of {config.algorithm} on {game} ({who}): {', '.join(panels)}"
    shown = {name: value for name, value in flat(config).items() if name not in useless}
    write(run_dir, title, shown, tables, panels, AXES[config.algorithm], nlrl)


if __name__ == "__main__":
    COMMAND.run(main)
