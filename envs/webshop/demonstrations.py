"""Episodes of WebShop with notes, that a model reads first or is fine-tuned on (LAC, appendices B.2 and C.3).

A shopper who knows the catalogue makes them. Reflections follow the paper's four criteria: GOOD behind a step that the
purchase needs or that shows something it needs, BAD behind a useless or wrong one, UNKNOWN where the pages so far do
not decide it. Their instructions are none of the tasks'.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

from envs.webshop import catalogue, engine
from envs.webshop.buyer import WON, wanted_options
from envs.webshop.catalogue import Goal, Product
from envs.webshop.engine import BACK, BUY, PREVIOUS, SHOWN, Moved, Shop, State
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT, History, Step

_HELD_OUT_EVERY = 3  # of the instructions for demonstrations, every third is held out


class Transcript(NamedTuple):
    """An episode with notes. success: its score is 1."""

    history: History
    success: bool


def demonstrations(successes: int, failures: int, seed: int, held_out: bool = False) -> list[Transcript]:
    """Episodes in our own shop with reflections, successes first; the same arguments give the same ones.

    Args:
      successes, failures: how many.
      seed: another one gives other episodes.
      held_out: of instructions of which none is in the other set, whatever the seeds.
    """
    own = catalogue.load("")
    shop = Shop(own)
    goals = [goal for i, goal in enumerate(own.demonstrations) if (i % _HELD_OUT_EVERY == 0) == held_out]
    found: dict[bool, list[Transcript]] = {True: [], False: []}
    needed = {True: successes, False: failures}
    for number in itertools.count():
        wanted = next((kind for kind in (True, False) if len(found[kind]) < needed[kind]), None)
        if wanted is None:
            return found[True] + found[False]
        rng = random.Random(f"demonstration {seed} {number}")
        made = visit(shop, rng.choice(goals), rng, "Critic", careful=wanted)
        if made and made.success == wanted:
            found[wanted].append(made)


def examples(shop: Shop, goals: Sequence[Goal], label: str, number: int) -> list[History]:
    """At most `number` successful episodes with notes of this kind, each of another instruction."""
    made = (visit(shop, goal, random.Random(f"example {i}"), label, True) for i, goal in enumerate(goals))
    return [one.history for one in itertools.islice((one for one in made if one and one.success), number)]


def fits(shop: Shop, goal: Goal, product: Product) -> bool:
    """Whether a product can be bought with a score of 1."""
    return shop.score(goal, product, wanted_options(goal, product)) >= WON


def visit(shop: Shop, goal: Goal, rng: random.Random, label: str, careful: bool) -> Transcript | None:
    """One visit; None where the shopper does not find what fits.

    Args:
      label: of the notes, one of `dialogues.NOTES`.
      careful: buys what fits with its options; else something on the first page, too soon.
    """
    state = State(goal)
    history = History(goal.instruction, shop.observe(state), note=_note(shop, label, state, "", Moved(state, "")))
    actions = _careful(shop, goal, rng) if careful else _careless(shop, goal, rng)
    action = next(actions)
    while True:
        moved = shop.step(state, action)
        history = history.then(Step(action, moved.observation, _note(shop, label, state, action, moved)))
        state = moved.state
        if state.page == engine.DONE:
            return Transcript(history, moved.reward >= WON)
        try:
            action = actions.send(state)
        except StopIteration:
            return None


def _queries(goal: Goal) -> list[str]:
    words = re.findall(r"[\w'-]+", re.sub(r", and price.*", "", goal.instruction))
    kind = goal.product.query
    return [" ".join(words), " ".join([*goal.attributes, kind]), " ".join([kind, *goal.options])]


def _careful(shop: Shop, goal: Goal, rng: random.Random) -> Generator[str, State, None]:
    for i, query in enumerate(_queries(goal)):
        if i:
            yield f"click[{BACK}]"
        state = yield f"search[{query}]"
        shown = [shop.products[asin] for asin in state.hits[:SHOWN]]
        fitting = next((product for product in shown if fits(shop, goal, product)), None)
        if fitting:
            break
    else:
        return
    others = [product for product in shown if product is not fitting]
    if others and rng.random() < 0.4:
        yield f"click[{rng.choice(others).asin}]"
        yield f"click[{PREVIOUS}]"
    yield f"click[{fitting.asin}]"
    if rng.random() < 0.5:
        yield "click[Features]"
        yield f"click[{PREVIOUS}]"
    for value in wanted_options(goal, fitting):
        yield f"click[{value}]"
    yield f"click[{BUY}]"


def _careless(shop: Shop, goal: Goal, rng: random.Random) -> Generator[str, State, None]:
    state = yield f"search[{_queries(goal)[0]}]"
    product = shop.products[rng.choice(state.hits[:SHOWN])]
    yield f"click[{product.asin}]"
    values = [value for _, row in product.options for value in row]
    for value in rng.sample(values, min(len(values), rng.randint(0, 2))):
        yield f"click[{value}]"
    yield f"click[{BUY}]"


def _note(shop: Shop, label: str, before: State, action: str, moved: Moved) -> str:
    """What stands behind an observation in transcripts of this kind; nothing for values, which are asked for."""
    if label == "Critic" and action:
        word = _judge(shop, before, action, moved)
        return f"{_deed(shop, before, action, moved, word)} {VERDICT} {word}."
    if label == "Thought":
        return _thought(shop, moved.state)
    if label == "Reward" and action:
        return str(int(moved.reward >= WON))
    return ""


def _deed(shop: Shop, before: State, action: str, moved: Moved, word: str) -> str:
    after = moved.state
    if after.page == engine.DONE:
        return f"I bought it and scored {'only ' * (word == BAD)}{moved.reward:.2f}."
    if after.page == engine.ITEM and before.page == engine.RESULTS:
        product = shop.products[after.asin]
        title = catalogue.line(product.title)
        if product.price > after.goal.price_upper:
            return f"I opened {title}. At {product.price_tag} it is too expensive."
        if word == BAD:
            return f"I opened {title}. It does not come in every option that I was asked for."
        fits = "It seems to be what I was asked for." if word == GOOD else "I cannot tell yet whether it fits."
        return f"I opened {title} for {product.price_tag}. {fits}"
    if after.page == engine.ITEM and after.options != before.options:
        value = action[6:-1]
        asked = value in wanted_options(after.goal, shop.products[after.asin])
        wrong = " on a product that does not fit" if asked else ", which I was not asked for"
        return f"I chose {value}{', as I was asked to' if word == GOOD else wrong}."
    if after.page == engine.SUB:
        return f"I read the {after.sub.lower()}" + ("; they name what I was asked for." if word == GOOD else ".")
    if before.page == engine.SEARCH:
        found = "one of them fits" if word == GOOD else "I cannot tell yet whether one of them fits"
        return f"I see {len(after.hits[:SHOWN])} products, and {found}."
    if before.page == engine.ITEM:
        return f"I left a product that {'fits' if word == BAD else 'does not fit'}."
    return "I went back."


def _judge(shop: Shop, before: State, action: str, moved: Moved) -> str:
    """GOOD, BAD or UNKNOWN by the criteria above."""
    after, goal = moved.state, before.goal
    product = shop.products.get(after.asin or before.asin)
    if not moved.valid:
        return BAD
    if after.page == engine.DONE:
        return GOOD if moved.reward >= WON else BAD
    if before.page == engine.SEARCH:
        shown = [shop.products[asin] for asin in after.hits[:SHOWN]]
        return GOOD if any(fits(shop, goal, one) for one in shown) else UNKNOWN
    if after.page == engine.ITEM and after.options != before.options:
        return GOOD if fits(shop, goal, product) and action[6:-1] in wanted_options(goal, product) else BAD
    if after.page == engine.ITEM and before.page == engine.RESULTS:
        if fits(shop, goal, product):
            return GOOD
        plainly = product.price > goal.price_upper or len(wanted_options(goal, product)) < len(goal.options)
        return BAD if plainly else UNKNOWN
    if after.page == engine.SUB:
        shows = any(phrase in moved.observation.lower() for phrase in goal.attributes)
        return GOOD if shows else UNKNOWN
    if before.page == engine.ITEM:  # away from a product
        return BAD if fits(shop, goal, product) else GOOD
    return UNKNOWN


def _thought(shop: Shop, state: State) -> str:
    """What to do next, as a chain of thought would state it."""
    if state.page == engine.DONE:
        return "I am done."
    if state.page == engine.SEARCH:
        return "I want to search for what is asked for."
    if state.page == engine.RESULTS:
        return "I want to look at a product that fits and is not too expensive."
    left = [
        value
        for value in wanted_options(state.goal, shop.products[state.asin])
        if value not in dict(state.options).values()
    ]
    return f"I want to choose {left[0]}." if left else "I want to compare it with the instruction, then buy it."
