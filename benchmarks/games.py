"""Random play, steps a second, and tree search, simulations a second, beside libraries with the same games.

    python -m benchmarks.games [--games boards pong] [--seconds 0.5] [--repeats 5] [--batches 1 64 1024]
    python -m benchmarks.games --games hopper --version v5 --physics mjx --dtype float64
    python -m benchmarks.games --games mcts --simulations 100 --rollouts 1

    boards   FrozenLake and Snake                peer: gymnax's FrozenLake-misc, one fixed map; ours draws a new map in
                                                 each episode
    pong     ULTRA's Pong                        peer: gymnax's Pong-misc, another game of 30 x 40 cells
    babyai   GoToLocal with 8 distractors        peer: minigrid, one game, a view after each step; ours sees each step
                                                 too, and "as tokens" also writes the text as token ids
    hopper, walker2d, ant                        peer: Gymnasium's vector environments, one game per core
    mcts     5x5 breakthrough, 0 to 19 random    peer: OpenSpiel's MCTSBot in C++ on one thread; neither solves, as a
             moves in                            solver stops early

Ours is one jitted `lax.scan` over steps of n games under `vmap` that plays on from call to call, with random actions
drawn inside; rewards are summed so that nothing is optimised away. With "obs" observations are summed too; without it
the compiler may leave them out, as in the text games, whose text reads the state. The subjects take turns within each
repeat. A cell is the median in thousands a second and, in brackets, its ratio to the faster peer at that batch size (or
to the peer's only one). A peer that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import in_turns, machine, medians, parser_of, print_head, print_row, timed
from nlrl_jax import envs
from nlrl_jax.algorithms.mcts import mcts_policy
from nlrl_jax.envs.babyai import levels, rules
from nlrl_jax.envs.breakthrough import rules as breakthrough
from nlrl_jax.envs.locomotion import env as locomotion
from nlrl_jax.envs.pong import env as pong
from nlrl_jax.text.compile import compile_template
from nlrl_jax.weights.load import load_model

ROBOTS = {"hopper": "Hopper", "walker2d": "Walker2d", "ant": "Ant"}
CORES = len(os.sched_getaffinity(0))
BABYAI_STEPS = 30  # of an episode
Play = Callable[[], int]  # plays a little; how many steps that was


class Subject(NamedTuple):
    """make: batch -> `Play`. batch: its only batch size, 0 if it has any."""

    name: str
    make: Callable[[int], Play]
    batch: int = 0
    is_peer: bool = False


def rate(play: Play, seconds: float) -> float:
    """Steps a second, played for at least so many seconds."""
    start, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        steps += play()
    return steps / elapsed


def scanned(start: Callable[[jax.Array], Any], step: Callable[..., Any], length: int, batch: int, steps: int) -> Play:
    """Plays on for `length` scanned steps per call, each of `steps` steps in `batch` games.

    Args:
      start: key -> states. step: (states, key) -> (states, a checksum).
    """

    def play(states, key):
        states, sums = jax.lax.scan(step, states, jax.random.split(key, length))
        return states, jax.random.fold_in(key, 0), sums.sum()

    program, carry = jax.jit(play), [jax.jit(start)(jax.random.key(0)), jax.random.key(1)]

    def run() -> int:
        *carry[:], _ = jax.block_until_ready(program(*carry))
        return length * steps * batch

    return run


def of_env(env: Any, params: Any, with_obs: bool = True, length: int = 20_000) -> Callable[[int], Play]:
    """Random play in an auto-resetting environment, about `length` steps a call."""
    continuous = hasattr(env, "dtype")  # a robot

    def make(batch: int) -> Play:
        def step(state, key):
            key_action, key_step = jax.random.split(key)
            shape = (batch, env.num_actions) if continuous else (batch,)
            draw = functools.partial(jax.random.uniform, minval=-1) if continuous else jax.random.randint
            actions = draw(key_action, shape) if continuous else draw(key_action, shape, 0, env.num_actions)
            keys = jax.random.split(key_step, batch)
            obs, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
            return state, reward.sum() + (obs.sum() if with_obs else 0)

        def start(key):
            return jax.vmap(env.reset, (0, None))(jax.random.split(key, batch), params)[1]

        return scanned(start, step, max(16 if continuous else 50, length // batch), batch, 1)

    return make


def boards(_: argparse.Namespace) -> Iterator[Subject]:
    peer = of_env(*gymnax.make("FrozenLake-misc"))
    yield Subject("gymnax FrozenLake-misc (slippery, fixed map)", peer, is_peer=True)
    for name in ("frozen_lake_slippery", "frozen_lake", "snake"):
        game = envs.make(name)
        yield Subject(name, of_env(game.env, game.params, False))
        yield Subject(f"{name}, obs", of_env(game.env, game.params))


def pongs(_: argparse.Namespace) -> Iterator[Subject]:
    yield Subject("gymnax Pong-misc", of_env(*gymnax.make("Pong-misc")), is_peer=True)
    for name, points in (("one point", 1), ("to 21", 21)):
        game = pong.control_game(points)
        yield Subject(f"pong, {name}", of_env(game.env, game.params))


def minigrid() -> Play:
    """minigrid's GoToLocal, 100 steps a call."""
    import gymnasium
    import minigrid  # noqa: F401, registers its environments

    env = gymnasium.make("BabyAI-GoToLocal-v0").unwrapped
    env.reset(seed=0)

    def play() -> int:
        for action in env.np_random.integers(0, len(rules.ACTIONS), 100):
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return 100

    return play


def babyai(options: argparse.Namespace) -> Iterator[Subject]:
    yield Subject("minigrid (one game)", lambda _: minigrid(), 1, True)

    def fresh(key, batch):
        return jax.vmap(lambda key: levels.draw(key, options.mission))(jax.random.split(key, batch))

    def act(states, key):
        """One random action in each game, and a checksum of what is seen."""
        actions = jax.random.randint(key, (states.time.shape[0],), 0, len(rules.ACTIONS))
        states = jax.vmap(rules.step)(states, actions)
        return states, jax.vmap(rules.view)(states).sum(dtype=jnp.int32)

    def episode(states, key):
        keys = jax.random.split(key, BABYAI_STEPS + 1)
        states, sums = jax.lax.scan(act, fresh(keys[0], states.time.shape[0]), keys[1:])
        return states, sums.sum()

    def with_text(prompt: str):
        game = envs.make("babyai", prompt)
        compiled = compile_template(game.observation, load_model("nano")[2])

        def step(states, key):
            states, total = act(states, key)
            tokens, lengths = jax.vmap(lambda state: compiled(game.fields(state)))(states)
            return states, total + tokens.sum() + lengths.sum()

        return step

    rows = {"steps": act, f"games of {BABYAI_STEPS} steps": episode}
    rows |= {f"{prompt} prompt as tokens": with_text(prompt) for prompt in ("paper", "compact")}
    for name, step in rows.items():
        steps = BABYAI_STEPS if step is episode else 1

        def make(batch, step=step, steps=steps):
            length = max(1, 3000 // batch // steps)
            return scanned(lambda key: fresh(key, batch), step, length, batch, steps)

        yield Subject(name, make)


def gymnasium_robot(name: str):
    """One of Gymnasium's environments; also called in processes of its own."""
    import gymnasium

    warnings.simplefilter("ignore")
    return gymnasium.make(name)


def gymnasium_vector(name: str, kind: str) -> Play:
    """Gymnasium's vector environment of one game per core, 16 steps a call; its actions are drawn beforehand."""
    import gymnasium

    makers = [functools.partial(gymnasium_robot, name)] * CORES
    vector = gymnasium.vector
    # spawn: forking a process in which JAX runs may hang
    env = vector.SyncVectorEnv(makers) if kind == "sync" else vector.AsyncVectorEnv(makers, context="spawn")
    actions = np.random.default_rng(0).uniform(-1, 1, (16, *env.action_space.shape)).astype(np.float32)
    env.reset(seed=0)
    return lambda: sum(len(env.step(action)[1]) for action in actions)


def robots(game: str, options: argparse.Namespace) -> Iterator[Subject]:
    for kind in ("sync", "async"):
        peer = f"{ROBOTS[game]}-{options.version}"
        yield Subject(
            f"gymnasium, {kind}, {CORES} games", lambda _, kind=kind: gymnasium_vector(peer, kind), CORES, True
        )
    for physics in options.physics:
        env = locomotion.make_env(game, options.version, physics)
        yield Subject(f"{game}-{options.version}, {physics}", of_env(env, env.default_params, length=16))


def breakthrough_positions(game: Any, count: int) -> tuple[Any, list[Any]]:
    """(positions [count] of random games, the same as OpenSpiel's states); none is finished."""
    import pyspiel

    peer = pyspiel.load_game("breakthrough(rows=5,columns=5)")
    rng, positions, states = np.random.default_rng(0), [], []
    while len(positions) < count:
        state = peer.deserialize_state("bbbbbbbbbb.....wwwwwwwwww0")
        for _ in range(len(positions) % 20):
            if not state.is_terminal():
                state.apply_action(int(rng.choice(state.legal_actions())))
        if not state.is_terminal():
            positions.append(jax.tree.map(np.asarray, game.parse(str(state), game.players[state.current_player()])))
            states.append(state)
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *positions), states


def search(options: argparse.Namespace) -> Iterator[Subject]:
    import pyspiel

    game, simulations = breakthrough.board_game(), options.simulations
    positions, states = breakthrough_positions(game, max(options.batches))
    evaluator = pyspiel.RandomRolloutEvaluator(options.rollouts, 0)
    bot = pyspiel.MCTSBot(states[0].get_game(), evaluator, 1.0, simulations, 1000, False, 0, False)
    policy = jax.jit(mcts_policy(game, simulations, options.rollouts, solve=False))

    def openspiel(batch):  # its rate does not depend on the batch
        first = states[: min(batch, 200)]
        return lambda: simulations * len([bot.step(state) for state in first])

    def ours(batch):
        at = jax.tree.map(lambda x: x[:batch], positions)
        return lambda: simulations * len(jax.block_until_ready(policy(jax.random.key(0), at)))

    yield Subject("OpenSpiel's MCTSBot", openspiel, is_peer=True)
    yield Subject("nlrl_jax", ours)


GAMES: dict[str, Callable[[argparse.Namespace], Iterator[Subject]]] = {
    "boards": boards,
    "pong": pongs,
    "babyai": babyai,
    **{game: functools.partial(robots, game) for game in ROBOTS},
    "mcts": search,
}


def table(title: str, subjects: list[Subject], options: argparse.Namespace) -> None:
    """Measures the subjects of one game and prints their table."""
    plays, compiling = {}, dict.fromkeys((subject.name for subject in subjects), 0.0)
    for subject in subjects:
        for batch in [subject.batch] if subject.batch else options.batches:
            try:
                play = plays[subject.name, batch] = subject.make(batch)
            except ImportError as error:
                print(f"{subject.name} is not installed ({error})")
                continue
            compiling[subject.name] = max(compiling[subject.name], timed(play)[0])
    measures = {name: lambda _, play=play: rate(play, options.seconds) for name, play in plays.items()}
    rates = medians(in_turns(measures, options.repeats))
    only = {subject.name: subject.batch for subject in subjects}
    peers = [subject.name for subject in subjects if subject.is_peer]
    print_head(title, *(f"n={batch}" for batch in options.batches), "first call, s")
    for name in only:
        cells = []
        for batch in options.batches:
            mine = rates.get((name, only[name] or batch))
            best = max((rates.get((peer, only[peer] or batch), 0) for peer in peers), default=0)
            cells.append(f"{mine / 1e3:,.1f}" + (f" ({mine / best:.2f})" if best else "") if mine else "")
        print_row(name, *cells, f"{compiling[name]:.0f}")
    print()


def main() -> None:
    on_cpu = jax.default_backend() == "cpu"
    parser = parser_of(__doc__, seconds=0.5, repeats=5, batches=[1, 64, 1024])
    parser.add_argument("--games", nargs="+", choices=tuple(GAMES), default=["boards", "pong"])
    parser.add_argument("--mission", default="go to", help="of babyai")
    parser.add_argument("--physics", nargs="+", choices=("c", "mjx"), default=["c", "mjx"] if on_cpu else ["mjx"])
    parser.add_argument("--version", choices=locomotion.VERSIONS, default="v4", help="of the robots")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of the robots")
    parser.add_argument("--simulations", type=int, default=100, help="of mcts")
    parser.add_argument("--rollouts", type=int, default=1, help="of mcts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    print(f"{machine('gymnax')}; medians of {options.repeats}\nthousands a second, in brackets the ratio to the peer\n")
    for game in options.games:
        try:
            table(game, list(GAMES[game](options)), options)
        except ImportError as error:
            print(f"{game} needs a peer that is not installed ({error})")


if __name__ == "__main__":
    main()
