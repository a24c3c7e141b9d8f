"""A language model that knows the true state of a host game and is wrong at rates that you set.

    model = Expert(game, Rates(prior=0.6, critic=0.8, world=0.9))

It measures algorithms, not language models: how good must the critic and the imagination be before planning pays? A
history begins at a task, so the model repeats its actions in the game and asks the game's own
`expert` for the move. What each rate means:

    prior   The action that it writes, its favourite, is the expert's with this probability. log pi is calibrated: the
            favourite has the probability `prior`, all other actions share the rest evenly.
    critic  What it says of a step is true with this probability: GOOD if the expert needs fewer steps to success
            afterwards, or if the action was the expert's and the observation is what that action leads to; UNKNOWN if
            it needs as many as before and the step was no idle one (a look into an empty cupboard); else BAD. The
            opposite of GOOD is BAD; in node of UNKNOWN it says either. log P(GOOD) - log P(BAD) is
            |log(critic / (1 - critic))| with the sign of what it says, and 0 for UNKNOWN, after which an imagined
            rollout of LAC goes on. Rewards, values (the share of the way that is done, in quarters) and probabilities
            of success are wrong as often.
    world   The observation that it imagines is the true one with this probability. Otherwise it is that of
            another action from the same state, and the imagined rollout goes on from there. If no other action that
            is tried leads to something else, it is right.

All of it follows from the text, goal and transcript: the same question gets the same answer, and the state of an
imagined transcript can be found again (`envs.expert_states`).
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nlrl_jax.config import OptionError, assignments, check, option
from nlrl_jax.envs.expert_states import States, TranscriptNode, rng_of, steps_of
from nlrl_jax.roles.dialogues import BAD, GOOD, PROBABILITY, UNKNOWN, VERDICT, History
from nlrl_jax.types import (
    Answer,
    Chat,
    Facts,
    HostGame,
    LanguageModel,
    Outcome,
    Reply,
    Request,
    Sampling,
    Score,
    answer_batches,
    cut,
)

_LEAST = 1e-4  # of a probability, so that a rate of 1 has a finite log-odds
_UNLIKELY = 1e-6  # probability of an action that the model does not think of
_QUARTERS = 4
_CHARACTERS = 4  # per token, about
TAGS = "<action>"  # where the instructions have it, actions are written in tags


@dataclasses.dataclass(frozen=True)
class Rates:
    """How often the expert model is right; see the module."""

    prior: float = option(0.6, "how often its action is the expert's", least=0, most=1)
    critic: float = option(0.8, "how often its verdict is right", least=0, most=1)
    world: float = option(0.9, "how often its imagined observation is right", least=0, most=1)

    def __post_init__(self):
        check(self)

    @classmethod
    def parse(cls, text: str) -> Rates:
        """ "prior=0.6,critic=0.8": the others have their defaults.

        Raises:
          OptionError: an unknown name, or no number from 0 to 1.
        """
        values, names = assignments("expert", text, "rate"), [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in values if name not in names]
        if unknown:
            raise OptionError(f"expert is {text!r}, which sets {unknown[0]}; its rates are {', '.join(names)}")
        try:
            return cls(**values)
        except OptionError as error:
            raise OptionError(f"expert is {text!r}: {error}") from None

    def __str__(self) -> str:
        return f"prior={self.prior:g},critic={self.critic:g},world={self.world:g}"

    def describe(self, game: str) -> str:
        """What the model is, in a sentence for a reader of results."""
        return (
            f"The model is not a language model: it is {game}'s own expert, which knows the true state. Its actions "
            f"are right with probability {self.prior:g}, its verdicts with {self.critic:g} and the observations that "
            f"it imagines with {self.world:g}."
        )


class _Question(NamedTuple):
    """What a chat asks for: the rest of a line of a history.

    action: one that the line itself begins with, not in the history yet; "" without. tagged: actions stand in tags.
    """

    history: History
    line: str
    action: str
    tagged: bool

    @classmethod
    def of(cls, chat: Chat) -> _Question:
        line, action = chat.context["line"], ""
        if line.startswith("Action:") and "\n" in line:
            action, _, line = line.removeprefix("Action:").strip().partition("\n")
        return cls(chat.context["history"], line, action, TAGS in chat.messages[0]["content"])

    @property
    def goal(self) -> str:
        return self.history.goal

    @property
    def is_critic(self) -> bool:
        return self.line.startswith("Critic:")


class _Step(NamedTuple):
    """A step to judge: the node before it, the action, and the node after it."""

    before: TranscriptNode
    action: str
    after: TranscriptNode


class Expert(LanguageModel):
    """The language model; see the module. Threads may share it.

    Args:
      game: with an `expert`. Its `simulator`, if it has one, is what the model steps.
      rates: how often it is right.
    """

    facts = Facts(scores_texts=True, scores_words=True)

    def __init__(self, game: HostGame, rates: Rates = Rates()):
        if not game.expert:
            raise ValueError(f"{game.name} has no expert, which the model `expert` asks; give a language model")
        self.states, self.rates = States(game, rates.world), rates
        self._lock = threading.RLock()

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """See `types.LanguageModel`. Only actions are drawn at a temperature; all else is the same at any. Of two words
        to score after "This step is" the first one is the positive one."""
        return answer_batches(requests, self._complete, self._score)

    def _complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int, stop: Sequence[str]
    ) -> list[Reply]:
        with self._lock:
            nodes, replies = self.states.find([chat.context["history"] for chat in chats]), []
            questions = [_Question.of(chat) for chat in chats]
            self._foresee(zip(questions, nodes, strict=True))
            for i, (chat, question, node) in enumerate(zip(chats, questions, nodes, strict=True)):
                drawn = f"{seed}/{i}" if sampling.temperature > 0 else ""
                text = self._answer(question, node, drawn, sampling.temperature)
                replies.append(cut(Reply(f" {text}", _tokens(chat), _length(text)), stop))
        return replies

    def _score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        with self._lock:
            nodes = self.states.find([chat.context["history"] for chat in chats])
            questions = [_Question.of(chat) for chat in chats]
            self._foresee(zip(questions, nodes, strict=True))
            rows = []
            for chat, question, node, texts in zip(chats, questions, nodes, continuations, strict=True):
                if question.line == "Action:":
                    policy = self.policy(node, question.goal)
                    chances = [policy.get(text.strip(), _UNLIKELY) for text in texts]
                else:
                    good = self._probability_good(question, node)
                    chances = [good, 1 - good, *[_UNLIKELY] * len(texts)][: len(texts)]
                first, *rest = [
                    Score(math.log(max(p, _UNLIKELY)), _length(text)) for p, text in zip(chances, texts, strict=True)
                ]
                rows.append([first._replace(prompt_tokens=_tokens(chat)), *rest])
        return rows

    def _answer(self, question: _Question, node: TranscriptNode, drawn: str, temperature: float) -> str:
        """The rest of a line, without the blank before it."""
        line, rng = question.line, rng_of(node.key, question.goal, question.line)
        if line == "Action:":
            policy = self.policy(node, question.goal)
            action = max(policy, key=policy.get)
            if drawn:
                weights = [p ** (1 / temperature) for p in policy.values()]
                action = rng_of(node.key, question.goal, drawn).choices(list(policy), weights)[0]
            return f"<action>{action}</action>" if question.tagged else action
        if line == "Observation:":
            return " ".join(self._imagined(node, question.action).observation.split())
        right = rng.random() < self.rates.critic
        if line == "Critic:":
            return f"{VERDICT} {self._verdict(question, node)}."
        if line.endswith(PROBABILITY):
            return f"{self._probability_good(question, node):.2f}."
        if line.endswith(VERDICT):
            return f"{self._verdict(question, node)}."
        if line == "Reward:":
            return str(int(node.won == right))
        if line == "Value:":
            done = self._done(node)
            quarters = done if right else rng.choice([n for n in range(_QUARTERS + 1) if n != done])
            return f"The value is {quarters}/{_QUARTERS}."
        return f"The next action is {max(policy := self.policy(node, question.goal), key=policy.get)}."

    def policy(self, node: TranscriptNode, goal: str = "") -> dict[str, float]:
        """Action -> pi(action | transcript); the favourite, which it writes, is the first of the largest."""
        right, alternatives = self.states.options(node)
        rng, p = rng_of(node.key, goal, "policy"), self.rates.prior
        rng.shuffle(alternatives)
        ordered = [right, *alternatives]
        if alternatives and rng.random() >= p:
            ordered[0], ordered[1] = ordered[1], ordered[0]
        share = max((1 - p) / max(len(alternatives), 1), _UNLIKELY)
        chances = {action: share for action in ordered} | {ordered[0]: max(p, _UNLIKELY) if alternatives else 1.0}
        rest = list(chances.items())[1:]
        rng.shuffle(rest)
        # Equal chances in an order of their own, so that "the best n" leave out any of them.
        tilted = {action: chance * (1 - 1e-6 * n) for n, (action, chance) in enumerate(rest)}
        return {ordered[0]: chances[ordered[0]], **tilted}

    def _verdict(self, question: _Question, node: TranscriptNode) -> str:
        probability = self._probability_good(question, node)
        return UNKNOWN if probability == 0.5 else GOOD if probability > 0.5 else BAD

    def _probability_good(self, question: _Question, node: TranscriptNode) -> float:
        """P(GOOD) of the last step, or of the action that the line begins with."""
        step = self._judged(question, node)
        if step is None:
            return 0.5
        rng = rng_of(step.before.key, step.action, step.after.key, question.goal, "critic")
        is_right, truth, rate = rng.random() < self.rates.critic, self._truth(step), self.rates.critic
        if truth == UNKNOWN and is_right:
            return 0.5
        is_good = rng.random() < 0.5 if truth == UNKNOWN else (truth == GOOD) == is_right
        confidence = min(max(rate, 1 - rate, 0.5 + _LEAST), 1 - _LEAST)
        return confidence if is_good else 1 - confidence

    def _judged(self, question: _Question, node: TranscriptNode) -> _Step | None:
        """The step that a line of the critic is about; None before the first."""
        if question.action:
            (outcome,) = self.states.step([node], [question.action])
            return _Step(node, question.action, node.after(f"{node.key}/{question.action}", question.action, outcome))
        steps = steps_of(question.history)
        if not steps:
            return None
        (before,) = self.states.find([dataclasses.replace(question.history, steps=tuple(steps[:-1]), past=())])
        return _Step(before, steps[-1].action, node)

    def _truth(self, step: _Step) -> str:
        """GOOD, UNKNOWN or BAD; see the module: `critic`."""
        if step.after.won:
            return GOOD
        if step.after.expected and not step.before.finished and step.action == self.states.move(step.before):
            return GOOD
        after, before = self.states.steps_left([step.after, step.before])
        if after == before < math.inf and not step.after.idle:
            return UNKNOWN
        return GOOD if after < before else BAD

    def _done(self, node: TranscriptNode) -> int:
        """Quarters of the way from the beginning of the task that are done; all of them if it is won."""
        if node.won:
            return _QUARTERS
        (start,) = self.states.find([History("", "", task=node.task)])
        whole, steps_left = self.states.steps_left([start, node])
        if math.isinf(whole) or math.isinf(steps_left):
            return 0
        return min(_QUARTERS - 1, max(0, int(_QUARTERS * (whole - steps_left) / max(whole, 1))))

    def _foresee(self, questions: Iterable[tuple[_Question, TranscriptNode]]) -> None:
        """Computes in batches what the answers will read: outcomes of actions, and steps to success."""
        pairs = list(questions)
        pending = [(question, node) for question, node in pairs if question.action]
        self.states.step([node for _, node in pending], [question.action for question, _ in pending])
        self.states.mistakes([(node, q.action) for q, node in pending if q.line == "Observation:"])
        if self.states.counts:
            return
        steps = [self._judged(q, node) for q, node in pairs if q.is_critic]
        compared = [step for step in steps if step and step.action != self.states.move(step.before)]
        self.states.steps_left([node for step in compared for node in (step.before, step.after)])

    def _imagined(self, node: TranscriptNode, action: str) -> Outcome:
        """What the model imagines after an action."""
        (outcome,) = self.states.step([node], [action])
        (mistake,) = self.states.mistakes([(node, action)])
        return mistake or outcome or Outcome(node.state, "Nothing happens.")


def _tokens(chat: Chat) -> int:
    return sum(_length(message["content"]) for message in chat.messages)


def _length(text: str) -> int:
    return -(-len(text) // _CHARACTERS)
