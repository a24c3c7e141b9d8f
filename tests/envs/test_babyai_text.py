import functools

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.babyai import rules, text
from nlrl_jax.weights.load import load_model
from tests.envs.babyai_worlds import pick, random_walks
from tests.text.observations import compiled_texts

KINDS = {4: "door", 5: "key", 6: "ball", 7: "box"}


@functools.cache
def walked():
    """States of all missions after none to 12 random actions: leaves [1560, ...]."""
    states, _ = random_walks(games=120, moves=12, seed=5, odds=(2, 2, 4, 3, 1, 1))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states)


def noun(kind, colour):
    return f"{rules.COLOURS[colour]} {KINDS[int(kind)]}"


def said(state, image):
    """The observation, read off minigrid's image by the paper's rules."""
    lines = []
    if state.carrying >= 0:
        lines.append(f"You carry a {noun(state.kinds[state.carrying], state.colours[state.carrying])}")
    for right, ahead, word in ((0, 1, "forward"), (-1, 0, "left"), (1, 0, "right")):
        for steps in range(1, 7):
            i, j = 3 + right * steps, 6 - ahead * steps
            if not 0 <= i < 7 or image[i, j, 0] > 1:
                if 0 <= i < 7 and image[i, j, 0] == 2:
                    lines.append(f"You see a wall {steps} step{'s' * (steps > 1)} {word}")
                break
    for i in range(7):
        for j in range(7):
            kind, colour, door = image[i, j].tolist()
            if kind < 4 or (i, j) == (3, 6):
                continue
            parts = []
            if i != 3:
                parts.append(f"{abs(i - 3)} step{'s' * (abs(i - 3) > 1)} {'left' if i < 3 else 'right'}")
            if j != 6:
                parts.append(f"{6 - j} step{'s' * (6 - j > 1)} forward")
            article = f"a{'n open' if door == 0 else ' closed' if door == 1 else ' locked'}" if kind == 4 else "a"
            lines.append(f"You see {article} {noun(kind, colour)} {' and '.join(parts)}")
    return ", ".join(lines) or "You see nothing"


def asked(state):
    """The mission's sentence."""

    def the(target):
        kind, colour = state.target_kinds[target], state.target_colours[target]
        fitting = sum(pair == (kind, colour) for pair in zip(state.kinds, state.colours))
        return f"{'a' if fitting > 1 else 'the'} {noun(kind, colour)}"

    return [
        lambda: f"go to {the(0)}",
        lambda: f"pick up {the(0)}",
        lambda: f"go to {the(1)} after you pick up {the(0)}",
        lambda: f"pick up {the(0)}, then go to {the(1)}",
        lambda: f"put {the(0)} next to {the(1)}",
        lambda: f"open {the(0)}",
    ][state.mission]()


def test_words_are_those_of_a_slow_reference():
    states = walked()
    written = text.texts(states)
    images = np.asarray(jax.jit(jax.vmap(rules.view))(states))
    for i, (image, (goal, observation)) in enumerate(zip(images, written, strict=True)):
        state = pick(states, i)
        assert goal == asked(state)
        assert observation == said(state, image)
    goals, observations = zip(*written)
    assert len({goal.split()[0] for goal in goals}) == 4 and any(" a " in goal for goal in goals)
    assert any("carry" in line for line in observations) and any("locked" in line for line in observations)


def test_templates_say_the_same():
    states = walked()
    game = envs.make("babyai", mission="all")
    fields = jax.device_get(jax.jit(jax.vmap(game.fields))(states))
    for i, (goal, observation) in enumerate(text.texts(states)[::7]):
        one = {name: values[7 * i] for name, values in fields.items()}
        assert game.observation.render(one) == f"Goal of the agent: {goal}\nObservation: {observation}"


@pytest.mark.parametrize("prompt", ["paper", "compact"])
def test_compiled_text_is_the_host_text(prompt):
    _, _, tokenizer = load_model("nano")
    game = envs.make("babyai", prompt, mission="all")
    states = pick(walked(), slice(None, None, 13))
    assert len(set(compiled_texts(game.observation, tokenizer, jax.vmap(game.fields)(states)))) > 50


def state_of(mission="go to", **changes):
    """A red key at (3, 1), a blue ball at (1, 3), the agent at (3, 3) looking up; the mission is about the key."""
    none = np.full(rules.NUM_OBJECTS, rules.NOWHERE)
    put = lambda array, *values: np.concatenate([values, array[len(values) :]]).astype(np.int32)
    state = pick(walked(), 0).replace(
        time=np.int32(0),
        door=np.int32(0),
        carrying=np.int32(-1),
        done=np.int32(0),
        x=np.int32(3),
        y=np.int32(3),
        direction=np.int32(3),
        kinds=put(0 * none, rules.KEY, rules.BALL),
        colours=put(0 * none, 0, 2),
        xs=put(none, 3, 1),
        ys=put(none, 1, 3),
        noted=put(0 * none - 1, 1 * rules.WIDTH + 3, 3 * rules.WIDTH + 1),
        mission=np.int32(rules.MISSIONS.index(mission)),
        target_kinds=np.int32([rules.KEY, rules.BALL]),
        target_colours=np.int32([0, 2]),
    )
    return state.replace(**changes)


def test_compact_text_and_board():
    game = envs.make("babyai", prompt="compact", mission="put next to")
    fields = jax.device_get(game.fields(state_of("put next to")))
    assert "\n" not in game.rules
    seen = "\n".join(["_ _ _ _ _ _ _"] * 3 + ["X X X X X X X", "X _ _ G _ _ _", "X _ _ _ _ _ _", "X T _ P _ _ _"])
    assert game.observation.render(fields) == seen
    wall, empty = "# # # # # # # # # # # # # # #", "# . . . . . . # # # # # # # #"
    drawn = [wall, empty.replace("# . . .", "# . . A"), empty, "# I . ^ . . . # # # # # # # #", *[empty] * 3, wall]
    assert game.board.render(fields) == "\n".join(drawn)
    assert game.legend["A"] == "red key" and game.legend["I"] == "blue ball"
    assert not set(game.board.render(fields)) - set(game.legend) - set(" \n")


def test_the_compact_view_shows_what_is_carried_and_what_comes_next():
    game = envs.make("babyai", prompt="compact", mission="pick up then go to")
    before = state_of("pick up then go to", y=np.int32(2))
    after = rules.step(before, rules.PICK_UP)
    assert game.observation.render(jax.device_get(game.fields(before))).endswith("X _ _ G _ _ _\nX _ _ P _ _ _")
    assert game.observation.render(jax.device_get(game.fields(after))).endswith("X _ _ _ _ _ _\nX _ _ * _ _ _")
    after = rules.step(rules.step(after, rules.TURN_LEFT), rules.FORWARD)  # now the ball is ahead on the left
    assert game.observation.render(jax.device_get(game.fields(after))).endswith("_ _ G _ _ X _\n_ _ _ * _ X _")


def test_nothing_to_see_is_said():
    state = state_of(xs=np.full(9, rules.NOWHERE, np.int32), ys=np.full(9, rules.NOWHERE, np.int32))
    written = text.texts(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state))[0][1]
    assert written == "You see a wall 3 steps forward, You see a wall 3 steps left"
    game = envs.make("babyai")
    fields = jax.device_get(game.fields(state)) | {"num_sentences": 0}
    assert game.observation.render(fields).endswith("Observation: You see nothing")
