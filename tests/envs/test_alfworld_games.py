"""ALFWorld's generated games: what is made and what commands do. Needs the package alfworld alone."""

import importlib.util

import pytest

if importlib.util.find_spec("alfworld") is None:
    pytest.skip("needs alfworld (`make install` puts it there)", allow_module_level=True)

from nlrl_jax.envs.alfworld import games
from nlrl_jax.envs.alfworld.world import NOTHING, World, plan


@pytest.mark.parametrize("kind", games.KINDS)
def test_games_can_be_won_and_are_not_won_at_their_beginning(kind):
    for split in games.SPLITS:
        for seed in range(30):
            game = games.make(kind, seed, split)
            assert game == games.make(kind, seed, split) and game.plan in games.plans(split)
            holds = games.tables().holds
            things = [name for name, sort in game.objects.items() if sort != "DeskLamp"]
            assert all(game.objects[name] in holds[game.receptacles[game.inside[name]]] for name in things)
            assert game.target.lower() in game.goal and game.place.lower() in game.goal
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
