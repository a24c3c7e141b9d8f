"""A mixture of experts beside the sum that it stands for, written out over all experts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import experts
from nlrl_jax.lm.sharding import make_mesh

SIZES = {  # T, E, k
    "one token": (1, 8, 2),
    "few tokens, of which each block takes all": (6, 5, 3),
    "more pairs than one block of each expert": (100, 4, 2),
    "experts without a token": (20, 64, 1),
    "all experts": (9, 3, 3),
}
H, F = 12, 10


def weights(E, key=0):
    keys = jax.random.split(jax.random.key(key), 4)
    gates, ups = (jax.random.normal(k, (E, H, F)) / 4 for k in keys[:2])
    return jax.random.normal(keys[2], (H, E)), experts.Matrices(gates, ups, jax.random.normal(keys[3], (E, F, H)) / 4)


def over_all_experts(x, router, matrices, k, renormalise):
    """Every token through every expert; those that are not chosen count nothing."""
    probabilities = jax.nn.softmax(x @ router, axis=-1)
    kth = jnp.sort(probabilities, axis=-1)[:, -k][:, None]
    chosen = jnp.where(probabilities >= kth, probabilities, 0)
    if renormalise:
        chosen = chosen / chosen.sum(-1, keepdims=True)
    h = jax.nn.silu(jnp.einsum("th,ehf->tef", x, matrices.gates)) * jnp.einsum("th,ehf->tef", x, matrices.ups)
    return jnp.einsum("tef,efh,te->th", h, matrices.downs, chosen)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("T, E, k", SIZES.values(), ids=SIZES)
def test_it_is_the_weighted_sum_of_the_chosen_experts(T, E, k, renormalise, platform):
    x, (router, matrices) = jax.random.normal(jax.random.key(T), (T, H)), weights(E)

    def loss(layer):
        return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(layer(*args))), argnums=(0, 1, 2)))

    def mixture(x, router, matrices):
        return experts.mix(x, *experts.route(x @ router, k, renormalise), matrices, jax.nn.silu, platform)

    expected = loss(lambda *args: over_all_experts(*args, k, renormalise))(x, router, matrices)
    for got, value in zip(*map(jax.tree.leaves, (loss(mixture)(x, router, matrices), expected))):
        np.testing.assert_allclose(got, value, atol=2e-5)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_an_expert_that_no_token_chose_is_not_read(platform):
    router, matrices = weights(64)
    x = jax.random.normal(jax.random.key(1), (5, H))
    weights_Tk, experts_Tk = experts.route(x @ router, 2, True)
    chosen = set(experts_Tk.ravel().tolist())
    others = np.array(sorted(set(range(64)) - chosen))
    assert 63 in others
    # Those of blocks that hold no pair and are computed beside others, too.
    assert set(experts.plan(experts_Tk, 64, platform, at_once=16).experts.tolist()) == chosen
    spoiled = experts.Matrices(*(matrix.at[others].set(jnp.nan) for matrix in matrices))
    args = jax.nn.silu, platform
    expected = experts.mix(x, weights_Tk, experts_Tk, matrices, *args)
    np.testing.assert_array_equal(experts.mix(x, weights_Tk, experts_Tk, spoiled, *args), expected)


def test_an_expert_is_read_once_for_few_tokens():
    chosen = jnp.array([[0, 3], [3, 1], [0, 3]])
    blocks = experts.plan(chosen, num_experts=5)
    assert blocks.used == 3 and blocks.experts[:3].tolist() == [0, 1, 3]
    assert [sorted(set(row) - {6}) for row in blocks.pairs[:3].tolist()] == [[0, 4], [3], [1, 2, 5]]


def test_blocks_at_once_are_as_many_as_the_platform_and_their_matrices_allow():
    def at_once(platform, expert_size):
        wide, tall = (
            jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 4096, expert_size), (8, expert_size, 4096))
        )
        return experts.blocks_at_once(experts.Matrices(wide, wide, tall), platform)

    assert [at_once("cpu", 64), at_once("gpu", 64), at_once("gpu", 2048), at_once("gpu", 14336)] == [1, 16, 5, 1]


def test_every_pair_has_its_place():
    chosen = jax.random.randint(jax.random.key(0), (200, 3), 0, 7)
    blocks = experts.plan(chosen, 7)
    b = blocks.pairs.shape[1]
    assert b < 200  # several blocks of an expert
    np.testing.assert_array_equal(blocks.pairs.reshape(-1)[blocks.places], np.arange(600))
    np.testing.assert_array_equal(blocks.experts[blocks.places // b], chosen.reshape(-1))
    assert int(blocks.used) == sum(-(-n // b) for n in np.bincount(chosen.reshape(-1)))


@pytest.mark.parametrize("batch, width", [(4, 10), (1, 10), (4, 9)], ids=["all axes", "one row", "an odd width"])
def test_a_mesh_changes_nothing(batch, width):
    router, matrices = weights(8)
    matrices = experts.Matrices(matrices.gates[..., :width], matrices.ups[..., :width], matrices.downs[:, :width])
    x = jax.random.normal(jax.random.key(2), (batch, 5, H))

    def loss(mesh):
        def of(x, router, matrices):
            return jnp.sum(jnp.sin(experts.mixture(x, router, matrices, 2, True, jax.nn.silu, mesh)))

        return jax.tree.leaves(jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2)))(x, router, matrices))

    for got, value in zip(loss(make_mesh(2, 2, 2)), loss(None)):
        np.testing.assert_allclose(got, value, atol=1e-5)
