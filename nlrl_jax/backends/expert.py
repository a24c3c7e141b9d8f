"""A language model that knows the true state of a host game and is wrong at rates that you set.

    model = Expert(game, Rates(prior=0.6, critic=0.8, world=0.9))

It measures algorithms, not language models: how good must the critic and the imagination be before planning pays? A
history begins at a task, so the model repeats its actions in the game (`HostGame.simulator`) and asks the game's own
`expert` for the move. What each rate means:

    prior   The action that it writes, its favourite, is the expert's with this probability. log pi is calibrated: the
            favourite has the probability `prior`, all other actions share the rest evenly.
    critic  What it says of a step is true with this probability: GOOD if the expert needs fewer steps to success
            afterwards, or if the action was the expert's and the observation is what that action leads to; UNKNOWN if
            it needs as many as before and the step was no idle one (a look into an empty cupboard); else BAD. The
            opposite of GOOD is BAD; in place of UNKNOWN it says either. log P(GOOD) - log P(BAD) is
            log(critic / (1 - critic)) with the sign of what it says, and 0 for UNKNOWN, after which an imagined
            rollout of LAC goes on. Rewards, values (the share of the way that is done, in quarters) and probabilities
            of success are wrong as often.
    world   The observation that it imagines is the true one with this probability. Else it is that of another action
            from the same state, from where the imagined rollout then goes on; where no other action tried leads to
            something else, it is right.

All of it follows from the text, goal and transcript: the same question gets the same answer, and whoever reads an
imagined transcript later finds the state again. A step whose observation neither the action nor that error explains
leaves the state as it is, as thoughts do. Notes are not read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nlrl_jax.config import OptionError, assignments, check, option
from nlrl_jax.roles.dialogues import BAD, GOOD, PROBABILITY, THINK, UNKNOWN, VERDICT, History, Step
from nlrl_jax.types import Chat, HostGame, Outcome, Reply, Sampling, Score, check_stop, cut

_LEAST = 1e-4  # of a probability, so that a rate of 1 has a finite log-odds
_UNLIKELY = 1e-6  # probability of an action that the model does not think of
_OTHERS = 9  # other actions it thinks of where any text is one
_TRIED = 3  # other actions tried for a wrong observation
_AHEAD = 50  # steps that the expert plays on to see whether it succeeds
_PLACES = 50_000  # transcripts whose states are kept
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
            f"The model is no language model: it is {game}'s own expert, which knows the true state. Its actions are "
            f"right with probability {self.prior:g}, its verdicts with {self.critic:g} and the observations that it "
            f"imagines with {self.world:g}."
        )


@dataclasses.dataclass(eq=False)
class Place:
    """Where a transcript has led: the true state, as far as the transcript tells.

    Attributes:
      key: of the transcript; draws follow from it. task: of the episode.
      over, won: the episode is over, and won. shown: the last observation is what the last action leads to.
      seen: the last observation of the game. idle: the last action could not be carried out or changed nothing.
      taken: all actions so far, each once.
      move, left: the expert's action here and its number of steps to success, inf without; None until asked for.
    """

    key: str
    task: tuple[str, int]
    state: Any
    seen: str
    over: bool = False
    won: bool = False
    shown: bool = True
    idle: bool = False
    taken: tuple[str, ...] = ()
    move: str | None = None
    left: float | None = None

    def then(self, key: str, action: str, outcome: Outcome | None, shown: bool = True) -> Place:
        """The place after an action; where nobody knows what it led to (None), the state stays."""
        taken = self.taken if action in self.taken else (*self.taken, action)
        if outcome is None:
            return dataclasses.replace(self, key=key, shown=False, idle=True, taken=taken)
        seen = _plain(outcome.observation)
        idle = not outcome.valid or seen == self.seen
        return Place(key, self.task, outcome.state, seen, outcome.done, outcome.success, shown, idle, taken)


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
    """A step to judge: the place before it, the action, and the place after it."""

    before: Place
    action: str
    after: Place


class Expert:
    """The language model; see the module. Threads may share it.

    Args:
      game: with an `expert`. Its `simulator`, if it has one, is what the model steps.
      rates: how often it is right.
    """

    can_score = True

    def __init__(self, game: HostGame, rates: Rates = Rates()):
        if not game.expert:
            raise ValueError(f"{game.name} has no expert, which the model `expert` asks; give a language model")
        self.game, self.rates = game.simulator or game, rates
        self._expert = self.game.expert or game.expert
        self._optimal = self.game.optimal or game.optimal
        self._commands = self.game.commands or game.commands
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._paths: dict[tuple[str, int], tuple[str, ...]] = {}
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self._lock = threading.RLock()

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Only actions are drawn at a temperature; all else is the same at any."""
        check_stop(stop)
        with self._lock:
            places, replies = self.find([chat.context["history"] for chat in chats]), []
            asked = [_Question.of(chat) for chat in chats]
            self._foresee(zip(asked, places, strict=True))
            for i, (chat, question, place) in enumerate(zip(chats, asked, places, strict=True)):
                drawn = f"{seed}/{i}" if sampling.temperature > 0 else ""
                text = self._answer(question, place, drawn, sampling.temperature)
                replies.append(cut(Reply(f" {text}", _tokens(chat), _length(text)), stop))
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`. Of two words after "This step is" the first one is the positive one."""
        with self._lock:
            places = self.find([chat.context["history"] for chat in chats])
            asked = [_Question.of(chat) for chat in chats]
            self._foresee(zip(asked, places, strict=True))
            rows = []
            for chat, question, place, texts in zip(chats, asked, places, continuations, strict=True):
                if question.line == "Action:":
                    policy = self.policy(place, question.goal)
                    chances = [policy.get(text.strip(), _UNLIKELY) for text in texts]
                else:
                    good = self._said(question, place)
                    chances = [good, 1 - good, *[_UNLIKELY] * len(texts)][: len(texts)]
                first, *rest = [
                    Score(math.log(max(p, _UNLIKELY)), _length(text)) for p, text in zip(chances, texts, strict=True)
                ]
                rows.append([first._replace(prompt_tokens=_tokens(chat)), *rest])
        return rows

    def _answer(self, asked: _Question, place: Place, drawn: str, temperature: float) -> str:
        """The rest of a line, without the blank before it."""
        line, rng = asked.line, _rng(place.key, asked.goal, asked.line)
        if line == "Action:":
            policy = self.policy(place, asked.goal)
            action = max(policy, key=policy.get)
            if drawn:
                weights = [p ** (1 / temperature) for p in policy.values()]
                action = _rng(place.key, asked.goal, drawn).choices(list(policy), weights)[0]
            return f"<action>{action}</action>" if asked.tagged else action
        if line == "Observation:":
            return " ".join(self._imagined(place, asked.action).observation.split())
        right = rng.random() < self.rates.critic
        if line == "Critic:":
            return f"{VERDICT} {self._verdict(asked, place)}."
        if line.endswith(PROBABILITY):
            return f"{self._said(asked, place):.2f}."
        if line.endswith(VERDICT):
            return f"{self._verdict(asked, place)}."
        if line == "Reward:":
            return str(int(place.won == right))
        if line == "Value:":
            done = self._done(place)
            shown = done if right else rng.choice([n for n in range(_QUARTERS + 1) if n != done])
            return f"The value is {shown}/{_QUARTERS}."
        return f"The next action is {max(policy := self.policy(place, asked.goal), key=policy.get)}."

    def policy(self, place: Place, goal: str = "") -> dict[str, float]:
        """Action -> pi(action | transcript); the favourite, which it writes, is the first of the largest."""
        right, others = self._options(place)
        rng, p = _rng(place.key, goal, "policy"), self.rates.prior
        rng.shuffle(others)
        ordered = [right, *others]
        if others and rng.random() >= p:
            ordered[0], ordered[1] = ordered[1], ordered[0]
        share = max((1 - p) / max(len(others), 1), _UNLIKELY)
        chances = {action: share for action in ordered} | {ordered[0]: max(p, _UNLIKELY) if others else 1.0}
        rest = list(chances.items())[1:]
        rng.shuffle(rest)
        # Equal chances in an order of their own, so that "the best n" leave out any of them.
        tilted = {action: chance * (1 - 1e-6 * n) for n, (action, chance) in enumerate(rest)}
        return {ordered[0]: chances[ordered[0]], **tilted}

    def _verdict(self, asked: _Question, place: Place) -> str:
        said = self._said(asked, place)
        return UNKNOWN if said == 0.5 else GOOD if said > 0.5 else BAD

    def _said(self, asked: _Question, place: Place) -> float:
        """P(GOOD) of the last step, or of the action that the line begins with."""
        step = self._judged(asked, place)
        if step is None:
            return 0.5
        rng = _rng(step.before.key, step.action, step.after.key, asked.goal, "critic")
        is_right, truth, rate = rng.random() < self.rates.critic, self._truth(step), self.rates.critic
        if truth == UNKNOWN and is_right:
            return 0.5
        says = rng.random() < 0.5 if truth == UNKNOWN else (truth == GOOD) == is_right
        sure = min(max(rate, 0.5 + _LEAST), 1 - _LEAST) if rate >= 0.5 else max(rate, _LEAST)
        return sure if says else 1 - sure

    def _judged(self, asked: _Question, place: Place) -> _Step | None:
        """The step that a line of the critic is about; None before the first."""
        if asked.action:
            (outcome,) = self._step([place], [asked.action])
            return _Step(place, asked.action, place.then(f"{place.key}/{asked.action}", asked.action, outcome))
        steps = _steps(asked.history)
        if not steps:
            return None
        (before,) = self.find([dataclasses.replace(asked.history, steps=tuple(steps[:-1]), past=())])
        return _Step(before, steps[-1].action, place)

    def _truth(self, step: _Step) -> str:
        """GOOD, UNKNOWN or BAD; see the module: `critic`."""
        if step.after.won:
            return GOOD
        if step.after.shown and not step.before.over and step.action == self._move(step.before):
            return GOOD
        after, before = self._left([step.after, step.before])
        if after == before < math.inf and not step.after.idle:
            return UNKNOWN
        return GOOD if after < before else BAD

    def _done(self, place: Place) -> int:
        """Quarters of the way from the beginning of the task that lie behind; all of them if it is won."""
        if place.won:
            return _QUARTERS
        (start,) = self.find([History("", "", task=place.task)])
        whole, left = self._left([start, place])
        if math.isinf(whole) or math.isinf(left):
            return 0
        return min(_QUARTERS - 1, max(0, int(_QUARTERS * (whole - left) / max(whole, 1))))

    def _options(self, place: Place) -> tuple[str, list[str]]:
        """The expert's action, and the others that the model thinks of."""
        right = self._move(place)
        if self.game.actions:
            return right, [action for action in self.game.actions if action != right]
        own = self._commands(place.state) if self._commands and not place.over else ()
        pool = list(dict.fromkeys([*own, *(self._path(place.task) if not own else ()), *place.taken]))
        others = [action for action in pool if action != right]
        return right, _rng(place.key, "pool").sample(others, min(_OTHERS, len(others)))

    def _path(self, task: tuple[str, int]) -> tuple[str, ...]:
        """The expert's own episode: its actions."""
        if task not in self._paths:
            (start,) = self.find([History("", "", task=task)])
            self._paths[task] = tuple(self._play_on([start])[0])
        return self._paths[task]

    def _move(self, place: Place) -> str:
        if place.move is None:
            place.move = (self.game.actions or ("nothing",))[0] if place.over else self._expert(place.state)
        return place.move

    def _left(self, places: Sequence[Place]) -> list[float]:
        """Steps that the expert needs to success; inf where it has none."""
        open_ = [place for place in places if place.left is None]
        for place in open_:
            if place.over:
                place.left = 0.0 if place.won else math.inf
            elif self._optimal:
                steps = self._optimal(place.state)
                place.left = math.inf if steps is None or steps < 0 else float(steps)
        open_ = [place for place in open_ if place.left is None]
        if open_:
            self._play_on(open_)
        return [place.left for place in places]

    def _play_on(self, places: Sequence[Place]) -> list[list[str]]:
        """The expert's actions from each place; notes how many it needs to success."""
        states = [place.state for place in places]
        actions: list[list[str]] = [[] for _ in places]
        going = [i for i, place in enumerate(places) if not place.over]
        for place in places:
            place.left = math.inf if not place.won else 0.0
        for _ in range(min(_AHEAD, self.game.max_steps)):
            if not going:
                break
            moves = [self._expert(states[i]) for i in going]
            outcomes = self.game.step([states[i] for i in going], moves)
            for i, move, outcome in zip(going, moves, outcomes, strict=True):
                states[i] = outcome.state
                actions[i].append(move)
                if outcome.success:
                    places[i].left = float(len(actions[i]))
            going = [i for i, outcome in zip(going, outcomes, strict=True) if not outcome.done]
        return actions

    def _foresee(self, asked: Iterable[tuple[_Question, Place]]) -> None:
        """Computes in batches what the answers will read: outcomes of actions, and steps to success."""
        pairs = list(asked)
        pending = [(question, place) for question, place in pairs if question.action]
        self._step([place for _, place in pending], [question.action for question, _ in pending])
        self._mistakes([(place, q.action) for q, place in pending if q.line == "Observation:"])
        if self._optimal:
            return
        steps = [self._judged(q, place) for q, place in pairs if q.is_critic]
        asked_for = [step for step in steps if step and step.action != self._move(step.before)]
        self._left([place for step in asked_for for place in (step.before, step.after)])

    def find(self, histories: Sequence[History]) -> list[Place]:
        """The place of each history, found again step by step from the longest beginning that is known.

        Raises:
          ValueError: a history without its task.
        """
        rows = []
        for history in histories:
            if history.task is None:
                raise ValueError("the model `expert` reads histories that begin at a task, as `host_games.play` makes")
            steps, task = _steps(history), tuple(history.task)
            keys = [_digest(repr(task))]
            for step in steps:
                keys.append(_digest(keys[-1], step.action, _plain(step.observation)))
            known = next((n for n in range(len(steps), -1, -1) if keys[n] in self._places), -1)
            rows.append([task, steps, keys, known])
        fresh = list({row[0]: row for row in rows if row[3] < 0}.values())
        if fresh:
            for row, start in zip(fresh, self.game.reset([row[0] for row in fresh]), strict=True):
                self._keep(Place(row[2][0], row[0], start.state, _plain(start.observation)))
        found = [self._places[row[2][max(row[3], 0)]] for row in rows]
        at = [max(row[3], 0) for row in rows]
        while going := [i for i, row in enumerate(rows) if at[i] < len(row[1])]:
            self._advance([(found[i], rows[i][1][at[i]], rows[i][2][at[i] + 1]) for i in going])
            for i in going:
                at[i] += 1
                found[i] = self._places[rows[i][2][at[i]]]
        for place in found:
            self._places.move_to_end(place.key)
        while len(self._places) > max(_PLACES, 2 * len(found)):
            self._places.popitem(last=False)
        return found

    def _advance(self, steps: Sequence[tuple[Place, Step, str]]) -> None:
        """Keeps the place after each step: (place before, step, key of the place after)."""
        steps = [one for one in {key: (place, step, key) for place, step, key in steps}.values()]
        outcomes = self._step([place for place, _, _ in steps], [step.action for _, step, _ in steps])
        same = [
            outcome is not None and _plain(outcome.observation) == _plain(step.observation)
            for outcome, (_, step, _) in zip(outcomes, steps, strict=True)
        ]
        odd = [(place, step.action) for ok, (place, step, _) in zip(same, steps, strict=True) if not ok]
        mistakes = iter(self._mistakes(odd))
        for ok, outcome, (place, step, key) in zip(same, outcomes, steps, strict=True):
            if not ok:
                outcome = next(mistakes)
                if outcome is not None and _plain(outcome.observation) != _plain(step.observation):
                    outcome = None
            self._keep(place.then(key, step.action, outcome, ok))

    def _imagined(self, place: Place, action: str) -> Outcome:
        """What the model imagines after an action."""
        (outcome,) = self._step([place], [action])
        (mistake,) = self._mistakes([(place, action)])
        return mistake or outcome or Outcome(place.state, "Nothing happens.")

    def _mistakes(self, pairs: Sequence[tuple[Place, str]]) -> list[Outcome | None]:
        """What another action leads to where the imagination of (place, action) is wrong; None where it is right."""
        wrong: list[list[str]] = []
        for place, action in pairs:
            is_wrong = _rng(place.key, action, "world").random() >= self.rates.world
            tried: list[str] = []
            if is_wrong and not place.over:
                right, others = self._options(place)
                pool = sorted(one for one in (right, *others) if one != action)
                tried = _rng(place.key, action, "other").sample(pool, min(_TRIED, len(pool)))
            wrong.append(tried)
        flat = [(place, one) for (place, _), row in zip(pairs, wrong, strict=True) for one in row]
        outcomes = iter(self._step([place for place, _ in flat], [one for _, one in flat]))
        truths = self._step([place for place, _ in pairs], [action for _, action in pairs])
        result = []
        for truth, row in zip(truths, wrong, strict=True):
            found = [next(outcomes) for _ in row]
            differs = lambda one, truth=truth: truth is None or _plain(one.observation) != _plain(truth.observation)
            result.append(next((one for one in found if one is not None and differs(one)), None))
        return result

    def _step(self, places: Sequence[Place], actions: Sequence[str]) -> list[Outcome | None]:
        """What each action leads to; None where the episode is over."""
        due = {}
        for place, action in zip(places, actions, strict=True):
            if not place.over and (place.key, action) not in self._outcomes:
                due[place.key, action] = place.state
        if due:
            made = self.game.step(list(due.values()), [action for _, action in due])
            self._outcomes.update(zip(due, made, strict=True))
        found = [None if p.over else self._outcomes[p.key, a] for p, a in zip(places, actions, strict=True)]
        while len(self._outcomes) > _PLACES:
            self._outcomes.pop(next(iter(self._outcomes)))
        return found

    def _keep(self, place: Place) -> None:
        self._places[place.key] = place


def _steps(history: History) -> list[Step]:
    """All steps of an episode but thoughts, which change nothing."""
    return [step for step in (*history.past, *history.steps) if not step.action.startswith(THINK)]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _rng(*texts: str) -> random.Random:
    """Randomness that follows from texts."""
    return random.Random(_digest(*texts))


def _tokens(chat: Chat) -> int:
    return sum(_length(message["content"]) for message in chat.messages)


def _length(text: str) -> int:
    return -(-len(text) // _CHARACTERS)
