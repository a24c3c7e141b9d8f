"""What `launch/run_language_gpi.py` says before and after: the plan, Table 1, the figure and the report."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from envs.maze import env as mazes
from envs.maze.prompts import MazeRoles
from nlrl_jax.algorithms import language_gpi as gpi
from nlrl_jax.backends.usage import Usage, describe_usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import markdown, write_report
from nlrl_jax.types import LanguageModel, Sampling

if TYPE_CHECKING:
    from launch.run_language_gpi import GPIRunConfig

# {maze: {row: what `run_language_gpi.play` returned}}
Results = dict[str, dict[str, dict[str, Any]]]

PAPER = {  # Table 1: (double_t, medium)
    "policy": (-27.29, -27.05), "q": (-18.33, -33.57), "1x3": (-17.85, -20.85), "4x1": (-17.48, -12.65),
    "4x3": (-12.74, -15.09), "6x3": (-12.15, -15.44), "8x3": (-11.19, -12.23),
}  # fmt: skip
# For the plan: what a reply of gpt-4o-mini is taken to hold, and characters a token.
EVALUATION_TOKENS, ACTION_TOKENS, CHARACTERS = 200, 100, 4


class Row(NamedTuple):
    """A row of Table 1. name: "policy", "q" or "KxN"; K and N are 0 for the first two."""

    name: str
    K: int = 0
    N: int = 0

    @classmethod
    def of(cls, name: str) -> Row:
        """Raises ValueError for a name that is none."""
        if name in ("policy", "q"):
            return cls(name)
        K, found, N = name.partition("x")
        if not (found and K.isdecimal() and N.isdecimal() and int(K)):
            raise ValueError(f"--rows has {name!r}; a row is policy, q or KxN such as 4x3")
        return cls(name, int(K), int(N))

    @property
    def title(self) -> str:
        titles = {"policy": "language policy alone", "q": "Q^L without look-ahead + I"}
        return titles.get(self.name, f"language GPI, K={self.K}, N={self.N}")

    def decide(self, model: LanguageModel, roles: gpi.Roles, states, sampling: Sampling, seed: int) -> gpi.Decisions:
        """One action a state."""
        if self.name == "policy":
            return gpi.policy_alone(model, roles, states, sampling, seed)
        if self.name == "q":
            return gpi.value_and_improve(model, roles, states, sampling, seed)
        return gpi.language_gpi(model, roles, states, gpi.GPIConfig(self.N, self.K, sampling), seed)

    @property
    def calls(self) -> dict[str, int]:
        """Calls by role for one state."""
        if self.name == "policy":
            return {gpi.POLICY: 1}
        if self.name == "q":
            return {gpi.Q: 4, gpi.IMPROVER: 1}
        return {gpi.VALUE: 4 * self.K, gpi.AGGREGATOR: 4, gpi.IMPROVER: 1}


def summarize(result: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row: return and its deviation over seeds, share of solved mazes, steps, calls, problems."""
    means = np.mean(result["returns"], axis=1)
    summary = {
        "return": float(means.mean()),
        "return_std": float(means.std()),
        "solved": float(np.mean(result["solved"])),
        "steps": float(np.mean(result["steps"])),
    }
    calls = {f"calls/{role}": float(count) for role, count in result["calls"].items()}
    return summary | calls | {f"problems/{name}": float(count) for name, count in result["problems"].items()}


def table(results: Results) -> list[dict[str, Any]]:
    """Table 1, a row a method; the paper's means beside ours."""
    rows = []
    for name in dict.fromkeys(name for found in results.values() for name in found):
        line: dict[str, Any] = {"": Row.of(name).title}
        for maze, found in results.items():
            summary = summarize(found[name])
            line[f"return {maze}"] = f"{summary['return']:.2f} ± {summary['return_std']:.2f}"
            if name in PAPER:
                line[f"paper {maze}"] = PAPER[name][list(mazes.LAYOUTS).index(maze)]
            line[f"solved {maze}"] = f"{summary['solved']:.0%}"
            line[f"unreadable {maze}"] = sum(
                v for k, v in found[name]["problems"].items() if not k.endswith((gpi.RANDOM, gpi.NEVER_ENDED))
            )
        rows.append(line)
    return rows


def figure(results: Results, path: pathlib.Path) -> pathlib.Path:
    """Return against K, a line an N; the rows without look-ahead as level lines. Bands: deviation over seeds."""
    panels = {}
    for maze, found in results.items():
        rows = [Row.of(name) for name in found]
        means = {row: np.mean(found[row.name]["returns"], axis=1) for row in rows}
        ends = [K for row in rows if (K := row.K)] or [1]
        panel = [
            Series(row.title, (min(ends), max(ends)), np.repeat(means[row][:, None], 2, axis=1))
            for row in rows
            if not row.K
        ]
        for N in sorted({row.N for row in rows if row.K}):
            line = sorted((row for row in rows if row.K and row.N == N), key=lambda row: row.K)
            x, ys = [row.K for row in line], np.stack([means[row] for row in line], axis=1)
            if len(line) == 1:  # a point would not be seen
                x, ys = [x[0] - 0.2, x[0] + 0.2], np.repeat(ys, 2, axis=1)
            panel.append(Series(f"GPI, N={N}", x, ys))
        panels[maze] = panel
    return compare(panels, path, "variations of each action [K]", "mean return")


def first_and_last(found: dict[str, Any]) -> tuple[str, str]:
    """The rows to compare: the policy alone if it was run, and the look-ahead with the most variations and steps."""
    last = max(found, key=lambda name: Row.of(name)[1:])
    return ("policy" if "policy" in found else next(iter(found))), last


def plan(config: GPIRunConfig) -> str:
    """Calls and estimated tokens of every row, if episodes take as many steps as the paper's mean returns say."""
    lines, total = [], Counter()
    for maze_name, row in itertools.product(config.mazes.split(","), map(Row.of, config.rows.split(","))):
        maze = mazes.maze(maze_name)
        known = row.name in PAPER
        steps = 1 - PAPER[row.name][list(mazes.LAYOUTS).index(maze_name)] if known else config.max_steps
        states = steps * config.starts * config.seeds
        sizes = _prompt_tokens(MazeRoles(maze, config.observation, config.history), row, int(steps / 2))
        replies = {
            role: ACTION_TOKENS if role in (gpi.POLICY, gpi.IMPROVER) else EVALUATION_TOKENS for role in row.calls
        }
        line = Counter({"calls": states * sum(row.calls.values())})
        line["read"] = states * sum(count * sizes[role] for role, count in row.calls.items())
        line["written"] = states * sum(count * replies[role] for role, count in row.calls.items())
        total += line
        lines.append(_plan_line(f"{maze_name}, {row.title}", line))
    notes = (
        f"{config.starts} starts x {config.seeds} seeds in each maze; steps as in the paper's mean returns, in other "
        f"rows {config.max_steps}.\nA token is taken to be {CHARACTERS} characters, an evaluation {EVALUATION_TOKENS} "
        f"tokens and an action with its thoughts {ACTION_TOKENS}."
    )
    return "\n".join([f"{config.backend} {config.model}: nothing is sent.", *lines, _plan_line("all", total), notes])


def _plan_line(name: str, line: Counter) -> str:
    million = lambda key: f"{line[key] / 1e6:8.2f} M tokens {key}"
    return f"{name:44s} {line['calls']:12,.0f} calls {million('read')} {million('written')}"


def _prompt_tokens(roles: MazeRoles, row: Row, moves: int) -> dict[str, float]:
    """Estimated tokens of one prompt of each role, in the middle of an episode."""
    rng = np.random.default_rng(0)
    cells = [
        state for state in mazes.random_walks(roles.maze, roles.maze.starts, [0] * len(roles.maze.starts), moves, rng)
    ]
    state = max((walk for walk in cells if walk.positions[-1] != roles.maze.goal), key=lambda walk: len(walk.actions))
    (ahead,) = roles.look_ahead([state], [mazes.UP], row.N, rng)
    evaluation = "x" * EVALUATION_TOKENS * CHARACTERS
    chats = {
        gpi.POLICY: roles.policy(state),
        gpi.Q: roles.q(state, mazes.UP),
        gpi.VALUE: roles.value(state, ahead),
        gpi.AGGREGATOR: roles.aggregate(state, mazes.UP, [roles.describe(state, ahead)] * row.K, [evaluation] * row.K),
        gpi.IMPROVER: roles.improve(state, dict.fromkeys(range(4), evaluation)),
    }
    size = lambda chat: sum(len(message["content"]) for message in chat.messages) / CHARACTERS
    return {role: size(chat) for role, chat in chats.items()}


def write_results(config: GPIRunConfig, run_dir: pathlib.Path, results: Results) -> str:
    """table.md, the figure and the report. Returns the line that sums the run up."""
    rows = table(results)
    write_atomically(run_dir / "table.md", markdown(rows))
    ends = {maze: first_and_last(found) for maze, found in results.items()}
    problems = Counter()
    for found in results.values():
        for result in found.values():
            problems.update(result["problems"])
    told = ", ".join(f"{name} {count}" for name, count in sorted(problems.items())) or "none"
    write_report(
        run_dir,
        title=f"Language GPI by prompting: {config.backend}"
        + (f", {config.model}" if config.backend != "scripted" else ""),
        question="What do look-ahead and evaluation in language add to a prompted policy?",
        config=dataclasses.asdict(config),
        summary=rows,
        curves=[figure(results, run_dir / "return_against_k.png")],
        before=[results[maze][first]["episode"] for maze, (first, _) in ends.items()],
        after=[results[maze][last]["episode"] for maze, (_, last) in ends.items()],
        notes=[
            "Mean return over the starts, ± its deviation over the seeds. The paper's numbers are gpt-4o-mini's; its "
            "medium maze has another goal than ours.",
            f"Answers that could not be read as asked, by role: {told}. Where no action could be read one was drawn.",
            *describe_usage(Usage(run_dir)),
            "Under each turn: what the improvement read (the evaluation of each action) and its answer; the look-ahead "
            "that the evaluations come from is folded away.",
        ],
        labels=("policy alone", "language GPI"),
    )
    mean = lambda maze, name: f"{summarize(results[maze][name])['return']:.2f}"
    return "mean return " + "; ".join(f"({m}): {mean(m, a)} -> {mean(m, b)}" for m, (a, b) in ends.items())
