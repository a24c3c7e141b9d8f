import jax
import numpy as np

from nlrl_jax.envs.random_cells import pack, random_cell


def test_random_cell_is_uniform_over_the_set_cells():
    mask = np.random.default_rng(0).random(36) < 0.3
    words = jax.random.bits(jax.random.key(1), (20_000,))
    draw = jax.jit(jax.vmap(lambda word, mask: random_cell(word, pack(mask, 6), 6), (0, None)))
    counts = np.bincount(draw(words, mask), minlength=36)
    np.testing.assert_array_equal(counts > 0, mask)
    np.testing.assert_allclose(counts[mask] / 20_000, 1 / mask.sum(), atol=0.015)
    assert (draw(words[:4], np.zeros(36, bool)) == 36).all()
