"""Language GPI by prompting in two mazes: Table 1 of the NLRL paper (section 5.1), for any backend.

    nlrl-jax run_language_gpi --run_dir runs/gpi                           # rule-based, two CPU cores, a minute
    nlrl-jax run_language_gpi --backend local --model PATH --run_dir runs/gpi_local
    nlrl-jax run_language_gpi --scale paper --dry_run
    nlrl-jax run_language_gpi --scale paper --run_dir runs/gpi_paper  # needs $OPENAI_API_KEY (or --api_key_env)

Rows: the language policy alone; Q^L without look-ahead and the improvement I; language GPI with (K, N) = (1, 3),
(4, 1), (4, 3), (6, 3), (8, 3); `--mazes`, `--rows` and `--starts` choose fewer. All play the same 30 starts under 3
seeds, 90 mazes in lockstep. Writes results.json, table.md, metrics.jsonl, return_against_k.png, report.html and
usage.json; finished rows are kept, so --resume continues with the next one.

Details that the paper leaves open, and departures:
- each maze has 25 start cells, so of 30 starts five occur twice;
- ± in the table is the half-width of a 95 % interval over the seeds; the paper does not say what its own is;
- the goal of the medium maze is ours (see `envs.maze`), so its returns are not comparable with the paper's;
- the paper shows the action history in the observation, and so does the scale `paper` (--history 100). By default the
  rules see only the present and, in V^L, the look-ahead (--history 0), so that what they gain is due to look-ahead:
  rules that count earlier visits need none (with --history 20, Q + I alone is as good as GPI);
- an unreadable action is replaced by a random one and counted; the maze's -4 for unknown words never applies.

The last line reads `mean return (double_t): <policy alone> -> <GPI K=8 N=3>; (medium): ...`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags

from nlrl_jax.algorithms import language_gpi as gpi
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.config import check, flat, listed, option, part, replace, seed_option
from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze.env import OBSERVATIONS
from nlrl_jax.envs.maze.prompts import MazeRoles
from nlrl_jax.envs.maze.rule_based import SCRIPTS
from nlrl_jax.files import write_json
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import app, endpoints, local_models, models, results
from nlrl_jax.run.dry_run import CallPlan
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.metrics import MetricsWriter
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports import language_gpi as gpi_report
from nlrl_jax.run.reports.language_gpi import TABLE_1, GPIMethod, Results, first_and_last, mean_return, summarize
from nlrl_jax.types import LanguageModel, LanguageModelError, Sampling

SCRIPT = "run_language_gpi"
BACKENDS = ("scripted", "local", "endpoint")
REPORTED = {"double_t": (1, 5), "medium": (6, 2)}  # the start in the report: near the goal, but behind a wall
MAX_STEPS = mazes.MAX_STEPS
PRESETS = {"nano": {}, "paper": {"backend": "endpoint", "model": "gpt-4o-mini-2024-07-18", "history": 100}}


@dataclasses.dataclass(frozen=True)
class GPIRunConfig:
    """Everything that determines what a run computes."""

    backend: str = option("scripted", f"the model of all roles: {', '.join(BACKENDS)}", choices=BACKENDS)
    model: str = option("nano", "local: nano, a Hugging Face folder or .gguf; endpoint: the server's name for it")
    endpoint: endpoints.Endpoint = part(
        endpoints.Endpoint(base_url="https://api.openai.com/v1"), without=("endpoint_model", "endpoint_tokenizer")
    )
    templates: TemplateOptions = part(TemplateOptions(shared=True))
    mazes: str = option("double_t,medium", "mazes, separated by commas")
    rows: str = option(
        ",".join(TABLE_1), "rows, separated by commas: policy, q, or KxN: K variations, N look-ahead steps"
    )
    observation: str = option("full", "full, or partial: only walls, neither goal nor position", choices=OBSERVATIONS)
    history: int = option(0, "how many past moves of the episode prompts show", least=0)
    starts: int = option(30, "starts in each maze", least=1)
    seeds: int = option(3, "episodes from each start", least=1)
    max_steps: int = option(MAX_STEPS, "maximum steps per episode", least=1, most=MAX_STEPS)
    sampling: Sampling = part(Sampling(512, 0.7), without=("top_k", "top_p"))
    seed: int = seed_option("everything random follows from it")

    def __post_init__(self):
        check(self)
        self.jobs()

    def jobs(self) -> list[tuple[str, GPIMethod]]:
        """Every maze with every row. Raises ValueError for an unknown one."""
        names = listed("mazes", self.mazes)
        if not set(names) <= mazes.LAYOUTS.keys():
            raise ValueError(f"--mazes is {self.mazes!r}; choose among {', '.join(mazes.LAYOUTS)}")
        return list(itertools.product(names, map(GPIMethod.of, listed("rows", self.rows))))

    @property
    def model_name(self) -> str:
        """As `models.large_model` takes it."""
        return self.model if self.backend == "local" else self.backend

    @property
    def server(self) -> endpoints.Endpoint:
        """The endpoint with its model."""
        return dataclasses.replace(self.endpoint, endpoint_model=self.model)


COMMAND = app.Command(SCRIPT, GPIRunConfig, PRESETS, "scale", dry_run="print calls and tokens, then stop")


def draw_starts(maze: mazes.Maze, count: int, seed: int) -> list[int]:
    """Cells to start from: all free cells in random order, then all again, as many as needed."""
    rng = np.random.default_rng(seed)
    rounds = -(-count // len(maze.starts))
    return [int(cell) for _ in range(rounds) for cell in rng.permutation(maze.starts)][:count]


def play(config: GPIRunConfig, maze_name: str, row: GPIMethod, model: LanguageModel) -> dict[str, Any]:
    """All episodes of a row in lockstep.

    Returns:
      JSON-able: "returns", "solved" and "steps", each [seeds][starts]; "problems" and "calls", see `GPIDecisions`; and
      "episode", the transcript of the first seed from the start in `REPORTED`, or from the first start without it.
    """
    maze = mazes.maze(maze_name)
    roles = MazeRoles(maze, config.observation, config.history)
    starts = draw_starts(maze, config.starts, config.seed)
    states = [mazes.Walk((cell,)) for cell in starts * config.seeds]
    line, column = REPORTED[maze_name]
    cell, board = line * maze.columns + column, mazes.board_template(maze)
    reported = starts.index(cell) if cell in starts else 0

    def draw(state: mazes.Walk) -> str:
        return board.render(mazes.fields(maze, state.positions[-1]))

    returns, turns = np.zeros(len(states)), []
    problems, calls, printed = Counter(), Counter(), time.monotonic()
    for t in range(config.max_steps):
        live = [i for i, state in enumerate(states) if state.positions[-1] != maze.goal]
        if not live:
            break
        seed = _seed(config, maze_name, row, t)
        decisions = row.decide(model, roles, [states[i] for i in live], config.sampling, seed)
        problems, calls = problems + decisions.problems, calls + decisions.calls
        position, reward, _ = mazes.step(maze, [states[i].positions[-1] for i in live], decisions.actions)
        for k, i in enumerate(live):
            if i == reported:
                turns.append(_turn(draw(states[i]), decisions, k, float(reward[k])))
            returns[i] += reward[k]
            before = states[i]
            action, cell = int(decisions.actions[k]), int(position[k])
            states[i] = mazes.Walk((*before.positions, cell), (*before.actions, action))
        if time.monotonic() - printed > 10:
            printed = time.monotonic()
            print(f"  {maze_name}, {row.title}: step {t + 1}, {len(live)} of {len(states)} are still open", flush=True)

    def grid(values: Any) -> list[list[Any]]:
        return np.reshape(values, (config.seeds, config.starts)).tolist()

    solved = [state.positions[-1] == maze.goal for state in states]
    episode = {
        "success": solved[reported],
        "terminated": solved[reported],
        "env_return": float(returns[reported]),
        "final_board": draw(states[reported]),
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


def _seed(config: GPIRunConfig, maze_name: str, row: GPIMethod, t: int) -> int:
    """A seed for each step of each row, independent of the other rows of a run."""
    name = int.from_bytes(f"{maze_name}/{row.name}".encode())
    return int(np.random.SeedSequence([config.seed, name, t]).generate_state(1)[0] >> 1)


def _turn(board: str, decisions: gpi.GPIDecisions, k: int, reward: float) -> dict[str, Any]:
    """A turn in `write_report`'s form; its reply begins with the evaluations."""
    thinking, words = decisions.thinking[k], mazes.ACTIONS
    values = [f"{words[action]}: {text}" for action, text in thinking.values.items()]
    reply = [*values, f"Improvement: {thinking.reply}"] if values else [thinking.reply]
    ahead = [
        f"{words[action]}, variation {i}. {description}\n  Evaluation: {value}"
        for action, pairs in thinking.variations.items()
        for i, (description, value) in enumerate(pairs, 1)
    ]
    prompt = "\n\n".join(message["content"] for message in thinking.chat.messages)
    return {
        "board": board,
        "prompt": "\n".join(["LOOK-AHEAD", *ahead, "", "LAST PROMPT", prompt] if ahead else [prompt]),
        "reply": "\n\n".join(reply),
        "actions": [words[int(decisions.actions[k])]],
        "steps": 1,
        "invalid": int(decisions.is_random[k]),
        "reward": reward,
    }


def run(
    jobs: Sequence[tuple[str, GPIMethod]],
    play_row: Callable[[str, GPIMethod], dict[str, Any]],
    run_dir: pathlib.Path,
    resume: bool,
    usage: Usage,
) -> Results:
    """Plays every row in an opened run folder. Returns {maze: {row: result}}, from disk where a row was finished.

    Args:
      jobs: mazes with rows, each of which `play_row` plays. usage: of its model.

    Raises:
      ValueError: the endpoint failed or the budget is spent; finished rows are kept.
    """

    def path(maze: str, row: GPIMethod) -> pathlib.Path:
        return run_dir / "rows" / f"{maze}_{row.name}.json"

    (run_dir / "rows").mkdir(exist_ok=True)
    done = next((n for n, job in enumerate(jobs) if not path(*job).exists()), len(jobs))
    finished: Results = {maze: {} for maze, _ in jobs}
    with MetricsWriter(run_dir, resume_from=done if resume else None) as writer:
        for n, (maze, row) in enumerate(jobs):
            if n >= done:
                usage.section, clock = f"{maze}_{row.name}/", time.perf_counter()
                try:
                    result = play_row(maze, row)
                except LanguageModelError as error:
                    raise ValueError(f"{error}\n{n} of {len(jobs)} rows are finished; --resume continues") from error
                summary, seconds = summarize(result), time.perf_counter() - clock
                writer.write(n, summary, seconds)
                write_json(path(maze, row), result)
                line = f"{mean_return(result)}, solved {summary['solved']:.0%}"
                print(f"[{n + 1}/{len(jobs)}] {maze}, {row.title}: {line} ({seconds:.1f} s)", flush=True)
            finished[maze][row.name] = json.loads(path(maze, row).read_text())
    return finished


def write_results(config: GPIRunConfig, run_dir: pathlib.Path, finished: Results) -> str:
    """results.json: "before" is the policy alone and "after" the largest look-ahead. Returns both as a line."""
    compared = {maze: first_and_last(list(rows)) for maze, rows in finished.items()}
    pairs = {maze: [finished[maze][name] for name in names] for maze, names in compared.items()}

    def evaluation(side: int) -> dict[str, Any]:
        """Means over the starts, [seeds], of the first or the last row."""
        means = {}
        for maze, pair in pairs.items():
            for metric, key in (("return", "returns"), ("solved", "solved"), ("steps", "steps")):
                means[f"{maze}/{metric}"] = np.mean(pair[side][key], axis=1)
        return means

    def episodes(side: int) -> list[dict[str, Any]]:
        return [pair[side]["episode"] for pair in pairs.values()]

    results.write(
        run_dir,
        script=SCRIPT,
        before=evaluation(0),
        after=evaluation(1),
        seeds=config.seeds,
        rows={maze: {name: summarize(result) for name, result in rows.items()} for maze, rows in finished.items()},
        transcripts={"before": episodes(0), "after": episodes(1)},
    )
    changes = []
    for maze, pair in pairs.items():
        before, after = (summarize(result)["return"] for result in pair)
        changes.append(f"({maze}): {before:.2f} -> {after:.2f}")
    return "mean return " + "; ".join(changes)


def dry_run(config: GPIRunConfig) -> str:
    """Calls and tokens of every row, counted in a few episodes that rules play."""
    small, plan = replace(config, starts=min(config.starts, 5), seeds=1), CallPlan(SCRIPTS)
    episodes = config.starts * config.seeds
    for maze, row in config.jobs():
        play(small, maze, row, plan.model(episodes / small.starts, f"{maze} {row.name}"))
    budget = config.endpoint.token_budget if config.backend == "endpoint" else 0
    return (
        f"{config.backend} {config.model}: nothing is sent. Rules played {small.starts} of {episodes} episodes per "
        f"row. Replies, also those quoted in prompts, are counted at their maximum length of "
        f"{config.sampling.max_tokens} tokens.\n{plan.table(budget, 'starts', config.starts)}"
    )


def main(argv: list[str]) -> None:
    del argv
    config = COMMAND.parse()
    endpoints.check_endpoint_is_used(config.backend)
    if config.backend == "scripted":
        leave_out("with --backend scripted", "model")
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    local_models.check_templates(config.templates, config.model_name)
    ask = not flags.FLAGS.resume
    models.check_large_model(config.model_name, config.server, config.sampling.max_tokens, ask=ask)
    run_dir, resume = COMMAND.open(config)
    usage, name = Usage(run_dir), config.model_name
    model = models.large_model(name, SCRIPTS, run_dir, usage, config.server, templates=config.templates)
    play_row = functools.partial(play, config, model=metered(model, usage))
    finished = run(config.jobs(), play_row, run_dir, resume, usage)
    line = write_results(config, run_dir, finished)
    model = config.backend if config.backend == "scripted" else f"{config.backend}, {config.model}"
    report = gpi_report.write(run_dir, model, flat(config), finished, usage)
    print(f"{gpi_report.explained(finished)}\n\n{markdown(gpi_report.table(finished))}report: {report}\n{line}")


if __name__ == "__main__":
    COMMAND.run(main)
