"""From names on a command line to a game, a model and a policy; what every script shares."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from absl import app, flags
from jax.sharding import NamedSharding, PartitionSpec

import envs
from launch import config_flags
from nlrl_jax import rollout
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, TrainState
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.generate import Sampling
from nlrl_jax.lm.sharding import make_mesh, param_specs, shard
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.run.directory import open_run
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import LanguageModelError, TextGame
from nlrl_jax.weights import peft
from nlrl_jax.weights.checkpoint import Checkpoints
from nlrl_jax.weights.load import BUILT_IN, LoadedModel, load_model

NANO_TOKENS = 10  # a nano model's reply is one action tag


def run(main: Callable[[list[str]], Any], takes_names: bool = False) -> None:
    """`app.run` for people: a bad argument is one sentence, not a stack trace; compiled programs are kept on disk.

    Args:
      takes_names: the script reads arguments that are no options.
    """

    def wrapped(argv):
        if len(argv) > 1 and not takes_names:
            sys.exit(f"error: unexpected argument {argv[1]!r}; options are written --name=value or --name value")
        use_compilation_cache()
        keep_freed_memory()
        # Orbax tells every step of a save, jax every backend that is not there, httpx every request
        for name in ("absl", "jax", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            main(argv)
        except (ValueError, OSError, LanguageModelError) as error:
            if os.environ.get("NLRL_TRACEBACK"):
                raise
            sys.exit(f"error: {error}")

    app.run(wrapped)


def use_compilation_cache() -> None:
    """Keeps compiled programs in ~/.cache/nlrl_jax (or $JAX_COMPILATION_CACHE_DIR) between runs."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(cache, "nlrl_jax", "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def keep_freed_memory() -> None:
    """Lets glibc reuse freed memory instead of handing it back to the system between two calls of a program.

    A training step on a CPU otherwise faults in the same gigabyte anew every time. Elsewhere this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        arena_max, mmap_max, trim_threshold = -8, -4, -1  # names in malloc.h
        mallopt(arena_max, 1)
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def prompt_for(model: str, prompt: str) -> str:
    """The prompt form: "auto" is compact for the built-in models and the paper's for every other one."""
    return ("compact" if model in BUILT_IN else "paper") if prompt == "auto" else prompt


def make_game(name: str, prompt: str, **options: Any) -> TextGame:
    """See `envs.make`."""
    return envs.make(name, prompt=prompt, **options)


def map_split(game: str, split: str) -> dict[str, str]:
    """The option that keeps a game's held-out maps apart, for games that have such."""
    return {"maps": split} if game.startswith("frozen_lake") else {}


def make_policy(
    game: TextGame,
    loaded: LoadedModel,
    sampling: Sampling,
    prompt: str,
    mesh: jax.sharding.Mesh | None = None,
    num_templates: int = 1,
) -> LanguageAgentPolicy:
    """The language agent policy of a loaded model for a game."""
    model = Transformer(loaded.config, mesh=mesh)
    return LanguageAgentPolicy.for_game(game, model, loaded.tokenizer, sampling, prompt, num_templates=num_templates)


def load(name: str, dtype: str = "", lora: LoraConfig | None = None, mesh: jax.sharding.Mesh | None = None):
    """See `weights.load.load_model`; an empty dtype keeps the checkpoint's.

    Raises:
      ValueError: another dtype than float32 or bfloat16; otherwise see there.
    """
    config_flags.check_dtype(dtype)
    overrides = {} if lora is None else {"lora": lora}
    return load_model(name, dtype=dtype or None, param_dtype=dtype or None, mesh=mesh, **overrides)


def parse_mesh(text: str) -> jax.sharding.Mesh | None:
    """The mesh that "data,fsdp,tensor" sizes name; None for "".

    Raises:
      ValueError: not three numbers, or not as many devices as there are.
    """
    if not text:
        return None
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.strip().isdecimal() for size in sizes):
        raise ValueError(f"--mesh {text!r} is not three numbers data,fsdp,tensor such as 1,8,1")
    return make_mesh(*map(int, sizes))


def place(state: TrainState, model: Transformer, optimizer: optax.GradientTransformation) -> TrainState:
    """Puts a fresh state where the update leaves it, so that the update compiles once.

    On a mesh the adapter and the optimizer's moments are laid out like the weights they belong to.
    """
    if model.mesh is None:
        return jax.device_put(state, jax.devices()[0])
    whole = NamedSharding(model.mesh, PartitionSpec())
    lora = shard(state.lora, param_specs(model)["lora"], model.mesh)
    opt_state = optax.tree.map_params(
        optimizer,
        jax.device_put,
        state.opt_state,
        jax.tree.map(lambda leaf: leaf.sharding, lora),
        transform_non_params=lambda leaf: jax.device_put(leaf, whole),
    )
    rest = jax.device_put((state.iteration, state.explore), whole)
    return state.replace(lora=lora, opt_state=opt_state, iteration=rest[0], explore=rest[1])


def evaluator(
    policy: LanguageAgentPolicy, game: TextGame, num: int, max_turns: int, max_steps: int, seed: int
) -> Callable[[Any], rollout.Episodes]:
    """Greedy play from `num` fixed initial states: parameters -> episodes. Compiles once."""
    policy = policy.for_evaluation()

    @jax.jit
    def evaluate(variables):
        key = jax.random.key(seed)
        states = rollout.reset(game, key, num)
        return rollout.play(policy, game, variables, jax.random.fold_in(key, num), states, max_turns, max_steps)

    return evaluate


def summarize(episodes: rollout.Episodes, game: TextGame) -> dict[str, float]:
    """Mean and standard deviation of the game's own return, success, and how well replies were formed.

    env_reward is the paper's R: the game's return and -0.5 for each invalid action.
    """
    returns = np.asarray(episodes.turns.reward).sum(axis=0)
    active = np.asarray(episodes.turns.active)
    parsed = episodes.turns.turn.parsed
    invalid = np.where(active, np.asarray(parsed.num_invalid), 0).sum(axis=0)
    per_turn = lambda x: float(np.where(active, np.asarray(x), 0).sum() / max(active.sum(), 1))
    summary = {
        "episodes": len(returns),
        "env_return": float(returns.mean()),
        "env_return_std": float(returns.std()),
        "env_reward": float((returns + MSGRPOConfig().invalid_action_reward * invalid).mean()),
        "terminated": float(np.mean(episodes.terminated)),
        "turns": float(active.sum(axis=0).mean()),
        "invalid_actions": per_turn(parsed.num_invalid),
        "format_penalty": per_turn(parsed.format_penalty),
    }
    if game.success is not None:
        summary["success"] = float(np.mean(episodes.success))
    return summary


def define_run_flags() -> None:
    """The flags of every training script."""
    flags.DEFINE_string("run_dir", "", "folder for everything the run writes")
    flags.DEFINE_boolean("resume", False, "go on with the run in --run_dir from its last checkpoint")
    flags.DEFINE_boolean("overwrite", False, "delete the run in --run_dir first")


def take_run_dir(config: Any, may_change: Collection[str] = ()) -> pathlib.Path:
    """The folder that --run_dir names, checked, locked and holding the config (a dataclass).

    Raises:
      ValueError: no --run_dir, or one that cannot be used; see `open_run`.
    """
    given = flags.FLAGS
    if not given.run_dir:
        raise ValueError("say where the run's files go: --run_dir runs/NAME")
    asked = dataclasses.asdict(config)
    return open_run(given.run_dir, asked, given.resume, overwrite=given.overwrite, may_change=may_change)


class Player(NamedTuple):
    """A policy with its parameters and the game it plays."""

    name: str
    game: TextGame
    policy: LanguageAgentPolicy
    variables: Any


def define_player_flags() -> None:
    """The flags that `player` reads."""
    flags.DEFINE_string("run_dir", "", "a training run; its model with its latest checkpoint plays")
    flags.DEFINE_string("model", "nano", "without --run_dir: nano, nano_snake, smollm2, a local folder or .gguf file")
    flags.DEFINE_string("adapter", "", "without --run_dir: folder of a LoRA adapter in PEFT's format")
    flags.DEFINE_string("game", "", "game to play; the run's own, or frozen_lake")
    flags.DEFINE_string("prompt", "auto", "paper, compact, or auto: compact for nano, else paper")
    flags.DEFINE_integer("max_tokens", 0, f"tokens a reply at most; 0: the run's own, {NANO_TOKENS} for nano, or 200")
    flags.DEFINE_integer("max_turns", 20, "replies, and environment steps, an episode at most")
    flags.DEFINE_integer("seed", 0, "which initial states")


def player() -> Player:
    """The player that the flags name.

    Raises:
      FileNotFoundError, ValueError: there is no such run or model, or no such game.
    """
    given = flags.FLAGS
    if given.run_dir:
        return _trained_player(pathlib.Path(given.run_dir))
    prompt = prompt_for(given.model, given.prompt)
    game = make_game(given.game or "frozen_lake", prompt)
    loaded = load(given.model)
    config, variables = loaded.config, {"params": loaded.params}
    if given.adapter:
        config, variables["lora"] = peft.load(given.adapter, config)
    sampling = Sampling(given.max_tokens or (NANO_TOKENS if given.model in BUILT_IN else 200), temperature=0.0)
    return Player(given.model, game, make_policy(game, loaded._replace(config=config), sampling, prompt), variables)


def _trained_player(run_dir: pathlib.Path) -> Player:
    given, path = flags.FLAGS, run_dir / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} holds no run (no config.json)")
    run = json.loads(path.read_text())
    prompt = prompt_for(run["model"], run["prompt"])
    game = make_game(given.game or run["game"], prompt)
    loaded = load(run["model"], run["dtype"], LoraConfig(run["lora_rank"], run["lora_alpha"]))
    checkpoints = Checkpoints(run_dir / "checkpoints")
    if checkpoints.latest_step() is None:
        raise FileNotFoundError(f"{run_dir} holds no checkpoint yet")
    fresh = init_lora(Transformer(loaded.config), jax.random.key(0))
    step, lora = checkpoints.restore_part("lora", fresh)
    sampling = Sampling(given.max_tokens or run["max_tokens"], temperature=0.0)
    policy = make_policy(game, loaded, sampling, prompt)
    return Player(f"{run_dir} at iteration {step}", game, policy, {"params": loaded.params, "lora": lora})
