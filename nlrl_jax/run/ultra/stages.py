"""The stages of an ULTRA run on one base agent: train or copy it, analyse its episodes, refine it by every method.

Each stage is done once and leaves its result in the base agent's folder, from which a resumed run reads it.
"""

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
from nlrl_jax.config import check_seed
from nlrl_jax.roles.trajectories import Verdict
from nlrl_jax.rollouts import control
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.run import local_models, loop, results
from nlrl_jax.run.directory import part_of
from nlrl_jax.run.ultra.config import Refining, count
from nlrl_jax.types import ControlGame, LanguageModel
from nlrl_jax.updates import keep_finite
from nlrl_jax.weights.checkpoint import Checkpoints

SCRIPT = "reproduce_ultra"
MASK_SHARE = 0.2  # share of an episode's timeslots that are critical for MASK-R
HLC_WEIGHT = 0.1  # of HLC's hand-designed reward, relative to the game's
COLUMNS = ("env_return", "eval/greedy", "eval/sampled", "critical", "replaced", "value_loss")  # of refinement
SCORES = ("greedy", "sampled")  # by the most likely action (the mean of a continuous one), and as the policy samples


def key_of(seed: int, stage: int) -> jax.Array:
    """The random key of one stage of the base agent with this seed."""
    return jax.random.fold_in(jax.random.key(check_seed(seed)), stage)


class Arena:
    """A game in which a base agent and what becomes of it are judged and recorded.

    Args:
      base_ppo: hyperparameters of the base agent, which decide the networks of all agents.
      seed: the base agent's. steps: maximum steps of a recorded episode.
    """

    def __init__(self, game: ControlGame, base_ppo: PPOConfig, seed: int, steps: int):
        self.game, self.base_ppo, self.seed, self.steps = game, base_ppo, seed, steps
        self.agent = ppo.agent_of(game.env, game.params, base_ppo)
        self.player = functools.partial(control.ControlPlayer, game.env, game.params, self.agent)

        def returns(params, moments, key, episodes, greedy):
            def of_one_agent(params, moments):
                return control.evaluate(self.player(params, moments), key, episodes, greedy)[0]

            return jax.vmap(of_one_agent)(params, moments)

        self._evaluate = jax.jit(returns, static_argnums=(3, 4))

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update of PPO."""
        return self.base_ppo.num_envs * self.base_ppo.num_steps

    def fresh_agent(self) -> PPOState:
        """The base agent before its training."""
        key = key_of(self.seed, 0)
        return local_models.on_device(ppo.init_state(self.game.env, self.game.params, self.base_ppo, key))

    def scores(self, states: PPOState, episodes: int) -> dict[str, np.ndarray]:
        """Mean returns of a stack of agents in episodes with the same seeds: [n] for each of `SCORES`."""
        scores = {}
        for name in SCORES:
            key = key_of(self.seed, 1)
            returns = self._evaluate(states.params, states.obs_moments, key, episodes, name == "greedy")
            scores[name] = np.asarray(returns).mean(axis=1)
        return scores

    def record(self, agent: PPOState, stage: int, episodes: int, greedy: bool = False) -> Trajectories:
        """Episodes of an agent, from the starts of a stage."""

        def play(params, moments, key):
            return control.record(self.player(params, moments), key, episodes, self.steps, greedy)

        return jax.jit(play)(agent.params, agent.obs_moments, key_of(self.seed, stage))


def train_base(folder: pathlib.Path, arena: Arena, updates: int, checkpoint_every: int, resume: bool) -> PPOState:
    """The sub-optimal agent after so many updates of PPO."""
    state = _restored(folder, arena.fresh_agent(), resume)
    if int(state.iteration) >= updates:
        return state
    update = jax.jit(keep_finite(ppo.make_update(arena.game.env, arena.game.params, arena.base_ppo)))
    print(f"base agent: {count(updates, 'update')} of PPO", flush=True)
    columns = ("env_return", "env_steps", "entropy", "value_loss")
    plan = loop.Schedule(arena.seed, updates, checkpoint_every, columns, resume, rate="")
    return loop.train(folder, update, state, plan)


def copy_base(
    folder: pathlib.Path, fresh: PPOState, find: Callable[[], tuple[pathlib.Path, int]], resume: bool
) -> PPOState:
    """The agent of another run, copied once, because that run may change later.

    Args:
      fresh: an agent of its shape. find: says where it lies and its updates; see `base_agents.base_of`.
    """
    state = _restored(folder, fresh, resume)
    if not int(state.iteration):
        source, step = find()
        _, learned, _ = Checkpoints(source / "checkpoints").restore(fresh.learned(), step, part_of(source))
        state = fresh.replace(**learned)
        _save(folder, state)
    return state


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What an analyst finds in the episodes of a base agent.

    Attributes:
      model: the analyst's; None where the game has no prompts for one, and nothing is found.
      seed: the base agent's.
    """

    folder: pathlib.Path
    roles: Any
    model: LanguageModel | None
    seed: int

    def findings(self, name: str, trajectories: Trajectories, verdicts: list[list[Verdict]] | None = None) -> Findings:
        """The findings of `analyst.analyse` (see there), stored in a file."""
        if self.model is None:
            return Findings([], [], {})
        path = self.folder / f"{name}.json"
        if path.exists():
            return load(path)
        episodes = control.episodes_of(trajectories)
        findings = analyse(episodes, self.roles, self.model, self.seed, verdicts=verdicts, must_read=True)
        save(findings, path)
        return findings


def mask_verdicts(weight: Any, steps: Any) -> list[list[Verdict]]:
    """MASK-R's verdicts: the most important timeslots of each episode. weight: float [T, N]. steps: [N]."""
    chosen = np.asarray(state_mask.critical_share(weight, steps, MASK_SHARE)).T
    return [[Verdict(int(t), True, None, "", judged=False) for t in np.flatnonzero(row)] for row in chosen]


def importance(
    folder: pathlib.Path, arena: Arena, base: PPOState, observations: jax.Array, updates: int, resume: bool
) -> jax.Array:
    """How much the base agent's action matters, by its mask network: observations [..., D] -> float [...]."""
    network = state_mask.MaskNetwork(arena.game, arena.base_ppo, base)
    key_init, key_train = jax.random.split(key_of(arena.seed, 3))
    mask = _restored(folder, network.init(key_init), resume)
    if int(mask.iteration) < updates:
        print(f"mask network: {count(updates, 'update')}", flush=True)
        mask, blinded = network.train(mask, updates, key_train)
        print(f"it blinds {blinded:.2f} of the steps", flush=True)
        _save(folder, mask)
    return network.importance(mask, observations)


def share(
    analysis: Analysis,
    arena: Arena,
    base: PPOState,
    trajectories: Trajectories,
    methods: Sequence[str],
    refining: Refining,
    resume: bool,
) -> tuple[Shared, Findings]:
    """What all methods have in common, and the analyst's findings in the episodes of the base agent."""
    findings, game = analysis.findings("findings", trajectories), arena.game
    if game.roles:
        critical, timeslots = (findings.counts.get(f"identify/{kind}", 0) for kind in ("critical", "timeslots"))
        print(f"analyst: {critical} critical of {timeslots} timeslots", flush=True)
        if not findings.states:
            print("the analyst marked no state: ULTRA's methods will be plain PPO", flush=True)
    mean, scale = ultra.statistics(np.asarray(trajectories.obs), np.asarray(trajectories.steps))
    relative = arena.agent.continuous and refining.guidance.advice == "offset"
    mean_action = arena.agent.mean_action(base.params, base.obs_moments) if relative else None
    tabulate = functools.partial(ultra.make_table, game=game, mean=mean, scale=scale, mean_action=mean_action)
    weight = mask_table = None
    if set(methods) & set(refiners.MASKED):
        updates = refining.mask_iterations
        weight = importance(analysis.folder / "mask", arena, base, trajectories.obs, updates, resume)
    if "MASK-R" in methods:
        verdicts = mask_verdicts(weight, trajectories.steps)
        mask_table = tabulate(analysis.findings("mask_findings", trajectories, verdicts).states)
    learning, guidance = dataclasses.replace(arena.base_ppo, learning_rate=refining.learning_rate), refining.guidance
    table, rice_rate = tabulate(findings.states), refining.rice_learning_rate
    return Shared(
        game, learning, trajectories, table, mask_table, weight, guidance, HLC_WEIGHT, mean_action, rice_rate
    ), findings


def base_scores(folder: pathlib.Path, arena: Arena, base: PPOState, episodes: int) -> dict[str, np.ndarray]:
    """The base agent's scores, each [], read where `guided_scores` has stored them in a folder."""
    if is_scored(folder):
        return _scores_of(results.read(folder)["before"])
    alone = jax.tree.map(lambda leaf: leaf[None], {"params": base.params, "obs_moments": base.obs_moments})
    return {name: x[0] for name, x in arena.scores(base.replace(**alone), episodes).items()}


def guided_scores(
    folder: pathlib.Path, arena: Arena, base: PPOState, shared: Shared, start: Mapping[str, np.ndarray], episodes: int
) -> dict[str, np.ndarray]:
    """Scores of the base agent guided by the table before any learning, which reveal bad advice at once. Stored with
    `start`, the scores without the table."""
    if is_scored(folder):
        return scores_after(folder)
    step = None if shared.mean_action is None else shared.guidance.step

    def play(table: LookupTable, greedy: bool) -> jax.Array:
        def guide(obs, action):
            hit = ultra.look_up(table, arena.game, shared.guidance.radius, obs)
            return ultra.true_action(table, *hit, action, step)[0]

        player = arena.player(base.params, base.obs_moments)
        return control.evaluate(player, key_of(arena.seed, 1), episodes, greedy, guide)[0]

    play = jax.jit(play, static_argnums=1)
    after = {name: np.asarray(play(shared.table, name == "greedy")).mean() for name in SCORES}
    results.write(folder, script=SCRIPT, before=start, after=after)
    return after


def starts(name: str, shared: Shared, base: PPOState, seed: int, number: int) -> PPOState:
    """The states of so many seeds of refinement by a method, before they learn. seed: the base agent's."""
    keys = jax.random.split(key_of(seed, 4), number)
    return local_models.on_device(jax.vmap(lambda key: refiners.start(name, shared, base, key))(keys))


def refine(
    folder: pathlib.Path,
    arena: Arena,
    update: Callable,
    states: PPOState,
    start: Mapping[str, np.ndarray],
    schedule: loop.Schedule,
    refining: Refining,
) -> PPOState:
    """Refines all seeds as one program, and stores their scores.

    Args:
      folder: the method's. update: for one seed. states: of all seeds. start: the base agent's scores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    states = _restored(folder, states, schedule.resume)
    if int(states.iteration[0]) < schedule.iterations:
        number = count(len(schedule.seed), "seed")
        print(f"{folder.name}: {number} of {count(schedule.iterations, 'update')}", flush=True)

        def evaluate(done: int, states: PPOState) -> dict[str, Any]:
            due = done % refining.eval_every == 0 or done == schedule.iterations
            scores = arena.scores(states, refining.curve_episodes) if due else {}
            return {f"eval/{kind}": score for kind, score in scores.items()}

        states = loop.train(folder, jax.jit(keep_finite(jax.vmap(update))), states, schedule, evaluate)
    if not (schedule.resume and is_scored(folder)):
        after = arena.scores(states, refining.eval_episodes)
        results.write(folder, script=SCRIPT, before=start, after=after, seeds=schedule.seed)
    return states


def _restored(folder: pathlib.Path, fresh: PPOState, resume: bool) -> PPOState:
    return loop.restore(folder, fresh) if resume else fresh


def _save(folder: pathlib.Path, state: PPOState) -> None:
    """Stores a state where `loop.restore(folder)` reads it."""
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(int(state.iteration), state.learned(), {"run": part_of(folder)})


def is_scored(folder: pathlib.Path) -> bool:
    """Whether a folder holds scores: of a method that has finished, or of the guided base agent."""
    return (folder / results.RESULTS).is_file()


def scores_after(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """{score: [seeds]} of a method that has finished in its folder."""
    return _scores_of(results.read(folder)["after"])


def _scores_of(stored: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {kind: np.array(stored[kind]) for kind in SCORES}


def stored_scores(folders: Sequence[pathlib.Path]) -> dict[str, dict[str, np.ndarray]]:
    """{method: {score: [bases, seeds]}} of every method that has finished for all base agents, by their folders."""
    finished = [name for name in refiners.METHODS if all(is_scored(folder / name) for folder in folders)]
    each = {name: [scores_after(folder / name) for folder in folders] for name in finished}
    return {name: {kind: np.array([x[kind] for x in scores]) for kind in SCORES} for name, scores in each.items()}
