"""Language GPI by prompting in two mazes: Table 1 of the NLRL paper (section 5.1), for any backend.

    python -m launch.run_language_gpi --run_dir runs/gpi                           # scripts, two CPU cores, a minute
    python -m launch.run_language_gpi --backend local --model PATH --run_dir runs/gpi_local
    python -m launch.run_language_gpi --scale paper --dry_run
    python -m launch.run_language_gpi --scale paper --run_dir runs/gpi_paper       # needs $OPENAI_API_KEY

Rows: the language policy alone; Q^L without look-ahead and the improvement I; language GPI with (K, N) = (1, 3),
(4, 1), (4, 3), (6, 3), (8, 3). All play the same 30 starts under 3 seeds, 90 mazes in lockstep. Leaves table.md,
metrics.jsonl, return_against_k.png, report.html and usage.json; finished rows are kept, so --resume goes on with the
next one.

What the paper leaves open or what differs:
- each maze has 25 cells to start from, so 30 starts cannot all differ: every cell once, five of them twice;
- the numbers behind +- are deviations of the mean return over the seeds;
- the goal of the medium maze is ours (see `envs.maze`), so its returns are not comparable with the paper's;
- the paper shows the action history in the observation. The scale `paper` does so (--history 100). The scripts by
  default see the present and, in V^L, the look-ahead (--history 0), so that what they gain is the look-ahead's: a
  script that counts visits without a slip needs none (with --history 20, Q + I alone is as good as GPI);
- an action that cannot be read is replaced by a random one and counted; the maze's -4 for unknown words never applies.

The last line reads `mean return (double_t): <policy alone> -> <GPI K=8 N=3>; (medium): ...`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import time
from collections import Counter
from typing import Any

import numpy as np
from absl import flags

from envs.maze import env as mazes
from envs.maze.prompts import MazeRoles
from envs.maze.rule_based import SCRIPTS
from nlrl_jax.algorithms import language_gpi as gpi
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check_numbers, option
from nlrl_jax.files import write_atomically
from nlrl_jax.run import app, models
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.metrics import MetricsWriter
from nlrl_jax.run.reports.language_gpi import PAPER, Results, Row, markdown, plan, summarize, table, write_results
from nlrl_jax.types import LanguageModel, LanguageModelError, Sampling

BACKENDS = ("scripted", "local", "endpoint")
SHOWN = {"double_t": (1, 5), "medium": (6, 2)}  # the start that the report shows: near the goal, but behind a wall
SCALES = {
    "nano": {"backend": "scripted", "model": "nano", "history": 0},
    "paper": {"backend": "endpoint", "model": "gpt-4o-mini-2024-07-18", "history": 100},
}


@dataclasses.dataclass(frozen=True)
class GPIRunConfig(models.EndpointOptions):
    """Everything that decides what a run computes."""

    scale: str = option("nano", f"sets backend, model and history where they are not given: {', '.join(SCALES)}")
    backend: str = option("", f"{', '.join(BACKENDS)}; empty: the scale's own")
    model: str = option(
        "", "local: nano, a Hugging Face folder or .gguf; endpoint: the server's name; empty: the scale's"
    )
    base_url: str = option("https://api.openai.com/v1", "endpoint: address of an OpenAI-compatible server")
    mazes: str = option("double_t,medium", "which mazes, separated by commas")
    rows: str = option(",".join(PAPER), "which rows, by commas: policy, q, or KxN: K variations, N look-ahead steps")
    observation: str = option("full", "full, or partial: walls alone, no goal and no position")
    history: int = option(-1, "the episode's moves that prompts show; -1: the scale's own")
    starts: int = option(30, "starts in each maze")
    seeds: int = option(3, "episodes from each start")
    max_steps: int = option(100, "steps an episode at most")
    temperature: float = option(0.7, "sampling temperature of every role")
    max_tokens: int = option(512, "tokens a reply at most")
    seed: int = option(0, "everything random follows from it")

    def settled(self) -> GPIRunConfig:
        """With what the scale sets filled in.

        Raises:
          ValueError: a field outside its range.
        """
        if self.scale not in SCALES:
            raise ValueError(f"--scale is {self.scale!r}; choose one of {', '.join(SCALES)}")
        own = SCALES[self.scale]
        config = dataclasses.replace(
            self,
            backend=self.backend or own["backend"],
            model=self.model or own["model"],
            history=own["history"] if self.history == -1 else self.history,
        )
        if config.backend not in BACKENDS:
            raise ValueError(f"--backend is {config.backend!r}; choose one of {', '.join(BACKENDS)}")
        if config.observation not in mazes.OBSERVATIONS:
            raise ValueError(f"--observation is {config.observation!r}; choose one of full, partial")
        at_least_one = ("starts", "seeds", "max_steps", "max_tokens", "concurrency")
        check_numbers(config, at_least_one, ("history", "temperature", "token_budget", "seed"))
        for name in config.mazes.split(","):
            mazes.maze(name)
        for name in config.rows.split(","):
            Row.of(name)
        if config.backend == "endpoint":
            EndpointModel(config, config.model)
        return config


def draw_starts(maze: mazes.Maze, count: int, seed: int) -> list[int]:
    """Cells to start from: all free cells in random order, then all again, as many as needed."""
    rng = np.random.default_rng(seed)
    rounds = -(-count // len(maze.starts))
    return [int(cell) for _ in range(rounds) for cell in rng.permutation(maze.starts)][:count]


def play(config: GPIRunConfig, maze_name: str, row: Row, model: LanguageModel) -> dict[str, Any]:
    """All episodes of a row in lockstep.

    Returns:
      JSON-able: "returns", "solved" and "steps", each [seeds][starts]; "problems" and "calls", see `gpi.Decisions`; and
      "episode", the transcript of the first seed from the start in `SHOWN`, or the first one where it was not drawn.
    """
    maze = mazes.maze(maze_name)
    roles, sampling = (
        MazeRoles(maze, config.observation, config.history),
        Sampling(config.max_tokens, config.temperature),
    )
    starts = draw_starts(maze, config.starts, config.seed)
    states = [mazes.Walk((cell,)) for cell in starts * config.seeds]
    row_column = SHOWN[maze_name]
    cell, board = row_column[0] * maze.columns + row_column[1], mazes.board_template(maze)
    shown = starts.index(cell) if cell in starts else 0
    draw = lambda state: board.render(mazes.fields(maze, state.positions[-1]))
    returns, turns = np.zeros(len(states)), []
    problems, calls, spoken = Counter(), Counter(), time.monotonic()
    for t in range(config.max_steps):
        live = [i for i, state in enumerate(states) if state.positions[-1] != maze.goal]
        if not live:
            break
        decisions = row.decide(model, roles, [states[i] for i in live], sampling, _seed(config, maze_name, row, t))
        problems, calls = problems + decisions.problems, calls + decisions.calls
        position, reward, _ = mazes.step(maze, [states[i].positions[-1] for i in live], decisions.actions)
        for k, i in enumerate(live):
            if i == shown:
                turns.append(_turn(draw(states[i]), decisions, k, float(reward[k])))
            returns[i] += reward[k]
            before = states[i]
            action, cell = int(decisions.actions[k]), int(position[k])
            states[i] = mazes.Walk((*before.positions, cell), (*before.actions, action))
        if time.monotonic() - spoken > 10:
            spoken = time.monotonic()
            print(f"  {maze_name}, {row.title}: step {t + 1}, {len(live)} of {len(states)} still under way", flush=True)
    grid = lambda values: np.reshape(values, (config.seeds, config.starts)).tolist()
    solved = [state.positions[-1] == maze.goal for state in states]
    episode = {
        "success": solved[shown],
        "terminated": solved[shown],
        "env_return": float(returns[shown]),
        "final_board": draw(states[shown]),
        "turns": turns,
    }
    return {
        "returns": grid(returns),
        "solved": grid(solved),
        "steps": grid([len(state.actions) for state in states]),
        "problems": dict(sorted(problems.items())),
        "calls": dict(sorted(calls.items())),
        "episode": episode,
    }


def _seed(config: GPIRunConfig, maze_name: str, row: Row, t: int) -> int:
    """A seed for each step of each row, whatever other rows are run."""
    name = int.from_bytes(f"{maze_name}/{row.name}".encode())
    return int(np.random.SeedSequence([config.seed, name, t]).generate_state(1)[0] >> 1)


def _turn(board: str, decisions: gpi.Decisions, k: int, reward: float) -> dict[str, Any]:
    """A turn as `write_report` takes it; the evaluations stand before the last reply."""
    thinking, words = decisions.thinking[k], mazes.ACTIONS
    values = [f"{words[action]}: {text}" for action, text in thinking.values.items()]
    reply = [*values, f"Improvement: {thinking.reply}"] if values else [thinking.reply]
    ahead = [
        f"{words[action]}, variation {i}. {told}\n  Evaluation: {value}"
        for action, pairs in thinking.variations.items()
        for i, (told, value) in enumerate(pairs, 1)
    ]
    asked = "\n\n".join(message["content"] for message in thinking.chat.messages)
    return {
        "board": board,
        "prompt": "\n".join(["LOOK-AHEAD", *ahead, "", "LAST PROMPT", asked] if ahead else [asked]),
        "reply": "\n\n".join(reply),
        "actions": [words[int(decisions.actions[k])]],
        "steps": 1,
        "invalid": int(decisions.drawn[k]),
        "reward": reward,
    }


def make_model(config: GPIRunConfig, run_dir: pathlib.Path, usage: Usage) -> LanguageModel:
    """The language model that plays all roles, its calls counted."""
    name = config.model if config.backend == "local" else config.backend
    return models.large_model(name, SCRIPTS, run_dir, usage, config, config.model)


def run(config: GPIRunConfig, run_dir: pathlib.Path, resume: bool) -> Results:
    """Plays every row in an opened run folder. Returns {maze: {row: result}}, from disk where a row was finished.

    Raises:
      ValueError: the endpoint failed or the budget is spent; what was finished is kept.
    """
    usage = Usage(run_dir)
    model = make_model(config, run_dir, usage)
    jobs = list(itertools.product(config.mazes.split(","), map(Row.of, config.rows.split(","))))
    path = lambda maze, row: run_dir / "rows" / f"{maze}_{row.name}.json"
    (run_dir / "rows").mkdir(exist_ok=True)
    done = next((n for n, job in enumerate(jobs) if not path(*job).exists()), len(jobs))
    results: Results = {maze: {} for maze, _ in jobs}
    with MetricsWriter(run_dir, resume_from=done if resume else None) as writer:
        for n, (maze, row) in enumerate(jobs):
            if n >= done:
                usage.section, begun = f"{maze}_{row.name}/", time.perf_counter()
                try:
                    result = play(config, maze, row, model)
                except LanguageModelError as error:
                    raise ValueError(f"{error}\n{n} of {len(jobs)} rows are finished; --resume goes on") from error
                summary, seconds = summarize(result), time.perf_counter() - begun
                writer.write(n, summary, seconds)
                write_atomically(path(maze, row), json.dumps(result) + "\n")
                told = f"{summary['return']:.2f} ± {summary['return_std']:.2f}, solved {summary['solved']:.0%}"
                print(f"[{n + 1}/{len(jobs)}] {maze}, {row.title}: {told} ({seconds:.1f} s)", flush=True)
            results[maze][row.name] = json.loads(path(maze, row).read_text())
    return results


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(GPIRunConfig).settled()
    if flags.FLAGS.dry_run:
        print(plan(config))
        return
    if config.backend == "local":
        models.tokenizer_of(config.model)  # a name that is wrong is refused before anything is made
    run_dir = app.take_run_dir("run_language_gpi", config, may_change=models.MAY_CHANGE)
    results = run(config, run_dir, flags.FLAGS.resume)
    line = write_results(config, run_dir, results)
    print(markdown(table(results)), end="")
    print(f"report: {run_dir / 'report.html'}")
    print(line)


def define_flags() -> None:
    config_flags.define(GPIRunConfig)
    app.define_run_flags()
    flags.DEFINE_boolean("dry_run", False, "print calls and estimated tokens, and do nothing")


if __name__ == "__main__":
    define_flags()
    app.run(main)
