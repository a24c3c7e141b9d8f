"""The checksum of an array is that of its parts, however it is divided, and no other array's."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.weights import checksum
from nlrl_jax.weights.checksum import checksums, part

DTYPES = ("float32", "bfloat16", "float16", "int8", "bool", "int32", "float64", "complex64", "uint16")


def make(dtype, shape=(6, 4, 5)):
    bits = np.random.default_rng(0).integers(0, 2, (*shape, 64), np.uint8)
    if dtype == "bool":
        return bits[..., 0].astype(bool)
    dtype = jnp.dtype(dtype)
    return np.packbits(bits, axis=-1)[..., : dtype.itemsize].copy().view(dtype)[..., 0]


def by_hand(array):
    """The definition, element by element in Python's integers."""
    words = np.frombuffer(array.tobytes(), f"u{min(array.dtype.itemsize, 4)}")
    per = array.dtype.itemsize // 4 or 1
    shape = (*array.shape[:-1], array.shape[-1] * per)
    factors = [checksum._factors(axis, 0, n).tolist() for axis, n in enumerate(shape)]
    total = 0
    for at, word in zip(itertools.product(*map(range, shape)), words.tolist(), strict=True):
        for axis, i in enumerate(at):
            word = word * factors[axis][i]
        total += word
    return total % 2**32


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_add_up(dtype, monkeypatch):
    array = make(dtype)
    whole = part(array, (0, 0, 0))
    assert whole == by_hand(array)
    for axis, cut in ((0, 1), (0, 4), (1, 3), (2, 2)):
        parts = np.split(array, [cut], axis)
        begins = [[0] * 3, [cut * (n == axis) for n in range(3)]]
        assert sum(part(one, begin) for one, begin in zip(parts, begins, strict=True)) % 2**32 == whole
    monkeypatch.setattr(checksum, "_BLOCK", 7)
    assert part(array, (0, 0, 0)) == whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_counts(dtype):
    array = make(dtype, (3, 2, 2))
    whole = part(array, (0, 0, 0))
    for i in range(array.nbytes if dtype != "bool" else 0):
        for bit in (0, 7):
            other = array.copy()
            other.reshape(-1).view(np.uint8)[i] ^= 1 << bit
            assert part(other, (0, 0, 0)) != whole
    if dtype == "bool":
        assert all(part(array ^ flip, (0, 0, 0)) != whole for flip in np.eye(12, dtype=bool).reshape(12, 3, 2, 2))


def test_places_count():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    whole = part(array, (0, 0))
    for other in (array[::-1], array[:, ::-1], array.T.reshape(4, 6), np.roll(array, 1), array[[1, 0, 2, 3]]):
        assert part(other, (0, 0)) != whole
    assert part(array.T.copy().T, (0, 0)) == whole  # as it lies in memory does not


def test_odd_shapes():
    assert part(np.zeros((0, 3)), (0, 0)) == part(np.zeros((3, 0)), (0, 0)) == 0
    assert part(np.float32(1.5), ()) == part(np.array([1.5], np.float32), (0,)) != 0


def test_arrays_on_devices_are_as_on_the_host():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    placed = jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.P("data")))
    assert len({*checksums({"a": array, "b": placed, "c": jnp.array(array)}).values()}) == 1


def test_what_no_process_holds_whole_is_added_up(monkeypatch):
    """Two processes, each of which sees one device of two."""
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    placed = jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.P(None, "data")))
    monkeypatch.setattr(checksum, "_is_shared", lambda leaf: isinstance(leaf, jax.Array))
    own = [
        part(np.asarray(one.data), [one.index[0].start or 0, one.index[1].start]) for one in placed.addressable_shards
    ]
    asked = []
    monkeypatch.setattr(checksum.multihost, "every", lambda value: asked.append(value) or [[own[0]], [own[1]]])
    assert checksums({"x": placed, "host": array})["x"] == part(array, (0, 0))
    assert asked == [[sum(own) % 2**32]]  # this process holds both
