"""Local models as a game's other players."""

import pytest

from nlrl_jax.run.host_games.opponents import opponent_option, replying
from nlrl_jax.types import Written
from tests.tokenizers_from_wheels import small_tokenizer

TOKENIZER = small_tokenizer()


class Scripted:
    """Says where the board is empty, and keeps what it read."""

    tokenizer = TOKENIZER

    def __init__(self, text):
        self.text, self.prompts = text, []

    def write(self, prompts, sampling, role, seed, stop):
        assert sampling.temperature == 0
        self.prompts += prompts
        tokens = (*TOKENIZER.encode(self.text), TOKENIZER.end_id)
        return [Written(tokens, (-1.0,) * len(tokens), True)] * len(prompts)


def test_a_model_reads_what_its_player_has_heard():
    model = Scripted("I take [4].")
    reply = replying(model, 200, 20)
    assert reply("You are player 1.\nPlayer 0 took [0].") == "I take [4]."
    read = TOKENIZER.decode(list(model.prompts[0]), skip_special_tokens=False)
    assert read == TOKENIZER.render_chat([{"role": "user", "content": "You are player 1.\nPlayer 0 took [0]."}])


def test_what_is_too_long_loses_its_middle():
    model = Scripted("[4]")
    replying(model, 200, 20)("The rules. " + "a long story " * 500 + "Your move.")
    read = TOKENIZER.decode(list(model.prompts[0]))
    assert len(model.prompts[0]) <= 180 and "The rules." in read and "Your move." in read and "[...]" in read


@pytest.mark.parametrize("text, game, option", [
    ("", "snake", {}), ("random", "textarena:Nim-v0", {"opponent": "random"}),
    ("mine:reply", "textarena:Nim-v0", {"opponent": "mine:reply"}),
])  # fmt: skip
def test_options(text, game, option):
    assert opponent_option(text, game) == option


def test_a_game_without_other_players_is_refused():
    with pytest.raises(ValueError, match="--opponent nano is for games of TextArena .*, not for gem:game:Hangman"):
        opponent_option("nano", "gem:game:Hangman-v0")
