"""Fine-tunes a language model on a few trajectories: LAC's model, or a policy of appendix A.5 (LAC, B.2, A.5, A.9).

    nlrl-jax finetune_lac --model smollm2 --run_dir runs/tuned
    nlrl-jax run_lac --model runs/tuned/model --policy smollm2 --methods lac --run_dir runs/lac_tuned
    nlrl-jax finetune_lac --model smollm2 --method decision_transformer --run_dir runs/dt
    nlrl-jax run_lac --model runs/dt/model --methods react_return --run_dir runs/lac_dt
    nlrl-jax finetune_lac --game my_module:host_game --trajectories mine.jsonl --run_dir runs/mine

A LoRA adapter learns to continue transcripts where `nlrl-jax run_lac` asks: --method lac learns observations and
reflections (and actions with --learn_actions; else the paper's policy is the model before, with examples in its prompt:
--policy of run_lac); the others learn actions (`algorithms/offline.py`) and act as react, the
decision transformer as react_return. The defaults are the paper's: 18 trajectories, 12 of them successes, 1,000 steps
of two pairs. Without --trajectories they come from players who make mistakes, on tasks that no run plays: in BabyAI as
many as requested, in ALFWorld, WebShop and Crafter the 12 successes and 6 failures of the package
(`envs/recorded.py`). A file of your own has the format of RUN_DIR/trajectories.jsonl (`nlrl_jax/run/trajectories.py`).

--rows pairs is the paper's: a line after its whole transcript is an example. --rows episodes learns all lines of a
transcript in one pass: the same tokens, far fewer read, and fewer steps for as many passes (--dry_run counts both).

Leaves RUN_DIR/model, an ordinary Hugging Face folder, whose dialogue.json tells run_lac which prompts it has learned;
metrics.jsonl, learning_curve.png and results.json with losses and the accuracy of GOOD and BAD on held-out
trajectories (Figure 12c). The last line reads `observation_loss 1.605 -> 1.402, ..., accuracy 0.512 -> 0.803, ...`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms import offline
from nlrl_jax.algorithms.offline import OfflineConfig, Trajectory
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.config import DTYPES, check, option, part
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import BAD, GOOD
from nlrl_jax.run import adapter_training, app, local_models, loop, players, plots, processes, results, trajectories
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.prompts import PromptConfig, check_words, context_within, dialogue_of, write_form
from nlrl_jax.run.lac.finetuning import Lessons, count, describe
from nlrl_jax.types import HostGame
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import load_tokenizer

SCRIPT = "finetune_lac"
ACTS = {"lac": "lac", "decision_transformer": "react_return"}  # the method of run_lac that plays it, else react
HELD_OUT = (12, 6)  # successes and failures
CACHE_MB = 256  # for evaluations


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """Everything that decides what fine-tuning computes."""

    model: str = option("smollm2", players.MODELS)
    templates: TemplateOptions = part(TemplateOptions())
    method: str = option(
        "lac", "what is learned: lac (observations, reflections) or a policy", choices=("lac", *offline.METHODS)
    )
    learn_actions: bool = option(False, "lac: learn actions too (LAC with fine-tuned policy, A.5.1)")
    offline: OfflineConfig = part(OfflineConfig(), without=("method",))
    game: str = option("babyai", envs.HOST_HELP)
    trajectories: str = option(
        "",
        "file of trajectories, one JSON object per line; empty: generated or recorded ones, which "
        f"{', '.join(envs.DEMONSTRATED)} have",
    )
    successes: int = option(12, "without --trajectories: successes; at most 12 but for babyai", least=0, most=10_000)
    failures: int = option(6, "without --trajectories: failures; at most 6 but for babyai", least=0, most=10_000)
    held_out: str = option(
        "",
        "file of trajectories for the learning curve; empty: 18 generated or recorded ones, if the game has them",
    )
    prompts: PromptConfig = part(PromptConfig(examples=0))
    rows: str = option(
        "pairs", "an example is a line (pairs) or a transcript (episodes)", choices=("pairs", "episodes")
    )
    iterations: int = option(1000, "gradient steps", least=1)
    batch: int = option(2, "examples per step", least=1)
    learning_rate: float = option(2.5e-5, "AdamW's learning rate", above=0)
    micro_batch: int = option(0, "examples differentiated at a time (less memory, same result); 0: all", least=0)
    remat: bool = option(True, "recompute blocks in the backward pass: less memory, same result")
    mesh: str = option("", players.MESH)
    lora: LoraConfig = part(LoraConfig(), names={"rank": "lora_rank", "alpha": "lora_alpha"})
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    seed: int = option(0, "everything random follows from it, babyai's trajectories too", least=0, most=1000)
    eval_every: int = option(100, "steps between two evaluations on held-out trajectories", least=1)
    checkpoint_every: int = option(100, "steps between checkpoints", least=1)

    def __post_init__(self):
        check(self)
        if self.learn_actions and self.method != "lac":
            raise ValueError(f"learn_actions is for --method lac; {self.method} learns actions and nothing else")
        if not self.trajectories and self.game not in envs.DEMONSTRATED:
            raise ValueError(f"there are no trajectories of {self.game}; give a file: --trajectories FILE")
        if not self.trajectories and not self.successes + self.failures:
            raise ValueError("successes and failures are both 0; there must be a trajectory")
        recorded = not self.trajectories and self.game in envs.RECORDED
        if recorded and (self.successes > HELD_OUT[0] or self.failures > HELD_OUT[1]):
            raise ValueError(
                f"{self.game} has {HELD_OUT[0]} successes and {HELD_OUT[1]} failures, not {self.successes} and "
                f"{self.failures}; give a file of your own: --trajectories FILE"
            )


def trajectories_of(
    copy: pathlib.Path | None, file: str, game: str, numbers: tuple[int, int], seed: int, held_out: bool
) -> list[Trajectory]:
    """The trajectories in a file, or (successes, failures) of a game that can show some.

    Args:
      copy: the run's own file, from which they are read once it is there; None writes none.
    """
    if copy and copy.is_file():
        return trajectories.read(copy)
    episodes = []
    if file:
        episodes = trajectories.read(pathlib.Path(os.path.expanduser(file)))
    elif game in envs.DEMONSTRATED:
        shown = envs.demonstrations(game, *numbers, seed, held_out)
        episodes = [Trajectory(episode.history, episode.success) for episode in shown]
    if copy and episodes and processes.first():
        trajectories.write(copy, episodes)
    return episodes


def gather(
    config: FinetuneConfig, game: HostGame, tokenizer: Tokenizer, run_dir: pathlib.Path | None = None
) -> tuple[Lessons, list[Trajectory]]:
    """What is learned, and the trajectories that are held out. What was made or read once is kept in `run_dir`.

    Raises:
      ValueError: a file that is not of the format, or has no reflections where these are learned.
    """
    copies = (run_dir / "trajectories.jsonl", run_dir / "held_out.jsonl") if run_dir else (None, None)
    numbers = config.successes, config.failures
    episodes = trajectories_of(copies[0], config.trajectories, config.game, numbers, config.seed, held_out=False)
    held_out = trajectories_of(copies[1], config.held_out, config.game, HELD_OUT, config.seed, held_out=True)
    room = context_within(config.model, config.prompts.context_tokens)
    prompts = game, config.prompts, config.model, tokenizer, room
    critic = dialogue_of(METHODS["lac"], *prompts)
    if config.method == "lac":
        lessons = Lessons(episodes, critic, critic, None, config.learn_actions)
    else:
        policy = dialogue_of(METHODS["react"], *prompts)
        lessons = Lessons(episodes, policy, critic, dataclasses.replace(config.offline, method=config.method))
    lessons.check()
    return lessons, held_out


COMMAND = app.Command(
    SCRIPT, FinetuneConfig, dry_run="count pairs, tokens and steps, then stop", several=True,
    may_change=("checkpoint_every", "iterations", "learning_rate", "micro_batch", "remat", "mesh"),
)  # fmt: skip


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    if config.trajectories:
        leave_out("with --trajectories, your own file", "successes", "failures")
    if config.method != "dense_policy_gradient":
        leave_out(f"with --method {config.method}", "step_reward")
    game = envs.make_host(config.game)
    files = () if flags.FLAGS.resume else (config.trajectories, config.held_out)  # a resumed run has its copies
    for file in filter(None, files):
        trajectories.read(pathlib.Path(os.path.expanduser(file)))
    context_within(config.model, config.prompts.context_tokens)
    tokenizer = load_tokenizer(config.model, templates=config.templates)
    if config.method in ("lac", "actor_critic"):
        check_words(tokenizer, (GOOD, BAD))
    if flags.FLAGS.dry_run:
        lessons, held_out = gather(config, game, tokenizer)
        print(describe(lessons, len(lessons.judged_by(held_out)[1]), tokenizer, config.iterations, config.batch))
        return
    run_dir, resume = COMMAND.open(config)
    lessons, held_out = gather(config, game, tokenizer, run_dir)
    judge, lines = lessons.judged_by(held_out)

    mesh = players.parse_mesh(config.mesh)
    base = local_models.local_model(
        config.model, config.dtype, config.lora, chat=False, mesh=mesh, templates=config.templates, cache_mb=CACHE_MB
    )
    examples = lessons.examples(tokenizer, config.rows == "episodes", base)
    network, optimizer = base.model, adapter_training.optimizer(config.learning_rate)
    update = adapter_training.update_on_examples(
        network, examples, optimizer, config.batch, config.seed, config.remat, config.micro_batch
    )

    def evaluate(state) -> dict[str, float]:
        model = base.with_variables({"params": state.params, "lora": state.lora})
        return offline.evaluate(model, judge, lines) if lines else {}

    def finish(state) -> None:
        huggingface.save(run_dir / "model", network.config, state.params, tokenizer, lora=state.lora)
        if processes.first():
            write_form(run_dir / "model", config.prompts, config.model, method=config.method)
        start = {f"eval/{name}": value for name, value in results.read(run_dir)["before"].items()}
        plots.learning_curve([run_dir], ["loss", *start], run_dir / "learning_curve.png", before=start)

    learned, tokens_read = count(examples)
    counts = {"examples": len(examples), "tokens_learned": learned, "tokens_read": tokens_read}
    state = adapter_training.start(network, base.variables["params"], optimizer, config.seed)
    columns, every = ("loss", "eval/accuracy"), config.eval_every
    plan = loop.Schedule(config.seed, config.iterations, config.checkpoint_every, columns, resume, every)
    finished = loop.learn(run_dir, SCRIPT, update, state, plan, evaluate, finish, seeds=[config.seed], counts=counts)
    print(f"the model: {run_dir / 'model'}; --methods {ACTS.get(config.method, 'react')} of nlrl-jax run_lac plays it")
    before, after = finished["before"], finished["after"]
    changes = (f"{name} {before[name]:.3f} -> {value:.3f}" for name, value in after.items())
    print(", ".join(changes) or "nothing was held out")


if __name__ == "__main__":
    COMMAND.run(main)
