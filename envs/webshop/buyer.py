"""A buyer who knows the catalogue and what the instruction asks for: the expert move in every state of the shop."""

from __future__ import annotations

import functools
import re

from nlrl_jax.envs.webshop import engine, reward
from nlrl_jax.envs.webshop.catalogue import Goal, Product
from nlrl_jax.envs.webshop.engine import BACK, BUY, NEXT, PAGE, PREVIOUS, SHOWN, Shop, ShopState

WON = 1 - 1e-9  # a score from here on is 1
_NEAR = 2  # pages: to one further away, a new search is shorter


def wanted_options(goal: Goal, product: Product) -> list[str]:
    """Returns for each choice of a product the value that the goal asks for, where it has one."""
    rows = ([value for value in values if reward.options_met([value], goal.options)] for _, values in product.options)
    return [row[0] for row in rows if row]


class Buyer:
    """Searches with words that find a fitting product, opens it, chooses its options and buys it."""

    def __init__(self, shop: Shop):
        self.shop = shop
        self._score = functools.lru_cache(1 << 16)(self._best_score)
        self.query = functools.lru_cache(1 << 12)(self._query)

    def fits(self, goal: Goal, asin: str) -> bool:
        """Whether a product can be bought with a score of 1, or with the most that the goal's own product gets."""
        return self._score(goal, asin) >= min(WON, self._score(goal, goal.product.asin))

    def act(self, state: ShopState) -> str:
        """Returns the next action."""
        goal = state.goal
        if state.page == engine.SEARCH:
            return f"search[{self.query(goal)}]"
        if state.page == engine.RESULTS:
            return self._choose(state)
        if state.page == engine.SUB or not self.fits(goal, state.asin):
            return f"click[{PREVIOUS}]"
        chosen = [value for _, value in state.options]
        missing = [value for value in wanted_options(goal, self.shop.products[state.asin]) if value not in chosen]
        return f"click[{missing[0] if missing else BUY}]"

    def _best_score(self, goal: Goal, asin: str) -> float:
        product = self.shop.products[asin]
        return self.shop.score(goal, product, wanted_options(goal, product))

    def _shown(self, goal: Goal, hits: tuple[str, ...]) -> list[tuple[int, str]]:
        """Lists (page of results, id) of the fitting products that a page shows."""
        return [(i // PAGE + 1, asin) for i, asin in enumerate(hits) if i % PAGE < SHOWN and self.fits(goal, asin)]

    def _choose(self, state: ShopState) -> str:
        fitting = self._shown(state.goal, state.hits)
        page, asin = min(fitting, key=lambda hit: abs(hit[0] - state.number), default=(0, ""))
        if not fitting or abs(page - state.number) > _NEAR:
            return f"click[{BACK}]"
        if page == state.number:
            return f"click[{asin}]"
        return f"click[{NEXT if page > state.number else PREVIOUS}]"

    def _query(self, goal: Goal) -> str:
        """Picks the first of a few queries that shows a fitting product on its first page, else on the earliest one."""
        words = re.findall(r"[\w'-]+", re.sub(r",? and price lower than .*", "", goal.instruction))
        product = goal.product
        kind = product.query or product.title
        queries = [words, [*goal.attributes, kind], [kind, *goal.options], [product.title]]
        queries = [" ".join(" ".join(query).translate(_UNBRACKETED).split()) for query in queries]

        def first_page(query: str) -> int:
            return min((page for page, _ in self._shown(goal, self.shop.search(query))), default=PAGE)

        return min(queries, key=first_page)


_UNBRACKETED = str.maketrans("[]", "  ")  # they delimit an action
