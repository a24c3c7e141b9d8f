"""Runs of planners: killed and resumed, with words and contexts that do not fit refused."""

import dataclasses
import json

import pytest

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.config import replace
from nlrl_jax.run.host_games import journal
from nlrl_jax.run.host_games.prompts import acts_apart, check_words
from nlrl_jax.run.lac import episodes
from nlrl_jax.run.lac.episodes import Setting, finished_methods, run_method, unreadable
from nlrl_jax.run.local_models import local_model
from nlrl_jax.types import LanguageModel, Outcome, as_model
from nlrl_jax.weights.load import load_tokenizer
from tests.algorithms.corridor import ACTIONS, GAME, START, Corridor
from tests.backends.server import Server

TASKS = [("", i) for i in range(5)]
CONFIG = replace(LACConfig(), candidates=3)


def run(model, folder=None, name="lac", tasks=TASKS, game=GAME, usage=None, **more):
    """Two episodes a batch, each step on disk where there is a folder."""
    if folder:
        folder.mkdir(exist_ok=True)
    usage, method = usage or Usage(folder), METHODS[name]
    setting = Setting(metered(model, usage), usage, game, CONFIG, parallel=2, run_dir=folder, **more)
    return run_method(setting, name, method, method.dialogue(game.rules, False), tasks)


class Killed(Corridor):
    """Dies in the middle of its nth call."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def complete(self, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().complete(*args, **kwargs)


def test_a_log_probability_that_is_no_number_is_refused_at_its_step(tmp_path):
    class Broken(Corridor):
        def score(self, chats, continuations, role):
            rows = super().score(chats, continuations, role)
            return [[score._replace(log_prob=float("nan")) for score in row] for row in rows]

    with pytest.raises(ValueError, match=r"LAC on corridor, step 1: the model gives nan as a log-probability \(policy"):
        run(Broken(), tmp_path / "run")


def test_a_killed_run_asks_for_nothing_twice(tmp_path):
    whole = run(Corridor(), tmp_path / "whole")
    folder = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run(Killed(12), folder)
    journal = folder / "moves" / "lac.jsonl"
    made = len(journal.read_text().splitlines())
    assert made > 0
    with journal.open("a") as file:
        file.write('{"part": 0, "sec')  # a kill in the middle of a line
    model = Corridor()
    resumed = run(model, folder)
    assert resumed["episodes"] == whole["episodes"] and resumed["calls"] == whole["calls"]
    assert resumed["tokens"] == whole["tokens"]
    steps = sum(1 for role, _ in model.roles if role == "critic")  # one such call per step
    assert steps == len(journal.read_text().splitlines()) - made
    again = Corridor()
    assert run(again, folder)["episodes"] == whole["episodes"] and not again.roles


class Memory:
    """A session that counts how often it is cleared."""

    def __init__(self):
        self.cleared = 0

    def clear(self):
        self.cleared += 1


class Remembering(LanguageModel):
    """A model whose every session has a memory, which is noted in `opened`."""

    memories = ()

    def __init__(self, model, opened):
        self.model, self.opened = model, opened

    def answer(self, requests):
        return as_model(self.model).answer(requests)

    def session(self, number=1):
        session = Remembering(self.model, self.opened)
        session.memories = (Memory(),)
        self.opened += session.memories
        return session


def test_a_model_that_keeps_texts_goes_on_where_it_forgot_them(tmp_path, monkeypatch):
    """Every second step."""
    monkeypatch.setattr(episodes, "PERIOD", 2)
    memories = []
    whole = run(Remembering(Corridor(), memories), tmp_path / "whole", "react", tasks=TASKS[:2])
    lines = (tmp_path / "whole" / "moves" / "react.jsonl").read_text().splitlines()
    assert memories[0].cleared == -(-len(lines) // 2)
    for steps in (1, 2, 3, len(lines)):
        folder = tmp_path / str(steps)
        (folder / "moves").mkdir(parents=True)
        (folder / "moves" / "react.jsonl").write_text("".join(f"{line}\n" for line in lines[:steps]))
        model = Corridor()
        resumed = run(Remembering(model, memories), folder, "react", tasks=TASKS[:2])
        assert resumed["episodes"] == whole["episodes"] and resumed["tokens"] == whole["tokens"]
        repeated = sum(role == "policy" for role, _ in model.roles) - (len(lines) - steps)
        assert repeated == (steps % 2 if steps < len(lines) else 0)  # an episode that is over is over


class Paid(Corridor):
    """Each reply reads three tokens and writes two."""

    def complete(self, *args, **kwargs):
        return [reply._replace(prompt_tokens=3, tokens=2) for reply in super().complete(*args, **kwargs)]


def killed_where_a_step_is_written(monkeypatch, step):
    """The journal is one step behind what was spent."""
    add, seen = journal.Journal.add, []

    def stop(self, row):
        seen.append(row)
        if len(seen) == step:
            raise KeyboardInterrupt
        add(self, row)

    monkeypatch.setattr(journal.Journal, "add", stop)


@pytest.mark.parametrize("step", [1, 4])
def test_the_tokens_of_a_step_that_is_played_again_count_once_in_results(tmp_path, monkeypatch, step):
    whole = run(Paid(), tmp_path / "whole")["tokens"]
    spent = lambda name: sum(row["tokens"] for row in json.loads((tmp_path / name / "usage.json").read_text()))
    assert whole["written"] == spent("whole") > 0
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        killed_where_a_step_is_written(patch, step)
        run(Paid(), tmp_path / "killed")
    assert run(Paid(), tmp_path / "killed")["tokens"] == whole
    assert spent("killed") > spent("whole")  # what was computed twice


def test_an_endpoint_is_paid_once_for_a_step_that_is_played_again(tmp_path, monkeypatch):
    def ask(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        usage, cache = Usage(folder), DiskCache(folder / "cache")
        model = EndpointModel(EndpointOptions(base_url=server.url), "m", usage, cache=cache)
        return run(model, folder, "react", TASKS[:2], usage=usage)

    with Server() as server:
        whole, requests = ask("whole"), len(server.requests)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            killed_where_a_step_is_written(patch, 2)
            ask("killed")
        killed = ask("killed")
        assert len(server.requests) == 2 * requests
    assert killed["tokens"] == whole["tokens"] and killed["episodes"] == whole["episodes"]
    paid = lambda name: [row["paid"] for row in json.loads((tmp_path / name / "usage.json").read_text())]
    assert paid("killed") == paid("whole") and sum(paid("whole")) > 0


def test_a_search_is_on_disk_once_it_is_over_and_not_made_again(tmp_path):
    first = run(Corridor(), tmp_path, "lats")
    assert [episode["reward"] for episode in first["episodes"]] == [1.0] * 5
    assert first["calls"]["policy"] > 0 and first["seconds"] > 0
    model = Corridor()
    again = run(model, tmp_path, "lats")
    assert not model.roles and again["episodes"] == first["episodes"] and again["calls"] == first["calls"]
    journal = tmp_path / "moves" / "lats.jsonl"
    text = journal.read_text()
    journal.write_text(text[: text.index("plan") + 200])  # a kill in the middle of the first plan
    cut = run(Corridor(), tmp_path, "lats")
    assert {**cut, "seconds": 0} == {**first, "seconds": 0} and journal.read_text().count("plan") == 3


def test_finished_methods_are_read_from_disk(tmp_path):
    made = []
    play = lambda name: made.append(name) or {"method": name}
    assert finished_methods(tmp_path, ["a", "b"], play) == {"a": {"method": "a"}, "b": {"method": "b"}}
    assert finished_methods(tmp_path, ["b", "c"], play)["b"] == {"method": "b"}
    assert made == ["a", "b", "c"]
    assert json.loads((tmp_path / "episodes" / "c.json").read_text()) == {"method": "c"}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "react_return"])
def test_every_method_plays(name):
    result = run(Corridor(), None, name, TASKS[:2])
    assert [episode["task"] for episode in result["episodes"]] == [["", 0], ["", 1]]
    assert result["tokens"]["written"] > 0


def test_actions_that_cannot_be_carried_out_are_counted():
    refusing = dataclasses.replace(
        GAME, step=lambda states, actions: [Outcome(x, "no", valid=a != "left") for x, a in zip(states, actions)]
    )
    (episode,) = run(Corridor(), None, "react", TASKS[:1], refusing)["episodes"]
    assert (episode["moves"], episode["invalid"]) == (GAME.max_steps, GAME.max_steps)


class Prompts(Corridor):
    """Keeps its prompts."""

    def __init__(self):
        super().__init__()
        self.prompts = []

    def complete(self, chats, *args, **kwargs):
        self.prompts += [chat.messages[0]["content"] for chat in chats]
        return super().complete(chats, *args, **kwargs)

    def score(self, chats, *args):
        self.prompts += [chat.messages[0]["content"] for chat in chats]
        return super().score(chats, *args)


def test_a_policy_apart_acts_in_prompts_of_its_own():
    model, policy, method = Prompts(), Prompts(), METHODS["lac"]
    dialogue = method.dialogue(GAME.rules, False)
    acting = dataclasses.replace(dialogue, examples=START[1:])
    made = method.decide(acts_apart(model, policy, acting), dialogue, START, ACTIONS, CONFIG, 0)
    assert made == method.decide(Corridor(), dialogue, START, ACTIONS, CONFIG, 0)
    assert {role for role, _ in policy.roles} == {"policy"} and "policy" not in dict(model.roles)
    assert all("An example:" in text for text in policy.prompts)
    assert not any("An example:" in text for text in model.prompts)


def test_words_that_a_model_cannot_tell_apart_are_refused():
    tokenizer = load_tokenizer("nano")
    check_words(tokenizer, ("GOOD", "BAD"))
    with pytest.raises(ValueError, match="cannot tell"):
        check_words(tokenizer, ("GOOD", "GOOD"))

    class Poor:
        encode = staticmethod(lambda text, continues: [0])
        decode = staticmethod(lambda ids: "?")

    with pytest.raises(ValueError, match="cannot write 'GOOD'.*--critic direct"):
        check_words(Poor, ("GOOD", "BAD"))


def test_parts_at_once_do_what_they_do_one_by_one(tmp_path):
    """And where one fails, the others end, and a resumed run goes on with what is on disk."""
    whole = run(Corridor(), tmp_path / "whole")
    assert run(Corridor(), tmp_path / "both", jobs=2)["episodes"] == whole["episodes"]
    folder = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run(Killed(12), folder, jobs=2)
    made = len((folder / "moves" / "lac.jsonl").read_text().splitlines())
    assert 0 < made
    resumed = run(Corridor(), folder, jobs=3)
    assert resumed["episodes"] == whole["episodes"] and resumed["calls"] == whole["calls"]


def test_each_part_has_a_local_model_with_an_empty_session_of_its_own():
    local, usage = local_model("nano_babyai", chat=False, cache_mb=4.0), Usage()
    (one,), (other,) = (metered(local, usage).session(2).memories for _ in range(2))
    assert len({id(session) for session in (local.kv_session, one, other)}) == 3
    assert local.session(2).kv_session.megabytes == 2
    assert local.session(2).variables is local.variables
    assert metered(Corridor(), usage).session(2).memories == ()
    both = metered(acts_apart(local, local, None), usage)
    assert both.facts.local is local and len({*map(id, both.session(2).memories), id(local.kv_session)}) == 3


@pytest.mark.parametrize(
    "calls, no_action, empty, says",
    [(19, 19, 0, ""), (20, 10, 0, ""), (20, 6, 5, "11 of the first 20 actions"), (0, 0, 0, "")],
)
def test_a_model_that_writes_no_actions_is_reported(calls, no_action, empty, says):
    half = {"policy/no action": no_action, "policy/empty": 0, "world model/empty": 99}, {"policy/empty": empty}
    rows = [{"calls": {"policy": calls}, "problems": half[0]}, {"calls": {}, "problems": half[1]}]
    note = unreadable(rows)
    assert note.startswith(says) and bool(note) == bool(says)
