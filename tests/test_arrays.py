"""Arrays of a wrong rank or shape, and lists, are refused in a sentence that names the shape wanted."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import losses, networks, returns, updates
from nlrl_jax.algorithms import mcts
from nlrl_jax.arrays import expect
from nlrl_jax.envs.tic_tac_toe import rules
from nlrl_jax.networks import RunningMoments

KEY = jax.random.key(0)
GAME = rules.board_game()
BK, B, TB = jnp.zeros((3, 2)), jnp.zeros(3), jnp.zeros((4, 3))
LIST = [[0.0, 1.0]]
MOMENTS = RunningMoments.of((2,))
PPO = ("log_probs", "old_log_probs", "advantages", "values", "targets", "entropy", "weights")
MS_GRPO = ("log_probs", "old_log_probs", "ref_log_probs", "advantages", "weights")


def ppo(**changed):
    return losses.ppo(*({name: B for name in PPO} | changed).values())


def ms_grpo(**changed):
    return losses.ms_grpo(*({name: B if name == "advantages" else BK for name in MS_GRPO} | changed).values())


def test_expect():
    assert expect("T B", x=TB, y=np.zeros((4, 3))) == {"T": 4, "B": 3}
    assert expect("... B 3", {"B": 4}, x=jnp.zeros((2, 4, 3)), y=jnp.zeros((2, 4, 3)))["..."] == (2,)
    assert expect("", x=0.5, y=jnp.float32(1)) == {}
    with pytest.raises(ValueError, match=re.escape("y has shape (5, 4, 3); it must be [..., B, 3], here [2, 4, 3]")):
        expect("... B 3", x=jnp.zeros((2, 4, 3)), y=jnp.zeros((5, 4, 3)))
    jax.jit(jax.vmap(lambda x: expect("B", x=x) and x))(BK)  # shapes are static


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: losses.kl_estimate(BK, B), "ref_log_probs has shape (3,); it must be [...], here [3, 2]"),
        (lambda: losses.episode_token_weights(BK), "mask has shape (3, 2); it must be [J, T, K]"),
        (lambda: losses.sft(LIST, BK), "log_probs is a list; it must be an array [B, K]"),
        (lambda: losses.sft(None, BK), "log_probs is a NoneType; it must be an array [B, K]"),
        (lambda: returns.returns_to_go(None), "rewards is a NoneType; it must be an array [T, B]"),
        (lambda: returns.gae(TB, TB, None, TB), "values is a NoneType; it must be an array [T, B]"),
        (lambda: returns.aaw_sample(KEY, B, 2.0, 1.0), "cannot sample G'=2.0 of G=3"),
        (lambda: returns.aaw_sample(KEY, B, 4, 1.0), "G'=4 of G=3"),
        (lambda: returns.aaw_sample(KEY, B, 2, 0), "T_ep is 0"),
        (lambda: losses.sft(BK, B), "weights has shape (3,); it must be [B, K], here [3, 2]"),
        *[(lambda n=n: ms_grpo(**{n: LIST}), f"{n} is a list; it must be an array [B") for n in MS_GRPO],
        (lambda: ms_grpo(advantages=B[:1]), "advantages has shape (1,); it must be [B], here [3]"),
        (lambda: ms_grpo(weights=BK[:1]), "weights has shape (1, 2); it must be [B, K], here [3, 2]"),
        *[(lambda n=n: ppo(**{n: [0.0]}), f"{n} is a list; it must be an array [...]") for n in PPO],
        *[(lambda n=n: ppo(**{n: B[:1]}), f"{n} has shape (1,); it must be [...], here [3]") for n in PPO[1:]],
        (lambda: returns.returns_to_go(TB[None]), "rewards has shape (1, 4, 3); it must be [T, B]"),
        (lambda: returns.gae(TB, TB, TB.T, TB), "values has shape (3, 4); it must be [T, B], here [4, 3]"),
        (lambda: returns.gae(TB, TB, TB[None], TB), "values has shape (1, 4, 3); it must be [T, B], here [4, 3]"),
        (lambda: returns.returns_to_go(LIST), "rewards is a list; it must be an array [T, B]"),
        (lambda: returns.gae(TB, TB, TB, TB, ends=B > 0), "ends has shape (3,); it must be [T, B], here [4, 3]"),
        (lambda: returns.group_advantage(jnp.float32(1)), "returns has shape (); it must be [..., G]"),
        (lambda: returns.group_advantage(B[:1]), "G is 1 and ddof 0; a group needs at least 2 episodes"),
        (lambda: returns.group_advantage(B, 3), "G is 3 and ddof 3; a group needs at least 2 episodes, and ddof must"),
        (lambda: returns.group_advantage(BK, mask=B > 0), "mask has shape (3,); it must be [..., G], here [3, 2]"),
        (lambda: returns.aaw_sample(KEY, [1.0, 2.0], 1, 1.0), "advantages is a list; it must be an array [..., G]"),
        (lambda: returns.kl_improved_policy(BK, B, 1.0), "q has shape (3,); it must be [..., n], here [3, 2]"),
        (lambda: networks.log_prob(BK, None, BK[:, :1]), "action has shape (3, 1); it must be [B], here [3]"),
        (lambda: networks.log_prob(BK, None, B), "action is float32; a discrete one must be an integer [B]"),
        (lambda: networks.log_prob(BK, B[:2], BK[0]), "action has shape (2,); it must be [B, A], here [3, 2]"),
        (lambda: networks.sample(KEY, BK[0], None), "out has shape (2,); it must be [B, A]"),
        (lambda: networks.sample(KEY, BK, B), "log_std has shape (3,); it must be [A], here [2]"),
        (lambda: networks.mode(B, None), "out has shape (3,); it must be [B, A]"),
        (lambda: networks.entropy(BK, BK), "log_std has shape (3, 2); it must be [A], here [2]"),
        (lambda: MOMENTS.update(TB), "values has shape (4, 3); it must be [..., 2]"),
        (lambda: MOMENTS.normalize(B[:1]), "values has shape (1,); it must be [..., 2]"),
        (lambda: MOMENTS.update(BK[:0]), "a batch of shape (0, 2) has no mean"),
        (lambda: updates.where(B > 0, {"x": B[:1]}, {"x": B}), "leaf ['x'] has shape (1,) in the new tree and (3,)"),
        (lambda: updates.where(TB > 0, B, B), "must have one shape that begins with the mask's, (4, 3)"),
        (lambda: updates.stack([]), "there is no state to stack"),
        (lambda: updates.seed_mesh(0), "seeds is 0; it must be at least 1"),
    ],
)
def test_the_shape_wanted_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda positions: mcts.random_rollouts(GAME, KEY, positions),
        lambda positions: mcts.rollout_evaluator(GAME, 2)(KEY, positions),
        lambda positions: mcts.mcts_policy(GAME, 2, 1)(KEY, positions),
        lambda positions: mcts.play_moves(GAME, mcts.mcts_policy(GAME, 2, 1), KEY, positions, 1),
        lambda positions: mcts.win_rates(GAME, mcts.mcts_policy(GAME, 2, 1), KEY, positions, 1),
    ],
)
def test_one_position_is_not_a_batch(call):
    with pytest.raises(ValueError, match=r"has shape .*; it must be \[B.*\], of B positions of tic_tac_toe .a single"):
        call(GAME.init())
    with pytest.raises(ValueError, match="positions are a list; they must be B positions of tic_tac_toe"):
        call([1])


def test_masks_of_integers_and_rewards_of_few_bits():
    some = jnp.array([[0.0, 2.0, 7.0, 1.0]])
    np.testing.assert_array_equal(
        returns.group_advantage(some, mask=jnp.array([[3, 1, 0, 1]])),
        returns.group_advantage(some, mask=jnp.array([[True, True, False, True]])),
    )
    assert losses.episode_token_weights(jnp.full((1, 1, 2), 2)).tolist() == [[[0.5, 0.5]]]
    assert returns.returns_to_go(jnp.full((3, 1), 100, jnp.uint8)).tolist() == [[300], [200], [100]]
    assert returns.gae(*[jnp.ones((0, 3))] * 4)[0].shape == (0, 3)
    assert returns.gae(*[jnp.ones((2, 1), jnp.int32)] * 4)[0].dtype == jnp.float32


def test_actions_of_a_network_in_half_precision_are_drawn_in_single():
    out = jnp.zeros((4000, 1000), jnp.bfloat16)
    actions, wide = networks.sample(KEY, out, None), networks.sample(KEY, out.astype(jnp.float32), None)
    assert actions.tolist() == wide.tolist() and actions.max() > 990
    moves = networks.sample(KEY, out[:1], jnp.zeros(1000, jnp.bfloat16))
    assert moves.dtype == jnp.float32 and len(np.unique(moves)) > 990  # bfloat16 normals have 128 values
