import jax
import numpy as np
import pytest

from nlrl_jax.envs.crafter import engine, text
from nlrl_jax.weights.load import load_model
from tests.envs.crafter_worlds import game, played, row, state_of
from tests.text.observations import compiled_texts

MOVES = {1: (0, -1), 2: (0, 1), 3: (-1, 0), 4: (1, 0)}
WORDS = {
    "WATER": "water", "STONE": "stone", "TREE": "a tree", "COAL": "coal", "IRON": "iron", "DIAMOND": "a diamond",
    "CRAFTING_TABLE": "a table", "FURNACE": "a furnace", "LAVA": "lava", "PLANT": "a young plant",
    "RIPE_PLANT": "a ripe plant",
}  # fmt: skip
GROUND = {"GRASS": "grass", "SAND": "sand", "PATH": "a path"}


def at(world, south, east):
    """What a cell holds: a creature before the ground, and an arrow only where there is no other."""
    row, column = world.player_position + np.array([south, east])
    for kind, word in (("zombies", "zombie"), ("cows", "cow"), ("skeletons", "skeleton"), ("arrows", "arrow")):
        mobs = getattr(world, kind)
        for position, alive in zip(mobs.position, mobs.mask):
            if alive and tuple(position) == (row, column):
                return f"an {word}" if word == "arrow" else f"a {word}"
    if not (0 <= row < 64 and 0 <= column < 64):
        return "the edge of the world"
    block = engine.BlockType(world.map[row, column]).name
    return WORDS.get(block) or GROUND[block]


def said(world):
    """The observation, cell by cell."""
    nearest = {}
    for south in range(-3, 4):
        for east in range(-4, 5):
            thing = at(world, south, east)
            steps = abs(south) + abs(east)
            if thing in GROUND.values() or thing == "the edge of the world" or not steps:
                continue
            if thing not in nearest or steps < nearest[thing][0]:
                nearest[thing] = steps, south, east
    order = [*WORDS.values(), "a zombie", "a cow", "a skeleton", "an arrow"]
    lines = []
    for thing, (_, south, east) in sorted(nearest.items(), key=lambda pair: (pair[1][0], order.index(pair[0]))):
        way = []
        if south:
            way.append(f"{abs(south)} step{'s' if abs(south) > 1 else ''} {'south' if south > 0 else 'north'}")
        if east:
            way.append(f"{abs(east)} step{'s' if abs(east) > 1 else ''} {'east' if east > 0 else 'west'}")
        lines.append(f"{thing} {' and '.join(way)}")
    seen = ", ".join(lines) or "nothing but open ground"
    carried = [f"{n} {k.replace('_', ' ')}" for k in engine.ITEMS if (n := int(getattr(world.inventory, k)))]
    return (
        f"You see {seen}. You face {at(world, *MOVES[int(world.player_direction)])}. "
        f"{'You are asleep. ' if world.is_sleeping else ''}Health {world.player_health}, food {world.player_food}, "
        f"drink {world.player_drink}, energy {world.player_energy}. You carry {', '.join(carried) or 'nothing'}."
    )


def states():
    """Played ones, and some made by hand for what random play does not meet."""
    ores = {(-1, 0): "coal", (-2, 1): "iron", (3, 4): "diamond", (3, -4): "table", (0, 4): "furnace", (2, 2): "lava"}
    made = [
        state_of(blocks=ores, items=dict.fromkeys(engine.ITEMS, 9), is_sleeping=True),
        state_of("path", mobs=[("zombies", 0, 1), ("arrows", 0, 1), ("skeletons", -2, 0), ("arrows", 3, 3)]),
        state_of(facing="right", blocks={(0, 1): "ripe_plant", (0, -2): "plant", (4, 0): "tree", (0, 5): "tree"}),
        state_of(player_position=np.int32([0, 63]), facing="right"),
        state_of(player_position=np.int32([63, 0]), facing="down"),
        state_of(blocks={(-2, 0): "tree", (0, -2): "tree", (0, 2): "tree"}),
    ]
    old = played()
    some = [row(old, i) for i in range(len(old.time))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *some, *made)


def fields_of(states, prompt="paper"):
    return jax.device_get(jax.jit(jax.vmap(game(prompt).fields))(states))


def test_words_are_those_of_a_slow_reference():
    given = states()
    fields, written = fields_of(given), []
    for i in range(len(given.time)):
        written.append(game().observation.render({name: values[i] for name, values in fields.items()}))
        assert written[-1] == said(row(given, i).world)
    whole = "\n".join(written)
    for words in (*WORDS.values(), *GROUND.values(), "You are asleep", "the edge of the world", "a cow", "an arrow"):
        assert words in whole
    assert text.NOTHING_SEEN in whole and "carry nothing" in whole
    assert "You see a tree 2 steps north. You face" in written[-1]  # of equally near ones the first in reading order


@pytest.mark.parametrize("prompt", ["paper", "compact"])
def test_compiled_text_is_the_host_text(prompt):
    _, _, tokenizer = load_model("nano")
    given = jax.tree.map(lambda leaf: leaf[::3], states())
    assert len(set(compiled_texts(game(prompt).observation, tokenizer, fields_of(given, prompt)))) > 50


def test_compact_text_and_board():
    state = state_of(facing="left", blocks={(-3, -4): "tree", (0, 1): "water"}, mobs=[("cows", 3, 4)])
    one = {name: values[0] for name, values in fields_of(jax.tree.map(lambda leaf: leaf[None], state)).items()}
    drawn = game().board.render(one).splitlines()
    assert drawn == ["T , , , , , , , ,", *2 * [", , , , , , , , ,"], ", , , , < W , , ,", *2 * [", , , , , , , , ,"],
                     ", , , , , , , , c"]  # fmt: skip
    lines = game("compact").observation.render(one).splitlines()
    assert lines[:-1] == drawn and lines[-1] == "Health 9, food 9, drink 9, energy 9. You carry nothing."
    legend = game().legend
    assert (
        legend["T"] == "tree" and legend["<"] == "you" and legend["W"] == "water" and legend["X"] == "edge of the world"
    )
    assert set(" ".join(drawn)) - {" "} <= set(legend)
    assert len(set(text.SYMBOLS)) == len(text.SYMBOLS)
