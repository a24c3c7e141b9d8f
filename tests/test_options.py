"""Configs of configs: bounds, parts, flat names."""

import dataclasses
import math

import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.config import MOST_SEED, OptionError, check, check_seed, flat, make, option, options, part, replace
from nlrl_jax.envs.tic_tac_toe import rules
from nlrl_jax.launch.train_dqn import DQNRunConfig
from nlrl_jax.launch.train_ms_grpo import TrainConfig
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.run.ultra.config import RefinementConfig
from nlrl_jax.text.host import of_text_game


@dataclasses.dataclass(frozen=True)
class Oven:
    heat: float = option(180.0, "degrees", least=0, below=300)
    shelf: int = option(1, "which", least=1, most=3)
    door: str = option("shut", "open or shut", choices=("open", "shut"))
    light: bool = option(True, "whether")
    minutes: int | str = option("auto", "how long", least=0, auto=True)
    maker: str = "ours"  # no option

    def __post_init__(self):
        check(self)
        if self.door == "open" and self.heat > 0:
            raise ValueError("an open oven is not heated")


@dataclasses.dataclass(frozen=True)
class Cake:
    size: int = option(3, "how large", least=1)
    floor: float = option(-math.inf, "the least", infinite=True)
    oven: Oven = part(Oven(heat=200.0), names={"heat": "oven_heat"}, without=("light",))

    def __post_init__(self):
        check(self)


def test_options_are_flat_with_the_parts_own_names_and_defaults():
    assert flat(Cake()) == {
        "size": 3,
        "floor": -math.inf,
        "oven_heat": 200.0,
        "shelf": 1,
        "door": "shut",
        "minutes": "auto",
    }
    by_name = {one.name: one for one in options(Cake)}
    assert by_name["oven_heat"].group is Oven and by_name["oven_heat"].path == ("oven", "heat")


def test_a_config_that_extends_another_lists_its_own_options_first():
    @dataclasses.dataclass(frozen=True)
    class Gateau(Cake):
        layers: int = option(2, "how many")

    assert list(flat(Gateau())) == ["layers", *flat(Cake())]


def test_make_and_replace_take_flat_names():
    cake = make(Cake, oven_heat=100.0, size=5)
    assert cake == Cake(size=5, oven=Oven(heat=100.0))
    assert replace(cake, shelf=2, door="shut").oven == Oven(heat=100.0, shelf=2)
    with pytest.raises(TypeError, match="Cake has no option 'light'; it has size"):
        replace(cake, light=False)


@pytest.mark.parametrize(
    "values, says",
    [
        ({"size": 0}, "size is 0; it must be at least 1"),
        ({"oven_heat": -1.0}, "oven_heat is -1.0; it must be at least 0 and below 300"),
        ({"oven_heat": 300.0}, "oven_heat is 300.0"),
        ({"oven_heat": math.nan}, "oven_heat is nan"),
        ({"shelf": 4}, "shelf is 4; it must be at least 1 and at most 3"),
        ({"door": "ajar"}, "door is 'ajar'; choose one of open, shut"),
        ({"floor": math.nan}, "floor is nan; it must be a number"),
        ({"size": 2**31}, "size is 2147483648; it must be at least 1 and at most 2147483647"),
        ({"floor": -1e39}, "floor is -1e\\+39; it must be at least -3.4e\\+38"),
        ({"size": "3"}, "size is '3'; it must be a whole number"),
        ({"size": 2.5}, "size is 2.5; it must be a whole number"),
        ({"oven_heat": None}, "oven_heat is None; it must be a number"),
        ({"door": 1}, "door is 1; it must be text"),
        ({"minutes": "long"}, "minutes is 'long'; it must be a whole number or auto"),
        ({"minutes": -2}, "minutes is -2; it must be at least 0"),
    ],
)
def test_a_value_out_of_its_bounds_is_named_as_the_option_is(values, says):
    with pytest.raises(OptionError, match=f"^{says}"):
        make(Cake, **values)


def test_auto_is_a_word_which_runs_of_earlier_versions_stored_as_minus_one():
    assert make(Cake, minutes=-1) == make(Cake, minutes="auto") == Cake()
    assert make(Cake, minutes=0).oven.minutes == 0


def test_inclusive_bounds_are_allowed():
    assert make(Cake, size=1, oven_heat=0.0, shelf=3).oven.shelf == 3
    assert make(Cake, size=2**31 - 1).size == 2**31 - 1


def test_rules_between_fields_hold_in_parts_and_infinity_must_be_allowed():
    with pytest.raises(ValueError, match="an open oven is not heated"):
        make(Cake, door="open")
    assert make(Cake, door="open", oven_heat=0.0, floor=math.inf).floor == math.inf


def test_two_options_of_one_name_are_a_mistake_in_the_config():
    @dataclasses.dataclass(frozen=True)
    class Twice:
        heat: float = option(1.0, "of the room")
        oven: Oven = part(Oven())

    with pytest.raises(TypeError, match="Twice has two options named heat"):
        options(Twice())


@pytest.mark.parametrize("config", [DQNRunConfig, TrainConfig, SFTConfig, RefinementConfig])
@pytest.mark.parametrize("seed", [-1, MOST_SEED + 1, 10**20])
def test_seeds_that_do_not_fit_a_key_are_refused(config, seed):
    with pytest.raises(OptionError, match=f"seed is {seed}; it must be at least 0 and at most"):
        make(config, seed=seed)


def test_seeds_become_keys_unchanged():
    assert check_seed(MOST_SEED) == MOST_SEED
    for wrong in (-1, MOST_SEED + 1, 1.0, True, None):
        with pytest.raises(ValueError, match="it must be an integer from 0 to 4294967295"):
            check_seed(wrong)
    with pytest.raises(ValueError, match="seed is 4294967296; it must be"):
        random_views(rules.board_game(), 1, 2**32)
    with pytest.raises(ValueError, match="seed is 4294967296; it must be"):
        of_text_game(envs.make("frozen_lake")).reset([("", 2**32)])
