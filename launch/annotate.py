"""Annotates a position as a commentator would, with a trained value model or any other.

    nlrl-jax annotate --run_dir runs/language_td --position "bb.b./b..b./..bw./w.w../wwwww" --player white
    nlrl-jax annotate --run_dir runs/actor_critic --position "OX3/4O6/7X9" --player O
    nlrl-jax annotate --game maze_double_t --position "5, 7" --model scripted

A run of train_language_td annotates breakthrough, one of train_language_actor_critic tic-tac-toe: there, every move
gets its evaluation, best first. Rows are written from the top, with "/" between them. Without a run, `--model`
annotates: scripted (rules), a built-in or local model, or an endpoint through `--base_url` and `--endpoint_model`.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import NamedTuple

import jax

from nlrl_jax import envs
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import check, option, part
from nlrl_jax.envs.breakthrough import prompts as breakthrough_prompts
from nlrl_jax.envs.breakthrough import rule_based as breakthrough_scripts
from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze import prompts as maze_prompts
from nlrl_jax.envs.maze import rule_based as maze_scripts
from nlrl_jax.envs.tic_tac_toe import prompts as tic_tac_toe_prompts
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.roles.board_games import Viewer
from nlrl_jax.run import app, endpoints, local_models, models, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import read_config
from nlrl_jax.run.transcript import printable
from nlrl_jax.types import Chat, LanguageModel, Sampling
from nlrl_jax.weights.checkpoint import Checkpoints

# game -> the rules that annotate it
SCRIPTS = {
    "breakthrough": breakthrough_scripts.SCRIPTS,
    "tic_tac_toe": {},
    "maze_double_t": maze_scripts.SCRIPTS,
    "maze_medium": maze_scripts.SCRIPTS,
}
TRAINED = {"train_language_td": "breakthrough", "train_language_actor_critic": "tic_tac_toe"}  # by script


@dataclasses.dataclass(frozen=True)
class AnnotateConfig:
    """A position and who annotates it."""

    run_dir: str = option("", "a finished or running training; its value model annotates")
    game: str = option("", f"without --run_dir: {', '.join(SCRIPTS)}")
    model: str = option("scripted", "without --run_dir: scripted, endpoint, or a local model's name")
    templates: TemplateOptions = part(TemplateOptions())
    position: str = option("", "rows from the top with / between them; for a maze: row, column")
    player: str = option("", "whose turn it is; by default the first player's")
    max_tokens: int = option(512, "maximum tokens per evaluation, without --run_dir", least=1)
    endpoint: endpoints.Endpoint = part(endpoints.Endpoint(), without=("endpoint_tokenizer",))

    def __post_init__(self):
        check(self)


class Annotator(NamedTuple):
    """A value model, the style of its prompts and the maximum length of its evaluations."""

    name: str
    model: LanguageModel
    style: str
    max_tokens: int

    def write(self, chats: list[Chat]) -> list[str]:
        replies = self.model.complete(chats, Sampling(self.max_tokens, 0.0), "value")
        return [reply.text for reply in replies]


def annotate_board(annotator: Annotator, name: str, text: str, player: str) -> str:
    """A position of a board game with its evaluation, or in tic-tac-toe that of every move, best first.

    Raises:
      ValueError: a position that cannot occur.
    """
    game, by_move = envs.make_board(name), name == "tic_tac_toe"
    rows = " ".join(text.replace("/", "").replace(" ", "")) if by_move else text.replace("/", "\n")
    position = game.parse(rows, player or game.players[0])
    view = Viewer(game).views(jax.tree.map(lambda leaf: leaf[None], position))[0]
    if not view.legal:
        return f"{view.board}\n\nThe game is over."
    head = f"{view.board}\n{view.player} to move\n\n"
    if by_move:
        roles, side = tic_tac_toe_prompts.roles(annotator.style), 1 if view.player == game.players[0] else -1
        texts = zip(view.legal, annotator.write([roles.value(view, action) for action in view.legal]))

        def worth(move: tuple[str, str]) -> float:
            """Of a move with its evaluation, for the player; one without a number comes last."""
            value = roles.read_value(move[1])
            return -9 if value is None else side * value

        moves = sorted(texts, key=worth, reverse=True)
        return head + "\n".join(f"{action}: {printable(words)}" for action, words in moves) + f"\n\n({annotator.name})"
    roles = breakthrough_prompts.roles(annotator.style)
    (words,) = annotator.write([roles.value(view)])
    ahead = roles.read_advantage(words)
    verdict = f"{ahead} is ahead" if ahead else "no side is named"
    return f"{head}{printable(words)}\n\n({annotator.name}: {verdict})"


def annotate_maze(annotator: Annotator, layout: str, text: str) -> str:
    """The evaluation of a place "row, column" in a maze.

    Raises:
      ValueError: not a free cell.
    """
    maze = mazes.maze(layout)
    numbers = [part.strip() for part in text.split(",")]
    row, column = map(int, numbers) if len(numbers) == 2 and all(map(str.isdecimal, numbers)) else (-1, -1)
    cell = row * maze.columns + column
    if not (0 <= row < maze.rows and column < maze.columns) or maze.walls[cell]:
        raise ValueError(f"--position is {text!r}; give a free cell of {layout} as row, column")
    here = mazes.Walk((cell,))
    (words,) = annotator.write([maze_prompts.MazeRoles(maze).value(here, here)])
    board = mazes.board_template(maze).render(mazes.fields(maze, cell))
    return f"{board}\n\n{printable(words)}\n\n({annotator.name})"


def trained(run_dir: pathlib.Path) -> tuple[str, Annotator]:
    """(game, the value model of a run).

    Raises:
      FileNotFoundError: no checkpoint yet.
      ValueError: no such run, or one of another script.
    """
    run = read_config(run_dir)
    if run.get("script") not in TRAINED:
        raise ValueError(f"{run_dir} is a run of {run.get('script')}; give one of {' or '.join(TRAINED)}")
    game, folder = TRAINED[run["script"]], run_dir
    if game == "tic_tac_toe":
        folder = run_dir / ("random" if run["opponent"] == "both" else run["opponent"]) / "actor-critic"
    base = local_models.trainable_model(
        run["model"], run["dtype"], run["train"], run["seed"], templates=players.templates_of(run)
    )
    checkpoints = Checkpoints(folder / "checkpoints")
    if checkpoints.latest_step() is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    step, value = checkpoints.restore_part("value", base.variables[run["train"]])
    model = base.with_variables({**base.variables, run["train"]: value})
    style = players.prompt_for(run["model"], run["style"])
    return game, Annotator(f"{run_dir} at iteration {step}", model, style, run["max_tokens"])


def untrained(config: AnnotateConfig) -> Annotator:
    """The model that the options name. Raises ValueError for an unknown game, or one that no rules annotate."""
    game, name = config.game, config.model
    if game not in SCRIPTS:
        raise ValueError(f"--game is {game!r}; choose one of {', '.join(SCRIPTS)}, or give a --run_dir")
    if name == "scripted" and not SCRIPTS[game]:
        raise ValueError(f"no rules annotate {game}; give a --run_dir or another --model")
    if name == "endpoint":
        models.check_large_model(name, config.endpoint, config.max_tokens)
    local_models.check_templates(config.templates, name)
    folder = pathlib.Path("runs/annotate")  # an endpoint's replies
    model = models.large_model(name, SCRIPTS[game], folder, Usage(), config.endpoint, templates=config.templates)
    style = "paper" if name == "scripted" else players.prompt_for(name, "auto")
    return Annotator(name, model, style, config.max_tokens)


def main(argv: list[str]) -> None:
    del argv
    config = config_flags.parse(AnnotateConfig)
    if config.run_dir:
        reason = "with --run_dir, whose run has its own"
        config_flags.leave_out(reason, "model", "max_tokens", "template", "date", *endpoints.ENDPOINT)
        game, annotator = trained(pathlib.Path(config.run_dir))
        if config.game and config.game != game:
            raise ValueError(f"the run in {config.run_dir} is of {game}, not of {config.game}")
    else:
        endpoints.check_endpoint_is_used(config.model)
        game, annotator = config.game, untrained(config)
    if not config.position:
        raise ValueError("say which position: --position, rows from the top with / between them")
    if game.startswith("maze_"):
        config_flags.leave_out("in a maze", "player")
        print(annotate_maze(annotator, game.removeprefix("maze_"), config.position))
    else:
        print(annotate_board(annotator, game, config.position, config.player))


def define_flags() -> None:
    config_flags.define(AnnotateConfig)


if __name__ == "__main__":
    define_flags()
    app.run(main)
