"""Language models: requests in, answers out; their chats, replies, scores and sampling."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.config import check, option


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The generation configuration of a language model (MS-GRPO, section "LAP": G)."""

    max_tokens: int = option(200, "maximum tokens per reply, its end token included", least=1)
    temperature: float = option(1.0, "sampling temperature, which divides the logits; 0 is greedy", least=0)
    top_k: int = option(0, "sample from the k most likely tokens; 0 is no limit", least=0)
    top_p: float = option(
        1.0, "sample from the most likely tokens that together have this probability", above=0, most=1
    )

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Chat:
    """The prompt of a language model.

    Attributes:
      messages: ({"role": "system" | "user" | "assistant", "content": text}, ...). If the last one is the assistant's,
        it is left open: the reply continues its text, with nothing between.
      context: the data that the messages were made from. Only a scripted model reads it; a real one ignores it.
    """

    messages: tuple[Mapping[str, str], ...]
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, user: str, system: str = "", continued: str = "", **context: Any) -> Chat:
        """A user message, after a system message if there is one, and before an open assistant message with the text
        `continued` if there is one."""
        head = ({"role": "system", "content": system},) if system else ()
        tail = ({"role": "assistant", "content": continued},) if continued else ()
        return cls((*head, {"role": "user", "content": user}, *tail), context)

    @property
    def is_open(self) -> bool:
        """Whether the reply continues an assistant message."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"


class Reply(NamedTuple):
    """A language model's reply.

    text: without the end token, and before a stop string.
    prompt_tokens, tokens: tokens read and written, also those after a stop string; 0 where nothing was computed.
    ended: False where the reply was cut at `max_tokens`, was refused, or never came.
    cached: from a cache, at no cost.
    refused: a content filter or the model itself refused.
    log_probs: of the tokens that spell the text, where an endpoint gives them for a sampled reply; else empty.
    more: more text came after a stop string, which is not in `text`.
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    ended: bool = True
    cached: bool = False
    refused: bool = False
    log_probs: tuple[float, ...] = ()
    more: bool = False


# Stands for the log-probability of what a model gives no finite one: below any that a softmax in float32 gives.
LEAST = -1000.0
ROUNDING = 0.01  # a log-probability above 0 by no more is 0


class Written(NamedTuple):
    """The tokens that a model wrote after a prompt, as they were sampled.

    tokens: with the one that ended them. log_probs: of each, at temperature 1, before any top-k or top-p cut.
    ended: False where they were cut at `max_tokens`.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    ended: bool


class Score(NamedTuple):
    """log p(continuation | chat): the sum over its tokens, and their number.

    cached: from a cache, at no cost. prompt_tokens: tokens read before it; a chat's are the first continuation's.
    bounded: a server lists only the likeliest tokens, and none begins the continuation: the last one's stands for it.
    partial: what it does not list may be as likely, so that this is a lower bound.
    """

    log_prob: float
    tokens: int
    cached: bool = False
    prompt_tokens: int = 0
    bounded: bool = False
    partial: bool = False


class LanguageModelError(RuntimeError):
    """A language model gave no answer, or its token budget is spent: a sentence for the user."""


def check_stop(stop: Sequence[str]) -> None:
    """Raises ValueError: a string in place of a list of strings, or an empty one, which would end every reply."""
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"stop is {stop!r}; it must be a list of strings that are not empty")


def cut(reply: Reply, stop: Sequence[str]) -> Reply:
    """A reply up to the first occurrence of any of the `stop` strings; it has then ended. Errors: see `check_stop`."""
    check_stop(stop)
    places = [place for place in map(reply.text.find, stop) if place >= 0]
    if not places:
        return reply
    text, rest = reply.text[: min(places)], reply.text[min(places) :]
    return reply._replace(text=text, ended=True, more=any(map(str.strip, rest.split(stop[0]))))


class Write(NamedTuple):
    """Asks a language model for a reply to a chat.

    role: the purpose ("policy", "value", "aggregator", "improver", ...); usage is counted by role, and a scripted model
      chooses its script by it.
    seed: of all randomness. Equal requests that are asked together get independent replies; at temperature 0 they are
      equal.
    stop: the reply's text ends before the first occurrence of any of these; it has then ended.
    """

    chat: Chat
    sampling: Sampling
    role: str
    seed: int = 0
    stop: tuple[str, ...] = ()


class ScoreTexts(NamedTuple):
    """Asks how likely each text is as the (beginning of the) reply to a chat, or after its open assistant message."""

    chat: Chat
    texts: tuple[str, ...]
    role: str


Request = Write | ScoreTexts
Answer = Reply | list[Score]  # to a `Write`, and to a `ScoreTexts`: a score per text


@dataclasses.dataclass(frozen=True)
class Facts:
    """What callers may know of a language model. Wrappers pass it on.

    Attributes:
      scores_texts, scores_words: whether it answers `ScoreTexts`: of any texts; of single words at least.
      tokenizer: its `lm.tokenizer.Tokenizer`; None where nobody knows it.
      room: tokens of its context; 0 where nobody knows.
      address: of the server that is asked; "" for a model in this process.
      usage: the ledger (`backends.usage.Usage`) in which it counts its tokens itself; None where a meter must.
      local: the `backends.local.LocalModel` that does the work, whose weights can learn; None where there is none.
    """

    scores_texts: bool = False
    scores_words: bool = False
    tokenizer: Any = None
    room: int = 0
    address: str = ""
    usage: Any = None
    local: Any = None


class LanguageModel(abc.ABC):
    """A language model as host-side algorithms see it: a value that answers requests. A model of your own:

        class Parrot(LanguageModel):
            def answer(self, requests):
                return [Reply(request.chat.messages[-1]["content"]) for request in requests]

    One that scores has `facts = Facts(scores_texts=True, scores_words=True)`, and answers a `ScoreTexts` by a list with
    a `Score` for each text. `answer_batches` helps a model that works on many chats with one sampling at once. Meters,
    caches and routes around a model are functions of `backends.wrappers`.
    """

    facts: Facts = Facts()

    @abc.abstractmethod
    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """One answer per request, in order. The same requests get the same answers where the model allows it.

        Raises:
          NotImplementedError: a `ScoreTexts` that the model cannot answer; see `Facts`.
        """

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """One reply per chat, in order; see `Write`.

        Raises:
          ValueError: `stop` is a string, or holds an empty one.
        """
        check_stop(stop)
        return self.answer([Write(chat, sampling, role, seed, tuple(stop)) for chat in chats])

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """How likely each continuation is after its chat; see `ScoreTexts`.

        Raises:
          NotImplementedError: the model does not score.
          ValueError: the lists differ in length.
        """
        if len(chats) != len(continuations):
            raise ValueError(f"{len(chats)} chats but {len(continuations)} lists of continuations; give one per chat")
        return self.answer([ScoreTexts(chat, tuple(texts), role) for chat, texts in zip(chats, continuations)])

    @property
    def can_score(self) -> bool:
        """Whether `score` works for any texts."""
        return self.facts.scores_texts

    @property
    def can_judge(self) -> bool:
        """Whether `score` works for single words at least."""
        return self.facts.scores_words

    @property
    def memories(self) -> tuple[Any, ...]:
        """What it has computed for earlier texts and may use again, of each local model in it."""
        return ()

    def session(self, number: int = 1) -> LanguageModel:
        """The same model with an empty memory of its own, of which `number` fit where one did: for one thread."""
        return self

    def rewrap(self, change: Callable[[LanguageModel], LanguageModel]) -> LanguageModel:
        """The same wrappers around `change` of each model inside."""
        return change(self)


def answer_batches(
    requests: Sequence[Request],
    complete: Callable[..., Sequence[Reply]],
    score: Callable[..., Sequence[Sequence[Score]]],
) -> list[Answer]:
    """Answers requests in batches: all that differ in their chats (and texts) alone, in one call.

    Args:
      complete: (chats, sampling, role, seed, stop) -> a reply each.
      score: (chats, continuations, role) -> scores for each row of continuations.
    """
    batches: dict[tuple, list[int]] = {}  # what the requests of a batch share -> their places
    for place, request in enumerate(requests):
        shared = request[1:] if isinstance(request, Write) else (request.role,)
        batches.setdefault((type(request), *shared), []).append(place)
    answers: list[Any] = [None] * len(requests)
    for (kind, *shared), places in batches.items():
        chats = [requests[place].chat for place in places]
        if kind is Write:
            batch = complete(chats, *shared)
        else:
            batch = score(chats, [requests[place].texts for place in places], *shared)
        for place, answer in zip(places, batch, strict=True):
            answers[place] = answer
    return answers


class _Adapted(LanguageModel):
    """An object that has `complete`, and `score` if its `can_score` says so, in place of `answer`."""

    def __init__(self, model: Any):
        self._model = model
        texts = bool(getattr(model, "can_score", False))
        words = texts or bool(getattr(model, "can_judge", False))
        self.facts = Facts(texts, words, getattr(model, "tokenizer", None), usage=getattr(model, "usage", None))

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        return answer_batches(requests, self._model.complete, lambda *batch: self._model.score(*batch))


def as_model(model: Any) -> LanguageModel:
    """The model, or an object with the methods `complete` and `score` as one.

    Raises:
      TypeError: it answers nothing.
    """
    if isinstance(model, LanguageModel):
        return model
    if not hasattr(model, "complete"):
        raise TypeError(
            f"{type(model).__name__} is no language model: derive it from nlrl_jax.types.LanguageModel and define "
            "answer(self, requests), which returns a Reply for each"
        )
    return _Adapted(model)


def can_judge(model: LanguageModel) -> bool:
    """Whether `score` works for single words at least: a model that cannot score whole texts may have `can_judge`."""
    return model.can_score or getattr(model, "can_judge", False)


class Piece(NamedTuple):
    """A part of a reply, as training data.

    text: tokenised by itself; None is the token that ends a reply.
    learned: the weight of its tokens in the loss; 0: they are only read.
    """

    text: str | None
    learned: float = 1.0


# Chats with the replies they should get: a text, which the end token follows unless it continues an open message; or
# pieces, with the end token where they say so.
Pairs = Sequence[tuple[Chat, str | Sequence[Piece]]]
# (model, chats with the replies they should get) -> (the model that learned them, metrics)
Learn = Callable[[LanguageModel, Pairs], tuple[LanguageModel, dict[str, float]]]
