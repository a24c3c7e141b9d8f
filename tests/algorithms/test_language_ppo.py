"""LLM-PPO: scores against the plain scorer, games and advantages against plain loops, and a toy that it learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms import language_ppo as ppo
from nlrl_jax.algorithms.language_ppo import LanguagePPOConfig, MovePolicy, init_state, make_update, play
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, DeltaNetSizes
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts import text_games
from nlrl_jax.text.word_trie import word_trie
from tests.algorithms.signals import signals
from tests.lm.noise import noisy_params
from tests.tokenizers_from_wheels import small_tokenizer

TOKENIZER = small_tokenizer()
SIZE = 8 * -(-TOKENIZER.vocab_size // 8)
MODEL = Transformer(ModelConfig(SIZE, 16, 24, 1, 2, 1, 8, 256, lora=LoraConfig(4, 8.0)))
RECURRENT = Transformer(
    dataclasses.replace(
        MODEL.config, num_layers=2, layer_types=(LINEAR, FULL), delta_net=DeltaNetSizes(1, 2, 4, 4, 4), norm_eps=1e-2
    )
)
GAME = envs.make("tic_tac_toe", prompt="compact")
CONFIG = LanguagePPOConfig(num_games=24, batch_size=60, accumulation=2)
KEY = jax.random.key(5)
jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


@pytest.fixture(scope="module")
def params():
    """Random weights, large enough for the moves to differ."""
    return jax.tree.map(lambda x: x * (3.0 if x.ndim > 1 else 1.0), init_params(MODEL, jax.random.key(0)))


@pytest.fixture(scope="module")
def policy():
    return MovePolicy.for_game(GAME, MODEL, TOKENIZER)


@pytest.fixture(scope="module")
def state(params):
    """A fresh state whose critic says something."""
    state = init_state(MODEL, params, CONFIG, jax.random.key(1))
    noise = lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape)
    return state.replace(critic=jax.tree.map(noise, state.critic))


def value_of(state):
    return lambda hidden: ppo.value_head(MODEL).apply({"params": state.critic}, hidden)


def scores_of(policy, variables, prompts, lengths):
    """(scores [B, A], hidden states [B, H]) of moves after prompts."""
    return jit(lambda v: policy.forward(v, policy.prefix(v), prompts, lengths))(variables)


@pytest.fixture(scope="module")
def played(policy, state):
    """The games of `update(state, KEY)`."""
    key = jax.random.split(KEY)[0]
    run = lambda s: ppo.play_games(policy, GAME, s.variables, value_of(s), key, 24, 5, 0.7)
    return jax.device_get(jit(run)(state))


def test_scores_are_the_words_log_probabilities_as_the_reply(policy, params, played):
    moves, _ = played
    prompts, lengths = moves.prompts[1], moves.lengths[1]
    scores, _ = scores_of(policy, {"params": params}, prompts, lengths)
    S, P = prompts.shape[1], len(policy.template.prefix)
    whole = [[*policy.template.prefix, *row[S - n :]] for row, n in zip(prompts, lengths)]
    whole = np.array([[0] * (P + S - len(row)) + row for row in whole])
    words = np.array([[TOKENIZER.encode(word)[0]] for word in GAME.actions])  # [A, 1]
    by_word = jax.vmap(
        lambda word: score(MODEL, {"params": params}, whole, lengths + P, jnp.tile(word, (24, 1)))[:, 0], out_axes=1
    )
    want = jit(by_word)(words)  # [B, A]
    np.testing.assert_allclose(scores - scores[:, :1], want - want[:, :1], atol=1e-4)
    assert np.ptp(np.asarray(scores), axis=1).min() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("model", [MODEL, RECURRENT])
def test_words_of_several_tokens_take_one_pass(model):
    """Breakthrough's 96 words on 4 x 4, as a trie or in a row each, against each word alone after the prompt."""
    params = noisy_params(model.config, 0.2)["params"]
    game = envs.make("breakthrough", prompt="compact", rows=4, columns=4, pawn_rows=1)
    policy = MovePolicy.for_game(game, model, TOKENIZER)
    states = text_games.reset(game, KEY, 3)
    prompts, lengths = jax.vmap(lambda state: policy.read(jax.tree.map(lambda x: x[None], game.fields(state))))(states)
    prompts, lengths = prompts[:, 0], lengths[:, 0]
    variables = {"params": params}
    scores, hidden = scores_of(policy, variables, prompts, lengths)
    words = [[*TOKENIZER.encode(word), TOKENIZER.eos_ids[0]] for word in game.actions]  # b4a3 begins b4a3*
    longest = max(map(len, words))
    assert longest > 2 and scores.shape == (3, len(words))
    padded = np.array([word + [0] * (longest - len(word)) for word in words])

    def alone(word):
        return score(model, variables, prompts, lengths, jnp.tile(word, (3, 1)), policy.prefix(variables))

    log_probs = jit(lambda words: jax.lax.map(alone, words))(padded)  # [A, B, N]
    real = np.arange(longest) < np.array([[len(word)] for word in words])
    np.testing.assert_allclose(scores, np.sum(log_probs * real[:, None], axis=-1).T, atol=2e-4)
    bare = dataclasses.replace(policy, words=word_trie([[1]]))
    np.testing.assert_allclose(hidden, bare.forward(variables, bare.prefix(variables), prompts, lengths)[1], atol=1e-4)


def test_tied_embeddings_are_read_too(params, played):
    tied = MODEL.clone(config=dataclasses.replace(MODEL.config, tie_embeddings=True))
    variables = {"params": {name: value for name, value in params.items() if name != "lm_head"}}
    policy, moves = MovePolicy.for_game(GAME, tied, TOKENIZER), played[0]
    scores, hidden = scores_of(policy, variables, moves.prompts[1], moves.lengths[1])
    logits = tied.apply(variables, hidden, method="unembed")
    np.testing.assert_allclose(
        scores, logits[:, [TOKENIZER.encode(word)[0] for word in GAME.actions]], rtol=1e-5, atol=1e-5
    )
    assert np.ptp(scores, axis=1).min() > 0.1


def test_all_probability_is_on_legal_moves_and_only_they_are_played(played):
    scores = jax.random.normal(jax.random.key(0), (50, 9)) * 5
    legal = jax.random.bernoulli(jax.random.key(1), 0.4, (50, 9)).at[:, 3].set(True)
    chance = np.exp(ppo.move_log_probs(scores, legal, 0.7))
    assert not chance[~legal].any()
    want = np.where(legal, np.exp(scores / 0.7), 0.0)
    np.testing.assert_allclose(chance, want / want.sum(1, keepdims=True), rtol=1e-5)
    moves, cut_value = played
    taken = np.take_along_axis(moves.legal, moves.action[..., None], -1)[..., 0]
    assert taken[moves.active].all() and not cut_value.any()


def test_games_are_whole(played):
    moves, _ = played
    assert moves.active[0].all() and (moves.terminated.sum(0) == 1).all()
    for b in range(24):
        length = moves.active[:, b].sum()
        assert moves.active[:length, b].all() and moves.terminated[length - 1, b]
        assert not moves.reward[: length - 1, b].any() and not moves.reward[length:, b].any()
    shares = ppo.results(moves)
    returns = moves.reward.sum(0)
    for name, value in (("win_rate", 1), ("tie_rate", 0), ("loss_rate", -1)):
        np.testing.assert_allclose(shares[name], np.mean(returns == value), rtol=1e-6)
    np.testing.assert_allclose(shares["win_rate"] + shares["tie_rate"] + shares["loss_rate"], 1, rtol=1e-6)
    assert shares["cut_rate"] == 0 and 0 < shares["win_rate"] < 1


def test_advantages_are_a_plain_loop_over_each_game(played):
    moves, cut_value = played
    rows = ppo.make_rows(moves, cut_value, CONFIG)
    assert np.abs(moves.value).max() > 0.1
    plain = np.zeros(moves.value.shape)
    for b in range(24):
        later, after = 0.0, 0.0
        for t in range(moves.active[:, b].sum() - 1, -1, -1):
            delta = moves.reward[t, b] + 0.99 * after - moves.value[t, b]
            plain[t, b] = later = delta + 0.99 * 0.95 * later
            after = moves.value[t, b]
            np.testing.assert_allclose(rows.target[t, b], later + moves.value[t, b], atol=1e-5)
    plain = plain[moves.active]
    np.testing.assert_allclose(
        np.asarray(rows.advantage)[moves.active], (plain - plain.mean()) / plain.std(), atol=1e-4
    )


def test_every_move_is_learned_from_once(played):
    moves, cut_value = played
    config = dataclasses.replace(CONFIG, batch_size=5, accumulation=3)
    batches = ppo.shuffle(jax.random.key(0), ppo.make_rows(moves, cut_value, config), config)
    assert batches.target.shape == (8, 3, 5)
    active = np.asarray(batches.moves.active).reshape(-1)
    num = moves.active.sum()
    assert active[:num].all() and not active[num:].any()
    ids = lambda moves, keep: sorted(map(tuple, np.stack([moves.log_prob[keep], moves.value[keep]], -1).tolist()))
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[3:]), batches.moves)
    assert ids(flat, active) == ids(moves, moves.active)
    assert flat.log_prob[:num].tolist() != moves.log_prob[moves.active].tolist()


@pytest.fixture(scope="module")
def update(policy):
    return jit(make_update(policy, GAME, CONFIG))


@pytest.fixture(scope="module")
def updated(update, state):
    return update(state, KEY)


def test_the_first_step_has_ratio_one(updated, played):
    """All moves in one gradient step: the log-probabilities of the update are those of the games."""
    _, metrics = updated
    moves, _ = played
    assert metrics["gradient_steps"] == 1 and metrics["moves"] == moves.active.sum()
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    assert metrics["clip_fraction"] == 0
    np.testing.assert_allclose(metrics["policy_loss"], 0, atol=1e-4)  # minus the mean of normalised advantages
    rows = ppo.make_rows(*played, CONFIG)
    error = (moves.value - np.asarray(rows.target))[moves.active]
    np.testing.assert_allclose(metrics["value_loss"], np.mean(error**2), rtol=1e-4)
    assert metrics["finite"] and metrics["entropy"] > 0


@pytest.mark.slow
def test_small_batches_take_many_steps_of_which_accumulated_ones_are_one(policy, state, updated):
    whole = updated[1]
    split = dataclasses.replace(CONFIG, batch_size=15, accumulation=8)
    state_split, metrics = jit(make_update(policy, GAME, split))(state, KEY)
    for name in ("loss", "grad_norm", "entropy", "value_loss"):
        np.testing.assert_allclose(metrics[name], whole[name], rtol=1e-3, atol=1e-6, err_msg=name)
    small = dataclasses.replace(CONFIG, batch_size=5, accumulation=1, epochs=2, actor_learning_rate=1e-2)
    _, metrics = jit(make_update(policy, GAME, small))(state, KEY)
    assert metrics["gradient_steps"] == 2 * -(-int(metrics["moves"]) // 5)
    assert metrics["approx_kl"] > 1e-4  # theta has moved away from theta_old


@functools.cache
def toy(train, *words):
    """The game of signals: policy, config and the update."""
    game = signals(words) if words else signals()
    policy = MovePolicy.for_game(game, MODEL, TOKENIZER)
    config = LanguagePPOConfig(
        num_games=64, max_turns=1, batch_size=64, accumulation=1, train=train, actor_learning_rate=1e-2,
        critic_learning_rate=1e-2,
    )  # fmt: skip
    return policy, config, make_update(policy, game, config)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("params", ("gone", "give", "stop")),
        pytest.param("params", (), marks=pytest.mark.slow),
        pytest.param("lora", (), marks=pytest.mark.slow),
    ],
)
def test_the_rewarded_move_becomes_likely_and_the_critic_sees_it(params, train, words):
    """Medians over seeds: once all returns are 1, one seed may lose what it knew for a while at this learning rate."""
    policy, config, update = toy(train, *words)

    def run(seed):
        key = jax.random.key(seed)
        step = lambda state, i: update(state, jax.random.fold_in(key, i))
        state, metrics = jax.lax.scan(step, init_state(MODEL, params, config, key), jnp.arange(40))
        greedy = play(policy, signals(words) if words else signals(), state, key, 64, 1)
        return state, metrics["env_return"], metrics["value_loss"], greedy

    state, returns, losses, greedy = jit(lambda seeds: jax.lax.map(run, seeds))(jnp.arange(5))
    assert (state.iteration == 40).all() and (greedy["cut_rate"] == 0).all()
    assert np.median(returns[:, :3]) < 0.3 and np.median(returns[:, -5:]) > 0.75
    assert np.median(losses[:, -5:]) < 0.5 * np.median(losses[:, 0]) and np.median(greedy["win_rate"]) == 1
    if train == "lora":
        assert set(state.learned()) == {"lora", "critic", "opt_state", "iteration"}
        jax.tree.map(lambda now, then: np.testing.assert_array_equal(now[0], then), state.params, params)
    else:
        assert set(state.learned()) == {"params", "critic", "opt_state", "iteration"} and state.lora is None
        moved = jax.tree.map(lambda now, then: float(jnp.abs(now[0] - then).max()), state.params, params)
        assert all(change > 0 for change in jax.tree.leaves(moved))


def test_the_value_error_does_not_reach_the_model(params, state):
    """The only legal move has probability 1 whatever the model is: the actor learns nothing, the critic does."""
    policy, config, _ = toy("params")
    config = dataclasses.replace(config, num_games=2, entropy_coef=0.0, weight_decay=0.0)
    forced = lambda state: {"sign": state.sign, "legal": jnp.array([1, 0, 0])}
    before = init_state(MODEL, params, config, jax.random.key(0)).replace(critic=state.critic)
    after, metrics = jit(make_update(policy, dataclasses.replace(signals(), fields=forced), config))(before, KEY)
    assert metrics["value_loss"] > 0
    jax.tree.map(np.testing.assert_array_equal, after.params, params)
    assert not all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), after.critic, before.critic)))


def test_a_game_ends_at_its_environments_limit_and_bootstraps_there(params, policy, state):
    """Two of the five moves that are asked for; then nothing counts, and no advantage comes from after the end."""
    game = envs.make("tic_tac_toe", prompt="compact", max_steps=2)
    run = lambda s: ppo.play_games(policy, game, s.variables, value_of(s), KEY, 6, 5, 0.7)
    moves, cut_value = jax.device_get(jit(run)(state))
    assert (moves.active.sum(0) == 2).all() and not moves.terminated.any() and np.abs(cut_value).min() > 0
    assert (ppo.results(moves)["cut_rate"], moves.reward.any()) == (1, False)
    target = np.asarray(ppo.make_rows(moves, cut_value, CONFIG).target)
    last = 0.99 * cut_value
    np.testing.assert_allclose(target[1], last, rtol=1e-5)
    first = 0.99 * moves.value[1] + 0.99 * 0.95 * (last - moves.value[1])
    np.testing.assert_allclose(target[0], first, rtol=1e-4)


def test_a_non_finite_step_changes_nothing(update, state):
    broken = state.replace(critic=jax.tree.map(lambda x: x.at[..., 0].set(jnp.nan), state.critic))
    after, metrics = update(broken, KEY)
    assert not metrics["finite"]
    jax.tree.map(np.testing.assert_array_equal, after, broken)


def test_weights_of_16_bits_learn_as_float32(policy, params):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    state = init_state(MODEL, half, CONFIG, KEY)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    frozen = init_state(MODEL, half, dataclasses.replace(CONFIG, train="lora"), KEY)
    assert frozen.params is half
    with pytest.raises(ValueError, match="the weights that learn are bfloat16, in which small steps round to nothing"):
        make_update(policy, GAME, CONFIG)(state.replace(params=half), KEY)


def test_games_and_words_that_cannot_be_scored_are_refused():
    short = MODEL.clone(config=dataclasses.replace(MODEL.config, max_positions=20))
    for game, model, message in (
        (envs.make("frozen_lake", prompt="compact"), MODEL, "frozen_lake has no field 'legal' of 4 values"),
        (signals(("2", "5", "2")), MODEL, "actions of signals .*beginning of another word"),
        (signals(("2", "5", "")), MODEL, "joins the action '' of signals with the end"),
        (GAME, short, "the model has 20"),
    ):
        with pytest.raises(ValueError, match=message):
            MovePolicy.for_game(game, model, TOKENIZER)
