"""Tree search with random rollouts, simulations a second: ours beside OpenSpiel's C++ MCTSBot in one run.

    PYTHONPATH=. python benchmarks/mcts.py [--simulations 100] [--rollouts 1] [--batches 1 64 1024] [--repeats 3]

The positions are those of random 5x5 breakthrough games with two rows of pawns, 0 to 19 moves in. OpenSpiel searches
them one after the other on one thread, at most 200 of them, as its rate does not depend on the batch; ours searches a
batch as one program on all cores. Neither solves (solve=False): a solver stops early, and what is counted are the
simulations asked for. The subjects take turns within each repeat; a cell is the median.
Needs open_spiel 1.6. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel

from envs.breakthrough import rules as breakthrough
from nlrl_jax.algorithms.mcts import mcts_policy

START = "bbbbbbbbbb.....wwwwwwwwww0"


def random_positions(game, count: int):
    """(positions [count], the same as OpenSpiel's states); none is finished."""
    peer = pyspiel.load_game("breakthrough(rows=5,columns=5)")
    rng, ours, theirs = np.random.default_rng(0), [], []
    while len(ours) < count:
        state = peer.deserialize_state(START)
        for _ in range(len(ours) % 20):
            if not state.is_terminal():
                state.apply_action(int(rng.choice(state.legal_actions())))
        if not state.is_terminal():
            position = game.parse(str(state), game.players[state.current_player()])
            ours.append(jax.tree.map(np.asarray, position))
            theirs.append(state)
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *ours), theirs


def rate(run, simulations: int) -> float:
    clock = time.perf_counter()
    run()
    return simulations / (time.perf_counter() - clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    game = breakthrough.board_game()
    positions, states = random_positions(game, max(args.batches))
    policy = jax.jit(mcts_policy(game, args.simulations, args.rollouts, solve=False))
    evaluator = pyspiel.RandomRolloutEvaluator(args.rollouts, 0)
    bot = pyspiel.MCTSBot(states[0].get_game(), evaluator, 1.0, args.simulations, 1000, False, 0, False)
    print(
        f"5x5 breakthrough, {args.simulations} simulations of {args.rollouts} rollouts; jax {version('jax')}, "
        f"open_spiel {version('open_spiel')}, {os.cpu_count()} cores, {jax.devices()[0].device_kind}; "
        f"medians of {args.repeats}"
    )
    print("| batch | OpenSpiel C++, simulations/s | ours | ratio |\n| --- | --- | --- | --- |")
    for batch in args.batches:
        at = jax.tree.map(lambda x: x[:batch], positions)
        some = states[: min(batch, 200)]
        ours = lambda: jax.block_until_ready(policy(jax.random.key(0), at))
        theirs = lambda: [bot.step(state) for state in some]
        ours()
        speeds = [
            (rate(theirs, len(some) * args.simulations), rate(ours, batch * args.simulations))
            for _ in range(args.repeats)
        ]
        peer, own = (statistics.median(column) for column in zip(*speeds))
        print(f"| {batch} | {peer:.0f} | {own:.0f} | {own / peer:.2f} |", flush=True)


if __name__ == "__main__":
    main()
