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
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import optax
from absl import flags

from nlrl_jax import envs
from nlrl_jax.algorithms import offline, sft
from nlrl_jax.algorithms.offline import OfflineConfig, Trajectory
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.algorithms.sft import Example
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.config import DTYPES, check, option, part
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import BAD, GOOD, Dialogue, verdict
from nlrl_jax.roles.lines import TrainingLine
from nlrl_jax.roles.lines import pairs as pairs_of
from nlrl_jax.run import adapter_training, app, loop, models, players, plots, processes, results, trajectories
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.prompts import PromptConfig, check_words, context_within, dialogue_of, write_form
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.types import LanguageModel
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import load_tokenizer

SCRIPT = "finetune_lac"
ACTS = {"lac": "lac", "decision_transformer": "react_return"}  # the method of run_lac that plays it, else react
HELD_OUT = (12, 6)  # successes and failures
_CACHE_MB = 256  # for evaluations


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

    @property
    def weights(self) -> OfflineConfig:
        """How a policy's actions are weighted."""
        return dataclasses.replace(self.offline, method=self.method)


class Data(NamedTuple):
    """The examples to learn from, and those held out: lines of other episodes with their dialogue."""

    trajectories: list[Trajectory]
    dialogue: Dialogue
    critic: Dialogue
    held_out: list[TrainingLine]
    held_out_dialogue: Dialogue


def gather(config: FinetuneConfig, tokenizer: Tokenizer, run_dir: pathlib.Path | None = None) -> Data:
    """Trajectories and prompts. What was made or read once is kept in `run_dir` and read there from then on.

    Raises:
      ValueError: a file that is not of the format, or has no reflections where these are learned; an unknown game.
    """
    game = envs.make_host(config.game)
    learned = _stored(config, run_dir, "trajectories", (config.successes, config.failures))
    others = _stored(config, run_dir, "held_out", HELD_OUT)
    notes = [step.note for one in learned for step in one.history.steps]
    if config.method == "lac" and not any(verdict(note) in (GOOD, BAD) for note in notes):
        raise ValueError(
            f"none of {len(learned)} trajectories has a reflection that ends GOOD or BAD, which --method lac learns; "
            f"add them, or choose a --method that learns actions: {', '.join(offline.METHODS)}"
        )
    room = context_within(config.model, config.prompts.context_tokens)
    of = lambda name: dialogue_of(METHODS[name], game, config.prompts, config.model, tokenizer, room)
    critic = of("lac")
    if config.method == "lac":
        lines = [line for one in others for line in offline.lac_lines(one.history, config.learn_actions)]
        return Data(learned, critic, critic, lines, critic)
    policy = of("react")
    lines = [line for one in others if one.success for line in offline.actions(one.history)]
    return Data(learned, policy, critic, lines, offline.acting(config.weights, policy))


def _stored(config: FinetuneConfig, run_dir: pathlib.Path | None, name: str, made: tuple[int, int]) -> list[Trajectory]:
    given, path = getattr(config, name), run_dir / f"{name}.jsonl" if run_dir else None
    if path and path.is_file():
        return trajectories.read(path)
    if given:
        found = trajectories.read(pathlib.Path(os.path.expanduser(given)))
    elif config.game in envs.DEMONSTRATED:
        episodes = envs.demonstrations(config.game, *made, config.seed, name == "held_out")
        found = [Trajectory(one.history, one.success) for one in episodes]
    else:
        return []
    if path and processes.first():
        trajectories.write(path, found)
    return found


def examples_of(
    config: FinetuneConfig, data: Data, tokenizer: Tokenizer, model: LanguageModel | None = None
) -> list[Example]:
    """What a step learns from, as tokens.

    Args:
      model: of the actor-critic's Q; without one its actions are weighted by 1.

    Raises:
      ValueError: see `offline.pairs`; the tokenizer splits a transcript differently from its lines.
    """
    joined = config.rows == "episodes"
    if config.method == "lac":
        lines = [line for one in data.trajectories for line in offline.lac_lines(one.history, config.learn_actions)]
        pairs = pairs_of(data.dialogue, lines, joined)
    else:
        weights = config.weights
        if model is None and config.method == "actor_critic":
            weights = OfflineConfig()
        pairs = offline.pairs(weights, data.dialogue, data.trajectories, model, data.critic, joined)
    examples = sft.tokenize(tokenizer, pairs)
    chat, pieces = pairs[0]
    whole = tokenizer.render_chat(chat.messages) + tokenizer.as_content("".join(piece.text for piece in pieces))
    if joined and examples[0].tokens != tokenizer.encode(whole):
        raise ValueError(
            f"{config.model}'s tokenizer splits a transcript differently from its lines; choose --rows pairs"
        )
    return examples


def count(examples: Sequence[Example]) -> tuple[int, int]:
    """(tokens learned, tokens read) in one pass."""
    learned = sum(weight != 0 for one in examples for weight in one.weights)
    return learned, sum(len(one.tokens) for one in examples)


def describe(config: FinetuneConfig, data: Data, tokenizer: Tokenizer) -> str:
    """What a run would learn, in words: trajectories, pairs, tokens and steps."""
    steps = sum(len(one.history.steps) for one in data.trajectories)
    number, won = len(data.trajectories), sum(one.success for one in data.trajectories)
    lines = [f"{number} trajectories ({won} successes) of {steps} steps; held out: {len(data.held_out)} lines"]
    for rows in ("pairs", "episodes"):
        try:
            examples = examples_of(dataclasses.replace(config, rows=rows), data, tokenizer)
        except ValueError as error:
            lines.append(f"--rows {rows}: {error}")
            continue
        (learned, read), longest = count(examples), max(len(one.tokens) for one in examples)
        lines.append(
            f"--rows {rows}: {len(examples)} examples, the longest of {longest} tokens; one "
            f"pass learns {learned:,} tokens and reads {read:,}, {read / learned:.1f} for each; {config.iterations:,} "
            f"steps of {config.batch} are {config.iterations * config.batch / len(examples):.1f} passes"
        )
    return "\n".join(lines)


def finetune(config: FinetuneConfig, run_dir: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Fine-tunes in a folder that is this run's, and writes its results. Returns those; see `results.write`.

    Raises:
      ValueError: see `gather`, `examples_of`, `loop.train`.
    """
    mesh = players.parse_mesh(config.mesh)
    base = models.local_model(
        config.model, config.dtype, config.lora, chat=False, mesh=mesh, templates=config.templates
    )
    tokenizer, network = base.tokenizer, base.model
    data = gather(config, tokenizer, run_dir)
    examples = examples_of(config, data, tokenizer, dataclasses.replace(base, cache_mb=_CACHE_MB))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(config.learning_rate, weight_decay=0.0))
    state = adapter_training.start(network, base.variables["params"], optimizer, config.seed)

    def evaluate(state) -> dict[str, float]:
        if not data.held_out:
            return {}
        model = LocalModel(network, {"params": state.params, "lora": state.lora}, tokenizer, cache_mb=_CACHE_MB)
        return offline.evaluate(model, data.held_out_dialogue, data.held_out)

    if resume and (run_dir / results.RESULTS).is_file():
        before = results.read(run_dir)["before"]
    else:
        print("evaluating before training ...", flush=True)
        before = evaluate(state)
        results.write(run_dir, script=SCRIPT, before=before, after={}, seeds=[config.seed])
    state = loop.restore(run_dir, state) if resume else state
    loss = functools.partial(sft.sft_loss, network.clone(remat=config.remat))
    step = jax.jit(adapter_training.make_update(network, loss, optimizer, config.micro_batch), donate_argnums=0)
    batch = adapter_training.batches(examples, config.batch, config.seed)

    def evaluated(done: int, state) -> dict[str, float]:
        due = done % config.eval_every == 0 or done == config.iterations
        return {f"eval/{name}": value for name, value in evaluate(state).items()} if due else {}

    def finish(state: adapter_training.State) -> None:
        write_model(config, run_dir / "model", base, state)
        rows = [row for row in read_rows(run_dir) if any(name.startswith("eval/") for name in row)]
        last = rows[-1] if rows else {}
        after = {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}
        learned, read = count(examples)
        counts = {"examples": len(examples), "tokens_learned": learned, "tokens_read": read}
        results.write(run_dir, script=SCRIPT, before=before, after=after, seeds=[config.seed], counts=counts)
        start = {f"eval/{name}": value for name, value in before.items()}
        plots.learning_curve([run_dir], ["loss", *start], run_dir / "learning_curve.png", config.method, before=start)

    loop.train(
        run_dir,
        lambda state, key: step(state, batch(int(state.iteration))),
        state,
        loop.Plan(
            seed=config.seed,
            iterations=config.iterations,
            checkpoint_every=config.checkpoint_every,
            columns=("loss", "eval/accuracy"),
            resume=resume,
        ),
        evaluate=evaluated,
        finish=finish,
    )
    return results.read(run_dir)


def write_model(config: FinetuneConfig, folder: pathlib.Path, base: LocalModel, state: adapter_training.State) -> None:
    """The model as a Hugging Face folder, with the prompts it has learned."""
    huggingface.save(folder, base.model.config, state.params, base.tokenizer, lora=state.lora)
    if processes.first():
        write_form(folder, config.prompts, config.model, method=config.method)


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
    envs.make_host(config.game)
    given = () if flags.FLAGS.resume else (config.trajectories, config.held_out)  # a resumed run has its copies
    for file in filter(None, given):
        trajectories.read(pathlib.Path(os.path.expanduser(file)))
    context_within(config.model, config.prompts.context_tokens)
    tokenizer = load_tokenizer(config.model, templates=config.templates)
    if config.method in ("lac", "actor_critic"):
        check_words(tokenizer, (GOOD, BAD))
    if flags.FLAGS.dry_run:
        print(describe(config, gather(config, tokenizer), tokenizer))
        return
    run_dir, resume = COMMAND.open(config)
    finished = finetune(config, run_dir, resume)
    print(f"the model: {run_dir / 'model'}; --methods {ACTS.get(config.method, 'react')} of nlrl-jax run_lac plays it")
    before, after = finished["before"], finished["after"]
    changes = (f"{name} {before[name]:.3f} -> {value:.3f}" for name, value in after.items())
    print(", ".join(changes) or "nothing was held out")


if __name__ == "__main__":
    COMMAND.run(main)
