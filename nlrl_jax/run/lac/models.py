"""The models of a LAC run: what they must be able to do, and the dialogues that the methods hold with them."""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import PlanningConfig
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.run import models
from nlrl_jax.run.endpoints import Endpoint
from nlrl_jax.run.host_games import prompts
from nlrl_jax.run.host_games.prompts import PromptConfig
from nlrl_jax.run.host_games.tasks import Task
from nlrl_jax.types import HostGame
from nlrl_jax.weights.load import load_config, load_tokenizer


def dialogues_of(
    names: Sequence[str], game: HostGame, form: PromptConfig, model: str, tokenizer: Tokenizer | None, room: int
) -> dict[str, Dialogue]:
    """The dialogue of each method with a model, given by its name, in a context of `room` tokens."""
    return {name: prompts.dialogue_of(METHODS[name], game, form, model, tokenizer, room) for name in names}


def check_model(model: str, endpoint: Endpoint, planning: PlanningConfig, ask: bool) -> Tokenizer | None:
    """Refuses a model that cannot be used, before anything is loaded or paid for. Returns its tokenizer, if known.

    Args:
      ask: see `models.check_large_model`.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or its context does not fit.
      LanguageModelError: an endpoint does not answer.
    """
    if model == "endpoint":
        models.check_large_model("endpoint", endpoint, planning.line(0), ask=ask)
        return load_tokenizer(endpoint.endpoint_tokenizer) if endpoint.endpoint_tokenizer else None
    room = load_config(model).max_positions
    if planning.reserve(room) >= room:
        raise ValueError(
            f"--line_tokens is {planning.line_tokens}, but {model} has {room} positions in all; lower it, at least "
            f"below {room // 3}"
        )
    return load_tokenizer(model)


def check_prompts(
    model: str,
    tokenizer: Tokenizer | None,
    names: Sequence[str],
    game: HostGame,
    tasks: Sequence[Task],
    form: PromptConfig,
    planning: PlanningConfig,
) -> None:
    """Refuses a context that the model does not have, or that does not hold the methods' first prompts in tasks.

    Args:
      model: its name. names: of the methods. tasks: none for a model that was made for the game.
    """
    limit = form.context_tokens
    room = limit if model == "endpoint" else prompts.context_within(model, limit)
    if not room or not tasks:
        return
    chosen = limit if model == "endpoint" or room < prompts.context_within(model, 0) else 0
    starts = game.reset(tasks)
    for dialogue in dialogues_of(names, game, form, model, tokenizer, room).values():
        prompts.check_room(dialogue, starts, planning.reserve(room), (model, game.name), chosen)


def needed_scores(names: Sequence[str], config: LACConfig, has_policy: bool) -> models.Scores:
    """The log-probabilities that the methods `names` need of the model. has_policy: actions are another model's."""
    words = config.critic != "direct" and any(METHODS[name].scores for name in names)
    from_list = config.planning.origin == "list" and not has_policy
    texts = "rap" in names or from_list or words and " " in "".join(config.pair())
    instead = "--methods lac,react,icpi,rafa with --origin sample"
    return models.Scores(words, texts, f"choose {'' if texts else '--critic direct and '}{instead}")
