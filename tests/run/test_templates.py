"""--template and --date: every script that loads a language model has them, and a run keeps what it began with."""

import dataclasses
import datetime
import importlib
import pathlib
import types

import pytest
from absl import flags

from nlrl_jax import launch
from nlrl_jax.config import options, part
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import app, directory, local_models, players
from tests.tokenizers_from_wheels import small_tokenizer

SOURCE = "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}{{ enable_thinking }}{{ tone }}"


@dataclasses.dataclass(frozen=True)
class Config:
    templates: TemplateOptions = part(TemplateOptions())


@pytest.fixture
def command(monkeypatch):
    """(arguments, today) -> the config and the run's folder that a script gets."""
    before = set(flags.FLAGS)
    script = app.Command("script", Config)
    script.define_flags()

    def run(*args, today):
        for flag in set(flags.FLAGS) - before:
            flags.FLAGS[flag].unparse()
        flags.FLAGS(["prog", *map(str, args)])
        day = types.SimpleNamespace(today=lambda: datetime.date.fromisoformat(today))
        monkeypatch.setattr(app, "datetime", types.SimpleNamespace(date=day))
        config = script.parse()
        folder, _ = script.open(config)
        directory.close_run(folder)
        return config, folder

    yield run
    for flag in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, flag)


def prompt(options):
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=SOURCE).with_template(options)
    return tokenizer.render_chat([{"role": "user", "content": " Hi "}])


def test_a_run_keeps_its_variables_and_its_date(command, tmp_path):
    given = ("--template", "enable_thinking=false", "--template=tone=dry")  # several times is several
    config, folder = command(*given, "--run_dir", tmp_path / "run", today="2026-01-31")
    assert prompt(config.templates) == "31 Jan 2026 Hi Falsedry"
    assert command("--resume", "--run_dir", tmp_path / "run", today="2026-02-01")[0] == config
    assert prompt(players.templates_of(directory.read_config(folder))) == prompt(config.templates)
    for other in ("--template=tone=warm", "--date=2026-02-01"):
        with pytest.raises(ValueError, match="started with other options"):
            command("--resume", other, "--run_dir", tmp_path / "run", today="2026-02-01")
    dated, _ = command("--date=2020-02-29", "--run_dir", tmp_path / "other", today="2026-02-01")
    assert dated.templates == TemplateOptions("", "2020-02-29")
    with pytest.raises(ValueError, match="^--template is 'dry'; it must be variable=value"):
        command("--template=dry", "--run_dir", tmp_path / "third", today="2026-02-01")
    assert not (tmp_path / "third").exists()


def test_variables_must_be_read_by_one_of_the_local_models(tmp_path):
    dataclasses.replace(small_tokenizer(), chat_template=SOURCE).save_pretrained(tmp_path)
    options = TemplateOptions("enable_thinking=false", shared=True)
    local_models.check_templates(options, "nano_board", str(tmp_path), "endpoint", "")
    with pytest.raises(ValueError, match="sets enable_thinking, which the chat template of nano_board does not read"):
        local_models.check_templates(options, "nano_board", "scripted")
    with pytest.raises(ValueError, match="--extra 'chat_template_kwargs="):
        local_models.check_templates(options, "endpoint", "scripted")
    local_models.check_templates(TemplateOptions(), "endpoint")
    with pytest.raises(ValueError, match="which the model's chat template does not read"):
        local_models.tokenizer_of("nano_board", TemplateOptions("enable_thinking=false"))


def test_every_script_that_loads_a_language_model_takes_them():
    loads = ("load_tokenizer(", "load(", "local_model(", "trainable_model(", "large_model(", "MODELS")
    without = ("export.py", "train_dqn.py", "pretrain_nano.py")  # they prompt nobody, or their own model
    for path in pathlib.Path(launch.__file__).parent.glob("*.py"):
        text = path.read_text()
        if any(name in text for name in loads) and path.name not in without:
            command = getattr(importlib.import_module(f"nlrl_jax.launch.{path.stem}"), "COMMAND", None)
            named = [one.name for one in options(command.config())] if command else text
            assert ("template" in named) if command else ("templates" in text or "TemplateOptions" in text), path.name
