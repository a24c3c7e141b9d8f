"""`nlrl-jax inspect`: what a chat template does, and what a run does about it."""

import json

import pytest

from nlrl_jax.launch.__main__ import FILES, scripts
from tests import small_chat_templates as templates
from tests.launch.scripts import refusal, run


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "chat_template.jinja"
    path.write_text(templates.KEEP_VARIABLE)
    return path


def test_a_template_file_is_told_to_a_person(template, capsys):
    run("inspect_model", "--model", template)
    text = " ".join(capsys.readouterr().out.split())
    assert "between turns '<|im_end|>\\n<|im_start|>user\\nNow a wall is there.<|im_end|>" in text
    assert "thoughts kept while only tools reply; turned on and off by enable_thinking; kept with preserve" in text
    assert "--think auto the template gets preserve_thinking=true; with that variable" in text
    assert "--think off the template gets enable_thinking=false" in text


def test_json_has_the_same(template, capsys):
    run("inspect_model", "--model", template, "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["facts"]["thoughts"] == "kept while only tools reply"
    assert said["runs"]["on"]["way"] == "keep" and said["runs"]["off"]["variables"] == {"enable_thinking": False}


def test_a_model_is_told_with_its_own_end_tokens(capsys):
    run("inspect_model", "--model", "nano", "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["runs"]["auto"]["way"] == "append" and len(said["runs"]["auto"]["notes"]) == 1


def test_variables_are_set_for_the_template(template, capsys):
    run("inspect_model", "--model", template, "--template", "preserve_thinking=true", "--json")
    assert json.loads(capsys.readouterr().out)["facts"]["thoughts"] == "kept"


def test_refusals(template, tmp_path):
    (tmp_path / "broken.jinja").write_text("{% for %}")
    (tmp_path / "bytes.jinja").write_bytes(b"\xff\xfe")
    for args, says in (
        (("--model", template, "--template", "thinking=true"), "sets thinking, which the chat template in"),
        (("--model", tmp_path / "broken.jinja"), "the chat template cannot be read"),
        (("--model", tmp_path / "bytes.jinja"), "is no text in UTF-8"),
        (("--model", tmp_path / "nothing.jinja"), "no model at"),
    ):
        assert says in refusal("inspect_model", *args)


def test_the_command_has_its_short_name():
    assert FILES["inspect"] == "inspect_model" and "inspect" in scripts() and "inspect_model" not in scripts()
