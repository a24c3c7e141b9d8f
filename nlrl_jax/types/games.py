"""Games: text-mediated, of two players, for agents without language, and played by text on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

if TYPE_CHECKING:
    from nlrl_jax.text.template import Template


def _horizon(params: Any) -> int | None:
    limit = getattr(params, "max_steps_in_episode", None)
    return None if limit is None else int(limit)


@dataclasses.dataclass(frozen=True, eq=False)
class TextGame:
    """A text-mediated stochastic game (MS-GRPO, section "Framework"): an environment and its text.

    The environment is a gymnax 1.x `Environment`; its `reset_env(key, params) -> (obs, state)` and
    `step_env(key, state, action, params) -> (obs, state, reward, terminated, info)` are pure. An episode ends where
    `step_env` says terminated or `is_truncated(state, params)` holds.

    Attributes:
      name: e.g. "frozen_lake".
      env: the gymnax environment (one player's view; opponents move inside `step_env`).
      params: its parameters.
      rules: static observation text: the rules and the goal.
      actions: action words; the position is the environment's action id.
      observation: template of the dynamic text; the paper's O is `observation.render(fields(state))`.
      fields: one state -> the int arrays that the template's slots read. Pure; works under `vmap`.
      board: template of the board alone, as a person would draw it (reads the same fields).
      success: one state -> bool, whether the episode counts as won; None where a game has no such notion.
      max_actions_per_turn: maximum number of actions per reply.
      legend: meaning of the characters that `board` draws, for reports, e.g. {"G": "goal"}.
      optimal: one state, on the host -> the fewest actions to success (on slippery ice: with luck), None where there is
        no way; None where a game cannot tell.
      unknown_action: the environment's action for a word that is none, played in transcripts; None: time alone passes.
    """

    name: str
    env: Any
    params: Any
    rules: str
    actions: tuple[str, ...]
    observation: Template
    fields: Callable[[Any], dict[str, jax.Array]]
    board: Template
    success: Callable[[Any], jax.Array] | None = None
    max_actions_per_turn: int = 3
    legend: Mapping[str, str] = dataclasses.field(default_factory=dict)
    optimal: Callable[[Any], int | None] | None = None
    unknown_action: int | None = None

    @property
    def max_steps(self) -> int | None:
        """The environment's own limit on an episode's steps; None where it names none."""
        return _horizon(self.params)

    def truncated(self, state: Any) -> Any:
        """Whether a state is past the environment's own limit: bool []. Pure."""
        return self.env.is_truncated(state, self.params) if hasattr(self.env, "is_truncated") else False


@dataclasses.dataclass(frozen=True, eq=False)
class BoardGame:
    """A two-player zero-sum game with perfect information: its rules as pure functions, named as in pgx, and its text.

    A position is a pytree of arrays. Every function but `parse` takes one position and works under `vmap` and `jit`.

    Attributes:
      name: e.g. "breakthrough".
      players: their names in the text; the index is the player's id, and player 0 moves first.
      actions: action words; the index is the action id. A = len(actions).
      max_moves: maximum length of a game.
      init: () -> the first position.
      step: (position, int action) -> position. The action must be legal.
      current_player: position -> int32 [], 0 or 1.
      legal_action_mask: position -> bool [A]; all False in terminal positions.
      is_terminal: position -> bool [].
      returns: position -> float32 [], 1 if player 0 has won, -1 if player 1 has, else 0 (a draw, or not terminal).
      rules: the rules as text.
      board: template of the board as a person would draw it.
      fields: position -> the int arrays that `board` reads.
      parse: (text of a board, the name of the player to move) -> position, on the host. Raises ValueError for a
        position that cannot occur.
    """

    name: str
    players: tuple[str, str]
    actions: tuple[str, ...]
    max_moves: int
    init: Callable[[], Any]
    step: Callable[[Any, jax.Array], Any]
    current_player: Callable[[Any], jax.Array]
    legal_action_mask: Callable[[Any], jax.Array]
    is_terminal: Callable[[Any], jax.Array]
    returns: Callable[[Any], jax.Array]
    rules: str
    board: Template
    fields: Callable[[Any], dict[str, jax.Array]]
    parse: Callable[[str, str], Any]

    @property
    def num_actions(self) -> int:
        return len(self.actions)


@dataclasses.dataclass(frozen=True, eq=False)
class ControlGame:
    """A game for agents that observe numbers and act without language, and its text for an analyst (ULTRA).

    Attributes:
      name: e.g. "pong".
      env: the gymnax environment. A stored state can be stepped again.
      params: its parameters.
      actions: action words by id; empty where actions are continuous.
      state_code: observation [..., D] -> int32 [...], equal for equal states; None where states are continuous.
      roles: the analyst's prompts and readers, a `roles.trajectories.AnalystRoles`; None where there are none, and no
        method that asks an analyst.
      scripts: role -> script of the rule-based analyst (`backends.scripted`).
      draw: env states, leading axis [T] -> pictures uint8 [T, H, W, 3]; None where there are none.
      draw_case: (env states [n], taken actions [n, ...], suggested ones or None, a list) -> pictures [n, H, W, 3] of
        critical states with what an analyst looks at; None: `draw`.
      score: the return's name in tables and plots.
      human_reward: transitions [T, B] -> float32 [T, B], a hand-designed reward (HLC); None where there is none.
    """

    name: str
    env: Any
    params: Any
    actions: tuple[str, ...] = ()
    state_code: Callable[[jax.Array], jax.Array] | None = None
    roles: Any = None
    scripts: Mapping[str, Callable[..., str]] = dataclasses.field(default_factory=dict)
    draw: Callable[[Any], np.ndarray] | None = None
    draw_case: Callable[[Any, Any, Any], np.ndarray] | None = None
    score: str = "return"
    human_reward: Callable[[Any], jax.Array] | None = None

    @property
    def max_steps(self) -> int | None:
        """See `TextGame.max_steps`."""
        return _horizon(self.params)


class Start(NamedTuple):
    """The beginning of an episode: the game's own state; the goal and the first observation, in words."""

    state: Any
    goal: str
    observation: str


class Outcome(NamedTuple):
    """What an action led to.

    state: the next one. observation: in words. reward: of this step. done: the episode is over. success: it is won.
    valid: whether the action could be carried out. error: why the game itself stopped, which ends the episode; or "".
    idle: of an action that is not valid: it was one of the game's and changed nothing (a wall in the way); not fined.
    """

    state: Any
    observation: str
    reward: float = 0.0
    done: bool = False
    success: bool = False
    valid: bool = True
    error: str = ""
    idle: bool = False


class EpisodeFault(Exception):
    """A fault of an environment that costs its episode and not the run; raised by `HostGame.closing_reward`."""


MOST_REWARD = 1e18  # absolute value of a reward: float32 still holds the square of an episode's
SEEDS_PER_RUN = 10_000  # task i of each kind has the seed SEEDS_PER_RUN * (seed of the run) + i
MOST_RUN_SEED = 100_000  # of a run with tasks; those of larger seeds would meet examples (2^30), then pass 32 bits


@dataclasses.dataclass(frozen=True, eq=False)
class HostGame:
    """A game of one player that is played by text.

    Attributes:
      name: e.g. "babyai".
      rules: the game and its actions in words.
      actions: all there are; empty where any text of one line is one.
      max_steps: horizon; a longer episode is lost.
      kinds: of tasks, e.g. missions; ("",) where there is one.
      reset: tasks -> a start each; a task is (kind, seed), and the same one gives the same episode.
      step: (states, actions) -> an outcome each; the observation says so if an action cannot be carried out. Any line
        of text may come, also where `actions` lists all there are.
      board: state -> the world as a person would draw it; None where there is no picture.
      optimal: state -> minimum number of actions to the goal, None or -1 where there is no way; None where it is not
        known. For measurements, and for a warning where an episode is too short.
      examples: (label of the notes, or "Think" for thoughts among the actions; number) -> `roles.dialogues.History` of
        as many episodes, to read first; None where there are none.
      score: name of an episode's reward in tables, beside success; "" if it says no more than success.
      has_success: whether the game has a notion of success; where not, tables show the score alone.
      reversible: whether any state can be stepped again, with the same outcome, as often as one likes. Where not, an
        episode steps each of its states once; what imagines several actions steps copies or repeats the episode.
      history: maximum steps that a prompt shows, for games of many steps; 0 is no limit.
      expert: state -> the action of a player who sees the true state; None where there is none.
      commands: state -> actions worth trying there, where `actions` is empty; None where the game has no such list.
      simulator: a cheaper game with the same tasks, states and outcomes, for models that imagine; None: the game.
      legend: meaning of the characters on boards.
      limits: kind -> number of its tasks, where there are only so many; seeds beyond begin again.
      read_action: text of a reply in a conversation (`rollouts.conversations`) -> the action that `step` gets, None
        where there is none in it: `step` then gets the reply as it is. None: `roles.actions` reads it.
      reply_form: a sentence that shows the form of a reply, such as "Give your action as \\boxed{...}."; a
        conversation's system text ends with it. "": the usual one for the actions that are listed.
      tools: JSON schemas, {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}} each.
        Where there are some, an action is the JSON text of a call, {"name": ..., "arguments": {...}}; `reply_form` is
        for models whose chat template has no place for tools.
      closing_reward: state -> what an episode earns, beside its steps, that the game has not ended itself (its horizon
        was reached, or it was given up); None: nothing. An `EpisodeFault` that it raises breaks the episode off.
      max_actions_per_turn: that `step` takes in one text; more than 1 in games of `text.action_sequences`.
    """

    name: str
    rules: str
    actions: tuple[str, ...]
    max_steps: int
    kinds: tuple[str, ...]
    reset: Callable[[Sequence[tuple[str, int]]], list[Start]]
    step: Callable[[Sequence[Any], Sequence[str]], list[Outcome]]
    board: Callable[[Any], str] | None = None
    optimal: Callable[[Any], int | None] | None = None
    examples: Callable[[str, int], Sequence[Any]] | None = None
    legend: Mapping[str, str] = dataclasses.field(default_factory=dict)
    score: str = ""
    has_success: bool = True
    reversible: bool = False
    history: int = 0
    expert: Callable[[Any], str] | None = None
    commands: Callable[[Any], Sequence[str]] | None = None
    simulator: HostGame | None = None
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    read_action: Callable[[str], str | None] | None = None
    reply_form: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    closing_reward: Callable[[Any], float] | None = None
    max_actions_per_turn: int = 1
