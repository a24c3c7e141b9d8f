"""A language model by rule that plays ALFWorld: it knows nothing but the text of the transcript it continues.

It has habits and judgement. Its habits (the prior over actions) know what to do next and how people go wrong here, and
in every situation lean to some action, which no reading corrects. Its judgement is the critic of `annotate`, who has
read the same; it errs too, and about what follows from the text as well. What it imagines is that a place where nobody
has looked holds what is looked for, if it is a likely one.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from envs.alfworld import annotate
from envs.alfworld.belief import Belief, may_hold, plain
from envs.alfworld.games import MACHINES
from nlrl_jax.roles import by_rule
from nlrl_jax.roles.dialogues import BAD, GOOD, PROBABILITY, UNKNOWN, VERDICT, History, Step, before_verdict, verdict
from nlrl_jax.types import Chat, Reply, Sampling, Score

_UNLIKELY = -12.0  # log-probability of what no habit would do
_LOGIT = {GOOD: 2.0, BAD: -2.0}  # of a verdict; 0 where it is neither
_NORMAL = NormalDist()


@dataclasses.dataclass(frozen=True)
class Resident:
    """A language model whose replies follow from the text of the open message alone.

    Attributes:
      leaning: standard deviation of what the habits add to an action's logit in a situation.
      error: standard deviation of what the judgement adds to a verdict's logit, 2 where it is GOOD and -2 where it is
        BAD; a third of it, rounded, is added to the number of sub-goals done.
    """

    leaning: float = 1.2
    error: float = 2.0
    can_score: bool = dataclasses.field(default=True, init=False)

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Actions are drawn from the prior where the temperature is above 0."""
        replies = []
        for i, chat in enumerate(chats):
            rng = random.Random(f"{seed} {role} {i}") if sampling.temperature > 0 else None
            text = f" {self._write(chat.messages[-1]['content'], rng)}"
            replies.append(by_rule.reply(chat, text, stop))
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`: log-probabilities of actions, and of GOOD and BAD behind "This step is"."""
        rows = []
        for chat, texts in zip(chats, continuations, strict=True):
            history, line = read(chat.messages[-1]["content"])
            if line == "Action:":
                table = {f" {action}": value for action, value in self.prior(history).items()}
            else:
                logit = self._judgement(history)
                table = by_rule.verdicts(logit)
            rows.append(by_rule.scores(chat, texts, table, unlikely=_UNLIKELY))
        return rows

    def prior(self, history: History) -> dict[str, float]:
        """Action -> its log-probability."""
        situation = f"{history.goal} {history.steps[-3:]}"
        corrected = verdict(history.last_note) == BAD
        logits = _habits(_belief(history), corrected)
        logits = {action: value + self.leaning * _noise(situation, action) for action, value in logits.items()}
        total = math.log(sum(map(math.exp, logits.values())))
        return {action: value - total for action, value in logits.items()}

    def _judgement(self, history: History) -> float:
        """log P(GOOD) - log P(BAD) of the last step."""
        if not history.steps:
            return 0.0
        noise = _noise(history.goal, *history.steps[-1][:2], str(len(history.steps)))
        return _LOGIT.get(verdict(_reflection(history)), 0.0) + self.error * noise

    def _write(self, transcript: str, rng: random.Random | None) -> str:
        history, line = read(transcript)
        if line == "Action:":
            prior = self.prior(history)
            if rng is None:
                return max(prior, key=prior.get)
            return rng.choices(list(prior), [math.exp(value) for value in prior.values()])[0]
        if line.endswith("Observation:"):
            return _belief(history).predict(plain(line.splitlines()[0].removeprefix("Action:")))
        if line.endswith(PROBABILITY):
            return f"{1 / (1 + math.exp(-self._judgement(history))):.2f}."
        if line.endswith(VERDICT):
            return f"{GOOD if self._judgement(history) > 0 else BAD}."
        label = line.split(":")[0]
        notes = {"Reward": annotate.reward, "Thought": annotate.thought}
        if label == "Value":
            belief = _belief(history)
            done, total = annotate.sub_goals(belief)
            slip = round(self.error / 3 * _noise(history.goal, str(history.steps[-1:]), str(len(history.steps))))
            return f"{annotate.situation(belief)} The value is {min(max(done + slip, 0), total)}/{total}."
        if label in notes:
            return notes[label](_belief(history))
        logit = self._judgement(history)
        word = GOOD if logit > 1 else BAD if logit < -1 else UNKNOWN
        return f"{before_verdict(_reflection(history))} {word}."


def read(transcript: str) -> tuple[History, str]:
    """A transcript -> (its history, the line that it ends in, which is to be continued; with the action where that is
    an observation)."""
    *lines, last = transcript.split("\n")
    if last.startswith("Observation:"):
        last = f"{lines.pop()}\n{last}"
    goal = action = ""
    seen: list[Step] = []  # the first one is the beginning, which no action led to
    for text in lines:
        label, _, text = text.partition(": ")
        if label == "Goal of the agent":
            goal = text
        elif label == "Action":
            action = text
        elif label == "Observation":
            seen.append(Step(action, text))
        else:
            seen[-1] = seen[-1]._replace(note=text)
    (_, observation, note), *steps = seen
    history = History(goal, observation, tuple(steps), note)
    if lines[-1].startswith("Action: ") and "Observation:" not in last:  # judged at once, without a rollout
        history = history.then(Step(action, _belief(history).predict(plain(action))))
    return history, last


def _belief(history: History) -> Belief:
    return _believed(history.goal, history.observation, tuple(step[:2] for step in history.steps))


@functools.lru_cache(1 << 15)
def _believed(goal: str, observation: str, steps: tuple[tuple[str, str], ...]) -> Belief:
    """The belief after steps, from the one before: transcripts grow line by line."""
    if not steps:
        return Belief(goal, observation)
    return _believed(goal, observation, steps[:-1]).after(*steps[-1])


def _reflection(history: History) -> str:
    if not history.steps:
        return f"{annotate.situation(_belief(history))} {VERDICT} {UNKNOWN}."
    action, observation, _ = history.steps[-1]
    before = _belief(dataclasses.replace(history, steps=history.steps[:-1]))
    return annotate.reflection(before, _belief(history), action, observation)


def _habits(belief: Belief, corrected: bool) -> dict[str, float]:
    """Action -> logit, before the situation's leanings. Behind a critic's BAD the right one is likelier."""
    wanted, logits = belief.next(), {"look": -1.5, "inventory": -1.5}
    right = 1.0 if corrected else 0.3
    for place in sorted(belief.looked - {belief.at})[:2]:
        logits[f"go to {place}"] = -0.5
    if wanted.commands:
        logits[wanted.commands[0]] = right
    elif wanted.verb == "find":
        if belief.at in belief.closed:
            logits[f"open {belief.at}"] = right
        for place in belief.unlooked(wanted.thing)[:4]:
            command = belief.way_into(place)
            logits[command] = max(logits.get(command, -9.0), right - 0.3 if may_hold(place, wanted.thing) else -1.0)
    here = sorted(name for name, place in belief.seen.items() if place == belief.at)
    if not belief.held:
        others = [name for name in here if not name.startswith(f"{belief.goal.target} ")][:2]
        logits |= {f"take {name} from {belief.at}": -0.2 for name in others}
    elif wanted.verb == "treat" and (home := belief.home()):  # to put it in its place as it is
        logits[f"go to {home}" if belief.at != home else f"put {belief.held} in/on {home}"] = 0.2
    if belief.held and belief.at:
        logits.setdefault(f"put {belief.held} in/on {belief.at}", -0.5)
    machines = [place for place in belief.places if place.split()[0] in [kind.lower() for kind in MACHINES.values()]]
    if belief.held and machines:
        logits.setdefault(f"go to {machines[0]}", -1.0)
    return logits


def _noise(*texts: str) -> float:
    """A draw from the normal distribution that follows from texts."""
    digest = hashlib.sha256("\n".join(texts).encode()).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest[:6], "big") + 0.5) / 2**48)
