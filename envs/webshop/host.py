"""WebShop as a game of the host, for LAC and other planners."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence

from nlrl_jax.envs import recorded
from nlrl_jax.envs.webshop import catalogue, engine, reward
from nlrl_jax.envs.webshop.buyer import WON, Buyer
from nlrl_jax.types import SEEDS_PER_RUN, HostGame, Outcome, Start

RULES = (
    "You are shopping on a website. Find a product that fits the instruction, choose its options and buy it. Pages are "
    "shown as text; anything in brackets can be clicked, and options that you have chosen are in double brackets.\n"
    "Actions: search[words] on a page with [Search]; click[button] for any button on the page, such as "
    "click[Back to Search], click[Next >], a product's id, an option, click[Features] or click[Buy Now]. Buying ends "
    "the episode. The score is the share of the requirements that your purchase meets: attributes, options, and a "
    "price below the limit."
)
MAX_STEPS = 15
_QUERY = 4  # words of a plausible search


def host_game(max_steps: int = MAX_STEPS, data: str = "", tagger: str = "") -> HostGame:
    """Makes WebShop (LAC, appendix C.1.3).

    Any text is an action; the reward is the shop's score, and success is a score of 1.

    Examples in prompts come from the built-in catalogue, also with a folder.

    Args:
      max_steps: horizon; the paper's is 15. An episode without a purchase scores 0.
      data: a folder with WebShop's files; empty: our own catalogue. Errors: see `catalogue.load`.
      tagger: spaCy model that finds the nouns for the reward; empty: a list of words. Errors: see `reward.tagged_by`.
    """
    nouns = reward.tagged_by(tagger) if tagger else reward.nouns
    shop_data = catalogue.load(data)
    shop, goals = engine.Shop(shop_data, nouns), shop_data.tasks

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        states = [engine.ShopState(goals[_draw(seed, len(goals), in_order=bool(data))]) for _, seed in tasks]
        return [Start(state, state.goal.instruction, shop.observe(state)) for state in states]

    def step(states: Sequence[engine.ShopState], actions: Sequence[str]) -> list[Outcome]:
        outcomes = []
        for state, action in zip(states, actions, strict=True):
            moved = shop.step(state, action)
            done, success = moved.state.page == engine.DONE, moved.reward >= WON
            outcomes.append(Outcome(moved.state, moved.observation, moved.reward, done, success, moved.valid))
        return outcomes

    return HostGame(
        name="webshop",
        rules=RULES,
        actions=(),
        max_steps=max_steps,
        kinds=("",),
        reset=reset,
        step=step,
        examples=functools.partial(recorded.examples, "webshop"),
        score="score",
        reversible=True,
        expert=Buyer(shop).act,
        commands=lambda state: commands(shop, state),
        limits={"": len(goals)},
    )


def commands(shop: engine.Shop, state: engine.ShopState) -> list[str]:
    """Lists what a shopper might try: the page's buttons, or searches for a few words of the instruction in a row."""
    if state.page != engine.SEARCH:
        return [f"click[{button}]" for button in re.findall(r"\[([^][]+)\]", shop.observe(state))]
    words = re.findall(r"[\w'-]+", state.goal.instruction)
    return [f"search[{' '.join(words[at : at + _QUERY])}]" for at in range(max(1, len(words) - _QUERY + 1))]


def _draw(seed: int, number: int, in_order: bool) -> int:
    """Chooses the instruction of a task.

    The first `number` tasks of a run have one each, in an order that depends on the run's seed; with the seed 0, if
    `in_order`, in their own.
    """
    run, task = divmod(seed, SEEDS_PER_RUN)
    order = list(range(number))
    if run or not in_order:
        random.Random(f"order {run}").shuffle(order)
    return order[task % number]
