"""Ablations: one command, a table and a picture with a panel per study.

    python -m launch.ablate --study aaw --run_dir runs/aaw                                    # MS-GRPO, Figure 3
    python -m launch.ablate --study credit --run_dir runs/credit
    python -m launch.ablate --study look_ahead,variations,states --run_dir runs/figure_5      # language TD
    python -m launch.ablate --study epochs,k,buffer,games,top_m,mask --run_dir runs/figures_7_8   # actor-critic
    python -m launch.ablate --study words,correct --seeds 3 --run_dir runs/words              # actor-critic
    python -m launch.ablate --study ppo --seeds 3 --run_dir runs/ppo                          # LLM-PPO, its baseline
    python -m launch.ablate --study alpha,learning_rate --bases 3 --run_dir runs/sweeps       # ULTRA
    python -m launch.ablate --study look_ahead --dry_run                                      # NLRL: calls and tokens

Studies of one algorithm go together; a setting that several of them share is run once. MS-GRPO draws the reward against
wall time without compilation, the others draw against iterations; ± and bands are 95 % intervals over the seeds (bands
of MS-GRPO and ULTRA: one standard deviation, best run dashed), and each setting plays under the same seeds. Of NLRL,
`--resume --seeds 5` adds two seeds to three.

`words` changes what
the rules of the actor-critic write (`envs/tic_tac_toe/rule_based.py`); `ppo` gives LLM-PPO the actor-critic's epochs,
what its rules read off the board, and 13 times the iterations (the actor-critic's time is over after 30 of the 65).
`aaw` varies how many episodes a group has and how many of them are learned from; "any" is our control, as many episodes
drawn without regard to their advantage. `credit` compares the return of the episode with the return-to-go of each turn,
which the paper's discussion proposes. ULTRA's sweeps (its section 4.1) refine the same base agents by PPO and by
ULTRA-RA with each weight of the rewards and each learning rate. Everything that is not varied or named below is as in
the algorithm's own script: preset demo (with another model than the built-in ones: paper), nano scale, or scale quick.

Departures from the papers: the sizes of the models and of the data. Figure 3 of MS-GRPO is of Snake-Standard with
Qwen2.5-3B, the default here is FrozenLake with the built-in model. The actor-critic plays 128 games per iteration as
the paper's ablations do; its evaluated policy is the mean of the last three iterations' weights (`--average 1`: the
last).
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
from absl import flags

from envs.tic_tac_toe.rule_based import WORDS
from launch import reproduce_ultra, train_language_actor_critic, train_language_ppo, train_language_td, train_ms_grpo
from launch.reproduce_ms_grpo import EVAL_SEED
from launch.train_ms_grpo import TrainConfig, train_agents
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check, flat, listed, make, option, part, replace, seed_option
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import app, directory, loop, models, players, results
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Picture, Table, markdown, write_report
from nlrl_jax.run.reports import ultra_tables
from nlrl_jax.run.reports.ablation import beside, in_iterations, in_seconds
from nlrl_jax.run.ultra.config import RunConfig as RefinementConfig
from nlrl_jax.run.ultra.stages import stored_scores
from nlrl_jax.statistics import header
from nlrl_jax.weights.load import BUILT_IN

EVENLY = 1e6  # a T_ep at which AAW draws all episodes alike
# algorithm -> study -> label -> options that differ
STUDIES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "ms_grpo": {
        "aaw": {
            **{f"G = 100, G' = {n}": {"group_size": 100, "group_sample": n} for n in (25, 50, 100)},
            "G = 100, G' = 25, any": {"group_size": 100, "group_sample": 25, "sampling_temperature": EVENLY},
            **{f"G = {n}, G' = 25": {"group_size": n, "group_sample": 25} for n in (25, 50)},
        },
        "credit": {"MS-GRPO": {}, "return-to-go": {"credit": "turn"}},
    },
    "language_td": {
        "look_ahead": {f"{n} steps": {"look_ahead": n} for n in (1, 2, 4, 8)},
        "variations": {f"{n} variations": {"variations": n} for n in (1, 2, 4, 8)},
        "states": {f"{n} states": {"states": n} for n in (400, 1000, 2500, 6000)},
    },
    "actor_critic": {
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
_NLRL = ("language_td", "actor_critic")
ONLY_FOR = {  # options without effect in the studies of other algorithms
    **dict.fromkeys(("game", "eval_episodes"), ("ms_grpo", "ultra")),
    **dict.fromkeys(("bases", "base"), ("ultra",)),
    **dict.fromkeys(("states", "test_states"), ("language_td",)),
    **dict.fromkeys(("games", "eval_games", "opponent"), ("actor_critic", "language_ppo")),
    "average": ("actor_critic",),
    "apart": ("ms_grpo",),
    "model": ("ms_grpo", "language_ppo", *_NLRL),
    "seed": ("ultra", "language_ppo", *_NLRL),
    **dict.fromkeys(("aggregator", *models.ENDPOINT), _NLRL),
}
# what an MS-GRPO study changes in the preset demo
DEMO = {"aaw": {"num_groups": 1, "sampling_temperature": 0.1}}
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
    seeds: int = option(0, "runs of each setting; 0: 2 for aaw, 5 for credit, 3 for ULTRA, 1 for NLRL", least=0)
    eval_episodes: int = option(100, "MS-GRPO, ULTRA: episodes per evaluation, from the same initial states", least=1)
    bases: int = option(1, "ULTRA: base agents", least=1)
    base: str = option("", "ULTRA: run folders whose base agents are refined; empty trains them once")
    states: int = option(1500, "language TD: positions it learns from, unless they are what varies", least=1)
    test_states: int = option(400, "language TD: positions of the evaluation", least=1)
    games: int = option(128, "actor-critic, LLM-PPO: games per iteration, unless they are what varies", least=1)
    eval_games: int = option(1000, "actor-critic: greedy games per evaluation", least=1)
    opponent: str = option("random", "actor-critic, LLM-PPO: random or first_move", choices=("random", "first_move"))
    average: int = option(3, "actor-critic: iterations whose policies' mean is evaluated; the paper: 1", least=1)
    apart: bool = option(False, "MS-GRPO: spread the seeds over all devices, as many as take equally many each")
    seed: int = seed_option("NLRL: the first seed", counted_up=True)
    aggregator: str = option("scripted", "NLRL: aggregator and improver: scripted, endpoint, or a local model's name")
    endpoint: models.Endpoint = part(models.Endpoint(), without=("endpoint_tokenizer",))

    def __post_init__(self):
        check(self)
        if not self.study:
            return  # `replace` begins with the defaults; `main` asks for it
        chosen = set(listed("study", self.study))
        if not any(chosen <= set(studies) for studies in STUDIES.values()):
            raise ValueError(f"--study is {self.study!r}; choose one or more of one algorithm. {LISTED}")

    @property
    def algorithm(self) -> str:
        return next(name for name, studies in STUDIES.items() if listed("study", self.study)[0] in studies)

    @property
    def studies(self) -> dict[str, dict[str, dict[str, Any]]]:
        """study -> label -> options that differ."""
        return {study: STUDIES[self.algorithm][study] for study in listed("study", self.study)}


def base_of(config: AblationConfig, study: str) -> Any:
    """The config of the run that the settings of a study differ from, each in few options."""
    iterations = {"iterations": config.iterations} if config.iterations else {}
    if config.algorithm == "ms_grpo":
        model = config.model or "nano"
        common = {"eval_every": 50} | iterations
        if model in BUILT_IN:
            length = config.iterations or 60
            common = {**train_ms_grpo.PRESETS["demo"], **DEMO.get(study, {}), "eval_every": 10}
            common |= {"iterations": length, "decay_steps": length * 5 // 4}
        own = {"model": model, "game": config.game or "frozen_lake", "eval_episodes": config.eval_episodes}
        return make(TrainConfig, **{**common, **own, **flat(config.templates)})
    if config.algorithm == "ultra":
        game = config.game or "hopper"
        own = {name: getattr(config, name) for name in ("seed", "eval_episodes", "bases", "base")}
        chosen = {"game": game, "methods": "PPO,ULTRA-RA", "seeds": config.seeds or 3, **own, **iterations}
        chosen |= flat(config.templates)
        return make(RefinementConfig, **{**reproduce_ultra.presets(game == "pong")["quick"], **chosen})
    common = {"model": config.model or "nano_board", "seed": config.seed, "iterations": 5, **iterations}
    common |= flat(config.templates)
    address = {name: value for name, value in flat(config.endpoint).items() if name != "endpoint_tokenizer"}
    common |= {"aggregator": config.aggregator, **address}
    if config.algorithm == "language_ppo":
        common = {name: common[name] for name in ("model", "seed", "iterations", "template", "date")}
        own = {"games": config.games, "eval_games": config.eval_games, "opponent": config.opponent}
        return make(train_language_ppo.RunConfig, **common, **own)
    if config.algorithm == "language_td":
        return make(train_language_td.RunConfig, **common, states=config.states, test_states=config.test_states)
    own = {name: getattr(config, name) for name in ("games", "eval_games", "opponent", "average")}
    return make(train_language_actor_critic.RunConfig, **common, **own)


def folder_of(run: Any, base: Any) -> str:
    """One folder for equal settings: two studies share the run that is in both."""
    values, usual = flat(run), flat(base)
    return "-".join(f"{name}_{values[name]}" for name in values if values[name] != usual[name]) or "base"


def train(
    run: Any, folder: pathlib.Path, resume: bool, seeds: int, apart: bool, paid: pathlib.Path, usage: Usage
) -> list[dict[str, Any]]:
    """Trains, or with `resume` continues, or reads what is finished: `results.read` of MS-GRPO's folder, or of the
    folder of each seed. Language TD's positions lie beside the settings, which share them.

    Args:
      paid, usage: where an endpoint's replies are cached and its tokens counted, for all runs together.
    """
    if isinstance(run, TrainConfig):
        together = run.model in BUILT_IN and jax.default_backend() != "cpu"  # a large model fits once, not five times
        return [train_agents(run, seeds, (run.game,), EVAL_SEED, together, folder, resume, apart)]
    if isinstance(run, RefinementConfig):
        begun = directory.holds_run(folder)
        directory.open_run(folder, {"script": reproduce_ultra.SCRIPT, **flat(run)}, resume=begun)
        reproduce_ultra.reproduce(run, folder, begun)
        directory.close_run(folder)
        return [{"run": run}]
    stored = []
    for seed, part_dir in zip(range(run.seed, run.seed + seeds), seeds_of(folder, run.seed, seeds), strict=True):
        one = replace(run, seed=seed)
        part_dir.mkdir(parents=True, exist_ok=True)
        if not (resume and finished(part_dir, one.iterations)):
            if isinstance(run, train_language_td.RunConfig):
                positions = "-".join(str(value) for value in [*flat(run.data).values(), seed]).replace(",", "_")
                shared = folder.parent / "positions" / positions
                train_language_td.train(one, part_dir, resume, shared, paid, usage)
            elif isinstance(run, train_language_ppo.RunConfig):
                mesh = players.parse_mesh(run.mesh)
                start = models.trainable_model(run.model, run.dtype, run.learning.train, seed, mesh, run.templates)
                train_language_ppo.train(one, start, part_dir, resume)
            else:
                train_language_actor_critic.train_actor_critic(one, run.opponent, part_dir, resume, usage, paid)
        stored.append(results.read(part_dir))
    return stored


def finished(folder: pathlib.Path, iterations: int) -> bool:
    """Whether a run of NLRL has ended; one that was interrupted has results too."""
    return (folder / results.RESULTS).exists() and results.read(folder).get("iterations", iterations) >= iterations


def seeds_of(folder: pathlib.Path, first: int, seeds: int) -> list[pathlib.Path]:
    """Where each seed of an NLRL setting leaves its files."""
    return loop.seed_dirs(folder, range(first, first + seeds))


def dry_run(config: AblationConfig) -> str:
    """The calls and tokens of every run of an NLRL study; see the dry runs of its scripts.

    Raises:
      ValueError: another study; `reproduce_ms_grpo --dry_run` counts MS-GRPO's memory and work.
    """
    if config.algorithm not in ("language_td", "actor_critic"):
        raise ValueError(f"--dry_run is for language TD and the actor-critic; {config.study} prompts no other model")
    parts, seen = [], set()
    for study, labels in config.studies.items():
        base = base_of(config, study)
        for label, options in labels.items():
            run, folder = replace(base, **options, token_budget=0), folder_of(replace(base, **options), base)
            if folder in seen:
                parts.append(f"{study}, {label}: shared with an earlier setting")
                continue
            seen.add(folder)
            td = config.algorithm == "language_td"
            text = train_language_td.dry_run(run) if td else train_language_actor_critic.dry_run(run, (run.opponent,))
            parts.append(f"{study}, {label}, {config.seeds or 1} times:\n{text}")
    return "\n\n".join(parts)


def in_updates(label: str, folder: pathlib.Path, config: RefinementConfig) -> tuple[Series, dict[str, str]]:
    """(ULTRA-RA's score against updates, a row of the table) of all base agents and seeds."""
    runs = reproduce_ultra.runs_of(config, folder, True)
    kind = ultra_tables.main_score(runs[0].agent.continuous)
    ys, x = [], np.zeros(1)
    for run in runs:
        start = run.before_learning()[0][kind]
        for one in loop.seed_dirs(run.folder / "ULTRA-RA", run.seeds):
            metrics = read_metrics(one)
            there = np.isfinite(metrics[f"eval/{kind}"])
            x = np.concatenate([[0], metrics["iteration"][there] + 1])
            ys.append([start, *metrics[f"eval/{kind}"][there]])
    scores = {name: scores[kind] for name, scores in stored_scores(runs).items()}
    row = {name: ultra_tables.level(scores[name]) for name in ("PPO", "ULTRA-RA")}
    row["gain"] = ultra_tables.gain_text(ultra_tables.gain(scores["ULTRA-RA"], scores["PPO"]))
    return Series(label, x, np.array(ys)), {"score": ultra_tables.headings(runs[0].agent.continuous)[kind], **row}


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(AblationConfig, script="ablate")
    if not config.study:
        raise ValueError(f"say what is varied: --study, one or more of one algorithm. {LISTED}")
    for option_name, algorithms in ONLY_FOR.items():
        if config.algorithm not in algorithms:
            leave_out(f"for the study {config.study}", option_name)
    read = {
        "ms_grpo": (config.game or "frozen_lake", "wall time of one run, s", "environment reward"),
        "language_td": ("accuracy", "iteration", "advantage accuracy"),
        "actor_critic": ("win", "iteration", f"win rate against {config.opponent}"),
        "language_ppo": ("win", "iteration", f"win rate against {config.opponent}"),
        "ultra": ("", "update", "score of ULTRA-RA"),
    }
    metric, xlabel, ylabel = read[config.algorithm]
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    if config.algorithm in ("language_td", "actor_critic"):
        script = train_language_td if config.algorithm == "language_td" else train_language_actor_critic
        script.validate(base_of(config, config.study), ask=not flags.FLAGS.resume)
    else:
        run = base_of(config, config.study.split(",")[0])
        models.check_templates(config.templates, run.analyst if config.algorithm == "ultra" else run.model)
    nlrl = config.algorithm not in ("ms_grpo", "ultra")
    may_change = ("study", "apart", *(("seeds",) if nlrl else ()))
    run_dir, resume = app.take_run_dir("ablate", config, may_change=may_change), flags.FLAGS.resume
    usage = models.ledger(run_dir)
    panels, rows, trained = {}, [], {}
    for study, labels in config.studies.items():
        base, panels[study] = base_of(config, study), []
        seeds = config.seeds or {"aaw": 2, "credit": 5, "alpha": 3, "learning_rate": 3}.get(study, 1)
        for label, options in labels.items():
            run = replace(base, **options)
            folder = run_dir / config.algorithm / (study if study in DEMO else "") / folder_of(run, base)
            if config.algorithm == "ultra" and trained and not config.base:
                run = replace(run, base=str(next(iter(trained))))  # the first setting has trained them
            if folder not in trained:
                print(f"{study}, {label}: {run.iterations} iterations", flush=True)
                trained[folder] = train(run, folder, resume, seeds, config.apart, run_dir, usage)
            stored = trained[folder]
            if config.algorithm == "ms_grpo":
                line, row = in_seconds(label, folder, metric, stored[0])
            elif config.algorithm == "ultra":
                line, row = in_updates(label, folder, stored[0]["run"])
            else:
                line, row = in_iterations(label, seeds_of(folder, config.seed, seeds), metric, stored)
            panels[study].append(line)
            rows.append({"study": study, "setting": label, **row})
    explained = header('the seeds of training (column "seeds")')
    if config.algorithm == "ultra":
        explained = ultra_tables.trials_header(config.bases, config.seeds or 3)
    table = f"{explained}\n\n{markdown(rows)}"
    if nlrl and (controls := beside({folder.name: stored for folder, stored in trained.items()})):
        table += f"\nWhat does not learn, on the same positions, a set of them for each seed:\n\n{markdown(controls)}"
    write_atomically(run_dir / "table.md", table)
    picture = compare(panels, run_dir / "ablation.png", xlabel, ylabel, nlrl)
    model = base.analyst if config.algorithm == "ultra" else base.model
    report = write_report(
        run_dir,
        title=f"Ablation of {config.algorithm} ({model}): {', '.join(panels)}",
        question="What does each choice change?",
        config=flat(config),
        blocks=[
            Table("Results", rows, explained),
            Picture(picture, f"One line per setting. Bands: {'95 % intervals' if nlrl else 'one standard deviation'}."),
        ],
    )
    print(f"\n{table}\npicture: {picture}\nreport:  {report}")


define_flags = app.Command(
    "ablate", AblationConfig, dry_run="NLRL: print the calls and tokens of every run, and do nothing"
).define_flags

if __name__ == "__main__":
    define_flags()
    app.run(main)
