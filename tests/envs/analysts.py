"""A rule-based analyst of a game, asked as `nlrl_jax.algorithms.analyst` asks one."""

import dataclasses
import re

from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.types import Sampling


def said(chat):
    """All that a chat tells."""
    return "\n".join(message["content"] for message in chat.messages)


@dataclasses.dataclass
class Analyst:
    """The prompts of a game's roles, and the scripts that answer them."""

    roles: object
    scripts: dict

    def complete(self, role, chat):
        return ScriptedModel(self.scripts).complete([chat], Sampling(max_tokens=1, temperature=0.0), role)[0].text

    def verdicts(self, played):
        """Of every timeslot of an episode, read without a complaint."""
        found, roles = [], self.roles
        for begin in range(0, len(played), roles.chunk):
            end = min(begin + roles.chunk, len(played))
            text = self.complete("identify", roles.identify(played, begin, end))
            here, problems = roles.read_verdicts(text, begin, end)
            assert not problems
            found += here
        return found

    def reads_only_the_piece(self, role, played, other, piece, rated, shown):
        """A role's chat and reply are the same for two episodes that differ behind the excerpt; that shows `shown`.

        Args:
          piece: (begin, end) that is identified. rated: (timeslot, action).
        """
        ask = getattr(self.roles, role)
        first, second = (ask(e, *(piece if role == "identify" else (*rated, "none"))) for e in (played, other))
        timeslots = [int(t) for t in re.findall(r"^timeslot (\d+):", said(first), re.MULTILINE)]
        return (
            said(first) == said(second)
            and timeslots == list(shown[role])
            and (self.complete(role, first) == self.complete(role, second))
        )

    def judge(self, played, timeslot, action, analysis="none"):
        """The reward of an action."""
        return self.roles.read_reward(self.complete("reward", self.roles.reward(played, timeslot, action, analysis)))
