"""MS-GRPO where prompts are growing transcripts: Algorithm 1 of `ms_grpo` with episodes that the host plays.

    groups = [play(...), ...]                               # `rollouts.transcripts`: the G episodes of each task
    lesson = teach(groups, config, key, room)               # lines 17-23: rewards, advantages, which episodes; rows
    state, metrics = update(state, lesson.rows)             # line 24, a pure function

A whole transcript is one row: each token is read once, and the loss is on those that the model wrote, by their ids as
they were sampled. Short transcripts share a row, in which none sees another. Where a prompt does not continue the one
before it (the oldest steps have left a full context, or an end token was written), a new transcript begins, with
exactly what was read.

Weights, clipping, KL, AAW sampling and options are those of `ms_grpo`. What differs or is left open:
- a turn is one line with one action; the format penalty is -0.5 for each line that was cut at `max_tokens` and for an
  empty thought, since a line has no tags to check; an action that cannot be read goes to the game as it is, where it
  takes a step;
- an episode that breaks off (an engine is lost, or an observation does not fit the context) counts neither as a sample
  nor in its group's mean; G' may so be smaller;
- an episode that is given up after so many invalid actions (`--give_up`) is fined for the turns that were left, too;
- `micro_batch` counts rows; 0 differentiates an eighth of them at a time;
- at temperature 1 the metric `sampler_gap` is the mean |log p| by which the update's pass differs from the sampler's;
- with `beta` 0, a batch without a single advantage changes nothing, the optimizer's moments included.

`credit="state"` is GiGPO (Feng et al. 2025, arXiv:2505.10978), with the group's episodes tau_i and steps t:

    R_t = sum_k>=t gamma^(k-t) r_k                             `step_discount` is gamma
    A^S(a_t) = (R_t - mean) / std                              over the group's steps from the same state
    A(a_t) = A^E(tau_i) + omega A^S(a_t)                       `step_weight` is omega; A^E is the episode's advantage

Departures from it: the state is the last observation's text; groups are those of the episodes that are learned from; r
includes the penalties; a token weighs 1 / |y_j|, as in MS-GRPO; a step that is alone in its state has A^S = 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, TrainState, ascend, choose
from nlrl_jax.algorithms.policy_gradient import Loss, log_probs_of
from nlrl_jax.backends.batching import bucket
from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.lm.transformer import KeyValues, Transformer
from nlrl_jax.returns import anchored_advantage, group_advantage, returns_to_go
from nlrl_jax.rollouts.transcripts import Played, Turn
from nlrl_jax.updates import check_masters, keep_finite

PENALTY = 0.5  # of a line that was cut, as of each violation in `text.parser`


@dataclasses.dataclass(frozen=True)
class Reader:
    """The model as it reads rows; a `policy_gradient.Policy`.

    Attributes:
      temperature: that tokens were sampled at.
      begin: tokens that all transcripts begin with, read once for all of them; their rows hold what follows.
    """

    model: Transformer
    temperature: float = 1.0
    begin: tuple[int, ...] = ()

    def prefix(self, variables: Any) -> KeyValues | None:
        return compute_prefix(self.model, variables, self.begin)


class Transcript(NamedTuple):
    """Tokens that were read in one go, from the first on, and which of them the model wrote.

    at: places of those, each at least 1. weights, advantages, log_probs (when they were sampled): of each.
    """

    tokens: list[int]
    at: list[int]
    weights: list[float]
    advantages: list[float]
    log_probs: list[float]


class Rows(NamedTuple):
    """Micro-batches [N, M] of rows of L tokens, of which K are learned; `policy_gradient.Rows`.

    tokens, positions, segments: int32 [N, M, L]; segments: which transcript of its row a token belongs to, from 1.
    at: int32 [N, M, K], places of the learned tokens. weights, advantages, sampled: float32 [N, M, K]; weights are 0
    where there is none, sampled are the log-probabilities that the tokens were drawn with, or None.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    at: jax.Array
    weights: jax.Array
    advantages: jax.Array
    sampled: jax.Array | None
    old_log_probs: jax.Array | None = None

    def score(self, policy: Reader, variables: Any, prefix: KeyValues | None) -> jax.Array:
        """Log-probabilities of the learned tokens of one micro-batch, [M, K], as they are sampled (before top-k)."""
        take = lambda x, places: jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)
        hidden, _ = policy.model.apply(variables, self.tokens, self.positions, prefix=prefix, segments=self.segments)
        targets = take(self.tokens, self.at)
        return token_log_probs(policy.model, variables, take(hidden, self.at - 1), targets, policy.temperature)

    def loss(self, objective: Loss, new: jax.Array, old: jax.Array, reference: jax.Array) -> Any:
        """The objective of one micro-batch, in which each token has the advantage of its own turn."""
        column = lambda x: x.reshape(-1, 1)
        columns = column(new), column(old), column(reference)
        value, metrics = objective(*columns, self.advantages.reshape(-1), column(self.weights))
        if self.sampled is not None:
            metrics["sampler_gap"] = jnp.sum(self.weights * jnp.abs(new - self.sampled))
        return value, metrics


class Lesson(NamedTuple):
    """What an iteration's episodes teach: rows, or None where no token counts; and what was measured of them."""

    rows: Rows | None
    metrics: dict[str, float]


def make_update(
    reader: Reader, config: MSGRPOConfig
) -> Callable[[TrainState, Rows], tuple[TrainState, dict[str, jax.Array]]]:
    """Line 24 as a pure function `update(state, rows) -> (state, metrics)`; jit it.

    A non-finite loss or gradient leaves the state as it was and sets `metrics["finite"]` to 0.

    Raises:
      ValueError: from the update, an adapter below float32 (see `updates.masters`).
    """

    def update(state: TrainState, rows: Rows) -> tuple[TrainState, dict[str, jax.Array]]:
        check_masters(state.lora)
        if config.updates_per_batch > 1:  # theta moves away from theta_old between the steps
            old = log_probs_of(reader, {"params": state.params, "lora": state.lora}, rows)
            rows = rows._replace(old_log_probs=old)
        return ascend(reader, state, rows, config)

    return keep_finite(update)


def teach(
    groups: Sequence[Sequence[Played]], config: MSGRPOConfig, key: jax.Array, reader: Reader, room: int
) -> Lesson:
    """Lines 17-23: what is learned from the G episodes of each of n tasks.

    Args:
      key: of the AAW sampling.
      room: tokens of the model's context.
    """
    rewards = [[composite_rewards(one, config) for one in group] for group in groups]
    returns = np.array([[own.sum() for own in group] for group in rewards], np.float32)
    whole = np.array([[not one.episode.error for one in group] for group in groups])
    measured = episode_metrics(groups, returns, whole)
    chosen, advantages = jax.device_get(choose(key, jnp.asarray(returns), config, jnp.asarray(whole)))
    learned = [[group[i] for i in places] for group, places in zip(groups, chosen, strict=True)]
    rewards = [[group[i] for i in places] for group, places in zip(rewards, chosen, strict=True)]
    kept = np.take_along_axis(whole, chosen, axis=1)
    credits = credit(learned, rewards, advantages, kept, config)
    transcripts = []
    for g, j in zip(*np.nonzero(kept)):
        tokens = sum(len(reply.written.tokens) for turn in learned[g][j].turns for reply in turn.replies)
        weight = 1.0 / (max(tokens, 1) * kept.sum())  # equation 1's two averages
        transcripts += transcripts_of(learned[g][j].turns, credits[g, j], weight, reader.begin)
    if config.beta == 0:  # tokens without an advantage have no gradient
        transcripts = [one for one in transcripts if any(one.advantages)]
    if not transcripts:
        return Lesson(None, measured)
    rows = pack(transcripts, room - len(reader.begin), len(reader.begin), config.micro_batch, reader.model.mesh)
    if reader.temperature != 1:  # they are known at temperature 1 only
        rows = rows._replace(sampled=None)
    measured["row_tokens"] = sum(len(one.tokens) for one in transcripts)
    measured["rows_filled"] = measured["row_tokens"] / rows.tokens.size
    return Lesson(rows, measured)


def composite_rewards(played: Played, config: MSGRPOConfig) -> np.ndarray:
    """r + Phi of each turn: the game's reward, an invalid action's, and the format penalty. float32 [turns].

    The last turn of an episode that was given up also has the rewards of the invalid actions that were left.
    """
    fines = [turn.invalid for turn in played.turns[:-1]] + [played.turns[-1].invalid + played.forfeit]
    rewards = [turn.reward + format_penalty(turn) for turn in played.turns]
    return np.array(rewards, np.float32) + config.invalid_action_reward * np.array(fines, np.float32)


def format_penalty(turn: Turn) -> float:
    """Phi: minus `PENALTY` for each line that was cut, and for a thought without a token but its end."""
    cut = sum(not reply.written.ended for reply in turn.replies)
    empty = sum(len(reply.written.tokens) <= 1 and reply.written.ended for reply in turn.replies[:-1])
    return -PENALTY * (cut + empty)


def credit(
    learned: Sequence[Sequence[Played]],
    rewards: Sequence[Sequence[np.ndarray]],
    advantages: np.ndarray,
    kept: np.ndarray,
    config: MSGRPOConfig,
) -> np.ndarray:
    """The advantage of each turn, float32 [n, G', T]: T a power of two, what is no turn or not kept has 0.

    Args:
      rewards: composite, of each turn of each learned episode. advantages: [n, G'], of the episodes.
      kept: bool [n, G'], episodes that count.
    """
    T = bucket(max(len(own) for group in rewards for own in group), 1)
    n, G = advantages.shape
    table, active = np.zeros((n, G, T), np.float32), np.zeros((n, G, T), bool)
    anchors = np.full((n, G, T), -1, np.int32)
    for g, group in enumerate(learned):
        places: dict[str, int] = {}
        for j, one in enumerate(group):
            if kept[g, j]:
                t = len(one.turns)
                table[g, j, :t], active[g, j, :t] = rewards[g][j], True
                anchors[g, j, :t] = [places.setdefault(turn.observation, len(places)) for turn in one.turns]
    if config.credit == "episode":
        return np.where(active, advantages[..., None], 0.0)
    to_go = np.moveaxis(table, -1, 0).reshape(T, n * G)
    if config.credit == "turn":
        to_go = returns_to_go(jnp.asarray(to_go)).reshape(T, n, G)
        found = group_advantage(to_go, config.std_ddof, mask=jnp.asarray(np.moveaxis(active, -1, 0)))
        return np.moveaxis(np.asarray(found), 0, -1)
    to_go = np.moveaxis(np.asarray(returns_to_go(jnp.asarray(to_go), config.step_discount)).reshape(T, n, G), 0, -1)
    flat = lambda x: jnp.asarray(x.reshape(n, G * T))
    steps = np.asarray(anchored_advantage(flat(to_go), flat(anchors), config.std_ddof)).reshape(n, G, T)
    return np.where(active, advantages[..., None] + config.step_weight * steps, 0.0)


def transcripts_of(
    turns: Sequence[Turn], advantages: Sequence[float], weight: float, begin: tuple[int, ...] = ()
) -> list[Transcript]:
    """The turns of an episode as they were read: one transcript, or several where a prompt does not continue the last.

    Args:
      advantages: of each turn. weight: of each token.
      begin: what every prompt begins with (`Played.begins`); the transcripts hold what follows.
    """
    found: list[Transcript] = []
    for turn, advantage in zip(turns, advantages, strict=False):
        for prompt, written in turn.replies:
            prompt = prompt[len(begin) :]
            last = found[-1].tokens if found else None
            if last and list(prompt[: len(last)]) == last:
                last += prompt[len(last) :]
            else:
                found.append(Transcript(list(prompt), [], [], [], []))
            tokens, at, weights, credits, log_probs = found[-1]
            n = len(written.tokens)
            at += range(len(tokens), len(tokens) + n)
            tokens += written.tokens
            weights += [weight] * n
            credits += [float(advantage)] * n
            log_probs += written.log_probs
    return found


def pack(transcripts: Sequence[Transcript], room: int, first: int, micro_batch: int, mesh=None) -> Rows:
    """Transcripts as micro-batches of few different shapes; several share a row, the longest are placed first.

    Args:
      room: tokens of a row at most. first: position of a transcript's first token.
      micro_batch: rows of a micro-batch; 0: an eighth of all. mesh: rounded up to equally many on its devices.
    """
    length = min(bucket(max(len(one.tokens) for one in transcripts), 64), room)
    rows: list[list[Transcript]] = []
    free: list[int] = []
    for one in sorted(transcripts, key=lambda one: -len(one.tokens)):
        place = next((r for r, space in enumerate(free) if space >= len(one.tokens)), None)
        if place is None:
            place = len(rows)
            rows.append([])
            free.append(length)
        rows[place].append(one)
        free[place] -= len(one.tokens)
    size = whole_rows(min(micro_batch, len(rows)) or max(1, bucket(len(rows), 1) // 8), mesh)
    num = bucket(-(-len(rows) // size), 1)
    learned = bucket(max(sum(len(one.at) for one in row) for row in rows), 16)
    ints = lambda last: np.zeros((num * size, last), np.int32)
    floats = lambda: np.zeros((num * size, learned), np.float32)
    out = Rows(ints(length), ints(length), ints(length), ints(learned) + 1, floats(), floats(), floats())
    for r, row in enumerate(rows):
        start, k = 0, 0
        for segment, one in enumerate(row, 1):
            here, own = np.s_[r, start : start + len(one.tokens)], np.s_[r, k : k + len(one.at)]
            out.tokens[here], out.positions[here] = one.tokens, first + np.arange(len(one.tokens))
            out.segments[here] = segment
            out.at[own] = start + np.array(one.at)
            out.weights[own], out.advantages[own], out.sampled[own] = one.weights, one.advantages, one.log_probs
            start, k = start + len(one.tokens), k + len(one.at)
    return jax.tree.map(lambda x: x.reshape(num, size, -1), out)


def episode_metrics(groups: Sequence[Sequence[Played]], returns: np.ndarray, whole: np.ndarray) -> dict[str, float]:
    """Means over the iteration's episodes, or over the turns played, named as in `ms_grpo.episode_metrics` and
    `collapse.measures`; "broke_off": episodes that the game broke off.

    Args:
      returns: [n, G]. whole: bool [n, G], False for those that broke off.
    """
    spreads = [np.ptp(own[here]) if here.any() else 0.0 for own, here in zip(returns, whole, strict=True)]
    episodes = [one.episode for group in groups for one in group]
    turns = [turn for group in groups for one in group for turn in one.turns]
    replies = [reply.written for turn in turns for reply in turn.replies]
    log_probs = [value for written in replies for value in written.log_probs]
    return {
        "return": returns.mean(),
        "env_return": np.mean([one.reward for one in episodes]),
        "success": np.mean([one.success for one in episodes]),
        "format_penalty": np.mean([format_penalty(turn) for turn in turns]),
        "invalid_actions": np.mean([turn.invalid for turn in turns]),
        "reply_tokens": len(log_probs) / len(turns),
        "cut_replies": np.mean([not written.ended for written in replies]),
        "turns": len(turns) / len(episodes),
        "steps": sum(not turn.invalid for turn in turns) / len(episodes),
        "uninformative_groups": np.mean(np.equal(spreads, 0)),
        "surprisal": -np.mean(log_probs),
        "distinct_replies": len({written.tokens for written in replies}) / len(replies),
        "return_spread": returns.std(axis=1).mean(),
        "broke_off": np.mean(~whole),
    }
