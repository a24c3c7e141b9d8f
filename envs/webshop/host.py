"""WebShop as a game of the host, for LAC and other planners."""

from __future__ import annotations

import random
from collections.abc import Sequence

from envs.webshop import catalogue, demonstrations, engine
from envs.webshop.shopper import Shopper
from nlrl_jax.types import HostGame, Outcome, Start

RULES = (
    "You shop on a website for a product that fits an instruction, choose its options and buy it. A page is shown as "
    "text; what stands in brackets can be clicked, and options that are chosen stand in double brackets.\n"
    "Actions: search[words] on the page with [Search]; click[button] for a button of the page, such as "
    "click[Back to Search], click[Next >], a product's id, an option, click[Features] or click[Buy Now]. Buying ends "
    "the visit. The score is the share of what was asked for that the purchase has: attributes, options, and a price "
    "below the limit."
)
MAX_STEPS = 15
WON = 1 - 1e-9


def host_game(max_steps: int = MAX_STEPS, data: str = "") -> HostGame:
    """WebShop (LAC, appendix C.1.3): any text is an action, the reward is the shop's score, success is a score of 1.

    Args:
      max_steps: horizon; the paper's is 15. An episode without a purchase scores 0.
      data: a folder with WebShop's files; empty: our own catalogue. Errors: see `catalogue.load`.
    """
    shop_data = catalogue.load(data)
    shop, goals = engine.Shop(shop_data), shop_data.tasks

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        states = [engine.State(goals[_draw(seed, len(goals))]) for _, seed in tasks]
        return [Start(state, state.goal.instruction, shop.observe(state)) for state in states]

    def step(states: Sequence[engine.State], actions: Sequence[str]) -> list[Outcome]:
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
        examples=lambda label, number: demonstrations.examples(shop, shop_data.demonstrations, label, number),
        score="score",
        reversible=True,
        scripted=Shopper,
    )


def _draw(seed: int, number: int) -> int:
    """The instruction of a task: any `number` seeds in a row from a multiple of it give all of them."""
    order = list(range(number))
    random.Random(f"order {seed // number}").shuffle(order)
    return order[seed % number]
