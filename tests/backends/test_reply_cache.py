"""The reply cache under threads, kills and torn files; a cached model answers each chat once."""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nlrl_jax.backends import wrappers
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import cached, metered
from nlrl_jax.types import Chat, Reply, Sampling, Score

GREEDY = Sampling(8, 0.0)
KEY = "039e419d73950b06044265080b9b845a005f50936f08be36dcdaf6c6b13f57fd"  # of the chat "a"


@dataclasses.dataclass
class Model:
    """Repeats what it is told, scores by length, and dies at the word "die"."""

    asked: list
    can_score = True

    def complete(self, chats, sampling, role, seed=0, stop=()):
        texts = [chat.messages[-1]["content"] for chat in chats]
        if "die" in texts:
            raise KeyboardInterrupt
        self.asked.append(texts)
        return [Reply(f"re: {text}", 3, 2, text != "cut") for text in texts]

    def score(self, chats, continuations, role):
        if "die" in sum(map(list, continuations), []):
            raise KeyboardInterrupt
        self.asked.append([(chat.messages[-1]["content"], *row) for chat, row in zip(chats, continuations)])
        return [[Score(-float(len(text)), 2) for text in row] for row in continuations]


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


def test_every_chat_is_requested_once_and_a_kill_loses_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(wrappers, "CACHED_AT_ONCE", 2)
    model = Model([])
    ask = cached(model, DiskCache(tmp_path))
    chats = [Chat.of(text) for text in ("a", "cut", "a", "b", "die", "c")]
    with pytest.raises(KeyboardInterrupt):
        ask.complete(chats, GREEDY, "role")
    assert model.asked == [["a", "cut"]]
    again = cached(model, DiskCache(tmp_path))
    replies = again.complete(chats[:4], GREEDY, "role")
    assert model.asked == [["a", "cut"], ["b"]]
    assert [reply.text for reply in replies] == ["re: a", "re: cut", "re: a", "re: b"]
    assert [reply.ended for reply in replies] == [True, False, True, True]
    assert [(reply.cached, reply.tokens) for reply in replies] == [(True, 0)] * 3 + [(False, 2)]
    again.complete(chats[:1], Sampling(9, 0.0), "role")
    again.complete([Chat.of("a", "system")], GREEDY, "role")
    assert len(model.asked) == 4  # something else was asked


def test_only_greedy_replies_can_be_cached(tmp_path):
    ask = cached(Model([]), DiskCache(tmp_path))
    with pytest.raises(ValueError, match="only replies at temperature 0"):
        ask.complete([Chat.of("a")], Sampling(8, 0.5), "role")
    scripted = cached(ScriptedModel({}), DiskCache(tmp_path))
    assert ask.can_score and not scripted.can_score
    with pytest.raises(NotImplementedError):
        scripted.score([Chat.of("a")], [["b"]], "role")


def test_stop_strings_are_part_of_the_key_and_old_entries_stay_valid(tmp_path):
    model = Model([])
    ask = cached(model, DiskCache(tmp_path))
    ask.complete([Chat.of("a")], GREEDY, "role")
    # Written before there were stop strings.
    assert (pathlib.Path(tmp_path) / KEY[:2] / f"{KEY}.json").exists()
    for stop in (("\n",), ("\n",), ("\n", "."), ()):
        ask.complete([Chat.of("a")], GREEDY, "role", stop=stop)
    assert len(model.asked) == 3


def test_a_score_is_computed_once_also_across_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(wrappers, "CACHED_AT_ONCE", 3)
    model, a, b = Model([]), Chat.of("a"), Chat.of("b")
    with pytest.raises(KeyboardInterrupt):
        cached(model, DiskCache(tmp_path)).score([a, b, b], [["x", "yy"], ["yy", "x"], ["die"]], "role")
    assert model.asked == [[("a", "x", "yy"), ("b", "yy")]]
    usage = Usage()
    ask = metered(cached(model, DiskCache(tmp_path)), usage)
    rows = ask.score([b, a, a], [["yy", "x"], ["x"], []], "role")
    assert model.asked[1:] == [[("b", "x")]]
    assert rows == [[Score(-2.0, 2, True), Score(-1.0, 2)], [Score(-1.0, 2, True)], []]
    (row,) = usage.rows()
    assert (row["calls"], row["cache_hits"], row["prompt_tokens"]) == (3, 2, 2)
    with pytest.raises(ValueError):
        ask.score([a], [["x"], ["x"]], "role")


def test_a_score_that_is_not_finite_is_passed_on_and_not_kept(tmp_path):
    class Never(Model):
        def score(self, chats, continuations, role):
            return [[Score(-float("inf"), 1) for _ in row] for row in continuations]

    model = cached(Never([]), DiskCache(tmp_path))
    assert model.score([Chat.of("a")], [["b"]], "r") == [[Score(-float("inf"), 1)]]
    assert not [*tmp_path.glob("*/*.json")]


def test_an_entry_with_a_number_that_is_not_finite_counts_as_absent_and_is_not_written(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put("ab", {"log_probs": [-1.0]})
    path = tmp_path / "ab" / "ab.json"
    path.write_text(path.read_text().replace("-1.0", "NaN"))
    assert cache.get("ab") is None
    with pytest.raises(ValueError, match=r"log_probs\[0\] is -inf"):
        cache.put_reply("ab", Reply("a", log_probs=(-float("inf"),)))
