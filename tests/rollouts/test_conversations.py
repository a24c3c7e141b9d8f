"""Episodes as chats: tokens between replies, replies of many lines, thoughts that are closed, a full context."""

import dataclasses
import gc
import json
import weakref

import jax
import numpy as np
import pytest

from nlrl_jax.algorithms.ms_grpo_transcripts import Reader, episode_metrics, format_penalty
from nlrl_jax.algorithms.transcript_rows import pack, transcripts_of
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles import reply_forms
from nlrl_jax.roles.messages import first_message, read_reply, system_text
from nlrl_jax.rollouts.conversations import ChatPlayer
from nlrl_jax.rollouts.transcripts import play
from nlrl_jax.types import Sampling, Written
from tests.rollouts.test_transcripts import GAME, player
from tests.tokenizers_from_wheels import CHATML, small_tokenizer

# A template that opens a thought, and one that also drops the thoughts of earlier turns.
OPENS = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
DROPS = OPENS.replace("message['content']", "message['content'].split('</think>')[-1]")
# What it writes of a turn depends on the number of turns: nothing can be appended.
COUNTS = CHATML.replace("{{ '<|im_start|>'", "{{ loop.length ~ '<|im_start|>'")
TOKENIZER = dataclasses.replace(small_tokenizer(), options=TemplateOptions(date="2026-01-31"))
END = TOKENIZER.end_id
SYSTEM = "Get to 3."


class Scripted:
    """Writes texts letter by letter, as a tokenizer would never split them, up to `max_tokens`; END ends them."""

    def __init__(self, texts, tokenizer=TOKENIZER):
        self.texts, self.tokenizer, self.calls = iter(texts), tokenizer, []

    def write(self, prompts, sampling, role, seed, stop):
        self.calls.append((role, sampling.max_tokens, len(prompts)))
        return [self.reply(next(self.texts), sampling.max_tokens) for _ in prompts]

    def reply(self, text, most):
        tokens = [id for letter in text.removesuffix("END") for id in self.tokenizer.encode(letter, continues=True)]
        tokens = (tokens + [END] * text.endswith("END"))[:most]
        return Written(tuple(tokens), (-1.0,) * len(tokens), tokens[-1:] == [END])


def chatting(texts, template=CHATML, room=2000, new=60, thinks=None, way="auto", **more):
    tokenizer = dataclasses.replace(TOKENIZER, chat_template=template)
    form = ConversationForm.of(tokenizer, thinks=thinks, way=way)
    return ChatPlayer(Scripted(texts, tokenizer), form, SYSTEM, Sampling(new), room, **more)


def text_of(tokens):
    return TOKENIZER.decode(list(tokens), skip_special_tokens=False)


def chat_of(observations, replies=()):
    """The messages of an episode from position 0."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Goal: 3\nyou are at 0"}]
    for reply, observation in zip(replies, observations, strict=True):
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    return messages


UPS = ["I go up.\nAction: UpEND", "Again\n\nAction: UpEND", "Action: UpEND"]


def test_an_episode_has_the_tokens_of_the_template_with_the_replies_as_they_were_sampled():
    (one,) = play(chatting(UPS), GAME, [("", 0)], 0)
    replies = [turn.replies[0] for turn in one.turns]
    assert one.episode.success and [turn.action for turn in one.turns] == ["Up"] * 3
    assert not any(turn.invalid or turn.unread for turn in one.turns)
    assert replies[0].prompt == tuple(TOKENIZER.encode(TOKENIZER.render_chat(chat_of([]))))
    for before, after in zip(replies, replies[1:]):
        so_far = before.prompt + before.written.tokens
        assert after.prompt[: len(so_far)] == so_far
    texts = [text.removesuffix("END") for text in UPS[:2]]
    whole = TOKENIZER.render_chat(chat_of(["you are at 1", "you are at 2"], texts))
    assert text_of(replies[2].prompt) == whole
    # The same text, tokenised anew, has other tokens: that is what an episode must not do.
    assert tuple(TOKENIZER.encode(whole)) != replies[2].prompt
    (row,) = transcripts_of(one.turns, [1.0] * 3, 1.0)
    learned = [row.tokens[place] for place in row.at]
    assert learned == [token for reply in replies for token in reply.written.tokens]


def test_a_reply_that_was_cut_gets_its_end_and_is_fined():
    (one,) = play(chatting(["I wonder whether", *UPS], new=8), dataclasses.replace(GAME, max_steps=2), [("", 0)], 0)
    first, second = one.turns[0].replies[0], one.turns[1].replies[0]
    assert len(first.written.tokens) == 8 and not first.written.ended and one.turns[0].unread and one.turns[0].invalid
    assert text_of(second.prompt).endswith("I wonder<|im_end|>\n<|im_start|>user\nyou are at 0<|im_end|>\n"
                                           "<|im_start|>assistant\n")  # fmt: skip
    assert format_penalty(one.turns[0]) == -0.5 and one.turns[0].action == "I wonder"


@pytest.mark.parametrize(
    "text, actions, action, problem",
    [
        ("Action: Down would be bad.\nAction: Up", ("Up", "Down"), "Up", ""),
        ("<think>Action: Down</think>\nUp", ("Up", "Down"), "Up", ""),
        ("Either Up or Down", ("Up", "Down"), "", "no action"),
        ("I look for shoes.\nAction: search[red shoes]", (), "search[red shoes]", ""),
        ("I look for shoes.\nsearch[red shoes]\n", (), "search[red shoes]", ""),
        ("", (), "", "empty"),
    ],
)
def test_the_action_is_what_a_reply_ends_with(text, actions, action, problem):
    game = dataclasses.replace(GAME, actions=actions)
    found, why = read_reply(text, game)
    assert why == problem and (not action or found == action)
    assert found  # the game gets something in any case


def test_a_game_reads_replies_by_its_own_rule():
    def boxed(text):
        return text.partition("[")[2].partition("]")[0] or None

    game = dataclasses.replace(GAME, read_action=boxed, reply_form="Give it as [action].")
    assert system_text(game) == "Get to 3.\nGive it as [action]." and not system_text(game, compact=True)
    assert system_text(GAME).endswith('in the form "Action: Up".') and first_message("", "you see") == "you see"
    (one,) = play(chatting(["so [Up]\nor notEND", "up\n and up END", "[Down]END"] + UPS), game, [("", 0)], 0)
    assert [turn.action for turn in one.turns[:3]] == ["Up", "up\n and up", "Down"]
    assert [turn.unread for turn in one.turns[:3]] == [False, True, False]


# --- Thoughts --------------------------------------------------------------------------------------------------------


def test_a_thought_that_is_too_long_is_closed_and_the_mark_is_not_learned():
    texts = ["a thought that is long", "short</think>\n\nAction: UpEND", "\nAction: UpEND"]
    who = chatting(texts, OPENS, new=40, think_tokens=14)
    first, second = play(who, dataclasses.replace(GAME, max_steps=1), [("", 0)] * 2, 0)
    assert who.model.calls == [("reply", 54, 2), ("answer", 40, 1)]
    (turn,), (other,) = first.turns, second.turns
    thought, answer = turn.replies
    assert turn.is_closed and turn.thought_tokens == len(thought.written.tokens) == 14 and turn.action == "Up"
    close = answer.prompt[len(thought.prompt) + 14 :]
    assert answer.prompt == thought.prompt + thought.written.tokens + close and text_of(close) == "\n</think>\n\n"
    assert not other.is_closed and other.action == "Up" and len(other.replies) == 1
    assert text_of(other.replies[0].written.tokens[: other.thought_tokens]) == "short</think>"
    assert format_penalty(turn) == format_penalty(other) == 0
    (row,) = transcripts_of(first.turns, [1.0], 1.0)
    assert [row.tokens[place] for place in row.at] == [*thought.written.tokens, *answer.written.tokens]
    metrics = episode_metrics([[first, second]], np.zeros((1, 2)), np.ones((1, 2), bool))
    assert metrics["closed_thoughts"] == 0.5 and metrics["cut_replies"] == 0 and metrics["actions_read"] == 1
    assert metrics["thought_tokens"] == (14 + other.thought_tokens) / 2
    assert metrics["thought_tokens"] + metrics["action_tokens"] == metrics["reply_tokens"]


def test_an_answer_after_a_short_thought_is_no_longer_than_it_may_be():
    who = chatting(["so</think>" + "x" * 50], OPENS, new=10, think_tokens=30)
    (one,) = play(who, dataclasses.replace(GAME, max_steps=1), [("", 0)], 0)
    (turn,) = one.turns
    assert len(turn.replies[0].written.tokens) == turn.thought_tokens + 10 and not turn.replies[0].written.ended
    assert not turn.is_closed and turn.unread and format_penalty(turn) == -0.5


def test_without_a_budget_a_thought_that_never_ends_is_a_cut_reply():
    (one,) = play(chatting(["on and on and on"], OPENS, new=10), dataclasses.replace(GAME, max_steps=1), [("", 0)], 0)
    (turn,) = one.turns
    assert turn.thought_tokens == 10 and turn.unread and turn.action == "nothing" and len(turn.replies) == 1


# --- What cannot be appended, and what does not fit -------------------------------------------------------------------


def test_thoughts_that_a_template_would_drop_stay_as_they_were_sampled():
    who = chatting(["why</think>\n\nAction: UpEND"] * 3, DROPS)
    assert who.form.way == "ids"
    (one,) = play(who, GAME, [("", 0)], 0)
    assert text_of(one.turns[2].replies[0].prompt).count("why</think>") == 2


@pytest.mark.parametrize("template, texts", [(COUNTS, UPS), (DROPS, ["why</think>\n\nAction: UpEND"] * 3)])
def test_what_is_rendered_anew_is_a_row_a_turn(template, texts):
    who = chatting(texts, template, way="fresh")
    (one,) = play(who, GAME, [("", 0)], 0)
    replies = [text.removesuffix("END") for text in texts]
    tokenizer = dataclasses.replace(TOKENIZER, chat_template=template)
    for t, turn in enumerate(one.turns):
        shown = [f"you are at {place}" for place in range(1, t + 1)]
        opened = ["<think>\n" + reply if "think" in reply else reply for reply in replies]
        assert text_of(turn.replies[0].prompt) == tokenizer.render_chat(chat_of(shown, opened[:t]))
    rows = transcripts_of(one.turns, [1.0] * 3, 1.0)
    assert len(rows) == 3
    assert [row.tokens[: row.at[0]] for row in rows] == [list(turn.replies[0].prompt) for turn in one.turns]


def test_the_oldest_turns_leave_a_full_context_and_the_first_observation_stays():
    texts = ["Action: DownEND"] * 5
    (whole,) = play(chatting(texts), GAME, [("", 0)], 0)
    size = len(whole.turns[-1].replies[0].prompt) + 60
    (one,) = play(chatting(texts, room=size - 1), GAME, [("", 0)], 0)
    prompts = [turn.replies[0].prompt for turn in one.turns]
    assert prompts[:4] == [turn.replies[0].prompt for turn in whole.turns[:4]] and not one.episode.error
    last = text_of(prompts[4])
    assert "user\nGoal: 3\nyou are at 0\n\n[2 turns later; they are left out]\nyou are at -2<|im_end|>" in last
    assert last.count("Action: Down") == 2 and len(transcripts_of(one.turns, [1.0] * 5, 1.0)) == 2
    (short,) = play(chatting(texts, last=2), GAME, [("", 0)], 0)
    assert [text_of(turn.replies[0].prompt).count("Action: ") for turn in short.turns] == [0, 1, 2, 1, 2]
    with pytest.raises(
        ValueError, match=r"take \d+ tokens, and a turn up to 60 more; .* holds 105. Lower --max_tokens"
    ):
        play(chatting([], room=105), GAME, [("", 0)], 0)
    with pytest.raises(ValueError, match=r"Give a model whose context holds \d+ tokens or more"):
        play(chatting([], room=55), GAME, [("", 0)], 0)


def test_an_episode_ends_before_it_could_write_more_than_it_may():
    (one,) = play(chatting(["Action: DownEND"] * 5, new=20), GAME, [("", 0)], 0, episode_tokens=50)
    written = [len(turn.replies[0].written.tokens) for turn in one.turns]
    assert len(written) == 3 and sum(written[:2]) + 20 <= 50 < sum(written) + 20
    assert not one.episode.error and not one.episode.success


# --- Tools ------------------------------------------------------------------------------------------------------------

WHERE = {"type": "object", "properties": {"where": {"type": "string", "enum": ["Up", "Down"]}}, "required": ["where"]}
MOVE = {"type": "function", "function": {"name": "move", "description": "Moves you.", "parameters": WHERE}}


def call(where):
    return f'<tool_call>\n{{"name": "move", "arguments": {{"where": "{where}"}}}}\n</tool_call>'


def test_a_call_is_the_action_and_its_result_a_tool_message():
    def step(states, actions):
        words = [
            json.loads(action).get("arguments", {}).get("where", "") if "{" in action else "" for action in actions
        ]
        return GAME.step(states, words)

    game = dataclasses.replace(GAME, tools=(MOVE,), actions=(), step=step)
    form = ConversationForm.of(TOKENIZER, game.tools)
    texts = [f"So {call('Up')}END", f"{call('Left')}END", f"{call('Up')}\n{call('Down')}END", "I have done it.END"]
    who = ChatPlayer(Scripted(texts), form, system_text(game), Sampling(300), 2000)
    (one,) = play(who, dataclasses.replace(game, max_steps=4), [("", 0)], 0)
    assert [json.loads(turn.action) for turn in one.turns[::2]] == [{"name": "move", "arguments": {"where": "Up"}}] * 2
    assert [turn.tools for turn in one.turns] == [("move",), (), ("move", "move"), ()]
    assert [turn.unread for turn in one.turns] == [False, True, False, True]
    assert [turn.invalid for turn in one.turns[:3]] == [False, True, False]
    last = text_of(one.turns[3].replies[0].prompt)
    assert "you are at 1" in last and "you are at 2" in last and "Not carried out: one call a turn." in last
    assert "must be one of" in last  # why the second call could not be read
    metrics = episode_metrics([[one]], np.zeros((1, 1)), np.ones((1, 1), bool))
    assert metrics["tool/move"] == 3 / 4 and metrics["actions_read"] == 1 / 2


@pytest.mark.parametrize(
    "text, is_call",
    [('```json\n{"name": "move", "arguments": {"where": "Up"}}\n```', True), ("I would move up.", False)],
)
def test_a_call_in_another_form_is_an_action_where_the_game_reads_it(text, is_call):
    """Qwen2.5-Coder-0.5B writes its calls so, whatever its template says."""
    game = dataclasses.replace(GAME, tools=(MOVE,), actions=(), read_action=reply_forms.tool_call)
    form = ConversationForm.of(TOKENIZER, game.tools)
    who = ChatPlayer(Scripted([f"{text}END"]), form, system_text(game), Sampling(300), 2000)
    (one,) = play(who, dataclasses.replace(game, max_steps=1), [("", 0)], 0)
    (turn,) = one.turns
    assert turn.unread != is_call and turn.action == text and turn.tools == (("move",) if is_call else ())


def test_the_result_of_a_call_in_another_form_is_a_tools():
    game = dataclasses.replace(GAME, tools=(MOVE,), actions=(), read_action=reply_forms.tool_call)
    calls = ['{"name": "move", "arguments": {"where": "Up"}}END', "I have done it.END"]
    who = ChatPlayer(Scripted(calls), ConversationForm.of(TOKENIZER, game.tools), "", Sampling(300), 2000)
    (one,) = play(who, dataclasses.replace(game, max_steps=2), [("", 0)], 0)
    as_template = ChatPlayer(Scripted([f"{call('Up')}END", calls[1]]), who.form, "", Sampling(300), 2000)
    (other,) = play(as_template, dataclasses.replace(game, max_steps=2), [("", 0)], 0)
    prompts = [text_of(episode.turns[1].replies[0].prompt) for episode in (one, other)]
    results = [prompt.split("<|im_start|>")[-2] for prompt in prompts]
    assert results[0].startswith("tool\nyou are at") and results[0] == results[1]


# --- A real network ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """A small random model, its logits peaked."""
    network = Transformer(ModelConfig(8 * -(-TOKENIZER.vocab_size // 8), 16, 24, 1, 2, 1, 8, 512))
    params = jax.tree.map(lambda x: x * 8, init_params(network, jax.random.key(0)))
    return LocalModel(network, {"params": params}, dataclasses.replace(TOKENIZER, chat_template=OPENS), rows=4)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_packed_row_has_the_log_probabilities_of_the_sampler(model, keeps):
    writer = dataclasses.replace(model, kv_session=Session(10.0)) if keeps else model
    form = ConversationForm.of(writer.tokenizer)
    who = ChatPlayer(writer, form, SYSTEM, Sampling(8, 1.0), 512, think_tokens=6)
    played = play(who, GAME, [("", 0)] * 5, 5)
    assert any(turn.is_closed for one in played for turn in one.turns)
    rows = [row for one in played for row in transcripts_of(one.turns, [1.0] * len(one.turns), 1.0)]
    assert len(rows) == len(played)  # one row an episode
    packed = pack(rows, 512, 0, 0, writer.model)
    score = jax.jit(lambda row: row.score(Reader(writer.model), model.variables, None))
    for row in zip(*packed[:-1], strict=True):
        row = type(packed)(*row)
        learned = row.weights > 0
        found = score(row)
        np.testing.assert_allclose(found[learned], row.sampled[learned], atol=3e-4)
    begin = who.beginning()
    assert all(one.begins(begin) for one in played) and text_of(begin).startswith("<|im_start|>system\nGet to 3.")
    again = play(dataclasses.replace(who, model=dataclasses.replace(writer, kv_session=Session(0))), GAME,
                 [("", 0)] * 5, 5)  # fmt: skip
    tokens = [[turn.replies for turn in one.turns] for one in (*played, *again)]
    ids = [[reply.written.tokens for turn in turns for reply in turn] for turns in tokens]
    assert ids[:5] == ids[5:]


@pytest.mark.parametrize("make", [lambda: chatting(UPS), lambda: player([" Up\n"] * 3)], ids=["chat", "lines"])
def test_a_player_that_nobody_holds_is_freed_at_once(make):
    """With it goes a copy of the weights; Python's garbage collector would leave several of them for a while."""
    gc.collect()
    gc.disable()
    try:
        who = make()
        play(who, GAME, [("", 0)], 0)
        reference = weakref.ref(who)
        del who
        assert reference() is None
    finally:
        gc.enable()
