"""Tree search against mctx, against OpenSpiel's bot, and on positions with one right answer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms import mcts as peer_mcts

from nlrl_jax.algorithms import mcts, tree_search
from nlrl_jax.envs.breakthrough import rules as breakthrough
from nlrl_jax.envs.tic_tac_toe import rules
from nlrl_jax.types import BoardGame

GAME = breakthrough.board_game()
PEER = pyspiel.load_game("breakthrough(rows=5,columns=5)")
PEER_START = "bbbbbbbbbb.....wwwwwwwwww0"


def plain(game):
    """The game without the list of legal moves that it may offer."""
    return BoardGame(**{field.name: getattr(game, field.name) for field in dataclasses.fields(BoardGame)})


def copies(position, count):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), position)


def peer_rollouts(state, count):
    """Mean outcome of random games from black's view."""
    return peer_mcts.RandomRolloutEvaluator(count, np.random.RandomState(0)).evaluate(state)[0]


def stack(positions):
    return jax.tree.map(lambda *x: jnp.stack(x), *positions)


def board(rows, player):
    return GAME.parse(rows.replace(" ", "\n"), player)


@functools.cache
def policy_of(simulations=60, rollouts=1, game=GAME, solve=True):
    return jax.jit(mcts.mcts_policy(game, simulations, rollouts, solve=solve))


@functools.cache
def positions_met():
    """Unfinished positions of weak play, without repeats."""
    positions = mcts.state_dataset(GAME, [mcts.mcts_policy(GAME, 2, 1)], jax.random.key(0), 32)
    return jax.tree.map(lambda x: x[:512], positions)


WINS = [  # whose turn, and the moves that win at once
    ("..... ..... w.... b.... ..w..", "black", {"a2a1", "a2b1"}),
    ("..... w.b.. ..... .b.b. ..w.w", "black", {"b2a1", "b2b1", "b2c1*", "d2c1*", "d2d1", "d2e1*"}),
    ("b.b.b .w... ..... b.... .....", "white", {"b4a5*", "b4b5", "b4c5*"}),
    ("..... ..b.. .w... ..... .....", "black", {"c4b3*"}),
]


THREATS = [  # the only move that no winning move answers
    ("b.b.b ..... ..... .b..w w....", "white", {"a1b2*"}),
    ("..... b.... ..... ...b. w.w..", "white", {"c1d2*"}),
    (".b... w.... ....b w.... ..w..", "black", {"b5a4*"}),
]


@pytest.mark.parametrize(("rows", "player", "words"), WINS + THREATS)
def test_a_winning_move_is_always_played_and_a_threat_is_met(rows, player, words):
    wins = (rows, player, words) in WINS
    action, value, _ = policy_of(60 if wins else 400)(jax.random.key(0), copies(board(rows, player), 32))
    assert {GAME.actions[a] for a in np.asarray(action).tolist()} <= words
    assert not wins or (np.asarray(value) * (1 if player == "black" else -1) > 0.5).all()


def test_every_win_in_one_of_random_positions_is_taken():
    positions = positions_met()
    action, _, _ = policy_of()(jax.random.key(2), positions)
    wins_by = lambda position, a: GAME.legal_action_mask(position)[a] & GAME.is_terminal(GAME.step(position, a))
    wins = jax.vmap(jax.vmap(wins_by, (None, 0)), (0, None))(positions, jnp.arange(GAME.num_actions))
    can_win = np.asarray(wins.any(axis=1))
    assert can_win.sum() > 20
    assert np.asarray(wins)[np.arange(len(action)), action][can_win].all()


def test_visits_are_legal_and_add_up_and_values_are_bounded():
    positions = positions_met()
    action, value, visits = jax.tree.map(np.asarray, policy_of(solve=False)(jax.random.key(3), positions))
    legal = np.asarray(jax.vmap(GAME.legal_action_mask)(positions))
    assert (visits.sum(axis=1) == 59).all()
    assert (visits[~legal] == 0).all()
    assert (visits[legal] > 0).all()  # there are fewer moves than simulations
    assert legal[np.arange(len(action)), action].all()
    assert (np.abs(value) <= 1).all() and len(np.unique(value)) > 10


def test_the_same_key_gives_the_same_search_and_another_key_another():
    positions = copies(GAME.init(), 32)
    first, again, other = (policy_of()(jax.random.key(i), positions) for i in (4, 4, 5))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not np.array_equal(first[2], other[2])


def test_a_finished_position_has_its_outcome_and_no_move():
    ended = board("..... ..... ..... .w... ..b..", "white")
    action, value, visits = policy_of()(jax.random.key(0), stack([ended, GAME.init()] * 16))
    assert action[0] == -1 and value[0] == 1 and not visits[0].any()
    assert action[1] >= 0 and visits[1].sum() == 59


def test_trees_grow_as_those_of_mctx():
    """The same evaluator of positions, formula and order among equals; no game ends within this depth."""
    simulations, uct_c, key = 80, 0.7, jax.random.key(6)
    words = lambda at: at.black[0] * np.uint32(2654435761) ^ at.white[0] * np.uint32(40503)
    evaluate = lambda key, at: tree_search._mix(words(at)).astype(jnp.float32) / 2.0**31 - 1
    positions = jax.tree.map(lambda x: x[:5], positions_met())
    tree, value = jax.jit(lambda p: tree_search.search(GAME, evaluate, key, p, simulations, uct_c, False))(positions)

    K = GAME.max_legal
    mover = lambda at: jnp.where(at.player == 0, 1.0, -1.0)
    prior = lambda at: jnp.where(jnp.arange(K) < jax.vmap(GAME.num_legal)(at)[:, None], 0.0, -jnp.inf)

    def step(_, key, edge, at):
        after = jax.vmap(GAME.step)(at, jax.vmap(GAME.nth_legal)(at, edge))
        constant = jnp.zeros(len(edge))
        value = evaluate(key, after) * mover(after)
        return mctx.RecurrentFnOutput(
            reward=constant, discount=constant - 1, prior_logits=prior(after), value=value
        ), after

    def choose(key, tree, node, depth=0):
        visits = tree.children_visits[node]
        bonus = uct_c * jnp.sqrt(jnp.log(tree.node_visits[node]) / jnp.maximum(visits, 1))
        score = jnp.where(visits == 0, jnp.inf, bonus - tree.children_values[node])
        score = jnp.where(jnp.isfinite(tree.children_prior_logits[node]), score, -jnp.inf)
        seed = tree.extra_data + node.astype(jnp.uint32) * np.uint32(0x9E3779B9)
        return tree_search.best((score[None],), seed[None])[0]

    root = mctx.RootFnOutput(
        prior_logits=prior(positions), value=evaluate(key, positions) * mover(positions), embedding=positions
    )
    seeds = jax.random.bits(jax.random.split(key)[0], (5,), jnp.uint32)
    theirs = jax.jit(
        lambda root: mctx.search(
            None,
            key,
            root=root,
            recurrent_fn=step,
            root_action_selection_fn=choose,
            interior_action_selection_fn=choose,
            num_simulations=simulations - 1,
            extra_data=seeds,
        )
    )(root)
    ours = jnp.swapaxes(tree.visits, 0, 1)
    np.testing.assert_array_equal(ours, theirs.children_visits)
    np.testing.assert_array_equal(jnp.swapaxes(tree.parent, 0, 1), theirs.parents)
    mean = np.asarray(jnp.swapaxes(tree.total, 0, 1) / jnp.maximum(ours, 1))
    np.testing.assert_allclose(mean, -np.asarray(theirs.children_values), atol=1e-5)
    np.testing.assert_allclose(value * mover(positions), theirs.node_values[:, 0], atol=1e-5)
    assert (np.asarray(ours).max(axis=2)[:, 1:] > 1).any()  # the trees are deeper than their roots' children


@pytest.mark.parametrize("game", [GAME, plain(GAME)], ids=["listed moves", "mask of moves"])
def test_random_rollouts_have_openspiel_s_mean(game):
    rows = "b.b.b .b... .b.w. w...w .w.w."
    position = board(rows, "white")
    ours = np.asarray(jax.jit(functools.partial(mcts.random_rollouts, game))(jax.random.key(7), copies(position, 4000)))
    assert set(ours) == {-1.0, 1.0}
    state = PEER.deserialize_state(rows.replace(" ", "") + "1")
    theirs = peer_rollouts(state, 8000)
    assert abs(theirs) > 0.1  # a mistaken sign would show
    assert abs(ours.mean() - theirs) < 4 * (1 / 4000 + 1 / 8000) ** 0.5


@pytest.mark.slow
def test_any_board_game_can_be_searched():
    """Tic-tac-toe, O first: O takes the win, X blocks, and full play is a draw."""
    game = rules.board_game()
    cells = lambda marks: stack([functools.reduce(game.step, [jnp.int32(c) for c in marks], game.init())])
    policy = policy_of(600, 1, game)
    assert policy(jax.random.key(0), cells([0, 3, 1, 4]))[0] == 2  # O O . / X X .
    assert policy(jax.random.key(0), cells([0, 3, 1]))[0] == 2
    best = policy_of(2000, 1, game)
    outcomes = mcts.win_rates(game, best, jax.random.key(1), stack([game.init()]), 8)
    assert outcomes == 0


def test_variations_are_legal_and_a_finished_game_stays():
    start = stack([GAME.init(), board(*WINS[0][:2]), board("..... ..... ..... .w... ..b..", "white")])
    actions, positions = mcts.play_moves(GAME, policy_of(), jax.random.key(8), start, 4)
    assert actions.shape == (4, 3) and jax.tree.leaves(positions)[0].shape == (5, 3)
    for b in range(3):
        for t in range(4):
            now, after = (jax.tree.map(lambda x: x[i, b], positions) for i in (t, t + 1))  # noqa: B023
            if GAME.is_terminal(now):
                assert actions[t, b] == -1
                expected = now
            else:
                assert GAME.legal_action_mask(now)[actions[t, b]]
                expected = GAME.step(now, actions[t, b])
            assert jax.tree.all(jax.tree.map(np.array_equal, after, expected))
    assert actions[:, 1].tolist()[1:] == [-1] * 3 and GAME.actions[actions[0, 1]] in WINS[0][2]


def test_win_rates_are_the_outcomes_of_games_from_black_s_view():
    start = stack([board(*WINS[0][:2]), board(*WINS[2][:2]), board("w.... ..... ..... ..... .....", "black")])
    assert mcts.win_rates(GAME, policy_of(), jax.random.key(9), start, 4).tolist() == [1, -1, -1]
    even = mcts.win_rates(GAME, policy_of(2), jax.random.key(9), copies(GAME.init(), 1), 400)
    theirs = peer_rollouts(PEER.deserialize_state(PEER_START), 2000)
    assert abs(even[0] - theirs) < 0.2  # two simulations play at random


def test_states_come_from_all_pairs_without_repeats():
    weak, strong = mcts.mcts_policy(GAME, 2, 1), mcts.mcts_policy(GAME, 30, 1)
    positions = mcts.state_dataset(GAME, [weak, strong], jax.random.key(10), 4)
    again = mcts.state_dataset(GAME, [weak, strong], jax.random.key(10), 4)
    assert jax.tree.all(jax.tree.map(np.array_equal, positions, again))
    count = len(positions.player)
    assert 16 * 8 < count < 16 * GAME.max_moves
    assert not jax.vmap(GAME.is_terminal)(positions).any()
    texts = {GAME.board.render(GAME.fields(jax.tree.map(lambda x: x[i], positions))) for i in range(count)}  # noqa: B023
    assert len(texts) >= 0.99 * count  # the same board may occur with either player to move
    assert jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x[0], y), positions, GAME.init()))


def test_in_a_mixed_pair_each_policy_plays_its_own_side():
    """One policy plays its first legal move and the other its last one: the four pairs play four known games."""

    def pick(*last):
        """last: for black and for white."""

        def policy(key, positions):
            count = jax.vmap(GAME.num_legal)(positions)
            k = jnp.where(jnp.asarray(last)[positions.player], count - 1, 0)
            return jnp.where(count > 0, jax.vmap(GAME.nth_legal)(positions, k), -1), None, None

        return policy

    rows = lambda positions: set(zip(*(np.asarray(x).tolist() for x in jax.tree.leaves(positions))))
    expected = set()
    for pair in ((False, False), (False, True), (True, False), (True, True)):
        _, played = mcts.play_moves(GAME, pick(*pair), jax.random.key(0), stack([GAME.init()]), GAME.max_moves)
        unfinished = np.asarray(played.winner[:, 0]) < 0
        expected |= rows(jax.tree.map(lambda x: x[unfinished, 0], played))  # noqa: B023
    met = mcts.state_dataset(GAME, [pick(False, False), pick(True, True)], jax.random.key(0), 1)
    assert rows(met) == expected and len(expected) > 20


@pytest.mark.parametrize(
    ("simulations", "rollouts", "message"),
    [(1, 1, "simulations is 1"), (2, 0, "rollouts is 0"), (2.5, 1, "simulations is 2.5"), (2, 1.5, "rollouts is 1.5")],
)
def test_too_small_searches_are_refused(simulations, rollouts, message):
    with pytest.raises(ValueError, match=message):
        mcts.mcts_policy(GAME, simulations, rollouts)


@pytest.mark.slow
def test_what_is_proven_is_true():
    """Against exhaustive search, in random positions of a small board with few moves to go."""
    game = breakthrough.board_game(4, 3, 1)
    weak = mcts.mcts_policy(game, 2, 1)
    positions = mcts.state_dataset(game, [weak], jax.random.key(0), 16)
    play, over, legal = jax.jit(game.step), jax.jit(game.is_terminal), jax.jit(game.legal_action_mask)

    @functools.cache
    def result(leaves):
        position = jax.tree.unflatten(jax.tree.structure(game.init()), [np.asarray(x) for x in leaves])
        if over(position):
            return float(game.returns(position))
        sign = 1 if position.player == 0 else -1
        after = (play(position, action) for action in np.flatnonzero(legal(position)))
        return sign * max(sign * result(as_leaves(position)) for position in after)

    as_leaves = lambda position: tuple((x.dtype.type(x)) for x in jax.tree.leaves(jax.tree.map(np.asarray, position)))
    action, value, visits = policy_of(2000, 1, game)(jax.random.key(0), positions)
    values = [result(as_leaves(jax.tree.map(lambda x: x[i], positions))) for i in range(len(value))]  # noqa: B023
    solved = np.asarray(visits.sum(axis=1)) < 1999
    assert solved.mean() > 0.9 and len(set(np.asarray(values)[solved])) == 2
    np.testing.assert_array_equal(np.asarray(value)[solved], np.asarray(values)[solved])
    for i in np.flatnonzero(solved):
        after = play(jax.tree.map(lambda x: x[i], positions), action[i])  # noqa: B023
        assert result(as_leaves(after)) == values[i]


def score_against_openspiel(game, start, simulations, rollouts, games, solve):
    """Share of games that we win, half of them with either colour. `start` makes the peer's first state."""
    states = [start() for _ in range(games)]
    peer_game = states[0].get_game()
    evaluator = pyspiel.RandomRolloutEvaluator(rollouts, 1)
    bot = pyspiel.MCTSBot(peer_game, evaluator, 1.0, simulations, 1000, solve, 2, False)
    policy = jax.jit(mcts.mcts_policy(game, simulations, rollouts, solve=solve))
    play = jax.jit(jax.vmap(game.step))
    ours = np.arange(games) % 2  # the colour we play in each game
    positions = copies(game.init(), games)
    for turn in range(game.max_moves):
        mine = np.asarray(policy(jax.random.fold_in(jax.random.key(0), turn), positions)[0])
        action = np.zeros(games, np.int32)
        for g, state in enumerate(states):
            if not state.is_terminal():
                action[g] = mine[g] if ours[g] == turn % 2 else bot.step(state)
                state.apply_action(int(action[g]))
        after = play(positions, action)
        positions = jax.tree.map(lambda x, y: jnp.where(mine < 0, x, y), positions, after)  # noqa: B023
    assert all(state.is_terminal() for state in states)
    return np.mean([(1 + state.returns()[ours[g]]) / 2 for g, state in enumerate(states)])


@pytest.mark.slow
@pytest.mark.parametrize("solve", [False, True])
@pytest.mark.parametrize("size", ["5x5", "6x5"])
@pytest.mark.parametrize(("simulations", "rollouts"), [(100, 1), (30, 10)])
def test_play_is_as_strong_as_openspiel_s(size, simulations, rollouts, solve):
    if size == "5x5":
        game, start = GAME, lambda: PEER.deserialize_state(PEER_START)
    else:
        game = breakthrough.board_game(6, 5)
        start = pyspiel.load_game("breakthrough(rows=6,columns=5)").new_initial_state
    score = score_against_openspiel(game, start, simulations, rollouts, 1000, solve)
    print(f"{size}, {simulations} simulations x {rollouts}, solve={solve}, 1000 games: we win {score:.3f}")
    assert 0.45 < score < 0.55
