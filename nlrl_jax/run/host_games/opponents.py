"""A local model in the place of a game's other players, as in `--opponent smollm2`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.thoughts import answer, thought_end
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.rollouts.transcripts import Writer
from nlrl_jax.run import players
from nlrl_jax.types import Sampling

SCHEME = "textarena:"  # games with other players
HELP = (
    "textarena: who plays the others: random (legal moves), my_module:function (text that the player has heard -> "
    "reply), or a local model by its name, which replies greedily; empty: what the game's name says, else random"
)
MAX_TOKENS = 64  # of a reply
_MEMORY = 200.0  # MB of keys and values


def opponent_option(text: str, game: str) -> dict[str, Any]:
    """The option of a game that says who plays its other players; {} where the command line does not.

    Args:
      text: of --opponent. game: its name.

    Raises:
      FileNotFoundError, ValueError: the game has no other players, or there is no such model.
    """
    if not text:
        return {}
    if not game.startswith(SCHEME):
        raise ValueError(f"--opponent {text} is for games of TextArena ({SCHEME}NAME), not for {game}; leave it out")
    if text == "random" or ":" in text:
        return {"opponent": text}
    loaded = players.load(text)
    session = Session(_MEMORY)
    model = LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, 1, kv_session=session)
    return {"opponent": replying(model, loaded.config.max_positions)}


def replying(model: Writer, room: int, max_tokens: int = MAX_TOKENS) -> Callable[[str], str]:
    """A player who writes greedily, so that a task and the learner's actions still decide an episode.

    Args:
      room: tokens of the model's context.
    """
    tokenizer, sampling = model.tokenizer, Sampling(max_tokens, temperature=0.0)

    def reply(heard: str) -> str:
        prompt, text = _prompt(tokenizer, heard, room - max_tokens)
        (completion,) = model.write([prompt], sampling, "opponent", 0, ())
        end = thought_end(text)
        return answer(tokenizer, completion.tokens, end) or ""

    return reply


def _prompt(tokenizer: Tokenizer, heard: str, room: int) -> tuple[tuple[int, ...], str]:
    """The tokens and text of a message with what a player has heard; its middle is left out where it is too long."""
    excerpt = heard
    while True:
        text = tokenizer.render_chat([{"role": "user", "content": excerpt}])
        tokens = tuple(tokenizer.encode(text))
        if len(tokens) <= room or not excerpt:
            return tokens, text
        # The rules stand at the beginning, what is to be answered at the end.
        third = len(excerpt) // 3
        excerpt = f"{excerpt[:third]}\n[...]\n{excerpt[-third:]}" if third > 10 else ""
