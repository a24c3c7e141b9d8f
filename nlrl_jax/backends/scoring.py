"""Log-probabilities of continuations: texts are read as for replies, and the state before a token predicts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from nlrl_jax.backends import batching
from nlrl_jax.backends.prefill import SHARED, Call, HiddenChunk, Network, Options, prefill
from nlrl_jax.backends.session import Session, Text, common_length, open_session
from nlrl_jax.lm import kv_rows
from nlrl_jax.lm.programs import PROGRAMS
from nlrl_jax.lm.sharding import whole

_log_probs = PROGRAMS.own(jax.jit(kv_rows.next_log_probs, static_argnums=0))


def score(
    network: Network, session: Session | None, pairs: Sequence[tuple[Text, Text]], options: Options
) -> list[float]:
    """log p(continuation | prompt) of each pair, at temperature 1."""
    log_probs = np.zeros(len(pairs))
    # What predicts a continuation's tokens is its prompt and all of them but the last.
    texts, text_of_pair = batching.distinct([prompt + ids[:-1] for prompt, ids in pairs])
    pairs_of: list[list[int]] = [[] for _ in texts]
    for n, i in enumerate(text_of_pair):
        pairs_of[i].append(n)
    prompts = [prompt for prompt, _ in pairs]
    with open_session(session, network.model.config, network.weights, texts, options.rows) as opened:
        call = Call(network, opened, options, prompts, session is opened)
        for chunk in _chunks(texts, opened.capacity, 4 * options.rows):
            opened.tick()
            first_hidden = [min(len(prompts[n]) for n in pairs_of[i]) - 1 for i in chunk]
            for hidden in prefill(call, [texts[i] for i in chunk], first_hidden):
                _add_log_probs(call, hidden, [pairs_of[chunk[i]] for i in hidden.texts], pairs, log_probs)
    return log_probs.tolist()


def _chunks(texts: Sequence[Text], capacity: int, max_texts: int) -> Iterator[list[int]]:
    """Numbers of texts that are scored together, neighbours in their order, which share their beginnings."""
    order = sorted(range(len(texts)), key=texts.__getitem__)
    chunk, tokens = [], 0
    for i in order:
        shared = max(0, common_length(texts[i], texts[chunk[-1]]) - SHARED) if chunk else 0
        if chunk and (len(chunk) == max_texts or tokens + len(texts[i]) - shared > capacity):
            yield chunk
            chunk, tokens, shared = [], 0, 0
        chunk.append(i)
        tokens += len(texts[i]) - shared
    if chunk:
        yield chunk


def _add_log_probs(call: Call, hidden: HiddenChunk, owners: list[list[int]], pairs, log_probs: np.ndarray) -> None:
    """Adds to `log_probs` [pairs] those of the tokens that a chunk's hidden states predict.

    Args:
      owners: the pairs whose text stands in each row.
    """
    C = hidden.states.shape[1]
    places, targets, numbers = [], [], []
    for row, (offset, owned) in enumerate(zip(hidden.offsets.tolist(), owners)):
        for n in owned:
            prompt, ids = pairs[n]
            # Token j of a continuation is predicted at place len(prompt) - 1 + j of the text.
            columns = len(prompt) - 1 - offset + np.arange(len(ids))
            inside = (columns >= 0) & (columns < C)
            places.append(row * C + columns[inside])
            targets.append(np.array(ids, np.int32)[inside])
            numbers.append(np.full(int(inside.sum()), n))
    place, target, number = map(np.concatenate, (places, targets, numbers))
    if not len(place):
        return
    distinct, row = np.unique(place, return_inverse=True)
    U, Q = batching.bucket(len(distinct), 64), batching.bucket(len(place), 64)
    place_U, row_Q, target_Q = np.zeros(U, np.int32), np.zeros(Q, np.int32), np.zeros(Q, np.int32)
    place_U[: len(distinct)], row_Q[: len(row)], target_Q[: len(target)] = distinct, row, target
    network = call.network
    values = _log_probs(network.model, network.variables, hidden.states, place_U, row_Q, target_Q)
    np.add.at(log_probs, number, np.asarray(whole(values), np.float64)[: len(place)])
