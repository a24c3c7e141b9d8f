"""LAC's loop closed: the prior learns what the critic improves (expert iteration, not in the paper).

Round k plays fresh tasks with the improved policy and fine-tunes the prior on what it did:

    pi*_k(a | g, h) ~ pi_k(a | g, h) exp(Q_k(g, h, a) / alpha)                 `lac.decide`, equations 5 and 6
    pi_{k+1} = argmin over theta of sum over h, a:  - W(h, a) log pi_theta(a | g, h)       `sft.fit`, from pi_k

The episodes are those of LAC itself, which takes the best of pi*; h is what stood before a decision. W is the lesson:

    improved        W = pi*_k(a | g, h) for each candidate: the least KL(pi*_k || pi_theta)
    chosen          W = 1 for the action taken

`keep` leaves out what an episode should not teach: those that failed, as in rejection sampling. `drawn` plays a draw
from pi* (or from the prior, which is pi* without a critic) in place of the best.

pi and Q come from one network. The prior is its adapter: `prior_apart` answers calls for actions with it and leaves
reflections, imagined observations and GOOD or BAD to the weights underneath, so that no round can damage the critic.
Imagined actions are the prior's, so Q_k is that of pi_k.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.algorithms.imagine import POLICY
from nlrl_jax.algorithms.lac import LACConfig, lines_ahead
from nlrl_jax.backends import wrappers
from nlrl_jax.config import check, option
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.roles.lines import ACTION, TrainingLine, lines_of, pairs
from nlrl_jax.rollouts.host_games import StepDecisions
from nlrl_jax.types import LanguageModel, Pairs

LESSONS = ("improved", "chosen")
Episode = Mapping[str, Any]  # as `run.lac.episodes.as_json` writes it


@dataclasses.dataclass(frozen=True)
class LessonConfig:
    """What an episode teaches the prior."""

    lesson: str = option(
        "improved",
        "weights of actions: improved (pi* of each candidate), chosen (1 for the action taken)",
        choices=LESSONS,
    )
    keep: str = option("all", "episodes that teach: all, or those that succeeded", choices=("all", "successes"))
    least: float = option(0.02, "improved: candidates with a smaller pi* are left out", least=0, below=1)

    def __post_init__(self):
        check(self)


def prior_apart(prior: LanguageModel, critic: LanguageModel) -> LanguageModel:
    """One model whose actions come from `prior` and all else from `critic`."""
    return wrappers.by_role(critic, {POLICY: prior})


def drawn(decisions: StepDecisions, seed: int) -> StepDecisions:
    """The same decisions, with each action drawn from the improved policy over its candidates."""
    rng = np.random.default_rng(seed)
    actions = [str(rng.choice(record["candidates"], p=_normal(record["improved"]))) for record in decisions.thinking]
    return decisions._replace(actions=actions)


def teach(dialogue: Dialogue, episodes: Sequence[Episode], config: LessonConfig, teacher: LACConfig) -> Pairs:
    """Episodes as examples: actions with their weights, all else is only read.

    The actions taken are learned one after another in whole transcripts, other candidates each in an example of its
    own. A prompt is the decision's, without the oldest steps where the `teacher`, who played, left them out.

    Raises:
      ValueError: "improved" of episodes that have no record of candidates.
    """
    # Rejection sampling unless `keep` is "all": a failed episode teaches nothing.
    selected = [episode for episode in episodes if episode["success"] or config.keep == "all"]
    examples = []
    for episode in selected:
        taken_lines, other_lines = [], []
        actions = [_asked(dialogue, line, teacher) for line in lines_of(history_of(episode)) if line.kind == ACTION]
        for line, record in zip(actions, episode["thinking"], strict=True):
            if config.lesson == "chosen":
                taken_lines.append(line)
                continue
            for weighted in _improved(line, record, config.least):
                (taken_lines if weighted.text == line.text else other_lines).append(weighted)
        # The taken actions of an episode share one example; other candidates, of other continuations, have one each.
        examples += pairs(dialogue, [line for line in taken_lines if line.weight], joined=True)
        examples += pairs(dialogue, other_lines)
    return examples


def history_of(episode: Episode) -> History:
    """The transcript of an episode."""
    steps = tuple(Step(*step) for step in episode["steps"])
    return History(episode["goal"], episode["observation"], steps, episode["note"])


def _asked(dialogue: Dialogue, line: TrainingLine, teacher: LACConfig) -> TrainingLine:
    """The line after the history that its decision saw: what fitted before the last note was written."""
    # The teacher's trimming is repeated, so that the prior learns after exactly what its decision saw.
    reserve = teacher.planning.ahead(dialogue.room, lines_ahead(teacher, dialogue.label))
    trimmed = dialogue.trim(line.history.noted(""), reserve).history
    return line._replace(history=trimmed.noted(line.history.last_note))


def _improved(line: TrainingLine, record: Mapping[str, Any], least: float) -> list[TrainingLine]:
    """A line for each candidate of a decision, weighted by the improved policy."""
    if not record.get("improved"):
        raise ValueError("these episodes have no improved policy: play with LAC or its variants, or learn `chosen`")
    weights = zip(record["candidates"], _normal(record["improved"]), strict=True)
    return [line._replace(text=action, weight=float(weight)) for action, weight in weights if weight >= least]


def _normal(weights: Sequence[float]) -> np.ndarray:
    values = np.asarray(weights, np.float64)
    return values / values.sum()
