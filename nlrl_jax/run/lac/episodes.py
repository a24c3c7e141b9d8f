"""Episodes of one method: all tasks in batches, every step on disk once it is made; finished methods are read."""

from __future__ import annotations

import json
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.algorithms.imagine import POLICY
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.lats import LATSConfig, Plans
from nlrl_jax.algorithms.planners.methods import Method
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_seed
from nlrl_jax.files import write_atomically
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.rollouts.host_games import Episode, Move, play
from nlrl_jax.run.lac import threads
from nlrl_jax.run.lac.journal import Journal
from nlrl_jax.run.lac.prompts import inner_model
from nlrl_jax.run.lac.tasks import Task
from nlrl_jax.types import HostGame, LanguageModel

_ENOUGH = 20  # actions, to judge a model by


def run_method(
    name: str,
    method: Method,
    model: LanguageModel,
    usage: Usage,
    game: HostGame,
    dialogue: Dialogue,
    config: LACConfig,
    tasks: Sequence[Task],
    parallel: int,
    seed: int,
    run_dir: pathlib.Path | None = None,
    lats: LATSConfig | None = None,
    jobs: int = 1,
) -> dict[str, Any]:
    """Plays all tasks with one method, in batches. With a folder every step is on disk once it is made, and repeated
    from there; a plan of whole episodes once the search is over.

    Args:
      parallel: episodes of a part, in lockstep.
      lats: of the search of LATS; None is the paper's.
      jobs: parts that are played at once, in threads. A part has a cache of its own in a local model, so that what it
        does follows from the part alone.

    Returns:
      {"method", "score": the reward's name in tables or "", "seconds", "problems", "calls",
       "tokens": {"read", "written"}, "episodes": one dict each}. Seconds are those of all parts together. A step that
      a kill cut off and that was played again counts once; `usage` has both, for both were computed.
    """
    usage.section = f"{name}/"
    journal = Journal(run_dir / "moves" / f"{name}.jsonl" if run_dir else None)
    chunks = [tasks[first : first + parallel] for first in range(0, len(tasks), parallel)]
    jobs = min(jobs, len(chunks))
    game = threads.one_at_a_time(game) if jobs > 1 else game
    printed, told = [time.monotonic()], []

    def play_part(part: int) -> list[Episode]:
        spent, chunk, last = Usage(), chunks[part], {}
        own, before = Metered(threads.alone(model, jobs), spent), Counter()
        moves = journal.of(part)

        def tokens() -> dict[str, int]:
            """Read and written since the last time."""
            nonlocal before
            sums = Counter({"read": 0, "written": 0})
            for row in spent.rows():
                sums.update(read=row["prompt_tokens"], written=row["tokens"])
            new, before = {name: sums[name] - before[name] for name in sums}, sums
            return new

        clock = time.perf_counter()
        if method.plan and not moves:
            plans = method.plan(own, dialogue, game, chunk, config.planning, lats or LATSConfig(), _seed(seed, part, 0))
            moves = _moves_of(plans, part, time.perf_counter() - clock, tokens())
            journal.add(moves)

        def decide(histories, t):
            made = method.decide(own, dialogue, histories, game.actions, config, _seed(seed, part, t))
            last.update(problems=made.problems, calls=made.calls)
            return made

        def report(t, move, running):
            nonlocal clock
            now = time.perf_counter()
            row = {"part": part, "seconds": now - clock, "tokens": tokens(), **last}
            clock = now
            journal.add([{**row, **move._asdict()}])
            if not told and (note := unreadable(journal.rows)):
                told.append(note)
                print(f"  {method.title}: {note}", flush=True)
            if time.monotonic() - printed[0] > 15:
                printed[0] = time.monotonic()
                which = f", part {part + 1} of {len(chunks)}" if len(chunks) > 1 else ""
                text = f"step {t + 1}, {running} of {len(chunk)} episodes are still open"
                print(f"  {method.title}{which}: {text}", flush=True)

        earlier = [Move(row["actions"], row["notes"], row["thoughts"], row["thinking"]) for row in moves]
        return play(game, decide, chunk, earlier, report)

    episodes = sum(threads.in_threads(play_part, len(chunks), jobs, journal), [])
    done = journal.rows
    total = lambda field: dict(sum((Counter(row[field]) for row in done), Counter()))
    broken = Counter("game/broke off" for episode in episodes if episode.error)
    return {
        "method": name,
        "score": game.score,
        "seconds": sum(row["seconds"] for row in done),
        "problems": {**total("problems"), **broken},
        "calls": total("calls"),
        "tokens": _tokens_of(name, model, usage, done),
        "episodes": [as_json(episode) for episode in episodes],
    }


def unreadable(rows: Sequence[Mapping[str, Any]]) -> str:
    """What to do where most actions that a model writes are none of the game's; "" where they are, or are too few."""
    asked = sum(row["calls"].get(POLICY, 0) for row in rows)
    bad = sum(row["problems"].get(f"{POLICY}/{kind}", 0) for row in rows for kind in ("no action", "empty"))
    if asked < _ENOUGH or 2 * bad <= asked:
        return ""
    return (
        f"{bad} of the first {asked} actions that the model wrote cannot be read, and random ones take their place. An "
        "endpoint may begin new messages: give its tokenizer (--endpoint_tokenizer MODEL); a local model may not know "
        "the game: launch.finetune_lac teaches it"
    )


def finished_methods(
    run_dir: pathlib.Path, names: Sequence[str], run: Callable[[str], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The results of all methods by name: those on disk are read, the others run and written."""
    results = {}
    for name in names:
        path = run_dir / "episodes" / f"{name}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(run(name)) + "\n")
        results[name] = json.loads(path.read_text())
    return results


def as_json(episode: Episode) -> dict[str, Any]:
    """An episode in JSON's types; "moves" is its number of actions."""
    history = episode.history
    return {
        "task": list(episode.task),
        "goal": history.goal,
        "observation": history.observation,
        "note": history.note,
        "steps": [list(step) for step in history.steps],
        "success": episode.success,
        "reward": episode.reward,
        "moves": episode.steps,
        "invalid": episode.invalid,
        "optimal": episode.optimal,
        "thinking": list(episode.thinking),
        "boards": list(episode.boards),
        "error": episode.error,
    }


def _tokens_of(name: str, model: LanguageModel, usage: Usage, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Read and written by all steps, each counted once. A reply that an endpoint gave to a step that a kill cut off is
    paid for once, too, and then comes from the cache, so the ledger knows."""
    if all("tokens" in row for row in rows) and not isinstance(inner_model(model), EndpointModel):
        return {field: sum(row["tokens"][field] for row in rows) for field in ("read", "written")}
    spent = [row for row in usage.rows() if row["role"].startswith(f"{name}/")]
    return {"read": sum(row["prompt_tokens"] for row in spent), "written": sum(row["tokens"] for row in spent)}


def _moves_of(plans: Plans, part: int, seconds: float, tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    """Plans as the journal's rows, one per step: the moves of the episodes that still run. All that was spent stands in
    the first."""
    rows = []
    for t in range(max(map(len, plans.actions))):
        live = [i for i, actions in enumerate(plans.actions) if t < len(actions)]
        move = Move(
            [plans.actions[i][t] for i in live],
            [""] * len(live),
            [[]] * len(live),
            [plans.thinking[i][t] for i in live],
        )
        spent = {"seconds": 0.0, "tokens": {"read": 0, "written": 0}, "problems": {}, "calls": {}}
        if t == 0:
            spent = {"seconds": seconds, "tokens": tokens, "problems": plans.problems, "calls": plans.calls}
        rows.append({"part": part, **spent, **move._asdict()})
    return rows


def _seed(seed: int, part: int, t: int) -> int:
    return int(
        jax.random.bits(jax.random.fold_in(jax.random.fold_in(jax.random.key(check_seed(seed)), part), t))
        >> np.uint32(1)
    )
