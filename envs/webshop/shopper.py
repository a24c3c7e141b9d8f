"""A language model by rule that shops on WebShop: it knows nothing but the text of the transcript it continues.

It has habits and judgement. Its habits (the prior over actions) like the first result and buying soon, with a leaning
in each situation that no reading corrects. Its judgement compares what a page says with the words of the instruction,
so a critic can catch what the habits get wrong; it errs too, about how much and where follows from the text as well.
What it imagines is a page that says what the goal says: a shop that has what one wants.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import re
from collections.abc import Sequence
from statistics import NormalDist

from envs.webshop.engine import BACK, BUY, INVALID, NEXT, PREVIOUS, SCORE, SHOWN, SUBPAGES
from envs.webshop.reading import Item, Reading, View, read, stems
from nlrl_jax.roles import by_rule
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT
from nlrl_jax.types import Chat, Reply, Sampling, Score

_NORMAL = NormalDist()


@dataclasses.dataclass(frozen=True)
class Shopper:
    """A language model whose replies follow from the text of the open message alone.

    Attributes:
      leaning: standard deviation of what the habits add to an action's logit in a situation.
      error: standard deviation of what the judgement adds to a step's quality.
    """

    leaning: float = 1.0
    error: float = 0.7
    can_score: bool = dataclasses.field(default=True, init=False)

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Actions are drawn from the prior where the temperature is above 0."""
        replies = []
        for i, chat in enumerate(chats):
            rng = random.Random(f"{seed} {role} {i}")
            text = f" {self._write(read(chat.messages[-1]['content']), sampling.temperature, rng)}"
            replies.append(by_rule.reply(chat, text, stop))
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`: log-probabilities of actions, and of GOOD and BAD behind "This step is"."""
        rows = []
        for chat, texts in zip(chats, continuations, strict=True):
            known = read(chat.messages[-1]["content"])
            if known.line == "Action:":
                table = {f" {action}": value for action, value in self.prior(known).items()}
            else:
                good = self._judgement(known)
                table = by_rule.verdicts(good)
            rows.append(by_rule.scores(chat, texts, table, unlikely=-20.0))
        return rows

    def prior(self, known: Reading) -> dict[str, float]:
        """Actions and their log-probabilities, the habits of this shopper."""
        view = known.view
        logits, here = _habits(known), _situation(view)
        again = sum(_situation(earlier) == here for earlier in known.views)  # another leaning on each visit
        for action in logits:
            logits[action] += self.leaning * _noise(known.instruction, here, str(again), action)
        top = max(logits.values())
        total = top + math.log(sum(math.exp(value - top) for value in logits.values()))
        return {action: value - total for action, value in logits.items()}

    def quality(self, known: Reading, view: View, action: str, after: View) -> float:
        """How good a step is, about -3 to 3."""
        return _quality(known, view, action, after) + self.error * _noise(
            known.instruction, _situation(view), action, "q"
        )

    def _judgement(self, known: Reading) -> float:
        """The logit of GOOD for the last step, or for the pending one, whose observation is imagined."""
        if known.pending:
            after = known.view.after(known.pending, _imagined(known, known.pending))
            return self.quality(known, known.view, known.pending, after)
        if not known.actions:
            return 0.0
        return self.quality(known, known.views[-2], known.actions[-1], known.view)

    def _write(self, known: Reading, temperature: float, rng: random.Random) -> str:
        line = known.line.split(":")[0]
        if line == "Action":
            prior = self.prior(known)
            if not temperature:
                return max(prior, key=prior.get)
            return rng.choices(list(prior), [math.exp(value / temperature) for value in prior.values()])[0]
        if line == "Observation":
            return _imagined(known, known.pending)
        if known.line.rstrip().endswith("is"):  # the probability of success
            return f"{100 / (1 + math.exp(-self._judgement(known))):.0f}%"
        if line == "Critic":
            value = self._judgement(known)
            word = GOOD if value > 1 else BAD if value < -1 else UNKNOWN
            return f"{_told(known)} {VERDICT} {word}."
        if line == "Reward":
            return "1" if known.view.page == "done" and known.view.score > 0.99 else "0"
        if line == "Value":
            return f"{_told(known)} The value is {10 * _progress(known):.0f}/10."
        if line == "Thought":
            return f"{_told(known)} Next I look for what is still missing."
        item = known.view.item  # a reflection on a failed attempt
        return f"{item.asin} got {known.view.score:.2f}; try another product." if item else "I should buy something."


def _noise(*texts: str) -> float:
    """A number from a standard normal distribution that follows from texts."""
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**64)


def _situation(view: View) -> str:
    item = view.item
    return f"{view.page} {view.results} {item.asin if item else ''} {len(item.chosen) if item else len(view.queries)}"


def _asked(known: Reading, item: Item) -> list[str]:
    """Of each choice of a product the value that the instruction names, the longest if several."""
    found = []
    for _, values in item.choices:
        named = [value for value in values if re.search(rf"\b{re.escape(value)}\b", known.instruction.lower())]
        found += [max(named, key=len)] if named else []
    return found


def _covered(known: Reading, item: Item) -> float:
    """The share of the instruction's words that an item's text and the choices asked for account for."""
    names = [name for name, _ in item.choices]
    words = stems(" ".join([item.text, *names, *_asked(known, item)]))
    return len(known.wanted & words) / max(len(known.wanted), 1)


def _unread(item: Item) -> bool:
    return not {"Features", "Description"} <= item.read


def _habits(known: Reading) -> dict[str, float]:
    """Logits of the prior, without its leanings."""
    view, seen = known.view, dict(known.view.seen)
    logits: dict[str, float] = {}
    if view.page == "search":
        words = [word for word in re.findall(r"[\w'-]+", known.instruction.lower()) if stems(word)]
        queries = [words, words[: -(-len(words) // 2)], words[len(words) // 2 :], words[2:], words[:-2]]
        for i, query in enumerate(queries):
            text = " ".join(query) or "shop"
            logits.setdefault(f"search[{text}]", (2.0 if i == 0 else 0.0) - 3.0 * (text in view.queries))
        return logits
    for button in view.buttons():
        logits[f"click[{button}]"] = -3.0
    habit = lambda button, value: logits.update({f"click[{button}]": value})
    habit(BACK, -2.0)
    if view.page == "results":
        for rank, one in enumerate(view.shown):
            refused = one.asin in seen or one.asin in known.advice
            habit(one.asin, 2.0 - 1.0 * rank + 2.0 * _covered(known, one) - 2.5 * refused)
        fresh = sum(one.asin not in seen for one in view.shown)
        if f"[{NEXT}]" in view.results:
            habit(NEXT, -1.0 + (0.0 if fresh else 2.0))
        habit(BACK, -1.5 + (0.0 if fresh else 1.5))
    elif view.page == "item":
        asked = _asked(known, view.item)
        left = [value for value in asked if value not in view.item.chosen]
        for value in left:
            habit(value, 1.2)
        habit(BUY, 1.2 if left else 2.2)
        for name in SUBPAGES:
            habit(name, (-2.5 if name in view.item.read else {"Features": -0.2, "Description": -0.6}.get(name, -1.5)))
        habit(PREVIOUS, -0.8 + (3.0 if known.verdict == BAD else 0.0))
    elif view.page == "sub":
        habit(PREVIOUS, 2.0)
    return logits


def _quality(known: Reading, view: View, action: str, after: View) -> float:
    """How good a step is by the words of the pages."""
    button = action.partition("[")[2].rstrip("]")
    item = after.item
    if after.failed:
        return -2.5
    if action.startswith("search"):
        return 1.5 if after.shown and button not in view.queries else -1.0
    if after.page == "done":
        return _fit(known, view.item) if view.item else 0.0
    if item and button.upper() == item.asin:
        if item.price > known.limit:
            return -2.0
        best = max((_covered(known, one) for one in view.shown if one.price <= known.limit), default=0.0)
        again = item.asin in dict(view.seen) or item.asin in known.advice
        return (1.2 if _covered(known, item) >= best else -0.3) - 2.0 * again
    if after.page == "item" and button.lower() in item.chosen:
        return 2.0 if button.lower() in _asked(known, item) and button.lower() not in view.item.chosen else -1.5
    if after.page == "sub":
        fresh = button.title() not in view.item.read and button.title() != "Reviews"
        return 1.3 if fresh and _covered(known, view.item) < 1 else -1.0
    if button == PREVIOUS and view.page == "item":
        return -_fit(known, view.item)
    if button == PREVIOUS and view.page == "sub":
        return 1.0
    left = [one for one in view.shown if one.asin not in dict(view.seen) and one.price <= known.limit]
    return -0.8 if left or view.item else 0.8


def _fit(known: Reading, item: Item) -> float:
    """How good it is to buy an item as it is."""
    left = [value for value in _asked(known, item) if value not in item.chosen]
    missing = 1.0 - _covered(known, item)
    doubt = 0.5 if _unread(item) else 1.0
    return 2.2 - 1.8 * len(left) - 8.0 * missing * doubt - 3.5 * (item.price > known.limit)


def _progress(known: Reading) -> float:
    """The share of the way to a good purchase."""
    view = known.view
    if view.page == "done":
        return view.score
    if view.item:
        asked = _asked(known, view.item)
        chosen = sum(value in view.item.chosen for value in asked) / len(asked) if asked else 1.0
        return 0.2 + (0.5 * _covered(known, view.item) + 0.3 * chosen) * (view.item.price <= known.limit)
    return 0.1 + 0.2 * max((_covered(known, one) for one in view.shown), default=0.0)


def _told(known: Reading) -> str:
    """What the last action did, in a sentence."""
    view = known.view
    if not known.actions:
        return "I have to search first."
    if view.failed:
        return "That was not possible."
    if view.item:
        share = f"{100 * _covered(known, view.item):.0f}% of the words fit"
        return f"I am looking at {view.item.asin}; {share}, it costs {view.item.price} dollars."
    return f"I see {len(view.shown)} products." if view.shown else "I can search again."


def _imagined(known: Reading, action: str) -> str:
    """What the shopper thinks that an action shows."""
    view = known.view
    kind, _, argument = action.strip().rstrip("]").partition("[")
    title = " ".join(re.findall(r"[\w'-]+", known.instruction)[-8:]).title()
    price = f"${min(known.limit, 50.0) * 0.7:.2f}"
    if kind == "search" and view.page == "search":
        return f"[{BACK}] Page 1 (Total results: 50) [{NEXT}] [B0IMAGINED] {title} {price}"
    button = argument.lower()
    buttons = [one.lower() for one in view.buttons()]
    if kind != "click" or button not in buttons:
        return INVALID
    if button == BACK.lower():
        return "[Search]"
    if button == NEXT.lower() or (view.page == "results" and button == PREVIOUS.lower()):
        return f"[{BACK}] Page 2 (Total results: 50) [{PREVIOUS}] [B0IMAGINED] {title} {price}"
    if button == PREVIOUS.lower():
        return view.results if view.page == "item" else _item_page(view.item)
    if button == BUY.lower():
        left = [value for value in _asked(known, view.item) if value not in view.item.chosen]
        return f"{SCORE} {max(0.0, _covered(known, view.item) - 0.2 * len(left)):.2f}"
    if argument.title() in SUBPAGES:
        missing = [word for word in re.findall(r"[\w'-]+", known.instruction) if stems(word)]
        return f"[{BACK}] [{PREVIOUS}] It is {' '.join(missing)}."
    for one in view.shown[:SHOWN]:
        if view.page == "results" and button == one.asin.lower():
            return _item_page(one)
    return f"You have clicked {argument}."


def _item_page(item: Item) -> str:
    choices = [
        f"{name} {''.join(f'[[{value}]]' if value in item.chosen else f'[{value}]' for value in values)} "
        for name, values in item.choices
    ]
    buttons = " ".join(f"[{name}]" for name in (*SUBPAGES, BUY))
    return f"[{BACK}] [{PREVIOUS}] {''.join(choices)}{item.title} Price: ${item.price} Rating: N.A. {buttons}"
