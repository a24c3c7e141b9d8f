"""The shared nouns: games (`types.games`), and language models with their requests and answers (`types.models`)."""

from nlrl_jax.types.games import (  # noqa: I001
    MOST_REWARD, MOST_RUN_SEED, SEEDS_PER_RUN, BoardGame, ControlGame, EpisodeFault, HostGame, Outcome, Start, TextGame,
)  # fmt: skip
from nlrl_jax.types.models import (
    LEAST, ROUNDING, Answer, Chat, Facts, LanguageModel, LanguageModelError, Learn, Pairs, Piece, Reply, Request,
    Sampling, Score, ScoreTexts, Write, Written, answer_batches, as_model, can_judge, check_stop, cut,
)  # fmt: skip

__all__ = [
    "Answer", "BoardGame", "Chat", "ControlGame", "EpisodeFault", "Facts", "HostGame", "LEAST", "LanguageModel",
    "LanguageModelError", "Learn", "MOST_REWARD", "MOST_RUN_SEED", "Outcome", "Pairs", "Piece", "ROUNDING", "Reply",
    "Request", "SEEDS_PER_RUN", "Sampling", "Score", "ScoreTexts", "Start", "TextGame", "Write", "Written",
    "answer_batches", "as_model", "can_judge", "check_stop", "cut",
]  # fmt: skip
