"""Environments whose public methods are tools, as TRL's `environment_factory` makes them."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from nlrl_jax.envs.outside.episodes import LiveEpisode
from nlrl_jax.roles import reply_forms
from nlrl_jax.types import Outcome

_NOT_TOOLS = ("reset", "get_reward")
_NO_CALL = 'This call cannot be read. Write {"name": "...", "arguments": {...}} with one of the tools.'


def tool_fields(env: Any) -> dict[str, Any]:
    """The fields of a host game that tell its tools: the schemas, as transformers makes them."""
    try:
        from transformers.utils import get_json_schema
    except ModuleNotFoundError:
        raise ValueError("tools are described by transformers; run pip install 'nlrl_jax[hub]'") from None
    if not callable(getattr(env, "get_reward", None)) and not hasattr(env, "reward"):
        raise ValueError(
            f"{type(env).__name__} has no get_reward(), so that there is nothing to learn from; add one that returns a "
            "number, or set an attribute `reward` in its __init__"
        )
    schemas, signatures = [], []
    for name, method in _methods(env).items():
        try:
            schemas.append(get_json_schema(method))
        except Exception as error:  # of several kinds, for missing types and docstrings
            raise ValueError(f"the tool {name} cannot be described: {error}") from None
        signatures.append(f"{name}{inspect.signature(method)}: {schemas[-1]['function']['description']}")
    if not schemas:
        raise ValueError(f"{type(env).__name__} has no public method beside {' and '.join(_NOT_TOOLS)} to be a tool")
    form = "\n".join((reply_forms.FORMS["tool_call"].example, "Tools:", *signatures))
    return {
        "tools": tuple(schemas),
        "read_action": reply_forms.tool_call,
        "reply_form": form,
        "closing_reward": lambda episode: _earned(episode.env),
    }


def _methods(env: Any) -> dict[str, Callable]:
    """The tools of an environment by name: public methods of its class, in alphabetical order."""
    names = [name for name, _ in inspect.getmembers(type(env), inspect.isfunction)]
    return {name: getattr(env, name) for name in names if not name.startswith("_") and name not in _NOT_TOOLS}


def call_tool(episode: LiveEpisode, action: str) -> Outcome:
    """Calls a tool. A reply without a call is the final answer, which ends the episode; errors go to the model."""
    env, call = episode.env, reply_forms.tool_call(action)
    if call is None:
        if "<tool_call" in action or action.lstrip().startswith("{") or '"name"' in action:
            return Outcome(None, _NO_CALL, valid=False)
        return Outcome(None, "", _earned(env), done=True)
    name, arguments = json.loads(call).values()
    tools = _methods(env)
    if name not in tools:
        return Outcome(None, f"There is no tool {name!r}. Tools are: {', '.join(tools)}.", valid=False)
    try:
        result = waited(tools[name](**arguments))
    except (Exception, SystemExit) as error:  # what the model has called wrongly, it is told
        return Outcome(None, f"error: {type(error).__name__}: {error}", valid=False)
    text = result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    if getattr(env, "done", False) is True:
        return Outcome(None, text, _earned(env), done=True)
    return Outcome(None, text)


def _earned(env: Any) -> float:
    """What an episode has earned in the end: what get_reward returns, or else the attribute `reward`.

    Raises:
      ValueError: it is None.
    """
    has_method = callable(getattr(env, "get_reward", None))
    reward = waited(env.get_reward()) if has_method else env.reward
    if reward is None:
        said = "get_reward returned" if has_method else "the attribute `reward` is"
        raise ValueError(f"{said} None; it must be a number, 0 where there is none")
    return reward


def waited(result: Any) -> Any:
    """What a method returned, or will return where it is asynchronous."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result
