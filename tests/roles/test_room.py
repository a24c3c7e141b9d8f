"""A prompt that does not fit: the limit that binds is named, the model's own or --context_tokens."""

import pytest

from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.roles.dialogues import History
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from tests.envs.test_expert import line_game


@pytest.mark.parametrize("option, advice", [(40, "Give --context_tokens of"), (0, "Give a model whose context holds")])
def test_the_limit_that_binds_is_named(option, advice):
    config = PromptConfig(context_tokens=option, examples=0)
    dialogue = dialogue_of(METHODS["lac"], line_game(), config, "m", None, option or 40)
    with pytest.raises(ValueError, match=rf"{advice} \d+ tokens or more"):
        dialogue.trim(History("goal", "a wall"), 10)
