"""Candidate actions from a language model's prior, and futures that the model imagines after them.

What LAC and the planners share. Every phase is one call for all candidates of all games. A future grows by lines: an
observation, a note where the dialogue has one, an action; each ends at its newline. A reply without an end, an empty
observation or an action that cannot be read is counted in `Caller.problems`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.config import check, option
from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.rollouts.host_games import StepDecisions
from nlrl_jax.types import LEAST, ROUNDING, Chat, LanguageModel, Reply, Sampling

# Roles of the calls.
POLICY, WORLD, NOTE, CRITIC = "policy", "world model", "note", "critic"
NEVER_ENDED = "never ended"
MORE = "lines after the first, which are not read"
OUTSIDE = "word not among the likeliest"  # that an endpoint lists: the last one stands for it
PARTLY = "word partly among the likeliest"  # the rest of its spellings may weigh as much
UNLIKELY = "no finite log-probability"  # `types.LEAST` stands for it
DRAW_TEMPERATURE = 1.0  # candidates are draws from the prior itself (LAC, section 4.1)


@dataclasses.dataclass(frozen=True)
class PlanningConfig:
    """How candidates arise and how far the model imagines (LAC, appendix C.3). Lines are written greedily."""

    candidates: int = option(5, "candidate actions per step [n]", least=1)
    origin: str = option(
        "auto",
        "candidates: list (the best of the game's actions by log-probability), sample (distinct draws from the prior), "
        "auto (list where the game has one and the model can score)",
        choices=("auto", "list", "sample"),
    )
    draws: int = option(10, "draws that sampled candidates come from", least=1)
    prior: str = option(
        "sum", "log-probability of an action: the sum over its tokens, or their mean", choices=("sum", "mean")
    )
    depth: int = option(4, "maximum steps of an imagined rollout, the candidate among them; 0: none", least=0)
    line_tokens: int = option(
        0, "maximum tokens per line that the model writes; 0: 128, or an eighth of a smaller context", least=0
    )

    def __post_init__(self):
        check(self)

    def line(self, room: int) -> int:
        """Maximum tokens per line in a context of `room` tokens; 0 is no limit."""
        return self.line_tokens or min(128, room // 8 if room else 128)

    def reserve(self, room: int) -> int:
        """Tokens to keep free after a history in a context of `room` tokens: an action, an observation and a note."""
        return 3 * self.line(room)

    def ahead(self, room: int, lines: int = 0) -> int:
        """Tokens that a decision keeps free after its history: those of so many lines, or for 0 those of a rollout,
        where that leaves half the room."""
        rollout = max(self.reserve(room), min((2 * self.depth + 1) * self.line(room), room // 2))
        return lines * self.line(room) if lines else rollout


class Candidates(NamedTuple):
    """Distinct actions of one game, the likeliest first. log_prior: log pi of each (`PlanningConfig.prior`)."""

    actions: tuple[str, ...]
    log_prior: tuple[float, ...]


class Future(NamedTuple):
    """An imagined rollout.

    history: the real history, then the imagined steps; without its oldest steps where the context is full.
    imagined: the imagined steps.
    """

    history: History
    imagined: tuple[Step, ...] = ()


class NoLogProbability(ValueError):
    """A model gives NaN, or a number above 0, as a log-probability."""


class Caller:
    """The calls of one decision: counts them by role, and what was wrong with the replies.

    A chat that has grown too long for the model's context loses its oldest steps, imagined ones too.

    Attributes:
      dialogue: how histories become prompts. room: tokens of its context, 0 without a limit.
      problems: {"world model/never ended": 2, ...}. calls: {role: calls}.
    """

    def __init__(self, model: LanguageModel, dialogue: Dialogue, config: PlanningConfig, seed: int):
        self.model, self.dialogue, self.config, self.seed = model, dialogue, config, seed
        self.room = dialogue.room
        self.problems, self.calls = Counter(), Counter()

    def lines(self, role: str, chats: Sequence[Chat]) -> list[str]:
        """One line each, written greedily, without blanks around it."""
        return [reply.text.strip() for reply in self.replies(role, chats)]

    def replies(self, role: str, chats: Sequence[Chat], sampling: Sampling | None = None, stop=("\n",)) -> list[Reply]:
        """A reply each, of one line unless `stop` says otherwise."""
        if not chats:
            return []
        self.calls[role] += len(chats)
        sampling = sampling or Sampling(self.config.line(self.room), 0.0)
        chats = [self._fit(chat, sampling.max_tokens) for chat in chats]
        replies = self.model.complete(chats, sampling, role, self.seed, stop=stop)
        for reply in replies:
            self.count(role, "" if reply.ended else NEVER_ENDED)
            self.count(role, MORE if reply.more else "")
        return replies

    def log_probs(self, role: str, chats: Sequence[Chat], texts: Sequence[Sequence[str]]) -> list[list[float]]:
        """log p of each text after its chat, by `config.prior` summed over its tokens or their mean."""
        if not chats:
            return []
        self.calls[role] += sum(map(len, texts))
        # The mean is the prior's alone: Q compares whole words, whose lengths must count.
        mean = self.config.prior == "mean" and role == POLICY
        if self.room:
            longest = [max(map(self.dialogue.count, row)) for row in texts]
            chats = [self._fit(chat, new) for chat, new in zip(chats, longest, strict=True)]
        rows = self.model.score(chats, texts, role)
        self.count(role, OUTSIDE, sum(score.bounded for row in rows for score in row))
        self.count(role, PARTLY, sum(score.partial for row in rows for score in row))
        # All scores in one list, to count and bound them, then dealt out to their texts again.
        finite = iter(self.finite(role, [score.log_prob for row in rows for score in row]))
        return [[next(finite) / (max(score.tokens, 1) if mean else 1) for score in row] for row in rows]

    def finite(self, role: str, log_probs: Sequence[float]) -> list[float]:
        """Log-probabilities without infinite ones, which are counted: `LEAST` stands for those.

        Raises:
          NoLogProbability: one is NaN or above 0.
        """
        wrong = [log_prob for log_prob in log_probs if not log_prob <= ROUNDING]
        if wrong:
            raise NoLogProbability(f"the model gives {wrong[0]} as a log-probability ({role}); are its weights finite?")
        self.count(role, UNLIKELY, sum(log_prob <= LEAST for log_prob in log_probs))
        return [max(log_prob, LEAST) for log_prob in log_probs]

    def action(self, text: str, actions: Sequence[str], rng: np.random.Generator) -> str:
        """The action in a line; one that cannot be read is counted, and a random one takes its place."""
        action, problem = read_action(text, actions)
        self.count(POLICY, problem)
        return action or any_action(actions, rng)

    def count(self, role: str, problem: str, n: int = 1) -> None:
        if problem and n:
            self.problems[f"{role}/{problem}"] += n

    def decisions(
        self, actions: list[str], histories: Sequence[History], thinking: list[dict], thoughts: Sequence = ()
    ) -> StepDecisions:
        """What was decided for each history, which ends with its new note, and what was counted meanwhile."""
        notes = [history.last_note for history in histories]
        thoughts = list(thoughts) or [[] for _ in actions]
        return StepDecisions(actions, notes, thoughts, thinking, self.problems, self.calls)

    def _fit(self, chat: Chat, new: int) -> Chat:
        """The chat with room for so many new tokens."""
        if not self.room:
            return chat
        history, dropped = self.dialogue.fit(chat, new)
        self.count("history", "steps dropped", dropped)
        return self.dialogue.chat(history, chat.context["line"]) if dropped else chat

    def trim(self, histories: Sequence[History], lines: int = 0) -> list[History]:
        """What fits the model's context, with room for what a decision adds; lines: see `PlanningConfig.ahead`."""
        trimmed = [self.dialogue.trim(history, self.config.ahead(self.room, lines)) for history in histories]
        self.count("history", "steps dropped", sum(history.dropped for history in trimmed))
        return [history.history for history in trimmed]


def any_action(actions: Sequence[str], rng: np.random.Generator) -> str:
    """A random one; "nothing" where there is no list."""
    return str(rng.choice(actions)) if actions else "nothing"


def write_notes(caller: Caller, histories: Sequence[History], label: str = "") -> list[History]:
    """The histories with a new note after their last observations, if there is a label: this one or the dialogue's.

    Notes with another label than the dialogue's stay out of its prompts: they are values that a planner reads.
    """
    label_of_notes = caller.dialogue.label
    label = label or label_of_notes
    if not label:
        return list(histories)
    role = NOTE if label == label_of_notes else CRITIC
    notes = caller.lines(role, [caller.dialogue.chat(history, f"{label}:") for history in histories])
    return [history.noted(note) for history, note in zip(histories, notes, strict=True)]


def next_actions(caller: Caller, histories: Sequence[History], actions: Sequence[str], seed: int) -> list[str]:
    """The action that the model writes greedily; one that cannot be read is replaced by a random one and counted."""
    rng = np.random.default_rng(seed)
    texts = caller.lines(POLICY, [caller.dialogue.chat(history, "Action:") for history in histories])
    return [caller.action(text, actions, rng) for text in texts]


def propose(
    caller: Caller,
    histories: Sequence[History],
    actions: Sequence[str],
    without: Sequence[Sequence[str]] = (),
    number: int = 0,
) -> list[Candidates]:
    """The likeliest n actions of each game (LAC, section 4.1: candidates sampled from the prior).

    Args:
      actions: all there are; empty where any text is one.
      without: actions of each game to leave out.
      number: n; 0 is `config.candidates`.

    Returns: at least one candidate each, unless `without` names all: where no draw can be read, a random action.
    """
    config, model = caller.config, caller.model
    listed = actions and config.origin != "sample" and model.can_score
    if config.origin == "list" and not listed:
        lack = "the model cannot score" if actions else "the game has no list of actions"
        raise ValueError(f"origin is 'list', but {lack}; choose 'sample'")
    chats = [caller.dialogue.chat(history, "Action:") for history in histories]
    without = without or [()] * len(chats)
    log_prior: list[list[float]] = []
    if listed:
        options = [[action for action in actions if action not in excluded] for excluded in without]
    else:
        options, log_prior = _draw(caller, chats, actions, without)
    if model.can_score:
        log_prior = caller.log_probs(POLICY, chats, [[f" {action}" for action in row] for row in options])
    result = []
    for row, values in zip(options, log_prior, strict=True):
        # Stable: of equally likely actions the list's own order decides, on every machine.
        order = np.argsort(-np.asarray(values), kind="stable")[: number or config.candidates]
        result.append(Candidates(tuple(row[i] for i in order), tuple(float(values[i]) for i in order)))
    return result


def _draw(caller: Caller, chats, actions, without) -> tuple[list[list[str]], list[list[float]]]:
    """Distinct sampled actions of each chat, the most frequent first, and their log-probabilities."""
    draws, rng = caller.config.draws, np.random.default_rng(caller.seed)
    sampling = Sampling(caller.config.line(caller.room), DRAW_TEMPERATURE)
    replies = caller.replies(POLICY, [chat for chat in chats for _ in range(draws)], sampling)
    options, log_priors = [], []
    for i, excluded in enumerate(without):
        drawn: dict[str, list[Reply]] = {}
        for reply in replies[i * draws : (i + 1) * draws]:
            action, problem = read_action(reply.text, actions)
            caller.count(POLICY, problem)
            if action and action not in excluded:
                drawn.setdefault(action, []).append(reply)
        if not drawn:
            rest = [action for action in actions if action not in excluded]
            caller.count(POLICY, "no candidate")
            options.append([any_action(rest, rng)])
            log_priors.append([0.0])
            continue
        # Stable: equally frequent actions stay in the order of their first draw.
        ranked = sorted(drawn, key=lambda action: -len(drawn[action]))
        options.append(ranked)
        log_priors.append(_log_prior(caller, [drawn[action] for action in ranked]))
    return options, log_priors


def _log_prior(caller: Caller, replies: Sequence[Sequence[Reply]]) -> list[float]:
    """log pi of actions from the replies that named each: where these have log-probabilities of their tokens, the sum
    over an action's spellings (" Go left", "go left"; of means over tokens, the greatest), else the share of draws."""
    if not all(reply.log_probs for of_action in replies for reply in of_action):
        numbers = np.array([len(of_action) for of_action in replies])
        return list(np.log(numbers) - np.log(numbers.sum()))
    mean = caller.config.prior == "mean"
    add, total = (max, np.mean) if mean else (np.logaddexp.reduce, np.sum)
    result = []
    for of_action in replies:
        spellings = {reply.text.strip(): caller.finite(POLICY, reply.log_probs) for reply in of_action}
        result.append(float(add([total(log_probs) for log_probs in spellings.values()])))
    return result


def imagine(
    caller: Caller,
    histories: Sequence[History],
    firsts: Sequence[str],
    actions: Sequence[str],
    stop: Callable[[Step], bool] = lambda step: False,
    branch: int = 1,
    outcome: bool = True,
    note: str = "",
) -> list[list[Future]]:
    """Rollouts in the model's imagination (LAC, equation 3: u): each begins with a first action, then the model goes on
    greedily for `config.depth` steps or until `stop` holds for a step.

    Args:
      histories, firsts: of each rollout, R of them.
      actions: all there are; empty where any text is one.
      branch: actions that are followed from each imagined state; 1 is a chain.
      outcome: whether what follows the last action is of interest; else its observation and note are "".
      note: label of the line after each observation; see `write_notes`.

    Returns: the leaves of each rollout; one with `branch` 1.
    """
    config, dialogue = caller.config, caller.dialogue
    leaves: list[list[Future]] = [[] for _ in histories]
    open_ = [(i, Future(history), action) for i, (history, action) in enumerate(zip(histories, firsts, strict=True))]
    for depth in range(config.depth):
        # 1. The world model writes what each action leads to.
        trimmed = [dialogue.trim(future.history, config.reserve(caller.room)).history for _, future, _ in open_]
        pending = [action for _, _, action in open_]
        chats = [dialogue.chat(history, f"Action: {action}\nObservation:") for history, action in zip(trimmed, pending)]
        last = depth + 1 == config.depth
        observed = outcome or not last
        observations = caller.lines(WORLD, chats) if observed else [""] * len(chats)
        caller.count(WORLD, "empty", observations.count("") if observed else 0)
        steps = map(Step, pending, observations)
        grown = [history.then(step) for history, step in zip(trimmed, steps, strict=True)]
        # 2. A note on it, such as a reflection.
        grown = write_notes(caller, grown, note) if observed else grown
        # 3. Futures that stop here become leaves.
        going = []
        for (i, future, _), history in zip(open_, grown, strict=True):
            step = history.steps[-1]
            ended = stop(step) or not step.observation
            future = Future(history, (*future.imagined, step))
            if ended or last:
                leaves[i].append(future)
            else:
                going.append((i, future))
        if not going:
            break
        # 4. The next action of the others, or several: then the future branches.
        histories = [future.history for _, future in going]
        if branch > 1:
            chosen = [list(proposal.actions) for proposal in propose(caller, histories, actions, number=branch)]
        else:
            chosen = [[action] for action in next_actions(caller, histories, actions, caller.seed + depth)]
        open_ = [(i, future, action) for (i, future), row in zip(going, chosen, strict=True) for action in row]
    return leaves
