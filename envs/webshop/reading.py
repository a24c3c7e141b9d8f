"""What a reader of a WebShop transcript knows: the text alone, as a language model sees it."""

from __future__ import annotations

import dataclasses
import functools
import re

from envs.webshop.engine import BACK, BUY, INVALID, NEXT, PREVIOUS, SCORE, SUBPAGES
from envs.webshop.search import STOP, stem

_LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars")
_PRODUCT = re.compile(r"\[([A-Z0-9]{10})\] (.*?) (\$[\d.]+(?: to \$[\d.]+)?)(?= \[|$)")
_ITEM = re.compile(r"^\[Back to Search\] \[< Prev\] (.*?) ?Price: (\$\S+(?: to \$\S+)?) Rating:")
_CHOICES = re.compile(r"([^\[\]]+?) ((?:\[\[[^\[\]]+\]\]|\[[^\[\]]+\])+)(?= |$)")
_FILLERS = STOP | set(
    "i need am looking find me would like buy want something please also has have my size color".split()
)


def stems(text: str) -> frozenset[str]:
    """Stems of the words that carry meaning."""
    words = re.findall(r"[a-z0-9][a-z0-9']*", text.lower())
    return frozenset(stem(word) for word in words if word not in _FILLERS)


@dataclasses.dataclass(frozen=True)
class Item:
    """A product as far as it has been read.

    Attributes:
      asin, title, price: in dollars. choices: (name, values). chosen: values. read: names of sub-pages.
      text: the title and what was read.
    """

    asin: str
    title: str
    price: float
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    chosen: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    text: str = ""


@dataclasses.dataclass(frozen=True)
class View:
    """Where a shopper is, by the transcript.

    Attributes:
      page: "search", "results", "item", "sub" or "done". shown: products of the page of results, as items.
      results: the text of that page. item: the one that is looked at. queries: all that were searched.
      seen: items that were looked at, by id. failed: the last action was not possible. score: of the purchase.
    """

    page: str = "search"
    shown: tuple[Item, ...] = ()
    results: str = ""
    item: Item | None = None
    queries: tuple[str, ...] = ()
    seen: tuple[tuple[str, Item], ...] = ()
    failed: bool = False
    score: float = 0.0

    def buttons(self) -> list[str]:
        """What can be clicked, by the text."""
        if self.page == "results":
            turns = [turn for turn in (NEXT, PREVIOUS) if f"[{turn}]" in self.results]
            return [*(one.asin for one in self.shown), *turns, BACK]
        if self.page == "item":
            values = [value for _, row in self.item.choices for value in row]
            return [*values, *SUBPAGES, BUY, PREVIOUS, BACK]
        return [PREVIOUS, BACK] if self.page == "sub" else []

    def after(self, action: str, observation: str) -> View:
        """The view behind an action and what it showed."""
        kind, _, argument = action.strip().rstrip("]").partition("[")
        now = dataclasses.replace(self, failed=False)
        if observation.startswith(INVALID):
            return dataclasses.replace(self, failed=True)
        if observation.startswith(SCORE):
            number = re.search(r"[\d.]+$", observation)
            return dataclasses.replace(now, page="done", score=float(number[0]) if number else 0.0)
        if kind == "search":
            now = dataclasses.replace(now, queries=(*now.queries, argument))
        if observation.startswith("[Search]"):
            return dataclasses.replace(now, page="search", item=None)
        if observation.startswith("You have clicked") and now.item:
            values = next((row for _, row in now.item.choices if argument.lower() in row), ())
            chosen = (now.item.chosen - set(values)) | {argument.lower()}
            return now._with(dataclasses.replace(now.item, chosen=chosen), "item")
        if "Page " in observation[:30]:
            found = _PRODUCT.findall(observation)
            shown = tuple(Item(asin, title, _dollars(tag), text=title) for asin, title, tag in found)
            return dataclasses.replace(now, page="results", shown=shown, results=observation, item=None)
        match = _ITEM.match(observation)
        if match:
            asin = now.item.asin if now.item else argument.upper()
            return now._with(_item(asin, match, dict(now.seen).get(asin)), "item")
        if now.item and argument.title() in SUBPAGES:
            text = f"{now.item.text} {observation.partition(f'[{PREVIOUS}]')[2]}"
            return now._with(dataclasses.replace(now.item, read=now.item.read | {argument.title()}, text=text), "sub")
        return now

    def _with(self, item: Item, page: str) -> View:
        return dataclasses.replace(self, item=item, page=page, seen=tuple({**dict(self.seen), item.asin: item}.items()))


def _item(asin: str, match: re.Match, before: Item | None) -> Item:
    body, tag = match[1], match[2]
    choices, chosen, end = [], set(), 0
    for found in _CHOICES.finditer(body):
        chosen |= set(re.findall(r"\[\[([^\[\]]+)\]\]", found[2]))
        choices.append((found[1].strip(), tuple(re.findall(r"\[+([^\[\]]+)\]+", found[2]))))
        end = found.end()
    title = body[end:].strip()
    text, read = (before.text, before.read) if before else (title, frozenset())
    return Item(asin, title, _dollars(tag), tuple(choices), frozenset(chosen), read, text)


def _dollars(tag: str) -> float:
    return float(re.findall(r"[\d.]*\d", tag)[0])


@dataclasses.dataclass(frozen=True)
class Reading:
    """A transcript.

    Attributes:
      instruction: without the price. limit: dollars. wanted: stems of what is asked for. advice: on earlier attempts.
      views: the first one and one behind each action. actions: in order. verdict: of the last note, in capitals.
      pending: an action whose observation is still to come, "" without one. line: what is to be continued.
    """

    instruction: str
    limit: float
    wanted: frozenset[str]
    advice: str
    views: tuple[View, ...]
    actions: tuple[str, ...]
    verdict: str
    pending: str
    line: str

    @property
    def view(self) -> View:
        return self.views[-1]


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """A transcript as `roles.dialogues.Dialogue.text` writes it, with the line to be continued at its end."""
    lines = text.split("\n")
    goal, pending, verdict = "", "", ""
    views, actions = [View()], []
    for line in lines[:-1]:
        label, _, rest = line.partition(": ")
        if label == "Goal of the agent":
            goal = rest
        elif label == "Action":
            pending = rest.strip()
        elif label == "Observation" and pending:
            views.append(views[-1] if pending.startswith("think") else views[-1].after(pending, rest.strip()))
            actions.append(pending)
            pending, verdict = "", ""
        elif label == "Critic":
            verdict = next(iter(re.findall(r"This step is (\w+)", rest)[-1:]), "")
    instruction, _, advice = goal.partition(" Earlier attempts: ")
    limit = _LIMIT.search(instruction)
    instruction = _LIMIT.sub("", instruction)
    price = float(limit[1]) if limit else float("inf")
    return Reading(
        instruction, price, stems(instruction), advice, tuple(views), tuple(actions), verdict, pending, lines[-1]
    )
