"""The stages of an ULTRA run on one base agent: train or copy it, analyse its episodes, refine it by every method."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.analyst import Findings, analyse, load, save
from nlrl_jax.algorithms.ppo import PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.algorithms.refiners import state_mask
from nlrl_jax.algorithms.refiners.methods import Shared
from nlrl_jax.algorithms.ultra import LookupTable
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import cached, metered
from nlrl_jax.config import check_seed
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.rollouts import control
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.run import local_models, loop, models, results
from nlrl_jax.run.directory import part_of
from nlrl_jax.run.ultra.base_agents import base_of
from nlrl_jax.run.ultra.config import RefinementConfig, count, folder_of, seeds_of
from nlrl_jax.types import ControlGame, LanguageModel
from nlrl_jax.updates import keep_finite
from nlrl_jax.weights.checkpoint import Checkpoints

SCRIPT = "reproduce_ultra"
MASK_SHARE = 0.2  # share of an episode's timeslots that are critical for MASK-R
HLC_WEIGHT = 0.1  # of HLC's hand-designed reward, relative to the game's
SCORES = ("greedy", "sampled")  # by the most likely action (the mean of a continuous one), and as the policy samples


class Run:
    """The stages of a run with one of its base agents, each done once and stored in `folder`.

    Args:
      base_ppo: hyperparameters of the base agent; refinement has another learning rate.
      run_dir: of the whole run. number: which of its base agents.
    """

    def __init__(
        self,
        config: RefinementConfig,
        game: ControlGame,
        base_ppo: PPOConfig,
        run_dir: pathlib.Path,
        resume: bool,
        number: int = 0,
    ):
        self.config, self.game, self.base_ppo, self.resume = config, game, base_ppo, resume
        self.run_dir, self.folder, self.number = run_dir, folder_of(run_dir, config, number), number
        self.seed, self.seeds = config.seed + number, seeds_of(config, number)
        self.methods = refiners.known(config.methods, game)
        self.ppo = dataclasses.replace(self.base_ppo, learning_rate=config.learning_rate)
        self.steps_per_update = self.ppo.num_envs * self.ppo.num_steps
        self._guided_results = self.folder / "guided" / results.RESULTS
        self.agent = ppo.agent_of(game.env, game.params, self.ppo)
        self._player = functools.partial(control.ControlPlayer, game.env, game.params, self.agent)

        def returns(params, moments, key, episodes, greedy):
            def of_one_agent(params, moments):
                return control.evaluate(self._player(params, moments), key, episodes, greedy)[0]

            return jax.vmap(of_one_agent)(params, moments)

        self._evaluate = jax.jit(returns, static_argnums=(3, 4))

    def key(self, number: int) -> jax.Array:
        """The random key of one stage."""
        return jax.random.fold_in(jax.random.key(check_seed(self.seed)), number)

    def scores(self, states: PPOState, episodes: int) -> dict[str, np.ndarray]:
        """Mean returns of a stack of agents in episodes with the same seeds: [n] for each of `SCORES`."""
        scores = {}
        for name in SCORES:
            returns = self._evaluate(states.params, states.obs_moments, self.key(1), episodes, name == "greedy")
            scores[name] = np.asarray(returns).mean(axis=1)
        return scores

    def start(self, base: PPOState) -> dict[str, np.ndarray]:
        """The base agent's scores, each []."""
        if self._guided_results.exists():
            return _scores_of(results.read(self._guided_results.parent)["before"])
        alone = jax.tree.map(lambda leaf: leaf[None], {"params": base.params, "obs_moments": base.obs_moments})
        return {name: x[0] for name, x in self.scores(base.replace(**alone), self.config.eval_episodes).items()}

    def fresh_agent(self) -> PPOState:
        """The base agent before its training."""
        return local_models.on_device(ppo.init_state(self.game.env, self.game.params, self.base_ppo, self.key(0)))

    def base(self) -> PPOState:
        """The sub-optimal agent: trained, or copied from another run once. Errors: see `base_agents.base_of`."""
        config, folder = self.config, self.folder / "base"
        state = loop.restore(folder, self.fresh_agent()) if self.resume else self.fresh_agent()
        if config.base:
            return state if int(state.iteration) else self._copied(folder, state)
        update = jax.jit(keep_finite(ppo.make_update(self.game.env, self.game.params, self.base_ppo)))
        if int(state.iteration) >= config.base_iterations:
            return state
        print(f"base agent: {count(config.base_iterations, 'update')} of PPO", flush=True)
        columns = ("env_return", "env_steps", "entropy", "value_loss")
        plan = loop.Schedule(self.seed, config.base_iterations, config.checkpoint_every, columns, self.resume, rate="")
        return loop.train(folder, update, state, plan)

    def _copied(self, folder: pathlib.Path, fresh: PPOState) -> PPOState:
        """The agent of `--base`, copied to this run's folder, because the other run may change later."""
        source, step = base_of(self.config.base, self.config.game, self.number, self.config.contact_forces)
        _, learned, _ = Checkpoints(source / "checkpoints").restore(fresh.learned(), step, part_of(source))
        state = fresh.replace(**learned)
        _save(folder, state)
        return state

    def record(self, agent: PPOState, key: jax.Array, episodes: int, greedy: bool = False) -> Trajectories:
        """Episodes of an agent."""
        steps = self.config.episode_steps

        def play(params, moments, key):
            return control.record(self._player(params, moments), key, episodes, steps, greedy)

        return jax.jit(play)(agent.params, agent.obs_moments, key)

    def analyst(self) -> LanguageModel | None:
        """The analyst's language model, its replies cached on disk and its calls counted; None where the game has no
        prompts for one. Errors: see `models.large_model`."""
        config, name, usage = self.config, self.config.analyst, Usage(self.run_dir)
        if self.game.roles is None:
            return None
        scripts, templates = self.game.scripts, config.templates
        model = models.large_model(name, scripts, self.run_dir, usage, config.endpoint, templates=templates)
        if name not in ("scripted", "endpoint"):  # rules cost nothing, and an endpoint has its own cache
            model = cached(model, DiskCache(self.run_dir / "cache"))
        return metered(model, usage)

    def findings(
        self,
        name: str,
        trajectories: Trajectories,
        analyst: LanguageModel | None,
        verdicts: list[list[Verdict]] | None = None,
    ) -> Findings:
        """The findings of `analyst` (see there) in the trajectories, stored in a file; none where it is None."""
        if self.game.roles is None or analyst is None:
            return Findings([], [], {})
        path = self.folder / f"{name}.json"
        if path.exists():
            return load(path)
        episodes = control.episodes_of(trajectories)
        findings = analyse(episodes, self.game.roles, analyst, self.seed, verdicts=verdicts, must_read=True)
        save(findings, path)
        return findings

    def mask_verdicts(self, weight: Any, steps: Any) -> list[list[Verdict]]:
        """MASK-R's verdicts: the most important timeslots of each episode. weight: float [T, N]. steps: [N]."""
        chosen = np.asarray(state_mask.critical_share(weight, steps, MASK_SHARE)).T
        return [[Verdict(int(t), True, None, "", judged=False) for t in np.flatnonzero(row)] for row in chosen]

    def shared(
        self, base: PPOState, trajectories: Trajectories, analyst: LanguageModel | None
    ) -> tuple[Shared, Findings]:
        """What all methods have in common, and the findings."""
        findings = self.findings("findings", trajectories, analyst)
        critical, timeslots = (findings.counts.get(f"identify/{kind}", 0) for kind in ("critical", "timeslots"))
        if self.game.roles:
            print(f"analyst: {critical} critical of {timeslots} timeslots", flush=True)
        if self.game.roles and not findings.states:
            print("the analyst marked no state: ULTRA's methods will be plain PPO", flush=True)
        mean, scale = ultra.statistics(np.asarray(trajectories.obs), np.asarray(trajectories.steps))
        relative = self.agent.continuous and self.config.guidance.advice == "offset"
        mean_action = self.agent.mean_action(base.params, base.obs_moments) if relative else None

        def table(findings: Findings) -> LookupTable:
            return ultra.make_table(findings.states, self.game, mean, scale, mean_action)

        weight = mask_table = None
        if set(self.methods) & set(refiners.MASKED):
            weight = self.importance(base)(trajectories.obs)
        if "MASK-R" in self.methods:
            verdicts = self.mask_verdicts(weight, trajectories.steps)
            mask_table = table(self.findings("mask_findings", trajectories, analyst, verdicts))
        config = self.config
        shared = Shared(
            self.game, self.ppo, trajectories, table(findings), mask_table, weight, config.guidance, HLC_WEIGHT
        )
        return dataclasses.replace(shared, mean_action=mean_action, rice_rate=config.rice_learning_rate), findings

    def guided(self, base: PPOState, shared: Shared, start: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Scores of the base agent guided by the table before any learning, which reveal bad advice at once.

        Args:
          start: its scores without the table, stored with them.
        """
        if self._guided_results.exists():
            return _scores_of(results.read(self._guided_results.parent)["after"])
        step = None if shared.mean_action is None else shared.guidance.step

        def play(table: LookupTable, greedy: bool) -> jax.Array:
            def guide(obs, action):
                hit = ultra.look_up(table, self.game, shared.guidance.radius, obs)
                return ultra.true_action(table, *hit, action, step)[0]

            player = self._player(base.params, base.obs_moments)
            return control.evaluate(player, self.key(1), self.config.eval_episodes, greedy, guide)[0]

        play = jax.jit(play, static_argnums=1)
        after = {name: np.asarray(play(shared.table, name == "greedy")).mean() for name in SCORES}
        results.write(self._guided_results.parent, script=SCRIPT, before=start, after=after)
        return after

    def before_learning(self) -> tuple[dict[str, float], dict[str, float]]:
        """(the base agent's scores alone, and guided by the table), as `guided` stored them."""
        stored = results.read(self._guided_results.parent)
        return stored["before"], stored["after"]

    def scored(self, name: str) -> dict[str, np.ndarray]:
        """{score: [seeds]} of a method that has finished."""
        return _scores_of(results.read(self.folder / name)["after"])

    def is_scored(self, name: str) -> bool:
        return (self.folder / name / results.RESULTS).is_file()

    def importance(self, base: PPOState) -> Callable[[jax.Array], jax.Array]:
        """How much the base agent's action matters, by the mask network: obs [..., D] -> float [...]."""
        config, folder = self.config, self.folder / "mask"
        network = state_mask.MaskNetwork(self.game, self.base_ppo, base)
        key_init, key_train = jax.random.split(self.key(3))
        mask = network.init(key_init)
        mask = loop.restore(folder, mask) if self.resume else mask
        if int(mask.iteration) < config.mask_iterations:
            print(f"mask network: {count(config.mask_iterations, 'update')}", flush=True)
            mask, blinded = network.train(mask, config.mask_iterations, key_train)
            print(f"it blinds {blinded:.2f} of the steps", flush=True)
            _save(folder, mask)
        return functools.partial(network.importance, mask)

    def refine(self, name: str, shared: Shared, base: PPOState, start: Mapping[str, np.ndarray]) -> PPOState:
        """Refines all seeds by a method as one program, and stores their scores. start: the base agent's."""
        config, folder = self.config, self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        keys = jax.random.split(self.key(4), config.seeds)
        states = local_models.on_device(jax.vmap(lambda key: refiners.start(name, shared, base, key))(keys))
        update = jax.jit(keep_finite(jax.vmap(refiners.update(name, shared))))
        states = loop.restore(folder, states) if self.resume else states
        if int(states.iteration[0]) < config.iterations:
            columns = ("env_return", "eval/greedy", "eval/sampled", "critical", "replaced", "value_loss")
            print(f"{name}: {count(config.seeds, 'seed')} of {count(config.iterations, 'update')}", flush=True)

            def evaluate(done: int, states: PPOState) -> dict[str, Any]:
                due = done % config.eval_every == 0 or done == config.iterations
                scores = self.scores(states, config.curve_episodes) if due else {}
                return {f"eval/{kind}": score for kind, score in scores.items()}

            plan = loop.Schedule(self.seeds, config.iterations, config.checkpoint_every, columns, self.resume, rate="")
            states = loop.train(folder, update, states, plan, evaluate)
        if not (self.resume and self.is_scored(name)):
            after = self.scores(states, config.eval_episodes)
            results.write(folder, script=SCRIPT, before=start, after=after, seeds=self.seeds)
        return states


def _save(folder: pathlib.Path, state: PPOState) -> None:
    """Stores a state where `loop.restore(folder)` reads it."""
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(int(state.iteration), state.learned(), {"run": part_of(folder)})


def _scores_of(stored: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {kind: np.array(stored[kind]) for kind in SCORES}


def stored_scores(runs: Sequence[Run]) -> dict[str, dict[str, np.ndarray]]:
    """{method: {score: [bases, seeds]}} of every method that has finished for all base agents of a run."""
    finished = [name for name in refiners.METHODS if all(run.is_scored(name) for run in runs)]
    return {name: _stacked([run.scored(name) for run in runs]) for name in finished}


def _stacked(each: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {kind: np.array([scores[kind] for scores in each]) for kind in SCORES}
