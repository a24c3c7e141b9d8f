"""Agents that learn a text game on the device by MS-GRPO: one, or those of several seeds as one stack."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.algorithms.ms_grpo import init_state, make_update
from nlrl_jax.lm.programs import compiler_options
from nlrl_jax.run import limits, players, results
from nlrl_jax.run.ms_grpo.config import AgentConfig
from nlrl_jax.run.ms_grpo.training import SCRIPT, Training
from nlrl_jax.run.sizing import fit_micro_batch
from nlrl_jax.run.transcript import transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import TextGame
from nlrl_jax.updates import keep_finite, over_seeds, seed_mesh, spread, stack


def load_policy(config: AgentConfig, game: TextGame) -> tuple[LanguageAgentPolicy, Any]:
    """The agent's policy in a game, and its base weights. Errors: see `players.load`, `players.make_policy`."""
    mesh = players.parse_mesh(config.mesh)
    loaded = players.load(config.model, config.dtype, config.lora, mesh, config.revision, config.templates)
    prompt = players.prompt_for(config.model, config.prompt)
    return players.make_policy(game, loaded, config.sampling, prompt, mesh), loaded.params


class Agents(Training):
    """An agent, or the agents of several seeds as one stack, and the games that they are evaluated on.

    Args:
      name: of the game that is trained on. game: that game, for which `policy` is made.
      params: base weights of the policy's model.
      games: to evaluate on, by name; `name` is among them. eval_seed: which initial states.
      seeds: of a stack, trained by one program; None is the config's seed alone.
      vectorize, apart: of a stack: all seeds at once; spread over the devices.
    """

    def __init__(
        self,
        config: AgentConfig,
        name: str,
        game: TextGame,
        policy: LanguageAgentPolicy,
        params: Any,
        games: Mapping[str, TextGame],
        eval_seed: int,
        seeds: Sequence[int] | None = None,
        vectorize: bool = False,
        apart: bool = False,
    ):
        self.config, self.name, self.game, self.games, self.seeds = config, name, game, games, seeds
        self.policy, self.eval_seed, self.legend = policy, eval_seed, game.legend
        self.shows = f"eval/{name}" if seeds else "success" if game.success else "env_return"
        self.network, self.mesh = policy.model.config, policy.model.mesh
        self.place = jax.devices()[0] if apart else None

        # 1. The update, with as many replies at a time as fit.
        together = len(seeds) if seeds and vectorize else 1
        learning, sentence = fit_micro_batch(policy, game, config.learning, together)
        if sentence:
            print(sentence)
        update = make_update(policy, game, learning)

        # 2. The state before training, one for each seed.
        def initial(seed: int) -> Any:
            key = jax.random.fold_in(jax.random.key(seed), 0)
            return init_state(policy.model, params, config.learning, key)

        if seeds is None:
            self.state = initial(config.seed)
        else:
            mesh = seed_mesh(len(seeds)) if apart else None
            state = stack([initial(seed) for seed in seeds])
            self.state = spread(state, mesh) if apart else state
            update = keep_finite(over_seeds(update, vectorize, mesh))
        # The one XLA program: random key in, new parameters out.
        self.update = jax.jit(update, donate_argnums=0, compiler_options=compiler_options(policy.model))

        # 3. Greedy play on each of the games.
        greedy = policy.for_evaluation()
        prompt = players.prompt_for(config.model, config.prompt)
        limit = config.eval_episodes, config.eval_turns, config.eval_steps, eval_seed
        self.policies = {
            variant: LanguageAgentPolicy.for_game(played, greedy.model, greedy.tokenizer, greedy.sampling, prompt)
            for variant, played in games.items()
        }
        self.evaluators = {
            variant: players.evaluator(self.policies[variant], played, *limit) for variant, played in games.items()
        }

    def variables(self, state: Any, index: int = 0) -> dict[str, Any]:
        """See `Training.variables`: those of the agent at `index` of a stack, where agents are evaluated."""
        lora = state.lora if self.seeds is None else jax.tree.map(lambda leaf: leaf[index], state.lora)
        variables = {"params": state.params, "lora": lora}
        return variables if self.place is None else jax.device_put(variables, self.place, may_alias=False)

    def judge(self, variables: dict[str, Any], num_shown: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Greedy play: (one agent's metrics on its own game, or its environment reward on each; episodes as text)."""
        penalty = self.config.learning.invalid_action_reward
        episodes = {name: jax.device_get(play(variables)) for name, play in self.evaluators.items()}
        summaries = {name: players.summarize(played, self.games[name], penalty) for name, played in episodes.items()}
        rows = range(min(num_shown, self.config.eval_episodes))
        text = []
        if num_shown:
            text = transcripts(self.policies[self.name], self.games[self.name], episodes[self.name], rows)
        if self.seeds is None:
            return summaries[self.name], text
        return {name: summary["env_reward"] for name, summary in summaries.items()}, text

    def too_short(self) -> list[str]:
        """See `Training.too_short`."""
        config, learning, evaluated = self.config, self.config.learning, self.games[self.name]
        states, limit = limits.first_states(self.game, config.seed), (learning.max_turns, learning.max_steps)
        sentences = limits.too_short("training", self.game, states, "max_turns", *limit)
        states = limits.first_states(evaluated, self.eval_seed, config.eval_episodes)
        limit = config.eval_turns, config.eval_steps
        return sentences + limits.too_short("the evaluation", evaluated, states, "eval_turns", *limit)

    def evaluate(self, state: Any) -> dict[str, Any]:
        """{metric: number}, or of a stack {game: environment rewards [seeds]}."""
        if self.seeds is None:
            return self.judge(self.variables(state), 0)[0]
        rewards = [self.judge(self.variables(state, index), 0)[0] for index in range(len(self.seeds))]
        return {name: np.array([reward[name] for reward in rewards]) for name in self.games}


def finished(run_dir: pathlib.Path) -> dict[str, Any] | None:
    """What `train_agents` has left in a folder; None where it has not finished."""
    stored = results.read(run_dir) if (run_dir / results.RESULTS).exists() else {"after": {}}
    return stored if stored["after"] else None


def train_agents(agents: Agents, run_dir: pathlib.Path, resume: bool) -> dict[str, Any]:
    """Trains the agents of several seeds together, and evaluates them greedily as they learn.

    Returns:
      What `results.read` reads: environment reward "before" {game: number} and "after" {game: [seeds]}, "seconds" of
      training, and "transcripts" on the game that is trained on, those after with the best seed.
    """
    start, clock = agents.start(run_dir, resume, 3), time.monotonic()
    state = agents.train(run_dir, resume)
    seconds, after = time.monotonic() - clock, agents.evaluate(state)
    best = int(np.argmax(after[agents.name]))
    _, text = agents.judge(agents.variables(state, best), 3)
    results.write(
        run_dir, script=SCRIPT, before=start["before"], after=after, seeds=agents.seeds, seconds=seconds,
        transcripts={**start["transcripts"], "after": text},
    )  # fmt: skip
    return results.read(run_dir)
