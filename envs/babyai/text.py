"""BabyAI-Text's words: the mission, what is seen from where the agent stands, and the whole world as a drawing.

A sentence is two integers: its phrase (an index into `SAID`) and the cell of the view that it is about (7 * column +
row, an index into `PLACES`; the agent's own cell has no words). The templates and `texts`, which writes a whole batch
on the host, read the same fields.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs import grid_text
from nlrl_jax.envs.babyai import rules
from nlrl_jax.envs.babyai.rules import BabyAIState
from nlrl_jax.envs.shell import on_any_mesh
from nlrl_jax.text.host import in_blocks
from nlrl_jax.text.template import Choice, Literal, Repeat, Template

KINDS = {rules.DOOR: "door", rules.KEY: "key", rules.BALL: "ball", rules.BOX: "box"}
THINGS = tuple(kind for kind in KINDS if kind != rules.DOOR)
DOOR_STATES = ("an open", "a closed", "a locked")
MAX_SENTENCES = 1 + 3 + rules.NUM_OBJECTS
NOTHING = "You see nothing"


def _place(index: int) -> str:
    """Words for a cell of the view, with a blank in front: ' 3 steps left and 1 step forward'."""
    sideward, forward = index // rules.VIEW - rules.VIEW // 2, rules.VIEW - 1 - index % rules.VIEW
    parts = [f"{_steps(abs(sideward))} {'left' if sideward < 0 else 'right'}"] if sideward else []
    parts += [f"{_steps(forward)} forward"] if forward else []
    return " " + " and ".join(parts) if parts else ""


def _steps(number: int) -> str:
    return f"{number} step{'s' if number > 1 else ''}"


def _name(kind: int, colour: int) -> str:
    return f"{rules.COLOURS[colour]} {KINDS[kind]}"


_COLOURS = range(len(rules.COLOURS))
PLACES = tuple(map(_place, range(rules.VIEW**2)))
SAID = (
    "see a wall",
    *(f"carry a {_name(kind, colour)}" for kind in THINGS for colour in _COLOURS),
    *(f"see a {_name(kind, colour)}" for kind in THINGS for colour in _COLOURS),
    *(f"see {state} {_name(rules.DOOR, colour)}" for state in DOOR_STATES for colour in _COLOURS),
)
_CARRY, _SEE, _SEE_DOOR = 1, 1 + len(THINGS) * len(_COLOURS), 1 + 2 * len(THINGS) * len(_COLOURS)

# What a mission asks for: verb, a description, a link and a second description.
VERBS = ("go to", "pick up", "put", "open")
LINKS = (" after you pick up", ", then go to", " next to")
DESCRIPTIONS = tuple(f"{article} {_name(k, c)}" for article in ("the", "a") for k in KINDS for c in _COLOURS)
_VERB_OF, _LINK_OF = np.array([0, 1, 0, 1, 2, 3]), np.array([0, 0, 0, 1, 2, 0])
_WITH_SECOND = np.array([False, False, True, True, True, False])


@on_any_mesh
def fields(state: BabyAIState) -> dict[str, jax.Array]:
    """Computes what the texts of a state read, all int32.

    Returns:
      verb, first, num_second []; link, second [1]: the mission; indices into `VERBS`, `LINKS` and `DESCRIPTIONS`.
      num_sentences []; said, place [13]: the observation; indices into `SAID` and `PLACES`.
      view [49], indices into `VIEW_SYMBOLS`, row by row; world [120], indices into `WORLD_SYMBOLS`.
    """
    code = rules.codes(state)
    drawings = {"view": _view(state, code), "world": _world(state)}
    return goal_fields(state) | sentence_fields(state, code) | drawings


def goal_fields(state: BabyAIState) -> dict[str, jax.Array]:
    """Computes the mission's fields, int32; see `fields`."""

    def description(target):
        number = (state.target_kinds[target] - rules.DOOR) * len(_COLOURS) + state.target_colours[target]
        ambiguous = rules.matches(state, target).sum() > 1
        return jnp.maximum(number, 0).astype(jnp.int32) + ambiguous * (len(DESCRIPTIONS) // 2)

    swap = state.mission == rules.GO_AFTER_PICK  # what is done first is named last
    named = jnp.where(swap, jnp.stack([description(1), description(0)]), jnp.stack([description(0), description(1)]))
    return {
        "verb": jnp.asarray(_VERB_OF, jnp.int32)[state.mission],
        "first": named[0],
        "num_second": jnp.asarray(_WITH_SECOND, jnp.int32)[state.mission],
        "link": jnp.asarray(_LINK_OF, jnp.int32)[state.mission][None],
        "second": named[1][None],
    }


def sentence_fields(state: BabyAIState, code: jax.Array) -> dict[str, jax.Array]:
    """Computes the observation's fields; see `fields`. `code` is `rules.codes(state)`, int32 [49]."""
    last = rules.VIEW - 1
    middle = rules.VIEW // 2
    # The first wall straight ahead, to the left and to the right: (is there one, its phrase, its cell).
    grid, walls = code.reshape(rules.VIEW, rules.VIEW), []
    for line, place in (
        (grid[middle, last - 1 :: -1], lambda n: rules.HERE - 1 - n),
        (grid[middle - 1 :: -1, last], lambda n: rules.HERE - rules.VIEW * (1 + n)),
        (grid[middle + 1 :, last], lambda n: rules.HERE + rules.VIEW * (1 + n)),
    ):
        filled = (line & 7) > rules.EMPTY
        at = jnp.argmax(filled)
        walls.append((filled[at] & (line[at] & 7 == rules.WALL), 0, place(at)))
    is_carried = jnp.arange(rules.NUM_OBJECTS) == state.carrying
    thing = (state.kinds - rules.KEY) * len(_COLOURS) + state.colours
    carried = (state.carrying >= 0, _CARRY + jnp.sum(is_carried * thing), rules.HERE)
    place = rules.view_index(state)
    in_view = (place >= 0) & (place != rules.HERE) & (code[place] > 0)
    phrase = jnp.where(state.kinds == rules.DOOR, _SEE_DOOR + state.door * len(_COLOURS) + state.colours, _SEE + thing)
    first = [jnp.stack([jnp.asarray(part[i], jnp.int32) for part in (carried, *walls)]) for i in range(3)]
    present, phrase = jnp.concatenate([first[0] > 0, in_view]), jnp.concatenate([first[1], phrase])
    place = jnp.concatenate([first[2], place])
    # Sentences are sorted as integers, rank | phrase (6 bits) | place (6 bits), and unpacked below: what is carried,
    # the three walls, then objects from the view's left column to the right, each from the farthest row to the
    # nearest. Missing sentences go to the end.
    rank = jnp.concatenate([np.arange(4), 4 + place[4:]])
    packed = jnp.sort(jnp.where(present, (rank * 64 + phrase) * 64 + place, 2**30))
    return {
        "num_sentences": present.sum(dtype=jnp.int32),
        "said": (packed >> 6 & 63).astype(jnp.int32),
        "place": (packed & 63).astype(jnp.int32),
    }


GOAL = Template(
    (
        Choice("verb", VERBS),
        Literal(" "),
        Choice("first", DESCRIPTIONS),
        Repeat("num_second", 1, (Choice("link", LINKS), Literal(" "), Choice("second", DESCRIPTIONS))),
    )
)
SENTENCES = Template(
    (
        Repeat(
            "num_sentences",
            MAX_SENTENCES,
            (Literal("You "), Choice("said", SAID), Choice("place", PLACES)),
            separator=", ",
            empty=NOTHING,
        ),
    )
)
OBSERVATION = "Goal of the agent: " + GOAL + "\nObservation: " + SENTENCES

# The agent's view for a tiny model: G what the next instruction is about, T the other description, O other things.
VIEW_SYMBOLS = ("_", "X", "P", "*", "O", "G", "T")
_VIEW_EMPTY, _VIEW_WALL, _VIEW_FREE_HANDS, _VIEW_CARRYING, _VIEW_THING, _VIEW_GOAL, _VIEW_OTHER = range(7)


def _view(state: BabyAIState, code: jax.Array) -> jax.Array:
    """Draws the view as indices into `VIEW_SYMBOLS`: `rules.codes(state)`, int32 [49], -> int32 [49], row by row."""
    place = rules.view_index(state)
    first, second = rules.matches(state, 0), rules.matches(state, 1)
    later = state.done > 0
    useful = (state.kinds == rules.KEY) & (state.colours == state.colours[rules.DOOR_SLOT])
    useful = useful & (state.mission == rules.OPEN_DOOR)
    is_goal, is_secondary = jnp.where(later, second, first), jnp.where(later, False, second | useful)
    symbol = jnp.where(is_goal, _VIEW_GOAL, jnp.where(is_secondary, _VIEW_OTHER, _VIEW_THING))
    cells = np.arange(rules.VIEW**2)
    at = (cells[:, None] == place) & (place != rules.HERE)
    things = jnp.sum(at * symbol, axis=1)
    drawn = jnp.where(code & 7 == rules.WALL, _VIEW_WALL, jnp.where((code > 0) & (things > 0), things, _VIEW_EMPTY))
    agent = jnp.where(state.carrying >= 0, _VIEW_CARRYING, _VIEW_FREE_HANDS)
    drawn = jnp.where(cells == rules.HERE, agent, drawn)
    # From 7 * column + row to reading order.
    return drawn.reshape(rules.VIEW, rules.VIEW).T.reshape(-1).astype(jnp.int32)


# The whole world as a drawing, a letter for each kind of thing and colour.
_THING_WORDS = tuple(_name(kind, colour) for kind in THINGS for colour in _COLOURS)
_DOOR_WORDS = tuple(f"{state.split()[1]} {_name(rules.DOOR, colour)}" for state in DOOR_STATES for colour in _COLOURS)
WORLD_SYMBOLS = (".", "#", ">", "v", "<", "^", *"ABCDEFGHIJKLMNOPQR", *"abcdefghijklmnopqr")
LEGEND = dict(zip(WORLD_SYMBOLS, ("free", "wall", *4 * ("agent",), *_THING_WORDS, *_DOOR_WORDS), strict=True))
_WORLD_AGENT = 2
_WORLD_THING, _WORLD_DOOR = 6, 6 + len(_THING_WORDS)


def _world(state: BabyAIState) -> jax.Array:
    """Draws the whole world as indices into `WORLD_SYMBOLS`, int32 [8 * 15], row by row."""
    x, y = np.arange(rules.WIDTH), np.arange(rules.HEIGHT)[:, None]
    thing = _WORLD_THING + (state.kinds - rules.KEY) * len(_COLOURS) + state.colours
    door = _WORLD_DOOR + state.door * len(_COLOURS) + state.colours
    symbol = jnp.where(state.kinds == rules.DOOR, door, thing)
    cells = jnp.where(rules.wall(x, y, state.mission), 1, 0)
    for i in range(rules.NUM_OBJECTS):
        cells = jnp.where((state.xs[i] == x) & (state.ys[i] == y), symbol[i], cells)
    cells = jnp.where((state.x == x) & (state.y == y), _WORLD_AGENT + state.direction, cells)
    return cells.reshape(-1).astype(jnp.int32)


@in_blocks
def _goals_and_sentences(state: BabyAIState) -> dict[str, jax.Array]:
    """Computes the fields of `texts`; takes and returns a leading axis [N]."""
    return goal_fields(state) | sentence_fields(state, rules.codes(state))


def texts(states: BabyAIState) -> list[tuple[str, str]]:
    """Writes (mission, observation) of each state, leading axis [N], on the host.

    Such as ("go to the green key", "You carry a blue ball, You see a wall 2 steps forward, ...").
    """
    values = {name: array.tolist() for name, array in _goals_and_sentences(states).items()}
    result = []
    for i in range(len(states.time)):
        goal = f"{VERBS[values['verb'][i]]} {DESCRIPTIONS[values['first'][i]]}"
        if values["num_second"][i]:
            goal += f"{LINKS[values['link'][i][0]]} {DESCRIPTIONS[values['second'][i][0]]}"
        sentences = zip(values["said"][i], values["place"][i], strict=True)
        sentences = itertools.islice(sentences, values["num_sentences"][i])
        observation = ", ".join(f"You {SAID[phrase]}{PLACES[place]}" for phrase, place in sentences)
        result.append((goal, observation or NOTHING))
    return result


VIEW_GRID = grid_text.grid(VIEW_SYMBOLS, rules.VIEW, "view")
_WORLD_CELLS = [Choice("world", WORLD_SYMBOLS, cell) for cell in range(rules.WIDTH * rules.HEIGHT)]
WORLD_GRID = grid_text.drawn(_WORLD_CELLS, rules.WIDTH)
