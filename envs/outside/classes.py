"""Environments of your own as classes: `my_module:MyEnvironment`.

Two kinds are known by their methods. TRL's (1.16, `environment_factory`): `reset(**kwargs)` returns a text or None,
each other public method, typed and with a docstring in Google's style, is a tool, and `get_reward()` is asked once at
the end. Gymnasium's with texts: `reset(seed=...)` returns (observation, info), and `step(text)` (observation, reward,
terminated, truncated, info). What either may say about itself, as attributes: `rules` (else its docstring),
`max_steps`, `actions` and `reply_form` (a name in `roles.reply_forms.FORMS`), and while it is played `done`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.envs import outside
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.roles import reply_forms
from nlrl_jax.types import HostGame, Outcome

_HORIZON = 20  # steps where a class names no limit
_NOT_TOOLS = ("reset", "get_reward")
_NO_CALL = 'This call cannot be read. Write {"name": "...", "arguments": {...}} with one of the tools.'


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

    def begin(kind: str, seed: int) -> Beginning:
        env = factory(**options)
        row = rows[seed % len(rows)] if rows else {}
        returned = _waited(env.reset(**outside.accepted(env.reset, {"seed": seed, **row})))
        observation = returned[0] if isinstance(returned, tuple) and not with_tools else returned
        if not isinstance(observation, str | None):
            raise ValueError(f"reset returned {type(observation).__name__}; it must return a string or None")
        return Beginning(env, _prompt(row) or rules, observation or "")

    common = {
        "rules": rules if rows else "",
        "max_steps": max_steps or getattr(sample, "max_steps", _HORIZON),
        "limits": {"": len(rows)} if rows else {},
    }
    if with_tools:
        return of_episodes(
            name, begin, _call, actions=(), score="reward", has_success=False, **_tools(sample), **common
        )
    form = reply_forms.FORMS.get(getattr(sample, "reply_form", ""))
    actions = tuple(getattr(sample, "actions", ()))
    forms = {"read_action": form.read, "reply_form": form.shown} if form else {}
    return of_episodes(name, begin, _step, actions=actions, score="return", **forms, **common)


def _step(episode: LiveEpisode, action: str) -> Outcome:
    """Steps an environment of Gymnasium's kind."""
    observation, reward, *ends, info = _waited(episode.env.step(action))
    done = any(map(bool, ends)) or getattr(episode.env, "done", False) is True
    success = bool(info.get("success", ends[:1] == [True] and reward > 0)) and done
    return Outcome(None, observation, reward, done, success, valid=not info.get("invalid", False))


def _tools(env: Any) -> dict[str, Any]:
    """The fields of a host game that tell its tools: the schemas, as transformers makes them."""
    try:
        from transformers.utils import get_json_schema
    except ModuleNotFoundError:
        raise ValueError("tools are described by transformers; run pip install 'nlrl_jax[hub]'") from None
    if not callable(getattr(env, "get_reward", None)):
        raise ValueError(f"{type(env).__name__} has no get_reward(), so that there is nothing to learn from")
    schemas, listed = [], []
    for name, method in _methods(env).items():
        try:
            schemas.append(get_json_schema(method))
        except Exception as error:  # of several kinds, for missing types and docstrings
            raise ValueError(f"the tool {name} cannot be described: {error}") from None
        listed.append(f"{name}{inspect.signature(method)}: {schemas[-1]['function']['description']}")
    if not schemas:
        raise ValueError(f"{type(env).__name__} has no public method beside {' and '.join(_NOT_TOOLS)} to be a tool")
    shown = "\n".join((reply_forms.FORMS["tool_call"].shown, "Tools:", *listed))
    return {
        "tools": tuple(schemas),
        "read_action": reply_forms.tool_call,
        "reply_form": shown,
        "closing_reward": lambda episode: 0.0 if episode.fault else float(_waited(episode.env.get_reward()) or 0),
    }


def _methods(env: Any) -> dict[str, Callable]:
    """The tools of an environment by name: public methods of its class, in alphabetical order."""
    names = [name for name, _ in inspect.getmembers(type(env), inspect.isfunction)]
    return {name: getattr(env, name) for name in names if not name.startswith("_") and name not in _NOT_TOOLS}


def _call(episode: LiveEpisode, action: str) -> Outcome:
    """Calls a tool. A reply without a call is the final answer, which ends the episode; errors go to the model."""
    env, call = episode.env, reply_forms.tool_call(action)
    if call is None:
        if "<tool_call" in action or action.lstrip().startswith("{") or '"name"' in action:
            return Outcome(None, _NO_CALL, valid=False)
        return Outcome(None, "", float(_waited(env.get_reward()) or 0), done=True)
    name, arguments = json.loads(call).values()
    tools = _methods(env)
    if name not in tools:
        return Outcome(None, f"There is no tool {name!r}. Tools are: {', '.join(tools)}.", valid=False)
    try:
        result = _waited(tools[name](**arguments))
    except Exception as error:  # what the model has called wrongly, it is told
        return Outcome(None, f"error: {type(error).__name__}: {error}", valid=False)
    text = result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    if getattr(env, "done", False) is True:
        return Outcome(None, text, float(_waited(env.get_reward()) or 0), done=True)
    return Outcome(None, text)


def _waited(result: Any) -> Any:
    """What a method returned, or will return where it is asynchronous."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result


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
