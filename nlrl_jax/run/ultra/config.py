"""The options of an ULTRA run."""

from __future__ import annotations

import dataclasses

from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.algorithms.ultra import GuidanceConfig
from nlrl_jax.config import check, option, part, seed_option
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import endpoints


@dataclasses.dataclass(frozen=True)
class Refining:
    """How every method refines a base agent, and how agents are judged."""

    iterations: int = option(200, "updates of 2,048 steps of refinement, for each seed and method", least=1)
    learning_rate: float = option(1e-4, "PPO's learning rate in refinement", above=0)
    rice_learning_rate: float = option(1e-5, "RICE's learning rate; the default is its own paper's", above=0)
    guidance: GuidanceConfig = part(GuidanceConfig(floor=3.0), without=("actions", "rewards"))
    mask_iterations: int = option(50, "updates that train the mask network of RICE and MASK-R", least=0)
    eval_episodes: int = option(3000, "episodes of the evaluations before and after", least=1)
    curve_episodes: int = option(200, "episodes of the evaluations during refinement", least=1)
    eval_every: int = option(20, "updates between evaluations during refinement", least=1)

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class RefinementConfig:
    """Everything that determines what a run computes. The defaults are those of Pong at scale quick."""

    game: str = option("pong", "pong, hopper, walker2d, ant, or your own as my_module:control_game")
    methods: str = option("all", f"comma-separated, or all: {', '.join(refiners.METHODS)}")
    bases: int = option(1, "base agents, each trained with a seed of its own and refined by every method", least=1)
    seeds: int = option(3, "seeds of refinement, for each base agent", least=1)
    seed: int = seed_option("everything random follows from it; base agent n has seed + n", counted_up=True)
    base: str = option("", "run folders, separated by commas, whose base agents are refined; empty: train new ones")
    base_iterations: int = option(60, "updates of 2,048 steps that train a base agent", least=0)
    refining: Refining = part(Refining())
    episodes: int = option(3000, "episodes of the base agent that the analyst reads", least=1)
    episode_steps: int = option(400, "maximum steps of an episode that the analyst reads", least=1)
    analyst: str = option("scripted", "scripted, endpoint, or a local model's name")
    endpoint: endpoints.Endpoint = part(endpoints.Endpoint(), without=("endpoint_tokenizer",))
    templates: TemplateOptions = part(TemplateOptions(shared=True))
    cell: int = option(2, "Pong: side of the blocks that count as one state in the lookup table; 1 is exact", least=1)
    points: int = option(1, "Pong: points of a game", least=1)
    physics: str = option("auto", "robots: mjx, c, or auto: c on a CPU", choices=("auto", "mjx", "c"))
    contact_forces: bool = option(False, "Ant: v4 with contact forces in observation and reward")
    checkpoint_every: int = option(50, "updates between checkpoints", least=1)

    def __post_init__(self):
        check(self)


def count(number: int, noun: str) -> str:
    """A count with its noun: "1 update", "2 updates"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
