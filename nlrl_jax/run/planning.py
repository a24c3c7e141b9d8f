"""The machinery of a run of planners: dialogues that fit the model, moves on disk, finished methods."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import pickle
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
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check, check_seed, option
from nlrl_jax.files import read_json, write_atomically
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.rollouts.host_games import Episode, Move, play
from nlrl_jax.run import parts
from nlrl_jax.types import SEEDS_PER_RUN, HostGame, LanguageModel, Start
from nlrl_jax.weights.load import BUILT_IN

Task = tuple[str, int]
_ENOUGH = 20  # actions, to judge a model by
FORM = "dialogue.json"  # in the folder of a fine-tuned model: {"prompt", "examples"} that it learned from


@dataclasses.dataclass(frozen=True)
class PromptConfig:
    """How episodes become prompts."""

    prompt: str = option(
        "auto",
        "paper (instructions), compact (for built-in models), or auto: as the model was fine-tuned "
        "(launch.finetune_lac), else compact for built-in models and paper for others",
        choices=("auto", "paper", "compact"),
    )
    examples: int = option(
        -1,
        "episodes that the model reads first, in the prompt `paper`; -1: as many as in fine-tuning, else 1",
        least=-1,
        most=8,
    )
    history: int = option(
        0, "maximum steps that a prompt shows; 0: the game's own (16 in Crafter, no limit elsewhere)", least=0
    )
    context_tokens: int = option(0, "maximum tokens of a prompt with its reply; 0 is the local model's own", least=0)

    def __post_init__(self):
        check(self)

    def form(self, model: str) -> tuple[str, int]:
        """("paper" or "compact", number of examples) of the prompts of a model by its name."""
        path = pathlib.Path(model).expanduser() / FORM
        tuned = read_json(path) if path.is_file() else {}
        own = tuned.get("prompt", "compact" if model in BUILT_IN else "paper")
        examples = self.examples if self.examples >= 0 else tuned.get("examples", 1)
        return (own if self.prompt == "auto" else self.prompt), examples


def dialogue_of(
    method: Method, game: HostGame, config: PromptConfig, model: str, tokenizer: Tokenizer | None, room: int
) -> Dialogue:
    """The dialogue that a method holds with a model about a game, in inference and in fine-tuning.

    Args:
      model: its name. tokenizer: that counts its tokens; None where there is none.
      room: tokens of its context, 0 if nobody knows.
    """
    form, number = config.form(model)
    if method.shots is not None:
        number = max(number, 1) if method.shots else 0
    with_examples = number and form == "paper" and game.examples
    examples = tuple(game.examples(method.label, number)) if with_examples else ()
    if tokenizer and room:  # the chat template takes its share
        empty = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        room -= len(tokenizer.encode(tokenizer.render_chat(empty))) + 2
    more = {"count": counter(tokenizer), "room": room, "last": config.history or game.history}
    return method.dialogue(game.rules, form == "compact", examples=examples, **more)


def counter(tokenizer: Tokenizer | None) -> Callable[[str], int]:
    """Text -> its tokens; without a tokenizer a third of its characters, which is more than most have."""
    if tokenizer is None:
        return lambda text: -(-len(text) // 3)
    line = functools.lru_cache(1 << 14)(lambda text: len(tokenizer.encode(text)))  # transcripts grow by lines
    return lambda text: sum(line(one) + 1 for one in text.split("\n")) - 1


def check_words(tokenizer: Tokenizer, words: Sequence[str]) -> None:
    """Refuses a pair of words that the model cannot tell apart by their probabilities.

    Raises:
      ValueError: a word is not in the vocabulary, or both have the same tokens.
    """
    ids = [tokenizer.encode(f" {word}") for word in words]
    for word, own in zip(words, ids, strict=True):
        if tokenizer.decode(own).strip() != word:
            raise ValueError(
                f"the model's tokenizer cannot write {word!r} (it reads {tokenizer.decode(own)!r}); "
                "choose other --words, or --critic direct"
            )
    if ids[0] == ids[1]:
        raise ValueError(f"the model's tokenizer cannot tell {words[0]!r} from {words[1]!r}; choose other --words")


def tasks_of(game: HostGame, kinds: Sequence[str], number: int, seed: int) -> list[Task]:
    """`number` tasks of each kind, or all that it has, kinds in turn, so that any part of the list has all of them.

    Raises:
      ValueError: a kind that the game does not have.
    """
    for kind in kinds:
        if kind not in game.kinds:
            raise ValueError(f"{game.name} has no tasks {kind!r}; choose some of {', '.join(game.kinds)}")
    has = lambda kind, i: i < game.limits.get(kind, number)
    return [(kind, seed * SEEDS_PER_RUN + i) for i in range(number) for kind in kinds if has(kind, i)]


def distinct(game: HostGame, tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that begin as an earlier one does, the unseen part of their states included: played again
    they would count twice in a mean and its error."""
    first: dict[Any, Task] = {}
    for task, start in zip(tasks, game.reset(tasks), strict=True):
        first.setdefault(_content(task, start), task)
    return list(first.values())


def _content(task: Task, start: Start) -> Any:
    """What makes a task the one it is; the task itself where its state cannot be written down."""
    try:
        return task[0], start.goal, start.observation, pickle.dumps(start.state)
    except Exception:  # of whatever kind the state's own class raises
        return task


def shortage(asked: int, kinds: Sequence[str], tasks: Sequence[Task]) -> str:
    """A sentence where there are fewer tasks of a kind than were asked for, else ""."""
    found = Counter(kind for kind, _ in tasks)
    short = [f"{found[kind]}{f' of {kind!r}' if kind else ''}" for kind in kinds if found[kind] < asked]
    only = f"--tasks is {asked}, but there are only {', '.join(short)} different ones; each is played once"
    return only if short else ""


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
    """Plays all tasks with one method, in parts. With a folder every step is on disk once it is made, and repeated from
    there; a plan of whole episodes once the search is over.

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
    journal = parts.Journal(run_dir / "moves" / f"{name}.jsonl" if run_dir else None)
    chunks = [tasks[first : first + parallel] for first in range(0, len(tasks), parallel)]
    jobs = min(jobs, len(chunks))
    game = parts.one_at_a_time(game) if jobs > 1 else game
    printed, told = [time.monotonic()], []

    def play_part(part: int) -> list[Episode]:
        spent, chunk, last = Usage(), chunks[part], {}
        own, before = Metered(parts.alone(model, jobs), spent), Counter()
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

    episodes = sum(parts.in_threads(play_part, len(chunks), jobs, journal), [])
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
    if all("tokens" in row for row in rows) and not isinstance(parts.inner_model(model), EndpointModel):
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


def context_of(model: LanguageModel, tokens: int) -> int:
    """Tokens of the model's context: `tokens`, or the local model's own for 0; 0 if nobody knows."""
    inner = parts.inner_model(model)
    own = inner.model.config.max_positions if isinstance(inner, LocalModel) else 0
    return min(filter(None, (tokens, own)), default=0)


def tokenizer_of(model: LanguageModel, endpoint: Tokenizer | None = None) -> Tokenizer | None:
    """The tokenizer that counts a model's tokens; None where there is none."""
    inner = parts.inner_model(model)
    return endpoint if isinstance(inner, EndpointModel) else getattr(inner, "tokenizer", None)


def _seed(seed: int, part: int, t: int) -> int:
    return int(
        jax.random.bits(jax.random.fold_in(jax.random.fold_in(jax.random.key(check_seed(seed)), part), t))
        >> np.uint32(1)
    )
