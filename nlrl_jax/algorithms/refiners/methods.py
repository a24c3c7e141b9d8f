"""ULTRA's variants and the refiners it is compared with, by name: what each adds to plain PPO.

A method is an update and the `aux` it starts with. The base agent, its episodes, the analyst's findings and the mask
network are made once and shared by all methods and seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.ppo import Hooks, PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import human_designed, lir, rice, rnd, state_mask
from nlrl_jax.algorithms.ultra import GuidanceConfig, LookupTable, MeanAction
from nlrl_jax.config import listed
from nlrl_jax.rollouts.control import Trajectories
from nlrl_jax.types import ControlGame

TABLE_1 = ("PPO", "RICE", "LIR", "HLC", "ULTRA-A", "ULTRA-R", "ULTRA-RA")
TABLE_2 = ("RICE", "MASK-R", "LLM-RND", "ULTRA-R")
METHODS = tuple(dict.fromkeys(TABLE_1 + TABLE_2))
BASELINES = ("PPO", "RICE", "LIR", "HLC")  # whose mean the paper compares ULTRA-RA with
MASKED = ("RICE", "MASK-R")  # need the mask network


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """What the methods of one run have in common.

    Attributes:
      game, ppo: the game, and the hyperparameters of refinement.
      trajectories: episodes of the base agent.
      table: the analyst's critical states. mask_table: its rewards in the states that the mask network chose.
      importance: float [T, N], of the states of the trajectories by the mask network. Both are None where no method
        needs them.
      guidance: of ULTRA-RA; the other variants switch off a part of it.
      hlc: weight of the hand-designed reward.
      mean_action: of the base agent, where the tables are relative (`ultra.make_table`), else None.
      rice_rate: learning rate of RICE's refinement; None is that of the others.
    """

    game: ControlGame
    ppo: PPOConfig
    trajectories: Trajectories
    table: LookupTable
    mask_table: LookupTable | None
    importance: jax.Array | None
    guidance: GuidanceConfig
    hlc: float
    mean_action: MeanAction | None = None
    rice_rate: float | None = None

    def ppo_of(self, name: str) -> PPOConfig:
        """The hyperparameters of one method."""
        is_other = name == "RICE" and self.rice_rate is not None
        return dataclasses.replace(self.ppo, learning_rate=self.rice_rate) if is_other else self.ppo


def known(names: str, game: ControlGame) -> list[str]:
    """The methods in a comma-separated list; "all" leaves out HLC where the game has no hand-designed reward, and those
    that ask an analyst where it has no prompts for one.

    Raises:
      ValueError: an unknown method, one that stands there twice, or one that the game has no hand-designed reward or no
        prompts for.
    """
    able = METHODS if game.roles else BASELINES
    if names == "all":
        return [name for name in able if name != "HLC" or game.human_reward]
    chosen = listed("methods", names) if names else [""]
    wrong = [name for name in chosen if name not in METHODS]
    if wrong:
        raise ValueError(f"method {wrong[0]!r} is not known; choose among {', '.join(METHODS)}, or all")
    if asking := [name for name in chosen if name not in able]:
        raise ValueError(
            f"{asking[0]} asks an analyst, but {game.name} has no prompts for one (ControlGame.roles); choose among "
            f"{', '.join(able)}"
        )
    if "HLC" in chosen and not game.human_reward:
        raise ValueError(f"HLC needs a hand-designed reward; the paper has one for Pong and Ant, not for {game.name}")
    return chosen


def refine_from(env: Any, env_params: Any, config: PPOConfig, base: PPOState, key: jax.Array) -> PPOState:
    """A state with the networks and statistics of `base`, a fresh optimizer and new games.

    Raises:
      ValueError: `base` was made for other observations or actions, or with other networks.
    """
    state = ppo.init_state(env, env_params, config, key)

    def shapes(tree):
        return [(jax.tree_util.keystr(path), leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]

    # By path and shape, so that the error can name the first array that does not fit.
    expected, actual = shapes((state.params, state.obs_moments)), shapes((base.params, base.obs_moments))
    if expected != actual:
        wrong = next((pair for pair in zip(actual, expected) if pair[0] != pair[1]), (actual[-1], expected[-1]))
        raise ValueError(
            f"the base agent does not fit this game: it has {wrong[0]}, the game and config want {wrong[1]}"
        )
    # Weights and statistics go on; the optimizer, the games and the time begin anew.
    return state.replace(params=base.params, obs_moments=base.obs_moments, return_moments=base.return_moments)


def start(name: str, shared: Shared, base: PPOState, key: jax.Array) -> PPOState:
    """A seed's state at the start of refinement by a method."""
    game, config = shared.game, shared.ppo_of(name)
    key_state, key_aux = jax.random.split(key)
    state = refine_from(game.env, game.params, config, base, key_state)
    aux = None
    if name.startswith("ULTRA"):
        aux = shared.table
    elif name == "MASK-R":
        aux = shared.mask_table
    elif name == "LLM-RND":
        aux = rnd.init(key_aux, state.obs.shape[1:])
    elif name == "RICE":
        # RICE restarts from the most important step of each recorded episode.
        timestep = state_mask.critical_steps(shared.importance, shared.trajectories.steps)
        aux = rice.init(key_aux, *rice.starts_of(shared.trajectories, timestep))
    elif name == "LIR":
        aux = lir.init(key_aux, game.env, game.params, config, state, lir.LIRConfig())
    return state.replace(aux=aux)


def update(name: str, shared: Shared) -> Callable[[PPOState, jax.Array], tuple[PPOState, dict[str, jax.Array]]]:
    """The pure update of a method, for one seed."""
    game, config = shared.game, shared.ppo_of(name)
    if name == "LIR":
        return lir.make_update(game.env, game.params, config, lir.LIRConfig())
    return ppo.make_update(game.env, game.params, config, _hooks(name, shared))


def _hooks(name: str, shared: Shared) -> Hooks:
    game = shared.game

    def guided(**parts):
        return ultra.guidance(game, dataclasses.replace(shared.guidance, **parts), shared.mean_action)

    def critical(obs):
        return ultra.look_up(shared.table, game, shared.guidance.radius, obs)[0]

    makers: dict[str, Callable[[], Hooks]] = {
        "PPO": Hooks,
        "RICE": rice.hooks,
        "HLC": lambda: human_designed.hooks(game.human_reward, shared.hlc),
        "ULTRA-A": lambda: guided(rewards=False),
        "ULTRA-R": lambda: guided(actions=False),
        "ULTRA-RA": guided,
        "MASK-R": lambda: guided(actions=False),
        "LLM-RND": lambda: rnd.hooks(critical=critical),
    }
    return makers[name]()
