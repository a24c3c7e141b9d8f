"""What an ULTRA run would cost: the analyst's calls and tokens, and the refiners' steps.

The real analysis runs over a model that counts, on a few episodes of an untrained agent as they are, and on the same
made as long as `--episode_steps` allows, by playing them one after the other: a trained robot's episodes are of full
length, and those of an untrained one end after a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.analyst import SAMPLINGS, analyse
from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.backends.wrappers import CHARACTERS
from nlrl_jax.roles.trajectories import ControlEpisode
from nlrl_jax.run.dry_run import CallPlan
from nlrl_jax.run.ultra.config import RefinementConfig, count
from nlrl_jax.run.ultra.stages import mask_verdicts
from nlrl_jax.types import ControlGame

EPISODES = 16  # of a dry run
LONG = 8  # episodes of full length
ONCE = ("strategies",)  # roles that are asked once per base agent, not per episode


def plan(
    config: RefinementConfig,
    game: ControlGame,
    methods: Sequence[str],
    steps_per_update: int,
    short: Sequence[ControlEpisode],
) -> str:
    """The tables of a dry run, for all base agents.

    Args:
      short: episodes of an untrained agent; none where the game has no prompts for an analyst.
    """
    lines = ["no analyst: the game has no prompts for one (ControlGame.roles)"]
    if game.roles is not None:
        mean = np.mean([len(episode) for episode in short])
        long = [lengthened(short, config.episode_steps, n) for n in range(LONG)]
        budget = config.endpoint.token_budget if config.analyst == "endpoint" else 0
        planned = config.bases, config.episodes, "MASK-R" in methods
        lines = [
            f"Episodes of {mean:.0f} steps, as an untrained agent's:",
            _count(game, short, *planned, 0),
            f"Episodes of {config.episode_steps} steps, the longest that are recorded; a good robot's are:",
            _count(game, long, *planned, budget),
        ]
    is_masked = bool(set(methods) & set(refiners.MASKED))
    each = len(methods) * config.seeds * config.refining.iterations
    updates = {
        count(config.bases, "base agent"): 0 if config.base else config.base_iterations,
        "mask network": config.refining.mask_iterations * is_masked,
        f"{count(len(methods), 'method')} x {count(config.seeds, 'seed')}": each,
    }
    steps = config.bases * steps_per_update
    lines += [f"{name}: {n * steps:,} environment steps" for name, n in updates.items() if n]
    return "\n".join(lines)


def lengthened(episodes: Sequence[ControlEpisode], steps: int, number: int) -> ControlEpisode:
    """An episode of the given length that repeats the steps of others; it is truncated, not terminated."""
    order = [episodes[(number + n) % len(episodes)] for n in range(len(episodes))]
    repeats = -(-steps // sum(map(len, order)))

    def repeated(parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([*parts] * repeats)[:steps]

    observations = repeated([episode.observations[:-1] for episode in order])
    last = order[0].observations[:1]
    actions = repeated([episode.actions for episode in order])
    rewards = repeated([episode.rewards for episode in order])
    return ControlEpisode(number, np.concatenate([observations, last]), actions, rewards, False)


def _count(
    game: ControlGame, played: Sequence[ControlEpisode], bases: int, episodes: int, is_masked: bool, budget: int
) -> str:
    """The table of calls and tokens if all `episodes` of each base agent were like those that were played.

    Args:
      is_masked: MASK-R's analyst is asked too.
    """
    longest = "x" * CHARACTERS * SAMPLINGS["analyse"].max_tokens  # what the prompts for rewards quote
    plan = CallPlan({**game.scripts, "analyse": lambda context, rng: longest})
    times = bases * episodes / len(played)
    once = dict.fromkeys(ONCE, bases)
    counts = analyse(played, game.roles, plan.model(times, once=once)).counts
    if is_masked:
        length = max(map(len, played))
        steps = np.array([len(episode) for episode in played])
        verdicts = mask_verdicts(jnp.zeros((length, len(played))), steps)
        analyse(played, game.roles, plan.model(times, "{} (MASK-R)", once=once), verdicts=verdicts)
    share = counts["identify/critical"] / counts["identify/timeslots"]
    about = f"{share:.0%} of the timeslots critical for the rule-based analyst."
    return f"{plan.table(budget, 'episodes', episodes)}\n{about}"
