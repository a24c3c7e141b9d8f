import jax
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.crafter.env import ACTIONS
from tests.envs.crafter_worlds import BATCH, fresh, game, row

TASKS = [("", seed) for seed in range(BATCH)]  # always as many, so that one program steps them


@pytest.fixture(scope="module")
def host():
    return envs.make_host("crafter")


def test_it_has_balrogs_horizon_and_our_texts(host):
    assert (host.max_steps, envs.make_host("crafter", 30).max_steps) == (2000, 30)
    assert host.actions == ACTIONS and all(action in host.rules for action in ACTIONS)
    starts = host.reset(TASKS)
    fields = jax.device_get(game().fields(row(fresh(), 5)))
    assert starts[5].observation == game().observation.render(fields) and "\n" not in starts[5].observation
    assert "22 achievements" in starts[5].goal and len(host.board(starts[5].state).splitlines()) == 7
