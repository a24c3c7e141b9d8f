"""Reinforcement learning of, and with, language-model agents in JAX.

Where to start:

    nlrl_jax.losses, nlrl_jax.returns     the objectives and advantages: short, pure, no imports of ours
    nlrl_jax.types                        what a game, an episode and a language model are
    nlrl_jax.algorithms.ms_grpo           MS-GRPO; `make_update` is one compiled program
    nlrl_jax.algorithms.language_gpi      NLRL by prompting; language_td and language_actor_critic train
    nlrl_jax.algorithms.ultra, .analyst   ULTRA: PPO with a language model's advice and rewards
    nlrl_jax.algorithms.lac               LAC; `decide` is the whole method
    nlrl_jax.weights.load                 `load_model("nano")`, or a Hugging Face folder, Hub id or .gguf file
    nlrl_jax.envs.make("frozen_lake")     a game and its text

Everything is a pure function of arrays and frozen dataclasses. README.md has a short training loop, docs/api.md the
public names, docs/own_game.md a game of your own. The command `nlrl-jax` lists the scripts.
"""

import pathlib

__version__ = "0.1.0"

# In a checkout, envs/ and launch/ lie beside this folder; installed, they lie within it.
_CHECKOUT = pathlib.Path(__file__).parents[1]
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "launch").is_dir():
    __path__.append(str(_CHECKOUT))
