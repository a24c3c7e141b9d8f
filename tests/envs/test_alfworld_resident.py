"""The model by rule that plays ALFWorld: it reads text alone, and LAC runs on it in the engine."""

import importlib.util
import json
import math

import pytest

if any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld", "fast_downward")):
    pytest.skip("needs ALFWorld's engine (`make install` puts it there)", allow_module_level=True)

from envs.alfworld import games
from envs.alfworld.resident import Resident, read
from envs.alfworld.transcripts import Walker, walk
from nlrl_jax.roles.dialogues import PROBABILITY, Dialogue, History, Step
from nlrl_jax.run import directory, results
from nlrl_jax.types import Sampling
from tests.launch.scripts import refusal, run

DIALOGUE = Dialogue.of("Rules.", "Critic")
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, and a shelf 1."
FOUND = History("put some mug on shelf", ROOM, (Step("go to desk 1", "On the desk 1, you see a mug 1, and a pen 2."),))
SURE = Resident(leaning=0.0, error=0.0)


def write(model, history, line, temperature=0.0):
    chat = DIALOGUE.chat(history, line)
    return model.complete([chat], Sampling(64, temperature), "any", stop=("\n",))[0].text.strip()


def test_a_transcript_is_read_as_it_was_written():
    for seed, kind in enumerate(games.KINDS):
        history = walk(kind, seed, Walker(), "Critic", 12).history
        for line in ("Action:", "Critic:", "Critic: I am at the desk 1. This step is", "Value:"):
            assert read(DIALOGUE.chat(history, line).messages[-1]["content"]) == (history, line)
        line = "Action: look\nObservation:"
        assert read(DIALOGUE.chat(history, line).messages[-1]["content"]) == (history, line)


def test_lines():
    assert write(SURE, FOUND, "Action:") == "take mug 1 from desk 1"
    assert (
        write(SURE, FOUND, "Action: take mug 1 from desk 1\nObservation:") == "You pick up the mug 1 from the desk 1."
    )
    assert write(SURE, FOUND, "Action: go to drawer 1\nObservation:") == "The drawer 1 is closed."
    assert write(SURE, FOUND, "Action: fly\nObservation:") == "Nothing happens."
    assert write(SURE, FOUND, "Critic:") == "I am at the desk 1. The mug 1 is here. This step is GOOD."
    assert write(SURE, FOUND, "Value:") == "The mug 1 is here. The value is 1/3."
    assert write(SURE, FOUND, "Reward:") == "0"
    assert write(SURE, FOUND, "Thought:") == "The mug 1 is here. I want to take it."
    assert write(SURE, FOUND, f"Critic: {PROBABILITY}") == "0.88."
    hopes = write(SURE, History(FOUND.goal, ROOM), "Action: go to desk 1\nObservation:")
    assert hopes == "On the desk 1, you see a mug 1."  # where mugs lie


def test_scores_are_log_probabilities_and_the_critic_corrects_the_habits():
    chat = DIALOGUE.chat(FOUND, "Action:")
    prior = Resident().prior(FOUND)
    assert math.isclose(sum(map(math.exp, prior.values())), 1.0)
    scores = Resident().score([chat], [[f" {action}" for action in prior] + [" dance"]], "any")[0]
    assert [score.log_prob for score in scores[:-1]] == list(prior.values()) and scores[-1].log_prob < min(
        prior.values()
    )
    drawn = {write(Resident(), FOUND, "Action:", 1.0), *(write(Resident(), FOUND, "Action:"),)}
    assert drawn <= set(prior)
    for action, positive in (("take mug 1 from desk 1", True), ("take pen 2 from desk 1", False)):
        chat = DIALOGUE.chat(FOUND, f"Action: {action}\nCritic: This step is")
        good, bad = SURE.score([chat], [(" GOOD", " BAD")], "any")[0]
        assert (good.log_prob > bad.log_prob) == positive
        assert math.isclose(math.exp(good.log_prob) + math.exp(bad.log_prob), 1.0)


def test_lac_runs_with_no_other_option_than_the_game(tmp_path, capsys):
    small = ("--missions=examine", "--tasks=1", "--max_steps=2", "--methods=lac,react")
    try:
        run("run_lac", "--game=alfworld", f"--run_dir={tmp_path / 'run'}", *small)
    finally:
        directory.close_run(tmp_path / "run")
    assert set(results.read(tmp_path / "run")["scores"]) == {"lac", "react"}
    (episode,) = json.loads((tmp_path / "run" / "episodes" / "lac.json").read_text())["episodes"]
    assert episode["moves"] == 2 and episode["error"] == "" and episode["optimal"] > 2
    assert "success: lac" in capsys.readouterr().out
    wrong = (f"--alfworld_data={tmp_path}", f"--run_dir={tmp_path / 'no'}")
    assert "there is no game in it" in refusal("run_lac", "--game=alfworld", *wrong)
    assert "--alfworld_data is for --game alfworld" in refusal("run_lac", *wrong)
