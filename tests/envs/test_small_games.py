"""What holds for every game of discrete actions: spaces, auto-reset, and refused options."""

import gymnax
import jax
import numpy as np
import pytest

from nlrl_jax import envs

ENVS, STEPS, LONGEST = 64, 30, 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("frozen_lake", {}),
        ("snake", {"size": 5}),
        ("maze_double_t", {}),
        ("maze_medium", {"observation": "partial"}),
        ("tic_tac_toe", {}),
        ("babyai", {}),
    ],
)
def test_an_episode_that_ends_or_is_cut_is_followed_by_a_fresh_one(name, options):
    game = envs.make(name, max_steps=LONGEST, **options)
    env, params = game.env, game.params
    assert isinstance(env, gymnax.environments.environment.Environment)
    assert env.action_space(params).n == env.num_actions == len(game.actions)
    over_games = lambda f: jax.vmap(f, in_axes=(0, None))

    def step(state, key):
        actions = jax.random.randint(key, (ENVS,), 0, env.num_actions)
        keys = jax.random.split(key, ENVS)
        out = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        keys = jax.vmap(jax.random.split)(keys)
        apart = jax.vmap(env.step_env, (0, 0, 0, None))(keys[:, 0], state, actions, params)
        return out[1], (state.time, out, apart, over_games(env.reset_env)(keys[:, 1], params))

    first, state = over_games(env.reset)(jax.random.split(jax.random.key(1), ENVS), params)
    scan = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(2), STEPS))[1])
    time, (obs, after, reward, terminated, truncated, info), apart, fresh = jax.tree.map(np.asarray, scan(state))
    assert env.observation_space(params).contains(first[0]) and env.observation_space(params).contains(obs[-1, 0])
    np.testing.assert_array_equal(truncated, time == LONGEST - 1)
    assert truncated.any() and (terminated.any() or name == "babyai")
    done = terminated | truncated
    chosen = lambda new, old: np.where(done.reshape(done.shape + (1,) * (new.ndim - 2)), new, old)
    jax.tree.map(np.testing.assert_array_equal, (obs, after), jax.tree.map(chosen, fresh, apart[:2]))
    np.testing.assert_array_equal(info["final_observation"], apart[0])
    np.testing.assert_allclose(reward, apart[2], rtol=1e-6)
    np.testing.assert_array_equal(terminated, apart[3])
    assert (after.time[done] == 0).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {"prompt": "long"}, "'long'.*paper, compact") for name in envs.GAMES),
        *(
            (name, {"max_steps": 0}, "max_steps is 0; it must be an integer from 1 to 2147483647")
            for name in envs.GAMES
        ),
        ("maze_medium", {"max_steps": 2.5}, "max_steps is 2.5; it must be an integer"),
        ("breakthrough", {"max_steps": 10**14}, "max_steps is 1000000"),
        ("frozen_lake", {"size": 1}, "size is 1"),
        ("frozen_lake", {"size": 4.0}, "size is 4.0; it must be an integer"),
        ("frozen_lake", {"hole_probability": 1.0}, "is 1.0"),
        ("frozen_lake", {"hole_probability": float("nan")}, "is nan"),
        ("frozen_lake", {"hole_probability": "0.2"}, "hole_probability is '0.2'; it must be a number"),
        ("frozen_lake", {"holes": 0.2}, "frozen_lake has no option 'holes'; its options are size, prompt, "),
        ("frozen_lake", {"slippery": True}, "frozen_lake has no option 'slippery'"),
        ("frozen_lake", {"size": 8, "hole_probability": 0.97}, "size 8, .* 0.97 and maps 'all': of 16384 candidates"),
        ("frozen_lake", {"size": 40, "hole_probability": 0.6}, "of 655 candidates none is solvable"),
        ("frozen_lake", {"size": 2, "maps": "held_out"}, "size 2, .* 'held_out': no map is solvable and of this set"),
        ("frozen_lake", {"hole_probability": 0, "maps": "held_out"}, "size 4, hole_probability 0 and .*: no map"),
        ("frozen_lake", {"size": 16, "hole_probability": 1e-9, "maps": "held_out"}, "'held_out': of 4096 candidates"),
        ("frozen_lake", {"maps": "test"}, "'test'"),
        ("snake", {"size": 2}, "size 2 and num_apples 5"),
        ("snake", {"size": 33}, "size is 33"),
        ("snake", {"size": -5}, "size is -5; it must be an integer from 2 to 32"),
        ("snake", {"size": 3, "num_apples": 8}, "size 3 and num_apples 8: two heads and at least one apple must fit"),
        ("snake", {"num_apples": 0}, "num_apples is 0"),
        ("snake", {"num_apples": 2.5}, "num_apples is 2.5; it must be an integer"),
        ("snake", {"max_length": float("nan")}, "max_length is nan"),
        ("snake", {"max_length": 128}, "max_length is 128"),
        ("maze_medium", {"observation": "none"}, "'none'.*full, partial"),
        ("tic_tac_toe", {"opponent": "strong"}, "'strong'.*minimax"),
        ("tic_tac_toe", {"side": "o"}, "'o'.*both"),
        ("breakthrough", {"opponent": "me"}, "opponent is 'me'"),
        ("breakthrough", {"side": "O"}, "side is 'O'; choose one of black, white, both"),
        ("babyai", {"mission": "fly"}, "'fly'.*go to.*all"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **options)


def test_unknown_name_lists_the_games():
    with pytest.raises(ValueError, match="'frozenlake'.*frozen_lake, frozen_lake_slippery, snake, snake_poison"):
        envs.make("frozenlake")
    for name in envs.GAMES:
        assert envs.make(name).name == name
