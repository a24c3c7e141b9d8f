import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import is_valid

from nlrl_jax.envs import frozen_lake as lake
from nlrl_jax.envs import frozen_lake_maps


def gymnasium_map(code: int, size: int) -> list[str]:
    tiles = "S" + "".join("FH"[code >> k & 1] for k in range(size * size - 2)) + "G"
    return [tiles[row * size : (row + 1) * size] for row in range(size)]


@pytest.mark.parametrize(("size", "hole_probability"), [(2, 0.2), (3, 0.5), (4, 0.2)])
def test_table_is_the_distribution_of_rejection_sampling(size, hole_probability):
    table = frozen_lake_maps.map_table(size, hole_probability).astype(np.float64)
    keep = table[:, 0] / 2**32
    got = keep.copy()
    np.add.at(got, table[:, 1].astype(int), 1 - keep)
    got /= len(table)
    inner = size * size - 2
    count = np.array([code.bit_count() for code in range(2**inner)])
    allowed = np.array([is_valid(gymnasium_map(code, size), size) for code in range(2**inner)])
    expected = np.where(allowed, hole_probability**count * (1 - hole_probability) ** (inner - count), 0)
    np.testing.assert_allclose(got, expected / expected.sum(), atol=1e-9)


def test_held_out_maps_are_never_trained_on_and_together_they_are_all():
    env = {maps: lake.FrozenLake(maps=maps) for maps in frozen_lake_maps.MAPS}
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = {maps: {m.tobytes() for m in np.asarray(jax.vmap(e.draw_map)(keys))} for maps, e in env.items()}
    assert not drawn["train"] & drawn["held_out"]
    assert len(drawn["held_out"]) > 50
    tables = {maps: frozen_lake_maps.map_table(4, 0.2, maps) for maps in frozen_lake_maps.MAPS}
    # A row has weight if it keeps some of its own share; every solvable map is in exactly one of the two parts.
    inner = np.arange(2**14)[:, None] >> np.arange(14) & 1
    holes = np.pad(inner.astype(bool), [(0, 0), (1, 1)])
    held = frozen_lake_maps.held_out(np, holes)
    assert 0.10 < held.mean() < 0.15
    np.testing.assert_array_equal(held, np.asarray(frozen_lake_maps.held_out(jnp, jnp.asarray(holes))))
    assert not (tables["train"][held, 0]).any()
    assert not (tables["held_out"][~held, 0]).any()


def test_large_boards_are_split_too():
    env = lake.FrozenLake(size=6, maps="held_out")
    maps = jax.vmap(env.draw_map)(jax.random.split(jax.random.key(1), 64))
    assert frozen_lake_maps.held_out(jnp, maps).all()
    assert lake.solvable(maps, 6).all()
