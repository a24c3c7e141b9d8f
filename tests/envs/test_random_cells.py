import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs.random_cells import pack, pack_cell, random_cell, random_choice


def test_random_cell_is_uniform_over_the_set_cells():
    mask = np.random.default_rng(0).random(36) < 0.3  # in two words
    words = jax.random.bits(jax.random.key(1), (20_000,))
    draw = jax.jit(jax.vmap(lambda word, mask: random_cell(word, pack(mask)), (0, None)))
    counts = np.bincount(draw(words, mask), minlength=36)
    np.testing.assert_array_equal(counts > 0, mask)
    np.testing.assert_allclose(counts[mask] / 20_000, 1 / mask.sum(), atol=0.015)
    assert (draw(words[:4], np.zeros(36, bool)) >= 36).all()


def test_a_word_chooses_the_element_of_its_rank():
    for length in (4, 100, 1024):
        mask = np.random.default_rng(length).random(length) < 0.5
        mask[-1] = True
        chosen = np.flatnonzero(mask)
        words = np.uint32([0, 1, len(chosen) - 1, len(chosen), 4_000_000_000])
        expected = chosen[words % len(chosen)]
        np.testing.assert_array_equal(jax.vmap(lambda word, mask=mask: random_cell(word, pack(mask)))(words), expected)
        if length == 4:
            np.testing.assert_array_equal(jax.vmap(lambda word, mask=mask: random_choice(word, mask))(words), expected)


def test_a_packed_cell_is_the_packed_mask_of_it():
    for cell in (0, 23, 24, 99):
        np.testing.assert_array_equal(pack_cell(jnp.int32(cell), 5), pack(jnp.arange(100) == cell))
    assert not pack_cell(jnp.int32(-1), 5).any()
