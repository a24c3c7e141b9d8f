"""Models by Hub id, from a stand-in for the Hub on loopback."""

import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
import tokenizers
from huggingface_hub import constants

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.run import players
from nlrl_jax.weights import hub
from nlrl_jax.weights.load import load_config, load_eos_ids, load_model, load_tokenizer, load_weights

ROOT = pathlib.Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens"
NOBODY = "http://127.0.0.1:9"  # refuses connections
REVISIONS = {"main": "a" * 40, "v1": "b" * 40}


class Hub(http.server.ThreadingHTTPServer):
    """Serves `files` (commit -> name -> bytes) as the model org/tiny; `log` lists the requests."""

    files: dict[str, dict[str, bytes]]
    log: list[str]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.log.append(f"{self.command} {path}")
        if path.startswith("/api/models/org/gated/"):
            return self.refuse(403, "GatedRepo")
        for form in ("/api/models/org/tiny/revision/", "/api/models/org/tiny/tree/", "/org/tiny/resolve/"):
            if path.startswith(form):
                revision, _, name = path.removeprefix(form).partition("/")
                break
        else:
            return self.refuse(404, "RepoNotFound")
        commit = REVISIONS.get(revision, revision)
        files = self.server.files.get(commit)
        if files is None:
            return self.refuse(404, "RevisionNotFound")
        if "/revision/" in form:
            return self.answer(json.dumps({"id": "org/tiny", "sha": commit}).encode())
        if "/tree/" in form:
            tree = [{"type": "file", "path": n, "size": len(b), "oid": etag(b)} for n, b in files.items()]
            return self.answer(json.dumps(tree).encode())
        if name not in files:
            return self.refuse(404, "EntryNotFound")
        return self.answer(files[name], {"ETag": f'"{etag(files[name])}"', "X-Repo-Commit": commit})

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, body, headers=()):
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def etag(body):
    return hashlib.sha1(body).hexdigest()


def use_endpoint(monkeypatch, url):
    """What HF_ENDPOINT sets before the import."""
    path = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + path)
    monkeypatch.setattr(constants, "ENDPOINT", url)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The stand-in, to which `huggingface_hub` speaks, with an empty cache. Revision v1 ends replies with token 1."""
    folder = pathlib.Path(shutil.copytree(GOLDENS / "llama", tmp_path / "files"))
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"up": 0, "<eos>": 1, "<end>": 2}, "up"))
    Tokenizer.create(backend, eos_token="<end>").save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".safetensors")}
    files |= {"pytorch_model.bin": b"never fetched", "onnx/config.json": b"never fetched"}
    older = files | {"generation_config.json": b'{"eos_token_id": [1]}'}
    hub_server = Hub(("127.0.0.1", 0), Handler)
    hub_server.files, hub_server.log = {REVISIONS["main"]: files, REVISIONS["v1"]: older}, []
    threading.Thread(target=hub_server.serve_forever, daemon=True).start()
    use_endpoint(monkeypatch, f"http://127.0.0.1:{hub_server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hub.snapshot.cache_clear()
    yield hub_server
    hub_server.shutdown()
    hub_server.server_close()
    hub.snapshot.cache_clear()


def fetched(server):
    return {line.rpartition("/")[2] for line in server.log if line.startswith("GET") and "/resolve/" in line}


def test_a_model_comes_from_the_hub_and_then_from_the_cache(server, tmp_path, monkeypatch):
    loaded = load_model("org/tiny")
    config, params = load_weights(str(GOLDENS / "llama"))
    assert loaded.config == config
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    assert loaded.tokenizer.encode("up") == [0]
    assert "pytorch_model.bin" not in fetched(server) and len(list((tmp_path / "cache").rglob("onnx"))) == 0
    use_endpoint(monkeypatch, NOBODY)
    hub.snapshot.cache_clear()
    jax.tree.map(np.testing.assert_array_equal, load_model("org/tiny").params, params)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.snapshot.cache_clear()
    jax.tree.map(np.testing.assert_array_equal, load_model("org/tiny").params, params)


def test_sizes_and_tokenizer_come_without_the_weights(server):
    assert load_config("org/tiny").num_layers == 2
    assert load_tokenizer("org/tiny").vocab_size == 3
    assert {"config.json", "tokenizer.json"} <= fetched(server)
    assert "model.safetensors" not in fetched(server)


def test_revision(server):
    assert load_eos_ids("org/tiny") == (2,)
    assert load_eos_ids("org/tiny", "v1") == load_eos_ids("org/tiny", REVISIONS["v1"]) == (2, 1)
    assert players.load("org/tiny", revision="v1").tokenizer.eos_ids == (2, 1)
    with pytest.raises(FileNotFoundError, match="org/tiny has no revision 'v2'"):
        load_config("org/tiny", "v2")
    with pytest.raises(ValueError, match="revision 'v1' needs a Hub id .* nano is local"):
        load_model("nano", revision="v1")


def test_a_folder_is_preferred(server, tmp_path, monkeypatch):
    shutil.copytree(GOLDENS / "qwen3", tmp_path / "org" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert load_config("org/tiny").architecture == "Qwen3ForCausalLM" and server.log == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/other", "no folder 'org/other' here and no such model on the Hub"),
        ("org/gated", "org/gated is gated"),
        ("nowhere", "no model at 'nowhere'; give nano, .* or the id of a model on the Hub"),
        ("models/nowhere/", "no model at 'models/nowhere/'"),
        ("models/nowhere.gguf", "no model at 'models/nowhere.gguf'"),
    ],
)
def test_what_is_not_there_is_one_sentence(server, name, message):
    with pytest.raises(FileNotFoundError, match=message) as error:
        load_model(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("offline", [False, True])
def test_without_network(server, monkeypatch, offline):
    load_config("org/tiny")  # the weights are not in the cache
    use_endpoint(monkeypatch, NOBODY)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    hub.snapshot.cache_clear()
    assert load_config("org/tiny").num_layers == 2
    reason = "HF_HUB_OFFLINE is set" if offline else "the Hub cannot be reached"
    for name in ("org/tiny", "org/other"):
        with pytest.raises(FileNotFoundError, match=f"{reason}, and {name} is not .*in the cache") as error:
            load_model(name)
        assert "\n" not in str(error.value)


def test_the_usual_environment_variables(server, tmp_path):
    code = "from nlrl_jax.weights import hub; print((hub.snapshot('org/tiny', '', False) / 'config.json').is_file())"
    variables = {"HF_ENDPOINT": constants.ENDPOINT, "HF_HOME": str(tmp_path / "home")}
    for change in ({}, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": NOBODY}):
        environment = {**os.environ, **variables, **change}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
        assert done.stdout == "True\n", done.stderr
    assert any((tmp_path / "home" / "hub").iterdir())


def test_a_proxy_variable_that_stops_a_download_is_named(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "::1/128")
    fail = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("Invalid port: ':1'"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        OSError, match=r"org/proxied cannot be downloaded from the Hub \(with .*\$NO_PROXY.*: Invalid port"
    ):
        load_config("org/proxied")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"no folder 'org/else' here; .* pip install 'nlrl_jax\[hub\]'"):
        load_model("org/else")
