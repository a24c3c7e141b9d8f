"""The MS-GRPO paper's experiments: Table 1, Figures 1 and 2, at a scale of your choice.

    nlrl-jax reproduce_ms_grpo --scale nano --run_dir runs/matrix
    nlrl-jax reproduce_ms_grpo --scale paper --dry_run
    nlrl-jax reproduce_ms_grpo --scale paper --model ~/models/Qwen2.5-3B-Instruct --run_dir runs/paper

Trains one agent on Snake-Standard and one on FrozenLake-NotSlippery under several seeds, and evaluates each, as
it learns, on all four variants: greedy, 20 replies and steps, the same 50 initial states. A DQN on Snake (of
`--dqn_iterations`) is trained for comparison. Writes table_1.md, figure_1.png, figure_2.png and report.html; --resume
continues where it stopped.

Departures from the paper: evaluation maps of FrozenLake follow the paper's distribution, training maps leave out the
held-out eighth of them; all seeds start from one untrained model, greedy, so the start has no spread over seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from nlrl_jax import envs
from nlrl_jax.config import check, flat, make, option, part
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run import app, loop, players, targets, warm_start
from nlrl_jax.run.dqn import PAPER as DQN_PAPER
from nlrl_jax.run.dqn import DQNTrainer, DQNTrainingConfig
from nlrl_jax.run.dqn import train as train_dqn
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.ms_grpo.agents import Agents, finished, load_policy, train_agents
from nlrl_jax.run.ms_grpo.config import DEMO, AgentConfig
from nlrl_jax.run.plots import bars, compare, metric_line
from nlrl_jax.run.report import EpisodePairs, Picture, Table, markdown, model_name, write_report
from nlrl_jax.run.reports.tidy import Measurement, Measurements
from nlrl_jax.run.sizing import matmul_rate, planned
from nlrl_jax.statistics import deviation, estimate, header
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.weights.load import load_config, load_tokenizer

TRAINED_ON = ("snake", "frozen_lake")
VARIANTS = {  # in the order of Table 1
    "snake": "Snake-Standard",
    "snake_poison": "Snake-PoisonApple",
    "frozen_lake_slippery": "FrozenLake-Slippery",
    "frozen_lake": "FrozenLake-NotSlippery",
}
EVAL_SEED = 0  # the paper's

NANO = {**DEMO, "eval_episodes": 50}
PLANNED_MODEL = "Qwen2.5-3B (sizes only, prompts in the built-in tokenizer's tokens)"
QWEN25_3B = ModelConfig(
    vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_layers=36, num_heads=16, num_kv_heads=2,
    head_dim=128, max_positions=32768, architecture="Qwen2ForCausalLM", rope_theta=1e6, tie_embeddings=True,
    qkv_bias=True, dtype="bfloat16", param_dtype="bfloat16",
)  # fmt: skip


class Scale(NamedTuple):
    """What a scale means: options of `AgentConfig` and of `DQNTrainingConfig`."""

    common: dict[str, Any]
    seeds: int
    dqn: dict[str, Any]
    warm_start: bool = False  # teach the reply format first
    fits: bool = False  # all seeds fit the memory of one accelerator, which then trains them at once


SCALES = {
    "nano": Scale(
        {**NANO, "iterations": 120, "decay_steps": 150, "eval_every": 40, "checkpoint_every": 20},
        2,
        {},
        fits=True,
    ),
    "smollm2": Scale(
        {"model": "smollm2", "micro_batch": 25, "eval_every": 100, "eval_episodes": 50},
        3,
        {"iterations": 400},
        warm_start=True,
    ),
    "paper": Scale(
        {"dtype": "bfloat16", "micro_batch": 5, "remat": True, "eval_every": 100, "eval_episodes": 50},
        8,
        DQN_PAPER,
    ),
}


@dataclasses.dataclass(frozen=True)
class MatrixConfig:
    """What is run."""

    scale: str = option("nano", f"how large: {', '.join(SCALES)}", choices=tuple(SCALES))
    model: str = option("", "a local model in place of the scale's own; the scale `paper` needs one")
    templates: TemplateOptions = part(TemplateOptions())
    seeds: int = option(0, "runs of each agent, under the seeds 0, 1, ...; 0: the scale's own number", least=0)
    iterations: int = option(0, "iterations of Algorithm 1; 0: the scale's own number", least=0)
    dqn_iterations: int = option(0, "iterations of the DQN; 0: the scale's own number", least=0)
    apart: bool = option(False, "spread the seeds over as many devices as can take equal numbers of them")

    def __post_init__(self):
        check(self)


COMMAND = app.Command(
    "reproduce_ms_grpo", MatrixConfig, dry_run="print what would be run, its memory and its work, then stop",
    may_change=("apart",),
)  # fmt: skip


class Settings(NamedTuple):
    """What the page says of the runs: the model, the evaluation, the DQN's length, and all options by "game.name"."""

    model: str
    eval_episodes: int
    dqn_iterations: int
    options: dict[str, Any]


def table_1(results: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The paper's Table 1: the mean over seeds, their deviation (the paper's brackets), the best run."""
    rows = []
    for trained, result in results.items():
        for name, title in VARIANTS.items():
            start, final = result["before"][name], np.array(result["after"][name])
            rows.append(
                {
                    "trained on": VARIANTS[trained],
                    "evaluated on": title,
                    "start": f"{start:.3f}",
                    "final": estimate(final).text(".3f"),
                    "change": f"{final.mean() - start:+.3f}",
                    "deviation": f"{deviation(final):.3f}" if len(final) > 1 else "–",
                    "best run": f"{final.max():.3f}",
                }
            )
    return rows


def figure_1(run_dir: pathlib.Path, results, seeds: int) -> pathlib.Path:
    """Evaluation on every variant while the agents learn: mean and deviation over seeds, the best run dashed."""
    panels = {title: [] for title in VARIANTS.values()}
    for game in results:
        metrics = [read_metrics(folder) for folder in loop.seed_dirs(run_dir / game, range(seeds))]
        for name, title in VARIANTS.items():
            start = results[game]["before"][name]
            panels[title].append(metric_line(metrics, f"eval/{name}", f"trained on {VARIANTS[game]}", start))
    return compare(panels, run_dir / "figure_1.png", "iteration", "environment reward")


def measurements(results: dict[str, dict[str, Any]], dqn: dict[str, float]) -> Measurements:
    """The tidy rows: methods are the agents, units the seeds of training, metrics the rewards in every variant."""
    rows = [Measurement("untrained", 0, title, results["snake"]["before"][name]) for name, title in VARIANTS.items()]
    for game, result in results.items():
        for name, title in VARIANTS.items():
            for seed, reward in enumerate(result["after"][name]):
                rows.append(Measurement(f"{VARIANTS[game]} agent", seed, title, reward))
    return Measurements([*rows, Measurement("DQN", 0, VARIANTS["snake"], dqn["env_return"])])


def configs_of(config: MatrixConfig, dry_run: bool = False) -> tuple[dict[str, AgentConfig], DQNTrainingConfig, int]:
    """The runs of a scale: (by game, of the DQN, number of seeds).

    Raises:
      ValueError: the scale needs a model.
    """
    scale = SCALES[config.scale]
    if config.scale == "paper" and not (config.model or dry_run):
        raise ValueError("the scale paper trains Qwen2.5-3B-Instruct: give its folder, --model PATH, or --dry_run")
    overrides = {**flat(config.templates), **({"model": config.model} if config.model else {})}
    overrides |= {"model": PLANNED_MODEL} if config.scale == "paper" and not config.model else {}
    overrides |= {"iterations": config.iterations} if config.iterations else {}
    if config.iterations and "decay_steps" in scale.common:
        overrides["decay_steps"] = config.iterations * 5 // 4
    runs = {game: make(AgentConfig, **{**scale.common, **overrides}) for game in TRAINED_ON}
    iterations = {"iterations": config.dqn_iterations} if config.dqn_iterations else {}
    return runs, make(DQNTrainingConfig, **{**scale.dqn, **iterations}), config.seeds or scale.seeds


def game_of(name: str, prompt: str) -> TextGame:
    """The game that an agent is trained on; of FrozenLake's maps those that are not held out."""
    maps = {"maps": "train"} if name in envs.WITH_MAPS else {}
    return envs.make(name, prompt, **maps)


def teach_format(agent: AgentConfig, name: str, run_dir: pathlib.Path, resume: bool) -> pathlib.Path:
    """Teaches the agent's model the reply format of a game; see `run.warm_start`. Returns the folder of the model."""
    from nlrl_jax.envs.walkers import demonstrate, reply_template  # Gymnax looks for devices as it is imported

    if resume and warm_start.is_finished(run_dir):
        return run_dir / "model"
    prompt, config = players.prompt_for(agent.model, "auto"), warm_start.FormatConfig()
    game = game_of(name, prompt)
    loaded = players.load(agent.model, lora=config.lora, templates=agent.templates)
    policy = players.make_policy(game, loaded, Sampling(config.max_tokens, temperature=1.0), prompt)
    walkers = functools.partial(demonstrate, game, batch=config.batch, skilled_share=0.0, habit=False)
    update = warm_start.update_on_demonstrations(config, policy, reply_template(game, prompt), walkers)
    replies = warm_start.first_replies(policy, game)
    return warm_start.learn_format(run_dir, resume, config, loaded, policy.model, update, replies)


def write_matrix(
    run_dir: pathlib.Path, results: dict[str, dict[str, Any]], dqn: dict[str, float], seeds: int, settings: Settings
) -> list[str]:
    """Writes table, figures and report of agents that have learned. Returns what to print.

    Args:
      results: of `train_agents`, by game. dqn: the evaluation of the DQN on Snake.
    """
    rows, numbers = table_1(results), measurements(results, dqn)
    numbers.write(run_dir)
    panels = numbers.bars({title: title for title in VARIANTS.values()}, numbers.methods)
    explained = header("seeds of training from one model", seeds)
    text = f"{explained}\n\n{markdown(rows)}"
    write_atomically(run_dir / "table_1.md", text)
    about = (
        f"Environment reward, with -0.5 for each invalid action, in {settings.eval_episodes} greedy episodes "
        f"from the same initial states. {explained} DQN on Snake-Standard after {settings.dqn_iterations} iterations: "
        f"{dqn['env_return']:.2f} (deviation over episodes {dqn['env_return_std']:.2f})."
    )
    transcripts = [
        [episode for g in results for episode in results[g]["transcripts"][moment]] for moment in ("before", "after")
    ]
    report = write_report(
        run_dir,
        title=f"MS-GRPO: {model_name(settings.model)} on every variant",
        question="Does training on one game make a language model play it better, and what does it do to the others?",
        config=settings.options,
        blocks=[
            Table("Results", rows, about),
            Picture(
                figure_1(run_dir, results, seeds),
                "Evaluations while the agents learn; bands: one standard deviation; dashed: the best run.",
            ),
            Picture(
                bars(panels, run_dir / "figure_2.png", "environment reward"),
                "Every agent on every variant; arms: 95 % intervals over seeds.",
            ),
            EpisodePairs(*transcripts),
        ],
    )
    changes = [f"{g} {results[g]['before'][g]:.3f} -> {np.mean(results[g]['after'][g]):.3f}" for g in results]
    return [
        f"\n{text}",
        f"DQN on Snake-Standard: {dqn['env_return']:.3f}",
        f"report: {report}",
        f"greedy reward: {', '.join(changes)}",
    ]


def policy_without_weights(
    config: AgentConfig, name: str, mesh: Mesh | None = None
) -> tuple[LanguageAgentPolicy, TextGame]:
    """Policy and game of a config; without a model, Qwen2.5-3B with our tokenizer."""
    prompt = players.prompt_for(config.model, config.prompt)
    game = envs.make(name, prompt)
    overrides = {"dtype": config.dtype, "param_dtype": config.dtype} if config.dtype else {}
    is_real = config.model != PLANNED_MODEL
    shape = load_config(config.model) if is_real else QWEN25_3B
    model = Transformer(dataclasses.replace(shape, lora=config.lora, **overrides), mesh=mesh)
    tokenizer = load_tokenizer(config.model if is_real else "nano", templates=config.templates)
    return LanguageAgentPolicy.for_game(game, model, tokenizer, config.sampling, prompt), game


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    configs, dqn_config, seeds = configs_of(config, flags.FLAGS.dry_run)
    vectorize = SCALES[config.scale].fits and jax.default_backend() != "cpu"
    if flags.FLAGS.dry_run:
        target = flags.FLAGS.target or ("h100" if targets.available() and jax.default_backend() == "cpu" else "")
        tflops, total = flags.FLAGS.device_tflops, 0.0
        rate = tflops * 1e12 or matmul_rate()
        device = "a device" if tflops else f"this machine's device, {jax.devices()[0].device_kind}, measured"
        print(f"{device}: {rate / 1e12:.3g} TFLOP/s in a plain matrix product")
        mesh, device = make_mesh(devices=targets.devices(target)) if target else None, target or "this device"
        for name, agent in configs.items():
            policy, game = policy_without_weights(agent, name, mesh)
            hours, text = planned(policy, game, agent.learning, agent.iterations, seeds, vectorize, rate, device)
            total += hours
            print(f"\n{name}: {agent.model}, {text}")
        print(
            f"\n{total:.3g} device hours in total, at the rate of a plain matrix product. Writing replies is bound by "
            "memory and slower; episodes that end early and short replies make it faster."
        )
        return
    leave_out("without --dry_run", "device_tflops", "target")
    run_dir, resume = COMMAND.open(config)
    results = {}
    for name, agent in configs.items():
        folder = run_dir / name
        if SCALES[config.scale].warm_start:
            print(f"the reply format, from demonstrations on {VARIANTS[name]}", flush=True)
            agent = dataclasses.replace(agent, model=str(teach_format(agent, name, folder / "format", resume)))
        print(f"MS-GRPO on {VARIANTS[name]}, {seeds} seed{'s' * (seeds > 1)}", flush=True)
        results[name] = finished(folder) if resume else None
        if not results[name]:
            prompt = players.prompt_for(agent.model, agent.prompt)
            game, games = game_of(name, prompt), {variant: envs.make(variant, prompt) for variant in VARIANTS}
            policy = load_policy(agent, game)
            stack = [agent.seed + n for n in range(seeds)], vectorize, config.apart
            agents = Agents(agent, name, game, *policy, games, EVAL_SEED, *stack)
            results[name] = train_agents(agents, folder, resume)
    print("DQN on Snake-Standard", flush=True)
    dqn = train_dqn(DQNTrainer(dqn_config, envs.make("snake", "compact")), run_dir / "dqn", resume)["after"]
    options = {f"{name}.{option}": value for name, agent in configs.items() for option, value in flat(agent).items()}
    agent = configs["snake"]
    settings = Settings(agent.model, agent.eval_episodes, dqn_config.iterations, options)
    print("\n".join(write_matrix(run_dir, results, dqn, seeds, settings)))


def define_flags() -> None:
    COMMAND.define_flags()
    flags.DEFINE_float(
        "device_tflops", 0.0, "with --dry_run: assume a device of this rate instead of measuring this machine's", 0.0
    )
    flags.DEFINE_enum(
        "target",
        "",
        ["", *targets.GPUS],
        "with --dry_run: the GPU to compile for (extra aot); empty: an H100 where that is installed, else this machine",
    )


if __name__ == "__main__":
    define_flags()
    app.run(main)
