"""Products and instructions of WebShop: a person's own copy of its files, or ours (`products`)."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NO_PRICE = 100.0  # of a product without one, as in WebShop
NO_LIMIT = 1e6
_LEARN_EVERY = 5  # the instructions of every fifth product are for demonstrations

# Names of the files in WebShop's data folder, the small set first.
ITEMS = ("items_shuffle_1000.json", "items_shuffle.json")
ATTRIBUTES = ("items_ins_v2_1000.json", "items_ins_v2.json")
INSTRUCTIONS = ("items_human_ins.json",)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product.

    Attributes:
      asin: its id. title, description, bullets, reviews: as on its pages.
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
    """Products by id, instructions that are played, and others that demonstrations are made from."""

    products: Mapping[str, Product]
    tasks: tuple[Goal, ...]
    demonstrations: tuple[Goal, ...]


def load(folder: str) -> Catalogue:
    """The catalogue in a folder with WebShop's files; "" is ours.

    Raises:
      FileNotFoundError: there is no such folder, or a file is missing in it.
      ValueError: a file, or a product in it, does not have the form of WebShop's.
    """
    return _load(str(pathlib.Path(folder).expanduser().resolve()) if folder else "")


@functools.lru_cache(maxsize=2)
def _load(folder: str) -> Catalogue:
    if not folder:
        from envs.webshop import products

        return read(*products.records(), where="our catalogue")
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"--webshop_data is {folder!r}, which is no folder; it must hold {ITEMS[0]} and others")
    files = (_json(path, ITEMS, list), _json(path, ATTRIBUTES, dict), _json(path, INSTRUCTIONS, dict))
    return read(*files, where=folder)


def _json(folder: pathlib.Path, names: Sequence[str], kind: type) -> Any:
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no {' or '.join(names)}; WebShop's data folder has it")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, kind) or not data:
        shape = "a list of products" if kind is list else "a table with the ids of products"
        raise ValueError(f"{path} must be {shape}; it is {type(data).__name__} with {len(data) if data else 0} entries")
    return data


def read(
    items: Sequence[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    instructions: Mapping[str, Sequence[Mapping[str, Any]]],
    where: str,
) -> Catalogue:
    """A catalogue from the content of WebShop's files.

    Ids that occur again, and those of more than ten characters, are left out, as are instructions without attributes
    or about no product. A price from $a to $b is drawn between them, the limit in an instruction is the larger of two
    draws from the next four multiples of ten dollars; both follow from the product's id, so that they are the same
    every time.

    Args:
      items: the products, with `asin`, `name`, `pricing`, `full_description`, `small_description`,
        `customization_options`, `query` and `product_category`; `reviews`, a list of texts, is ours.
      attributes: id -> {"attributes": [...]}.
      instructions: id -> [{"instruction", "instruction_attributes", "instruction_options"}, ...].
      where: for messages.

    Raises:
      ValueError: a product without id or title or with a price that is no number; no instruction about any product.
    """
    products: dict[str, Product] = {}
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("asin"), str):
            raise ValueError(f"{where}: product {number} has no asin")
        asin = item["asin"]
        if asin != "nan" and len(asin) <= 10 and asin not in products:
            own = attributes.get(asin) or {}
            if not isinstance(own, Mapping):
                raise ValueError(f"{where}: the attributes of product {asin} are {own!r}; they must be a table")
            products[asin] = _product(asin, item, tuple(own.get("attributes") or ()), where)
    goals: list[list[Goal]] = []
    for asin, product in products.items():
        found = list(_goals(product, instructions.get(asin) or (), where))
        goals += [found] if found else []
    if not goals:
        raise ValueError(f"{where}: no instruction is about one of its {len(products)} products")
    learn = [goal for own in goals[_LEARN_EVERY - 1 :: _LEARN_EVERY] for goal in own]
    tasks = [goal for i, own in enumerate(goals) if i % _LEARN_EVERY != _LEARN_EVERY - 1 for goal in own]
    return Catalogue(products, tuple(tasks), tuple(learn))


def _product(asin: str, item: Mapping[str, Any], attributes: tuple[str, ...], where: str) -> Product:
    title = str(item.get("name") or "").strip()
    if not title:
        raise ValueError(f"{where}: product {asin} has no title (name)")
    bullets, choices = item.get("small_description") or "", item.get("customization_options") or {}
    if not isinstance(choices, Mapping):
        raise ValueError(f"{where}: customization_options of product {asin} is {choices!r}; it must be a table")
    options = {
        str(name).lower(): tuple(_option(value, asin, where) for value in values)
        for name, values in choices.items()
        if values
    }
    price, tag = _price(asin, item.get("pricing"), where)
    return Product(
        asin=asin,
        title=_line(title),
        description=_line(item.get("full_description") or ""),
        bullets=tuple(map(_line, bullets if isinstance(bullets, list) else [bullets])),
        attributes=attributes,
        options=tuple(options.items()),
        price=price,
        price_tag=tag,
        query=str(item.get("query") or "").lower().strip(),
        product_category=str(item.get("product_category") or ""),
        reviews=tuple(map(_line, item.get("reviews") or ())),
    )


def _option(content: Any, asin: str, where: str) -> str:
    if not isinstance(content, Mapping) or "value" not in content:
        raise ValueError(f"{where}: product {asin} has an option {content!r} without a value")
    return _line(str(content["value"]).replace("/", " | ").lower())


def _line(text: Any) -> str:
    """A text as one line: a transcript has a line for each observation."""
    return " ".join(str(text).split())


def _price(asin: str, pricing: Any, where: str) -> tuple[float, str]:
    if not pricing:
        return NO_PRICE, f"${NO_PRICE}"
    try:
        prices = [float(re.sub(r"[^\d.]", "", part)) for part in str(pricing).split("$")[1:]][:2]
        first = prices[0]
    except (ValueError, IndexError):
        raise ValueError(
            f"{where}: the pricing of product {asin} is {pricing!r}; it must be like '$9.99', '$5 to $9', or empty"
        ) from None
    if len(prices) == 1:
        return first, f"${first}"
    return random.Random(f"price {asin}").uniform(*prices), f"${first} to ${prices[1]}"


def _goals(product: Product, rows: Sequence[Mapping[str, Any]], where: str) -> Iterator[Goal]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ValueError(f"{where}: instruction {number} about product {product.asin} is {row!r}, not a table")
        wanted = row.get("instruction_attributes") or ()
        if not wanted:
            continue
        if not row.get("instruction"):
            raise ValueError(f"{where}: instruction {number} about product {product.asin} has no text (instruction)")
        limits = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
        upper = NO_LIMIT
        if len(limits) >= 2:
            upper = max(random.Random(f"limit {product.asin} {number}").sample(limits, 2))
        limit = f", and price lower than {upper:.2f} dollars" if upper < NO_LIMIT else ""
        options = row.get("instruction_options") or ()
        options = options.values() if isinstance(options, Mapping) else options
        text = _line(row["instruction"]).strip(".") + limit
        yield Goal(text, product, tuple(wanted), tuple(options), upper)
