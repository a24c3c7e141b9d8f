"""The shop as pure steps: pages, buttons and purchases, in the text form of ReAct's WebShop.

A state is a value, so an earlier one can be stepped again. As in ReAct a page of ten results shows three, searching
works on the search page alone, and an action that is not possible leaves everything as it was ("Invalid action!").
Unlike there, `Next >` works, and a page is one line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nlrl_jax.envs.webshop import reward
from nlrl_jax.envs.webshop.catalogue import Catalogue, Goal, Product, line
from nlrl_jax.envs.webshop.search import Index, document
from nlrl_jax.roles.actions import unwrapped

PAGE, SHOWN = 10, 3
SEARCH, RESULTS, ITEM, SUB, DONE = "search", "results", "item", "sub", "done"
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUBPAGES = ("Description", "Features", "Reviews")
INVALID = "Invalid action!"
SCORE = "Your score (min 0.0, max 1.0):"
_ACTION = re.compile(r"(search|click)\s*\[(.+)\]", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class ShopState:
    """Where a shopper is.

    Attributes:
      goal: the instruction to fulfil.
      page: SEARCH, RESULTS, ITEM, SUB (a page of SUBPAGES) or DONE.
      hits: ids of the results, best first. number: of the page of results, from 1.
      asin: of the product that is looked at. options: (name, value) chosen. sub: one of SUBPAGES.
    """

    goal: Goal
    page: str = SEARCH
    hits: tuple[str, ...] = ()
    number: int = 1
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub: str = ""


class Moved(NamedTuple):
    """What an action led to. reward: of the purchase, else 0. valid: whether the action was possible."""

    state: ShopState
    observation: str
    reward: float = 0.0
    valid: bool = True


class Shop:
    """A catalogue with its search; `step` changes nothing in it.

    Args:
      nouns: finds those of a title, for the reward.
    """

    def __init__(self, catalogue: Catalogue, nouns: Callable[[str], list[str]] = reward.nouns):
        self.products, self._nouns = catalogue.products, nouns
        self._ids = list(catalogue.products)
        self._index = Index([document(product) for product in catalogue.products.values()], self._ids)

    def observe(self, state: ShopState) -> str:
        """Writes a page as one line."""
        if state.page == SEARCH:
            return "[Search]"
        parts = [f"[{BACK}]"]
        if state.page == RESULTS:
            parts.append(f"Page {state.number} (Total results: {len(state.hits)})")
            parts += [f"[{button}]" for button in self._turns(state)]
            for asin in self._on_page(state)[:SHOWN]:
                product = self.products[asin]
                parts += [f"[{asin}]", line(product.title), product.price_tag]
            return " ".join(parts)
        parts.append(f"[{PREVIOUS}]")
        product = self.products[state.asin]
        if state.page == SUB:
            return " ".join([*parts, _subpage(product, state.sub)])
        chosen = dict(state.options)
        for name, values in product.options:
            buttons = (f"[[{value}]]" if chosen.get(name) == value else f"[{value}]" for value in values)
            parts += [f"{name} {''.join(buttons)}"] if values else []
        parts += [line(product.title), f"Price: {product.price_tag}", "Rating: N.A."]
        return " ".join([*parts, *(f"[{name}]" for name in SUBPAGES), f"[{BUY}]"])

    def score(self, goal: Goal, product: Product, chosen: Sequence[str]) -> float:
        """Scores buying a product with these options."""
        return reward.score(goal, product, chosen, self._nouns)

    def search(self, query: str) -> tuple[str, ...]:
        """Returns the ids of the products that a query finds, best first."""
        return tuple(self._ids[i] for i in self._index.search(query))

    def step(self, state: ShopState, action: str) -> Moved:
        """Carries out an action in words; an episode that is over stays so."""
        match = next(filter(None, map(_ACTION.fullmatch, unwrapped(action))), None)
        argument = " ".join(match[2].split()) if match else ""
        if not argument:
            return Moved(state, INVALID, valid=False)
        if match[1].lower() == "search":
            if state.page != SEARCH:
                return Moved(state, INVALID, valid=False)
            return self._show(ShopState(state.goal, RESULTS, self.search(argument)))
        return self._click(state, argument.lower())

    def _click(self, state: ShopState, button: str) -> Moved:
        """Follows a button of the page that is shown; other buttons change nothing."""
        page, go = state.page, lambda **changes: self._show(dataclasses.replace(state, **changes))
        if page in (RESULTS, ITEM, SUB) and button == BACK.lower():
            return self._show(ShopState(state.goal))
        if page == RESULTS:
            turns = [turn.lower() for turn in self._turns(state)]
            if button in turns:
                return go(number=state.number + (1 if button == NEXT.lower() else -1))
            for asin in self._on_page(state):
                if button == asin.lower():
                    return go(page=ITEM, asin=asin)
        if page == SUB and button == PREVIOUS.lower():
            return go(page=ITEM, sub="")
        if page == ITEM:
            if button == PREVIOUS.lower():
                return go(page=RESULTS, asin="", options=())
            if button == BUY.lower():
                chosen = [value for _, value in state.options]
                score = self.score(state.goal, self.products[state.asin], chosen)
                return Moved(dataclasses.replace(state, page=DONE), f"{SCORE} {score:.3g}", score)
            for name in SUBPAGES:
                if button == name.lower():
                    return go(page=SUB, sub=name)
            for name, values in self.products[state.asin].options:
                if button in values:
                    options = tuple({**dict(state.options), name: button}.items())
                    return Moved(dataclasses.replace(state, options=options), f"You have clicked {button}.")
        return Moved(state, INVALID, valid=False)

    def _show(self, state: ShopState) -> Moved:
        return Moved(state, self.observe(state))

    def _on_page(self, state: ShopState) -> tuple[str, ...]:
        return state.hits[(state.number - 1) * PAGE : state.number * PAGE]

    def _turns(self, state: ShopState) -> list[str]:
        """Lists the buttons that turn the page of results."""
        has_next = len(state.hits) > state.number * PAGE
        return [PREVIOUS] * (state.number > 1) + [NEXT] * has_next


def _subpage(product: Product, name: str) -> str:
    texts = {"Description": (product.description,), "Features": product.bullets, "Reviews": product.reviews}[name]
    return line(" ".join(texts)) or f"No {name.lower()}."
