"""Fine-tuning of LAC's one model on whole episodes, and how well it does on others (LAC, appendices B.2 and A.9).

The loss is next-token prediction on the lines that LAC asks for, each after the prompt that asks for it:

    observations    log p(o_{t+1} | g, h_t, a_t)              the forward model
    reflections     log p(c_{t+1} | g, h_t, a_t, o_{t+1})     reflections, and by their last word the critic
    actions         log p(a_t | g, h_t)                       the policy; an option (A.5.1: LAC with fine-tuned policy)

The first observation is given, so it is only read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nlrl_jax.roles.dialogues import BAD, GOOD, Dialogue, History, before_verdict, verdict
from nlrl_jax.roles.lines import ACTION, OBSERVATION, REFLECTION, Line, lines_of, prompt
from nlrl_jax.types import LanguageModel


def lines(history: History, actions: bool = False) -> list[Line]:
    """What is learned of an episode: two lines a step where it has a reflection, and its action if `actions`."""
    kinds = (OBSERVATION, REFLECTION, ACTION)[: 2 + actions]
    return [line for line in lines_of(history) if line.kind in kinds]


def evaluate(model: LanguageModel, dialogue: Dialogue, given: Sequence[Line]) -> dict[str, float]:
    """How well a model knows lines that it has not learned.

    Returns:
      "KIND_loss": mean of -log p per token of the lines of each kind. Where there are reflections that end GOOD or BAD,
      "accuracy": the share of those where log P(GOOD) - log P(BAD) after their "This step is" has the right sign, and
      "accuracy_good", "accuracy_bad": the same among either.

    Raises:
      NotImplementedError: the model does not score.
    """
    judged = [line for line in given if line.kind == REFLECTION and verdict(line.text) in (GOOD, BAD)]
    asked = [*given, *(line._replace(begin=f"{line.begin} {before_verdict(line.text)}", text=GOOD) for line in judged)]
    texts = [[line.reply] for line in given] + [[f" {GOOD}", f" {BAD}"]] * len(judged)
    scores = model.score([prompt(dialogue, line) for line in asked], texts, "held out")
    found = {}
    for kind in dict.fromkeys(line.kind for line in given):
        own = [row[0] for line, row in zip(given, scores, strict=False) if line.kind == kind]
        found[f"{kind}_loss"] = -sum(one.log_prob for one in own) / sum(one.tokens for one in own)
    if judged:
        good = np.array([verdict(line.text) == GOOD for line in judged])
        right = np.array([row[0].log_prob > row[1].log_prob for row in scores[len(given) :]]) == good
        found["accuracy"] = float(right.mean())
        either = {"accuracy_good": right[good], "accuracy_bad": right[~good]}
        found |= {name: float(values.mean()) for name, values in either.items() if len(values)}
    return found
