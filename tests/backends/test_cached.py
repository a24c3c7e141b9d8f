"""A cached model answers each chat once, also across a kill."""

import dataclasses

import pytest

from nlrl_jax.backends import cached
from nlrl_jax.backends.cache import DiskCache
from nlrl_jax.backends.cached import CachedModel
from nlrl_jax.types import Chat, Reply, Sampling

GREEDY = Sampling(8, 0.0)


@dataclasses.dataclass
class Model:
    """Repeats what it is told, and dies at the word "die"."""

    asked: list

    def complete(self, chats, sampling, role, seed=0):
        texts = [chat.messages[-1]["content"] for chat in chats]
        if "die" in texts:
            raise KeyboardInterrupt
        self.asked.append(texts)
        return [Reply(f"re: {text}", 3, 2, text != "cut") for text in texts]


def test_every_chat_is_asked_once_and_a_kill_loses_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(cached, "PIECE", 2)
    model = Model([])
    ask = CachedModel(model, DiskCache(tmp_path))
    chats = [Chat.of(text) for text in ("a", "cut", "a", "b", "die", "c")]
    with pytest.raises(KeyboardInterrupt):
        ask.complete(chats, GREEDY, "role")
    assert model.asked == [["a", "cut"]]
    again = CachedModel(model, DiskCache(tmp_path))
    replies = again.complete(chats[:4], GREEDY, "role")
    assert model.asked == [["a", "cut"], ["b"]]
    assert [reply.text for reply in replies] == ["re: a", "re: cut", "re: a", "re: b"]
    assert [reply.ended for reply in replies] == [True, False, True, True]
    assert [(reply.cached, reply.tokens) for reply in replies] == [(True, 0)] * 3 + [(False, 2)]
    again.complete(chats[:1], Sampling(9, 0.0), "role")
    again.complete([Chat.of("a", "system")], GREEDY, "role")
    assert len(model.asked) == 4  # something else was asked


def test_only_greedy_replies_can_be_cached(tmp_path):
    ask = CachedModel(Model([]), DiskCache(tmp_path))
    with pytest.raises(ValueError, match="only replies at temperature 0"):
        ask.complete([Chat.of("a")], Sampling(8, 0.5), "role")
    with pytest.raises(NotImplementedError):
        ask.score([Chat.of("a")], [["b"]], "role")
