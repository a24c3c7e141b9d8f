"""A run of MS-GRPO from its folder to its page, whoever plays the episodes."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.config import flat
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import whole
from nlrl_jax.run import alarms, loop, processes, results
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.ms_grpo.config import AgentConfig
from nlrl_jax.run.plots import learning_curve
from nlrl_jax.run.report import EpisodePairs, Picture, changes, model_name, write_report
from nlrl_jax.run.reports.tidy import Measurement, Measurements
from nlrl_jax.weights import peft

SCRIPT = "train_ms_grpo"
EVAL_SEED = 2**31 - 1  # of the initial states that a run is evaluated from
SHOWN = 6  # episodes in the report
REPLIES = ("actions_read", "thought_tokens", "action_tokens", "cut_replies")  # metrics of transcripts
SEEN = {  # by the built-in models before
    "nano": "episodes of FrozenLake and Snake, 40 % of them played with skill and the others by a habit, which hides "
    "the skill from greedy play",
    "nano_babyai": "24,000 transcripts of BabyAI-Text, by walkers that often err",
}


class Training:
    """An agent, or the agents of several seeds as one stack, how it learns and how it is judged.

    Attributes:
      config: how the agent learns; its page shows all options in it. name: of the game that is trained on.
      seeds: of a stack; None is the config's seed alone.
      state: before training. update: (state, key) -> (state, metrics).
      shows: the metric of progress that says how well it plays. legend: of the boards on the page.
      score: the name of a return that says more than success does, or "".
      columns: further metrics of progress.
      network: the model's config, for the adapter's files. mesh: where it lies.
    """

    config: AgentConfig
    name: str
    seeds: Sequence[int] | None = None
    state: Any
    update: Callable[[Any, Any], tuple[Any, dict[str, Any]]]
    shows: str
    legend: Mapping[str, str]
    score: str = ""
    columns: Sequence[str] = ()
    network: ModelConfig
    mesh: Any

    def judge(self, variables: dict[str, Any], num_shown: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Greedy play: (metrics, so many episodes as text)."""
        raise NotImplementedError

    def too_short(self) -> list[str]:
        """A sentence where training or its evaluation ends episodes before their tasks can be solved."""
        return []

    def note_form(self, folder: pathlib.Path) -> None:
        """Notes in the adapter's folder which prompts it has learned, where its users have to know."""

    def variables(self, state: Any) -> dict[str, Any]:
        """What an agent plays with. Before training too: a fresh adapter changes nothing, and without it the evaluation
        would be another program, compiled for one use."""
        return {"params": state.params, "lora": state.lora}

    def evaluate(self, state: Any) -> dict[str, Any]:
        """{metric: number}."""
        return self.judge(self.variables(state), 0)[0]

    def start(self, run_dir: pathlib.Path, resume: bool, num_shown: int) -> dict[str, Any]:
        """The untrained model's evaluation, in results.json's form: played once, and read when a run is resumed.

        Args:
          num_shown: episodes of the config's own game that are kept as text.
        """
        if not (resume and (run_dir / results.RESULTS).exists()):
            warnings, steps = self.too_short(), self.config.iterations * self.config.learning.updates_per_batch
            if 0 < (last := self.config.learning.decay_steps) < steps:
                warnings.append(f"the learning rate is 0 after {last} of {steps} gradient steps (--decay_steps {last})")
            print("".join(f"warning: {sentence}\n" for sentence in warnings), end="")
            print(
                f"compiling the evaluation and playing {self.config.eval_episodes} episodes before training ...",
                flush=True,
            )
            before, text = self.judge(self.variables(self.state), num_shown)
            if (broken := before.get("broke_off", 0.0)) > alarms.MANY_BROKEN:
                raise ValueError(
                    f"{broken:.0%} of the {self.config.eval_episodes} episodes of {self.name} before training broke "
                    "off; warnings above name the faults. Mend the environment, or give a model with a longer context"
                )
            seeds, texts = 1 if self.seeds is None else self.seeds, {"before": text}
            results.write(run_dir, script=SCRIPT, before=before, after={}, seeds=seeds, transcripts=texts)
        start = results.read(run_dir)
        print("before training: " + ", ".join(f"{name} {x:.3g}" for name, x in start["before"].items()), flush=True)
        return start

    def train(self, run_dir: pathlib.Path, resume: bool, finish: Callable[[Any], None] | None = None) -> Any:
        """Trains in a folder, from its last checkpoint with `resume`. Returns the last state; see `loop.train`."""
        config = self.config

        def evaluate(done: int, state: Any) -> dict[str, Any]:
            last = self.seeds is not None and done == config.iterations
            due = last or (config.eval_every and done % config.eval_every == 0)
            return {f"eval/{name}": value for name, value in self.evaluate(state).items()} if due else {}

        state = loop.restore(run_dir, self.state) if resume else self.state
        rate = "--learning_rate" if self.seeds is None else ""  # studies compare what has learned at one rate
        columns = ("return", self.shows, "kl", "reply_tokens", *self.columns)
        seed = config.seed if self.seeds is None else self.seeds
        plan = loop.Schedule(
            seed, config.iterations, config.checkpoint_every, columns, resume, game=self.name, rate=rate
        )
        return loop.train(run_dir, self.update, state, plan, evaluate, finish)

    def run(self, run_dir: pathlib.Path, resume: bool) -> None:
        """One agent: trains it, and leaves its results, its adapter and its page."""
        start = self.start(run_dir, resume, SHOWN)

        def finish(state: Any) -> None:
            after, text = self.judge(self.variables(state), SHOWN)
            before, lora, episodes = start["before"], whole(state.lora), {**start["transcripts"], "after": text}
            results.write(run_dir, script=SCRIPT, before=before, after=after, transcripts=episodes)
            if processes.first():
                done = dataclasses.replace(self.config, iterations=int(state.iteration))
                peft.save(run_dir / "adapter", self.network, lora, base_model=done.model)
                self.note_form(run_dir / "adapter")
                write_page(run_dir, done, self.name, self.legend, before, after, episodes, self.score)

        self.train(run_dir, resume, finish)


def write_page(
    run_dir: pathlib.Path,
    config: AgentConfig,
    game: str,
    legend: Mapping[str, str],
    before: dict[str, float],
    after: dict[str, float],
    episodes: dict[str, list[dict[str, Any]]],
    score: str = "",
) -> None:
    """The curves and the page of a run that has done `config.iterations`; prints where they are and the result.

    Args:
      score: the name of the return if it comes first, beside success.
    """

    def change(label: str, name: str) -> str:
        return f"{label}: {before[name]:.3f} -> {after[name]:.3f}"

    model, plural = model_name(config.model), "s" * (config.iterations != 1)
    if "success" not in after:
        headline, curves = change("greedy return", "env_return"), ["return", "env_return"]
    elif score:
        headline = f"{change(f'greedy {score}', 'env_return')}, {change('success', 'success')}"
        curves = ["env_return", "success", "eval/env_return"]
    else:
        headline, curves = change("greedy success", "success"), ["return", "success", "eval/success"]
    start = {f"eval/{metric}": value for metric, value in before.items()}
    curves += ["kl"] * (config.learning.beta > 0)
    curve = learning_curve([run_dir], curves, run_dir / "learning_curve.png", before=start)
    health = learning_curve([run_dir], (*alarms.MEASURES, *REPLIES), run_dir / "replies.png")
    metrics = read_metrics(run_dir)
    by_game = [name for name in after if name.startswith("env_return/") and name in metrics]  # or by kinds of tasks
    if by_game:
        games = learning_curve([run_dir], by_game, run_dir / "by_game.png", before=before)
    warnings, used = alarms.warnings(run_dir), metrics.get("row_use", ())
    stages = {"before": before, "after": after}
    rows = [Measurement(stage, config.seed, *row) for stage, scores in stages.items() for row in scores.items()]
    Measurements(rows).write(run_dir)
    report = write_report(
        run_dir,
        title=f"MS-GRPO: {model} on {game}",
        question=f"Does {model} play {game} better after {config.iterations} iteration{plural} of MS-GRPO?",
        config=flat(config),
        blocks=[
            changes(before, after),
            *([f"Before this run, {model} had learned from {SEEN[config.model]}."] if config.model in SEEN else ()),
            *(f"Warning: {sentence}" for sentence in warnings),
            Picture(curve, "Each metric by iteration: thin as measured, bold a running mean; points are evaluations."),
            *([Picture(games, "The return in each game, or kind of task, in training.")] if by_game else []),
            *([f"Of the row steps that decoding computed, {np.mean(used):.0%} wrote a token."] if len(used) else []),
            Picture(health, "How the replies change: a measure that falls towards 0 is a warning."),
            EpisodePairs(episodes["before"], episodes["after"]),
        ],
        headline=headline,
        legend=legend,
    )
    print("".join(f"warning: {sentence}\n" for sentence in warnings), end="")
    print(f"report: {report}\ncurve:  {curve}\nadapter (PEFT): {run_dir / 'adapter'}\n{headline}")
