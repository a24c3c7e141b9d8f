"""MS-GRPO's returns and metrics worked out by hand, and its config."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import ms_grpo
from nlrl_jax.rollouts import text_games
from nlrl_jax.run import players
from nlrl_jax.text.parser import ParsedReply
from nlrl_jax.text.policy import TokenTurn
from tests.algorithms.ms_grpo_by_hand import CONFIG, composite_returns


def hand_made_turns():
    """Two turns of three episodes; the second episode ends after its first turn."""
    active = jnp.array([[True, True, True], [True, False, True]])
    reward = jnp.array([[0.0, 1.0, 0.0], [-3.0, 0.0, 0.5]])
    zeros = jnp.zeros((2, 3), jnp.int32)
    parsed = ParsedReply(
        actions=jnp.zeros((2, 3, 3), jnp.int32),
        num_actions=zeros,
        num_invalid=jnp.array([[0, 1, 2], [1, 9, 0]]),
        structure_violations=zeros,
        extra_text=zeros > 0,
        format_penalty=jnp.array([[-0.5, 0.0, -1.0], [0.0, -9.0, -0.25]]),
    )
    turn = TokenTurn(
        prompts=zeros[..., None],
        prompt_lengths=zeros + 1,
        replies=jnp.zeros((2, 3, 4), jnp.int32),
        reply_lengths=jnp.array([[4, 2, 1], [3, 4, 1]]),
        log_probs=jnp.zeros((2, 3, 4)),
        ended=jnp.array([[True, True, False], [True, False, True]]),
        parsed=parsed,
    )
    return text_games.Turns(
        {}, turn, reward, jnp.array([[3, 1, 0], [1, 0, 2]]), jnp.where(active, parsed.num_invalid, 0), active
    )


def test_composite_returns():
    got = composite_returns(hand_made_turns(), CONFIG)
    # r + invalid + Phi: (0 - 0.5) + (-3 - 0.5), (1 - 0.5) and nothing from the second turn, (-1 - 1) + (0.5 - 0.25)
    np.testing.assert_allclose(got, [-4.0, 0.5, -1.75])
    free = dataclasses.replace(CONFIG, invalid_action_reward=0.0)
    np.testing.assert_allclose(composite_returns(hand_made_turns(), free), [-3.5, 1.0, -0.75])


def test_episode_metrics():
    turns = hand_made_turns()
    ends = text_games.Episodes(turns, jnp.array([True, True, False]), jnp.array([False, True, False]), {})
    got = ms_grpo.episode_metrics(ends, jnp.array([[1.0, 1.0], [1.0, 2.0]]))
    want = {
        "return": 1.25, "env_return": -0.5, "success": 1 / 3, "terminated": 2 / 3, "format_penalty": -1.75 / 5,
        "invalid_actions": 4 / 5, "reply_tokens": 11 / 5, "cut_replies": 1 / 5, "turns": 5 / 3, "steps": 7 / 3,
        "uninformative_groups": 0.5,
    }  # fmt: skip
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, 1e30])
def test_a_reward_that_cannot_be_summed_is_found_where_an_episode_is_played(reward):
    turns, game = hand_made_turns(), types.SimpleNamespace(name="mine", success=None)
    assert ms_grpo.bad_reward_turn(turns) == 0
    over = turns._replace(reward=turns.reward.at[1, 1].set(reward))  # that episode is over
    assert ms_grpo.bad_reward_turn(over) == 0
    bad = turns._replace(reward=turns.reward.at[1, 2].set(reward))
    assert ms_grpo.bad_reward_turn(bad) == 2
    ends = lambda turns: text_games.Episodes(turns, jnp.zeros(3, bool), jnp.zeros(3, bool), {})
    with pytest.raises(ValueError, match="mine: turn 2 of evaluation episode 3 paid the reward"):
        players.summarize(ends(bad), game)
