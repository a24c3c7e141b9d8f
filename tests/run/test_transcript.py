"""Records of played episodes, on a FrozenLake with replies written by hand."""

import io
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from nlrl_jax import envs
from nlrl_jax.rollouts.text_games import Episodes, Turns
from nlrl_jax.run.transcript import flaws, outcome, print_transcript, printable, transcripts
from nlrl_jax.text.parser import ParsedReply
from nlrl_jax.text.policy import TokenTurn

GAME = envs.make("frozen_lake", prompt="compact")
T, B, S, N = 2, 3, 8, 64

# A tokenizer of bytes, with a static prefix.
POLICY = types.SimpleNamespace(
    prompt_text=lambda prompt, length: "prefix " + bytes(prompt[S - length :].tolist()).decode(),
    reply_text=lambda reply, length: bytes(reply[:length].tolist()).decode(),
)
REPLIES = [
    ["<action>Right</action>", "[red]not markup[/red] [/]", "late"],
    ["<action>Down</action>", "x\x1b[2Jy", "no"],
]


def tokens(texts, width, left=False):
    out = np.zeros((T, B, width), np.int32)
    for t, row in enumerate(texts):
        for b, text in enumerate(row):
            ids = list(text.encode())
            start = width - len(ids) if left else 0
            out[t, b, start : start + len(ids)] = ids
    return jnp.asarray(out)


@pytest.fixture(scope="module")
def episodes():
    """Row 0 plays Right, Down; row 1 talks nonsense; row 2 is over after one turn."""
    _, state = GAME.env.reset_env(jax.random.key(0), GAME.params)
    state = state.replace(holes=jnp.zeros(16, bool).at[9].set(True))
    at = lambda cell: GAME.fields(state.replace(position=jnp.int32(cell)))
    stack = lambda rows: jax.tree.map(lambda *x: jnp.stack(x), *rows)
    fields = stack([stack([at(0)] * 3), stack([at(1), at(0), at(9)])])
    lengths = jnp.asarray([[len(text.encode()) for text in row] for row in REPLIES])
    prompts = [["p00", "p01", "p02"], ["p10", "p11", "p12"]]
    full = lambda value: jnp.full((T, B), value)
    parsed = ParsedReply(
        actions=jnp.asarray([[[3, -1], [-1, -1], [1, 1]], [[1, -1], [-1, -1], [0, 0]]]),
        num_actions=full(1),
        num_invalid=jnp.asarray([[0, 1, 0], [0, 2, 0]]),
        structure_violations=full(0),
        extra_text=full(False),
        format_penalty=jnp.asarray([[0.0, -1.5, 0.0], [0.0, -2.0, 0.0]]),
    )
    said = TokenTurn(
        prompts=tokens(prompts, S, left=True),
        prompt_lengths=full(3),
        replies=tokens(REPLIES, N),
        reply_lengths=lengths,
        log_probs=jnp.zeros((T, B, N)),
        ended=jnp.asarray([[True, False, True]] * 2),
        parsed=parsed,
    )
    reward = jnp.asarray([[0.0, 0.0, 0.25], [1.0, 0.0, 0.0]])
    active = jnp.asarray([[True, True, True], [True, True, False]])
    invalid = jnp.where(active, said.parsed.num_invalid, 0)
    turns = Turns(fields, said, reward, jnp.asarray([[1, 0, 2], [1, 0, 0]]), invalid, active)
    final = stack([at(5), at(0), at(9)])
    return Episodes(turns, jnp.asarray([False, False, True]), jnp.asarray([True, False, False]), final)


def test_records(episodes):
    first, third = transcripts(POLICY, GAME, episodes, [0, 2])
    assert first["success"] is True and first["env_return"] == 1.0 and not first["terminated"]
    assert [turn["reply"] for turn in first["turns"]] == [REPLIES[0][0], REPLIES[1][0]]
    assert [turn["prompt"] for turn in first["turns"]] == ["prefix p00", "prefix p10"]
    assert [turn["actions"] for turn in first["turns"]] == [["Right"], ["Down"]]
    boards = [turn["board"] for turn in first["turns"]] + [first["final_board"]]
    assert boards == [  # row 0 walks Right, then Down
        "P _ _ _\n_ _ _ _\n_ O _ _\n_ _ _ G",
        "_ P _ _\n_ _ _ _\n_ O _ _\n_ _ _ G",
        "_ _ _ _\n_ P _ _\n_ O _ _\n_ _ _ G",
    ]
    assert len(third["turns"]) == 1 and third["turns"][0]["actions"] == ["Down", "Down"]
    assert third["turns"][0]["steps"] == 2 and third["env_return"] == 0.25 and third["final_board"][18] == "X"


def test_flaws(episodes):
    (second,) = transcripts(POLICY, GAME, episodes, [1])
    assert [turn["invalid"] for turn in second["turns"]] == [1, 2] and second["turns"][0]["cut"] is True
    assert flaws(second["turns"][0]) == ["1 invalid action", "format penalty -1.5", "reply cut"]
    assert outcome(second) == "failure, return 0"
    assert outcome(second | {"success": None}) == "stopped at the limit, return 0"


def test_json_and_rows(episodes):
    records = transcripts(POLICY, GAME, jax.device_get(episodes), range(3))
    assert json.loads(json.dumps(records)) == records
    assert transcripts(POLICY, GAME, episodes, []) == []
    with pytest.raises(IndexError, match="episode 3 does not exist; there are 3"):
        transcripts(POLICY, GAME, episodes, [3])


@pytest.mark.parametrize("prompts", [False, True])
def test_terminal(episodes, prompts):
    file = io.StringIO()
    for record in transcripts(POLICY, GAME, episodes, range(3)):
        print_transcript(record, Console(file=file, force_terminal=True, color_system=None, width=100), prompts)
    shown = file.getvalue()
    assert "[red]not markup[/red] [/]" in shown and "\x1b[2J" not in shown and "x␛[2Jy" in shown
    assert "success, return 1" in shown and "2 invalid actions" in shown and "_ P _ _" in shown
    assert ("prefix p00" in shown) == prompts


def test_printable():
    assert printable("a\tb\nc é \U0001f600") == "a\tb\nc é \U0001f600"
    assert printable("\x00\x1b\x7f\x9b\u202e\udc80") == "\u2400\u241b\u2421\ufffd\ufffd\ufffd"
