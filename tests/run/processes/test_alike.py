"""What must be the same in all processes: code, files, variables, options, the run's folder."""

import json
import os
import sys

import pytest
from absl import flags

from nlrl_jax import multihost
from nlrl_jax.run.directory import open_run
from nlrl_jax.run.processes import alike
from nlrl_jax.run.processes.alike import differing


def two(monkeypatch, change=lambda value: value, **facts):
    """Makes `multihost` ask this process twice, the second time after `change` and with these facts."""

    def every(value):
        other = change(value)
        if isinstance(other, dict):
            other = {name: facts.get(name, fact) for name, fact in other.items()}
        return [json.loads(json.dumps(answer)) for answer in (value, other)]

    monkeypatch.setattr(multihost, "several", lambda: True)
    monkeypatch.setattr(multihost, "first", lambda: True)
    monkeypatch.setattr(multihost, "every", every)


def test_the_same_is_alike(tmp_path, monkeypatch):
    two(monkeypatch)
    config = {"seed": 0, "model": "nano", "floor": float("-inf")}
    alike.check(config, open_run(tmp_path / "run", config))


@pytest.mark.parametrize(
    "fact, says",
    [
        ("--seed", "must be alike, but --seed is 0 in process 0 and .other. in process 1"),
        ("what lies at --model model", "what lies at --model model is .* in process 0 and .other. in process 1"),
        ("a_game_of_mine", "the code of a_game_of_mine is"),
    ],
)
def test_a_config_a_model_or_a_game_that_differs_is_named(tmp_path, monkeypatch, fact, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "a_game_of_mine.py").write_text("x = 1\n")
    import a_game_of_mine  # noqa: F401

    modules = alike._user_modules()
    assert "a_game_of_mine" in modules and "jax" not in modules
    assert not any(name.startswith("nlrl_jax") for name in modules)
    two(monkeypatch, **{fact: "other"})
    with pytest.raises(ValueError, match=says):
        alike.check({"seed": 0, "model": "model"}, tmp_path)
    del sys.modules["a_game_of_mine"]


def test_another_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(alike, "_PATIENCE", 0.0)
    run_dir = open_run(tmp_path / "run", {})
    two(monkeypatch, lambda value: False if value is True else value)
    with pytest.raises(ValueError, match="process 1 does not see the run's folder .*on a disk that they share"):
        alike.check({}, run_dir)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    os.utime(copy / "config.json", ns=(1, 1))
    assert alike._stamp(run_dir) not in (alike._stamp(copy), alike._stamp(tmp_path))


@pytest.mark.parametrize(
    "change", [lambda x: x[:-1], lambda x: x + b"0", lambda x: b"1" + x[1:], lambda x: x[:-1] + b"1", lambda x: x[::-1]]
)
@pytest.mark.parametrize("size", [20, 3 << 20])
def test_a_fingerprint_tells_contents_apart(tmp_path, change, size):
    content = bytes(size // 2) + b"\xff" * (size // 2)
    (tmp_path / "a").write_bytes(content)
    whole = alike.fingerprint(tmp_path / "a")
    (tmp_path / "a").write_bytes(change(content))
    assert alike.fingerprint(tmp_path / "a") != whole


def test_a_folder_is_its_names_and_files(tmp_path):
    (tmp_path / "a").write_text("x")
    one = alike.fingerprint(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a").write_text("x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a").write_text("x")
    assert alike.fingerprint(tmp_path) == one
    (tmp_path / "a").rename(tmp_path / "b")
    assert alike.fingerprint(tmp_path) != one


def test_variables_and_versions_count_and_places_do_not(monkeypatch):
    facts = alike.at_start()
    assert {"jax", "jaxlib", "Python", "the code of nlrl_jax", "the code of nlrl_jax.envs"} <= facts.keys()
    for name, value in {"JAX_NUM_CPU_DEVICES": "3", "JAX_PROCESS_ID": "1", "NLRL_TRACEBACK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not differing([facts, alike.at_start()])
    for name in ("NLRL_OWN", "JAX_ENABLE_X64", "XLA_FLAGS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "changed")
            assert f"${name}" in differing([facts, alike.at_start()])


def test_options_that_are_given_count(monkeypatch):
    values = flags.FlagValues()
    flags.DEFINE_integer("seed", None, "", flag_values=values)
    flags.DEFINE_string("run_dir", "", "", flag_values=values)
    values(["script", "--seed=8", "--run_dir=here"])
    monkeypatch.setattr(flags, "FLAGS", values)
    assert {name: value for name, value in alike.at_start().items() if name.startswith("--")} == {"--seed": 8}


def test_differences_are_told_with_their_values():
    facts = [{"a": 1, "b": [1], "c": float("nan")}, {"a": 1, "b": [2], "c": float("nan"), "d": "x"}]
    sentence = 'b is [1] in process 0 and [2] in process 1; d is not given in process 0 and "x" in process 1'
    assert differing(facts) == sentence
    assert differing(facts[:1] * 3) == ""
    assert differing([{str(n): 0 for n in range(9)}, {}]).endswith("; and 4 more")
