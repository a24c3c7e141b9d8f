"""Teaches a model the reply format of a game by SFT, before reinforcement learning.

    nlrl-jax warm_start --model smollm2 --game frozen_lake --run_dir runs/format
    nlrl-jax train_ms_grpo --model runs/format/model --game frozen_lake --run_dir runs/smollm2

A small model that never writes the action tag earns the same return in every episode of a group, so MS-GRPO has
nothing to select. By default the demonstrations come from walkers that ignore obstacles (`--skilled_share 0`): they
show the format, not the game. If some walkers are skilled and the others follow a fixed habit (`--skilled_share 0.4
--habit`), the model's actions depend on the board and vary in quality, which gives reinforcement learning something to
select. Every batch is new. A LoRA adapter (`--lora_rank`, `--lora_alpha`) learns, with `--checkpoint_every` steps
between checkpoints, and is merged into the Hugging Face folder RUN_DIR/model, an ordinary model; `--revision` names a
branch, tag or commit of a Hub id.

In games of the host, your own too, what is shown are transcripts: whole episodes on tasks that training may show, at
most 256 and of at most 30 steps each, whose actions are drawn by chance from the game's list or `commands`; in a share
of them (`--skilled_share`) they are those of the game's expert.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from nlrl_jax import envs
from nlrl_jax.algorithms import offline, sft
from nlrl_jax.algorithms.demonstrations import demonstration_loss, demonstrations
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.config import DTYPES, check, flat, option, part, seed_option
from nlrl_jax.files import write_json
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.roles.lines import pairs
from nlrl_jax.rollouts.transcripts import TranscriptPlayer, play
from nlrl_jax.run import adapter_training, app, loop, players, processes
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of, write_form
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.host_games.threads import rows_at_once
from nlrl_jax.run.ms_grpo.transcripts import limited
from nlrl_jax.run.ms_grpo.walked import EPISODES, walk
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import HostGame, Sampling, TextGame
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import LoadedModel

DONE = "warm_start.json"  # written last, beside the weights
CHECKED = 16  # replies read afterwards


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Everything that determines what a warm start computes."""

    model: str = option("smollm2", players.MODELS)
    templates: TemplateOptions = part(TemplateOptions())
    revision: str = option("", "branch, tag or commit of a Hub id")
    game: str = option("frozen_lake", f"{', '.join(envs.GAMES)}, or your own as my_module:text_game or host_game")
    prompt: str = option("auto", "paper, compact, or auto: compact for nano, else paper")
    iterations: int = option(60, "gradient steps", least=1)
    batch: int = option(8, "demonstrations per step", least=1)
    learning_rate: float = option(
        1e-3, "AdamW's peak learning rate; it warms up over a tenth of the steps, then falls to zero", above=0
    )
    skilled_share: float = option(
        0.0, "share of demonstrations by walkers that avoid holes and bodies", least=0, most=1
    )
    habit: bool = option(False, "the unskilled walkers go down first, then right (Snake: down, right, up, left)")
    max_tokens: int = option(200, "reply length that the prompt names", least=1)
    lora: LoraConfig = part(LoraConfig(), names={"rank": "lora_rank", "alpha": "lora_alpha"})
    micro_batch: int = option(0, "demonstrations differentiated at a time (less memory, same result); 0: all", least=0)
    remat: bool = option(False, "recompute blocks in the backward pass: less memory, same result")
    mesh: str = option("", players.MESH)
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    seed: int = seed_option("everything random follows from it")
    checkpoint_every: int = option(20, "steps between checkpoints", least=1)

    def __post_init__(self):
        check(self)


COMMAND = app.Command(
    "warm_start",
    WarmStartConfig,
    several=True,
    may_change=("checkpoint_every", "learning_rate", "micro_batch", "remat", "mesh"),
)


class Setup(NamedTuple):
    """The game of the demonstrations, the model, its policy, and the form of its prompts."""

    game: TextGame
    loaded: LoadedModel
    policy: LanguageAgentPolicy
    prompt: str


class HostSetup(NamedTuple):
    """A game that the host plays, the model, and what it learns: the actions in transcripts of walkers."""

    game: HostGame
    loaded: LoadedModel
    network: Transformer
    dialogue: Dialogue
    examples: list[sft.Example]


def build(config: WarmStartConfig) -> Setup | HostSetup:
    """Loads what a warm start needs, before anything is written.

    Raises:
      ValueError: --skilled_share or --habit for a game that has no such walkers; see `envs.make`, `players.load`,
        `players.make_policy`.
    """
    if envs.context_of(config.game) == "transcript":
        return _on_the_host(config)
    from nlrl_jax.envs.walkers import HABITS, WALKS  # Gymnax looks for devices as it is imported

    prompt = players.prompt_for(config.model, config.prompt)
    maps = {"maps": "train"} if config.game in envs.WITH_MAPS else {}
    game = envs.make(config.game, prompt, **maps)
    for name, have in (("skilled_share", WALKS), ("habit", HABITS)):
        if getattr(config, name) and game.name not in have:
            raise ValueError(f"--{name} does nothing for {game.name}, only for {', '.join(have)}; leave it out")
    if config.habit and config.skilled_share == 1:
        raise ValueError("--habit does nothing with --skilled_share 1, which leaves no other walkers; lower it")
    mesh = players.parse_mesh(config.mesh)
    loaded = players.load(config.model, config.dtype, config.lora, mesh, config.revision, config.templates)
    policy = players.make_policy(game, loaded, Sampling(config.max_tokens, temperature=1.0), prompt, mesh)
    return Setup(game, loaded, policy, prompt)


def _on_the_host(config: WarmStartConfig) -> HostSetup:
    if config.habit:
        raise ValueError(f"--habit does nothing for {config.game}; leave it out")
    game, mesh = envs.make_host(config.game), players.parse_mesh(config.mesh)
    number = max(config.batch, min(EPISODES, config.iterations * config.batch))
    episodes = walk(game, number, config.skilled_share, config.seed)
    loaded = players.load(config.model, config.dtype, config.lora, mesh, config.revision, config.templates)
    network, tokenizer = Transformer(loaded.config, mesh=mesh), loaded.tokenizer
    prompts, room = PromptConfig(prompt=config.prompt), loaded.config.max_positions
    dialogue = dialogue_of(METHODS["react"], game, prompts, config.model, tokenizer, room)
    lines = [line for history in episodes for line in offline.actions(history)]
    return HostSetup(game, loaded, network, dialogue, sft.tokenize(tokenizer, pairs(dialogue, lines, joined=True)))


def _lesson(config: WarmStartConfig, setup: Setup | HostSetup, optimizer) -> tuple[Transformer, Callable]:
    """(the network, its update) of a text game's new demonstrations, or of passes over transcripts."""
    if isinstance(setup, HostSetup):
        batch = adapter_training.batches(setup.examples, config.batch, config.seed)
        loss = functools.partial(sft.sft_loss, setup.network.clone(remat=config.remat))
        update = adapter_training.make_update(setup.network, loss, optimizer, config.micro_batch)
        step = jax.jit(update, donate_argnums=0)
        return setup.network, lambda state, key: step(state, batch(int(state.iteration)))
    from nlrl_jax.envs.walkers import demonstrate, reply_template

    game, _, policy, prompt = setup
    walkers = lambda key: demonstrate(game, key, config.batch, config.skilled_share, config.habit)
    show, loss = demonstrations(policy, reply_template(game, prompt), walkers), demonstration_loss(policy, config.remat)
    update = adapter_training.make_update(policy.model, loss, optimizer, config.micro_batch, show)
    return policy.model, jax.jit(update, donate_argnums=0)


def _replies(config: WarmStartConfig, setup: Setup | HostSetup, variables: Any) -> list[tuple[str, bool]]:
    """Greedy replies in first turns, and whether each holds valid actions only."""
    if isinstance(setup, Setup):
        game, loaded, policy, _ = setup
        greedy = players.evaluator(policy, game, CHECKED, 1, game.max_actions_per_turn, seed=2**31 - 1)
        return players.replies_of(jax.device_get(greedy(variables)), loaded.tokenizer)
    game, loaded, network, dialogue, _ = setup
    writer = LocalModel(network, variables, loaded.tokenizer, rows_at_once(config.model))
    player = TranscriptPlayer(
        writer, dialogue, Sampling(config.max_tokens, temperature=0.0), loaded.config.max_positions
    )
    kinds = game.kinds[:CHECKED]
    played = play(player, limited(game, 1), tasks_of(game, kinds, CHECKED // len(kinds), config.seed), 0, pictured=0)
    return [(one.turns[0].action, not one.turns[0].invalid) for one in played]


def train(config: WarmStartConfig, run_dir: pathlib.Path, resume: bool, setup: Setup | None = None) -> pathlib.Path:
    """Trains in an opened run folder, unless the model in it is finished. Returns the model's folder.

    Raises:
      ValueError: see `build`, which makes a `setup` where none is given.
    """
    model = run_dir / "model"
    if resume and (model / DONE).exists():
        return model
    setup = setup or build(config)
    loaded = setup.loaded
    warm_up = max(config.iterations // 10, 1)
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, warm_up, config.iterations + 1)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.0))
    network, update = _lesson(config, setup, optimizer)
    state = adapter_training.start(network, loaded.params, optimizer, config.seed)
    if resume:
        state = loop.restore(run_dir, state)

    def save(state):
        huggingface.save(model, loaded.config, state.params, loaded.tokenizer, lora=state.lora)
        if isinstance(setup, HostSetup) and processes.first():
            write_form(model, PromptConfig(prompt=config.prompt), config.model)

    columns = ("loss", "perplexity")
    state = loop.train(
        run_dir,
        update,
        state,
        loop.Plan(config.seed, config.iterations, config.checkpoint_every, columns, resume),
        finish=save,
    )
    print(readable(_replies(config, setup, {"params": state.params, "lora": state.lora})), flush=True)
    if processes.first():
        write_json(model / DONE, flat(config), indent=2)
    processes.wait()
    return model


def readable(replies: list[tuple[str, bool]]) -> str:
    """A line about replies, each given with whether it holds valid actions only; a warning if most do not."""
    bad = [text for text, good in replies if not good]
    line = f"readable replies after the warm start: {len(replies) - len(bad)} of {len(replies)} (greedy, first turns)"
    if 2 * len(bad) <= len(replies):
        return line
    return (
        f"{line}\nwarning: most replies cannot be read, such as {bad[0]!r}, so reinforcement learning would have "
        "nothing to select. Raise --iterations, --batch or --max_tokens"
    )


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    setup = build(config)
    run_dir, resume = COMMAND.open(config)
    print(f"the model with the format learned: {train(config, run_dir, resume, setup)}")


if __name__ == "__main__":
    COMMAND.run(main)
