"""ULTRA's three prompts on trajectories, as games share them: what is shown, and what the chats carry along.

A game brings its wording (`GameText`); `analyst_roles` makes the chats. What a prompt shows of an episode is a `Shown`,
and the scripted analysts read that and nothing else, so they know what a model would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.roles import analyst_replies as verdicts
from nlrl_jax.roles.trajectories import Action, AnalystRoles, Episode, Verdict
from nlrl_jax.types import Chat

LONGEST_ANALYSIS = 6000  # characters of a case analysis that a reward prompt repeats


@dataclasses.dataclass(frozen=True, eq=False)
class GameText:
    """How one game's trajectories are put into words.

    Attributes:
      system: the system message.
      identify: template with slots number, begin, second, last, history.
      analyse: template with slots number, history.
      reward: template with slots number, timeslot, action, instead, analysis, history.
      before: timeslots shown before a piece.
      around: timeslots shown before and after the one that a reward is for.
      state: one observation [D] -> text.
      action: one action -> text, which `read_action` reads.
      events: what else a case analysis should know of an episode, one line each.
      ending: how an episode ends.
    """

    system: str
    identify: str
    analyse: str
    reward: str
    before: int
    around: tuple[int, int]
    state: Callable[[np.ndarray], str]
    action: Callable[[Action], str]
    read_action: verdicts.ReadAction
    events: Callable[[Episode], Sequence[str]]
    ending: Callable[[Episode], str]

    def shown(self, context: Mapping[str, Any]) -> Shown:
        """What the identification or reward prompt with this context shows."""
        episode = context["episode"]
        if "timeslot" not in context:
            return Shown.of(episode, context["begin"] - self.before, context["end"])
        before, after = self.around
        return Shown.of(episode, context["timeslot"] - before, context["timeslot"] + after + 1)

    def history(self, context: Mapping[str, Any]) -> str:
        """The same as text."""
        shown, lines = self.shown(context), []
        for timeslot in shown.timeslots():
            did = f"action {self.action(shown.action(timeslot))}, reward {shown.reward(timeslot):.3g}"
            lines.append(f"timeslot {timeslot}: {self.state(shown.state(timeslot))}, {did}")
        if shown.ends:
            lines.append(f"After timeslot {shown.end - 1}: {self.state(shown.observations[-1])}")
            lines.append(self.ending(context["episode"]))
        return "\n".join(lines)

    def cases(self, episode: Episode, found: Sequence[Verdict], left_out: int) -> str:
        """The critical timeslots `found`, and how the episode went."""
        lines = [f"({left_out} earlier critical timeslots are not shown)"] if left_out else []
        lines += [] if found else ["No timeslot was found to be critical."]
        for timeslot, _, action, why, judged in found:
            better = f", better: {self.action(action)}" if action is not None else ", proper" if judged else ""
            seen, taken = self.state(episode.observations[timeslot]), self.action(episode.action(timeslot))
            lines.append(f"timeslot {timeslot}: {seen}, action {taken}{better}. {why}")
        return "\n".join([*lines, *self.events(episode), self.ending(episode)])


class Shown(NamedTuple):
    """The piece of an episode that a prompt shows: timeslots [begin, end).

    observations: float [end - begin (+ 1 if `ends`), D]. actions, rewards: [end - begin, ...].
    ends: the episode ends there; then the state after it is shown too. fell: and it did not just run out of time.
    """

    begin: int
    end: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    ends: bool
    fell: bool

    @classmethod
    def of(cls, episode: Episode, begin: int, end: int) -> Shown:
        begin, end = max(begin, 0), min(end, len(episode))
        ends = end == len(episode)
        seen = episode.observations[begin : end + ends]
        actions, rewards = episode.actions[begin:end], episode.rewards[begin:end]
        return cls(begin, end, seen, actions, rewards, ends, ends and episode.terminated)

    def timeslots(self) -> range:
        return range(self.begin, self.end)

    def state(self, timeslot: int) -> np.ndarray:
        return self.observations[timeslot - self.begin]

    def reward(self, timeslot: int) -> float:
        return float(self.rewards[timeslot - self.begin])

    def action(self, timeslot: int) -> Action:
        taken = self.actions[timeslot - self.begin]
        return int(taken) if np.ndim(taken) == 0 else tuple(float(x) for x in taken)


def analyst_roles(text: GameText, chunk: int, cases: int) -> AnalystRoles:
    """The chats of one game.

    Args:
      chunk: timeslots of one identification prompt.
      cases: critical timeslots that a case analysis shows at most, the last ones; its text says how many it leaves out.

    Raises:
      ValueError: one of them is below 1.
    """
    if chunk < 1 or cases < 1:
        raise ValueError(f"chunk is {chunk} and cases is {cases}; both must be at least 1")

    def identify(episode: Episode, begin: int, end: int) -> Chat:
        if not 0 <= begin < end <= len(episode):
            raise ValueError(f"timeslots [{begin}, {end}) are not within the episode's {len(episode)}")
        context = {"episode": episode, "begin": begin, "end": end}
        slots = {"begin": begin, "second": min(begin + 1, end - 1), "last": end - 1}
        prompt = text.identify.format(number=episode.number, history=text.history(context), **slots)
        return Chat.of(prompt, text.system, **context)

    def analyse(episode: Episode, found: Sequence[Verdict]) -> Chat:
        critical = [verdict for verdict in found if verdict.critical]
        left_out = max(len(critical) - cases, 0)
        critical = tuple(critical[left_out:])
        prompt = text.analyse.format(number=episode.number, history=text.cases(episode, critical, left_out))
        return Chat.of(prompt, text.system, episode=episode, verdicts=critical)

    def reward(episode: Episode, timeslot: int, action: Action, analysis: str) -> Chat:
        context = {"episode": episode, "timeslot": timeslot, "action": action, "analysis": analysis}
        taken, judged = text.action(episode.action(timeslot)), text.action(action)
        other = f" (the agent itself chose {taken}; what is shown after it follows from that)"
        prompt = text.reward.format(
            number=episode.number,
            timeslot=timeslot,
            action=judged,
            instead="" if judged == taken else other,
            analysis=quoted(analysis),
            history=text.history(context),
        )
        return Chat.of(prompt, text.system, **context)

    read = lambda reply, begin, end: verdicts.read_verdicts(reply, begin, end, text.read_action)
    return AnalystRoles(chunk, identify, read, analyse, reward, verdicts.read_reward, text.action)


def quoted(analysis: str) -> str:
    """A case analysis as a reward prompt repeats it; what is too long is cut, and the text says so."""
    analysis = analysis.strip()
    rest = len(analysis) - LONGEST_ANALYSIS
    return f"{analysis[:LONGEST_ANALYSIS]} ... ({rest} more characters)" if rest > 0 else analysis or "(none)"


def numbered(slots: Iterator[int] | Sequence[int], most: int = 12) -> str:
    """Timeslots as an analyst lists them: the first few, and how many more there are."""
    slots = list(slots)
    more = len(slots) - most
    return ", ".join(map(str, slots[:most])) + (f" and {more} more" if more > 0 else "")
