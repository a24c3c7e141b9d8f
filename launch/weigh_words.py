"""What the words of an evaluation are worth to whoever chooses a move by it, on tic-tac-toe, without any training.

    python -m launch.weigh_words --run_dir runs/weigh_words                             # rules: half a minute
    python -m launch.weigh_words --improver smollm2 --positions 30 --k 5 --run_dir runs/weigh_words_smollm2
    python -m launch.weigh_words --aggregator endpoint --improver endpoint --base_url URL --endpoint_model NAME \
        --positions 100 --run_dir runs/weigh_words_llm

From each of many positions every move is followed by K random games. The aggregator (G1) sums up the games of each move
in words and a number, and the improver (I) chooses a move by these evaluations: as they are, without their words, and
without their numbers. The three rows read the same games, so they differ in nothing but what was removed. With the
default `--words deciding` the evaluations name the positions on which the games were won, which no number of a move can
say; the rules do not read them off the board.

A row's regret is the exact worth of the best move, against a random opponent and with best play thereafter
(`rules.against_random`), less that of the chosen one: 0 to 2. Intervals are over the different positions: one that
several seeds have drawn counts once. Differences between rows are paired, position by position. Replies without a
legal move become random ones and are counted. The last line reads `regret (K = ...): <without words> -> <as they are>`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np
from absl import flags

from envs.tic_tac_toe import prompts, rules
from envs.tic_tac_toe import rule_based as scripts
from nlrl_jax.algorithms import language_estimates as estimates
from nlrl_jax.backends.scripted import CountingModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check, flat, listed, option, part, seed_option
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.roles.board_games import View, Viewer
from nlrl_jax.rollouts.board_games import random_act, random_opponent, random_views
from nlrl_jax.run import app, models, results
from nlrl_jax.run import dry_run as cost
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.report import Table, markdown, tokens, write_report
from nlrl_jax.statistics import estimate, header, paired
from nlrl_jax.types import LanguageModel, Sampling

SCRIPT = "weigh_words"
FULL, NO_WORDS, NO_NUMBER, CHANCE = "as they are", "without words", "without numbers", "a random move"


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes."""

    aggregator: str = option("scripted", "writes the evaluations: scripted, endpoint, or a local model's name")
    improver: str = option("scripted", "chooses a move by them: scripted, endpoint, or a local model's name")
    words: str = option(
        "deciding", "what the rules write beside a number, and read: threats, deciding, counts or number",
        choices=scripts.WORDS,
    )  # fmt: skip
    k: str = option("1,2,5", "random games after each move, one table row each, separated by commas")
    positions: int = option(400, "positions per seed", least=1)
    seeds: int = option(3, "sets of positions and games", least=1)
    sampling: Sampling = part(Sampling(160, 0.0), without=("top_k", "top_p"))
    seed: int = seed_option("the first seed", counted_up=True)
    endpoint: models.Endpoint = part(models.Endpoint(), without=("endpoint_tokenizer",))
    templates: TemplateOptions = part(TemplateOptions(shared=True))

    def __post_init__(self):
        check(self)
        if not all(k.isdecimal() and 0 < int(k) <= 1_000_000 for k in listed("k", self.k)):
            raise ValueError(f"--k is {self.k!r}; write numbers of games such as 1,2,5, each from 1 to 1000000")

    @property
    def games(self) -> list[int]:
        return [int(k) for k in self.k.split(",")]


@functools.cache
def positions_of(seed: int, positions: int) -> tuple[View, ...]:
    """The different positions of a seed in which there is a choice."""
    found = random_views(rules.board_game(), 3 * positions, seed)
    return tuple(view for view in dict.fromkeys(found) if len(view.legal) > 1)[:positions]


def weigh(
    config: RunConfig, k: int, seed: int, aggregator: LanguageModel, improver: LanguageModel, positions: int
) -> dict[str, Any]:
    """One set of positions. Returns {"regret": {row: [per position]}, "counts": {problem: how often}}, JSON-able."""
    game, roles = rules.board_game(), prompts.roles("paper_zero_shot")
    viewer, views = Viewer(game), positions_of(seed, positions)
    pairs = [(view, action) for view in views for action in view.legal]
    lines = estimates.lines_from(game, viewer, random_act, random_opponent(game), pairs, k, seed)
    chats = [roles.monte_carlo(*pair, games) for pair, games in lines]
    replies = aggregator.complete(chats, config.sampling, "monte_carlo", seed)
    texts = {pair: reply.text for pair, reply in zip(pairs, replies, strict=True)}
    counts = {"evaluations": len(texts), "evaluations without a number": 0}
    counts["evaluations without a number"] = sum(roles.read_value(text) is None for text in texts.values())
    worth, rng = rules.against_random(), np.random.default_rng(seed)
    codes = [int(rules.code(np.asarray(game.parse(view.board, view.player)))) for view in views]
    lost = lambda code, action: float(np.nanmax(worth[code]) - worth[code, int(action) - 1])
    edits = {FULL: lambda text: text, NO_WORDS: prompts.only_number, NO_NUMBER: prompts.only_words}
    regret: dict[str, list[float]] = {}
    for row, keep in edits.items():
        chats = [roles.improve(view, [(a, keep(texts[view, a])) for a in view.legal]) for view in views]
        replies = improver.complete(chats, config.sampling, "improver", seed)
        moves = [roles.read_move(reply.text, view.legal).word for view, reply in zip(views, replies, strict=True)]
        counts[f"no move, {row}"] = sum(move is None for move in moves)
        chosen = [move or view.legal[rng.integers(len(view.legal))] for view, move in zip(views, moves, strict=True)]
        regret[row] = [lost(code, action) for code, action in zip(codes, chosen, strict=True)]
    regret[CHANCE] = [float(np.mean([lost(code, a) for a in view.legal])) for view, code in zip(views, codes)]
    return {"regret": regret, "counts": counts}


def table(config: RunConfig, found: dict[tuple[int, int], dict[str, Any]]) -> list[dict[str, str]]:
    """A row per K and what the improver saw: mean regret, and the paired difference to the evaluations as they are."""
    seeds, rows = range(config.seed, config.seed + config.seeds), []
    views = [view for seed in seeds for view in positions_of(seed, config.positions)]
    for k in config.games:
        regret = lambda row, k=k: [value for seed in seeds for value in found[k, seed]["regret"][row]]
        for row in (FULL, NO_WORDS, NO_NUMBER, CHANCE):
            mean = estimate(regret(row), views)
            more = paired(regret(row), regret(FULL), views).text("+.4f") if row != FULL else ""
            rows.append({
                "K": str(k), "evaluations": row, "regret": mean.text(".4f"), "more than as they are": more,
                "different positions": str(mean.units),
            })  # fmt: skip
    return rows


def dry_run(config: RunConfig) -> str:
    """Calls and tokens, counted on a few positions with rules in the models' place."""
    small, rules_of = min(config.positions, 20), CountingModel(scripts.scripts(config.words))
    usages = {"aggregator": Usage(), "improver": Usage()}
    for k in config.games:
        weigh(config, k, config.seed, *(Metered(rules_of, usage) for usage in usages.values()), small)
    rows = [row for usage in usages.values() for row in usage.rows()]
    paid = [row for name, usage in usages.items() if getattr(config, name) == "endpoint" for row in usage.rows()]
    each = cost.tokens_of(paid) * config.seeds / small
    return (
        f"aggregator: {config.aggregator}; improver: {config.improver}. Nothing is sent. Rules replied on {small} of "
        f"{config.positions * config.seeds} positions. Replies, also those quoted in prompts, are counted at their "
        f"maximum length.\n{cost.calls_table(rows, config.positions * config.seeds / small)}"
        f"{cost.within_budget(config.endpoint.token_budget * bool(paid), 'positions', config.positions, 0, each)}"
    )


def main(argv: list[str]) -> None:
    del argv
    config = app.parse(RunConfig, script=SCRIPT)
    models.check_endpoint_is_used(config.aggregator, config.improver)
    if "scripted" not in (config.aggregator, config.improver):
        leave_out("where no rules write or read evaluations", "words")
    if flags.FLAGS.dry_run:
        print(dry_run(config))
        return
    models.check_templates(config.templates, config.aggregator, config.improver)
    for name in dict.fromkeys((config.aggregator, config.improver)):
        tokens, ask = config.sampling.max_tokens, not flags.FLAGS.resume
        models.check_large_model(name, config.endpoint, tokens, ask=ask)
    run_dir = app.take_run_dir(SCRIPT, config, may_change=("k", "seeds"))
    usage, rules_of = models.ledger(run_dir), scripts.scripts(config.words)
    loaded = {
        name: models.large_model(name, rules_of, run_dir, usage, config.endpoint, templates=config.templates)
        for name in dict.fromkeys((config.aggregator, config.improver))
    }
    (run_dir / "rows").mkdir(exist_ok=True)
    found = {}
    for k in config.games:
        for seed in range(config.seed, config.seed + config.seeds):
            path = run_dir / "rows" / f"k_{k}_seed_{seed}.json"
            if not (flags.FLAGS.resume and path.exists()):
                part = weigh(config, k, seed, loaded[config.aggregator], loaded[config.improver], config.positions)
                write_atomically(path, json.dumps(part))
            found[k, seed] = json.loads(path.read_text())
            means = {row: np.mean(regret) for row, regret in found[k, seed]["regret"].items()}
            print(f"K = {k}, seed {seed}: {', '.join(f'{row} {mean:.4f}' for row, mean in means.items())}", flush=True)
    finish(config, run_dir, found, usage)


def finish(
    config: RunConfig, run_dir: pathlib.Path, found: dict[tuple[int, int], dict[str, Any]], usage: Usage
) -> None:
    """results.json ("before": without words, "after": as they are), table.md, the page and the last lines."""
    seeds = range(config.seed, config.seed + config.seeds)
    mean = lambda row, k: [float(np.mean(found[k, seed]["regret"][row])) for seed in seeds]
    ends = [{f"regret at K = {k}": mean(row, k) for k in config.games} for row in (NO_WORDS, FULL)]
    results.write(run_dir, script=SCRIPT, before=ends[0], after=ends[1], seeds=list(seeds))
    rows = table(config, found)
    explained = header(f"different positions of {config.seeds} seeds", int(rows[0]["different positions"]))
    write_atomically(run_dir / "table.md", f"{explained}\n\n{markdown(rows)}")
    counts = [f"K = {k}, seed {seed}: {part['counts']}" for (k, seed), part in found.items()]
    report = write_report(
        run_dir,
        title="What the words of evaluations are worth",
        question="Does an improver choose better moves by evaluations in words than by their numbers alone?",
        config=flat(config),
        blocks=[Table("Results", rows, explained), *counts, tokens(usage)],
    )
    print(f"{explained}\n\n{markdown(rows)}report: {report}")
    regret = {(row["K"], row["evaluations"]): row["regret"].split()[0] for row in rows}
    for k in config.games:
        print(f"regret (K = {k}): {regret[str(k), NO_WORDS]} -> {regret[str(k), FULL]}")


define_flags = app.flags_of(RunConfig, dry_run="print the run's calls and tokens, and do nothing")

if __name__ == "__main__":
    define_flags()
    app.run(main)
