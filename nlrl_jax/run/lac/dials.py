"""alpha and floor: the paper's values, or those chosen with a model that reads the compact prompt."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.config import check, option, replace

C = TypeVar("C")

# Chosen on seeds 1 and 2 of BabyAI-Text, with nano_babyai; the paper, too, chooses alpha by model.
COMPACT = LACConfig(alpha=0.5, floor=0.02)


@dataclasses.dataclass(frozen=True)
class Dials:
    """How much the critic weighs."""

    alpha: float | str = option(
        "auto",
        "weight of the KL term; inf follows the prior; auto: 1, or 0.5 with the prompt `compact`",
        least=0,
        infinite=True,
        auto=True,
    )
    # It bounds Q by log(1 / floor + 1), so a large one hides what a model that is sure of itself thinks.
    floor: float | str = option(
        "auto",
        "added to P(GOOD) and P(BAD), so Q stays small where both are improbable; auto: 0 (0.02 for compact prompts)",
        least=0,
        most=1,
        auto=True,
    )

    def __post_init__(self):
        check(self)
        self.of(LACConfig(), "paper")

    def of(self, lac: LACConfig, form: str) -> LACConfig:
        """`lac` with these values; `form` is the model's prompt, see `PromptConfig.form`."""
        usual = COMPACT if form == "compact" else LACConfig()
        alpha = usual.alpha if self.alpha == "auto" else self.alpha
        floor = usual.floor if self.floor == "auto" else self.floor
        return dataclasses.replace(lac, alpha=alpha, floor=floor)


def lac_of(config: Any) -> LACConfig:
    """How LAC decides by a script's config, which has `model`, `lac`, `dials` and `prompts`."""
    return config.dials.of(config.lac, config.prompts.form(config.model)[0])


def settled(config: C) -> C:
    """Such a config with the model's alpha and floor where it has none."""
    lac = lac_of(config)
    return replace(config, alpha=lac.alpha, floor=lac.floor)
