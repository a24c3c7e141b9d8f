"""ALE's Pong beside ours, `envs/pong/env.py`: the same simple policies play both, and one table says how they compare.

    pip install "ale-py>=0.12"
    python -m benchmarks.pong_calibration [--opponent_speed 1 2] [--racket_speed 2] [--steps 1200]

ALE plays with frame skip 4 and without sticky actions. Its frame is cut to 80 x 80 cells (rows 35 to 195, every second
one) and read by colour. A point counts from the first frame with a served ball to its reward; the pause between points
does not count. ALE's first point begins after 0 to 30 random actions, as its start is always the same. Unfinished
points at the end of a run are counted, not scored.

Policies: at random; keep the racket's middle at the ball's row; where the ball will arrive (the middle while it
leaves); half the moves at random, half follow.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from envs.pong import env as pong
from nlrl_jax.statistics import estimate, header

# (columns, red, rows) of our racket, the opponent's and the ball; nothing else on the board has their red.
THINGS = ((slice(70, 72), 92, 8), (slice(8, 10), 213, 8), (slice(0, 80), 236, 2))


def read_frame(screen: np.ndarray) -> np.ndarray:
    """ALE's screen as numbers, nan for what is not there.

    Args:
      screen: uint8 [210, 160, 3].

    Returns: float64 [4]: top rows of our racket and of the opponent's, the ball's upper row and its column. What the
    frame's upper edge cuts off has a negative row.
    """
    red = screen[35:195:2, ::2, 0]
    read = np.full(4, np.nan)
    for i, (columns, shade, length) in enumerate(THINGS):
        rows, where = np.nonzero(red[:, columns] == shade)
        if len(rows):
            read[i] = rows.max() - length + 1 if rows.min() == 0 else rows.min()
            read[3] = where[0] if i == 2 else np.nan
    return read


class Ale:
    """`size` games of ALE's Pong side by side. `points` 1 begins anew after each point."""

    def __init__(self, size: int, points: int, rng: np.random.Generator):
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.actions = (ale_py.Action.NOOP, ale_py.Action.RIGHT, ale_py.Action.LEFT)
        self.points, self.rng, self.games = points, rng, [ale_py.ALEInterface() for _ in range(size)]
        for seed, game in enumerate(self.games):
            game.setInt("random_seed", seed)
            game.setInt("frame_skip", 4)
            game.setFloat("repeat_action_probability", 0.0)
            game.loadROM(ale_py.roms.get_rom_path("pong"))
            self._reset(game)

    def _reset(self, game):
        game.reset_game()
        for action in self.rng.integers(0, 3, self.rng.integers(0, 31)):
            game.act(self.actions[action])

    def look(self):
        return np.stack([read_frame(game.getScreenRGB()) for game in self.games])

    def step(self, actions):
        """Rewards [size]."""
        rewards = np.array([game.act(self.actions[action]) for game, action in zip(self.games, actions)])
        for game, reward in zip(self.games, rewards):
            if game.game_over() or (reward and self.points == 1):
                self._reset(game)
        return rewards


class Ours:
    """The same of our game, with fields of `EnvParams`."""

    def __init__(self, size: int, points: int, rng: np.random.Generator, **params):
        game = pong.control_game(points=points, max_steps_in_episode=10**6, **params)
        self.key, key = jax.random.split(jax.random.key(int(rng.integers(2**31))))
        self.obs, self.state = jax.vmap(lambda key: game.env.reset(key, game.params))(jax.random.split(key, size))

        def step(key, state, actions):
            keys = jax.random.split(key, size)
            obs, state, reward, *_ = jax.vmap(lambda *args: game.env.step(*args, game.params))(keys, state, actions)
            return obs, state, reward

        self._step = jax.jit(step)

    def look(self):
        return np.asarray(self.obs, np.float64)[:, :4]

    def step(self, actions):
        self.key, key = jax.random.split(self.key)
        self.obs, self.state, rewards = self._step(key, self.state, jnp.asarray(actions))
        return np.asarray(rewards)


def towards(racket, row):
    """The action that brings the racket's middle to the ball's row; stay within two rows of it or for nan."""
    error = row - 3 - racket
    return np.where(error < -2, pong.RIGHT, np.where(error > 2, pong.LEFT, pong.STAY))


def arrival(now, before):
    """The row where a ball that comes will meet our racket, after bounces off the walls; else the middle. [B]"""
    column_speed, row_speed = now[:, 3] - before[:, 3], now[:, 2] - before[:, 2]
    comes = (column_speed > 0) & (column_speed < 8)
    row = now[:, 2] + row_speed * (pong.OURS - now[:, 3]) / np.where(comes, column_speed, 1)
    folded = pong.LOWEST - np.abs(row % (2 * pong.LOWEST) - pong.LOWEST)
    return np.where(comes, folded, pong.SIZE / 2 - 1)


def at_random(rng, now, before):
    return rng.integers(0, 3, len(now))


def follow(rng, now, before):
    return towards(now[:, 0], now[:, 2])


def predict(rng, now, before):
    return towards(now[:, 0], arrival(now, before))


def half(rng, now, before):
    return np.where(rng.random(len(now)) < 0.5, at_random(rng, now, before), follow(rng, now, before))


POLICIES = {"random": at_random, "follow": follow, "predict": predict, "half": half}


def play(game, policy, steps, rng):
    """(what is seen [T, B, 4], actions [T, B], rewards [T, B])."""
    seen, actions, rewards = [game.look()], [], []
    for _ in range(steps):
        actions.append(policy(rng, seen[-1], seen[max(0, len(seen) - 2)]))
        rewards.append(game.step(actions[-1]))
        seen.append(game.look())
    return np.stack(seen[:-1]), np.stack(actions), np.stack(rewards)


@dataclasses.dataclass
class Points:
    """What happened, by point (outcomes, lengths, games: which game it is of) and by step of the ball ("serve", "ours",
    "theirs": who sent it)."""

    outcomes: list = dataclasses.field(default_factory=list)
    games: list = dataclasses.field(default_factory=list)
    lengths: list = dataclasses.field(default_factory=list)
    columns: dict = dataclasses.field(default_factory=lambda: {"serve": [], "ours": [], "theirs": []})
    rows: dict = dataclasses.field(default_factory=lambda: {"serve": [], "ours": [], "theirs": []})
    opponent: dict = dataclasses.field(default_factory=lambda: {"comes": [], "leaves": []})
    returned: int = 0
    unfinished: int = 0


def split(seen, rewards) -> Points:
    """Cuts a record into points. A serve is the first ball seen near the middle column after a point's end."""
    out = Points()
    for n, (track, reward) in enumerate(zip(seen.transpose(1, 0, 2), rewards.T)):
        began, sender, direction = None, "serve", 0.0
        for t in range(len(track)):
            column = track[t, 3]
            if began is None and 30 <= column <= 50:
                began, sender, direction = t, "serve", 0.0
            elif began is not None and not np.isnan(step := column - track[t - 1, 3]) and step:
                if direction and np.sign(step) != direction:
                    sender = "ours" if step < 0 else "theirs"
                    out.returned += sender == "theirs"
                else:  # not the step of the hit itself
                    out.columns[sender].append(abs(step))
                    out.rows[sender].append(abs(track[t, 2] - track[t - 1, 2]))
                direction = np.sign(step)
                if t - began >= 2:  # it jumps to where the next point begins
                    out.opponent["comes" if step < 0 else "leaves"].append(abs(track[t, 1] - track[t - 2, 1]) / 2)
            if reward[t] and began is not None:
                out.outcomes.append(float(reward[t]))
                out.games.append(n)
                out.lengths.append(t + 1 - began)
                began = None
        out.unfinished += began is not None
    return out


def racket_speeds(seen, actions):
    """Median rows a step of our racket: on the first move from rest, and from the third equal move on."""
    moved, top = np.abs(np.diff(seen[..., 0], axis=0)), seen[3:-1, :, 0]
    inside = (top > 16) & (top < pong.TOP - 16)
    now, last, before = actions[3:-1], actions[2:-2], actions[1:-3]
    rest = inside & (now > 0) & (last == 0) & (moved[2:-1] == 0) & (moved[1:-2] == 0)
    held = inside & (now > 0) & (now == last) & (now == before)
    return [float(np.median(moved[3:][mask])) if mask.any() else np.nan for mask in (rest, held)]


def measure(make, size, steps, seed) -> dict:
    """Every line of the table for one game."""
    table, games, firsts = {}, {}, {}
    for name, policy in POLICIES.items():
        rng = np.random.default_rng(seed)
        record = play(make(size, 21, rng), policy, steps, rng)
        games[name] = split(record[0], record[2])
        if name == "random":
            rest, held = racket_speeds(*record[:2])
            table["our racket, rows a step: from rest / held"] = f"{rest:.0f} / {held:.0f}"
        seen, _, rewards = play(make(size, 1, rng), policy, steps // 2, rng)
        firsts[name] = split(seen, rewards)
    every = lambda pick: np.concatenate([np.asarray(pick(game), float) for game in games.values()])
    for sender, words in (("serve", "a serve"), ("ours", "our hit"), ("theirs", "its hit")):
        for what in ("columns", "rows"):
            x = every(lambda game: getattr(game, what)[sender])
            x = x[~np.isnan(x)]
            table[f"ball after {words}, {what} a step: mean / 99 % / most"] = (
                f"{x.mean():.1f} / {np.quantile(x, 0.99):.0f} / {x.max():.0f}"
            )
    for when in ("comes", "leaves"):
        x = every(lambda game: game.opponent[when])
        x = x[~np.isnan(x)]
        words = f"opponent, rows a step while the ball {when}: mean / 99 %"
        table[words] = f"{x.mean():.1f} / {np.quantile(x, 0.99):.1f}"
    for name, game in games.items():
        lost, won = game.outcomes.count(-1.0), game.outcomes.count(1.0)
        first = firsts[name].outcomes
        table[f"{name}: mean outcome of a point"] = estimate(game.outcomes, game.games).text("+.2f")
        table[f"{name}: of the first point"] = f"{np.mean(first):+.2f}"
        table[f"{name}: share of our points"] = f"{won / max(1, won + lost):.2f}"
        table[f"{name}: the opponent returns"] = f"{game.returned / max(1, game.returned + won):.2f}"
        table[f"{name}: steps a point, median / mean"] = f"{np.median(game.lengths):.0f} / {np.mean(game.lengths):.0f}"
        table[f"{name}: points (first points), unfinished"] = (
            f"{len(game.outcomes)} ({len(first)}), {game.unfinished + firsts[name].unfinished}"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opponent_speed", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--racket_speed", type=int, nargs="+", default=[2])
    parser.add_argument("--steps", type=int, default=1200, help="of each game under each policy, half for first points")
    parser.add_argument("--size", type=int, default=8, help="games of ALE side by side; ours: five times as many")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    clock = time.perf_counter()
    tables = {"ALE": measure(Ale, args.size, args.steps, args.seed)}
    for racket in args.racket_speed:
        for opponent in args.opponent_speed:
            make = lambda *a, r=racket, o=opponent: Ours(*a, racket_speed=r, opponent_speed=o)
            name = f"ours, opponent {opponent}, racket {racket}"
            tables[name] = measure(make, 5 * args.size, args.steps, args.seed)
    print(
        f"ale-py {version('ale-py')}, jax {jax.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {time.perf_counter() - clock:.0f} s"
    )
    games = f"games side by side, {args.size} of ALE and {5 * args.size} of ours, each the mean of its points"
    print(header(games) + "\n")
    print("| | " + " | ".join(tables) + " |\n" + "| --- " * (len(tables) + 1) + "|")
    for line in tables["ALE"]:
        print(f"| {line} | " + " | ".join(table[line] for table in tables.values()) + " |")


if __name__ == "__main__":
    main()
