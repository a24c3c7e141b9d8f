"""Templates whose generation prompt opens a thought: what is read after it, and what forced beginnings follow."""

import dataclasses

import pytest

from nlrl_jax.algorithms import sft
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.thoughts import closing, thought_end
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.json_reply import read_json
from nlrl_jax.types import Chat, Sampling, Written
from tests.tokenizers_from_wheels import CHATML, small_tokenizer

USER = [{"role": "user", "content": "Hi"}]
OPENED = [*USER, {"role": "assistant", "content": "This step is"}]
HEAD = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
BEGIN = "{{ '<|im_start|>assistant\n' }}"
SWITCH = BEGIN + "{%% if %s is defined and not %s %%}{{ '%s' }}{%% else %%}{{ '%s' }}{%% endif %%}"
# The template's last part, what it opens, and what stands before a forced beginning: the families' own forms.
TEMPLATES = {
    "always (DeepSeek-R1, MiniMax-M2)": (BEGIN + "{{ '<think>\n' }}", "<think>\n", "<think>\n\n</think>\n\n"),
    "enable_thinking (Qwen3.5)": (
        SWITCH % ("enable_thinking", "enable_thinking", "<think>\n\n</think>\n\n", "<think>\n"),
        "<think>\n", "<think>\n\n</think>\n\n",
    ),
    "enable_thinking (Nemotron 3)": (
        SWITCH % ("enable_thinking", "enable_thinking", "<think></think>", "<think>\n"), "<think>\n", "<think></think>",
    ),
    "thinking (DeepSeek-V3.1)": (
        SWITCH % ("thinking", "thinking", "</think>", "<think>"), "<think>", "</think>",
    ),
    "two newlines": (BEGIN + "{{ '<think>\n\n' }}", "<think>\n\n", "<think>\n\n</think>\n\n"),
    "no newline (GLM 4.7)": (BEGIN + "{{ '<think>' }}", "<think>", "<think></think>"),
    "another name": (BEGIN + "{{ '<mm:think>' }}", "<mm:think>", "<mm:think></mm:think>"),
    "none (Qwen2.5)": (BEGIN, "", ""),
    "closed already (small Qwen3.5)": (
        BEGIN + "{{ '<think>\n\n</think>\n\n' }}", "<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n",
    ),
}  # fmt: skip


def tokenizer_of(name):
    return dataclasses.replace(small_tokenizer(), chat_template=CHATML.replace(BEGIN, TEMPLATES[name][0]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_open_message_stands_after_the_thought_as_the_template_closes_it(name):
    tokenizer, (_, opened, closed) = tokenizer_of(name), TEMPLATES[name]
    assert tokenizer.render_chat(USER) == HEAD + opened
    assert tokenizer.render_chat(OPENED) == f"{HEAD}{closed}This step is"
    assert tokenizer.render_chat(USER, thinks=False) == HEAD + closed
    assert bool(thought_end(HEAD + opened)) == (opened != closed) == bool(closing(HEAD + opened))
    if "enable_thinking" in name:
        asked = tokenizer.with_template(TemplateOptions(template="enable_thinking=true"))
        assert asked.render_chat(OPENED) == f"{HEAD}{closed}This step is"


@dataclasses.dataclass(frozen=True, eq=False)
class Scripted(LocalModel):
    """Writes a text, cut after `most` tokens."""

    text: str = ""
    most: int = 1000

    def _replies(self, prompts, which, sampling, ends, draws):
        tokens = [*self.tokenizer.encode(self.text), self.tokenizer.end_id]
        stops = next((n + 1 for n, token in enumerate(tokens) if ends[token]), len(tokens))
        tokens = tokens[: min(stops, self.most)]
        return [Written(tuple(tokens), (0.0,) * len(tokens), len(tokens) == stops)] * len(which)


ASKED = Chat.of("Hi")


def answer(name, text, stop=(), most=1000, chat=ASKED):
    tokenizer = tokenizer_of(name)
    config = ModelConfig(8 * -(-tokenizer.vocab_size // 8), 8, 8, 1, 1, 1, 8, 1000)
    model = Scripted(Transformer(config), {"params": {}}, tokenizer, text=text, most=most)
    return model.complete([chat], Sampling(500, 0.0), "role", stop=stop)[0]


ALWAYS, PLAIN = "always (DeepSeek-R1, MiniMax-M2)", "none (Qwen2.5)"


def test_a_reply_is_read_after_its_thought():
    thought = 'Is it {"move": 1}?\nNo.\n</think>\n\n{"move": 5}'
    assert answer(ALWAYS, thought).text.strip() == '{"move": 5}'
    assert read_json(answer(ALWAYS, thought).text) == ({"move": 5}, "")
    assert answer(ALWAYS, thought, stop=["\n", "}"]).text == ""  # the first line after the thought
    assert answer(ALWAYS, "x</think>up\ndown", stop=["\n"]).text == "up"
    assert answer("another name", "x</mm:think>up").text == "up"
    assert answer(PLAIN, "up\ndown", stop=["\n"]).text == "up"


def test_a_thought_that_never_ends_is_a_cut_reply():
    for most in (5, 1000):
        reply = answer(ALWAYS, 'The move is {"move": 1}', most=most)
        assert (reply.text, reply.ended) == ("", False) and reply.tokens > 4
    assert answer(PLAIN, "I think").ended and answer(ALWAYS, "x</think>y").ended


def test_thoughts_that_the_model_opens_are_no_part_of_its_reply():
    assert answer(PLAIN, "<think>left?</think>up").text == "up"
    cut = answer(PLAIN, '<think>is it {"move": 1}')
    assert (cut.text, cut.ended) == ("", False)
    assert answer(PLAIN, '{"thought": "</think>"}').text == '{"thought": "</think>"}'
    assert answer(PLAIN, "<think></think>").ended and answer(PLAIN, "a < b > c").text == "a < b > c"


def test_an_open_message_is_continued_at_once():
    opened = Chat.of("Hi", continued="This step is")
    assert answer(ALWAYS, " GOOD.", chat=opened).text == " GOOD."


def test_a_mark_that_decoding_leaves_out_ends_a_thought_too():
    tokenizer = tokenizer_of(ALWAYS)
    backend = type(tokenizer.backend).from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["</think>"])
    special = dataclasses.replace(tokenizer, backend=backend)
    config = ModelConfig(8 * -(-special.vocab_size // 8), 8, 8, 1, 1, 1, 8, 1000)
    model = Scripted(Transformer(config), {"params": {}}, special, text="left?</think>up")
    assert model.complete([Chat.of("Hi")], Sampling(500, 0.0), "role")[0].text == "up"


def test_fine_tuning_teaches_an_empty_thought_before_the_reply():
    tokenizer = tokenizer_of(ALWAYS)
    (example,) = sft.tokenize(tokenizer, [(Chat.of("Hi"), "yes")])
    text = tokenizer.decode(example.tokens[example.start :], skip_special_tokens=False)
    assert text == "\n</think>\n\nyes<|im_end|>" and tokenizer.decode(example.tokens[: example.start]).endswith(
        "<think>\n"
    )
    (continued,) = sft.tokenize(tokenizer, [(Chat.of("Hi", continued="This step is"), " GOOD")])
    assert tokenizer.decode(continued.tokens[continued.start :]) == " GOOD"
