"""The prompts of language GPI in a maze, and the readers of its replies (NLRL, appendix B.1 and C.1).

Roles: the language policy, the state value V^L of a look-ahead's last position, the state-action value Q^L without
look-ahead (a baseline), the aggregator G2 (with G1: in the paper's maze experiment it reads all variations of an action
at once) and the improvement operator I. The sentences are ours; roles, inputs and JSON fields ("thoughts",
"final_evaluation", "action") are the paper's, and so is the rule that the improvement uses the evaluations alone. The
paper has no examples here. Policy and improvement also write their thoughts, for the report.

`Chat.context` holds the texts of the messages and nothing else, so a script knows no more than a model.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze.env import ACTIONS, Maze, Walk
from nlrl_jax.roles.actions import read_action
from nlrl_jax.roles.json_reply import read_json
from nlrl_jax.types import Chat

SYSTEM = "You are an expert at solving mazes. Answer with one JSON object and nothing else."
NO_EVALUATION = "(no evaluation was given)"

_GAME = (
    "An agent is walking through a maze and should reach the goal in as few steps as possible. Its actions are "
    '"move up", "move down", "move left" and "move right". Positions are given as row, column: moving down adds 1 to '
    "the row, moving right adds 1 to the column. If a wall is in the way, the agent stays put and wastes the step."
)
_SO_FAR = "What the agent has seen and done so far, oldest first"
_POLICY = f"""{{game}}

Choose the agent's next action. {_SO_FAR}:
{{history}}

Fields of your answer:
- "thoughts": what the position, the goal and the walls tell you.
- "action": one of the four actions."""
_VALUE = f"""{{game}}

Act as a state value function: judge how good the agent's last position is. {_SO_FAR}:
{{history}}

Fields of your answer:
- "thoughts": step by step, how far away the goal is, which walls are in the way, and whether the agent has been here \
before.
- "final_evaluation": in one sentence, how good this position is for reaching the goal, compared with others in the \
maze."""
_Q = f"""{{game}}

Act as a state-action value function: judge how good it is to take the action "{{action}}" now. {_SO_FAR}:
{{history}}

Fields of your answer:
- "thoughts": step by step, what the action "{{action}}" does, where it leads and how far the goal is from there.
- "final_evaluation": in one sentence, how good the action is for reaching the goal."""
_AGGREGATE = f"""{{game}}

Act as a state-action value function that looks ahead: judge how good it is to take the action "{{action}}" now. \
{_SO_FAR}:
{{history}}

Below is what could happen after "{{action}}". In each variation the steps after the first one are random, and the \
final position has been evaluated.
{{variations}}

Fields of your answer:
- "thoughts": step by step, what the variations tell you about the action "{{action}}".
- "final_evaluation": in one sentence, how good the action is for reaching the goal."""
_IMPROVE = """{game}

Choose the agent's next action. Go only by the evaluations below, not by anything else you may know.

{evaluations}

Fields of your answer:
- "thoughts": how the four evaluations compare.
- "action": the best of the four actions."""


@dataclasses.dataclass(frozen=True, eq=False)
class MazeRoles:
    """The `Roles` of `nlrl_jax.algorithms.language_gpi` for a maze. States and variations are `Walk`s.

    Attributes:
      maze: see `envs.maze.maze`.
      observation: "full" or "partial".
      history: maximum number of the episode's own moves in the text, which says how many earlier ones it leaves out.
    """

    maze: Maze
    observation: str = "full"
    history: int = 100
    actions: tuple[str, ...] = ACTIONS

    def candidates(self, state: Walk) -> Sequence[int]:
        """Lists the actions to evaluate: all four, bumps into walls included, as in the paper."""
        return range(len(ACTIONS))

    def look_ahead(
        self, states: Sequence[Walk], actions: Sequence[int], steps: int, rng: np.random.Generator
    ) -> list[Walk]:
        """Plays one variation from each state: `actions[i]` in `states[i]`, then `steps` random steps.

        A variation ends early at the goal.
        """
        return mazes.random_walks(self.maze, [state.positions[-1] for state in states], actions, steps, rng)

    def policy(self, state: Walk) -> Chat:
        """Asks the prompted language policy pi_L for an action."""
        return self._chat(_POLICY, self._history(state))

    def value(self, state: Walk, variation: Walk) -> Chat:
        """Asks for V^L of a variation's last position, with the moves that led there."""
        return self._chat(_VALUE, self._history(state, variation))

    def q(self, state: Walk, action: int) -> Chat:
        """Asks for Q^L(s, a) without look-ahead."""
        return self._chat(_Q, self._history(state), action=ACTIONS[action])

    def describe(self, state: Walk, variation: Walk) -> str:
        """Describes a variation (d): its moves, their reward and its last observation."""
        _, reward, _ = mazes.step(self.maze, np.array(variation.positions[:-1]), np.array(variation.actions))
        moves = ", ".join(ACTIONS[action] for action in variation.actions)
        return f"Moves: {moves}. Reward: {reward.sum():g}. Final observation: {self._text(variation.positions[-1])}"

    def aggregate(self, state: Walk, action: int, descriptions: Sequence[str], evaluations: Sequence[str]) -> Chat:
        """Asks for the value of an action from its variations (G2 and G1)."""
        pairs = enumerate(zip(descriptions, evaluations, strict=True), 1)
        variations = "\n".join(
            f"Variation {i}. {text}\nEvaluation of its final position: {value}" for i, (text, value) in pairs
        )
        context = {"descriptions": tuple(descriptions), "evaluations": tuple(evaluations)}
        history, word = self._history(state), ACTIONS[action]
        return self._chat(_AGGREGATE, history, context, action=word, variations=variations)

    def improve(self, state: Walk, values: Mapping[int, str]) -> Chat:
        """Asks for the best action by the evaluations alone (I)."""
        named = {ACTIONS[action]: value for action, value in values.items()}
        text = "\n\n".join(f'The action "{word}": {value}' for word, value in named.items())
        return Chat.of(_IMPROVE.format(game=_GAME, evaluations=text), SYSTEM, evaluations=named)

    def read_action(self, text: str) -> tuple[int, str]:
        """Reads (action id, problem); the id is -1 where none can be read.

        The problem is "" or that of `read_json`, "missing" (no field "action") or "illegal" (not one of the four).
        """
        fields, problem = read_json(text)
        word = fields.get("action")
        if word is None:
            return -1, problem or "missing"
        action, _ = read_action(str(word), ACTIONS)
        return (ACTIONS.index(action), problem) if action else (-1, "illegal")

    def read_evaluation(self, text: str) -> tuple[str, str]:
        """Reads (evaluation, problem); the evaluation is the JSON object as text, else the reply itself.

        The problem is "" or that of `read_json`, or "missing" (no "final_evaluation").
        """
        fields, problem = read_json(text)
        fields = {name.replace(" ", "_"): value for name, value in fields.items()}
        if not fields:
            return text.strip() or NO_EVALUATION, problem
        if not problem and "final_evaluation" not in fields:
            problem = "missing"
        return json.dumps(fields, ensure_ascii=False), problem

    def _text(self, cell: int) -> str:
        return _observation(self.maze, self.observation, cell)

    def _history(self, state: Walk, ahead: Walk | None = None) -> dict[str, Any]:
        """The fields "observations", one more than "actions", and "before", the number of moves that are left out."""
        before = max(len(state.actions) - self.history, 0)
        positions, actions = state.positions[before:], state.actions[before:]
        if ahead is not None:
            positions, actions = positions + ahead.positions[1:], actions + ahead.actions
        observations = tuple(self._text(cell) for cell in positions)
        return {"observations": observations, "actions": tuple(ACTIONS[a] for a in actions), "before": before}

    def _chat(
        self, prompt: str, history: dict[str, Any], context: Mapping[str, Any] | None = None, **slots: Any
    ) -> Chat:
        named = {"action": slots["action"]} if "action" in slots else {}
        text = prompt.format(game=_GAME, history=history_text(**history), **slots)
        return Chat.of(text, SYSTEM, **history, **named, **(context or {}))


def history_text(observations: Sequence[str], actions: Sequence[str], before: int) -> str:
    """Writes the observations, a line each, with the actions between."""
    lines = [f"(earlier moves not shown: {before})"] if before else []
    for observation, action in zip(observations, actions):
        lines += [observation, f"> {action}"]
    return "\n".join([*lines, observations[-1]])


@functools.lru_cache(maxsize=1024)
def _observation(maze: Maze, observation: str, cell: int) -> str:
    return mazes.observation_template(maze, observation).render(mazes.fields(maze, cell))
