"""Flags out of a dataclass: a flag that is given beats the preset, which beats the default."""

from __future__ import annotations

import dataclasses

import pytest
from absl import flags

from nlrl_jax.config import option
from nlrl_jax.run import flags as config_flags


@dataclasses.dataclass(frozen=True)
class Config:
    cake_size: int = option(3, "how large")
    cake_name: str = option("plain", "which")
    cake_share: float = option(0.5, "how much")
    cake_eaten: bool = option(False, "whether")
    cake_layers: int | str = option("auto", "how many", least=0, auto=True)
    cake_lit: str = option("auto", "whether", choices=("auto", "on", "off"), switch=True, before="off")


PRESETS = {"feast": {"cake_size": 9, "cake_eaten": True}, "paper": {}}


@pytest.fixture(autouse=True)
def defined():
    before = set(flags.FLAGS)
    config_flags.define(Config, PRESETS)
    yield
    for flag in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, flag)


@pytest.mark.parametrize(
    "args, want",
    [
        ([], Config()),
        (["--preset=paper"], Config()),
        (["--preset=feast"], Config(cake_size=9, cake_eaten=True)),
        (["--preset=feast", "--cake_size=3"], Config(cake_size=3, cake_eaten=True)),
        (["--cake_size=3", "--preset=feast"], Config(cake_size=3, cake_eaten=True)),
        (["--preset", "feast", "--nocake_eaten", "--cake_share", "0"], Config(9, "plain", 0.0, False)),
        (["--cake_name=", "--cake_eaten"], Config(cake_name="", cake_eaten=True)),
        (["--cake_layers=-1"], Config()),
        (["--cake_layers=auto"], Config()),
        (["--cake_layers=2e0"], Config(cake_layers=2)),
        (["--cake_lit"], Config(cake_lit="on")),
        (["--cake_lit", "on", "--cake_size=4"], Config(4, cake_lit="on")),
        (["--cake_lit", "--cake_size=4"], Config(4, cake_lit="on")),
        (["--nocake_lit"], Config(cake_lit="off")),
        (["--cake_lit=auto"], Config()),
    ],
)
def test_given_beats_preset_beats_default(args, want):
    flags.FLAGS(config_flags.join_switches(["prog", *args]))
    assert config_flags.parse(Config, PRESETS) == want


def test_a_stored_run_that_lacks_an_option_has_what_held_before_it():
    flags.FLAGS(["prog"])
    assert config_flags.parse(Config, stored={"cake_size": 4}) == Config(4, cake_lit="off")
    assert config_flags.parse(Config, stored={"cake_lit": True}) == Config(cake_lit="on")
    assert config_flags.parse(Config, stored={"cake_lit": False, "cake_layers": -1}) == Config(cake_lit="off")


def test_help_names_the_default_and_the_presets():
    assert flags.FLAGS["cake_size"].help == "how large (default: 3)"
    assert "feast: cake_size=9, cake_eaten=True" in flags.FLAGS["preset"].help


def test_without_presets_there_is_no_such_flag():
    flags.FLAGS(["prog", "--cake_size=4"])
    assert config_flags.parse(Config) == Config(cake_size=4)


@pytest.mark.parametrize(
    "args, want", [([], Config(cake_size=5)), (["--preset=paper"], Config()), (["--cake_size=3"], Config(cake_size=3))]
)
def test_what_holds_without_a_preset(args, want):
    flags.FLAGS(["prog", *args])
    assert config_flags.parse(Config, {**PRESETS, None: {"cake_size": 5}}) == want


def test_an_option_that_does_nothing_is_refused_where_it_is_given():
    flags.FLAGS(["prog", "--cake_size=3"])
    config_flags.leave_out("without guests", "cake_name", "no_such_flag")
    with pytest.raises(ValueError, match="^--cake_size does nothing without guests; leave it out$"):
        config_flags.leave_out("without guests", "cake_name", "cake_size")


@pytest.mark.parametrize("args", [["--cakes=2147483648"], ["--sugar=nan"], ["--sugar=1e400"]])
def test_numbers_of_flags_without_a_config_have_bounds_too(args):
    flags.DEFINE_integer("cakes", 1, "how many")
    flags.DEFINE_float("sugar", 1.0, "how much")
    flags.FLAGS(["prog", "--cakes=2147483647"])
    config_flags.check_numbers()
    flags.FLAGS(["prog", *args])
    with pytest.raises(ValueError, match="it must be at least -2147483648 and at most 2147483647|a finite number"):
        config_flags.check_numbers()


@pytest.mark.parametrize(
    "args",
    [["--preset=orgy"], ["--cake_size=big"], ["--cake_colour=red"], ["--cake_layers=two: .* number or auto"]],
)
def test_unknown_presets_values_and_flags_are_refused(args):
    name, _, says = args[0][2:].partition("=")
    argument, _, reason = says.partition(": ")
    with pytest.raises(flags.Error, match=f"{name}.*{reason}"):
        flags.FLAGS(["prog", f"--{name}={argument}"])
