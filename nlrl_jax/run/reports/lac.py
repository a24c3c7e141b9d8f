"""The page of a run of LAC and planners: tables, figures, and episodes decision by decision."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.backends.usage import Usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run.plots import Bar, Point, Series, bars, compare, points
from nlrl_jax.run.report import Block, Picture, Stories, Table, markdown, tokens, write_report
from nlrl_jax.run.reports import lac_q, lac_tables
from nlrl_jax.run.reports.lac_stories import NOTE, stories
from nlrl_jax.run.reports.lac_tables import Results, title
from nlrl_jax.run.transcript import printable
from nlrl_jax.statistics import header

QUESTION = "Does a model act better when it imagines what each action leads to and says whether that is GOOD or BAD?"
_CURVES = 4  # methods whose Q is drawn


def figures(results: Results, run_dir: pathlib.Path) -> list[Picture]:
    """success.png by mission and with the score (Figures 2, 3 and 6), ablations.png (4), cost.png (5 and 9) and q.png
    (Table 1).

    The variants of LAC are in ablations.png, or in success.png where there is no planner; q.png is drawn where a
    method has Q-values.
    """
    summaries = {name: lac_tables.summarize(result) for name, result in results.items()}
    success = {name: lac_tables.overall(result) for name, result in results.items()}
    reward = {name: lac_tables.over_tasks(result["episodes"], "reward") for name, result in results.items()}
    measured = lac_tables.measure_name(results)
    bar = lambda name, estimate: Bar(title(name), estimate.mean, estimate.arms)
    whole = lambda names: [bar(name, success[name]) for name in names]
    variants = lac_tables.ablations(results)
    planners = [name for name in results if name not in variants]
    apart = bool(variants) and planners not in ([], ["lac"])
    first = planners if apart else list(results)
    panels = {"all tasks": whole(first)}
    scores = {name: result["score"] for name, result in results.items() if result.get("score") and name in first}
    scores = scores if measured == "success" else {}
    if scores:
        panels[f"mean {next(iter(scores.values()))}"] = [bar(name, reward[name]) for name in scores]
    kinds = list(dict.fromkeys(kind for name in first for kind in summaries[name]["by_mission"]))
    if len(kinds) > 1:
        by = {name: lac_tables.by_mission(results[name]) for name in first}
        panels |= {kind: [bar(name, by[name][kind]) for name in first if kind in by[name]] for kind in kinds}
    arms = "Arms are 95 % intervals over tasks."
    drawn = [
        Picture(
            bars(panels, run_dir / "success.png", "success or score" if scores else measured),
            f"{_measured(measured)} of each method, over all tasks and by kind of task. {arms}",
        )
    ]
    if apart:
        selected = [name for name in results if name in variants or name == "lac"]
        picture = bars({"variants of LAC, all tasks": whole(selected)}, run_dir / "ablations.png", measured)
        drawn.append(Picture(picture, f"{_measured(measured)} of LAC and of its variants. {arms}"))
    costs = {"tokens": "tokens per task", "seconds": "seconds per task", "steps": "moves per task"}
    panels = {
        label: [Point(title(name), s[key], success[name].mean, success[name].arms) for name, s in summaries.items()]
        for key, label in costs.items()
    }
    picture = points(panels, run_dir / "cost.png", measured)
    drawn.append(Picture(picture, f"What each method costs per task, against its {measured}. {arms}"))
    curves = {name: lac_q.q_curves(result) for name, result in results.items() if measured == "success"}
    panels = {
        title(name): [
            Series(f"{kind} episodes", [i / 10 for i in range(11)], rows) for kind, rows in found.items() if len(rows)
        ]
        for name, found in curves.items()
        if any(map(len, found.values()))
    }
    if panels:
        selected = dict(list(panels.items())[:_CURVES])
        picture = compare(selected, run_dir / "q.png", "share of the episode", "Q of the action taken", errors=True)
        caption = "Q of the action taken, from the first move of an episode (0) to its last (1). Bands: 95 % intervals."
        drawn.append(Picture(picture, caption))
    return drawn


def headline(results: Results) -> str:
    """LAC's success, and that of the best of the others: planners if there are any, else variants of LAC."""
    success = {name: lac_tables.overall(result) for name, result in results.items()}
    first = "lac" if "lac" in results else max(success, key=lambda name: success[name].mean, default="")
    if not first:
        return ""
    planners = [name for name in success if name != first and name not in lac_tables.ablations(results)]
    others = planners or [name for name in success if name != first]
    measured = lac_tables.measure_name(results)
    solves = "solves {:.2f} of the tasks" if measured == "success" else f"has a mean {measured} of {{:.2f}}"
    line = f"{title(first)} {solves.format(success[first].mean)}"
    if not others:
        return line
    best = max(others, key=lambda name: success[name].mean)
    verdict = lac_tables.paired(results[first], results[best]).difference.verdict
    noise = "" if verdict in ("above", "below") else f" ({verdict})"
    return f"{line}, {title(best)} {success[best].mean:.2f}{noise}"


def _measured(name: str) -> str:
    return "Share of tasks solved" if name == "success" else f"Mean {name}"


def explained(measured: str = "success") -> str:
    """Explains the numbers of this table and of the following ones."""
    return (
        f"{_measured(measured)}; the header has the number of tasks. {header('tasks', shares=True)} Tasks that begin "
        "alike are one, unless chance or what is hidden in them differs. In all tables, differences are paired task by "
        "task, and a difference is within noise if its interval contains 0."
    )


def tables(results: Results) -> list[Table]:
    """All tables but the first; those without rows are left out."""
    variants = lac_tables.ablations(results)
    planners = [name for name in results if name != "lac" and name not in variants]
    made = [
        Table("LAC against the planners", lac_tables.comparison_table(results, planners)),
        Table("Ablations and variants", lac_tables.comparison_table(results, variants)),
        Table(
            "Cost",
            lac_tables.cost_table(results),
            "All episodes are played in lockstep; seconds are their wall time divided by their number. Moves above the "
            "optimum are counted over successes.",
        ),
        Table(
            "Q along time",
            lac_q.correlation_table(results) if lac_tables.measure_name(results) == "success" else [],
            "Pearson correlation of the Q of the action taken, and of P(GOOD) and P(BAD), with the number of the move, "
            "within each episode of at least three moves: mean, interval and standard deviation over tasks.",
        ),
        Table(
            "Does the improved policy follow prior or critic?",
            lac_q.confidence_table(results["lac"]) if "lac" in results else [],
            "Confidences: the best minus the second-best probability over the candidates, of the prior (softmax of its "
            "log-probabilities), of softmax(Q), and of the improved policy.",
        ),
        Table(
            "Problems with replies",
            lac_tables.problems_table(results),
            "Counted by the role of the call. An action that cannot be read is replaced by a random one.",
        ),
    ]
    return [table for table in made if table.rows]


def write(
    run_dir: pathlib.Path,
    model_name: str,
    config: Mapping[str, Any],
    results: Results,
    usage: Usage,
    notes: Sequence[str] = (),
    legend: Mapping[str, str] | None = None,
    about: str = "",
) -> pathlib.Path:
    """Writes table.md, the figures and report.html.

    Args:
      model_name: for the title and table.md.
      config: flat, shown as a table.
      results: {method: result}, at least one; see `lac_tables`.
      notes: paragraphs below the first table.
      legend: meaning of the characters on the boards.
      about: a sentence about the model, for table.md and the page.

    Returns:
      The page's path.
    """
    measured = lac_tables.measure_name(results)
    main = Table(measured.capitalize(), lac_tables.main_table(results), explained(measured))
    made = [main, *tables(results)]
    parts = [f"# {table.title}\n\n{markdown(table.rows)}" + f"\n{table.note}\n" * bool(table.note) for table in made]
    write_atomically(
        run_dir / "table.md", "\n".join([f"Model: {printable(model_name)}{f'. {about}' * bool(about)}\n", *parts])
    )
    blocks: list[Block] = [*([about] if about else []), main, *notes, *figures(results, run_dir), *made[1:]]
    return write_report(
        run_dir,
        title=f"LAC and planners: {model_name} on {config['game']}",
        question=QUESTION,
        config=config,
        blocks=[*blocks, tokens(usage), Stories(stories(results), NOTE)],
        headline=headline(results),
        legend=legend,
    )
