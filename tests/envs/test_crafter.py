import subprocess
import sys

import jax
import numpy as np
import pytest
from craftax.craftax_classic.renderer import render_craftax_symbolic

from nlrl_jax.envs.crafter import engine
from nlrl_jax.envs.crafter.env import ACTIONS, EnvParams
from tests.envs.crafter_worlds import BATCH, MIDDLE, fresh, game, played, row, stack, state_of, step

ACT = {name: i for i, name in enumerate(ACTIONS)}


def test_a_game_imports_no_textures_and_no_window_and_nothing_before_it_is_made():
    code = (
        "import sys; from nlrl_jax import envs; assert 'craftax' not in sys.modules and 'gymnax' not in sys.modules\n"
        "for make in (envs.make, envs.make_host):\n"
        "    sys.modules['craftax'] = None  # as if it were not installed\n"
        "    try: make('crafter'); assert False\n"
        "    except ValueError as error: assert \"package craftax: pip install 'nlrl_jax[crafter]'\" in str(error)\n"
        "del sys.modules['craftax']\n"
        "envs.make('crafter')\n"
        "assert 'craftax' in sys.modules and 'pygame' not in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('craftax') and 'render' in name]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_actions_are_the_engines():
    theirs = [one.name for one in sorted(engine.Action, key=lambda one: one.value)]
    names = dict(LEFT="move west", RIGHT="move east", UP="move north", DOWN="move south")
    assert ACTIONS == tuple(names.get(name, name.lower().replace("_", " ")) for name in theirs)
    assert len(engine.ACHIEVEMENTS) == 22 and len(engine.Action) == len(ACTIONS) == 17


def test_observations_hold_what_the_engines_own_do():
    states = played()
    mine = np.asarray(jax.jit(jax.vmap(lambda state: game().env.observe(None, state, None, None)))(states))
    assert mine.shape[1:] == game().env.observation_space(EnvParams()).shape == (1345,)
    for i in range(0, len(mine), 37):
        state = row(states, i)
        theirs = np.asarray(render_craftax_symbolic(state.world))
        cells = theirs[: 63 * 21].reshape(63, 21).copy()
        cells[cells[:, 17:].any(1), :17] = 0  # theirs shows the ground under a creature
        for upper, lower in ((17, 20), (18, 20), (19, 20)):
            cells[cells[:, upper] > 0, lower] = 0
        np.testing.assert_array_equal(mine[i, : 63 * 21].reshape(63, 21), cells)
        wood, stone, coal, iron, diamond, sapling = theirs[63 * 21 :][:6]
        others = [*theirs[63 * 21 + 12 :][:4], sapling, wood, stone, coal, iron, diamond, *theirs[63 * 21 + 6 :][:6]]
        np.testing.assert_allclose(mine[i, 63 * 21 :][:16] * 9, np.float32(others) * 10, rtol=1e-3)
        np.testing.assert_allclose(mine[i, -6:], theirs[-6:], rtol=1e-5)


def test_reward_is_the_share_of_new_achievements_and_pays_once():
    state = state_of(blocks={(-1, 0): "tree", (0, 1): "water"})
    states, reward, ended = step(stack([state]), ACT["do"])
    assert reward[0] == pytest.approx(1 / 22) and not ended[0] and states.time[0] == 1
    assert [name for name, have in zip(engine.ACHIEVEMENTS, states.world.achievements[0]) if have] == ["collect_wood"]
    again = state_of(blocks={(-1, 0): "tree"}, achievements=states.world.achievements[0])
    assert step(stack([again]), ACT["do"])[1][0] == 0
    harmed = state_of(player_health=5, mobs=[("zombies", 0, 1)])
    assert step(stack([harmed]), ACT["noop"])[1][0] == 0  # health is no reward


def test_all_achievements_are_success():
    success = jax.jit(game().success)
    assert not success(state_of(achievements=np.arange(22) > 0))
    assert success(state_of(achievements=np.ones(22, bool)))


def test_death_ends_the_episode_and_lava_kills():
    starved = state_of(player_health=1, player_food=0, player_recover=-15.0)
    burnt = state_of(blocks={(-1, 0): "lava"})
    states, _, ended = step(stack([starved, burnt, state_of()]), ACT["move north"])
    assert ended[:3].tolist() == [True, True, False] and states.world.player_health[:2].tolist() == [0, 0]
    assert states.world.player_position[2].tolist() == [MIDDLE - 1, MIDDLE]


def test_a_sleeper_does_nothing_until_energy_is_full():
    state = stack([state_of(player_energy=8, player_fatigue=-9.0)])
    state = step(state, ACT["sleep"])[0]
    assert state.world.is_sleeping[0]
    before = state.world.player_position[0].tolist()
    for _ in range(2):
        state = step(state, ACT["move west"])[0]
    assert state.world.player_position[0].tolist() == before and not state.world.is_sleeping[0]
    assert state.world.achievements[0][engine.ACHIEVEMENTS.index("wake_up")]


def test_each_seed_has_its_world_and_steps_are_deterministic():
    worlds = fresh().world
    assert len({one.tobytes() for one in worlds.map}) == BATCH
    assert (worlds.map == engine.BLOCKS.index("diamond")).any((1, 2)).all()
    one, two = (step(fresh(), ACT["do"], seed=4)[0] for _ in range(2))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, two))
