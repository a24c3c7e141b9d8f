"""Products and instructions of WebShop: a local download of its files, or generated ones (`products`)."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

NO_PRICE = 100.0  # of a product without one, as in WebShop
NO_LIMIT = 1e6
# Of the generated catalogue the instructions about every fifth product are for `envs.recorded`, not for tasks.
_LEARN_EVERY = 5
_SHUFFLE, _TEST = 233, 500  # the original shuffles its goals with this seed; the first 500 are its test set

# Names of the files in WebShop's data folder, the small set first.
ITEMS = ("items_shuffle_1000.json", "items_shuffle.json")
ATTRIBUTES = ("items_ins_v2_1000.json", "items_ins_v2.json")
INSTRUCTIONS = ("items_human_ins.json",)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product.

    Attributes:
      asin: its id. title, description, bullets, reviews: as in the files, with their line breaks.
      attributes: hidden phrases that the reward reads.
      options: (name, values) of each choice, in lower case.
      price: in dollars. price_tag: as shown, e.g. "$9.99" or "$5.0 to $9.0".
      query, product_category: the query it was found with, and its path, e.g. "Home › Decor › Rugs".
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    price: float
    price_tag: str
    query: str
    product_category: str
    reviews: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Goal:
    """An instruction and what it asks for.

    Attributes:
      instruction: in words, with the price limit at its end.
      product: the one it was written about.
      attributes, options: what the reward counts. price_upper: dollars, `NO_LIMIT` without one.
    """

    instruction: str
    product: Product
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


@dataclasses.dataclass(frozen=True, eq=False)
class Catalogue:
    """Products by id, and the instructions that are played.

    Attributes:
      skipped: "products" and "instructions" -> what was left out of the files, with a reason each.
    """

    products: Mapping[str, Product]
    tasks: tuple[Goal, ...]
    skipped: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def load(folder: str) -> Catalogue:
    """Loads the catalogue in a folder with WebShop's files; "": the generated one.

    The tasks of a folder are the original's test set: the first 500 instructions in the order of its shuffle.

    Raises:
      FileNotFoundError: there is no such folder, or a file is missing in it.
      ValueError: a file does not have the form of WebShop's, or nothing in it can be played.
    """
    return _load(str(pathlib.Path(os.path.expanduser(folder)).resolve()) if folder else "")


@functools.lru_cache(maxsize=2)
def _load(folder: str) -> Catalogue:
    """Loads the generated catalogue, or WebShop's files and the first tasks of their shuffled order."""
    if not folder:
        from nlrl_jax.envs.webshop import products

        products_by_id, goals, _ = read(*products.records(), source="the generated catalogue")
        tasks = [goal for i, group in enumerate(goals) if i % _LEARN_EVERY != _LEARN_EVERY - 1 for goal in group]
        return Catalogue(products_by_id, tuple(tasks))
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"--data is {folder!r}, which is not a folder; it must hold {ITEMS[0]} and others")
    files = (_json(path, ITEMS, list), _json(path, ATTRIBUTES, dict), _json(path, INSTRUCTIONS, dict))
    products_by_id, goals, skipped = read(*files, source=folder)
    if any(skipped.values()):
        warnings.warn(f"{folder}: {_counted(skipped)}", stacklevel=4)
    order = [goal for group in goals for goal in group]
    random.Random(_SHUFFLE).shuffle(order)
    return Catalogue(products_by_id, tuple(order[:_TEST]), skipped)


def _counted(skipped: Mapping[str, Sequence[str]]) -> str:
    """Says how many were left out; "" for none."""
    parts = [
        f"{len(rows)} of the {kind} are skipped ({rows[0]}{', ...' * (len(rows) > 1)})"
        for kind, rows in skipped.items()
        if rows
    ]
    return "; ".join(parts)


def _json(folder: pathlib.Path, names: Sequence[str], kind: type) -> Any:
    """Reads the first of these files that the folder has."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no {' or '.join(names)}; WebShop's data folder has it")
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=lambda name: None)  # NaN
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, kind) or not data:
        shape = "a list of products" if kind is list else "a table with the ids of products"
        size = len(data) if isinstance(data, list | dict) else 0
        raise ValueError(f"{path} must be {shape}; it is {type(data).__name__} with {size} entries")
    return data


def read(
    items: Sequence[Any], attributes: Mapping[str, Any], instructions: Mapping[str, Any], source: str
) -> tuple[dict[str, Product], list[list[Goal]], dict[str, list[str]]]:
    """Reads the content of WebShop's files.

    Returns (products by id, the instructions about each that has any, `Catalogue.skipped`).

    As in WebShop, repeated ids, ids of more than ten characters, and instructions without attributes or about an
    unknown product are left out. Entries that cannot be read are left out too, where WebShop would fail. A price from
    $a to $b is drawn between them; the limit in an instruction is the larger of two draws from the next four multiples
    of ten dollars. Both follow from the product's id, so they are the same every time.

    Args:
      items: the products, with `asin`, `name`, `pricing`, `full_description`, `small_description`,
        `customization_options`, `query` and `product_category`; also `reviews`, a list of texts, which WebShop's lack.
      attributes: id -> {"attributes": [...]}.
      instructions: id -> [{"instruction", "instruction_attributes", "instruction_options"}, ...].
      source: the folder or catalogue, for messages.

    Raises:
      ValueError: no instruction about any product is left.
    """
    products: dict[str, Product] = {}
    goals: list[list[Goal]] = []
    skipped: dict[str, list[str]] = {"products": [], "instructions": []}
    for number, item in enumerate(items):
        try:
            asin = _asin(number, item, products)
            entry = attributes.get(asin) or {}
            if not isinstance(entry, Mapping):
                raise ValueError(f"the attributes of product {asin} are {entry!r}; they must be a table")
            products[asin] = _product(asin, item, entry.get("attributes"))
        except ValueError as error:
            skipped["products"].append(str(error))
    for asin, product in products.items():
        product_goals: list[Goal] = []
        for number, row in enumerate(_list(instructions.get(asin))):
            try:
                product_goals.append(_goal(product, number, row))
            except ValueError as error:
                skipped["instructions"].append(str(error))
        goals += [product_goals] if product_goals else []
    for asin in sorted(instructions.keys() - products.keys()):
        skipped["instructions"] += [f"{asin} is not among the products"] * len(_list(instructions[asin]))
    if not goals:
        raise ValueError(f"{source}: no instruction is about one of its {len(products)} products; {_counted(skipped)}")
    return products, goals, skipped


def _list(value: Any) -> list[Any]:
    """Returns a list as it is, anything else as its only element; null is an empty list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _asin(number: int, item: Any, products: Mapping[str, Product]) -> str:
    """Checks and returns the product's id."""
    if not isinstance(item, Mapping) or not isinstance(item.get("asin"), str) or not item["asin"]:
        raise ValueError(f"product {number} has no asin")  # a text
    asin = item["asin"]
    if asin == "nan" or len(asin) > 10:
        raise ValueError(f"product {number} has the asin {asin!r}, which is not an id of ten characters")
    if asin in products:
        raise ValueError(f"product {number} has the same asin as another, {asin}")
    return asin


def _product(asin: str, item: Mapping[str, Any], attributes: Any) -> Product:

    def text(field: str) -> str:
        return _text(item.get(field), f"the {field} of product {asin}")

    def texts(values: Any, field: str) -> tuple[str, ...]:
        return _texts(values, f"the {field} of product {asin}")

    if not text("name").strip():
        raise ValueError(f"product {asin} has no title (name)")
    choices = item.get("customization_options") or {}
    if not isinstance(choices, Mapping):
        raise ValueError(f"customization_options of product {asin} is {choices!r}; it must be a table")
    options = {
        _whole(name).lower(): tuple(_option(value, asin) for value in _list(values))
        for name, values in choices.items()
        if values is not None
    }
    price, tag = _price(asin, item.get("pricing"))
    return Product(
        asin=asin,
        title=text("name"),
        description=text("full_description"),
        bullets=texts(_list(item.get("small_description")), "small_description"),
        attributes=texts(attributes, "attributes"),
        options=tuple(options.items()),
        price=price,
        price_tag=tag,
        query=text("query").lower().strip(),
        product_category=text("product_category"),
        reviews=texts(item.get("reviews"), "reviews"),
    )


def _text(value: Any, name: str) -> str:
    """Reads a text, which may be a number in the file; null is ""."""
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{name} is {value!r}, not a text")
    return "" if value is None else _whole(str(value))


def _whole(text: str) -> str:
    """Replaces halves of characters, which JSON can hold and no tokenizer takes, by marks."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _texts(values: Any, name: str) -> tuple[str, ...]:
    """Reads a list of texts without its nulls; null is an empty list."""
    if values is not None and not isinstance(values, list | tuple):
        raise ValueError(f"{name} is {values!r}, not a list")
    return tuple(_text(value, name) for value in values or () if value is not None)


def _option(content: Any, asin: str) -> str:
    if not isinstance(content, Mapping) or content.get("value") is None:
        raise ValueError(f"product {asin} has an option {content!r} without a value")
    return line(_whole(str(content["value"])).replace("/", " | ").lower())


def line(text: str) -> str:
    """Joins a text into one line: a transcript has a line for each observation."""
    return " ".join(text.split())


def _price(asin: str, pricing: Any) -> tuple[float, str]:
    """Reads a price, drawn between the two of a range, and the tag that shows it."""
    if not pricing:
        return NO_PRICE, f"${NO_PRICE}"
    try:
        prices = [float(re.sub(r"[^\d.]", "", part)) for part in str(pricing).split("$")[1:]][:2]
        first = prices[0]
    except (ValueError, IndexError):
        raise ValueError(
            f"the pricing of product {asin} is {pricing!r}; it must be like '$9.99', '$5 to $9', or empty"
        ) from None
    if len(prices) == 1:
        return first, f"${first}"
    return random.Random(f"price {asin}").uniform(*prices), f"${first} to ${prices[1]}"


def _goal(product: Product, number: int, row: Any) -> Goal:
    """Reads an instruction with its wishes and adds a limit of the price."""
    subject = f"instruction {number} about product {product.asin}"
    if not isinstance(row, Mapping):
        raise ValueError(f"{subject} is {row!r}, not a table")
    attributes = _texts(row.get("instruction_attributes"), f"instruction_attributes of {subject}")
    if not attributes:
        raise ValueError(f"{subject} has no attributes")
    text = _text(row.get("instruction"), subject)
    if not text.strip():
        raise ValueError(f"{subject} has no text (instruction)")
    options = row.get("instruction_options")
    options = list(options.values()) if isinstance(options, Mapping) else options
    limits = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
    upper = NO_LIMIT
    if len(limits) >= 2:
        upper = max(random.Random(f"limit {product.asin} {number}").sample(limits, 2))
    limit = f", and price lower than {upper:.2f} dollars" if upper < NO_LIMIT else ""
    return Goal(
        instruction=line(text).strip(".") + limit,
        product=product,
        attributes=attributes,
        options=_texts(options, f"instruction_options of {subject}"),
        price_upper=upper,
    )
