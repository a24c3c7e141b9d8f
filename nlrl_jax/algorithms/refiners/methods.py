"""ULTRA's variants and the refiners it is compared with, by name: what each adds to plain PPO.

A method gives an update and the `aux` it starts from. Everything before that (the base agent, the episodes, what the
analyst found, the mask network) is made once and shared by all methods and seeds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from launch.ultra_games import Setting
from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.ppo import Hooks, PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import human_designed, lir, rice, rnd, state_mask
from nlrl_jax.algorithms.ultra import GuidanceConfig, LookupTable
from nlrl_jax.rollouts.control import Record

TABLE_1 = ("PPO", "RICE", "LIR", "HLC", "ULTRA-A", "ULTRA-R", "ULTRA-RA")
TABLE_2 = ("RICE", "MASK-R", "LLM-RND", "ULTRA-R")
METHODS = tuple(dict.fromkeys(TABLE_1 + TABLE_2))
BASELINES = ("PPO", "RICE", "LIR", "HLC")  # whose mean the paper compares ULTRA-RA with
MASKED = ("RICE", "MASK-R")  # need the mask network


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """What the methods of one run have in common.

    Attributes:
      setting, ppo: the game, and the hyperparameters of refinement.
      record: episodes of the base agent.
      table: what the analyst found in them. mask_table: its rewards where the mask network says it matters.
      importance: float [T, N] of the record's states, by the mask network. Both are None where no method needs them.
      alpha, radius: of ULTRA. hlc: the weight of the rewards by hand.
    """

    setting: Setting
    ppo: PPOConfig
    record: Record
    table: LookupTable
    mask_table: LookupTable | None
    importance: jax.Array | None
    alpha: float
    radius: float
    hlc: float


def known(names: str, setting: Setting) -> list[str]:
    """The methods that a comma-separated list names; "all" leaves out what the game has not.

    Raises:
      ValueError: an unknown method, or HLC where the paper has no reward by hand.
    """
    if names == "all":
        return [name for name in METHODS if name != "HLC" or setting.human_reward]
    chosen = [name.strip() for name in names.split(",")]
    wrong = [name for name in chosen if name not in METHODS]
    if wrong:
        raise ValueError(f"method {wrong[0]!r} is not known; choose among {', '.join(METHODS)}, or all")
    if "HLC" in chosen and not setting.human_reward:
        raise ValueError(f"HLC needs a reward by hand, which the paper has for Pong and Ant, not {setting.game.name}")
    return chosen


def start(name: str, shared: Shared, base: PPOState, key: jax.Array) -> PPOState:
    """A seed's state at the beginning of refinement by a method."""
    game, config = shared.setting.game, shared.ppo
    key_state, key_aux = jax.random.split(key)
    state = ppo.refine_from(game.env, game.params, config, base, key_state)
    aux = None
    if name.startswith("ULTRA"):
        aux = shared.table
    elif name == "MASK-R":
        aux = shared.mask_table
    elif name == "LLM-RND":
        aux = rnd.init(key_aux, state.obs.shape[1:])
    elif name == "RICE":
        timestep = state_mask.critical_steps(shared.importance, shared.record.steps)
        aux = rice.init(key_aux, *rice.starts_of(shared.record, timestep))
    elif name == "LIR":
        aux = lir.init(key_aux, game.env, game.params, config, state, lir.LIRConfig())
    return state.replace(aux=aux)


def update(name: str, shared: Shared) -> Callable[[PPOState, jax.Array], tuple[PPOState, dict[str, jax.Array]]]:
    """The pure update of a method, for one seed."""
    game, config = shared.setting.game, shared.ppo
    if name == "LIR":
        return lir.make_update(game.env, game.params, config, lir.LIRConfig())
    return ppo.make_update(game.env, game.params, config, _hooks(name, shared))


def _hooks(name: str, shared: Shared) -> Hooks:
    guide = functools.partial(GuidanceConfig, alpha=shared.alpha, radius=shared.radius)
    guided = lambda **what: ultra.guidance(shared.setting.game, guide(**what))
    look_up = functools.partial(ultra.look_up, shared.table, shared.setting.game, shared.radius)
    makers: dict[str, Callable[[], Hooks]] = {
        "PPO": Hooks,
        "RICE": rice.hooks,
        "HLC": lambda: human_designed.hooks(shared.setting.human_reward, shared.hlc),
        "ULTRA-A": lambda: guided(rewards=False),
        "ULTRA-R": lambda: guided(actions=False),
        "ULTRA-RA": guided,
        "MASK-R": lambda: guided(actions=False),
        "LLM-RND": lambda: rnd.hooks(critical=lambda obs: look_up(obs)[0]),
    }
    return makers[name]()


class MaskNetwork:
    """The mask network of RICE and MASK-R for a base agent. Holds no parameters of its own."""

    def __init__(self, setting: Setting, base: PPOState):
        game = setting.game
        self.config = dataclasses.replace(setting.ppo, entropy_coef=0.01)
        self.env = state_mask.MaskedEnv(game.env, game.params, setting.ppo)
        self.params = state_mask.MaskParams(game.params, base.params, base.obs_moments)

    def init(self, key: jax.Array) -> PPOState:
        """The network before its training."""
        return ppo.init_state(self.env, self.params, self.config, key)

    def train(self, mask: PPOState, iterations: int, key: jax.Array) -> tuple[PPOState, float]:
        """(the network after so many updates, from `mask.iteration` on; the share of steps that the last one blinded).

        Raises:
          ValueError: an update is not finite.
        """
        step = jax.jit(ppo.make_update(self.env, self.params, self.config, state_mask.hooks()))
        metrics = {"blinded": jnp.nan}
        for i in range(int(mask.iteration), iterations):
            mask, metrics = step(mask, jax.random.fold_in(key, i))
            if not metrics["finite"]:
                raise ValueError(f"update {i} of the mask network is not finite")
        return mask, float(metrics["blinded"])

    def importance(self, mask: PPOState, obs: jax.Array) -> jax.Array:
        """How much the base agent's action matters: obs [..., D] -> float [...]."""
        agent = ppo.agent_of(self.env, self.params, self.config)
        return state_mask.importance(agent, mask.params, mask.obs_moments, obs)
