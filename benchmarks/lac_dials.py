"""How good must the critic and the imagination be before LAC beats its prior and the other planners?

    python -m benchmarks.lac_dials --game babyai --folder runs/dials              # resumable; see below for its time
    python -m benchmarks.lac_dials --game babyai --folder runs/dials --minutes 8  # finishes some cells and stops
    python -m benchmarks.lac_dials --folder runs/dials --picture docs/lac_dials.png

The model is the expert of `envs/expert.py`, whose prior is fixed for each game and whose critic and world
model are right at the rates of a grid. A method plays a cell only if it reads that dial: ReAct and the prior neither,
LATS, in the game itself, not the world model. Each cell is a file, so a killed run continues.
Of 65 cells a game, one took 1 to 106 s (102 tasks; two cores that others used, too).
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.timing import parser_of
from nlrl_jax import envs
from nlrl_jax.algorithms.planners.lats import LATSConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.envs.expert import Expert, Rates
from nlrl_jax.files import write_atomically
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.lac.episodes import Setting, run_method
from nlrl_jax.statistics import Estimate, estimate, paired

CRITIC = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
WORLD = (0.5, 0.75, 1.0)
PRIOR = {"babyai": 0.3, "webshop": 0.4, "alfworld": 0.3}  # see docs/lab
TITLES = {"babyai": "BabyAI-Text", "webshop": "WebShop", "alfworld": "ALFWorld"}
READS = {  # method -> the dials that it reads
    "lac_no_critic": "",
    "react": "",
    "lac": "cw",
    "rafa": "cw",
    "icpi": "cw",
    "rap": "cw",
    "lats": "c",
}
LATS_ITERATIONS = 5  # the paper has 30


def cells() -> list[tuple[str, float, float]]:
    """(method, critic, world) of every cell, each once, true imagination first; a dial that is not read stands at 1."""
    return [
        (method, critic, world)
        for world in WORLD[::-1]
        for method, reads in READS.items()
        for critic in (CRITIC if "c" in reads else (1.0,))
        if "w" in reads or world == 1
    ]


def path_of(folder: pathlib.Path, game: str, cell: tuple[str, float, float]) -> pathlib.Path:
    method, critic, world = cell
    return folder / game / f"{method}_{critic:g}_{world:g}.json"


def play(game, name: str, cell: tuple[str, float, float], tasks) -> dict:
    """Success and moves of every task in a cell."""
    method, critic, world = cell
    model, usage, start = Expert(game, Rates(PRIOR[name], critic, world)), Usage(), time.perf_counter()
    prompts = PromptConfig(prompt="compact", examples=0)
    dialogue = dialogue_of(METHODS[method], game, prompts, "expert", None, 0)
    lats = LATSConfig(iterations=LATS_ITERATIONS)
    setting = Setting(metered(model, usage), usage, game, lats=lats, parallel=120)
    played = run_method(setting, method, METHODS[method], dialogue, tasks)
    episodes = [{key: episode[key] for key in ("task", "success", "moves", "reward")} for episode in played["episodes"]]
    return {"episodes": episodes, "seconds": time.perf_counter() - start, "calls": played["calls"]}


def success(folder: pathlib.Path, game: str, cell: tuple[str, float, float]) -> Estimate | None:
    """The share of tasks solved in a cell; None if it has not been played."""
    path = path_of(folder, game, cell)
    if not path.is_file():
        return None
    return estimate([episode["success"] for episode in json.loads(path.read_text())["episodes"]], is_share=True)


def played(folder: pathlib.Path, game: str) -> Iterator[tuple[str, float, dict[float, Estimate]]]:
    """(method, world, critic -> success) of the cells that have been played; a dial that is not read stands at 1."""
    for method, reads in READS.items():
        for world in WORLD if "w" in reads else (1.0,):
            shares = {c: success(folder, game, (method, c if "c" in reads else 1.0, world)) for c in CRITIC}
            shares = {critic: share for critic, share in shares.items() if share}
            if shares:
                yield method, world, shares


def table(folder: pathlib.Path, game: str) -> str:
    """All cells of a game in Markdown: a row per method and world, a column per critic."""
    rows = [f"| {TITLES[game]} | world | " + " | ".join(f"critic {c:g}" for c in CRITIC) + " |", "|---" * 8 + "|"]
    for method, world, shares in played(folder, game):
        shown = [shares[critic].text(".2f") if critic in shares else "" for critic in CRITIC]
        if "c" not in READS[method]:
            shown[1:] = ["same"] * (len(CRITIC) - 1)
        of_world = f"{world:g}" if "w" in READS[method] else "–"
        rows.append(f"| {METHODS[method].title} | {of_world} | {' | '.join(shown)} |")
    return "\n".join(rows)


def compare(folder: pathlib.Path, game: str, first: str, second: str) -> str:
    """Differences in success of two methods over the same tasks, a line for each cell that both have played."""
    lines = []
    for method, critic, world in cells():
        cell = (second, *(rate if dial in READS[second] else 1.0 for dial, rate in (("c", critic), ("w", world))))
        paths = [path_of(folder, game, place) for place in ((first, critic, world), cell)]
        if method == first and all(path.is_file() for path in paths):
            a, b = ({str(e["task"]): e["success"] for e in json.loads(p.read_text())["episodes"]} for p in paths)
            difference = paired([a[task] for task in a], [b[task] for task in a])
            title = f"{game}, critic {critic:g}, world {world:g}"
            lines.append(f"{title}: {first} - {second} {difference.text('+.2f')} {difference.verdict}")
    return "\n".join(lines)


def picture(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Success by the critic's rate: a panel per game, a colour per method; of LAC also with a world model that errs."""
    games = [game for game in PRIOR if (folder / game).is_dir()]
    figure, axes = plt.subplots(1, len(games), figsize=(3.6 * len(games), 3.7), sharex=True, sharey=True, squeeze=False)
    named = {}  # the lines of all panels, each once
    for game, axis in zip(games, axes[0], strict=True):
        for method, world, shares in played(folder, game):
            if world < 1 and method != "lac":
                continue
            arms = [[share.arms[k] for share in shares.values()] for k in (0, 1)]
            means, reads = [share.mean for share in shares.values()], READS[method]
            label = METHODS[method].title + (f", world {world:g}" if "w" in reads else "")
            line = dict(zip(WORLD, (":", "--", "-"), strict=True))[world]
            style = {"color": f"C{list(READS).index(method)}", "linestyle": line, "label": label}
            if "c" in reads:
                axis.errorbar(list(shares), means, arms, marker="o", ms=3, **style)
            else:
                axis.plot(list(shares), means, linewidth=0.9, **style)
        axis.set(xlabel="rate at which the critic is right", ylim=(-0.03, 1.03))
        axis.set_title(TITLES[game], fontsize=10)
        named |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axes[0][0].set_ylabel("share of tasks solved")
    columns = min(5, len(named))
    figure.legend(named.values(), named.keys(), loc="lower center", ncol=columns, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06 + 0.05 * -(-len(named) // columns), 1, 1))
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--game", choices=tuple(PRIOR), help="the game to play; without it only --picture is drawn")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the cells lie")
    parser.add_argument("--tasks", type=int, default=102, help="tasks of a cell")
    parser.add_argument("--minutes", type=float, default=1e9, help="no cell begins after so many minutes")
    parser.add_argument("--methods", default=",".join(READS), help="methods to play")
    parser.add_argument("--compare", help="two methods, such as lac,rafa: their differences over the same tasks")
    parser.add_argument("--picture", type=pathlib.Path, help="file of the picture")
    args = parser.parse_args()
    if args.game:
        start, game = time.monotonic(), envs.make_host(args.game)
        game = game.simulator or game  # ALFWorld's: the same games and words without the engine
        tasks = tasks_of(game, game.kinds, -(-args.tasks // len(game.kinds)), 0)[: args.tasks]
        for cell in cells():
            path = path_of(args.folder, args.game, cell)
            if path.is_file() or cell[0] not in args.methods.split(",") or cell[0] == "lats" and not game.reversible:
                continue
            if time.monotonic() - start > 60 * args.minutes:
                break
            cell_results = play(game, args.game, cell, tasks)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(cell_results) + "\n")
            print(
                args.game, *cell, success(args.folder, args.game, cell), f"{cell_results['seconds']:.0f} s", flush=True
            )
        print(table(args.folder, args.game))
    for name in PRIOR if args.compare else ():
        print(compare(args.folder, name, *args.compare.split(",")))
    if args.picture:
        picture(args.folder, args.picture)


if __name__ == "__main__":
    main()
