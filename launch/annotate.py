"""Annotates a position as a commentator would, with a trained value model or any other one.

    python -m launch.annotate --run_dir runs/language_td --position "bb.b./b..b./..bw./w.w../wwwww" --player white
    python -m launch.annotate --run_dir runs/actor_critic --position "OX3/4O6/7X9" --player O
    python -m launch.annotate --game maze_double_t --position "5, 7" --model scripted

A run of train_language_td annotates breakthrough, one of train_language_actor_critic tic-tac-toe: there, every move
gets its evaluation, best first. Rows are written from the top, with "/" between them. Without a run, `--model`
annotates: scripted (rules), a built-in or local model, or an endpoint through `--base_url` and `--endpoint_model`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import types

import jax
from absl import flags

import envs.maze
from envs.breakthrough import prompts as breakthrough_prompts
from envs.breakthrough import rule_based as breakthrough_scripts
from envs.breakthrough import rules as breakthrough
from envs.maze import prompts as maze_prompts
from envs.maze import rule_based as maze_scripts
from envs.tic_tac_toe import prompts as tic_tac_toe_prompts
from envs.tic_tac_toe import rules
from nlrl_jax.backends.usage import Usage
from nlrl_jax.roles.board_games import View, Viewer
from nlrl_jax.run import app, models, players
from nlrl_jax.run.transcript import printable
from nlrl_jax.types import BoardGame, LanguageModel, Sampling
from nlrl_jax.weights.checkpoint import Checkpoints

GAMES = ("breakthrough", "tic_tac_toe", "maze_double_t", "maze_medium")


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Who annotates: the model, the style of its prompts and how long it may write."""

    name: str
    model: LanguageModel
    style: str
    max_tokens: int


def annotate_breakthrough(annotator: Annotator, text: str, player: str) -> str:
    """The position and its evaluation.

    Raises:
      ValueError: a position that cannot occur.
    """
    view = _view(breakthrough.board_game(), text, player)
    if not view.legal:
        return f"{view.board}\n\nThe game is over."
    roles = breakthrough_prompts.roles(annotator.style)
    (reply,) = annotator.model.complete([roles.value(view)], Sampling(annotator.max_tokens, 0.0), "value")
    ahead = roles.read_advantage(reply.text)
    verdict = f"{ahead} is ahead" if ahead else "no side is named"
    return f"{view.board}\n{view.player} to move\n\n{printable(reply.text)}\n\n({annotator.name}: {verdict})"


def annotate_tic_tac_toe(annotator: Annotator, text: str, player: str) -> str:
    """The position and the evaluation of every move, the best for the side to move first.

    Raises:
      ValueError: a position that cannot occur.
    """
    view = _view(rules.board_game(), " ".join(text.replace("/", "").replace(" ", "")), player)
    if not view.legal:
        return f"{view.board}\n\nThe game is over."
    roles = tic_tac_toe_prompts.roles(annotator.style)
    chats = [roles.value(view, action) for action in view.legal]
    replies = annotator.model.complete(chats, Sampling(annotator.max_tokens, 0.0), "value")
    side = 1 if view.player == "O" else -1
    known = [(action, reply.text, roles.read_value(reply.text)) for action, reply in zip(view.legal, replies)]
    known.sort(key=lambda entry: -side * (entry[2] if entry[2] is not None else -side * 9))
    lines = [f"{action}: {printable(words)}" for action, words, _ in known]
    return "\n".join([view.board, f"{view.player} to move", "", *lines, "", f"({annotator.name})"])


def annotate_maze(annotator: Annotator, layout: str, text: str) -> str:
    """What the value function says of a place "row, column" in a maze.

    Raises:
      ValueError: not a free cell.
    """
    maze = envs.maze.maze(layout)
    numbers = [part.strip() for part in text.split(",")]
    row, column = map(int, numbers) if len(numbers) == 2 and all(map(str.isdecimal, numbers)) else (-1, -1)
    cell = row * maze.columns + column
    if not (0 <= row < maze.rows and column < maze.columns) or maze.walls[cell]:
        raise ValueError(f"--position is {text!r}; give a free cell of {layout} as row, column")
    roles = maze_prompts.MazeRoles(maze)
    here = envs.maze.Walk((cell,))
    (reply,) = annotator.model.complete([roles.value(here, here)], Sampling(annotator.max_tokens, 0.0), "value")
    board = envs.maze.board_template(maze).render(envs.maze.fields(maze, cell))
    return f"{board}\n\n{printable(reply.text)}\n\n({annotator.name})"


def _view(game: BoardGame, text: str, player: str) -> View:
    position = game.parse(text.replace("/", "\n"), player or game.players[0])
    return Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], position))[0]


def trained(run_dir: pathlib.Path) -> tuple[str, Annotator]:
    """(game, the value model of a run).

    Raises:
      FileNotFoundError: no such run, or no checkpoint yet.
      ValueError: a run of another script.
    """
    path = run_dir / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} holds no run (no config.json)")
    run = json.loads(path.read_text())
    if {"look_ahead", "variations"} <= set(run):
        game, folder = "breakthrough", run_dir
    elif {"k", "estimate"} <= set(run):
        game = "tic_tac_toe"
        opponent = "random" if run["opponent"] == "both" else run["opponent"]
        folder = run_dir / opponent / "actor-critic"
    else:
        raise ValueError(f"{run_dir} is a run of another script; give one of train_language_td or _actor_critic")
    base = models.trainable_model(types.SimpleNamespace(**run))
    checkpoints = Checkpoints(folder / "checkpoints")
    if checkpoints.latest_step() is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    step, value = checkpoints.restore_part("value", base.variables[run["train"]])
    model = base.with_variables({**base.variables, run["train"]: value})
    style = players.prompt_for(run["model"], run["style"])
    return game, Annotator(f"{run_dir} at iteration {step}", model, style, run["max_tokens"])


def main(argv: list[str]) -> None:
    del argv
    given = flags.FLAGS
    if given.run_dir:
        game, annotator = trained(pathlib.Path(given.run_dir))
        if given.game and given.game != game:
            raise ValueError(f"the run in {given.run_dir} is of {game}, not of {given.game}")
    else:
        game = given.game
        if game not in GAMES:
            raise ValueError(f"--game is {game!r}; choose one of {', '.join(GAMES)}, or give a --run_dir")
        scripts = {"breakthrough": breakthrough_scripts.SCRIPTS, "tic_tac_toe": {}}.get(game, maze_scripts.SCRIPTS)
        if given.model == "scripted" and "value" not in scripts:
            raise ValueError(f"no rules annotate {game}; give a --run_dir or another --model")
        folder = pathlib.Path("runs/annotate")  # an endpoint's replies
        options = models.EndpointOptions(given.base_url, given.api_key_env)
        model = models.large_model(given.model, scripts, folder, Usage(), options, given.endpoint_model)
        style = "paper" if given.model == "scripted" else players.prompt_for(given.model, "auto")
        annotator = Annotator(given.model, model, style, given.max_tokens)
    if not given.position:
        raise ValueError("say which position: --position, rows from the top with / between them")
    if game == "breakthrough":
        print(annotate_breakthrough(annotator, given.position, given.player))
    elif game == "tic_tac_toe":
        print(annotate_tic_tac_toe(annotator, given.position, given.player))
    else:
        print(annotate_maze(annotator, game.removeprefix("maze_"), given.position))


def define_flags() -> None:
    flags.DEFINE_string("run_dir", "", "a finished or running training; its value model annotates")
    flags.DEFINE_string("game", "", f"without --run_dir: {', '.join(GAMES)}")
    flags.DEFINE_string("model", "scripted", "without --run_dir: scripted, endpoint, or a local model's name")
    flags.DEFINE_string("position", "", "rows from the top with / between them; for a maze: row, column")
    flags.DEFINE_string("player", "", "whose turn it is; by default the first player's")
    flags.DEFINE_integer("max_tokens", 512, "tokens an annotation at most, without --run_dir")
    flags.DEFINE_string("base_url", "", "an endpoint's address")
    flags.DEFINE_string("api_key_env", "OPENAI_API_KEY", "the environment variable that holds an endpoint's key")
    flags.DEFINE_string("endpoint_model", "", "an endpoint's name for its model")


if __name__ == "__main__":
    define_flags()
    app.run(main)
