"""Options of where environments live."""

import pytest

from nlrl_jax.run.host_games.environments import EnvironmentsConfig


@pytest.mark.parametrize("chosen", ["0", "8", "ray", "ray:8"])
def test_choices(chosen):
    assert EnvironmentsConfig(chosen).env_workers == chosen


@pytest.mark.parametrize("chosen", ["", "two", "-1", "ray:", "ray:0"])
def test_other_values_are_refused(chosen):
    with pytest.raises(ValueError, match="it must be a number of processes, ray or ray:N"):
        EnvironmentsConfig(chosen)
