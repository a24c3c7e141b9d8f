"""The reply cache under threads, kills and torn files."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.types import Reply


def test_an_entry_comes_back_also_in_another_cache_of_the_same_folder(tmp_path):
    entry = {"text": 'line\n"quote" \u00e9 \U0001f600 \ud800', "ended": False}
    cache, key = DiskCache(tmp_path), cache_key({"a": 1})
    assert cache.get(key) is None
    cache.put(key, entry)
    assert DiskCache(tmp_path).get(key) == entry


def test_the_key_depends_on_every_part_but_not_on_their_order():
    parts = {"url": "a", "seed": 1, "messages": [["b"]]}
    assert cache_key(parts) == cache_key(dict(reversed(parts.items())))
    others = [{**parts, "url": "b"}, {**parts, "seed": 2}, {**parts, "seed": None}, {**parts, "messages": [["b", "c"]]}]
    assert len({cache_key(other) for other in [parts, *others]}) == 5
    with pytest.raises(TypeError):
        cache_key({"model": object()})


@pytest.mark.parametrize("torn", [b"", b'{"text": "ab', b"\0\0\0\0", b"\xff\xfe", b'"text"'])
def test_a_torn_entry_is_absent_and_can_be_written_again(tmp_path, torn):
    cache, key = DiskCache(tmp_path), cache_key({})
    cache.put(key, {"text": "abc"})
    (path,) = tmp_path.glob("*/*.json")
    path.write_bytes(torn)
    assert cache.get(key) is None
    cache.put(key, {"text": "abc"})
    assert cache.get(key) == {"text": "abc"}


def test_threads_that_write_the_same_entries_never_show_a_torn_one(tmp_path):
    cache = DiskCache(tmp_path)
    keys = [cache_key({"i": i}) for i in range(4)]

    def work(worker):
        for turn in range(50):
            i = (worker + turn) % 4
            cache.put(keys[i], {"text": str(i) * 5000})
            for j, key in enumerate(keys):
                entry = cache.get(key)
                assert entry is None or entry["text"] == str(j) * 5000

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(path.name for path in tmp_path.glob("*/*")) == sorted(f"{key}.json" for key in keys)


def test_a_killed_writer_leaves_whole_entries_only(tmp_path):
    code = """
import sys, itertools
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
cache = DiskCache(sys.argv[1])
print("go", flush=True)
for i in itertools.count():
    cache.put(cache_key({"i": i % 50}), {"text": "x" * 200_000})
"""
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
    files = list(tmp_path.glob("*/*.json"))
    assert files
    assert all(json.loads(path.read_text()) == {"text": "x" * 200_000} for path in files)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        DiskCache(tmp_path / "file")


def test_an_entry_with_a_number_that_is_not_finite_counts_as_absent_and_is_not_written(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put("ab", {"log_probs": [-1.0]})
    path = tmp_path / "ab" / "ab.json"
    path.write_text(path.read_text().replace("-1.0", "NaN"))
    assert cache.get("ab") is None
    with pytest.raises(ValueError, match=r"log_probs\[0\] is -inf"):
        cache.put_reply("ab", Reply("a", log_probs=(-float("inf"),)))
