"""A language model by rule that plays Crafter: it knows nothing but the text of the transcript it continues.

Its habits (the prior over actions) are those of the walker (`walker.py`) with a leaning in each situation that no
reading corrects. Its judgement compares the last step with what the walker would have done, and errs too; how much and
where follows from the text. What it imagines follows from the rules and from what is in sight (`predict.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import re
from collections.abc import Sequence
from statistics import NormalDist

from envs.crafter import predict, reading
from envs.crafter.env import ACTIONS
from envs.crafter.walker import Walker
from nlrl_jax.roles import by_rule
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT
from nlrl_jax.types import Chat, Reply, Sampling, Score

_NORMAL = NormalDist()


@dataclasses.dataclass(frozen=True)
class Reading:
    """A transcript: observations with the actions between them, and the line to write. `pending`: an action whose
    observation is that line."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    line: str

    @property
    def pending(self) -> str:
        return self.actions[-1] if len(self.actions) == len(self.observations) else ""

    @property
    def facing(self) -> str:
        """Where the player looks, by the last move; north at the start."""
        moves = [action for action in self.actions if action.startswith("move ")]
        return moves[-1].removeprefix("move ") if moves else "north"

    def achieved(self) -> list[bool]:
        """For each observation, whether the step before shows something that counts; see `predict.achieved`."""
        views = [reading.read(text) for text in self.observations]
        steps = zip(views, views[1:], self.actions, strict=False)
        return [False, *(predict.achieved(before, after, action) for before, after, action in steps)]

    def choices(self) -> list[tuple[str, str]]:
        """(action, reason) of the walker at each observation, having seen what came before."""
        one, made = Walker(), []
        for observation, action in zip(self.observations, (*self.actions, ""), strict=False):
            one.act(observation)
            made.append((one.last, one.reason))
            one.took(action or one.last)
        return made


def read(text: str) -> Reading:
    """The transcript of an open message."""
    rows = re.findall(r"^(Observation|Action): *(.*)$", text, re.MULTILINE)
    line = text.rpartition("\n")[2]
    if line.startswith(("Observation:", "Action:")):
        rows = rows[:-1]
    seen = tuple(text for label, text in rows if label == "Observation")
    return Reading(seen, tuple(text.strip() for label, text in rows if label == "Action"), line)


@dataclasses.dataclass(frozen=True)
class Survivor:
    """A language model whose replies follow from the text of the open message alone.

    Attributes:
      leaning: standard deviation of what the habits add to an action's logit in a situation.
      error: standard deviation of what the judgement adds to a step's quality.
    """

    leaning: float = 1.3
    error: float = 1.0
    can_score: bool = dataclasses.field(default=True, init=False)

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Actions are drawn from the prior where the temperature is above 0."""
        replies = []
        for i, chat in enumerate(chats):
            rng = random.Random(f"{seed} {role} {i}") if sampling.temperature > 0 else None
            text = self._write(read(chat.messages[-1]["content"]), rng)
            if role == "policy" and "<action>" in chat.messages[0]["content"]:
                text = f"<action>{text}</action>"
            replies.append(by_rule.reply(chat, f" {text}", stop))
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`: log-probabilities of actions, and of GOOD and BAD behind "This step is"."""
        rows = []
        for chat, texts in zip(chats, continuations, strict=True):
            known = read(chat.messages[-1]["content"])
            if known.line == "Action:":
                table = {f" {action}": value for action, value in self.prior(known).items()}
            else:
                good = self.judgement(known)
                table = by_rule.verdicts(good)
            rows.append(by_rule.scores(chat, texts, table, unlikely=-20.0))
        return rows

    def prior(self, known: Reading) -> dict[str, float]:
        """Actions and their log-probabilities: habits and leanings."""
        wanted, _ = known.choices()[-1]
        here = known.observations[-1]
        logits = {action: self.leaning * _noise(here, str(len(known.actions)), action) for action in ACTIONS}
        logits[wanted] += 2.0
        top = max(logits.values())
        total = top + math.log(sum(math.exp(value - top) for value in logits.values()))
        return {action: value - total for action, value in logits.items()}

    def judgement(self, known: Reading) -> float:
        """The logit of GOOD for the last step."""
        if not known.actions:
            return 0.0
        at = len(known.actions) - 1
        wanted, action = known.choices()[at][0], known.actions[at]
        value = 1.5 if action == wanted else -0.5 if action.startswith("move") == wanted.startswith("move") else -1.5
        return value + self.error * _noise(known.observations[at], action, "judgement")

    def _write(self, known: Reading, rng: random.Random | None) -> str:
        label = known.line.split(":")[0]
        if label == "Action":
            prior = self.prior(known)
            if rng is None:
                return max(prior, key=prior.get)
            return rng.choices(list(prior), [math.exp(value) for value in prior.values()])[0]
        if label == "Observation":
            before = dataclasses.replace(known, actions=known.actions[:-1])
            return predict.predict(known.observations[-1], before.facing, known.pending)
        reason = known.choices()[-1][1]
        if known.line.rstrip().endswith("is"):  # the probability of success
            return f"{100 / (1 + math.exp(-self.judgement(known))):.0f}%"
        if label == "Critic":
            value = self.judgement(known)
            return f"Now {reason}. {VERDICT} {GOOD if value > 1 else BAD if value < -1 else UNKNOWN}."
        if label == "Reward":
            return f"{int(known.achieved()[-1])}/22"
        if label == "Value":
            done = sum(known.achieved())
            return f"{done} steps have brought something. The value is {min(done, 22)}/22."
        return f"Now {reason}."


def _noise(*texts: str) -> float:
    """A number from a standard normal distribution that follows from texts."""
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**64)
