"""Plays a model from fixed initial states, on any variant of a game: greedily, or as it samples (--temperature).

    nlrl-jax evaluate --run_dir runs/demo --game frozen_lake_slippery --episodes 500
    nlrl-jax evaluate --model smollm2 --game snake --episodes 8 --max_tokens 100
    nlrl-jax evaluate --model smollm2 --game my_module:host_game --episodes 8 --max_tokens 20
    nlrl-jax evaluate --run_dir runs/demo --watch --seed 3            # one episode in the terminal
    nlrl-jax evaluate --model smollm2 --temperature 1.0 --top_k 3     # what training would start from

With --run_dir, the model, prompt form and latest checkpoint are the run's, and so are maps, episodes, their limits,
their initial states and the fine for invalid actions unless options say otherwise: the numbers are those of the run's
own evaluation. Otherwise give --model and, if there is one, --adapter; games of the host, your own too, are then played
in transcripts (--context). The same --seed always gives the same initial states.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
from absl import flags

from nlrl_jax import envs
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.config import MOST_SEED, of_stored, part, pick, replace
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.rollouts.transcripts import play
from nlrl_jax.run import app, limits
from nlrl_jax.run import flags as config_flags
from nlrl_jax.run.directory import read_run
from nlrl_jax.run.host_games.environments import IN_WORKERS, EnvironmentsConfig
from nlrl_jax.run.host_games.faults import FaultLog
from nlrl_jax.run.host_games.opponents import HELP as OPPONENT_HELP
from nlrl_jax.run.host_games.opponents import opponent_option
from nlrl_jax.run.host_games.prompts import PromptConfig, learned_form
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.host_games.threads import rows_at_once
from nlrl_jax.run.ms_grpo.config import IN_TURNS, AgentConfig, TranscriptConfig, TurnsConfig, map_splits
from nlrl_jax.run.ms_grpo.token_players import player_maker, settled, turn_actions_of
from nlrl_jax.run.ms_grpo.training import EVAL_SEED
from nlrl_jax.run.ms_grpo.transcripts import TranscriptTraining, as_record, limited
from nlrl_jax.run.ms_grpo.transcripts import summarize as summarize_transcripts
from nlrl_jax.run.players import (
    MODELS,
    NANO_TOKENS,
    check_reader,
    evaluator,
    load,
    load_trained,
    make_policy,
    prompt_for,
    summarize,
)
from nlrl_jax.run.progress import waiting
from nlrl_jax.run.transcript import print_transcript, transcripts
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling, TextGame
from nlrl_jax.weights import peft
from nlrl_jax.weights.checkpoint import Checkpoints
from nlrl_jax.weights.load import BUILT_IN, LoadedModel

CACHE_MB = 4000.0  # memory for keys and values of episodes in transcripts; nothing learns beside them


class Limits(NamedTuple):
    """Episodes and their limits; `seed` decides their initial states, `fine` is for each invalid action."""

    episodes: int = 50
    max_turns: int = 20
    max_steps: int = 20
    seed: int = 0
    fine: float = -0.5

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Limits:
        """Those of the command line, else the run's own."""
        chosen = cls()
        if "eval_turns" in run:
            # until there was --eval_steps, --eval_turns limited steps, too
            steps, fine = run.get("eval_steps", run["eval_turns"]), run["invalid_action_reward"]
            chosen = cls(run["eval_episodes"], run["eval_turns"], steps, EVAL_SEED, fine)
        present = [name for name in cls._fields if name in flags.FLAGS and flags.FLAGS[name].present]
        chosen = chosen._replace(**{name: flags.FLAGS[name].value for name in present})
        return chosen._replace(episodes=1) if flags.FLAGS.watch else chosen


@dataclass(frozen=True)
class Writing:
    """How replies are sampled; their length is an option of its own."""

    sampling: Sampling = part(Sampling(temperature=0.0), without=("max_tokens",))


def sampling_of(max_tokens: int) -> Sampling:
    """That of the command line. ValueError: an option that does nothing in greedy play."""
    sampling = config_flags.parse(Writing).sampling
    if not sampling.temperature:
        config_flags.leave_out("in greedy play (--temperature 0)", "top_k", "top_p")
    return replace(sampling, max_tokens=max_tokens)


def words_of(sampling: Sampling) -> str:
    """The sampling in the title of what was measured."""
    if not sampling.temperature:
        return "greedy"
    cut = [f"top-k {sampling.top_k}"] * bool(sampling.top_k) + [f"top-p {sampling.top_p:g}"] * (sampling.top_p < 1)
    return ", ".join([f"temperature {sampling.temperature:g}", *cut])


class GamePlayer(NamedTuple):
    """A policy with its parameters and the game it plays."""

    name: str
    maps: str
    game: TextGame
    policy: LanguageAgentPolicy
    variables: Any


def player() -> GamePlayer:
    """The player that the flags name.

    Raises:
      FileNotFoundError, ValueError: there is no such run or model, or no such game.
    """
    options = flags.FLAGS
    templates = config_flags.parse(TemplateOptions)
    config_flags.leave_out("in a game that is not played in transcripts", *IN_TURNS, "opponent", *IN_WORKERS)
    if options.run_dir:
        reason = "with --run_dir, whose run has its own"
        config_flags.leave_out(reason, "model", "revision", "adapter", "prompt", "template", "date", "context")
        return _trained_player(pathlib.Path(options.run_dir))
    prompt = prompt_for(options.model, options.prompt)
    game, maps = _game(options.game or "frozen_lake", prompt, options.maps or "all")
    loaded, variables, sampling = named_model(templates)
    return GamePlayer(options.model, maps, game, make_policy(game, loaded, sampling, prompt), variables)


def named_model(templates: TemplateOptions) -> tuple[LoadedModel, dict[str, Any], Sampling]:
    """The model of --model with --adapter, what it plays with, and how it writes."""
    options = flags.FLAGS
    loaded = load(options.model, revision=options.revision, templates=templates)
    config, variables = loaded.config, {"params": loaded.params}
    if options.adapter:
        config, variables["lora"] = peft.load(options.adapter, config)
    tokens = options.max_tokens or (NANO_TOKENS if options.model in BUILT_IN else 200)
    return loaded._replace(config=config), variables, sampling_of(tokens)


def on_the_host(name: str) -> tuple[str, dict[str, float], list[dict[str, Any]]]:
    """(who played what, metrics, an episode to watch) of a model in transcripts of a game that the host plays.

    Raises:
      FileNotFoundError, ValueError: there is no such model, game or task; the model's context is too short.
    """
    options, limit = flags.FLAGS, Limits.of({})
    config_flags.leave_out("in a game that is played in transcripts, where a turn is one step", "max_steps", "maps")
    turns, source = config_flags.parse(TurnsConfig), options.adapter if learned_form(options.adapter) else options.model
    game_options = opponent_option(options.opponent, name) | _environments()
    game = envs.make_host(name, turn_actions=turn_actions_of(turns, source), **game_options)
    limits.check_horizon(game, "max_turns")
    tasks = tasks_of(game, game.kinds, -(-limit.episodes // len(game.kinds)), limit.seed)[: limit.episodes]
    warning = check_reader(options.model, name, envs.READ_BY.get(name, ""), options["model"].present)
    short = limits.too_short("the evaluation", game, limits.first_tasks(game, tasks), "max_turns", limit.max_turns)
    warn([*filter(None, [warning]), *short])
    loaded, variables, sampling = named_model(config_flags.parse(TemplateOptions))
    # As a training run plays its evaluations: what was read stays, and all calls take the programs of one batch.
    rows = rows_at_once()
    session = Session.for_texts(loaded.config, max(len(tasks), rows), CACHE_MB)
    network, fewest_rows = Transformer(loaded.config), min(rows, len(tasks))
    writer = LocalModel(network, variables, loaded.tokenizer, rows, kv_session=session, fewest_rows=fewest_rows)
    turns = settled(turns, source, loaded.tokenizer)
    prompts, room = PromptConfig(prompt=options.prompt), loaded.config.max_positions
    make_player = player_maker(game, turns, prompts, source, loaded.tokenizer, room)
    player, num_shown = make_player(writer, sampling), int(options.watch)
    game = limited(game, limit.max_turns)
    with waiting(f"playing {len(tasks)} episodes") as say:
        limit_tokens, on_turn = turns.episode_tokens, by_turn(say)
        played = play(player, game, tasks, 0, pictured=num_shown, episode_tokens=limit_tokens, on_turn=on_turn)
    FaultLog(name)(episode.episode for episode in played)
    if all(episode.episode.error for episode in played):
        raise ValueError(f"all {len(played)} episodes of {name} broke off; warnings above name the faults")
    text = [as_record(episode, game, loaded.tokenizer, turns.turns) for episode in played[:num_shown]]
    form = "chat" if turns.turns == "chat" else "transcripts"
    title = f"{options.model} on {game.name} in {form}, {words_of(sampling)}, seed {limit.seed}"
    return title, summarize_transcripts(played, game, limit.fine), text


def by_turn(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Says how far lockstep play is."""
    return lambda t, running: say(f"turn {t + 1}, {running} still run")


def _environments() -> dict[str, Any]:
    """The options of `EnvironmentsConfig` on the command line."""
    return asdict(config_flags.parse(EnvironmentsConfig))


def _game(name: str, prompt: str, maps: str) -> tuple[TextGame, str]:
    """The game and what to say of its maps, for games that have some."""
    if name in envs.WITH_MAPS:
        return envs.make(name, prompt, maps=maps), f" ({maps} maps)"
    if flags.FLAGS.maps:
        raise ValueError(f"--maps does nothing for {name}, only for {', '.join(envs.WITH_MAPS)}; leave it out")
    return envs.make(name, prompt), ""


def _trained_player(run_dir: pathlib.Path) -> GamePlayer:
    options = flags.FLAGS
    loaded, lora, step, run = load_trained(run_dir)
    prompt = prompt_for(run["model"], run["prompt"])
    evaluated = {"all": "all"}.get(run.get("maps", ""), "held_out")  # as the run itself evaluates
    game, maps = _game(options.game or run["game"], prompt, options.maps or evaluated)
    sampling = sampling_of(options.max_tokens or run["max_tokens"])
    policy = make_policy(game, loaded, sampling, prompt)
    return GamePlayer(f"{run_dir} at iteration {step}", maps, game, policy, {"params": loaded.params, "lora": lora})


def in_transcripts(run_dir: str, run: dict[str, Any]) -> tuple[str, dict[str, float], list[dict[str, Any]]]:
    """(who played what, metrics, an episode to watch) of a run that was trained in transcripts.

    Raises:
      FileNotFoundError, ValueError: there is no checkpoint; the run was trained on tasks that are asked for.
    """
    options = flags.FLAGS
    reason = "for a run that was trained in transcripts, which plays its own game"
    own_options = ("model", "revision", "adapter", "prompt", "template", "date", "game", "maps", "context", *IN_TURNS)
    config_flags.leave_out(reason, *own_options)
    config_flags.leave_out("for a run that was trained in transcripts, where a turn is one step", "max_steps")
    agent = pick(AgentConfig, {name: value for name, value in run.items() if name != "mesh"})
    form = pick(TranscriptConfig, of_stored(TranscriptConfig, run))
    limit, seed = Limits.of(run), options.seed if options["seed"].present else agent.seed
    number, tokens = limit.episodes, options.max_tokens or agent.sampling.max_tokens
    sampling = sampling_of(tokens)
    config = replace(agent, eval_episodes=number, eval_turns=limit.max_turns, seed=seed, max_tokens=tokens)
    maps = map_splits(run.get("maps", ""))
    game_options = opponent_option(options.opponent or form.opponent, run["game"]) | _environments()
    game_options["turn_actions"] = form.turns.turn_actions
    game, evaluated = envs.make_host_pair(run["game"], maps, data=form.data, **game_options)
    limits.check_horizon(game, "max_turns")
    is_own_seed = seed == agent.seed
    if is_own_seed and number > agent.eval_episodes:
        raise ValueError(
            f"--episodes is {number}, but the run has held out {agent.eval_episodes} tasks and trained on the others; "
            "give another --seed"
        )
    if not is_own_seed and game.limits:
        raise ValueError(
            f"--seed is {seed}, but {game.name} has so few tasks that the run, of seed {agent.seed}, "
            "may have trained on any but those that it has held out; leave --seed out"
        )
    training = TranscriptTraining(config, form, run["game"], game, evaluated)
    first = limits.first_tasks(evaluated, training.tasks.held_out.tasks)
    warn(limits.too_short("the evaluation", evaluated, first, "max_turns", config.eval_turns))
    step, lora = Checkpoints(pathlib.Path(os.path.expanduser(run_dir)).absolute() / "checkpoints").restore_part(
        "lora", training.state.lora
    )
    with waiting(f"playing {number} episodes") as say:
        variables = {"params": training.state.params, "lora": lora}
        summary, text = training.judge(variables, int(options.watch), sampling, by_turn(say))
    other_tasks = f"tasks of another seed, {'not' if evaluated is game else 'of maps that were'} held out"
    tasks = "its held-out tasks" if is_own_seed else other_tasks
    return f"{run_dir} at iteration {step} on {run['game']} ({tasks}), {words_of(sampling)}, seed {seed}", summary, text


def warn(sentences: Sequence[str]) -> None:
    """Prints warnings beside the numbers."""
    print("".join(f"warning: {sentence}\n" for sentence in sentences), end="", file=sys.stderr, flush=True)


def main(argv: list[str]) -> None:
    del argv
    options = flags.FLAGS
    if options.watch:
        config_flags.leave_out("with --watch, which shows one episode", "episodes", "json")
    run = read_run(options.run_dir) if options.run_dir else {}
    if run.get("context") == "transcript":
        title, summary, text = in_transcripts(options.run_dir, run)
        game = run["game"]
    elif not options.run_dir and options.game and envs.context_of(options.game, options.context) == "transcript":
        title, summary, text = on_the_host(options.game)
        game = options.game
    else:
        trained_player, (num, turns, steps, seed, fine) = player(), Limits.of(run)
        limits.check_horizon(trained_player.game, "max_steps")
        states = limits.first_states(trained_player.game, seed, num)
        warn(limits.too_short("the evaluation", trained_player.game, states, "max_turns", turns, steps))
        evaluate = evaluator(trained_player.policy, trained_player.game, num, turns, steps, seed)
        with waiting(f"compiling, then playing {num} episodes"):
            episodes = jax.device_get(evaluate(trained_player.variables))
        text = transcripts(trained_player.policy, trained_player.game, episodes, [0]) if options.watch else []
        summary, game = summarize(episodes, trained_player.game, fine), trained_player.game.name
        replies = words_of(trained_player.policy.sampling)
        title = f"{trained_player.name} on {game}{trained_player.maps}, {replies}, seed {seed}"
    if options.watch:
        print_transcript(text[0])
    elif options.json:
        print(json.dumps({"game": game, **summary}))
    else:
        print(f"{title}:", *(f"  {name:16} {value:.4g}" for name, value in summary.items()), sep="\n")


def define_flags() -> None:
    flags.DEFINE_string("run_dir", "", "a training run; its model with its latest checkpoint plays")
    flags.DEFINE_string("model", "nano", f"without --run_dir: {MODELS}")
    flags.DEFINE_string("revision", "", "branch, tag or commit of a Hub id")
    config_flags.define(TemplateOptions())
    flags.DEFINE_string("adapter", "", "without --run_dir: folder of a LoRA adapter in PEFT's format")
    flags.DEFINE_string(
        "game", "", "game to play, or my_module:text_game or host_game; by default the run's own, or frozen_lake"
    )
    flags.DEFINE_enum(
        "context",
        "auto",
        ["auto", "state", "transcript"],
        "without --run_dir: what the model reads, the current state or the transcript of the episode; auto: transcript "
        f"in {', '.join(envs.IN_TRANSCRIPTS)} and your own host_game",
    )
    config_flags.define(TurnsConfig())
    flags.DEFINE_string("opponent", "", OPPONENT_HELP)
    config_flags.define(EnvironmentsConfig())
    flags.DEFINE_enum(
        "maps",
        "",
        ["", "all", "train", "held_out"],
        "FrozenLake's maps; empty: those that the run evaluates on, or all without a run",
    )
    flags.DEFINE_enum(
        "prompt", "auto", ["auto", "paper", "compact"], "paper, compact, or auto: compact for nano, else paper"
    )
    flags.DEFINE_integer(
        "max_tokens", 0, f"maximum tokens per reply; 0: the run's own, {NANO_TOKENS} for nano, or 200", 0
    )
    config_flags.define(Writing)
    as_the_run = "with --run_dir and without this option, as the run evaluates itself"
    flags.DEFINE_integer("max_turns", Limits().max_turns, f"maximum replies per episode; {as_the_run}", lower_bound=1)
    flags.DEFINE_integer("max_steps", Limits().max_steps, f"maximum steps per episode; {as_the_run}", lower_bound=1)
    flags.DEFINE_integer("episodes", Limits().episodes, f"episodes; {as_the_run}", lower_bound=1)
    flags.DEFINE_integer("seed", Limits().seed, f"decides the initial states; {as_the_run}", 0, MOST_SEED)
    flags.DEFINE_boolean("watch", False, "show one episode in the terminal: the board, the reply, what it did")
    flags.DEFINE_boolean("json", False, "print one line of JSON")


if __name__ == "__main__":
    define_flags()
    app.run(main)
