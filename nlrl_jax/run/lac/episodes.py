"""Episodes of one method: all tasks in batches, every step on disk once it is made; finished methods are read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.algorithms.imagine import POLICY, NoLogProbability
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.lats import LATSConfig, Plans
from nlrl_jax.algorithms.planners.methods import Method
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.config import check_seed
from nlrl_jax.files import write_json
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.rollouts.host_games import Episode, StepDecisions, play
from nlrl_jax.run.host_games import threads
from nlrl_jax.run.host_games.faults import FaultLog
from nlrl_jax.run.host_games.journal import Journal
from nlrl_jax.run.host_games.tasks import Task
from nlrl_jax.types import HostGame, LanguageModel, as_model

_ENOUGH = 20  # actions by which a model is judged
# Steps after which keys and values are forgotten. They differ in the last bits from those that are computed anew, so a
# run goes on from such a step: it repeats the steps since then, and computes what an unbroken run computes.
PERIOD = 8


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the methods of a run share.

    Attributes:
      usage: the run's ledger of calls and tokens; `model` is metered by it.
      config, lats: how LAC and the planners decide. LATS reads `lats`; its defaults are the paper's.
      parallel: episodes that a batch plays in lockstep.
      jobs: batches that run concurrently, in threads; results do not change. In a local model each batch has its own
        key/value cache.
      run_dir: where every step is written once it is made; None writes nothing.
    """

    model: LanguageModel
    usage: Usage
    game: HostGame
    config: LACConfig = LACConfig()
    lats: LATSConfig = LATSConfig()
    parallel: int = 60
    jobs: int = 1
    seed: int = 0
    run_dir: pathlib.Path | None = None


def run_method(
    setting: Setting, name: str, method: Method, dialogue: Dialogue, tasks: Sequence[Task]
) -> dict[str, Any]:
    """Plays all tasks with one method, in batches. Steps that are on disk are repeated from there, and so is a plan of
    whole episodes whose search is over.

    Returns:
      {"method", "score": the reward's name in tables or "", "measure": the field of episodes that tables show first,
       "seconds", "problems", "calls",
       "tokens": {"read", "written"}, "episodes": one dict each}. Seconds are those of all batches together. A step
      that was interrupted and played again counts once; `usage` has both, because both were computed.
    """
    setting.usage.section = f"{name}/"
    journal = Journal(setting.run_dir / "moves" / f"{name}.jsonl" if setting.run_dir else None)
    batches = [tasks[first : first + setting.parallel] for first in range(0, len(tasks), setting.parallel)]
    jobs, game = min(setting.jobs, len(batches)), setting.game
    setting = dataclasses.replace(setting, jobs=jobs, game=threads.one_at_a_time(game) if jobs > 1 else game)
    progress = _Progress(method.title, len(batches), journal)

    def play_batch(i: int) -> list[Episode]:
        return _play_batch(setting, method, dialogue, batches[i], i, progress)

    episodes = sum(threads.in_threads(play_batch, len(batches), jobs, journal), [])
    FaultLog(game.name)(episodes)
    rows = journal.rows
    totals = {field: dict(sum((Counter(row[field]) for row in rows), Counter())) for field in ("problems", "calls")}
    broken = Counter("game/broke off" for episode in episodes if episode.error)
    return {
        "method": name,
        "score": game.score,
        "measure": "success" if game.has_success else "reward",
        "seconds": sum(row["seconds"] for row in rows),
        "problems": {**totals["problems"], **broken},
        "calls": totals["calls"],
        "tokens": _tokens_of(name, setting.model, setting.usage, rows),
        "episodes": [as_json(episode) for episode in episodes],
    }


class _Progress:
    """Lines on the terminal, at most one every 15 seconds, and a hint where most actions cannot be read."""

    def __init__(self, title: str, batches: int, journal: Journal):
        self.title, self.batches, self.journal = title, batches, journal
        self.printed, self.hinted = time.monotonic(), False

    def show(self, batch: int, text: str) -> None:
        if not self.hinted and (hint := unreadable(self.journal.rows)):
            self.hinted = True
            print(f"  {self.title}: {hint}", flush=True)
        if time.monotonic() - self.printed > 15:
            self.printed = time.monotonic()
            part = f", batch {batch + 1} of {self.batches}" if self.batches > 1 else ""
            print(f"  {self.title}{part}: {text}", flush=True)


def _play_batch(
    setting: Setting, method: Method, dialogue: Dialogue, tasks: Sequence[Task], batch: int, progress: _Progress
) -> list[Episode]:
    """The episodes of one batch; those of its steps that are in the journal are repeated, not decided again."""
    spent, journal = Usage(), progress.journal
    model, game = metered(as_model(setting.model).session(setting.jobs), spent), setting.game
    memory = model.memories
    if memory:
        _go_back(journal, batch)
    earlier = [StepDecisions(**move) for move in journal.moves(batch)]
    before, clock = Counter(), time.perf_counter()

    def cost() -> dict[str, Any]:
        """Seconds and tokens since the last time."""
        nonlocal before, clock
        sums = Counter({"read": 0, "written": 0})
        for row in spent.rows():
            sums.update(read=row["prompt_tokens"], written=row["tokens"])
        now = time.perf_counter()
        amounts = {"seconds": now - clock, "tokens": {name: sums[name] - before[name] for name in sums}}
        before, clock = sums, now
        return amounts

    if method.plan and not earlier:
        with _named(f"{method.title} on {game.name}"):
            plans = method.plan(
                model, dialogue, game, tasks, setting.config.planning, setting.lats, _seed(setting.seed, batch, 0)
            )
        earlier, counted = _moves_of(plans), {"problems": plans.problems, "calls": plans.calls}
        # One line, so that a kill leaves the whole plan or none of it.
        journal.add({"part": batch, **cost(), **counted, "plan": [move._asdict() for move in earlier]})

    def decide(histories, t):
        for session in memory if t % PERIOD == 0 else ():
            session.clear()
        with _named(f"{method.title} on {game.name}, step {t + 1}"):
            seed = _seed(setting.seed, batch, t)
            return method.decide(model, dialogue, histories, game.actions, setting.config, seed)

    def report(t, move, running):
        row = {"part": batch, **cost(), **move._asdict(), "open": running if t + 1 < game.max_steps else 0}
        journal.add(row)
        progress.show(batch, f"step {t + 1}, {running} of {len(tasks)} episodes are still open")

    return play(game, decide, tasks, earlier, report)


@contextlib.contextmanager
def _named(step: str) -> Iterator[None]:
    """Says at which step a model gave no log-probability."""
    try:
        yield
    except NoLogProbability as error:
        raise ValueError(f"{step}: {error}") from None


def _go_back(journal: Journal, batch: int) -> None:
    """Drops the steps of an unfinished batch since its models last forgot all texts."""
    rows = journal.of(batch)
    if rows and rows[-1].get("open"):
        journal.drop(batch, len(rows) // PERIOD * PERIOD)


def unreadable(rows: Sequence[Mapping[str, Any]]) -> str:
    """What to do where most actions that a model writes are not the game's; "" otherwise, and after few actions."""
    written_actions = sum(row["calls"].get(POLICY, 0) for row in rows)
    bad = sum(row["problems"].get(f"{POLICY}/{kind}", 0) for row in rows for kind in ("no action", "empty"))
    if written_actions < _ENOUGH or 2 * bad <= written_actions:
        return ""
    return (
        f"{bad} of the first {written_actions} actions that the model wrote cannot be read, and random ones take "
        "their place. An endpoint may begin new messages: give its tokenizer (--endpoint_tokenizer MODEL); a local "
        "model may not know the game: nlrl-jax finetune_lac teaches it"
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
            write_json(path, run(name))
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
    """Read and written by all steps, each counted once. An endpoint's reply to an interrupted step is paid for once and
    then comes from the cache, so there the ledger is right."""
    if not as_model(model).facts.address:
        return {field: sum(row["tokens"][field] for row in rows) for field in ("read", "written")}
    spent = [row for row in usage.rows() if row["role"].startswith(f"{name}/")]
    return {"read": sum(row["prompt_tokens"] for row in spent), "written": sum(row["tokens"] for row in spent)}


def _moves_of(plans: Plans) -> list[StepDecisions]:
    """Plans as moves: at each step those of the episodes that still run."""
    moves = []
    for t in range(max(map(len, plans.actions))):
        live = [i for i, actions in enumerate(plans.actions) if t < len(actions)]
        none = [""] * len(live), [[]] * len(live)
        moves.append(StepDecisions([plans.actions[i][t] for i in live], *none, [plans.thinking[i][t] for i in live]))
    return moves


@jax.jit
def _bits(seed: jax.Array, batch: jax.Array, t: jax.Array) -> jax.Array:
    return jax.random.bits(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), batch), t)) >> np.uint32(1)


def _seed(seed: int, batch: int, t: int) -> int:
    return int(_bits(np.uint32(check_seed(seed)), batch, t))
