"""A game of one move, whose right answer is shown."""

import flax.struct
import jax
import jax.numpy as jnp

from nlrl_jax.text.template import Choice, Literal, Template
from nlrl_jax.types import TextGame


@flax.struct.dataclass
class Lamp:
    """sign: int32 [], what is shown."""

    sign: jax.Array


class Signals:
    """One move: 2 is right under a green light, 5 under a red one, and 7 is never legal."""

    def reset_env(self, key, params):
        return None, Lamp(jax.random.randint(key, (), 0, 2))

    def step_env(self, key, state, action, params):
        reward = jnp.where(action == state.sign, 1.0, -1.0)
        return None, state, reward, jnp.array(True), {}


def signals(words=("2", "5", "7")):
    light = Template((Literal("Light: "), Choice("sign", ("green", "red"))))

    def fields(state):
        return {"sign": state.sign, "legal": jnp.array([1, 1, 0])}

    return TextGame("signals", Signals(), None, "Press.", words, light, fields, light)
