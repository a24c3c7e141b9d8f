"""The page of a run of LAC and planners: tables, figures, and episodes decision by decision."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import write_atomically
from nlrl_jax.run.plots import Bar, Point, Series, bars, compare, points
from nlrl_jax.run.report import Table, markdown, write_report
from nlrl_jax.run.reports import lac_q, lac_tables
from nlrl_jax.run.reports.lac_stories import choose, story
from nlrl_jax.run.reports.lac_tables import Results, title
from nlrl_jax.run.transcript import printable
from nlrl_jax.statistics import header

QUESTION = "Do Q-values from a model's words GOOD and BAD, behind futures that it imagines, improve its own policy?"
_CURVES = 4  # methods whose Q is drawn


def figures(results: Results, run_dir: pathlib.Path) -> list[pathlib.Path]:
    """success.png by mission and with the score (Figures 2, 3 and 6), ablations.png (4), cost.png (5 and 9) and q.png
    (Table 1).

    The variants of LAC stand in ablations.png, or in success.png where there is no planner; q.png is drawn where a
    method has Q-values.
    """
    summaries = {name: lac_tables.summarize(result) for name, result in results.items()}
    success = {name: lac_tables.success_of(summary) for name, summary in summaries.items()}
    bar = lambda name, estimate: Bar(title(name), estimate.mean, estimate.arms)
    whole = lambda names: [bar(name, success[name]) for name in names]
    variants = lac_tables.ablations(results)
    planners = [name for name in results if name not in variants]
    apart = bool(variants) and planners not in ([], ["lac"])
    first = planners if apart else list(results)
    panels = {"all tasks": whole(first)}
    scores = {name: result["score"] for name, result in results.items() if result.get("score") and name in first}
    if scores:
        panels[f"mean {next(iter(scores.values()))}"] = [bar(n, lac_tables.reward_of(summaries[n])) for n in scores]
    kinds = list(dict.fromkeys(kind for name in first for kind in summaries[name]["by_mission"]))
    if len(kinds) > 1:
        by = {name: lac_tables.success_by_mission(summaries[name]) for name in first}
        panels |= {kind: [bar(name, by[name][kind]) for name in first if kind in by[name]] for kind in kinds}
    drawn = [bars(panels, run_dir / "success.png", "success or score" if scores else "success")]
    if apart:
        selected = [name for name in results if name in variants or name == "lac"]
        drawn.append(bars({"variants of LAC, all tasks": whole(selected)}, run_dir / "ablations.png", "success"))
    costs = {"tokens": "tokens per task", "seconds": "seconds per task", "steps": "moves per task"}
    panels = {
        label: [Point(title(name), s[key], success[name].mean, success[name].arms) for name, s in summaries.items()]
        for key, label in costs.items()
    }
    drawn.append(points(panels, run_dir / "cost.png", "success"))
    curves = {name: lac_q.q_curves(result) for name, result in results.items()}
    panels = {
        title(name): [
            Series(f"{kind} episodes", [i / 10 for i in range(11)], rows) for kind, rows in found.items() if len(rows)
        ]
        for name, found in curves.items()
        if any(map(len, found.values()))
    }
    if panels:
        selected = dict(list(panels.items())[:_CURVES])
        drawn.append(compare(selected, run_dir / "q.png", "share of the episode", "Q of the action taken", errors=True))
    return drawn


def sentence(results: Results) -> str:
    """The result in a sentence: LAC's success, and by how much it is above the best of the others."""
    success = {name: lac_tables.over_tasks(result["episodes"]) for name, result in results.items()}
    first = "lac" if "lac" in results else max(success, key=lambda name: success[name].mean, default="")
    if not first:
        return ""
    sentence = f"{title(first)} solves {success[first]} of {success[first].units} tasks"
    planners = [name for name in success if name != first and name not in lac_tables.ablations(results)]
    others = planners or [name for name in success if name != first]
    if not others:
        return sentence
    best = max(others, key=lambda name: success[name].mean)
    compared = lac_tables.paired(results[first], results[best])
    which = "the next best method" if not planners else "the best planner"
    noise = "" if compared.verdict in ("above", "below") else f": {compared.verdict}"
    return f"{sentence}, {compared} against {which} ({title(best)}){noise}"


def explained() -> str:
    """What the first table's numbers are."""
    return f"Share of tasks solved, of as many as the column's head says. {header('these tasks', shares=True)}"


def tables(results: Results) -> list[Table]:
    """All tables but the first; those without rows are left out."""
    variants = lac_tables.ablations(results)
    planners = [name for name in results if name != "lac" and name not in variants]
    differences = (
        f"{header('the tasks of both', shares=True)} Differences are paired task by task; within noise are those whose "
        "interval holds 0."
    )
    made = [
        Table("LAC against the planners", lac_tables.comparison_table(results, planners), differences),
        Table("Ablations and variants", lac_tables.comparison_table(results, variants), differences),
        Table(
            "Cost",
            lac_tables.cost_table(results),
            "Seconds are the wall time of all episodes in lockstep, divided by their number. Moves above the optimum "
            "are of successes.",
        ),
        Table(
            "Q along time",
            lac_q.correlation_table(results),
            "Pearson correlation of the Q of the action taken with the number of the move, within each episode of at "
            "least three moves: mean, interval and standard deviation over tasks. The paper's ± is its deviation.",
        ),
        Table(
            "Whom the improved policy follows",
            lac_q.confidence_table(results["lac"]) if "lac" in results else [],
            "Confidences: the best minus the second-best probability over the candidates, of the prior (softmax of its "
            "log-probabilities), of softmax(Q), and of the improved policy. The paper's numbers are on ALFWorld; its "
            "confidence of Q may be the difference of the Q-values themselves.",
        ),
        Table(
            "Problems with replies",
            lac_tables.problems_table(results),
            "By the role of the call. An action that cannot be read is replaced by a random one.",
        ),
    ]
    return [table for table in made if table.rows]


def write(
    run_dir: pathlib.Path,
    model_name: str,
    config: Mapping[str, Any],
    results: Results,
    usage_lines: Sequence[str],
    legend: Mapping[str, str] | None = None,
    about: str = "",
) -> pathlib.Path:
    """Writes table.md, the figures and report.html.

    Args:
      model_name: for the title and table.md.
      config: flat, shown as a table.
      results: {method: result}, at least one; see `lac_tables`.
      usage_lines: paragraphs about calls and tokens.
      legend: meaning of the characters on the boards.
      about: a sentence about the model, for table.md and the page.

    Returns:
      The page's path.
    """
    main, more = lac_tables.main_table(results), tables(results)
    parts = [
        f"Model: {printable(model_name)}{f'. {about}' * bool(about)}\n\n# Success\n\n{explained()}\n\n{markdown(main)}"
    ]
    parts += [f"# {table.title}\n\n{markdown(table.rows)}" + f"\n{table.note}\n" * bool(table.note) for table in more]
    write_atomically(run_dir / "table.md", "\n".join(parts))
    return write_report(
        run_dir,
        title=f"LAC and planners: {model_name}",
        question=QUESTION,
        config=config,
        summary=main,
        curves=figures(results, run_dir),
        notes=[
            *filter(None, [about]),
            explained(),
            *usage_lines,
        ],
        headline=sentence(results),
        legend=legend,
        tables=more,
        stories=[story(one, results) for one in choose(results)],
    )
