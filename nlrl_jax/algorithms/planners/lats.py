"""LATS: search by UCT in the game itself, a language model as policy and value (Zhou et al., 2024; LAC, C.2.5).

One search per episode, before its first move, from the game's beginning; then the best trajectory found is played.
An iteration:

    selection        down the tree along V(s) + weight sqrt(ln N(parent) / N(s)), among nodes that are not exhausted
    expansion        the model's likeliest actions, each carried out in the game
    evaluation       the share of sub-goals that the model writes in a line "Value:"; of an end its real reward
    simulation       expansion and evaluation of the best child, and so on to an end or the depth
    backpropagation  the reward of the end, or the value of the last node, into the mean of all nodes on the way
    reflection       after an end without success the model says what to do differently; later prompts of the episode
                     carry that after the goal

A node's evaluation counts as its first visit. The search of an episode is over when it has succeeded once or has
nothing left to try. It needs a game that can restore earlier states, and it sees real rewards before it plays, which
no other planner here does. All episodes search in lockstep, and every phase is one call.

The LAC paper runs the official implementation (andyz245/LanguageAgentTreeSearch, webshop/lats.py). Where it differs:

- UCT: there V / N + sqrt(2 ln N(parent) / N), with V already a mean, and unvisited nodes first; here V + weight
  sqrt(ln N(parent) / N), weight 1, the evaluation as the first visit. --lats_weight 1.414 gives its constant.
- Children at the root: there twice as many samples as elsewhere; here `expansions` everywhere. Candidates there are
  draws at temperature 1, here the likeliest actions.
- Unfinished rollouts: there -0.5 is backed up after 15 steps of a rollout; here the value of the last node at `depth`,
  counted from the root.
- Rollout nodes: there they are dropped after the back-up, and a rollout takes the first end that it meets; here they
  stay in the tree, and the child with the highest value is followed.
- Invalid actions: there their reward is -1, which counts where the best node is chosen; here the game's own outcome.
- Values: there divided by the largest among siblings, an end above all; here the model's number in 0 to 1, an end its
  reward.
- Reflections: there on at most three failures with distinct partial rewards, written again together, and with the
  failed trajectories in the value's prompt; here on every failed end, the newest three, in every prompt.
- Result: in both the node with the highest reward of all, which an unfinished one has not earned yet. Here a success
  comes first, an unfinished node before a failed end with no more reward, of several the one with the highest values
  on the way; its actions are played, greedily on where they end before the game.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from nlrl_jax.algorithms.imagine import CRITIC, NOTE, WORLD, Caller, PlanningConfig, next_actions, propose
from nlrl_jax.config import check, option
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.roles.written_numbers import read_share
from nlrl_jax.types import HostGame, LanguageModel, Outcome

REFLECT = "Reflection on this failed attempt, in one sentence on what to do differently:"
EARLIER = "Earlier attempts:"
REFLECTIONS = 3  # the newest that a prompt carries


@dataclasses.dataclass(frozen=True)
class LATSConfig:
    """The search of LATS. Defaults: the LAC paper's."""

    expansions: int = option(5, "LATS: actions tried in each node", least=1)
    iterations: int = option(30, "LATS: iterations per episode", least=1)
    depth: int = option(15, "LATS: maximum depth of the tree", least=1)
    weight: float = option(1.0, "LATS: weight of exploration in UCT", least=0)

    def __post_init__(self):
        check(self)


class Plans(NamedTuple):
    """The actions of B episodes, to their ends, and for each action a JSON-able record as in `StepDecisions`.

    problems, calls: of the whole search; see `imagine.Caller`.
    """

    actions: list[list[str]]
    thinking: list[list[dict[str, Any]]]
    problems: Counter
    calls: Counter


@dataclasses.dataclass(eq=False)
class _Node:
    """A state of the game. value: the mean over `visits`; reward: earned on the way here, counted as in ends."""

    state: Any
    history: History
    parent: _Node | None = None
    done: bool = False
    success: bool = False
    reward: float = 0.0
    value: float = 0.0
    visits: int = 1
    closed: bool = False
    children: list[_Node] = dataclasses.field(default_factory=list)

    @property
    def depth(self) -> int:
        return self.parent.depth + 1 if self.parent else 0

    @property
    def is_open(self) -> bool:
        """Whether play can go on from here or from a node below."""
        return any(child.is_open for child in self.children) if self.children else not self.done

    def uct(self, weight: float) -> float:
        # UCT: mean value plus a bonus for rarely visited children.
        return self.value + weight * math.sqrt(math.log(self.parent.visits) / self.visits)


@dataclasses.dataclass(eq=False)
class _Search:
    """The tree of one episode. imagined: a value of 1 is a success."""

    root: _Node
    imagined: bool = False
    ends: list[_Node] = dataclasses.field(default_factory=list)
    reflections: list[str] = dataclasses.field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.root.closed or any(end.success for end in self.ends)

    def select(self, weight: float) -> _Node:
        node = self.root
        while node.children:
            # A node that is not closed has a child that is not (`_back_up`), so the maximum exists.
            node = max((child for child in node.children if not child.closed), key=lambda child: child.uct(weight))
        return node

    def shown(self, history: History) -> History:
        """A history whose goal carries the reflections."""
        if not self.reflections:
            return history
        lessons = " ".join(self.reflections[-REFLECTIONS:])
        return dataclasses.replace(history, goal=f"{history.goal} {EARLIER} {lessons}")

    def best(self) -> _Node:
        """The end with the highest reward, unless an unfinished leaf has as much: then the one with the highest values.

        A reward below 0, such as a price of each step, is no reason for an early end.
        """
        leaves, node = list(self.ends), self.root
        while node.children:
            node = max(node.children, key=lambda child: (child.is_open, child.value))
        # The leaf to which the best values lead, if play can go on from there.
        leaves += [] if node.done else [node]
        return max(leaves, key=lambda leaf: (leaf.success, max(leaf.reward, 0.0), not leaf.done, leaf.reward))


def check_game(game: HostGame) -> None:
    """Raises ValueError: the game cannot restore earlier states."""
    if not game.reversible:
        raise ValueError(
            f"LATS restores earlier states, which {game.name} cannot do; leave lats out of --methods, or add "
            "?reversible=True to the name of a game that is yours or another package's (docs/own_game.md)"
        )


def plan(
    model: LanguageModel,
    dialogue: Dialogue,
    game: HostGame,
    tasks: Sequence[tuple[str, int]],
    planning: PlanningConfig,
    config: LATSConfig,
    seed: int,
    imagined: bool = False,
) -> Plans:
    """The best trajectory of each task; what the search leaves open the model's greedy actions complete.

    Args:
      dialogue: its label is "Value", without notes in its transcripts.
      planning: how candidates arise; their number is `config.expansions`.
      imagined: the search sees nothing of the game but its first observations, and an episode is won where its value
        is 1 (LAC, table 26); any game will do.

    Raises:
      ValueError: the game cannot restore earlier states, and the search is not imagined.
    """
    if not imagined:
        check_game(game)
    n = config.expansions
    planning = dataclasses.replace(planning, candidates=n, draws=max(planning.draws, n))
    caller, starts = Caller(model, dialogue, planning, seed), game.reset(tasks)
    histories = [History.begin(start, task) for start, task in zip(starts, tasks, strict=True)]
    if imagined:
        searches = [_Search(_Node(history, history), imagined=True) for history in histories]

        def step(states, actions):
            return _imagine(caller, states, actions)

        _search(caller, dataclasses.replace(game, step=step, score=""), searches, config)
    else:
        searches = [_Search(_Node(start.state, history)) for start, history in zip(starts, histories, strict=True)]
        _search(caller, game, searches, config)
    return _play(caller, game, [start.state for start in starts], histories, searches)


def _imagine(caller: Caller, histories: Sequence[History], actions: Sequence[str]) -> list[Outcome]:
    """Steps of the game as the model imagines them; a state is a history."""
    pairs = list(zip(caller.trim(histories, 2), actions, strict=True))
    texts = caller.lines(WORLD, [caller.dialogue.chat(history, f"Action: {a}\nObservation:") for history, a in pairs])
    caller.count(WORLD, "empty", texts.count(""))
    grown = zip(histories, actions, texts, strict=True)
    return [Outcome(history.then(Step(action, text)), text) for history, action, text in grown]


def _search(caller: Caller, game: HostGame, searches: Sequence[_Search], config: LATSConfig) -> None:
    """Grows the trees until each is over or its iterations are spent."""
    limit = min(config.depth, game.max_steps)
    for _ in range(config.iterations):
        open_ = [search for search in searches if not search.over]
        if not open_:
            break
        # 1. Selection, expansion and simulation of all trees, one call a phase.
        last = _simulate(caller, game, open_, [search.select(config.weight) for search in open_], limit)
        for node in last:
            _back_up(node)
        # 3. A reflection on each failure, which the prompts of later iterations carry.
        failed = [(search, node) for search, node in zip(open_, last, strict=True) if node.done and not node.success]
        trimmed = caller.trim([search.shown(node.history) for search, node in failed], 1)
        texts = caller.lines(NOTE, [caller.dialogue.chat(history, REFLECT) for history in trimmed])
        for (search, _), text in zip(failed, texts, strict=True):
            if text and text not in search.reflections:
                search.reflections.append(text)


def _simulate(
    caller: Caller, game: HostGame, searches: Sequence[_Search], nodes: list[_Node], limit: int
) -> list[_Node]:
    """Expands each node, then its best child, and so on. Returns the last node of each."""
    going = list(range(len(nodes)))
    while going:
        _expand(caller, game, [searches[i] for i in going], [nodes[i] for i in going], limit)
        for i in going:
            nodes[i] = max(nodes[i].children, key=lambda child: child.value)
        going = [i for i in going if not nodes[i].closed]
    return nodes


def _expand(caller: Caller, game: HostGame, searches: Sequence[_Search], nodes: Sequence[_Node], limit: int) -> None:
    """Gives each node its children, with their values."""
    # Other candidates than at the last expansion, where they are drawn.
    caller.seed += 1
    trimmed = caller.trim([search.shown(node.history) for search, node in zip(searches, nodes, strict=True)], 1)
    candidates = propose(caller, trimmed, game.actions)
    pairs = [(search, node, a) for search, node, c in zip(searches, nodes, candidates, strict=True) for a in c.actions]
    outcomes = game.step([node.state for _, node, _ in pairs], [action for _, _, action in pairs])
    unknown = []
    for (search, node, action), outcome in zip(pairs, outcomes, strict=True):
        history = node.history.then(Step(action, outcome.observation))
        # Depth counts steps from the start: the last step that the game allows ends the episode.
        done = outcome.done or node.depth + 1 == game.max_steps
        reward = node.reward + outcome.reward if game.score else float(outcome.success)
        child = _Node(outcome.state, history, node, done, outcome.success, reward)
        child.closed = done or node.depth + 1 >= limit
        node.children.append(child)
        if done:
            child.value = reward
            search.ends.append(child)
        else:
            unknown.append((search, child))
    trimmed = caller.trim([search.shown(child.history) for search, child in unknown], 1)
    texts = caller.lines(CRITIC, [caller.dialogue.chat(history, "Value:") for history in trimmed])
    for (search, child), text in zip(unknown, texts, strict=True):
        number = read_share(text)
        caller.count(CRITIC, "" if number is not None else "no number")
        # What cannot be read is worth nothing.
        child.value = number or 0.0
        if search.imagined and child.value == 1:
            child.done = child.success = child.closed = True
            child.reward = 1.0
            search.ends.append(child)


def _back_up(last: _Node) -> None:
    """The last value into the means of its ancestors; those with nothing left to try are closed."""
    node = last.parent
    while node is not None:
        node.visits += 1
        # A running mean.
        node.value += (last.value - node.value) / node.visits
        node.closed = all(child.closed for child in node.children)
        node = node.parent


def _play(
    caller: Caller, game: HostGame, states: list[Any], histories: list[History], searches: Sequence[_Search]
) -> Plans:
    """Plays the best trajectories, and greedily on where they are over before the game is."""
    planned, thinking = [], []
    for search in searches:
        node, records = search.best(), []
        planned.append([step.action for step in node.history.steps])
        while node.parent is not None:
            node = node.parent
            rows = [(child.history.steps[-1].action, child.value) for child in node.children]
            records.append({"candidates": [action for action, _ in rows], "q": [value for _, value in rows]})
        thinking.append(records[::-1])
    going = list(range(len(states)))
    for t in range(game.max_steps):
        if not going:
            break
        # Episodes whose plan is at its end; the model goes on greedily.
        free = [i for i in going if t >= len(planned[i])]
        trimmed = caller.trim([searches[i].shown(histories[i]) for i in free], 1)
        for i, action in zip(free, next_actions(caller, trimmed, game.actions, caller.seed + t), strict=True):
            planned[i].append(action)
            thinking[i].append({"candidates": [action]})
        actions = [planned[i][t] for i in going]
        outcomes = game.step([states[i] for i in going], actions)
        for i, action, outcome in zip(going, actions, outcomes, strict=True):
            states[i], histories[i] = outcome.state, histories[i].then(Step(action, outcome.observation))
        going = [i for i, outcome in zip(going, outcomes, strict=True) if not outcome.done]
    actions = [[step.action for step in history.steps] for history in histories]
    thinking = [records[: len(played_actions)] for records, played_actions in zip(thinking, actions, strict=True)]
    return Plans(actions, thinking, caller.problems, caller.calls)
