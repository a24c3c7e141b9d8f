"""The page of a run of LAC and planners: tables, figures, and episodes decision by decision."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms import lac
from nlrl_jax.backends.usage import Usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run import plots
from nlrl_jax.run.report import Picture, Stories, Table, markdown, tokens, write_report
from nlrl_jax.run.reports import lac_q, lac_tables
from nlrl_jax.run.reports.lac_stories import NOTE, stories
from nlrl_jax.run.reports.lac_tables import Results, title
from nlrl_jax.run.transcript import printable
from nlrl_jax.statistics import header

QUESTION = "Does a model act better when it imagines what each action leads to and says whether that is GOOD or BAD?"
_CURVES = 4  # methods whose Q is drawn


def figures(results: Results, run_dir: pathlib.Path) -> list[Picture]:
    """success.png by mission and with the score (Figures 2, 3, 4 and 6), cost.png (5 and 9) and, where a method has
    Q-values, q.png (Table 1)."""
    numbers = lac_tables.measurements(results)
    measured, score = lac_tables.measure_name(results), lac_tables.score_name(results)
    metrics = {"all tasks": measured} | ({score: score} if score else {}) | lac_tables.kinds_of(numbers)
    ylabel, arms = "success or score" if score else measured, "Arms are 95 % intervals over tasks."
    costs = {"tokens per task": "tokens", "seconds per task": "seconds", "moves per task": "moves"}
    success = plots.bars(numbers.bars(metrics, numbers.methods), run_dir / "success.png", ylabel)
    cost = plots.points(numbers.costs(costs, measured), run_dir / "cost.png", measured)
    drawn = [
        Picture(success, f"{_measured(measured)} of each method, over all tasks and by kind of task. {arms}"),
        Picture(cost, f"What each method costs per task, against its {measured}. {arms}"),
    ]
    panels = q_panels(results) if measured == "success" else {}
    if panels:
        picture = plots.compare(panels, run_dir / "q.png", "share of the episode", "Q of the action taken", errors=True)
        caption = "Q of the action taken, from the first move of an episode (0) to its last (1). Bands: 95 % intervals."
        drawn.append(Picture(picture, caption))
    return drawn


def q_panels(results: Results) -> dict[str, list[plots.Series]]:
    """Q along episodes of the first methods that have Q-values: a panel each, a line for each outcome."""
    panels = {}
    for name, result in results.items():
        curves = {kind: rows for kind, rows in lac_q.q_curves(result).items() if len(rows)}
        if curves and len(panels) < _CURVES:
            x = np.linspace(0, 1, lac_q.POINTS)
            panels[title(name)] = [plots.Series(f"{kind} episodes", x, rows) for kind, rows in curves.items()]
    return panels


def headline(results: Results) -> str:
    """LAC's success, and that of the best of the others: planners if there are any, else variants of LAC."""
    numbers, measured = lac_tables.measurements(results), lac_tables.measure_name(results)
    first = "lac" if "lac" in results else max(results, key=lambda name: numbers.mean(name, measured).mean)
    rivals = [name for name in results if name != first]
    return numbers.headline(measured, first, [name for name in rivals if name not in lac.METHODS] or rivals)


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
    """All tables; those without rows are left out."""
    measured = lac_tables.measure_name(results)
    problems = [{"": title(name), **result["problems"]} for name, result in results.items() if result["problems"]]
    candidates = [
        Table(measured.capitalize(), lac_tables.main_table(results), explained(measured)),
        Table("Against LAC", lac_tables.comparison_table(results)),
        Table(
            "Cost",
            lac_tables.cost_table(results),
            "All episodes are played in lockstep; seconds are their wall time divided by their number. Moves above the "
            "optimum are counted over successes.",
        ),
        Table(
            "Q along time",
            lac_q.correlation_table(results) if measured == "success" else [],
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
            problems,
            "Counted by the role of the call. An action that cannot be read is replaced by a random one.",
        ),
    ]
    return [table for table in candidates if table.rows]


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
    """Writes table.md, the figures and report.html, and returns the page's path.

    Args:
      model_name: for the title and table.md.
      config: flat, shown as a table.
      results: {method: result}, at least one; see `lac_tables`.
      notes: paragraphs below the first table.
      legend: meaning of the characters on the boards.
      about: a sentence about the model, for table.md and the page.
    """
    lac_tables.measurements(results).write(run_dir)
    main, *rest = tables(results)
    text = f"Model: {printable(model_name)}{f'. {about}' * bool(about)}\n"
    for table in (main, *rest):
        text += f"\n# {table.title}\n\n{markdown(table.rows)}" + f"\n{table.note}\n" * bool(table.note)
    write_atomically(run_dir / "table.md", text)
    stories_of = Stories(stories(results), NOTE)
    return write_report(
        run_dir,
        title=f"LAC and planners: {model_name} on {config['game']}",
        question=QUESTION,
        config=config,
        blocks=[about, main, *notes, *figures(results, run_dir), *rest, tokens(usage), stories_of],
        headline=headline(results),
        legend=legend,
    )
