"""Tic-tac-toe against OpenSpiel (where X begins: its x is our O), perfect play against a plain recursion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.envs.one_player import OnePlayer, OnePlayerState
from nlrl_jax.envs.tic_tac_toe import env as tic_tac_toe
from nlrl_jax.envs.tic_tac_toe import rules
from tests.envs.tic_tac_toe_boards import SPIEL, board_of, reachable

AS_SPIEL = np.array([".", "x", "o"])  # of a cell + 1


def random_games(num: int, seed: int) -> dict[str, np.ndarray]:
    """Boards before each of nine moves and after the last, [10, num, 9], moves [9, num] and what the rules say."""

    def step(board, key):
        mask = jax.vmap(rules.legal_action_mask)(board)
        action = jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0), -1)
        after = jnp.where(rules.is_terminal(board)[:, None], board, jax.vmap(rules.step)(board, action))
        return after, (board, action)

    @jax.jit
    def games(key):
        last, (boards, actions) = jax.lax.scan(step, jnp.tile(rules.init(), (num, 1)), jax.random.split(key, 9))
        boards = jnp.concatenate([boards, last[None]])
        of_all = lambda f: jax.vmap(jax.vmap(f))(boards)
        told = {
            f.__name__: of_all(f)
            for f in (rules.legal_action_mask, rules.current_player, rules.is_terminal, rules.returns)
        }
        return {"boards": boards, "actions": actions, **told}

    return jax.device_get(games(jax.random.key(seed)))


def test_ten_thousand_random_games_equal_open_spiels():
    games = random_games(10_000, seed=0)
    seen = {1.0: 0, 0.0: 0, -1.0: 0}
    for n in range(10_000):
        state = SPIEL.new_initial_state()
        for t in range(10):
            legal = np.flatnonzero(games["legal_action_mask"][t, n]).tolist()
            assert legal == state.legal_actions()
            drawn = "".join(AS_SPIEL[games["boards"][t, n] + 1])
            assert drawn == str(state).replace("\n", "")
            assert games["is_terminal"][t, n] == state.is_terminal()
            assert games["returns"][t, n] == state.player_return(0) == -state.player_return(1)
            if state.is_terminal():
                break
            assert games["current_player"][t, n] == state.current_player()
            action = games["actions"][t, n]
            assert rules.ACTIONS[action] == str(action + 1) and legal.count(action)
            state.apply_action(int(action))
        assert state.is_terminal()
        seen[float(games["returns"][t, n])] += 1
    assert min(seen.values()) > 1000


def test_perfect_play_equals_a_plain_recursion_over_open_spiel():
    values, optimal = rules.minimax()
    positions = reachable()
    assert len(positions) == 5478
    for board, (value, moves) in positions.items():
        code = rules.code(np.array(board, np.int8))
        assert values[code] == value and set(np.flatnonzero(optimal[code])) == moves, board


def test_positions_that_can_occur_are_those_that_open_spiel_reaches():
    boards = (np.arange(3**9)[:, None] // 3 ** np.arange(9) % 3 - 1).astype(np.int8)
    np.testing.assert_array_equal(rules.code(boards), np.arange(3**9))
    possible = {tuple(board.tolist()) for board in boards if rules.impossible(board) is None}
    assert possible == set(reachable())


def play_out(env: OnePlayer, policy, num: int, seed: int = 0):
    """Returns [num] and sides of finished games; `policy(key, board) -> action`."""
    params = env.default_params

    def game(key):
        key_reset, key_game = jax.random.split(key)
        _, state = env.reset_env(key_reset, params)

        def step(carry, key):
            state, total, ended = carry
            key_act, key_step = jax.random.split(key)
            _, after, reward, end, info = env.step_env(key_step, state, policy(key_act, state.position), params)
            carry = after, total + jnp.where(ended, 0.0, reward), ended | end
            return carry, info["illegal_move"] & ~ended

        start = state, jnp.float32(0), jnp.array(False)
        (state, total, ended), illegal = jax.lax.scan(step, start, jax.random.split(key_game, 5))
        return total, state.side, ended, illegal.any(), state.position

    total, side, ended, illegal, boards = jax.device_get(
        jax.jit(jax.vmap(game))(jax.random.split(jax.random.key(seed), num))
    )
    assert ended.all() and not illegal.any()
    for player in (0, 1):  # the reward of the side the agent had
        won = jax.device_get(rules.returns(boards[side == player])) * (1 - 2 * player)
        np.testing.assert_array_equal(total[side == player], won)
    return total, side


def uniform(key, board):
    return jnp.argmax(jnp.where(rules.legal_action_mask(board), jax.random.uniform(key, (9,)), -1.0))


def perfect(key, board):
    return jnp.argmax(jnp.asarray(rules.minimax()[1])[rules.code(board)] * jax.random.uniform(key, (9,)))


def test_minimax_never_loses_and_ties_with_itself():
    env = tic_tac_toe.text_game("minimax").env
    total, side = play_out(env, uniform, 4000)
    for player in (0, 1):
        assert (side == player).sum() > 1800
        assert total[side == player].max() == 0 and total[side == player].mean() < -0.7
    total, _ = play_out(env, perfect, 1000)
    assert not total.any()


def test_random_against_random_has_the_exact_odds():
    chance = {}

    def odds(state):
        """Chances of a win of O, a tie and a win of X when both move uniformly."""
        board = str(state)
        if board not in chance:
            if state.is_terminal():
                chance[board] = np.eye(3)[1 - int(state.player_return(0))]
            else:
                chance[board] = np.mean([odds(state.child(action)) for action in state.legal_actions()], axis=0)
        return chance[board]

    want = odds(SPIEL.new_initial_state())
    total, side = play_out(tic_tac_toe.text_game("random").env, uniform, 20_000, seed=3)
    for player, sign in ((0, 1), (1, -1)):
        got = [(total[side == player] == sign * value).mean() for value in (1, 0, -1)]
        np.testing.assert_allclose(got, want, atol=0.015)


def test_a_taken_cell_changes_nothing_and_is_counted():
    env = tic_tac_toe.text_game("random", side="O").env
    params = env.default_params
    state = OnePlayerState(time=jnp.int32(0), position=jnp.asarray(board_of("O.. .X. ...")), side=jnp.int32(0))
    for action in (0, 4):
        _, after, reward, ended, info = env.step_env(jax.random.key(0), state, action, params)
        np.testing.assert_array_equal(after.position, state.position)
        assert after.time == 1 and reward == 0 and not ended and info["illegal_move"]
    won = state.replace(position=jnp.asarray(board_of("OOO XX. ...")))
    _, after, reward, ended, info = env.step_env(jax.random.key(0), won, 8, params)
    np.testing.assert_array_equal(after.position, won.position)
    assert reward == 0 and ended and info["illegal_move"]  # a win is paid once


def test_the_side_is_drawn_at_reset_and_the_opponent_begins_if_it_is_x():
    env = tic_tac_toe.text_game("random").env
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), 4000), env.default_params)
    assert 0.45 < state.side.mean() < 0.55
    boards, side = np.asarray(state.position), np.asarray(state.side)
    assert (boards[side == 0] == -1).all()
    assert ((boards[side == 1] == 0).sum(1) == 1).all() and (boards != 1).all()
    openings = (boards[side == 1] == 0).mean(0)
    np.testing.assert_allclose(openings, 1 / 9, atol=0.03)
    assert obs.shape == (4000, 3, 3, 2)
    np.testing.assert_array_equal(obs[..., 0].sum((1, 2)), 0)
    np.testing.assert_array_equal(obs[..., 1].sum((1, 2)), side)


@pytest.mark.parametrize(
    ("board", "player", "message"),
    [
        ("1 2 3 4 5 6 7 8", "O", "has 8"),
        ("1 2 3 4 5 6 7 9 8", "O", "cell 8 is '9'.* 8$"),
        ("1 2 3 4 # 6 7 8 9", "O", "cell 5 is '#'"),
        ("O O 3 4 5 6 7 8 9", "X", "2 O and 0 X"),
        ("X 2 3 4 5 6 7 8 9", "O", "0 O and 1 X"),
        ("O O O X X X 7 8 9", "O", "both O and X"),
        ("O O O X X 6 7 X 9", "O", "O has three in a line, but X has moved"),
        ("X X X O O 6 O 8 O", "X", "X has three in a line, but O has moved"),
        ("O 2 3 4 5 6 7 8 9", "O", "it is X's turn"),
        ("1 2 3 4 5 6 7 8 9", "Z", "player is 'Z'"),
    ],
)
def test_positions_that_cannot_occur_are_refused(board, player, message):
    with pytest.raises(ValueError, match=message):
        rules.parse(board, player)
