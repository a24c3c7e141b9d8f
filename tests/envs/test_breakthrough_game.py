"""Breakthrough for one player against OpenSpiel's rules, and as a text game that a language model plays."""

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.breakthrough.rules import board_game
from nlrl_jax.envs.one_player import EnvParams, OnePlayer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.rollouts import text_games
from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.prompts import chat_prompt
from nlrl_jax.types import Sampling
from nlrl_jax.weights.load import load_model, load_tokenizer

SPIEL = pyspiel.load_game("breakthrough(rows=5,columns=5)")  # one row of pawns a side


def test_games_against_the_first_move_are_open_spiels():
    env, params = OnePlayer(board_game(5, 5, 1), (5, 5), "first_move"), EnvParams(40)
    reset, step = jax.jit(env.reset_env), jax.jit(env.step_env)
    numbers = {int(id): n for n, id in enumerate(env.ids)}
    rng, won = np.random.default_rng(0), {1.0: 0, -1.0: 0}
    for n in range(40):
        _, state = reset(jax.random.key(n), params)
        side, spiel, over = int(state.side), SPIEL.new_initial_state(), False
        if side == 1:
            spiel.apply_action(min(spiel.legal_actions()))
        while not over:
            action = int(rng.choice(spiel.legal_actions()))
            assert env.words[numbers[action]] == spiel.action_to_string(side, action)
            spiel.apply_action(action)
            if not spiel.is_terminal():
                spiel.apply_action(min(spiel.legal_actions()))
            obs, state, reward, over, info = step(jax.random.key(0), state, numbers[action], params)
            assert bool(over) == spiel.is_terminal() and not info["illegal_move"]
            assert float(reward) == spiel.returns()[side]
            board = np.array([row[1:] for row in str(spiel).splitlines()[:5]])
            own = np.array([[cell == "bw"[side] for cell in row] for row in board])
            np.testing.assert_array_equal(obs[..., 0], own)
        won[float(reward)] += 1
        assert bool(env.success(state)) == (float(reward) == 1)
    assert min(won.values()) > 0


@pytest.mark.slow
def test_a_language_model_plays_it():
    game = envs.make("breakthrough", prompt="compact", side="black")
    config, params, tokenizer = load_model("nano_board")
    policy = LanguageAgentPolicy.for_game(game, Transformer(config), tokenizer, Sampling(max_tokens=4), "compact")
    reply = tokenizer.encode("<action>a5a4</action>")
    parsed = policy.parse(jnp.array(reply), jnp.int32(len(reply)))
    assert game.actions[int(parsed.actions[0])] == "a5a4"
    states = text_games.reset(game, jax.random.key(0), 2)
    turns = text_games.play(policy, game, {"params": params}, jax.random.key(1), states, 1, 1).turns
    read = tokenizer.decode(np.concatenate([policy.template.prefix, turns.turn.prompts[0, 0]]).tolist())
    fields = {name: np.asarray(value[0, 0]) for name, value in turns.fields.items()}
    assert game.observation.render(fields) in read and "black to move" in read


@pytest.mark.parametrize("prompt", ["paper", "compact"])
def test_its_text_compiles_for_a_byte_level_tokenizer(prompt):
    game, tokenizer = envs.make("breakthrough", prompt=prompt), load_tokenizer("nano")
    compile_template(chat_prompt(game, tokenizer.render_chat, prompt, 10), tokenizer)
