"""Breakthrough against OpenSpiel, and its text."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

from nlrl_jax.envs.breakthrough import rules as breakthrough

SIZES = [(8, 8, 2), (6, 5, 2), (5, 5, 1), (5, 5, 2)]
NUM_GAMES = 100
GAMES = {size: breakthrough.board_game(*size) for size in SIZES}


def peer_start(rows, columns, pawn_rows):
    peer = pyspiel.load_game(f"breakthrough(rows={rows},columns={columns})")
    if (rows, columns, pawn_rows) != (5, 5, 2):
        return peer.new_initial_state()
    return peer.deserialize_state("bbbbbbbbbb.....wwwwwwwwww0")


@functools.lru_cache(maxsize=8)
def played(size, seed=0):
    """What happened in random games: leaves [T + 1, NUM_GAMES, ...], T moves, -1 where the game is over."""
    game = GAMES[size]

    def step(position, key):
        mask = game.legal_action_mask(position)
        action = jnp.where(mask.any(), jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)), -1)
        after = jax.tree.map(lambda x, y: jnp.where(action < 0, x, y), position, game.step(position, action))
        return after, {"position": position, "legal": mask, "action": action} | dict(
            over=game.is_terminal(position), outcome=game.returns(position), **game.fields(position)
        )

    one = lambda key: jax.lax.scan(step, game.init(), jax.random.split(key, game.max_moves + 1))[1]
    keys = jax.random.split(jax.random.key(seed), NUM_GAMES)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one, out_axes=1))(keys))


@pytest.mark.parametrize("batches", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", SIZES)
def test_random_games_are_those_of_openspiel(size, batches):
    """10,000 games of each size where it may be slow."""
    game, positions = GAMES[size], 0
    for seed, g in itertools.product(range(batches), range(NUM_GAMES)):
        seen, state = played(size, seed), peer_start(*size)
        for t in range(game.max_moves + 1):
            legal = np.flatnonzero(seen["legal"][t, g]).tolist()
            over = state.is_terminal()
            assert legal == state.legal_actions()
            assert [game.actions[action] for action in legal] == [state.action_to_string(action) for action in legal]
            assert bool(seen["over"][t, g]) == over
            assert [seen["outcome"][t, g], -seen["outcome"][t, g]] == state.returns()
            assert over or seen["player"][t, g] == state.current_player()
            assert game.board.render({"cells": seen["cells"][t, g].tolist()}) + "\n" == str(state)
            positions += 1
            if over:
                break
            state.apply_action(int(seen["action"][t, g]))
        assert over  # within max_moves
    assert positions > 15 * batches * NUM_GAMES


@pytest.mark.parametrize("size", SIZES)
def test_the_list_of_legal_moves_is_the_mask(size):
    game = GAMES[size]
    seen = played(size)
    positions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[::17], seen["position"])
    count = np.asarray(jax.vmap(game.num_legal)(positions))
    ranks = jnp.arange(game.max_legal)
    listed = np.asarray(jax.jit(jax.vmap(jax.vmap(game.nth_legal, (None, 0)), (0, None)))(positions, ranks))
    mask = np.asarray(seen["legal"].reshape(-1, game.num_actions)[::17])
    assert count.max() > 10 and count.min() == 0
    for row, n, legal in zip(listed, count, mask):
        assert sorted(row[:n]) == np.flatnonzero(legal).tolist()


def test_taking_the_last_pawn_wins():
    game = GAMES[5, 5, 2]
    position = game.parse(".....\n..b..\n...w.\n.....\n.....", "black")
    after = game.step(position, game.actions.index("c4d3*"))
    assert bool(game.is_terminal(after)) and game.returns(after) == 1
    assert not game.legal_action_mask(after).any() and game.num_legal(after) == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_board_read_back_is_the_same_position(size):
    game = GAMES[size]
    seen = played(size)
    for t in range(0, game.max_moves + 1, 3):
        position = jax.tree.map(lambda x: x[t, t % NUM_GAMES], seen["position"])  # noqa: B023
        text = game.board.render(game.fields(position))
        read = game.parse(text, game.players[int(position.player)])
        assert jax.tree.all(jax.tree.map(np.array_equal, read, position))
        assert jax.tree.map(jnp.shape, read) == jax.tree.map(jnp.shape, game.init())
        assert jax.tree.map(lambda x: x.dtype, read) == jax.tree.map(lambda x: x.dtype, game.init())


def test_text_of_the_first_position():
    game = breakthrough.board_game()
    start = game.init()
    assert game.board.render(game.fields(start)) == "5bbbbb\n4bbbbb\n3.....\n2wwwww\n1wwwww\n abcde"
    assert "5 columns (a to e) and 5 rows" in game.rules and "10 pawns on the top two rows" in game.rules
    assert game.max_legal == 30 and game.num_actions == 300
    assert len(set(game.actions)) == 1 + 168  # the empty word; 20 straight and twice 32 diagonal moves a side


@pytest.mark.parametrize(
    "text",
    [
        "5 b b b b b\n4 b b b . b\n3 . . b . .\n2 w w w w w\n1 w w w w w\n  a b c d e\n",
        "BBBBB\nBBB.B\n\n..B..\nWWWWW\nWWWWW",
        "  5bbbbb  \n4bbb.b\n3..b..\n2wwwww\n1wwwww\n abcde\n\n",
    ],
)
def test_boards_are_read_with_or_without_labels_and_blanks(text):
    game = GAMES[5, 5, 2]
    expected = game.step(game.init(), game.actions.index("d4c3"))
    assert jax.tree.all(jax.tree.map(np.array_equal, game.parse(text, " White "), expected))


@pytest.mark.parametrize(
    ("rows", "player", "message"),
    [
        ("bbbbb bbbbb ..... wwwww wwwww", "red", "'red'; it is black or white"),
        ("bbbbb bbbbb wwwww wwwww", "black", "4 rows; it should have 5"),
        ("bbbbb bbbb ..... wwwww wwwww", "black", "'bbbb' has 4 squares; it should have 5"),
        ("bbbbb bbbxb ..... wwwww wwwww", "black", "holds x"),
        ("5bbbbb 3bbbbb ..... wwwww wwwww", "black", "'3bbbbb' should be labelled 4"),
        ("bbbbb bbbbb b.... wwwww .wwww", "black", "black has 11 pawns"),
        ("..... ..... ..... ..... .....", "black", "neither side"),
        ("w.b.. ..... ..... ..... ..b..", "black", "both sides have won"),
        ("..... ..... ..... ..... w.b.b", "white", "2 pawns on its far row"),
        ("..... ..... ..... .w... ..b..", "black", "black has won, so"),
        ("..... ..... ..... .w... .....", "white", "white has won, so"),
        ("bbbbb bbbbb ..... wwwww wwwww", "white", "cannot be white's turn"),
        ("bbbbb bbb.b ..b.. wwwww wwwww", "black", "black has made 1 moves and white 0"),
        ("bbbbb bbbb. ..... wwwww wwwww", "black", "white has made 0 moves at most, too few to have taken 1 pawns"),
        ("bbbbb bbbb. wwwww ..... wwwww", "black", "black has made 0 to 2 moves and white 5, so it cannot be"),
    ],
)
def test_positions_that_cannot_occur_are_refused(rows, player, message):
    with pytest.raises(ValueError, match=message):
        GAMES[5, 5, 2].parse(rows.replace(" ", "\n"), player)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 3}, "rows is 3; it must be an integer from 4 to"),
        ({"rows": 5.0}, "rows is 5.0"),
        ({"columns": 1}, "columns is 1"),
        ({"pawn_rows": 3}, "pawn_rows is 3"),
    ],
)
def test_sizes_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        breakthrough.board_game(**options)


@pytest.mark.parametrize("size", [(2, 2, 1), (4, 3, 2), (10, 4, 2), (3, 26, 1)])
def test_other_sizes_play_to_the_end_within_max_moves(size):
    """Boards that OpenSpiel does not have, several words wide, or two labels high."""
    game = breakthrough.board_game(*size)

    def step(position, key):
        mask = game.legal_action_mask(position)
        k = jax.random.randint(key, (), 0, jnp.maximum(game.num_legal(position), 1))
        action = game.nth_legal(position, k)
        after = game.step(position, action)
        ok = mask[action] & (mask.sum() == game.num_legal(position))
        over = game.is_terminal(position)
        return jax.tree.map(lambda x, y: jnp.where(over, x, y), position, after), ok | over

    play = lambda key: jax.lax.scan(step, game.init(), jax.random.split(key, game.max_moves))
    ended, ok = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 64))
    assert ok.all() and jax.vmap(game.is_terminal)(ended).all()
    last = jax.tree.map(lambda x: x[0], ended)
    text = game.board.render(game.fields(last))
    assert jax.tree.all(
        jax.tree.map(np.array_equal, game.parse(text, game.players[int(last.player)]), jax.tree.map(np.asarray, last))
    )


@pytest.mark.parametrize(
    ("rows", "player", "outcome"),
    [("..... ..... ..... .w... ..b..", "white", 1), ("w.... ..... ..... ..... .....", "black", -1)],
)
def test_finished_positions_are_read_as_over(rows, player, outcome):
    game = GAMES[5, 5, 2]
    position = game.parse(rows.replace(" ", "\n"), player)
    assert (
        bool(game.is_terminal(position))
        and game.returns(position) == outcome
        and not game.legal_action_mask(position).any()
    )
