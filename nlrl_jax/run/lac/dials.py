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

    alpha: float = option(
        -1.0,
        "weight of the KL term; inf follows the prior. -1: 1, or 0.5 with the prompt `compact`",
        least=-1,
        infinite=True,
    )
    floor: float = option(
        -1.0,
        "added to the probabilities of GOOD and BAD: where the model would write neither, Q is then near 0. It bounds "
        "Q by log(1 / floor + 1), so it hides what a model that is sure of itself thinks of its candidates. -1: 0, the "
        "paper's, or 0.02 with the prompt `compact`",
        least=-1,
        most=1,
    )

    def __post_init__(self):
        check(self)
        self.of(LACConfig(), "paper")

    def of(self, lac: LACConfig, form: str) -> LACConfig:
        """`lac` with these values; `form` is the model's prompt, see `PromptConfig.form`."""
        usual = COMPACT if form == "compact" else LACConfig()
        given = {name: value for name, value in dataclasses.asdict(self).items() if value != -1}
        return dataclasses.replace(lac, **{"alpha": usual.alpha, "floor": usual.floor, **given})


def lac_of(config: Any) -> LACConfig:
    """How LAC decides by a script's config, which has `model`, `lac`, `dials` and `prompts`."""
    return config.dials.of(config.lac, config.prompts.form(config.model)[0])


def settled(config: C) -> C:
    """Such a config with the model's alpha and floor where it has none."""
    own = lac_of(config)
    return replace(config, alpha=own.alpha, floor=own.floor)
