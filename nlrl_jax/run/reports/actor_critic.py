"""What a run of the natural-language actor-critic leaves to be read: records, curves, the page, and its plan."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.tic_tac_toe.prompts import squares
from nlrl_jax.algorithms.language_actor_critic import Record
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run import players
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import write_report

SHOWN = 4  # positions of an iteration that are kept to be read
RESULTS = ("win", "tie", "loss")


def write_record(run_dir: pathlib.Path, iteration: int, record: Record) -> None:
    """Keeps some of what an iteration asked and got: records/<iteration>.json."""
    most = sorted(record.improvements, key=lambda target: -target.visits)[:SHOWN]
    busiest = max(record.values, key=lambda target: len(target.asked.messages[-1]["content"]), default=None)
    kept = {
        "improvements": [
            {
                "board": target.view.board,
                "player": target.view.player,
                "visits": target.visits,
                "evaluations": list(dict(reversed(target.evaluations)).items())[::-1],  # the first of each move
                "text": target.text,
            }
            for target in most
        ],
        "aggregation": None
        if busiest is None
        else {
            "board": busiest.view.board,
            "action": busiest.action,
            "player": busiest.view.player,
            "asked": busiest.asked.messages[-1]["content"],
            "text": busiest.text,
        },
    }
    folder = run_dir / "records"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{iteration:05d}.json", json.dumps(kept, ensure_ascii=False, indent=1))


def exchanges(run_dir: pathlib.Path, opponent: str) -> list[dict[str, Any]]:
    """The first and last iteration's records as the report shows them."""
    files = sorted((run_dir / "records").glob("*.json"))
    shown = []
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        kept = json.loads(path.read_text())
        when = f"iteration {int(path.stem) + 1}, against {opponent}"
        one = kept["aggregation"]
        if one:
            title = f"Aggregation, {when}: {one['player']} plays {one['action']}"
            shown.append(
                {
                    "title": title,
                    "board": _grid(one["board"]),
                    "parts": [("asked", one["asked"]), ("written", one["text"])],
                }
            )
        for target in kept["improvements"]:
            values = [(f"language value of {action}", text) for action, text in target["evaluations"]]
            title = f"Improvement, {when}: {target['player']} to move, {target['visits']} visits"
            parts = [*values, ("the improved policy", target["text"])]
            shown.append({"title": title, "board": _grid(target["board"]), "parts": parts})
    return shown


def _grid(board: str) -> str:
    """The drawn board as rows of marks, a dot where a square is free."""
    cells = ["." if cell.isdigit() else cell for cell in squares(board)]
    return "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))


def curves(folder: pathlib.Path, before: Mapping[str, float], games: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """(games played so far, {"win": ..., "tie": ..., "loss": ...}) from before the first iteration on.

    Args:
      games: played an iteration where the run did not count them.
    """
    run = read_metrics(folder)
    there = np.isfinite(run["eval/win"])
    played = np.cumsum(run.get("games", np.full(len(there), games)))
    shares = {name: np.array([before[f"eval/{name}"], *run[f"eval/{name}"][there]]) for name in RESULTS}
    return [0, *played[there]], shares


def draw(run_dir: pathlib.Path, results: Mapping[tuple[str, str], Mapping[str, Any]], games: int) -> pathlib.Path:
    """Win rates of all methods, and win, tie and loss of the actor-critic, a panel an opponent: curves.png.

    A method without metrics did not learn, and is a level line.
    """
    panels: dict[str, list[Series]] = {}
    for opponent in dict.fromkeys(opponent for opponent, _ in results):
        wins, shares, asked = [], [], {}
        for (other, method), result in results.items():
            if other != opponent:
                continue
            if not (run_dir / opponent / method / "metrics.jsonl").exists():
                asked[method] = result["before"]["eval/win"]
                continue
            x, found = curves(run_dir / opponent / method, result["before"], games)
            wins.append(Series(method, x, found["win"][None]))
            if method == "actor-critic":
                shares = [Series(name, x, found[name][None]) for name in RESULTS]
        asked = {"the model as prompted": float(wins[0].ys[0, 0])} | asked
        wins += [Series(name, wins[0].x, np.full((1, len(wins[0].x)), rate)) for name, rate in asked.items()]
        panels[f"{opponent}: win rate"] = wins
        panels[f"{opponent}: actor-critic"] = shares
    return compare(panels, run_dir / "curves.png", "games played", "share of greedy games")


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    results: Mapping[tuple[str, str], Mapping[str, Any]],
    usage: Usage,
) -> pathlib.Path:
    """The page of a finished run."""
    rows = [
        {
            "opponent": opponent,
            "method": method,
            "win before": result["before"]["eval/win"],
            **{f"{name} after": result["after"][f"eval/{name}"] for name in RESULTS},
            "by lot": result["after"].get("eval/random_moves", 0.0),
        }
        for (opponent, method), result in results.items()
    ]
    learned = [opponent for opponent, method in results if method == "actor-critic"]
    return write_report(
        run_dir,
        title="Natural-language actor-critic on tic-tac-toe",
        question="Does a policy that learns from evaluations in words win more games, and more than under PPO?",
        config=config,
        summary=rows,
        curves=[draw(run_dir, results, config["games"])],
        notes=[
            "By lot: the share of moves that were drawn because a reply named no legal one.",
            *describe_usage(usage),
        ],
        exchanges=[e for opponent in learned for e in exchanges(run_dir / opponent / "actor-critic", opponent)],
    )


def plan(config: Any, opponents: int) -> str:
    """What a run would ask of its models, from the sizes of the game: upper bounds, nothing is loaded."""
    own_turns = 4.5  # of nine squares, half are ours
    positions = round(config.games * own_turns)
    estimates = positions  # at most one pair a visit; chunks of k make it fewer
    compared = min(config.top_m, 5) if config.mask else 5
    new_lines = positions * config.k if config.fresh_lines else 0  # games of their own, of at most as many turns
    calls = {
        "policy": positions + round(new_lines * own_turns),
        "candidates": positions * (config.num_samples if config.mask else 0),
        "value": positions * compared * config.num_values,
        "evaluation": round(config.eval_games * own_turns),
        "aggregator": estimates,
        "improver": positions,
    }
    if config.estimate == "td":
        calls["value"] += estimates * config.k
    paper = players.prompt_for(config.model, config.style) != "compact"
    read = {
        "policy": 250,
        "candidates": 250,
        "value": 300,
        "evaluation": 250,
        "aggregator": 350 + 130 * config.k,
        "improver": 1200,
    }
    lines = [f"{'role':12}{'calls an iteration':>20}{'tokens written, at most':>26}{'tokens read, about':>22}"]
    total = 0
    for role, number in calls.items():
        longest = config.large_max_tokens if role in ("aggregator", "improver") else config.max_tokens
        wrote, saw = number * longest, number * (read[role] if paper else 40)
        total += wrote + saw
        lines.append(f"{role:12}{number:>20,}{wrote:>26,}{saw:>22,}")
    whole = total * config.iterations * opponents
    lines.append(
        f"{config.iterations} iterations, {opponents} opponents: at most {whole / 1e9:.2f}e9 tokens. Duplicates of a "
        "position are asked once,\nso an iteration costs less: a few hundred distinct positions, not all visits."
    )
    return "\n".join(lines)
