r"""GEM's environments (gem-llm 0.1.0) as `gem:game:GuessTheNumber-v0-easy`, `gem:rg:letter_counting` and so on.

An action stands in \boxed{}. A reply without one ends most of its games with the reward -0.1; a reply that only names
an illegal move does not. GEM's own wrappers show, after each observation, `info["suffix"]` (the board, and a request).

Departs from GEM in questions of Reasoning Gym (`rg:`): GEM draws them from 500, the same for all seeds; here each task
is a question of its own. An answer for which Reasoning Gym's scoring raises an error (as `prime_factorization` of
0.1.23 does for words) earns nothing, as other wrong ones do.
"""

from __future__ import annotations

import difflib

import gem
import gem.envs  # fills the registry
from gem.utils.constants import LanguageGameReward

from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.roles import reply_forms
from nlrl_jax.types import HostGame, Outcome

_END = "<\uff5cTERMINAL_STATE\uff5c>"  # what tasks of one answer "observe" at their end
_WON = 1 - 1e-6  # rewards of a game that is won, summed up; some pay it in parts
_HORIZON, _TRIED = 100, 16  # steps where an environment names no limit; tasks whose limits are looked at
_QUESTION = "rg:"  # how names of Reasoning Gym's questions begin
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)  # an answer cannot be parsed


def host_game(name: str, max_steps: int = 0, **options) -> HostGame:
    """Makes one of GEM's environments.

    Args:
      **options: of `gem.make`. `seed` and `size` choose a fixed set of Reasoning Gym's questions, as GEM does.

    Raises:
      ValueError: there is no such environment; what it raises.
    """
    registry = gem.envs.registration.ENV_REGISTRY
    if name not in registry:
        close = difflib.get_close_matches(name, registry, n=3, cutoff=0.4)
        raise ValueError(
            f"GEM has no environment {name!r}; did you mean {' or '.join(close) or 'game:Sudoku-v0-easy'}?"
        )

    is_question = name.startswith(_QUESTION)
    each_its_own = is_question and not {"seed", "size"} & options.keys()
    unreadable = _UNREADABLE if is_question else ()

    def new_episode(kind: str, seed: int) -> Beginning:
        # Question i of a data set is drawn from its seed + i, and of two questions GEM takes either.
        questions = dict(seed=2 * seed, size=2) if each_its_own else {}
        env = gem.make(name, **questions, **options)
        instructions, info = env.reset(seed=seed)
        return Beginning(env, instructions.strip(), info.get("suffix", "").strip())

    def move(episode: LiveEpisode, action: str) -> Outcome:
        try:
            text, reward, terminated, truncated, info = episode.env.step(action)
        except unreadable:
            return Outcome(None, "", 0.0, done=True, valid=False)
        done = bool(terminated or truncated)
        parts = ("" if text == _END else text.strip(), "" if done else info.get("suffix", "").strip())
        success = done and episode.earned + float(reward) >= _WON
        valid = reply_forms.boxed(action) is not None and reward > LanguageGameReward.format_error_reward
        return Outcome(None, "\n".join(filter(None, parts)), reward, done, success, valid)

    # Of the "-random" ones each task has its own number of turns.
    horizons = [getattr(new_episode("", seed).env, "max_turns", None) or 0 for seed in range(_TRIED)]
    return of_episodes(
        f"gem:{name}",
        new_episode,
        move,
        rules="",
        actions=(),
        max_steps=max_steps or max(horizons) or (1 if is_question else _HORIZON),
        score="reward",
        read_action=reply_forms.with_marks(reply_forms.boxed, r"\boxed{{{}}}"),
        reply_form=reply_forms.FORMS["boxed"].example,
    )
