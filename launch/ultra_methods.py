"""ULTRA's variants and the refiners it is compared with, by name: what each adds to plain PPO.

A method gives an update and the `aux` it starts from. Everything before that (the base agent, the episodes, what the
analyst found, the mask network) is made once and shared by all methods and seeds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from launch.ultra_games import Setting
from nlrl_jax.algorithms import ppo, ultra
from nlrl_jax.algorithms.control_play import Record
from nlrl_jax.algorithms.ppo import Hooks, PPOConfig, PPOState
from nlrl_jax.algorithms.refiners import human_designed, lir, rice, rnd, state_mask
from nlrl_jax.algorithms.ultra import GuidanceConfig, LookupTable

TABLE_1 = ("PPO", "RICE", "LIR", "HLC", "ULTRA-A", "ULTRA-R", "ULTRA-RA")
TABLE_2 = ("RICE", "MASK-R", "LLM-RND", "ULTRA-R")
METHODS = tuple(dict.fromkeys(TABLE_1 + TABLE_2))
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


def train_mask(
    setting: Setting, base: PPOState, iterations: int, key: jax.Array
) -> tuple[Callable[[jax.Array], jax.Array], float]:
    """The mask network of RICE and MASK-R: obs [..., D] -> importance [...], and the share of steps it blinded.

    Raises:
      ValueError: an update is not finite.
    """
    game, config = setting.game, setting.ppo
    masked = state_mask.MaskedEnv(game.env, game.params, config)
    params = state_mask.MaskParams(game.params, base.params, base.obs_moments)
    mask_config = dataclasses.replace(config, entropy_coef=0.01)
    key_init, key_train = jax.random.split(key)
    mask = ppo.init_state(masked, params, mask_config, key_init)
    step = jax.jit(ppo.make_update(masked, params, mask_config, state_mask.hooks()))
    metrics: dict[str, Any] = {}
    for i in range(iterations):
        mask, metrics = step(mask, jax.random.fold_in(key_train, i))
        if not metrics["finite"]:
            raise ValueError(f"update {i} of the mask network is not finite")
    agent = ppo.Agent(masked, params, mask_config)
    blinded = float(np.asarray(metrics.get("blinded", jnp.nan)))
    return functools.partial(state_mask.importance, agent, mask.params, mask.obs_moments), blinded
