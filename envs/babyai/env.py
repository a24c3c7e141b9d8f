"""BabyAI as a gymnax environment and as a text game."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs.babyai import levels, rules, solver, text
from nlrl_jax.envs.babyai.rules import ACTIONS, BabyAIState
from nlrl_jax.envs.options import check_text_game
from nlrl_jax.envs.shell import DiscreteGame
from nlrl_jax.gymnax_base import environment
from nlrl_jax.types import TextGame

OBSERVATION_SIZE = 3 * rules.VIEW**2 + 1 + len(rules.MISSIONS) + 2 * (len(text.KINDS) + len(rules.COLOURS))


@struct.dataclass
class BabyAIParams(environment.EnvParams):
    """max_steps_in_episode: steps until truncation; the reward for success is 1 - 0.9 time / max_steps_in_episode."""

    max_steps_in_episode: int = 30


class BabyAI(DiscreteGame):
    """gymnax environment. Actions are minigrid's 0 to 5: turn left, turn right, go forward, pick up, drop, toggle.

    Observations are float32 [174]: what is seen (kind / 7, colour / 5 and door state / 2 of 7x7 cells, the agent's own
    cell shows what it carries), the number of instructions done, and the mission (one of six, kind and colour of both
    targets, one-hot; zeros for a target that the mission does not have).

    Args:
      mission: one of `rules.MISSIONS`, or "all": one of them at random in every episode.

    Raises:
      ValueError: an unknown mission.
    """

    def __init__(self, mission: str = "go to"):
        levels.mission_id(mission)
        super().__init__(ACTIONS, (OBSERVATION_SIZE,), BabyAIParams(), high=2)
        self.mission = mission

    def start(self, key: jax.Array, params: BabyAIParams) -> BabyAIState:
        """Draws a random solvable task."""
        return levels.draw(key, self.mission)

    def advance(self, key, state, action, params):
        """Steps the world; the reward is paid in the step that fulfils the mission."""
        after = rules.step(state, jnp.asarray(action, jnp.int32))
        terminated = rules.success(after)
        reward = 1 - 0.9 * after.time / params.max_steps_in_episode
        reward = jnp.where(terminated & ~rules.success(state), reward, 0.0).astype(jnp.float32)
        return after, reward, terminated, {}

    def is_terminated(self, state: BabyAIState, params: BabyAIParams) -> jax.Array:
        """Whether the mission is fulfilled: bool []."""
        return rules.success(state)

    def observe(self, key, state: BabyAIState, action, params) -> jax.Array:
        """float32 [174]; see the class."""
        view = rules.view(state).astype(jnp.float32) / np.array([7, 5, 2], np.float32)
        kinds = jax.nn.one_hot(state.target_kinds - rules.DOOR, len(text.KINDS))
        colours = jax.nn.one_hot(state.target_colours, len(rules.COLOURS)) * (state.target_kinds > 0)[:, None]
        mission = jax.nn.one_hot(state.mission, len(rules.MISSIONS))
        done = state.done.astype(jnp.float32)[None]
        return jnp.concatenate([view.reshape(-1), done, mission, kinds.reshape(-1), colours.reshape(-1)])


_RULES = """You are in a room of 8x8 cells, walls included; if the mission has a door, two such rooms lie side by side.
Rules:
- You see the 7x7 cells in front of you and to your sides, as far as walls and closed doors allow.
- You go to a thing by facing it from the next cell. You pick up the thing in front of you, one at a time.
- You drop what you are carrying onto the free cell in front of you. Things, walls and closed doors block your way.
- Toggle opens or closes the door in front of you; a locked door opens only while you carry the key of its colour. \
It also opens a box, which turns out to be empty and disappears.
- Distances are counted in steps from where you stand: left, right and forward as seen from your direction.
Available actions: turn left, turn right, go forward, pick up, drop, toggle. \
Reply with 1 to 3 actions, separated by " || "."""

# Words that the built-in tiny models have a token for: forward is up in the drawn view, and what is dropped goes down.
COMPACT_ACTIONS = ("Left", "Right", "Up", "Take", "Down", "Use")
_COMPACT_RULES = {
    "go to": "Face G from the next cell.",
    "pick up": "Face G and pick it up.",
    "go to after pick up": "Face G and pick it up, then face T.",
    "pick up then go to": "Face G and pick it up, then face T.",
    "put next to": "Pick up G and drop it next to T.",
    "open door": "Pick up T, then face G and toggle.",
}


def text_game(mission: str = "go to", prompt: str = "paper", max_steps: int = 30) -> TextGame:
    """Makes BabyAI-Text (LAC, "BabyAI-Text") as a text game: the mission and what is seen, in its sentences.

    The compact prompt, for very small models, is the agent's view as letters, the agent (P, or * with something in its
    hands) in the middle of the last row: G is the mission's first target, T its second or a key that fits, O another
    thing, X a wall and _ a free or unseen cell. Of a mission in two parts the second target becomes G once the first
    part is done. With "all" missions the sentence of the mission stands above. Its action words are `COMPACT_ACTIONS`.

    Args:
      mission: one of `rules.MISSIONS`, or "all".
      prompt: "paper" or "compact".
      max_steps: steps until truncation.

    Raises:
      ValueError: an unknown mission or prompt.
    """
    check_text_game(prompt, max_steps)
    env = BabyAI(mission)
    if prompt == "paper":
        words, observation = _RULES, text.OBSERVATION
    elif mission == "all":
        words, observation = "G first, then T.", text.GOAL + "\n" + text.VIEW_GRID
    else:
        words, observation = _COMPACT_RULES[mission], text.VIEW_GRID
    return TextGame(
        name="babyai",
        env=env,
        params=BabyAIParams(max_steps_in_episode=max_steps),
        rules=words,
        actions=ACTIONS if prompt == "paper" else COMPACT_ACTIONS,
        observation=observation,
        fields=text.fields,
        board=text.WORLD_GRID,
        success=rules.success,
        legend=text.LEGEND,
        optimal=solver.distance,
    )
