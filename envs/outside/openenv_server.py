"""Environments on an OpenEnv server (openenv 0.10) as `openenv:http://127.0.0.1:8000`.

Each episode is a session of its own, a WebSocket at `/ws`, which ends with it; the episodes of an iteration are stepped
at the same time. The server must allow as many sessions (`max_concurrent_envs`). A server that is lost, or does not
answer in time, ends its episodes with an error, and not the run.

What `GET /schema` says about actions decides how one is read: an action with one field of text is any text, others are
JSON objects of these fields. A server of tools (MCP) lists them itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import httpx

from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.envs.outside.openenv_session import Session
from nlrl_jax.roles import reply_forms
from nlrl_jax.roles.json_reply import read_json
from nlrl_jax.types import HostGame, Outcome

_HORIZON, _PATIENCE = 20, 60.0  # steps; seconds for one answer


def host_game(address: str, max_steps: int = 0, patience: float = _PATIENCE, **options) -> HostGame:
    """Makes the host game of a server.

    Args:
      patience: seconds that an answer may take.
      **options: of the environment's reset, beside its seed.

    Raises:
      ValueError: there is no server; it does not follow the seed.
    """
    address = address.rstrip("/")
    schema, about = _get(address, "schema", patience).get("action", {}), _get(address, "metadata", patience)
    fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    texts = [name for name, field in fields.items() if field.get("type") == "string"]
    field = texts[0] if len(texts) == len(fields) == 1 else ""
    tools = _tools(address, patience) if {"tool_name"} <= fields.keys() or not fields else ()

    def new_episode(kind: str, seed: int) -> Beginning:
        session = Session(address, patience)
        answer = session.ask("reset", {"seed": seed, **options})
        return Beginning(session, about.get("description", ""), _text(answer["observation"]), bool(answer.get("done")))

    def move(episode: LiveEpisode, action: str) -> Outcome:
        session = episode.env
        data = _call(action) if tools else {field: action} if field else read_json(action).fields
        if not data:
            return Outcome(None, f"An action is {form}", valid=False)
        try:
            answer = session.ask("step", data)
        except ValueError as error:  # the server is there and refuses this action
            return Outcome(None, str(error), valid=False)
        done, observation = bool(answer.get("done")), answer["observation"]
        if done:
            session.close()
        valid = not (tools and observation.get("error"))
        return Outcome(None, _text(observation), answer.get("reward") or 0, done, valid=valid)

    form = reply_forms.FORMS["tool_call"].example if tools else f"a JSON object: {json.dumps(fields)}"
    reader = reply_forms.tool_call if tools else None if field else _read_object
    return of_episodes(
        f"openenv:{address}",
        new_episode,
        move,
        on_a_server=True,
        rules="",
        actions=(),
        max_steps=max_steps or _HORIZON,
        score="reward",
        has_success=False,
        read_action=reader,
        reply_form="" if field else f"An action is {form}",
        tools=tools,
    )


def _read_object(text: str) -> str | None:
    """Reads the JSON object of a reply."""
    fields = read_json(text).fields
    return json.dumps(fields, ensure_ascii=False) if fields else None


def _call(action: str) -> dict[str, Any]:
    """The server's action that calls a tool; {} where the text is no call."""
    call = json.loads(reply_forms.tool_call(action) or "{}")
    return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]} if call else {}


def _tools(address: str, patience: float) -> tuple[dict[str, Any], ...]:
    """The tools of a server of tools, as JSON schemas; none where it has none."""
    with contextlib.closing(Session(address, patience)) as session, contextlib.suppress(ValueError, KeyError):
        session.ask("reset", {})
        listed = session.ask("step", {"type": "list_tools"})["observation"]["tools"]
        return tuple(
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "parameters": tool.get("input_schema") or {},
                },
            }
            for tool in listed
        )
    return ()


def _get(address: str, path: str, patience: float) -> dict[str, Any]:
    """What the server says at a path about its environment; {} where it says nothing there.

    Raises:
      ValueError: there is no server.
    """
    try:
        response = httpx.get(f"{address.replace('ws', 'http', 1) if address.startswith('ws') else address}/{path}",
                             timeout=patience, trust_env=False)  # fmt: skip
        return response.json() if response.is_success else {}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"there is no OpenEnv server at {address}: {error}") from None


def _text(observation: Mapping[str, Any]) -> str:
    """An observation in words: what a tool answered, or its one text, else JSON without what is empty.

    Metadata are left out, but where there is nothing else, as when a server of tools begins.
    """
    fields = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    if "tool_name" in fields:
        return _answer(fields)
    metadata = fields.pop("metadata", {})
    fields = fields or {name: value for name, value in metadata.items() if value not in (None, "", [], {})}
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    return json.dumps(fields, ensure_ascii=False) if fields else ""


def _answer(observation: Mapping[str, Any]) -> str:
    """What a tool answered, in MCP's form: the texts of its content, else its data; or why it failed."""
    if error := observation.get("error"):
        return f"error: {error.get('message', error)}"
    result = observation.get("result")
    if not isinstance(result, Mapping):
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    texts = [part["text"] for part in result.get("content") or () if isinstance(part.get("text"), str)]
    return "\n".join(texts) or json.dumps(result.get("structured_content", result.get("data")), ensure_ascii=False)
