"""WebShop's reward (Yao et al., 2022; `docs/lac.md` names where it departs from the published code).

    r = r_type (n_attributes + n_options + [price <= limit]) / (|attributes| + |options| + 1)

An attribute counts if it is much like one of the product's, or stands in its title, features or description; an option
if it is much like one that was chosen. r_type compares the kinds of the products:

    1    the same query, two shared categories, or more than a fifth of the title's nouns shared
    0.5  none of these
    0.1  less than a tenth of the nouns shared, whatever else is
    0    no noun shared

The published code finds nouns with spaCy's en_core_web_sm, and so does `tagged_by`. By default every word of letters
counts that is no function word and no common adjective (`NOT_NOUNS`), which needs no tagger: of pairs of products found
by one search, 5 % then have another r_type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from nlrl_jax.envs.webshop.catalogue import Goal, Product

ALIKE = 85  # a higher ratio is a match
# The first of these that occurs in an option stands for it, in this order. This is WebShop's own table, word for word:
# COLOR_SET in web_agent_site/engine/normalize.py of https://github.com/princeton-nlp/WebShop, under the MIT licence,
# Copyright (c) 2023 Princeton Natural Language Processing.
COLOURS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey "
    "heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight "
    "mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow "
    "red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal "
    "tiger turquoise violet walnut wheat white wine yellow"
).split()
_DELETED = dict.fromkeys(range(128, 256))  # by thefuzz; a code point above them stays
NOT_NOUNS = frozenset(
    "a an and any are as at be best big black blue brown but by casual classic clean cute dark dry easy extra fast "
    "fine for free fresh from full good gray great green grey hard heavy high hot in into is it its large light "
    "long low more natural new no non not of off on one or organic our out over own perfect pink plus premium pure "
    "purple quick red round short simple slim small soft solid strong than that the their these thick thin this to "
    "under up wet white wide with without yellow you your".split()
)


def ratio(a: str, b: str) -> int:
    """Compares two texts as sets of words, 0 to 100: thefuzz's `token_set_ratio`."""
    a, b = (text.translate(_DELETED) for text in (a, b))
    return int(round(fuzz.token_set_ratio(a, b, processor=default_process)))


def nouns(title: str) -> list[str]:
    """Lists words that are likely nouns, in lower case, with repetitions."""
    return [word for word in re.findall(r"[a-z][a-z']*[a-z]", title.lower()) if word not in NOT_NOUNS]


def tagged_by(model: str) -> Callable[[str], list[str]]:
    """Returns a function like `nouns` by a spaCy model, as in the published code.

    Args:
      model: name of an installed package, such as en_core_web_sm, or a folder.

    Raises:
      ValueError: spaCy is not installed, or it has no such model, or one that does not tag parts of speech.
    """
    option = f"--webshop_tagger is {model!r}, but"
    try:
        import spacy

        tagger = spacy.load(model)
    except ImportError:
        raise ValueError(
            f"{option} spaCy is not installed: pip install spacy, then python -m spacy download en_core_web_sm"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{option} spaCy cannot load it ({str(error)[:120]}); python -m spacy download en_core_web_sm installs the "
            "original's model"
        ) from None
    if not any(token.pos_ for token in tagger("red shoes")):
        raise ValueError(f"{option} that model does not tag parts of speech; the original's is en_core_web_sm")

    @functools.lru_cache(maxsize=100_000)
    def nouns(title: str) -> list[str]:
        return [token.text.lower() for token in tagger(title) if token.pos_ in ("NOUN", "PROPN")]

    return nouns


def kind_reward(bought: Product, target: Product, nouns: Callable[[str], list[str]] = nouns) -> float:
    """Computes r_type of a bought product."""
    goal = nouns(target.title)
    shared = len(set(nouns(bought.title)) & set(goal)) / len(goal) if goal else 0.2
    parts = [{part.strip() for part in product.product_category.split("›")} for product in (bought, target)]
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    return 1.0 if bought.query == target.query or len(parts[0] & parts[1]) >= 2 or shared > 0.2 else 0.5


def attributes_met(product: Product, attributes: Sequence[str]) -> int:
    """Counts the attributes that a product has."""
    texts = [product.title.lower(), " ".join(product.bullets).lower(), product.description.lower()]
    count = 0
    for attribute in attributes:
        is_alike = any(ratio(phrase, attribute) > ALIKE for phrase in product.attributes)
        count += is_alike or any(attribute in text for text in texts)
    return count


def plain_colour(option: str) -> str:
    """Reduces an option with a colour in it to that colour; any other stays as it is."""
    return next((colour for colour in COLOURS if colour in option), option)


def options_met(chosen: Sequence[str], goal_options: Sequence[str]) -> int:
    """Counts the goal's options that were chosen."""
    colours = [plain_colour(option) for option in chosen]
    return sum(any(ratio(colour, plain_colour(option)) > ALIKE for colour in colours) for option in goal_options)


def score(goal: Goal, bought: Product, chosen: Sequence[str], nouns: Callable[[str], list[str]] = nouns) -> float:
    """Computes the reward of buying a product with these options, in [0, 1]."""
    met = attributes_met(bought, goal.attributes) + options_met(chosen, goal.options)
    share = (met + (bought.price <= goal.price_upper)) / (len(goal.attributes) + len(goal.options) + 1)
    return kind_reward(bought, goal.product, nouns) * share
