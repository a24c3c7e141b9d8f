"""What a model's chat template does with a conversation, found by rendering small chats with the template itself.

    nlrl-jax inspect --model Qwen/Qwen3-0.6B
    nlrl-jax inspect --model chat_template.jinja --json

`--model` is a folder, a .gguf file, the id of a model on the Hub, or a file with a template alone. No weights are read.
The last lines say what a run with `--turns chat` does about it: with thoughts as the template has them, with and
without. `--json` prints the same as one line.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import textwrap

from absl import flags

from nlrl_jax.lm.chat_probe import TemplateFacts, probe, reading_notes
from nlrl_jax.lm.chat_template import ChatRenderer, TemplateOptions
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.conversation_plan import WAYS, plan_conversations
from nlrl_jax.lm.template_sentences import sentences
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.run import app, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.weights.load import load_tokenizer

TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt")
# A template alone does not say its special tokens.
PLACEHOLDERS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
THOUGHTS = {"auto": None, "on": True, "off": False}


def read_template(path: pathlib.Path, options: TemplateOptions) -> ChatRenderer:
    """A file with a template alone. ValueError: it is no text, or it does not read a variable that is set."""
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8, so it is no chat template") from None
    options.check_read([source], f"the chat template in {path}")
    return ChatRenderer(source, PLACEHOLDERS, options)


def plans(renderer: ChatRenderer, tokenizer: Tokenizer | None) -> dict[str, dict[str, object]]:
    """What a run would do: --think -> its way and notes."""
    runs = {}
    for think, thinks in THOUGHTS.items():
        if tokenizer is None:
            plan = plan_conversations(renderer, thinks)
            notes = (*plan.notes, *reading_notes(plan.form), WAYS[plan.way])
        else:
            form = ConversationForm.of(tokenizer, thinks=thinks)
            plan, notes = form.plan, form.notes
        runs[think] = {"way": plan.way, "variables": dict(plan.form.variables), "notes": list(notes)}
    return runs


def table(facts: TemplateFacts, runs: dict[str, dict[str, object]]) -> str:
    """The facts and plans for a person."""
    rows = [*sentences(facts).items()]
    lines = [_row(label, sentence) for label, sentence in rows]
    lines.append("\nWhat a run does")
    previous: object = None
    for think, run in runs.items():
        same = run["notes"] == previous
        lines.append(_row(f"--think {think}", "the same" if same else "; ".join(run["notes"])))
        previous = run["notes"]
    return "\n".join(lines)


def _row(label: str, sentence: str) -> str:
    return textwrap.fill(
        sentence, 110, initial_indent=f"  {label:22}", subsequent_indent=" " * 24, break_on_hyphens=False
    )


def main(argv: list[str]) -> None:
    del argv
    options = app.parse(TemplateOptions)
    if not options.date:
        options = dataclasses.replace(options, date=datetime.date.today().isoformat())
    path = pathlib.Path(flags.FLAGS.model).expanduser()
    tokenizer = None
    if path.suffix in TEMPLATE_SUFFIXES and path.is_file():
        renderer = read_template(path, options)
    else:
        tokenizer = load_tokenizer(flags.FLAGS.model, flags.FLAGS.revision, options)
        renderer = tokenizer.renderer
    facts, runs = probe(renderer), plans(renderer, tokenizer)
    if flags.FLAGS.json:
        print(json.dumps({"facts": dataclasses.asdict(facts), "runs": runs}))
    else:
        print(f"{flags.FLAGS.model}: a chat template of {len(renderer.source):,} characters\n")
        print(table(facts, runs))


def define_flags() -> None:
    flags.DEFINE_string("model", "nano", f"{players.MODELS}, or a file with a chat template ({TEMPLATE_SUFFIXES[0]})")
    flags.DEFINE_string("revision", "", "branch, tag or commit of a Hub id")
    config_flags.define(TemplateOptions())
    flags.DEFINE_boolean("json", False, "print one line of JSON")


if __name__ == "__main__":
    define_flags()
    app.run(main)
