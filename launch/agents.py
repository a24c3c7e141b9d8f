"""Agents of one configuration under several seeds, trained together and evaluated on one or more games."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from launch import loop, setup, train_ms_grpo
from launch.train_ms_grpo import TrainConfig
from nlrl_jax.algorithms.finite import keep_finite
from nlrl_jax.algorithms.ms_grpo import init_state, make_update, optimizer
from nlrl_jax.algorithms.seeds import over_seeds, stack
from nlrl_jax.run.directory import write_atomically
from nlrl_jax.run.transcript import transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy


class Agents:
    """The agents of all seeds, with what is needed to train them and to evaluate them on the games `names`."""

    def __init__(self, config: TrainConfig, seeds: int, names: Iterable[str], eval_seed: int, vectorize: bool):
        self.config, self.seeds = config, list(range(seeds))
        game, _, self.policy, params, self.learning = train_ms_grpo.build(config)
        keys = [jax.random.fold_in(jax.random.key(seed), 0) for seed in self.seeds]
        place = lambda state: setup.place(state, self.policy.model, optimizer(self.learning))
        self.state = stack(
            [place(init_state(self.policy.model, params, self.learning, key, config.temperature)) for key in keys]
        )
        update = over_seeds(make_update(self.policy, game, self.learning), vectorize)
        self.update = jax.jit(keep_finite(update), donate_argnums=0)
        prompt = setup.prompt_for(config.model, config.prompt)
        self.games = {name: setup.make_game(name, prompt) for name in names}
        sampling, model, tokenizer = self.policy.for_evaluation().sampling, self.policy.model, self.policy.tokenizer
        self.policies = {
            name: LanguageAgentPolicy.for_game(g, model, tokenizer, sampling, prompt) for name, g in self.games.items()
        }
        turns = config.eval_turns
        self.players = {
            name: setup.evaluator(self.policies[name], g, config.eval_episodes, turns, turns, eval_seed)
            for name, g in self.games.items()
        }

    def variables(self, state, seed: int) -> dict[str, Any]:
        return {"params": state.params, "lora": jax.tree.map(lambda leaf: leaf[seed], state.lora)}

    def evaluate(self, state) -> dict[str, np.ndarray]:
        """Mean environment reward on every variant: {"eval/NAME": [seeds]}."""
        return {
            f"eval/{name}": np.array(
                [setup.summarize(play(self.variables(state, n)), self.games[name])["env_reward"] for n in self.seeds]
            )
            for name, play in self.players.items()
        }

    def untrained(self, state) -> dict[str, float]:
        """The same of the base model, which all seeds share."""
        return {
            name: setup.summarize(play({"params": state.params}), self.games[name])["env_reward"]
            for name, play in self.players.items()
        }

    def show(self, state, seed: int | None, name: str, rows: range) -> list[dict[str, Any]]:
        variables = {"params": state.params} if seed is None else self.variables(state, seed)
        return transcripts(self.policies[name], self.games[name], self.players[name](variables), rows)


def train_agents(
    config: TrainConfig,
    seeds: int,
    names: Sequence[str],
    eval_seed: int,
    vectorize: bool,
    run_dir: pathlib.Path,
    resume: bool,
) -> dict[str, Any]:
    """Trains agents in a folder and evaluates them greedily as they learn; finished ones are read from their folder.

    Args:
      names: games to evaluate on, `config.game` among them.
      eval_seed: which initial states.

    Returns:
      "seconds" of training; environment reward "initial" {game: number} and "final" {game: [seeds]}; episodes on
      `config.game`, "before" and "after" with the best seed.
    """
    done = run_dir / "results.json"
    if resume and done.exists():
        return json.loads(done.read_text())
    agents = Agents(config, seeds, names, eval_seed, vectorize)
    initial = agents.untrained(agents.state)
    state = loop.restore(run_dir, agents.state) if resume else agents.state

    def evaluate(iteration, state):
        now = (config.eval_every and iteration % config.eval_every == 0) or iteration == config.iterations
        return agents.evaluate(state) if now else {}

    clock = time.monotonic()
    state = loop.train(
        run_dir,
        agents.update,
        state,
        seed=agents.seeds,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        columns=("return", f"eval/{config.game}", "kl", "reply_tokens"),
        resume=resume,
        evaluate=evaluate,
    )
    final = agents.evaluate(state)
    best = int(np.argmax(final[f"eval/{config.game}"]))
    shown = range(min(3, config.eval_episodes))
    results = {
        "seconds": time.monotonic() - clock,
        "initial": initial,
        "final": {name: final[f"eval/{name}"].tolist() for name in names},
        "before": agents.show(state, None, config.game, shown),
        "after": agents.show(state, best, config.game, shown),
    }
    write_atomically(done, json.dumps(results))
    return results
