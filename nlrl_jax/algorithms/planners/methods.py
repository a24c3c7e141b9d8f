"""LAC, its ablations and the planners by name: who decides, over which dialogue."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from nlrl_jax.algorithms import lac, offline
from nlrl_jax.algorithms.imagine import Caller, PlanningConfig
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.offline import OfflineConfig
from nlrl_jax.algorithms.planners import direct, icpi, lats, rafa, rap, react
from nlrl_jax.algorithms.planners.lats import LATSConfig, Plans
from nlrl_jax.config import replace
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.rollouts.host_games import StepDecisions
from nlrl_jax.types import HostGame, LanguageModel


@dataclasses.dataclass(frozen=True)
class Method:
    """A rule of decision.

    Attributes:
      title: for tables.
      label: of the notes in its instructions; see `dialogues.NOTES`.
      notes: whether there are notes in its transcripts.
      thinks: whether actions may be thoughts.
      scores: whether it needs log-probabilities.
      returns: whether a return of 1 stands before each observation, as a decision transformer has learned it.
      tagged: whether actions must stand in tags.
      shots: whether it reads examples first; None: as many as the run says.
      decide: (model, dialogue, histories, actions, config, seed) -> decisions; None where there is a plan.
      plan: (model, dialogue, game, tasks, planning, config of LATS, seed) -> all actions of the episodes, by search
        before the first; None where each step is decided by itself.
    """

    title: str
    label: str
    decide: Callable[[LanguageModel, Dialogue, Sequence[History], Sequence[str], LACConfig, int], StepDecisions] | None
    notes: bool = True
    thinks: bool = False
    scores: bool = True
    returns: bool = False
    tagged: bool = False
    shots: bool | None = None
    plan: (
        Callable[[LanguageModel, Dialogue, HostGame, Sequence[tuple[str, int]], PlanningConfig, LATSConfig, int], Plans]
        | None
    ) = None

    def dialogue(self, rules: str, compact: bool, **options) -> Dialogue:
        """The dialogue about a game that this method holds. Arguments: see `Dialogue.of`."""
        rules = f"{rules}\n{direct.FORM}" if self.tagged else rules
        dialogue = Dialogue.of(rules, self.label, compact, self.thinks, **options)
        dialogue = dialogue if self.notes else dataclasses.replace(dialogue, label="")
        return offline.acting(OfflineConfig("decision_transformer"), dialogue) if self.returns else dialogue


def _planner(decide):
    return lambda model, dialogue, histories, actions, config, seed: decide(
        Caller(model, dialogue, config.planning, seed), histories, actions
    )


def _direct(title, label="", tagged=False, shots=False):
    decide = _planner(functools.partial(direct.decide, tagged=tagged))
    return Method(title, label, decide, scores=False, tagged=tagged, shots=shots)


def _search(title, plan):
    return Method(title, "Value", None, notes=False, scores=False, plan=plan)


def _variant(changes):
    return lambda model, dialogue, histories, actions, config, seed: lac.decide(
        model, dialogue, histories, actions, replace(config, **changes), seed
    )


_TITLES = {
    "lac": "LAC",
    "lac_no_critic": "LAC without critic",
    "lac_no_rollout": "LAC without rollout",
    "lac_no_reflection": "LAC without reflection",
    "critic_only": "critic only",
    "lac_positive": "LAC, Q = log P(GOOD)",
    "lac_direct": "LAC, direct evaluation",
    "lac_cot": "LAC, chain of thought",
    "prior_cot": "prior, chain of thought",
    "lac_tree": "LAC, tree",
    "lac_resample": "LAC, resampling",
}
METHODS: dict[str, Method] = {
    # LAC and its ablations; without verdicts as log-probabilities, a model need not score.
    **{
        name: Method(_TITLES[name], label, _variant(changes), scores=changes.get("critic") != "direct")
        for name, (changes, label) in lac.METHODS.items()
    },
    # Policies: what the model says first is done. The decision transformer reads the return it is to reach.
    "react": Method("ReAct, no thoughts", "", _planner(react.decide), scores=False),
    "react_return": Method("decision transformer", "", _planner(react.decide), scores=False, returns=True),
    "react_think": Method("ReAct", "", _planner(react.decide), thinks=True, scores=False),
    # Planners that imagine before each step.
    "rap": Method("RAP", "Value", _planner(rap.decide), notes=False),
    "icpi": Method("ICPI", "Reward", _planner(icpi.decide), scores=False),
    "rafa": Method("RAFA", "Value", _planner(rafa.decide), notes=False, scores=False),
    # BALROG's prompts, without a plan; "robust" ones answer in tags (Table 13).
    "naive": _direct("naive"),
    "robust_naive": _direct("robust naive", tagged=True),
    "cot": _direct("chain of thought", "Thought"),
    "robust_cot": _direct("robust chain of thought", "Thought", tagged=True),
    "few_shot": _direct("few-shot", shots=True),
    # A search of the game itself, or of an imagined one, before the first step.
    "lats": _search("LATS", lats.plan),
    "lats_imagined": _search("LATS, imagined", functools.partial(lats.plan, imagined=True)),
}
DEFAULT = ("lac", "react_think", "react", "rap", "icpi", "rafa")


def default(game: HostGame) -> tuple[str, ...]:
    """LAC and the planners that play a game: LATS too where it can restore earlier states and has a score."""
    return (*DEFAULT, "lats") if game.reversible and game.score else DEFAULT


def parse(names: str) -> list[str]:
    """ "lac,react" -> names, distinct.

    Raises:
      ValueError: an unknown name.
    """
    chosen = list(dict.fromkeys(filter(None, (name.strip() for name in names.split(",")))))
    unknown = [name for name in chosen if name not in METHODS]
    if unknown or not chosen:
        raise ValueError(f"methods is {names!r}; choose some of {', '.join(METHODS)}, separated by commas")
    return chosen
