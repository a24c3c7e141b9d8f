"""Pong's prompts, and the scripted analyst that answers them, on episodes that are made here."""

import dataclasses
import re

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.envs import trajectory_prompts
from nlrl_jax.envs.pong.env import fly as fly_in_game
from nlrl_jax.envs.pong.prompts import ACTIONS, game_text
from nlrl_jax.envs.pong.rule_based import NEAR, SCRIPTS, forecast
from nlrl_jax.envs.trajectory_prompts import LONGEST_ANALYSIS, Excerpt, analyst_roles
from nlrl_jax.roles.trajectories import ControlEpisode, Verdict
from tests.envs.analysts import Analyst, said

STAY, RIGHT, LEFT = range(3)
ROLES = analyst_roles(dataclasses.replace(game_text(points=1), chunk=20))
ANALYST = Analyst(ROLES, SCRIPTS)
LOWEST, OURS = 78, 70


def fly(row, column, rows, columns):
    """One step of a ball, wall by wall."""
    row, column = row + rows, column + columns
    if row < 0:
        row, rows = -row, -rows
    if row > LOWEST:
        row, rows = 2 * LOWEST - row, -rows
    return row, column, rows, columns


def episode(ball, racket, actions, number=3, terminated=None):
    """The ball flies until it passes us; actions repeat. It is a point lost unless the racket is there."""
    seen, taken, rewards = [(racket, 30, *ball)], [], []
    while len(taken) < 60:
        action = actions[len(taken) % len(actions)]
        racket = min(max(racket + (0, -2, 2)[action], 0), 72)
        ball = fly(*ball)
        taken.append(action)
        past = ball[1] >= OURS or ball[1] < 10
        caught = past and racket - 1 <= ball[0] <= racket + 7
        seen.append((racket, 30, *ball))
        rewards.append(0.0 if not past else 1.0 if caught or ball[1] < 10 else -1.0)
        if past:
            break
    ended = bool(rewards[-1]) if terminated is None else terminated
    return ControlEpisode(number, np.array(seen, np.float32), np.array(taken), np.array(rewards, np.float32), ended)


balls = st.tuples(st.integers(0, LOWEST), st.integers(12, 50), st.integers(-4, 4), st.integers(2, 4))
tops = st.integers(0, 36).map(lambda half: 2 * half)
plays = st.lists(st.sampled_from((STAY, RIGHT, LEFT)), min_size=1, max_size=8)


@hypothesis.settings(deadline=None)
@hypothesis.given(balls, tops, plays)
def test_the_forecast_is_where_the_ball_arrives(ball, top, actions):
    played = episode(ball, top, actions)
    arrival = len(played)
    for timeslot in range(len(played)):
        ahead = forecast(Excerpt.of(played, 0, len(played)), timeslot)
        assert (ahead.row, timeslot + ahead.moves_left) == (played.observations[arrival, 2], arrival)


@hypothesis.settings(deadline=None)
@hypothesis.given(balls, tops, plays)
def test_every_timeslot_gets_a_verdict_that_is_read_back_without_a_complaint(ball, top, actions):
    played = episode(ball, top, actions)
    assert [verdict.timeslot for verdict in ANALYST.verdicts(played)] == list(range(len(played)))


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(balls, tops)
def test_who_follows_the_suggestions_catches_every_ball_that_can_be_reached(ball, top):
    actions = [STAY]
    for _ in range(60):  # play it again with one suggestion more, until none is left
        played = episode(ball, top, actions + [STAY] * 60)
        wrong = [v for v in ANALYST.verdicts(played) if v.action is not None and v.timeslot >= len(actions) - 1]
        if not wrong:
            break
        actions = [int(a) for a in played.actions[: wrong[0].timeslot]] + [wrong[0].action, STAY]
    away = max(top - played.observations[-1, 2], played.observations[-1, 2] - 6 - top, 0)
    if np.ceil(away / 2) <= len(played):
        assert played.rewards[-1] == 1
    if np.ceil(away / 2) > len(played) + 2:
        assert played.rewards[-1] == -1


def test_a_ball_that_flies_away_is_not_critical_and_its_actions_are_worth_nothing():
    played = episode((40, 60, 1, -2), 10, [RIGHT])
    assert not any(verdict.critical for verdict in ANALYST.verdicts(played))
    assert ANALYST.judge(played, 5, RIGHT) == 0


def test_a_near_ball_is_critical_even_where_the_racket_already_is():
    played = episode((40, 40, 0, 2), 38, [STAY])
    found = ANALYST.verdicts(played)
    assert [v.critical for v in found] == [len(played) - v.timeslot <= NEAR for v in found]
    assert all(verdict.action is None for verdict in found)


def test_a_racket_that_goes_the_wrong_way_is_corrected():
    played = episode((60, 40, 0, 2), 38, [RIGHT])
    found = ANALYST.verdicts(played)
    assert all(v.critical and v.action == LEFT for v in found[3:])
    assert "needs" in found[5].explanation and "out of reach" in " ".join(v.explanation for v in found)


def test_the_reward_has_the_sign_of_the_action_and_grows_as_time_runs_out():
    early, late = episode((60, 30, 0, 2), 38, [STAY]), episode((60, 50, 0, 2), 38, [STAY])
    for played in (early, late):
        assert ANALYST.judge(played, 0, LEFT) > 0 > ANALYST.judge(played, 0, STAY)
        assert ANALYST.judge(played, 0, STAY) >= ANALYST.judge(played, 0, RIGHT)
    assert ANALYST.judge(late, 0, LEFT) > ANALYST.judge(early, 0, LEFT)
    hopeless = episode((70, 64, 0, 2), 0, [STAY])
    assert ANALYST.judge(hopeless, 0, RIGHT) == -1 < ANALYST.judge(hopeless, 0, LEFT) < 0
    there = episode((40, 60, 0, 2), 37, [STAY])
    assert ANALYST.judge(there, 3, STAY) > 0


def test_the_velocity_is_not_taken_across_a_new_serve():
    before, after = episode((40, 64, 3, 2), 0, [STAY]), episode((20, 40, -2, 2), 0, [STAY])
    game = ControlEpisode(
        0,
        np.concatenate([before.observations[:-1], after.observations]),
        np.concatenate([before.actions, after.actions]),
        np.concatenate([before.rewards, after.rewards]),
        True,
    )
    first = len(before)
    ahead = forecast(Excerpt.of(game, first - 2, len(game)), first)
    assert (ahead.row, ahead.moves_left) == (after.observations[-1, 2], len(after))
    assert forecast(Excerpt.of(game, 0, first + 1), first) is None  # one position alone tells no velocity


def test_the_prompts_tell_positions_as_the_papers_tuples_and_how_it_ended():
    played = episode((40, 66, 1, 2), 10, [LEFT])
    prompt = said(ROLES.identify(played, 0, len(played)))
    first = "timeslot 0: ball {40, 41, 66, 66}, our racket {10, 17, 70, 71}, opponent's racket {30, 37, 8, 9}, action"
    assert f"{first} move left, reward 0\n" in prompt
    assert "episode 3, timeslots 0 to 1." in prompt and "After timeslot 1: ball {42, 43, 70, 70}" in prompt
    assert "ends in timeslot 1: we lose the point" in prompt and "is played to 1 point." in prompt
    cut = episode((40, 66, 1, 2), 10, [LEFT], terminated=False)
    assert "was cut off after timeslot 1" in said(ROLES.identify(cut, 0, len(cut)))
    assert "{number}" not in prompt and "{{" not in prompt


@pytest.mark.parametrize("role", ["identify", "reward"])
def test_nothing_is_shown_or_used_from_after_the_piece(role):
    played = episode((20, 12, 3, 2), 10, [STAY])
    seen, taken, rewards = played.observations.copy(), played.actions.copy(), played.rewards.copy()
    seen[15:], taken[15:], rewards[15:] = 1, RIGHT, 0.5
    other = ControlEpisode(3, seen, taken, rewards, False)
    shown = {"identify": range(3, 15), "reward": range(5, 15)}
    assert ANALYST.reads_only_the_piece(role, played, other, (5, 15), (9, LEFT), shown)


def test_the_case_analysis_names_the_failures_and_the_successes():
    lost, kept = episode((60, 40, 0, 2), 38, [RIGHT]), episode((40, 40, 0, 2), 38, [STAY])
    chat = ROLES.analyse(lost, ANALYST.verdicts(lost))
    text = ANALYST.complete("analyse", chat)
    failures, successes = text.split("Successes:")
    assert "move right where move left was right" in failures and "the point was lost" in failures
    assert f"In timeslot {len(lost) - 1} we lose the point." in said(chat)
    text = ANALYST.complete("analyse", ROLES.analyse(kept, ANALYST.verdicts(kept)))
    assert "None was found" in text.split("Successes:")[0] and f"{len(kept) - 1}" in text.split("Successes:")[1]
    assert "No timeslot was found" in said(ROLES.analyse(kept, []))


def test_a_verdict_that_says_nothing_of_the_action_is_neither_failure_nor_success():
    played = episode((60, 40, 0, 2), 38, [RIGHT])
    chat = ROLES.analyse(played, [Verdict(5, True, None, "seen", judged=False)])
    line = next(line for line in said(chat).splitlines() if line.startswith("timeslot 5:"))
    assert line.endswith("action move right. seen")
    text = ANALYST.complete("analyse", chat)
    assert "acted wrongly" not in text and "did well" not in text
    judged = said(ROLES.analyse(played, [Verdict(5, True, None, "seen")]))
    assert "action move right, appropriate. seen" in judged


@pytest.mark.parametrize("top", range(20, 35))
def test_the_prompt_tells_which_rackets_catch_a_ball(top):
    """Its example is what the game does."""
    text = said(ROLES.identify(episode((60, 40, 0, 2), 38, [RIGHT]), 0, 5))
    tuples = lambda begin: [int(x) for x in re.findall(r"\{(\d+), \d+, 70, 71\}", text.split(begin)[1])[:2]]
    lowest, highest = tuples("and with one row at")
    assert tuples("arrives as {30, 31, 69, 69}") == [lowest + 1, highest - 1]
    hit = fly_in_game(jnp.array([30, 69]), jnp.array([0, 1]), jnp.int32(top), jnp.int32(0))[2]
    assert bool(hit) == (lowest <= top <= highest)


def test_the_prompts_stay_short_and_say_what_they_leave_out(monkeypatch):
    played = episode((60, 40, 0, 2), 38, [RIGHT])
    found = [Verdict(t, True, LEFT, "why") for t in range(10)]
    monkeypatch.setattr(trajectory_prompts, "CASES", 4)
    assert "(earlier critical timeslots not shown: 6)" in said(ROLES.analyse(played, found))
    assert ROLES.analyse(played, found).context["verdicts"] == tuple(found[6:])
    prompt = said(ROLES.reward(played, 3, LEFT, "x" * 10**6))
    assert len(prompt) < LONGEST_ANALYSIS + 6000 and f"({10**6 - LONGEST_ANALYSIS} more characters)" in prompt


def test_an_action_that_was_not_taken_is_named_as_such():
    played = episode((60, 40, 0, 2), 38, [RIGHT])
    assert "the action move left in timeslot 3 (the agent actually chose move right" in said(
        ROLES.reward(played, 3, LEFT, "")
    )
    assert "the agent itself chose" not in said(ROLES.reward(played, 3, RIGHT, ""))


@pytest.mark.parametrize("action", range(3))
def test_actions_are_read_as_they_are_written(action):
    reply = f"{{timeslot 0, <critical>, <{ROLES.format_action(action)}>, <x>}}"
    assert ROLES.read_verdicts(reply, 0, 1)[0] == [Verdict(0, True, action, "x")]
    assert ROLES.format_action(action) == ACTIONS[action]
