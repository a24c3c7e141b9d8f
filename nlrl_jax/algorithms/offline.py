"""Learning from a fixed set of episodes (LAC, appendices A.5, A.9, B.2): policies by one loss with five weights; LAC.

An episode is a goal g and o_0, a_0, o_1, a_1, ..., with success or failure at its end; h_t is what stands before a_t.
The policy is the model's own text, and a gradient goes through the tokens of actions alone:

    log pi(a_t | g, h_t) = sum_k log p(w_k | g, h_t, w_1 .. w_{k-1})        w: the tokens of a_t and of its newline
    L = - 1/N sum over episodes, t:  W_t log pi(a_t | g, h_t)               N: their number in the batch, where W_t != 0

    finetuned_policy        W_t = 1, in failures too                                                           A.5.1
    policy_gradient         W_t = G = 1 after success, -1 after failure                                        A.5.2
    dense_policy_gradient   W_t = r_t + r_{t+1} + ... + G, r = step_reward for GOOD, - step_reward for BAD     A.5.2
    actor_critic            W_t = Q(g, h_t, a_t) = log P(GOOD | g, h_t, a_t) - log P(BAD | g, h_t, a_t)        A.5.2
    decision_transformer    W_t = 1, with the return G written before each observation; 1 when it acts         A.5.3

LAC's own model (B.2, A.9) learns other lines of the same episodes, with W_t = 1 (`lac_lines`, `evaluate`):

    observations    log p(o_{t+1} | g, h_t, a_t)              the forward model
    reflections     log p(c_{t+1} | g, h_t, a_t, o_{t+1})     reflections, and by their last word the critic
    actions         log p(a_t | g, h_t)                       an option (A.5.1: LAC with fine-tuned policy)

Left open by the paper, decided here: the fine-tuned policy imitates all of the trajectories, as its "those
trajectories" say, failures among them (`finetune_lac --failures 0` leaves them out); the dense rewards are those of the
reflections' labels; Q is read once, from the model before it learns, right after the action and without a rollout; the
decision transformer learns actions only, as the original does. Minus the log-probability of a failure's action has no
minimum: more steps push it down for ever.

    learned, metrics = learn(model, pairs(config, dialogue, trajectories, model))
    react.decide(Caller(learned, acting(config, dialogue), planning, seed), histories, actions)
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.config import check, option
from nlrl_jax.roles import lines
from nlrl_jax.roles.dialogues import BAD, GOOD, VERDICT, Dialogue, History, before_verdict, verdict
from nlrl_jax.roles.lines import TrainingLine
from nlrl_jax.types import LanguageModel, Pairs

METHODS = ("finetuned_policy", "policy_gradient", "dense_policy_gradient", "actor_critic", "decision_transformer")


class Trajectory(NamedTuple):
    """A whole episode. history: with its reflections, where there are some. success: the goal is reached at its end."""

    history: History
    success: bool


@dataclasses.dataclass(frozen=True)
class OfflineConfig:
    """Learning a policy from a fixed set of episodes."""

    method: str = option("finetuned_policy", "what actions are weighted by in the loss", choices=METHODS)
    step_reward: float = option(
        0.1, "dense_policy_gradient: reward of a GOOD step; that of a BAD one is its negative", above=0
    )

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True, eq=False)
class ReturnDialogue(Dialogue):
    """A dialogue with the return-to-go on a line of its own before each observation: 1 or -1 at every step.

    Attributes:
      target: the return.
    """

    target: int = 1

    def text(self, history: History) -> str:
        """See `Dialogue.text`."""
        return re.sub(r"^(?=Observation:)", f"Return: {self.target}\n", super().text(history), flags=re.MULTILINE)


def acting(config: OfflineConfig, dialogue: Dialogue, success: bool = True) -> Dialogue:
    """The dialogue in which the method learns from a success or a failure; it acts in that of a success."""
    if config.method != "decision_transformer":
        return dialogue
    fields = {field.name: getattr(dialogue, field.name) for field in dataclasses.fields(Dialogue)}
    return ReturnDialogue(**fields, target=1 if success else -1)


def pairs(
    config: OfflineConfig,
    dialogue: Dialogue,
    trajectories: Sequence[Trajectory],
    model: LanguageModel | None = None,
    critic: Dialogue | None = None,
    joined: bool = True,
) -> Pairs:
    """Episodes as examples in which actions have the method's weights W_t and all else is only read.

    Args:
      dialogue: the policy's prompts.
      trajectories: anything with `history` and `success`; episodes without a step are left out.
      model: of the actor-critic's Q.
      critic: the prompts after which Q is read; by default the policy's.
      joined: an example per episode, or one per action; see `lines.pairs`.

    Raises:
      ValueError: dense rewards without a GOOD or BAD in any reflection; an actor-critic without a model.
      NotImplementedError: the model does not score.
    """
    trajectories = [trajectory for trajectory in trajectories if trajectory.history.steps]
    # W_t = Q(h_t, a_t), read off the model itself.
    if config.method == "actor_critic":
        if model is None:
            raise ValueError("actor_critic needs a model that scores GOOD and BAD; pass model=...")
        rows = q_values(model, critic or dialogue, [trajectory.history for trajectory in trajectories])
    elif config.method == "dense_policy_gradient":
        # W_t = G_t, from the verdicts of reflections and the outcome.
        rows = [dense_returns(trajectory, config.step_reward) for trajectory in trajectories]
        if not any(
            verdict(step.note) in (GOOD, BAD) for trajectory in trajectories for step in trajectory.history.steps
        ):
            raise ValueError(
                f'dense_policy_gradient is rewarded by reflections that end "{VERDICT} GOOD." or "{VERDICT} BAD."; '
                f"none of {len(trajectories)} episodes has one"
            )
    else:
        # W_t = +1 or -1 by the outcome; 1 everywhere for the other methods.
        signed = config.method == "policy_gradient"
        rows = [
            [1.0 if trajectory.success or not signed else -1.0] * len(trajectory.history.steps)
            for trajectory in trajectories
        ]
    examples: Pairs = []
    for trajectory, weights in zip(trajectories, rows, strict=True):
        learned = zip(actions(trajectory.history), weights, strict=True)
        weighted = [line._replace(weight=weight) for line, weight in learned]
        examples += lines.pairs(acting(config, dialogue, trajectory.success), weighted, joined)
    return examples


def dense_returns(trajectory: Trajectory, step_reward: float) -> list[float]:
    """G_t: the rewards of steps t and later, and 1 for success or -1 for failure at the end."""
    rewards = {GOOD: step_reward, BAD: -step_reward}
    each = [rewards.get(verdict(step.note), 0.0) for step in trajectory.history.steps]
    each[-1] += 1.0 if trajectory.success else -1.0
    return list(itertools.accumulate(reversed(each)))[::-1]


def q_values(model: LanguageModel, dialogue: Dialogue, histories: Sequence[History]) -> list[list[float]]:
    """Q(g, h_t, a_t) = log P(GOOD) - log P(BAD) right after each action of each episode, in one call.

    Raises:
      NotImplementedError: the model does not score.
    """
    words, chats = (f" {GOOD}", f" {BAD}"), []
    # Room is left for the longer of the two words.
    longest = max((GOOD, BAD), key=lambda word: dialogue.count(f" {word}"))
    for history in histories:
        for line in actions(history):
            prefix = f"Action: {line.text}\nCritic: {VERDICT}"
            chats.append(lines.prompt(dialogue, line._replace(opening=prefix, text=longest)))
    scores = model.score(chats, [words] * len(chats), "critic")
    # All episodes' actions in one list; each episode takes as many of them as it has steps.
    differences = (good.log_prob - bad.log_prob for good, bad in scores)
    return [list(itertools.islice(differences, len(history.steps))) for history in histories]


def actions(history: History) -> list[TrainingLine]:
    """The actions of an episode, as they are learned."""
    return [line for line in lines.lines_of(history) if line.kind == lines.ACTION]


def lac_lines(history: History, actions: bool = False) -> list[TrainingLine]:
    """What LAC learns of an episode: two lines a step where it has a reflection, and its action if `actions`."""
    kinds = (lines.OBSERVATION, lines.REFLECTION, lines.ACTION)[: 2 + actions]
    return [line for line in lines.lines_of(history) if line.kind in kinds]


def evaluate(model: LanguageModel, dialogue: Dialogue, held_out: Sequence[TrainingLine]) -> dict[str, float]:
    """How well a model knows lines that it has not learned.

    Returns:
      "KIND_loss": mean of -log p per token of the lines of each kind. Where there are reflections that end GOOD or BAD,
      "accuracy": the share of those where log P(GOOD) - log P(BAD) after their "This step is" has the right sign, and
      "accuracy_good", "accuracy_bad": the same among either.

    Raises:
      NotImplementedError: the model does not score.
    """
    judged = [line for line in held_out if line.kind == lines.REFLECTION and verdict(line.text) in (GOOD, BAD)]
    openings = [f"{line.opening} {before_verdict(line.text)}" for line in judged]
    verdicts = [line._replace(opening=text, text=GOOD) for line, text in zip(judged, openings, strict=True)]
    texts = [[line.reply] for line in held_out] + [[f" {GOOD}", f" {BAD}"]] * len(judged)
    # One call: a model that shares beginnings reads each episode once for all of its lines.
    scores = model.score([lines.prompt(dialogue, line) for line in [*held_out, *verdicts]], texts, "held out")
    metrics = {}
    for kind in dict.fromkeys(line.kind for line in held_out):
        of_kind = [row[0] for line, row in zip(held_out, scores, strict=False) if line.kind == kind]
        metrics[f"{kind}_loss"] = -sum(score.log_prob for score in of_kind) / sum(score.tokens for score in of_kind)
    if judged:
        good = np.array([verdict(line.text) == GOOD for line in judged])
        right = np.array([row[0].log_prob > row[1].log_prob for row in scores[len(held_out) :]]) == good
        metrics["accuracy"] = float(right.mean())
        # Beside the whole: a model that always says GOOD is right as often as episodes go well.
        either = {"accuracy_good": right[good], "accuracy_bad": right[~good]}
        metrics |= {name: float(values.mean()) for name, values in either.items() if len(values)}
    return metrics
