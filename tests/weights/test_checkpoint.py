"""Checkpoints come back bit for bit, or not at all."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import types
import warnings
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax.weights import checkpoint
from nlrl_jax.weights.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]


def make_tree(seed=0, width=8):
    """Adapter, optimizer state and iteration, with awkward numbers in them."""
    lora = {"layer_0": {"a": jax.random.normal(jax.random.key(seed), (4, width)), "b": jnp.zeros((width, 3))}}
    lora["layer_0"]["b"] = lora["layer_0"]["b"].at[0].set(jnp.array([jnp.nan, -0.0, 1e-42]))
    lora["half"] = jax.random.normal(jax.random.key(seed + 1), (5,), jnp.bfloat16)
    return {"lora": lora, "opt_state": optax.adamw(1e-3).init(lora), "iteration": jnp.int32(seed)}


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints 1, 2, 3 of different trees."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        checkpoints.save(step, make_tree(step), {"step": step})
    checkpoints.close()
    return checkpoints


def index_of(folder):
    """(file, contents) of a checkpoint's index."""
    path = next(p for p in (folder / "index").iterdir() if p.is_file() and b"leaves" in p.read_bytes())
    return path, json.loads(path.read_text())


def test_round_trip_is_exact_and_keeps_the_last(saved):
    step, tree, metadata = saved.restore(make_tree())
    assert (step, metadata) == (3, {"step": 3})
    assert_same_bits(tree, make_tree(3))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(tree))
    saved.save(4, make_tree(4))
    saved.wait()
    assert saved.steps() == [2, 3, 4] and saved.latest_step() == 4
    step, tree, _ = saved.restore(make_tree(), step=2)
    assert step == 2
    assert_same_bits(tree, make_tree(2))
    saved.close()


def test_part(saved):
    step, lora = saved.restore_part("lora", make_tree()["lora"])
    assert step == 3
    assert_same_bits(lora, make_tree(3)["lora"])
    _, iteration = saved.restore_part("iteration", jnp.int32(0))
    assert int(iteration) == 3


def test_arrays_may_change_after_save(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    tree = {"x": np.zeros(1 << 22, np.float32)}
    checkpoints.save(1, tree)
    tree["x"][:] = 1.0
    _, restored, _ = checkpoints.restore(tree)
    assert not restored["x"].any()
    checkpoints.close()


def test_arrays_may_be_donated_after_save(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    tree = {"x": jnp.arange(1 << 16, dtype=jnp.float32)}
    checkpoints.save(1, tree)
    update = jax.jit(lambda t: jax.tree.map(lambda x: x * 0 - 1, t), donate_argnums=0)
    jax.block_until_ready(update(tree))
    _, restored, _ = checkpoints.restore({"x": jnp.zeros(1 << 16)})
    np.testing.assert_array_equal(restored["x"], np.arange(1 << 16))
    checkpoints.close()


def test_template_decides_where_arrays_go(saved):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("data"))
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_tree())
    abstract["lora"]["layer_0"]["a"] = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=sharding)
    _, tree, _ = saved.restore(abstract)
    assert tree["lora"]["layer_0"]["a"].sharding == sharding
    assert_same_bits(tree, make_tree(3))
    _, tree, _ = saved.restore(jax.tree.map(np.asarray, make_tree()))
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(tree))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # of Orbax's threads
@pytest.mark.parametrize("damage", ["truncate", "flip", "empty_folder", "index"])
def test_damaged_latest_is_refused_and_the_one_before_used(saved, damage):
    latest = saved.folder / "3"
    if damage == "truncate":
        for path in latest.rglob("d/*"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "flip":
        for path in latest.rglob("d/*"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    elif damage == "empty_folder":
        shutil.rmtree(latest)
        latest.mkdir()
    else:
        path, _ = index_of(latest)
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="checkpoints/3 is refused.*damaged"):
        step, tree, metadata = saved.restore(make_tree())
    assert (step, metadata) == (2, {"step": 2})
    assert_same_bits(tree, make_tree(2))
    with pytest.raises(ValueError, match="refused"):
        saved.restore(make_tree(), step=3)
    # The run goes on from 2 and saves 3 again.
    saved.save(3, make_tree(3), {"again": True})
    saved.close()
    step, tree, metadata = saved.restore(make_tree())
    assert (step, metadata) == (3, {"again": True})
    assert_same_bits(tree, make_tree(3))


def test_checksums_are_compared(saved):
    path, index = index_of(saved.folder / "3")
    index["leaves"]["lora.layer_0.b"]["sum"] ^= 1
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"bytes of leaf lora\.layer_0\.b are not those that were saved"):
        saved.restore(make_tree(), step=3)


def test_crcs_of_older_checkpoints_are_compared(saved):
    path, index = index_of(saved.folder / "3")
    for name, leaf in index["leaves"].items():
        del leaf["sum"]
        if name == "iteration":
            leaf["crc32"] = zlib.crc32(np.int32(3).tobytes())
    path.write_text(json.dumps(index))
    assert saved.restore(make_tree(), step=3)[0] == 3
    index["leaves"]["iteration"]["crc32"] ^= 1
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="bytes of leaf iteration are not those that were saved"):
        saved.restore(make_tree(), step=3)


def test_other_things_in_the_folder_are_passed_over(saved):
    others = ("008", "08", "+9", "-1", "9.tmp", "latest", "١٢", "0x9", "9.0", " 9", "step_9", "2024", "0")
    for name in others:
        (saved.folder / name).mkdir()
        (saved.folder / name / "note.txt").write_text("mine")
    (saved.folder / "9").write_text("a file")
    (saved.folder / "newest").symlink_to(saved.folder / "3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert saved.steps() == [1, 2, 3] and saved.restore(make_tree())[0] == 3
        for step in (4, 5, 6, 7):
            saved.save(step, make_tree(step))
        saved.close()
        assert saved.steps() == [5, 6, 7] and saved.restore(make_tree())[0] == 7
    assert all((saved.folder / name / "note.txt").read_text() == "mine" for name in others)
    for name in ("9", "2024"):
        with pytest.raises(
            OSError, match=f"checkpoints/{name} is not a checkpoint but has the name of one; move it away"
        ):
            saved.save(int(name), make_tree())
    saved.close()


def test_one_process_that_refuses_a_checkpoint_refuses_it_for_all(saved, monkeypatch):
    """The other of two processes finds checkpoint 3 damaged."""
    found = {"refused": 0}

    def every(value):
        if value == "" and not found["refused"]:
            found["refused"] += 1
            return ["", "its arrays cannot be read"]
        return [value, value]

    monkeypatch.setattr(checkpoint.multihost, "every", every)
    with pytest.warns(UserWarning, match="checkpoints/3 is refused: its arrays cannot be read; trying the one before"):
        assert saved.restore(make_tree())[0] == 2


def test_the_first_process_decides_what_is_replaced(saved, monkeypatch):
    """Seen from a second process, whose disk still shows nothing of checkpoint 3."""
    monkeypatch.setattr(checkpoint.multihost, "from_first", lambda make: [3])
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [1, 2])
    saved.save(3, make_tree(7))
    saved.close()
    monkeypatch.undo()
    assert_same_bits(saved.restore(make_tree(), step=3)[1], make_tree(7))


def test_foreign_checkpoint_names_the_first_leaf_that_differs(saved):
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"lora\.layer_0\.a is float32\[4, 8\].*\[4, 16\]"):
        saved.restore(make_tree(width=16))
    fewer = make_tree() | {"opt_state": ()}
    with pytest.raises(ValueError, match=r"its leaf opt_state\.\S+ has no place"):
        saved.restore(fewer, step=3)
    with pytest.raises(ValueError, match="it has no leaf more"):
        saved.restore(make_tree() | {"more": jnp.zeros(1)}, step=3)
    half = jax.tree.map(lambda x: x.astype(jnp.float16), make_tree())
    with pytest.raises(ValueError, match="is int32.*and float16"):
        saved.restore(half, step=3)


def test_nothing_there(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.latest_step() is None
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.restore(make_tree())
    assert not (tmp_path / "none").exists()  # reading makes nothing
    checkpoints.close()


def test_a_part_that_is_not_there(saved):
    with pytest.raises(ValueError, match="no part 'policy'; its parts are iteration, lora, opt_state"):
        saved.restore_part("policy", jnp.int32(0))


def test_full_disk(saved, monkeypatch, caplog):
    kept = r"disk full at .*checkpoints; checkpoint 3 is kept; free space, then continue with --resume"
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=1))
        with pytest.raises(OSError, match=kept):
            saved.save(4, make_tree(4))
    with monkeypatch.context() as patch:  # it filled up while the file was written

        async def write(*args, **kwargs):
            raise ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device")

        patch.setattr("tensorstore.TensorStore.write", write)
        with pytest.raises(OSError, match=kept):
            saved.save(4, make_tree(4))
            saved.wait()
    saved.close()
    assert not caplog.records
    assert saved.restore(make_tree())[0] == 3


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="leaf key is a typed PRNG key"):
        checkpoints.save(1, {"key": jax.random.key(0)})
    with pytest.raises(ValueError, match="leaf x is not an array of numbers"):
        checkpoints.save(1, {"x": "text"})
    with pytest.raises(ValueError, match="not JSON"):
        checkpoints.save(1, {"x": jnp.zeros(1)}, {"f": print})


KILLED = """
import sys, time, numpy as np
from nlrl_jax.weights.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
for step in range(1, 1000):
    checkpoints.save(step, {"x": np.full((512, 1024), step, np.float32), "step": np.int32(step)})
    print(step, flush=True)
"""


def test_killed_while_saving(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)  # the third save is under way
    process.wait()
    template = {"x": np.zeros((512, 1024), np.float32), "step": np.int32(0)}
    checkpoints = Checkpoints(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step, tree, _ = checkpoints.restore(template)
    assert step >= 2 and tree["step"] == step and (tree["x"] == step).all()
    checkpoints.save(step + 1, tree)
    checkpoints.close()
    assert not list(tmp_path.glob("*tmp*"))
