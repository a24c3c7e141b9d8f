"""The robots against Gymnasium's own, from the same states with the same actions."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

pytest.importorskip("mujoco")
gymnasium = pytest.importorskip("gymnasium")
if "imageio" not in sys.modules and importlib.util.find_spec("imageio") is None:
    sys.modules["imageio"] = types.ModuleType("imageio")  # only Gymnasium's viewer uses it

import mujoco  # noqa: E402
from mujoco import mjx  # noqa: E402
from mujoco.mjx._src import collision_driver  # noqa: E402

from nlrl_jax.envs.locomotion import env as locomotion  # noqa: E402
from nlrl_jax.envs.locomotion import physics_c, physics_mjx  # noqa: E402

NAMES = {"hopper": "Hopper", "walker2d": "Walker2d", "ant": "Ant"}
GAMES = [(name, version) for name in NAMES for version in locomotion.VERSIONS]
each_game = pytest.mark.parametrize(("name", "version"), GAMES)


def peer(name, version, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(f"{NAMES[name]}-{version}", disable_env_checker=True, **options).unwrapped


def put(env, reference):
    """Gymnasium's present state as ours."""
    data = reference.data
    _, state = env.state_of(data.qpos, data.qvel)
    x = data.xpos[1, 0] if env.robot.free else data.qpos[0]
    return state.replace(warmstart=jnp.array(data.qacc_warmstart, env.dtype), x=jnp.array(x, env.dtype))


def held_out(reference, rows, seed):
    """Leaves the reference, row by row, just reset or somewhere on a random walk: standing, in contact, falling."""
    rng = np.random.default_rng(seed)
    for row in range(rows):
        reference.reset(seed=seed + row)
        for _ in range((0, 4, 25, 100)[row % 4]):
            reference.step(rng.uniform(-1, 1, reference.model.nu) * (1.0, 0.3)[row % 2])
        yield row


def compare(env, reference, rows=8, steps=10, seed=0):
    """Largest differences over all rows after every step: (observation, reward, x), and whether contacts occurred."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1.3, 1.3, (steps, rows, env.num_actions)).astype(np.float32).astype(np.float64)
    states, theirs, contacts = [], [], 0
    for row in held_out(reference, rows, seed):
        states.append(put(env, reference))
        theirs.append([])
        for action in actions[:, row]:
            obs, reward, terminated, _, info = reference.step(action)
            contacts += reference.data.ncon
            theirs[-1].append((obs, reward, info["x_position"], terminated))
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    step = jax.jit(jax.vmap(env.step_env, (None, 0, 0, None)))
    worst = np.zeros((3, rows))
    for t in range(steps):
        obs, state, reward, terminated, info = step(None, state, actions[t], env.default_params)
        for row in range(rows):
            want = theirs[row][t]
            got = (obs[row], reward[row], info["x_position"][row])
            differences = [np.abs(np.asarray(a) - b).max() for a, b in zip(got, want)]
            worst[:, row] = np.maximum(worst[:, row], differences)
            assert bool(terminated[row]) == want[3]
    assert not info["exploded"].any()
    return worst, contacts


@pytest.mark.parametrize(("x64", "seed", "most"), [(False, 0, 1e-4), (True, 50, 1e-12)])
@each_game
def test_ten_steps_on_the_c_simulator_are_gymnasiums(name, version, x64, seed, most):
    with jax.enable_x64(x64):
        worst, contacts = compare(locomotion.make_env(name, version, "c"), peer(name, version), seed=seed)
    assert contacts > 10 and worst.max() < most


def test_the_ant_of_v4_feels_contact_forces_where_it_is_asked_to():
    env = locomotion.make_env("ant", "v4", "c", contact_forces=True)
    assert env.observation_space().shape == (111,)
    worst, contacts = compare(env, peer("ant", "v4", use_contact_forces=True))
    assert contacts > 10 and worst.max() < 1e-4
    plain, _ = compare(locomotion.make_env("ant", "v4", "c"), peer("ant", "v4"), rows=4, steps=2)
    assert plain.max() < 1e-4
    with pytest.raises(ValueError, match="hopper has no contact forces, only the ant"):
        locomotion.make_env("hopper", "v4", "c", contact_forces=True)


@pytest.mark.slow
@each_game
def test_ten_steps_on_mjx_are_gymnasiums_in_x64(name, version):
    with jax.enable_x64(True):
        worst, contacts = compare(locomotion.make_env(name, version, "mjx"), peer(name, version), rows=16)
    assert contacts > 10 and worst.max() < 1e-10


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version) if name == "hopper" else pytest.param(name, version, marks=pytest.mark.slow)
        for name, version in GAMES[::2]
    ],
)
def test_ten_steps_on_mjx_are_gymnasiums_within_float32(name, version):
    """Contacts that begin or end a sub-step early magnify the rounding of velocities, which reach 35."""
    worst, contacts = compare(locomotion.make_env(name, version, "mjx"), peer(name, version), rows=16)
    assert contacts > 10
    assert worst[2].max() < 1e-4
    assert np.quantile(worst, 0.75) < 1e-4
    if name == "hopper":
        assert worst.max() < 1e-4


def test_the_corrected_collider_stays_with_our_step():
    table = collision_driver._COLLISION_FUNC
    before = dict(table)
    with contextlib.suppress(KeyError), physics_mjx.c_collider():
        assert table[physics_mjx._PAIR] is not before[physics_mjx._PAIR]
        raise KeyError
    assert table == before


def test_an_mjx_that_is_built_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr(collision_driver, "_COLLISION_FUNC", {})
    with pytest.raises(RuntimeError, match="not built like 3.17"):
        locomotion.make_env("ant", "v4", "mjx")


@pytest.mark.parametrize(
    ("axis", "upright"), [((0.6, 0.0, 0.8), False), ((0.0, 0.05, 0.99875), False), ((0.0, 0.0, 1.0), True)]
)
def test_a_contacts_frame_lies_along_the_capsule_as_in_c(axis, upright):
    """One capsule over a plane, straight into MuJoCo's collider and ours."""
    xml = f"""<mujoco><worldbody><geom type="plane" size="5 5 1"/><body pos="0 0 {0.3 * axis[2] + 0.05}"><freejoint/>
      <geom type="capsule" size="0.1 0.3" zaxis="{axis[0]} {axis[1]} {axis[2]}"/></body></worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    ours = mjx.kinematics(mjx.put_model(model, impl="jax"), mjx.put_data(model, data, impl="jax"))
    distance, point, frame = physics_mjx._plane_capsule(model, ours, None, np.array([[0, 1]]))
    assert data.ncon >= 1
    for contact in data.contact:
        nearest = int(np.argmin(np.abs(np.asarray(distance) - contact.dist)))
        np.testing.assert_allclose(point[nearest], contact.pos, atol=1e-6)
        np.testing.assert_allclose(frame[nearest].reshape(-1), contact.frame, atol=1e-6)


@each_game
def test_health_is_gymnasiums_at_every_threshold(name, version):
    env, reference = locomotion.make_env(name, version, "c"), peer(name, version)
    reference.reset(seed=0)
    height = 2 if name == "ant" else 1
    near = [(height, z) for edge in (0.2, 0.7, 0.8, 1.0, 2.0) for z in (edge - 1e-6, edge, edge + 1e-6)]
    near += [(2, a * side) for edge in (0.2, 1.0) for a in (edge - 1e-6, edge, edge + 1e-6) for side in (-1, 1)]
    near += [(env.model.nq + 3, 99.9), (env.model.nq + 3, -100.0), (env.model.nq, 100.1), (3, -101.0)]
    verdicts = set()
    with jax.enable_x64(True):
        for index, value in near:
            both = np.concatenate([reference.init_qpos, reference.init_qvel])
            both[index] = value
            reference.data.qpos[:], reference.data.qvel[:] = both[: env.model.nq], both[env.model.nq :]
            ours = bool(env.robot.healthy(*map(jnp.asarray, (reference.data.qpos, reference.data.qvel))))
            assert ours == bool(reference.is_healthy), (index, value)
            verdicts.add(ours)
    assert verdicts == {True, False}


@each_game
def test_a_fall_ends_the_episode_and_pays_as_in_gymnasium(name, version):
    env, reference = locomotion.make_env(name, version, "c"), peer(name, version)
    fallen = {"hopper": (2, 0.3), "walker2d": (1, 0.75), "ant": (2, 1.6)}[name]
    reference.reset(seed=3)
    qpos = reference.data.qpos.copy()
    qpos[fallen[0]] = fallen[1]
    reference.set_state(qpos, reference.data.qvel.copy())
    reference.data.qacc_warmstart[:] = 0
    state = put(env, reference)
    action = np.full(env.num_actions, 0.5)
    _, state, reward, terminated, info = jax.jit(env.step_env)(None, state, action, env.default_params)
    _, want, gone, _, details = reference.step(action)
    assert gone and terminated and env.is_terminated(state, env.default_params)
    assert abs(float(reward) - want) < 1e-4
    assert float(info["reward_healthy"]) == (1.0 if version == "v4" else 0.0)
    if "reward_contact" in details:
        assert abs(float(info["reward_contact"]) - details["reward_contact"]) < 1e-6
    parts = [info[part] for part in ("reward_forward", "reward_ctrl", "reward_healthy", "reward_contact")]
    np.testing.assert_allclose(sum(parts), reward, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_resets_have_gymnasiums_distribution(name):
    env, reference = locomotion.make_env(name, "v5", "c"), peer(name, "v5")
    reference.reset(seed=0)
    theirs = np.array([reference.reset()[0] for _ in range(300)])
    ours = np.asarray(jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 300), None)[0])
    assert ours.shape == theirs.shape == (300, *env.observation_space().shape)
    moving = env.model.nq - env.robot.hidden + env.model.nv
    assert (ours[:, moving:] == 0).all() and (theirs[:, moving:] == 0).all()
    chances = [stats.ks_2samp(ours[:, i], theirs[:, i]).pvalue for i in range(moving)]
    assert min(chances) > 1e-4
    scale = env.default_params.reset_noise_scale
    strays = np.abs(ours[:, : env.model.nq - env.robot.hidden] - env.model.qpos0[env.robot.hidden :])
    assert 0.98 * scale < strays.max() <= scale * (1 + 1e-4)
    pairs = np.corrcoef(ours[:, :moving].T) - np.eye(moving)
    assert np.abs(pairs).max() < 0.3  # independent: 300 draws leave 0.06


def rollout(env, state, actions):
    """Observations [T, B, ...] and the last state."""

    def step(state, action):
        obs, state, *_ = jax.vmap(env.step_env, (None, 0, 0, None))(None, state, action, env.default_params)
        return state, obs

    return jax.jit(lambda state, actions: jax.lax.scan(step, state, actions))(state, actions)[::-1]


def test_a_stored_state_has_the_same_future():
    env = locomotion.make_env("ant", "v5", "c")
    actions = jax.random.uniform(jax.random.key(1), (60, 5, 8), minval=-1)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 5), None)
    _, middle = rollout(env, state, actions[:30])
    stored = jax.tree.map(np.asarray, middle)
    first, end = rollout(env, middle, actions[30:])
    again, same = rollout(env, jax.tree.map(jnp.asarray, stored), actions[30:])
    np.testing.assert_array_equal(first, again)
    jax.tree.map(np.testing.assert_array_equal, end, same)
    assert np.abs(middle.contact_force).max() == 1  # forces were felt, and clipped


def test_a_row_depends_on_neither_batch_nor_threads():
    env = locomotion.make_env("walker2d", "v4", "c")
    actions = jax.random.uniform(jax.random.key(1), (30, 7, 6), minval=-1)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 7), None)
    want, _ = rollout(env, state, actions)
    order = np.array([6, 2, 0])
    fewer, _ = rollout(env, jax.tree.map(lambda x: x[order], state), actions[:, order])
    np.testing.assert_array_equal(fewer, want[:, order])
    for threads in (1, 5):
        env.simulate = physics_c.stepper(env.model, env.robot.frame_skip, False, threads)
        np.testing.assert_array_equal(rollout(env, state, actions)[0], want)


def test_time_runs_out_and_the_last_observation_is_handed_over():
    env = locomotion.make_env("ant", "v4", "c")
    params = env.default_params.replace(max_steps_in_episode=3)
    obs, state = env.reset(jax.random.key(0), params)
    for t in range(3):
        obs, state, reward, terminated, truncated, info = env.step(jax.random.key(t), state, jnp.zeros(8), params)
        assert (not terminated) and bool(truncated) == (t == 2)
    assert int(state.time) == 0
    assert np.abs(obs - info["final_observation"]).max() > 1e-3


ON_C = [(name, "v5", "c") for name in NAMES]


@pytest.mark.parametrize("robot", [*ON_C, pytest.param(("hopper", "v4", "mjx"), marks=pytest.mark.slow)])
def test_a_state_that_explodes_ends_its_episode_and_no_other(robot, tmp_path, monkeypatch, capfd):
    """A batch of five states and actions: a sound one, NaN, infinity, a speed that blows up, and a NaN action."""
    monkeypatch.chdir(tmp_path)
    env = locomotion.make_env(*robot)
    _, sound = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 5), None)
    qpos = sound.qpos.at[1, 2].set(jnp.nan).at[2, 0].set(jnp.inf)
    state = sound.replace(qpos=qpos, qvel=sound.qvel.at[3].set(9e9))
    actions = jnp.zeros((5, env.num_actions)).at[4, 0].set(jnp.nan)
    step = jax.jit(jax.vmap(env.step_env, (None, 0, 0, None)))
    obs, after, reward, terminated, info = step(None, state, actions, env.default_params)
    assert info["exploded"].tolist() == [False, True, True, True, True]
    assert terminated.tolist() == [False, True, True, True, True]
    assert (obs[1:] == 0).all() and (reward[1:] == 0).all() and (info["x_position"][1:] == 0).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((obs, reward, info)))
    want = step(None, sound, jnp.zeros_like(actions), env.default_params)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), (obs, after, reward), want[:3])
    *_, info = step(None, after, jnp.zeros_like(actions), env.default_params)
    assert info["exploded"].tolist() == [False, True, True, True, True]  # until they are reset
    assert not list(tmp_path.iterdir())  # MuJoCo wrote no log
    assert "WARNING" not in capfd.readouterr().err


def test_wrong_arguments_are_named():
    for arguments, message in (
        (("cheetah",), "name is 'cheetah'; choose one of hopper, walker2d, ant"),
        (("ant", "v3"), "version is 'v3'"),
        (("ant", "v4", "warp"), "physics is 'warp'"),
    ):
        with pytest.raises(ValueError, match=message):
            locomotion.make_env(*arguments)
    env = locomotion.make_env("ant", physics="c")
    with pytest.raises(ValueError, match=r"shape \(3,\); ant-v4 takes \(8,\)"):
        env.step(jax.random.key(0), env.reset(jax.random.key(0))[1], jnp.zeros(3))


def test_the_device_chooses_the_physics(monkeypatch):
    assert locomotion.make_env("hopper").physics == "c"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert locomotion.make_env("hopper").physics == "mjx"


def test_a_game_made_before_x64_says_so():
    env = locomotion.make_env("hopper", physics="mjx")
    with jax.enable_x64(True), pytest.raises(ValueError, match="float64, but this game was made for float32"):
        env.simulate(*(jnp.zeros(n, jnp.float64) for n in (6, 6, 6, 3)))


def test_simulators_are_imported_only_when_a_game_is_made():
    code = (
        "import sys; from envs.locomotion import env as locomotion; assert 'mujoco' not in sys.modules; "
        "locomotion.make_env('hopper', physics='c'); assert 'mujoco' in sys.modules; "
        "assert 'mujoco.mjx' not in sys.modules and 'gymnasium.envs.mujoco' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
