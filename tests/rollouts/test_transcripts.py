"""Transcripts by tokens: what is read, what was sampled, and what leaves a full context."""

import dataclasses
import importlib.util
import re
import types

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.rollouts.lines import LinePlayer
from nlrl_jax.rollouts.transcripts import play
from nlrl_jax.types import HostGame, Outcome, Sampling, Start, Written
from tests.small_sentencepiece import small as small_sentencepiece
from tests.tokenizers_from_wheels import small_tokenizer

TOKENIZER = small_tokenizer()
END = TOKENIZER.end_id


def step(states, actions):
    """A line of numbers: `Up` and `Down` move, anything else is invalid; 3 wins."""
    outcomes = []
    for x, action in zip(states, actions, strict=True):
        valid = action in ("Up", "Down")
        x += {"Up": 1, "Down": -1}.get(action, 0)
        outcomes.append(Outcome(x, f"you are at {x}", float(x == 3), x == 3, x == 3, valid))
    return outcomes


GAME = HostGame(
    "line", "Get to 3.", ("Up", "Down"), 5, ("",), lambda tasks: [Start(seed % 2, "3", f"you are at {seed % 2}") for
    _, seed in tasks], step,
)  # fmt: skip


TWO = [("", 1), ("", 0)]


class Scripted:
    """Writes lines letter by letter, as a tokenizer would never split them."""

    tokenizer = TOKENIZER

    def __init__(self, lines):
        self.lines, self.calls = iter(lines), []

    def write(self, prompts, sampling, role, seed, stop):
        self.calls.append((role, seed, list(prompts)))
        return [self.one(next(self.lines)) for _ in prompts]

    @staticmethod
    def one(text):
        tokens = [id for letter in text.removesuffix("END") for id in TOKENIZER.encode(letter)]
        tokens += [END] * text.endswith("END")
        return Written(tuple(tokens), (-1.0,) * len(tokens), text.endswith(("\n", "END")))


def player(lines, label="", room=1000, **more):
    dialogue = Dialogue.of("Get to 3.", label, compact=True, **more)
    return LinePlayer(Scripted(lines), dialogue, Sampling(20), room)


def text_of(tokens):
    return TOKENIZER.decode(list(tokens), skip_special_tokens=False)


def test_prompts_continue_with_the_tokens_that_were_written():
    lines = [" Up\n", " Up\n", " Up\n"]
    (one,) = play(player(lines), GAME, [("", 0)], 0)
    prompts = [turn.replies[0].prompt for turn in one.turns]
    written = [turn.replies[0].written.tokens for turn in one.turns]
    assert len(prompts) == 3 and one.episode.success and one.episode.task == ("", 0)
    for t in (0, 1):
        so_far = prompts[t] + written[t]
        assert prompts[t + 1][: len(so_far)] == so_far
        assert text_of(prompts[t + 1][len(so_far) :]) == f"Observation: you are at {t + 1}\nAction:"
    # The same text, tokenised anew, has other tokens: that is what a transcript must not do.
    assert tuple(TOKENIZER.encode(text_of(prompts[2]))) != prompts[2]
    dialogue = Dialogue.of("Get to 3.", "", compact=True)
    history = History("3", "you are at 0", (Step("Up", "you are at 1"), Step("Up", "you are at 2")))
    assert text_of(prompts[2]) == TOKENIZER.render_chat(dialogue.chat(history, "Action:").messages)
    assert [turn.observation for turn in one.turns] == ["you are at 0", "you are at 1", "you are at 2"]
    assert [turn.reward for turn in one.turns] == [0, 0, 1] and not any(turn.invalid for turn in one.turns)


def test_episodes_run_in_lockstep_and_those_that_ended_write_nothing():
    model = player([" Up\n", " Up\n", " Up\n", " Up\n", " Up\n"])
    first, second = play(model, GAME, [("", 0), ("", 1)], 3)
    assert [len(prompts) for _, _, prompts in model.model.calls] == [2, 2, 1]
    assert (len(first.turns), len(second.turns)) == (3, 2)
    seeds = [seed for _, seed, _ in model.model.calls]
    again = player([" Up\n"] * 5)
    play(again, GAME, [("", 0), ("", 1)], 3)
    assert len(set(seeds)) == 3 and seeds == [seed for _, seed, _ in again.model.calls]


def test_what_is_no_action_goes_to_the_game_as_it_is_and_is_invalid():
    lines = [" jump\n", " \n", " up.\n", " Up", " UpEND"]
    (one,) = play(player(lines), GAME, [("", 0)], 0)
    assert [turn.action for turn in one.turns] == ["jump", "nothing", "Up", "Up", "Up"]
    assert [turn.invalid for turn in one.turns] == [True, True, False, False, False]
    prompts = [turn.replies[0].prompt for turn in one.turns]
    assert "Action: Up\nObservation: you are at 2" in text_of(prompts[4])  # a cut line gets its newline
    assert not one.turns[3].replies[0].written.ended


def test_an_end_token_is_learned_but_not_read():
    (one,) = play(player([" UpEND", " Up\n", " Up\n"]), GAME, [("", 0)], 0)
    (first, then, _) = [turn.replies[0] for turn in one.turns]
    assert first.written.tokens[-1] == END and END not in then.prompt[len(first.prompt) :]
    assert text_of(then.prompt).endswith("Action: Up\nObservation: you are at 1\nAction:")


def test_thoughts_are_lines_of_their_own():
    model = player([" I go\n", " Up\n"] * 3, label="Thought")
    (one,) = play(model, GAME, [("", 0)], 0)
    assert [role for role, _, _ in model.model.calls] == ["thought", "action"] * 3
    assert [step.action for step in one.episode.history.steps] == ["Up"] * 3
    thought, action = one.turns[1].replies
    assert text_of(thought.prompt).endswith("Thought: I go\nAction: Up\nObservation: you are at 1\nThought:")
    assert text_of(action.prompt) == text_of(thought.prompt) + " I go\nAction:"
    assert action.prompt[: len(thought.prompt)] == thought.prompt
    assert one.episode.history.note == "I go"


def test_the_oldest_steps_leave_a_full_context_as_in_a_dialogue():
    lines = [" Down\n"] * 5
    (whole,) = play(player(lines), GAME, [("", 0)], 0)
    size = len(whole.turns[-1].replies[0].prompt) + 20
    (one,) = play(player(lines, room=size - 1), GAME, [("", 0)], 0)
    assert [len(turn.replies[0].prompt) for turn in one.turns[:4]] == [
        len(turn.replies[0].prompt) for turn in whole.turns[:4]
    ]
    last = text_of(one.turns[-1].replies[0].prompt)
    assert "Observation: you are at 0\n" not in last and "at -1\n" not in last
    assert last.count("Action: Down") == 2 and "Goal of the agent: 3\nObservation: you are at -2\nAction: Down" in last
    (short,) = play(player(lines, last=2), GAME, [("", 0)], 0)
    assert [text_of(turn.replies[0].prompt).count("Action: ") for turn in short.turns] == [0, 1, 2, 1, 2]


def test_a_context_that_is_too_short_for_one_turn_is_refused():
    with pytest.raises(ValueError, match=r"take \d+ tokens, and a turn up to 20 more; the model's context holds 30"):
        play(player([], room=30), GAME, [("", 0)], 0)
    with pytest.raises(ValueError, match="label is 'Critic'"):
        player([], label="Critic")


@pytest.mark.parametrize("form", ["legacy", "first", "gemma"])
def test_an_observation_follows_without_a_space_before_it(form):
    tokenizer = small_sentencepiece(form)
    who = LinePlayer(types.SimpleNamespace(tokenizer=tokenizer), Dialogue.of("Go.", ""), Sampling(8), 99)
    whole = "Go.\nAction: Up\nObservation: none\nAction:"
    end = whole.index("\nObs")
    written = tuple(tokenizer.encode(whole[12:end], continues=True))
    for reply, more in ((written, whole[end + 1 :]), (written + tuple(tokenizer.encode("\n", True)), whole[end + 1 :])):
        tokens = who.after(Written(reply, (0.0,) * len(reply), True), more)
        assert tokenizer.encode(whole) == [*tokenizer.encode(whole[:12]), *tokens]


@pytest.mark.parametrize("label", ["", "Thought"])
@pytest.mark.parametrize("examples", [0, 1])
def test_the_advice_on_a_short_context_helps(label, examples):
    """What it says is done, at every length of context, and then the prompt fits."""
    count = lambda text: len(TOKENIZER.encode(text))
    shown = (History("3", "you are at 0", (Step("Up", "you are at 1"),) * 3),) * examples
    dialogue = Dialogue.of("Get to 3.", label, compact=True, examples=shown, count=count)
    history, advised = History("3", "you are at 0"), set()
    for room in range(5, 330, 3):
        who = LinePlayer(Scripted([]), dialogue, Sampling(30), room)
        for _ in range(2):
            try:
                who.prompt(history, ())
                break
            except ValueError as error:
                said = str(error).split(". ")[-1]
            advised.add(re.sub(r"\d+", "N", said))
            dialogue_now = dataclasses.replace(who.dialogue, examples=() if "--examples 0" in said else shown)
            tokens, holds = (re.search(rf"{words} (\d+)", said) for words in ("--max_tokens to", "context holds"))
            new = Sampling(int(tokens[1])) if tokens else who.sampling
            who = LinePlayer(who.model, dialogue_now, new, int(holds[1]) if holds else room)
        who.prompt(history, ())
    assert "Give a model whose context holds N tokens or more" in advised and "Lower --max_tokens to N" in advised
    assert ("Give --examples N" in advised) == bool(examples)


def test_an_observation_that_the_context_cannot_hold_breaks_its_episode_off():
    def far(states, actions):
        outcomes = step(states, actions)
        return [one._replace(observation="far " * 200) if one.state == 2 else one for one in outcomes]

    short, other = play(player([" Up\n"] * 2 + [" Down\n"] * 4, room=300), dataclasses.replace(GAME, step=far), TWO, 0)
    assert len(short.turns) == 1 and "the model's context holds 300" in short.episode.error and not short.forfeit
    assert len(other.turns) == 5 and not other.episode.error


def test_boards_are_drawn_for_the_first_episodes_only():
    drawn = dataclasses.replace(GAME, board=str)
    one, other = play(player([" Up\n"] * 12), drawn, TWO, 0, pictured=1)
    assert len(one.episode.boards) == len(one.turns) + 1 and not other.episode.boards


def test_a_lost_episode_is_given_up():
    lines = [" jump\n", " Up\n", " Up\n", " \n", " jump\n", " jump\n", " Up\n"]
    one, other = play(player(lines), GAME, TWO, 0, give_up=2)
    assert [turn.invalid for turn in one.turns] == [True, False, True, False]
    assert one.episode.success and not one.forfeit
    assert [turn.invalid for turn in other.turns] == [False, True, True] and other.forfeit == 2
    assert not other.episode.error and not other.episode.success


def test_actions_that_change_nothing_are_given_up_and_not_fined():
    wall = lambda states, actions: [
        Outcome(x, "a wall", valid=False, idle=action == "Up") for x, action in zip(states, actions)
    ]
    game = dataclasses.replace(GAME, step=wall)
    (one,) = play(player(["Up\n", "Up\n"]), game, TWO[:1], 0, give_up=2)
    assert [turn.invalid for turn in one.turns] == [False, False] and one.forfeit == 3
    (one,) = play(player(["Down\n", "Up\n"]), game, TWO[:1], 0, give_up=2)
    assert [turn.invalid for turn in one.turns] == [True, False] and one.episode.invalid == 2


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf"), 1e30, np.float32("nan")])
def test_a_reward_that_cannot_be_summed_is_refused_with_its_step(reward):
    pay = lambda states, actions: [Outcome(x + 1, "on", reward if x else 1.0) for x in states]
    game = dataclasses.replace(GAME, step=pay)
    with pytest.raises(ValueError, match=r"line: step 2 of the task \('', 0\) paid the reward .*; it must be finite"):
        play(player(["Up\n", "Up\n", "Up\n"]), game, TWO[1:], 0)


@pytest.mark.parametrize("name", ["webshop", "alfworld"])
def test_games_of_any_text(name):
    """The expert's commands, as a model would write them, win in a transcript."""
    if name == "alfworld" and importlib.util.find_spec("fast_downward") is None:
        pytest.skip("ALFWorld's engine is not installed (make alfworld)")
    game = envs.make_host(name)
    game = game.simulator or game
    now, lines = game.reset([(game.kinds[0], 5)])[0], []
    while not lines or not now.done:
        lines.append(game.expert(now.state))
        (now,) = game.step([now.state], lines[-1:])
    (one,) = play(player([f" {line}\n" for line in lines], room=5000), game, [(game.kinds[0], 5)], 0)
    assert [turn.action for turn in one.turns] == lines and one.episode.success
    assert not any(turn.invalid for turn in one.turns)


@pytest.fixture(scope="module")
def model():
    """A small random model, its logits peaked."""
    config = ModelConfig(8 * -(-TOKENIZER.vocab_size // 8), 16, 24, 1, 2, 1, 8, 256)
    network = Transformer(config)
    params = jax.tree.map(lambda x: x * 8, init_params(network, jax.random.key(0)))
    return LocalModel(network, {"params": params}, TOKENIZER, rows=4)


@pytest.fixture(scope="module")
def reference(model):
    """What it writes in nine episodes without any memory."""
    return play(LinePlayer(model, Dialogue.of("", "", compact=True), Sampling(6, 1.0), 256), GAME, [("", 0)] * 9, 5)


def keeping(model):
    """The model with an empty session."""
    return dataclasses.replace(model, kv_session=Session(10.0))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_local_model_keeps_the_tokens_that_it_sampled(model, reference, keeps):
    model = keeping(model) if keeps else model
    who = LinePlayer(model, Dialogue.of("", "", compact=True), Sampling(6, 1.0), 256)
    played = play(who, GAME, [("", 0)] * 9, 5)
    replies = [turn.replies[0] for one in played for turn in one.turns]
    assert all(len(written.tokens) == len(written.log_probs) for _, written in replies)
    retokenised = [tuple(TOKENIZER.encode(text_of(written.tokens))) == written.tokens for _, written in replies]
    assert not all(retokenised)  # so the test below means something
    prompt, written = max(replies, key=lambda reply: len(reply.prompt))
    tokens = np.array([prompt + written.tokens])
    hidden, _ = model.model.apply(model.variables, tokens, np.arange(tokens.shape[1])[None])
    table = jax.nn.log_softmax(model.model.apply(model.variables, hidden, method="unembed"))[0]
    at = np.arange(len(prompt), tokens.shape[1])
    np.testing.assert_allclose(written.log_probs, table[at - 1, tokens[0, at]], atol=2e-4)
    if keeps:
        counts = model.kv_session.counts
        assert counts.read < 0.5 * counts.asked
    fresh = dataclasses.replace(who, model=keeping(model) if keeps else model)
    again = play(fresh, GAME, [("", 0)] * 9, 5)
    assert [turn.replies for one in again for turn in one.turns] == [t.replies for one in played for t in one.turns]
    ids = lambda episodes: [turn.replies[0].written.tokens for one in episodes for turn in one.turns]
    assert ids(played) == ids(reference)
    assert 0.5 < model.kv_session.counts.row_use <= 1


def test_what_all_prompts_begin_with_is_the_instructions_and_examples():
    example = History("7", "you are at 0", (Step("Up", "you are at 1"),))
    dialogue = Dialogue.of("Get to the number.", "", examples=(example,))
    who = LinePlayer(Scripted([" Up\n"] * 5), dialogue, Sampling(20), 1000)
    (one,) = play(who, GAME, [("", 0)], 0)
    shared = who.beginning()
    assert text_of(shared).startswith("<|im_start|>user\nGet to the number.") and "An example:" in text_of(shared)
    assert one.begins(shared) and one.begins(()) and not one.begins((*shared[:-1], -1))
    assert not one.begins(one.turns[0].replies[0].prompt)  # something must follow


def test_a_fault_of_the_game_names_the_step():
    def fails(states, actions):
        if states[0]:
            raise ValueError("mine: no such cell")
        return [Outcome(x + 1, "on") for x in states]

    with pytest.raises(ValueError, match=r"mine: no such cell \(step 2 of 1 episode\)"):
        play(player(["Up\n", "Up\n"]), dataclasses.replace(GAME, step=fails), TWO[1:], 0)


def test_a_first_observation_that_is_too_long_costs_its_episode_alone():
    long = dataclasses.replace(
        GAME, reset=lambda tasks: [Start(0, "3", "x " * 50_000 if seed else "you are at 0") for _, seed in tasks]
    )
    fine, broken = play(player([" Up\n"] * 4), long, TWO[::-1], 0)
    assert fine.episode.success and not fine.episode.error
    assert "the model's context holds 1000" in broken.episode.error and len(broken.turns) == 1
    assert broken.episode.reward == 0 and "too long to be read" in text_of(broken.turns[0].replies[0].prompt)
    with pytest.raises(ValueError, match="the model's context holds 1000"):
        play(player([]), long, TWO[:1], 0)


def test_a_later_observation_that_is_too_long_breaks_its_episode_off():
    def long_step(states, actions):
        return [outcome._replace(observation="x " * 50_000) for outcome in step(states, actions)]

    (broken,) = play(player([" Down\n"]), dataclasses.replace(GAME, step=long_step), [("", 0)], 0)
    assert "the model's context holds 1000" in broken.episode.error and len(broken.turns) == 1
