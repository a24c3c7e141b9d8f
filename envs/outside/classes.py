"""Environments of your own as classes: `my_module:MyEnvironment`.

Two kinds are known by their methods. TRL's (1.16, `environment_factory`): `reset(**kwargs)` returns a text or None,
each other public method, typed and with a docstring in Google's style, is a tool, and `get_reward()` is asked once at
the end, or where there is none the attribute `reward`. Gymnasium's with texts: `reset(seed=...)` returns (observation,
info), and `step(text)` (observation, reward, terminated, truncated, info). What either may say about itself, as
attributes: `rules` (else its docstring), `max_steps`, `actions` and `reply_form` (a name in
`roles.reply_forms.FORMS`), and while it is played `done`.
"""

from __future__ import annotations

import inspect
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.envs import outside, user_host_game
from nlrl_jax.envs.outside.class_tools import call_tool, tool_fields, waited
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.roles import reply_forms
from nlrl_jax.types import HostGame, Outcome

_HORIZON = 20  # steps where a class names no limit


def is_environment(candidate: Any) -> bool:
    """Whether this is an environment, or a class of some: it has a method `reset`."""
    return callable(getattr(candidate, "reset", None)) and not isinstance(candidate, HostGame)


def host_game(name: str, factory: Callable[..., Any], max_steps: int = 0, data: str = "", **options) -> HostGame:
    """Makes the host game of a class of environments.

    Args:
      factory: the class, or a function that makes an instance, one for each episode.
      data: a file of JSON lines; task i is line i, whose fields go to `reset` and whose "prompt" is the goal.
      **options: of the factory.

    Raises:
      ValueError: what is wrong with the class or the file.
    """
    rows = _rows(data) if data else []
    sample = factory(**options)
    with_tools = callable(getattr(sample, "get_reward", None)) or not callable(getattr(sample, "step", None))
    rules = getattr(sample, "rules", None) or inspect.getdoc(type(sample)) or ""

    def new_episode(kind: str, seed: int) -> Beginning:
        env = factory(**options)
        row = rows[seed % len(rows)] if rows else {}
        returned = waited(env.reset(**outside.accepted(env.reset, {"seed": seed, **row})))
        observation = returned[0] if isinstance(returned, tuple) and not with_tools else returned
        if not isinstance(observation, str | None):
            raise ValueError(
                f"reset returned {type(observation).__name__}; it must return a string or None. What observes numbers "
                "needs words: in reset and step, or registered with Gymnasium and played as "
                "gymnasium:ID?describe=my_module:describe"
            )
        return Beginning(env, _prompt(row) or rules, observation or "", getattr(env, "done", False) is True)

    common = {
        "rules": rules if rows else "",
        "max_steps": max_steps or getattr(sample, "max_steps", _HORIZON),
        "limits": {"": len(rows)} if rows else {},
    }
    if with_tools:
        return of_episodes(
            name, new_episode, call_tool, actions=(), score="reward", has_success=False, **tool_fields(sample), **common
        )
    form = reply_forms.FORMS.get(getattr(sample, "reply_form", ""))
    actions = tuple(getattr(sample, "actions", ()))
    forms = {"read_action": form.action_in, "reply_form": form.example} if form else {}
    return of_episodes(name, new_episode, _step, actions=actions, score="return", **forms, **common)


def _step(episode: LiveEpisode, action: str) -> Outcome:
    """Steps an environment of Gymnasium's kind."""
    returned = waited(episode.env.step(action))
    if not isinstance(returned, tuple) or len(returned) not in (4, 5):
        raise ValueError(
            f"step returned {user_host_game.shown(returned)}; it must be a tuple: "
            "observation, reward, terminated, truncated, info"
        )
    observation, reward, *flags, info = returned
    info = {} if info is None else info
    if not isinstance(info, Mapping):
        raise ValueError(f"step returned the info {user_host_game.shown(info)}; it must be a dict")
    done = any(map(bool, flags)) or getattr(episode.env, "done", False) is True
    success = bool(info.get("success", bool(flags[0]) and (reward or 0) > 0)) and done
    return Outcome(None, observation, reward, done, success, valid=not info.get("invalid", False))


def _rows(path: str) -> list[dict[str, Any]]:
    try:
        lines = pathlib.Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"--data {path}: {error}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"--data {path} must hold a JSON object on each line, the arguments of reset")
    return rows


def _prompt(row: Mapping[str, Any]) -> str:
    """The prompt of a row: a text, or the texts of messages."""
    prompt = row.get("prompt", "")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        return "\n".join(message["content"] for message in prompt)
    return prompt
