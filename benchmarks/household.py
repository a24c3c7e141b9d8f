"""ALFWorld in the TextWorld engine: seconds of a start, of another start of the same game and of a step, and memory.

    PYTHONPATH=. python benchmarks/household.py [--games 12] [--steps 10] [--workers 2]

An expert plays games of our own, kinds in turn, in lockstep over worker processes; waits are divided by the number of
games, so they are what a game costs a run. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import pathlib
import time

from envs.alfworld import games
from envs.alfworld.workers import Request, Workers
from envs.alfworld.world import World, plan


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("games", 12), ("steps", 10), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    made = [games.make(games.KINDS[i % len(games.KINDS)], i) for i in range(given.games)]
    problems, paths = [games.problem(game) for game in made], [plan(World(game)) for game in made]
    paths = [(path * given.steps)[: given.steps] for path in paths]
    pool, rows = Workers(games.package() / "data", given.workers), {}

    def timed(name: str, commands: int, *actions: str | None) -> None:
        begun = time.perf_counter()
        for t, action in enumerate(actions):
            now = [path[t] if action else None for path in paths]
            done = [tuple(path[:t]) if action else () for path in paths]
            pool.ask([Request(*row) for row in zip(problems, done, now)])
        rows[name] = (time.perf_counter() - begun) / len(made) / commands

    timed("start", 1, None)
    timed("step", given.steps, *["act"] * given.steps)
    timed("start again", 1, None)
    status = [pathlib.Path(f"/proc/{process}/status") for process in pool.processes]
    resident = [int(path.read_text().split("VmRSS:")[1].split()[0]) / 1024 for path in status if path.is_file()]
    print(f"| {given.games} games, {given.workers} workers | seconds per game |\n|---|---|")
    for name, seconds in rows.items():
        print(f"| {name} | {seconds:.3f} |")
    if resident:
        print(f"\nMemory of the workers: {', '.join(f'{mb:.0f} MB' for mb in resident)}")


if __name__ == "__main__":
    main()
