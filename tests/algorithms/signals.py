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
    """One move: 2 is right under a green light, 5 under a red one, and 7 is never legal. `endless`: no end."""

    def __init__(self, endless=False):
        self.endless = endless

    def reset_env(self, key, params):
        return None, Lamp(jax.random.randint(key, (), 0, 2))

    def step_env(self, key, state, action, params):
        reward = jnp.where(action == state.sign, 1.0, -1.0)
        return None, state, reward, jnp.array(not self.endless), {}


def signals(words=("2", "5", "7"), **options):
    light = Template((Literal("Light: "), Choice("sign", ("green", "red"))))
    fields = lambda state: {"sign": state.sign, "legal": jnp.array([1, 1, 0])}
    return TextGame("signals", Signals(**options), None, "Press.", words, light, fields, light)
