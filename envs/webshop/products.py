"""A generated catalogue in the form of WebShop's files: families of products that differ in what is asked for.

Each kind of product has families of four. Instructions are about the first member. In a list of results the others look
the same, but one lacks an attribute, one costs too much, and one is not sold with the requested option. What a title
leaves out is in the features or the description, so the first hit is not enough.

    python -m nlrl_jax.envs.webshop.products FOLDER    # writes the three files
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
from typing import Any, NamedTuple

FAMILIES = 6  # of each kind


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_BRANDS = _list(
    "Alder & Finch, Brightwell, Corvane, Dunmere, Elmsford, Fairlight, Gantry, Hollis, Ingleby, Juniper Row, "
    "Kestrel, Larkspur, Marlowe, Northgate, Oakhaven, Pemberly, Quillon, Rosedale, Silverton, Thornbury, "
    "Underhill, Verity, Westmoor, Yarrow"
)
COLOURS = _list("black, white, navy, olive green, burgundy, charcoal, teal, coral, mustard, lavender, beige, rust")
# No x-large beside large, no 8 ounce beside 3 ounce: WebShop's reward confuses them.
_CLOTHES = _list("petite, small, medium, large, plus, tall")
_SHOES = _list("6, seven wide, 8, nine narrow, 10, eleven")
_SCENTS = _list("lavender, citrus, cedar, coconut, rose, vanilla, eucalyptus")


class Kind(NamedTuple):
    """A kind of product: its name, path, choices, attributes, and the range of its prices in whole dollars."""

    name: str
    path: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    prices: tuple[int, int]


_SKIN = _list(
    "cruelty free, paraben free, fragrance free, sensitive skin, long lasting, sulfate free, natural ingredients, "
    "travel size"
)
_WEAR = _list(
    "machine wash, long sleeve, quick drying, loose fit, elastic waist, cotton blend, moisture wicking, button closure"
)
_SOLE = _list(
    "rubber sole, memory foam, non slip, arch support, lightweight mesh, water resistant, wide toe box, ankle strap"
)
_GEAR = _list(
    "fast charging, noise cancelling, water resistant, easy to install, long battery life, gold plated, high speed, "
    "shock proof"
)
_ROOM = _list(
    "easy to clean, stain resistant, space saving, easy assemble, solid wood, machine washable, eco friendly, "
    "heavy duty"
)
_FOOD = _list(
    "gluten free, low sugar, keto friendly, non gmo, nut free, high protein, caffeine free, artificial flavors free"
)
_FLAVOURS = _list("peanut butter, mint, cinnamon, raspberry, sea salt, mango, espresso, maple")
_PACKS = _list("single, six pack, dozen box, case of 24")
_OUNCES = _list("3 ounce, half pint, one liter, family jug")
_METRES = _list("3 feet, two yards, extra long, 10 m")
_SCREENS = _list("mini, 10 inch, eleven pro, 13 plus")
_CUSHIONS = _list("16 inch square, lumbar, euro sham, floor cushion")
_RUGS = _list("3 x 5 feet, hall runner, eight foot round, door mat")
_STOOLS = _list("15 inch cube, bench, round, chest")
_CURTAINS = _list("63 inch, floor length, cafe, 108 inch panel")

KINDS = (
    Kind("shampoo", "Beauty › Hair Care › Shampoo", {"scent": _SCENTS, "size": _OUNCES}, _SKIN, (8, 28)),
    Kind("face moisturizer", "Beauty › Skin Care › Creams", {"scent": _SCENTS, "size": _OUNCES}, _SKIN, (10, 45)),
    Kind("deodorant stick", "Beauty › Body Care › Deodorant", {"scent": _SCENTS, "size": _PACKS}, _SKIN, (5, 24)),
    Kind("lip balm", "Beauty › Skin Care › Lips", {"scent": _SCENTS, "size": _PACKS}, _SKIN, (4, 18)),
    Kind("women's blouse", "Clothing › Women › Tops", {"color": COLOURS, "size": _CLOTHES}, _WEAR, (15, 45)),
    Kind("men's dress shirt", "Clothing › Men › Shirts", {"color": COLOURS, "size": _CLOTHES}, _WEAR, (18, 60)),
    Kind("fleece hoodie", "Clothing › Men › Hoodies", {"color": COLOURS, "size": _CLOTHES}, _WEAR, (20, 55)),
    Kind("yoga leggings", "Clothing › Women › Leggings", {"color": COLOURS, "size": _CLOTHES}, _WEAR, (14, 48)),
    Kind("running shoes", "Shoes › Men › Running", {"color": COLOURS, "size": _SHOES}, _SOLE, (35, 120)),
    Kind("women's sandals", "Shoes › Women › Sandals", {"color": COLOURS, "size": _SHOES}, _SOLE, (18, 70)),
    Kind("bluetooth headphones", "Electronics › Audio › Headphones", {"color": COLOURS}, _GEAR, (25, 150)),
    Kind("portable speaker", "Electronics › Audio › Speakers", {"color": COLOURS}, _GEAR, (20, 110)),
    Kind("phone charger", "Electronics › Phones › Chargers", {"color": COLOURS, "size": _METRES}, _GEAR, (9, 35)),
    Kind("hdmi cable", "Electronics › Video › Cables", {"color": COLOURS, "size": _METRES}, _GEAR, (7, 40)),
    Kind("wireless mouse", "Electronics › Computers › Mice", {"color": COLOURS}, _GEAR, (12, 60)),
    Kind("tablet case", "Electronics › Computers › Cases", {"color": COLOURS, "size": _SCREENS}, _GEAR, (11, 45)),
    Kind("throw pillow cover", "Home › Bedding › Pillows", {"color": COLOURS, "size": _CUSHIONS}, _ROOM, (8, 30)),
    Kind("area rug", "Home › Decor › Rugs", {"color": COLOURS, "size": _RUGS}, _ROOM, (30, 180)),
    Kind("table lamp", "Home › Decor › Lamps", {"color": COLOURS}, _ROOM, (22, 90)),
    Kind("storage ottoman", "Home › Furniture › Ottomans", {"color": COLOURS, "size": _STOOLS}, _ROOM, (28, 130)),
    Kind("window curtains", "Home › Decor › Curtains", {"color": COLOURS, "size": _CURTAINS}, _ROOM, (16, 70)),
    Kind("protein bars", "Grocery › Snacks › Bars", {"flavor": _FLAVOURS, "size": _PACKS}, _FOOD, (8, 40)),
    Kind("herbal tea", "Grocery › Drinks › Tea", {"flavor": _FLAVOURS, "size": _PACKS}, _FOOD, (5, 28)),
    Kind("trail mix", "Grocery › Snacks › Nuts", {"flavor": _FLAVOURS, "size": _OUNCES}, _FOOD, (7, 34)),
    Kind("dark chocolate", "Grocery › Snacks › Chocolate", {"flavor": _FLAVOURS, "size": _PACKS}, _FOOD, (6, 32)),
)

_BULLETS = ("Shoppers pick it because it is {}.", "You get something {}.", "In short: {}.")
_ASKS = (
    "i need a {attributes} {name}",
    "i am looking for {name} that is {attributes}",
    "find me a {attributes} {name}",
    "i would like to buy a {name}, {attributes}",
)


def records(seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Generates the content of WebShop's files: products, their attributes, instructions. See `catalogue.read`."""
    rng = random.Random(f"catalogue {seed}")
    items: list[dict[str, Any]] = []
    attributes, instructions = {}, {}
    for kind in KINDS:
        for _ in range(FAMILIES):
            members, goals = _family(kind, rng)
            for item, phrases in members:
                items.append(item)
                attributes[item["asin"]] = {"attributes": phrases}
            instructions[members[0][0]["asin"]] = goals
    rng.shuffle(items)
    return items, attributes, instructions


def _family(kind: Kind, rng: random.Random):
    """Generates four products as (item, attributes), and two instructions about the first."""
    attributes = rng.sample(kind.attributes, 3)
    unused = [phrase for phrase in kind.attributes if phrase not in attributes]
    offered = {name: rng.sample(values, rng.randint(3, len(values) - 1)) for name, values in kind.options.items()}
    dollars = rng.randint(*kind.prices)
    scarce = rng.choice(list(offered))
    goals = [_instruction(kind, attributes, offered, rng) for _ in range(2)]
    requested = {row["instruction_options"][scarce] for row in goals}
    unrequested = {scarce: [value for value in kind.options[scarce] if value not in requested]}
    # A near miss lacks the second attribute, which the instruction asks for.
    swapped = [rng.choice(unused), *attributes[:1], attributes[2]]
    members = [
        _item(kind, attributes, offered, dollars, rng),
        _item(kind, swapped, offered, dollars + rng.randint(-2, 2), rng),
        _item(kind, attributes, offered, dollars + rng.randint(45, 80), rng),
        _item(kind, attributes, {**offered, **unrequested}, max(3, dollars + rng.randint(-3, 3)), rng),
    ]
    for row in goals:
        del row["instruction_attributes"][2:]
        row["instruction_options"] = list(row["instruction_options"].values())
    return members, goals


def _instruction(
    kind: Kind, attributes: list[str], offered: dict[str, list[str]], rng: random.Random
) -> dict[str, Any]:
    """Generates an instruction with two attributes and an option of each choice.

    A near miss lacks the second attribute.
    """
    chosen = {name: rng.choice(values) for name, values in offered.items()}
    phrases = {"color": "in {}", "scent": "with a {} scent", "flavor": "in {} flavor", "size": "in size {}"}
    ask = rng.choice(_ASKS).format(attributes=", ".join(attributes[:2]), name=kind.name)
    options = " and ".join(phrases[name].format(value) for name, value in chosen.items())
    return {
        "instruction": f"{ask} {options}.",
        "instruction_attributes": list(attributes),
        "instruction_options": chosen,
    }


def _item(kind: Kind, phrases: list[str], options: dict[str, list[str]], dollars: int, rng: random.Random):
    brand, shuffled = rng.choice(_BRANDS), list(phrases)
    rng.shuffle(shuffled)
    title = f"{brand} {kind.name.title()}, {shuffled[0].title()}"
    title += f", {shuffled[1].title()}" if rng.random() < 0.4 else ""
    bullets = [rng.choice(_BULLETS).format(phrase) for phrase in shuffled[1:]]
    cents = rng.choice((0, 49, 95, 99))
    item = {
        "asin": "B0" + "".join(rng.choices("0123456789BCDFGHJKLMNPQRSTVWXYZ", k=8)),
        "name": title,
        "pricing": f"${dollars}.{cents:02d}",
        "full_description": f"The {brand} {kind.name} is made with care. It is {shuffled[0]}.",
        "small_description": bullets,
        "customization_options": {name: [{"value": value} for value in values] for name, values in options.items()},
        "query": kind.name,
        "product_category": kind.path,
        "reviews": [rng.choice(("Does what it says.", "Good for the money.", "It arrived late, but I like it."))],
    }
    return item, list(phrases)


def main(arguments: list[str]) -> None:
    """Writes the generated catalogue into a folder under the names of WebShop's files."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m nlrl_jax.envs.webshop.products FOLDER")
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    for name, data in zip(names, records(), strict=True):
        (folder / name).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
