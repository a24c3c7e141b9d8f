"""What a model learns from a few trajectories, and what it is judged by: LAC's lines, or the actions of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nlrl_jax.algorithms import offline, sft
from nlrl_jax.algorithms.offline import OfflineConfig, Trajectory
from nlrl_jax.algorithms.sft_examples import Example
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import BAD, GOOD, Dialogue, verdict
from nlrl_jax.roles.lines import TrainingLine
from nlrl_jax.roles.lines import pairs as pairs_of
from nlrl_jax.types import LanguageModel, Pairs


class Lessons(NamedTuple):
    """What is learned from trajectories.

    Attributes:
      trajectories: whole episodes.
      dialogue: the prompts in which they are learned.
      critic: the prompts in which an actor-critic's Q is read.
      weights: of a policy's actions; None where LAC's model learns observations and reflections.
      with_actions: LAC's model learns actions too.
    """

    trajectories: list[Trajectory]
    dialogue: Dialogue
    critic: Dialogue
    weights: OfflineConfig | None
    with_actions: bool = False

    def check(self) -> None:
        """Raises ValueError: LAC's model is to learn reflections, and no trajectory has one."""
        notes = [step.note for trajectory in self.trajectories for step in trajectory.history.steps]
        if self.weights is None and not any(verdict(note) in (GOOD, BAD) for note in notes):
            raise ValueError(
                f"none of {len(self.trajectories)} trajectories has a reflection that ends GOOD or BAD, which --method "
                f"lac learns; add them, or choose a --method that learns actions: {', '.join(offline.METHODS)}"
            )

    def pairs(self, joined: bool, model: LanguageModel | None = None) -> Pairs:
        """Prompts with the pieces of text that are learned after them.

        Args:
          joined: a whole transcript is one pair, not each of its lines.
          model: reads the actor-critic's Q; without one its actions are weighted by 1.
        """
        if self.weights is None:
            histories = [trajectory.history for trajectory in self.trajectories]
            lines = [line for history in histories for line in offline.lac_lines(history, self.with_actions)]
            return pairs_of(self.dialogue, lines, joined)
        unknown_q = model is None and self.weights.method == "actor_critic"
        weights = OfflineConfig() if unknown_q else self.weights
        return offline.pairs(weights, self.dialogue, self.trajectories, model, self.critic, joined)

    def examples(self, tokenizer: Tokenizer, joined: bool, model: LanguageModel | None = None) -> list[Example]:
        """`pairs` as tokens.

        Raises:
          ValueError: see `offline.pairs`; the tokenizer splits a transcript differently from its lines.
        """
        pairs = self.pairs(joined, model)
        examples = sft.tokenize(tokenizer, pairs)
        chat, pieces = pairs[0]
        whole = tokenizer.render_chat(chat.messages) + tokenizer.as_content("".join(piece.text for piece in pieces))
        if joined and examples[0].tokens != tokenizer.encode(whole):
            raise ValueError("the tokenizer splits a transcript differently from its lines; choose --rows pairs")
        return examples

    def judged_by(self, others: Sequence[Trajectory]) -> tuple[Dialogue, list[TrainingLine]]:
        """The lines of held-out trajectories whose losses are measured, and the prompts before them."""
        if self.weights is None:
            lines = [line for other in others for line in offline.lac_lines(other.history, self.with_actions)]
            return self.dialogue, lines
        lines = [line for other in others if other.success for line in offline.actions(other.history)]
        return offline.acting(self.weights, self.dialogue), lines


def count(examples: Sequence[Example]) -> tuple[int, int]:
    """(tokens learned, tokens read) in one pass."""
    learned = sum(weight != 0 for example in examples for weight in example.weights)
    return learned, sum(len(example.tokens) for example in examples)


def describe(lessons: Lessons, held_out: int, tokenizer: Tokenizer, iterations: int, batch: int) -> str:
    """What a run would learn, in words: trajectories, pairs, tokens and steps.

    Args:
      held_out: how many lines the model is judged by. batch: examples of each of the `iterations`.
    """
    trajectories = lessons.trajectories
    steps = sum(len(trajectory.history.steps) for trajectory in trajectories)
    successes = sum(trajectory.success for trajectory in trajectories)
    text = [f"{len(trajectories)} trajectories ({successes} successes) of {steps} steps; held out: {held_out} lines"]
    for rows in ("pairs", "episodes"):
        try:
            examples = lessons.examples(tokenizer, joined=rows == "episodes")
        except ValueError as error:
            text.append(f"--rows {rows}: {error}")
            continue
        (learned, read), longest = count(examples), max(len(example.tokens) for example in examples)
        text.append(
            f"--rows {rows}: {len(examples)} examples, the longest of {longest} tokens; one pass learns {learned:,} "
            f"tokens and reads {read:,}, {read / learned:.1f} for each; {iterations:,} steps of {batch} are "
            f"{iterations * batch / len(examples):.1f} passes"
        )
    return "\n".join(text)
