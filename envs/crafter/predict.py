"""What an action leads to, as far as Crafter's text tells: the world model of the player by rule.

It knows the rules and the nearest thing of each kind, and nothing of what is out of sight: new ground is grass,
creatures stand still and fall at the first blow, time takes nothing away.
"""

from __future__ import annotations

import dataclasses

from envs.crafter import engine, text
from envs.crafter.reading import FREE, NEEDED, RECIPES, WAYS, View, read

_FULL = {name.split(" ", 1)[-1] if name[:2] in ("a ", "an") else name.removeprefix("the "): name for name in text.NAMES}
_TAKEN = {"tree": "wood", **{kind: kind for kind in NEEDED}}
_PLACED = {  # action -> (what it costs, what stands there)
    "place stone": ("stone", 1, "stone"),
    "place table": ("wood", 2, "table"),
    "place furnace": ("stone", 1, "furnace"),
    "place plant": ("sapling", 1, "young plant"),
}


def predict(observation: str, facing: str, action: str) -> str:
    """The observation behind an action; the same one where nothing is expected to change.

    Args:
      facing: "north", "south", "west" or "east".
    """
    view = read(observation)
    after = dataclasses.replace(view, things=dict(view.things), numbers=dict(view.numbers))
    if view.asleep:
        return observation
    if action.startswith("move "):
        after = _moved(after, facing, action.removeprefix("move "))
    elif action == "do":
        after = _done(after, WAYS[facing])
    elif action in _PLACED:
        after = _placed(after, WAYS[facing], *_PLACED[action])
    elif action.startswith("make "):
        _make(after, action.removeprefix("make "))
    elif action == "sleep" and view["energy"] < engine.MOST:
        after = dataclasses.replace(after, asleep=True)
    return render(after)


def achieved(before: View, after: View, action: str) -> bool:
    """Whether a step shows something that counts: a thing gained, something placed, food, drink."""
    gained = any(after[item] > before[item] for item in text.ITEM_NAMES)
    cost = _PLACED.get(action)
    placed = bool(cost) and after[cost[0]] < before[cost[0]]
    return gained or placed or after["food"] > before["food"] or after["drink"] > before["drink"]


def render(view: View) -> str:
    """The observation that reads as this view."""
    things = sorted(
        (abs(south) + abs(east), text.THING_NAMES.index(_FULL[kind]), text.place(south, east))
        for kind, (south, east) in view.things.items()
        if _FULL.get(kind) in text.THING_NAMES
    )
    items = [(i, view[name]) for i, name in enumerate(text.ITEM_NAMES) if view[name] > 0]
    return text.OBSERVATION.render(
        {
            "num_things": len(things),
            "thing": [kind for _, kind, _ in things],
            "place": [text.PLACES.index(place) for _, _, place in things],
            "faced": text.NAMES.index(_FULL.get(view.faced, "grass")),
            "asleep": int(view.asleep),
            "num_items": len(items),
            "item": [i for i, _ in items],
            "amount": [n for _, n in items],
            **{name: view[name] for name in engine.VITALS},
        }
    )


def _moved(view: View, facing: str, way: str) -> View:
    """A step, or only a turn where something is in the way."""
    ahead = WAYS[way]
    near = view.faced if facing == way else _at(view, ahead)
    if near and near not in FREE:
        return dataclasses.replace(view, faced=near)
    things = {kind: (south - ahead[0], east - ahead[1]) for kind, (south, east) in view.things.items()}
    seen = lambda place: abs(place[0]) <= engine.ROWS // 2 and abs(place[1]) <= engine.COLUMNS // 2
    view = dataclasses.replace(view, things={kind: place for kind, place in things.items() if seen(place)})
    return dataclasses.replace(view, faced=_at(view, ahead) or (view.faced if view.faced in FREE else "grass"))


def _done(view: View, ahead: tuple[int, int]) -> View:
    """What is faced is taken, eaten, drunk or slain."""
    kind, numbers, gone = view.faced, view.numbers, "grass"
    if kind in _TAKEN and (kind == "tree" or view[NEEDED[kind]]):
        numbers[_TAKEN[kind]] = min(view[_TAKEN[kind]] + 1, engine.MOST)
        gone = "grass" if kind == "tree" else "path"
    elif kind == "water":
        numbers["drink"], gone = min(view["drink"] + 1, engine.MOST), kind
    elif kind == "cow":
        numbers["food"] = min(view["food"] + 6, engine.MOST)
    elif kind == "ripe plant":
        numbers["food"], gone = min(view["food"] + 4, engine.MOST), "young plant"
    elif kind not in ("zombie", "skeleton"):
        return view
    if gone != kind and view.things.get(kind) == ahead:
        del view.things[kind]
    return dataclasses.replace(view, faced=gone)


def _placed(view: View, ahead: tuple[int, int], item: str, cost: int, thing: str) -> View:
    ground = ("grass",) if item == "sapling" else (*FREE, "lava", *(["water"] * (thing == "stone")))
    if view[item] < cost or view.faced not in ground:
        return view
    view.numbers[item] -= cost
    view.things[thing] = ahead
    return dataclasses.replace(view, faced=thing)


def _make(view: View, tool: str) -> None:
    material = tool.split()[0]
    needs = RECIPES.get(material, {})
    bench = _near(view, "table") and (material != "iron" or _near(view, "furnace"))
    if bench and needs and all(view[item] >= n for item, n in needs.items()):
        for item, n in needs.items():
            view.numbers[item] -= n
        view.numbers[tool] = min(view[tool] + 1, engine.MOST)


def _at(view: View, place: tuple[int, int]) -> str:
    """What is known to stand at a place; "" for nothing."""
    return next((kind for kind, where in view.things.items() if where == place), "")


def _near(view: View, kind: str) -> bool:
    return max(map(abs, view.things.get(kind, (9, 9)))) <= 1
