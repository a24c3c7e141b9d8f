"""ALFWorld's games of our own: what is made, what commands do, walkers, notes. Needs the package alfworld alone."""

import importlib.util
from collections import Counter

import pytest

if importlib.util.find_spec("alfworld") is None:
    pytest.skip("needs alfworld (`make install` puts it there)", allow_module_level=True)

import envs
from envs.alfworld import annotate, games
from envs.alfworld.belief import Belief, read_goal
from envs.alfworld.demonstrations import STEPS, demonstrations
from envs.alfworld.transcripts import EXPERT, KINDS, Walker, walk
from envs.alfworld.world import NOTHING, World, plan
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, History, Step, verdict


@pytest.mark.parametrize("kind", games.KINDS)
def test_games_can_be_won_and_are_not_won_at_their_beginning(kind):
    for split in games.SPLITS:
        for seed in range(30):
            game = games.make(kind, seed, split)
            assert game == games.make(kind, seed, split) and game.plan in games.plans(split)
            holds = games.tables().holds
            things = [name for name, sort in game.objects.items() if sort != "DeskLamp"]
            assert all(game.objects[name] in holds[game.receptacles[game.inside[name]]] for name in things)
            assert read_goal(game.goal) == (kind, game.target.lower(), game.place.lower())
            world = World(game)
            assert not world.won()
            commands = plan(world)
            assert 3 <= len(commands) <= 12
            assert NOTHING not in [world.step(command) for command in commands] and world.won()
            assert not plan(world)


def test_splits_share_no_room():
    rooms = [set(games.plans(split)) for split in games.SPLITS]
    assert [len(one) for one in rooms] == [96, 24] and not rooms[0] & rooms[1]
    for kind in games.KINDS:
        assert all(plan in rooms[1] for plan, _, _ in games.tasks(kind, "unseen"))


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match="no tasks 'fly'"):
        games.make("fly", 0)


def test_a_plan_goes_on_from_anywhere():
    game = games.make("clean", 4)
    world = World(game)
    first = plan(world)
    on_the_way = " ".join(first)
    other, place = next((name, where) for name, where in game.inside.items() if where not in on_the_way)
    for command in (f"go to {place}", f"open {place}", f"take {other} from {place}"):
        world.step(command)
    assert world.held == other
    again = plan(world)
    assert again == [f"put {other} in/on {place}", *first]
    assert NOTHING not in [world.step(command) for command in again] and world.won()


HEATED = (
    ("go to desk 1", "On the desk 1, you see a mug 2, and a pen 1."),
    ("take pen 1 from desk 1", "You pick up the pen 1 from the desk 1."),
    ("put pen 1 in/on desk 1", "You put the pen 1 in/on the desk 1."),
    ("take mug 2 from desk 1", "You pick up the mug 2 from the desk 1."),
    ("go to shelf 1", "On the shelf 1, you see nothing."),
    ("go to microwave 1", "The microwave 1 is closed."),
    ("heat mug 1 with microwave 1", "Nothing happens."),
    ("heat mug 2 with microwave 1", "You heat the mug 2 using the microwave 1."),
    ("go to shelf 1", "On the shelf 1, you see nothing."),
    ("put mug 2 in/on shelf 1", "You put the mug 2 in/on the shelf 1."),
)
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a microwave 1, and a shelf 1."


def test_reflections_follow_the_four_criteria():
    belief, verdicts, notes = Belief("put a hot mug in shelf", ROOM), [], []
    for action, observation in HEATED:
        after = belief.after(action, observation)
        notes.append(annotate.reflection(belief, after, action, observation))
        verdicts.append(verdict(notes[-1]))
        belief = after
    assert verdicts == [GOOD, BAD, GOOD, GOOD, BAD, GOOD, BAD, GOOD, GOOD, GOOD]
    assert notes[0] == "I am at the desk 1. The mug 2 is here. This step is GOOD."
    assert notes[7] == "I have heated the mug 2. The mug 2 has to go to the shelf 1. This step is GOOD."
    assert annotate.value(belief) == "The goal is reached. The value is 4/4." and annotate.reward(belief) == "1"
    start = Belief("put a hot mug in shelf", ROOM)
    away = start.after("go to shelf 1", "On the shelf 1, you see a book 1.")
    assert verdict(annotate.reflection(start, away, "go to shelf 1", "On the shelf 1, you see a book 1.")) == UNKNOWN
    assert annotate.value(start) == "I have not found a mug. The value is 0/4." and annotate.reward(start) == "0"


def test_a_belief_from_a_history_equals_the_one_that_grew_with_it():
    made = walk("put two", 3, Walker(), "Think", 40).history
    belief = Belief(made.goal, made.observation)
    for action, observation, _ in made.steps:
        belief = belief.after(action, observation)
    assert vars(Belief.of(made)) == vars(belief)
    assert Belief.of(History("dance", ROOM, (Step("look", "nothing"),))).next().verb == "find"


def test_an_expert_wins_and_a_flawed_walker_makes_mistakes():
    for kind in games.KINDS:
        expert = [walk(kind, seed, EXPERT, "Critic", 40) for seed in range(10)]
        assert all(one.success for one in expert)
        flawed = [walk(kind, seed, Walker(), "Critic", 40) for seed in range(10)]
        words = lambda made: Counter(verdict(step.note) for one in made for step in one.history.steps)
        assert set(words(expert)) == {GOOD, UNKNOWN} and words(flawed)[BAD] > 10


def test_notes_of_all_kinds():
    for kind in KINDS:
        one = walk("examine", 5, Walker(), kind, 20)
        assert one == walk("examine", 5, Walker(), kind, 20)
        assert bool(one.history.last_note) == (kind in ("Critic", "Reward", "Thought"))
        assert len(one.values) == (len(one.history.steps) + 1 if kind == "Value" else 0)
        assert any(step.observation == "OK" for step in one.history.steps) == (kind == "Think")
    with pytest.raises(ValueError, match="the kind of notes is 'Joke'"):
        walk("put", 0, EXPERT, "Joke", 5)


def test_eighteen_demonstrations_make_about_as_many_pairs_as_the_papers():
    made = envs.demonstrations("alfworld", 12, 6, 0)
    assert [one.success for one in made] == [True] * 12 + [False] * 6
    assert [read_goal(one.history.goal).kind for one in made] == list(games.KINDS) * 3
    assert {len(one.history.steps) for one in made[12:]} == {STEPS}
    assert 400 < sum(2 * len(one.history.steps) for one in made) < 520
    shown = lambda made: {(one.history.goal, one.history.observation, one.history.steps) for one in made}
    sets = [shown(demonstrations(6, 6, *which)) for which in ((0, False), (1, False), (0, True), (1, True))]
    assert len(set.union(*sets)) == 48
