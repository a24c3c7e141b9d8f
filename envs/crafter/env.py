"""Crafter as a gymnax environment and as a text game."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from nlrl_jax.envs.crafter import engine, text
from nlrl_jax.envs.options import check_text_game
from nlrl_jax.envs.shell import DiscreteGame
from nlrl_jax.gymnax_base import EnvParams, environment
from nlrl_jax.types import TextGame

OBSERVATION_SIZE = engine.ROWS * engine.COLUMNS * len(engine.CELLS) + len(engine.VITALS) + len(engine.ITEMS) + 6


@struct.dataclass
class CrafterState(environment.EnvState):
    """A world and its clock.

    Attributes:
      time: int32 [].
      world: the engine's state.
    """

    world: engine.World


class Crafter(DiscreteGame):
    """gymnax environment. Actions are `ACTIONS`; a reward of 1 / 22 for each achievement when it is unlocked first.

    The sum of an episode's rewards is BALROG's score, the share of the 22 achievements. (Crafter's own reward is 1 for
    each, and 0.1 for each point of health won or lost.) The episode ends with the player's death.

    Observations are float32 [1345]: the 63 cells of the view one-hot over `engine.CELLS`, vitals and items / 9, the
    direction one-hot, light, and whether the player is asleep.
    """

    def __init__(self):
        super().__init__(ACTIONS, (OBSERVATION_SIZE,), EnvParams(10_000))

    def start(self, key: jax.Array, params: EnvParams) -> CrafterState:
        """Generates a random world."""
        return CrafterState(time=jnp.int32(0), world=engine.reset(key))

    def advance(self, key, state, action, params):
        """Steps the engine; info["achievements"] is bool [22], those unlocked so far."""
        after = engine.step(key, state.world, action)
        reward = (engine.unlocked(after) - engine.unlocked(state.world)) / len(engine.ACHIEVEMENTS)
        state = CrafterState(time=state.time + 1, world=after)
        return state, reward.astype(jnp.float32), engine.dead(after), {"achievements": after.achievements}

    def is_terminated(self, state: CrafterState, params: EnvParams) -> jax.Array:
        """Whether the player is dead: bool []."""
        return engine.dead(state.world)

    def observe(self, key, state: CrafterState, action, params) -> jax.Array:
        """float32 [1345]; see the class."""
        world = state.world
        cells = jax.nn.one_hot(engine.view(world), len(engine.CELLS)).reshape(-1)
        numbers = jnp.concatenate([engine.vitals(world), engine.items(world)]) / engine.MAX_AMOUNT
        direction = jax.nn.one_hot(world.player_direction - 1, 4)
        rest = jnp.stack([world.light_level, world.is_sleeping])
        return jnp.concatenate([cells, numbers, direction, rest]).astype(jnp.float32)


ACTIONS = (
    "noop", "move west", "move east", "move north", "move south", "do", "sleep",
    "place stone", "place table", "place furnace", "place plant",
    "make wood pickaxe", "make stone pickaxe", "make iron pickaxe",
    "make wood sword", "make stone sword", "make iron sword",
)  # fmt: skip
GOAL = "survive and unlock as many of the 22 achievements as you can"
RULES = """You live in a world of 64x64 cells with grass, trees, lakes, mountains and caves. You see 9x7 cells of it.
Achievements: collect wood, a sapling, drink, stone, coal, iron and a diamond; place a table, a plant, a stone and \
a furnace; make a pickaxe and a sword of wood, of stone and of iron; eat a cow and a ripe plant; defeat a zombie and \
a skeleton; wake up.
Rules:
- A move turns you and takes you one step if the cell is free: grass, sand or a path. Stepping into lava kills you.
- "do" acts on what you are facing: it cuts wood from trees, drinks water, hits creatures until they die (a dead cow \
is eaten), eats ripe plants, mines with the right pickaxe, and sometimes finds a sapling in grass.
- Stone and coal need a wood pickaxe, iron needs a stone pickaxe and diamonds need an iron pickaxe.
- You place things on the free cell that you are facing: a table for 2 wood, a furnace for 1 stone, a stone (also on \
water and lava), or a sapling (on grass; it is ripe after 600 steps).
- Next to a table you can make pickaxes and swords: wood ones with 1 wood; stone ones with 1 wood and 1 stone; iron \
ones with 1 wood, 1 stone, 1 coal and 1 iron, and only if you are next to a furnace as well.
- Food, drink and energy go down over time; at 0 they cost you health. Sleep restores energy and lasts until it is \
full or something hurts you. Zombies roam the grass, mostly at night; skeletons shoot arrows in caves.
Available actions: """ + ", ".join(ACTIONS)
_REPLY = '. Reply with 1 to 3 actions, separated by " || ".'


def success(state: CrafterState) -> jax.Array:
    """Whether all achievements are unlocked: bool []."""
    return state.world.achievements.all()


def text_game(prompt: str = "paper", max_steps: int = 10_000) -> TextGame:
    """Makes Crafter as a text game (LAC, appendix A.12).

    The compact prompt, for very small models, is the view as letters and the status.

    Args:
      prompt: "paper" or "compact".
      max_steps: steps until truncation.

    Raises:
      ValueError: an unknown prompt.
    """
    check_text_game(prompt, max_steps)
    paper = prompt == "paper"
    return TextGame(
        name="crafter",
        env=Crafter(),
        params=EnvParams(max_steps_in_episode=max_steps),
        rules=RULES + _REPLY if paper else "Unlock achievements.",
        actions=ACTIONS,
        observation=text.OBSERVATION if paper else text.VIEW + "\n" + text.STATUS,
        fields=lambda state: text.fields(state.world),
        board=text.VIEW,
        success=success,
        legend=text.LEGEND,
    )
