"""MS-GRPO on games that the host plays, in growing transcripts: the tasks, the players and the update of a run."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.algorithms import ms_grpo_transcripts as transcripts
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, TrainState, init_state
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm import acting, malloc
from nlrl_jax.lm.programs import PROGRAMS, compiler_options
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.dialogues import History, marked
from nlrl_jax.rollouts.transcripts import PlayedTranscript, TokenPlayer, Tokens, play
from nlrl_jax.run import players
from nlrl_jax.run.host_games.faults import FaultLog
from nlrl_jax.run.host_games.prompts import write_form
from nlrl_jax.run.host_games.shares import shared
from nlrl_jax.run.host_games.tasks import RESERVED, HeldOut, Task, hold_out, kinds_of, looks_of, tasks_of
from nlrl_jax.run.host_games.threads import rows_at_once
from nlrl_jax.run.limits import first_tasks, too_short
from nlrl_jax.run.ms_grpo.config import AgentConfig, TranscriptConfig
from nlrl_jax.run.ms_grpo.token_players import player_maker, settled
from nlrl_jax.run.ms_grpo.training import Training
from nlrl_jax.types import SEEDS_PER_RUN, HostGame, Sampling

_DRAWS = 200  # after which no start is taken to be left
_LIKE = 8  # tasks whose prompts show what those of all tasks begin with
_SHARED = 64  # tokens that all prompts begin with, from which on they are read once and not in each row


class Tasks(NamedTuple):
    """The tasks of a run.

    Attributes:
      game: that is trained on.
      held_out: tasks that are evaluated on, the first of those that `run_lac` plays with the same --seed, and how they
        begin.
      fresh: kind -> the seeds to train on, but for those that begin as a held-out one does.
    """

    game: HostGame
    held_out: HeldOut
    fresh: dict[str, range]

    @classmethod
    def of(cls, game: HostGame, evaluated: HostGame, missions: str, number: int, seed: int) -> Tasks:
        """The first `number` tasks of a seed, kinds in turn, are held out, and later ones trained on.

        Args:
          evaluated: the game to evaluate on. If it is another than `game`, none of its starts is one of that.

        Raises:
          ValueError: a kind that the game does not have; one that has no task to train on; too many held out.
        """
        kinds = kinds_of(game, missions)
        each, first = -(-number // len(kinds)), seed * SEEDS_PER_RUN
        if each > RESERVED:
            raise ValueError(f"--eval_episodes is {number}, but a seed has {RESERVED} tasks of each kind for it")
        if evaluated is game:
            held_out = hold_out(evaluated, kinds, number, seed)
        else:  # the game itself keeps them apart, so all of its starts may be met
            held_out = HeldOut(tasks_of(evaluated, kinds, each, seed)[:number], frozenset(), "")
        fresh = {
            kind: range(first + each, first + game.limits[kind])
            if kind in game.limits
            else range(first + RESERVED, first + SEEDS_PER_RUN)
            for kind in kinds
        }
        for kind, seeds in fresh.items():
            if not seeds:
                named = f" of {kind!r}" if kind else ""
                raise ValueError(
                    f"{game.name} has {game.limits[kind]} tasks{named}, and {each} of them are held out, which leaves "
                    "none to train on; lower --eval_episodes"
                )
        return cls(game, held_out, fresh)

    def draw(self, number: int, rng: np.random.Generator) -> list[Task]:
        """Tasks to train on: kinds in turn, from a random one on, a random seed of each.

        Raises:
          ValueError: all that were drawn begin as held-out ones do.
        """
        kinds = list(self.fresh)
        at = int(rng.integers(len(kinds)))

        def pick(kind: str) -> Task:
            return kind, int(rng.choice(self.fresh[kind]))

        tasks = [pick(kinds[(at + i) % len(kinds)]) for i in range(number)]
        if not self.held_out.looks:
            return tasks
        for _ in range(_DRAWS):
            held_out = [look in self.held_out.looks for look in looks_of(self.game, tasks)]
            if not any(held_out):
                return tasks
            tasks = [pick(task[0]) if is_held_out else task for task, is_held_out in zip(tasks, held_out, strict=True)]
        raise ValueError(
            f"{self.game.name}: {_DRAWS} tasks in a row begin as one of the {len(self.held_out.looks)} held-out ones, "
            "which leaves none to train on; lower --eval_episodes"
        )


class TranscriptTraining(Training):
    """The agent of a config that plays a game of the host, one transcript an episode.

    Args:
      form: how it plays in transcripts.
      name: of the game. game, evaluated: to train on, and to evaluate on.
    """

    def __init__(self, config: AgentConfig, form: TranscriptConfig, name: str, game: HostGame, evaluated: HostGame):
        learning = config.learning
        self.config, self.name, self.faults = config, name, FaultLog(name)
        self.game, self.evaluated, self.legend = game, evaluated, game.legend
        # What begins a run is done by each process; the episodes of an iteration are divided.
        self.tasks = Tasks.of(game, evaluated, form.missions, config.eval_episodes, config.seed)
        self.tasks = self.tasks._replace(game=shared(game))
        if self.tasks.held_out.note:
            print(self.tasks.held_out.note, flush=True)
        self.mesh = mesh = players.parse_mesh(config.mesh)
        loaded = players.load(config.model, config.dtype, config.lora, mesh, config.revision, config.templates)
        form = dataclasses.replace(form, turns=settled(form.turns, config.model, loaded.tokenizer))
        self.network, network = loaded.config, Transformer(loaded.config, mesh=mesh)
        self.form, self.room = form, self.network.max_positions
        # Episodes end at different times: all calls of an iteration take the programs of one batch.
        rows = rows_at_once()
        fewest_rows = min(rows, learning.num_groups * learning.group_size)
        self.writer = LocalModel(network, {}, loaded.tokenizer, rows, fewest_rows=fewest_rows)
        self.prompts = prompts = dataclasses.replace(form.prompts, prompt=config.prompt, turns=form.turns.turns)
        self.make_player = player_maker(game, form.turns, prompts, config.model, loaded.tokenizer, self.room)
        self.check_room()
        self.readers = self._readers(network)
        key = jax.random.fold_in(jax.random.key(config.seed), 0)
        self.state = init_state(network, loaded.params, learning, key)
        self.advised = False
        self.shows = "env_return" if game.score or not game.has_success else "success"
        self.score, self.columns = game.score, ("actions_read",) if form.turns.turns == "chat" else ()

    def too_short(self) -> list[str]:
        """See `Training.too_short`."""
        train = [(kind, seed) for kind, seeds in self.tasks.fresh.items() for seed in seeds[:4]]
        named = (("training", self.game, train, "max_turns", self.config.learning.max_turns),)
        named += (("the evaluation", self.evaluated, self.tasks.held_out.tasks, "eval_turns", self.config.eval_turns),)
        return [
            sentence
            for episodes, game, tasks, name, turns in named
            for sentence in too_short(episodes, game, first_tasks(game, tasks), name, turns)
        ]

    def _readers(self, network: Transformer) -> list[transcripts.Reader]:
        """Who may read the transcripts of an iteration: the first one whose beginning all prompts have."""
        player = self.player({})
        tasks = self.tasks.draw(_LIKE, np.random.default_rng(0))
        # `head` and not `prompt`: a task that does not fit the context costs its own episodes, not the run.
        prompts = [player.head(History(start.goal, start.observation)) for start in self.game.reset(tasks)]
        temperature = self.config.sampling.temperature
        return [transcripts.Reader(network, temperature, begin) for begin in beginnings_of(prompts, player.beginning())]

    def check_room(self) -> None:
        """Refuses a context, or a limit of an episode's tokens, that cannot hold a turn: the first, or one as in
        the game's own example.

        Raises:
          ValueError: says what takes how many tokens.
        """
        player = self.player({})
        player.check_limit(self.form.turns.episode_tokens)
        firsts = self.tasks.draw(len(self.tasks.fresh), np.random.default_rng(0))
        beginnings = [(start.goal, start.observation) for start in self.game.reset(firsts)]
        examples = self.game.examples("", 1) if self.game.examples else ()
        beginnings += [(example.goal, step.observation) for example in examples for step in example.steps]
        for goal, observation in beginnings:
            player.prompt(History(goal, observation), ())

    def note_form(self, folder: pathlib.Path) -> None:
        """See `Training.note_form`."""
        number = self.form.turns.turn_actions
        write_form(folder, self.prompts, self.config.model, **({"turn_actions": number} if number > 1 else {}))

    def player(self, variables: Any, judged: Sampling | None = None) -> TokenPlayer:
        """Who acts with these variables: in training, or as it is `judged`."""
        writer, learning = self.writer, self.config.learning
        fewest_rows, episodes = writer.fewest_rows, learning.num_groups * learning.group_size
        if judged:
            episodes = self.config.eval_episodes
            fewest_rows = min(writer.rows, episodes)
        session = Session.for_texts(self.network, max(episodes, writer.rows), self.form.cache_mb)
        writer = dataclasses.replace(writer, variables=variables, kv_session=session, fewest_rows=fewest_rows)
        return self.make_player(writer, judged or self.config.sampling)

    def advise(self, session: Session) -> None:
        """Says once that the memory for keys and values is too small."""
        if (advice := session.advice(self.network)) and not self.advised:
            self.advised = True
            print(f"warning: {advice}", file=sys.stderr, flush=True)

    def update(self, state: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, Any]]:
        """One iteration of Algorithm 1. The same state and key give the same bits."""
        learning, G = self.config.learning, self.config.learning.group_size
        seed, key_sample = _split(key)
        seed = int(seed)
        tasks = self.tasks.draw(learning.num_groups, np.random.default_rng(seed))
        player = self.player({"params": state.params, "lora": state.lora})
        repeated = [task for task in tasks for _ in range(G)]
        game, limit = limited(self.tasks.game, learning.max_turns), self.form.turns.episode_tokens
        played = play(player, game, repeated, seed, self.form.give_up, 0, limit)
        self.faults(episode.episode for episode in played)
        groups = [played[i * G : (i + 1) * G] for i in range(len(tasks))]
        whole = [episode for episode in played if not episode.episode.error]
        reader = next(reader for reader in self.readers if all(episode.begins(reader.begin) for episode in whole))
        lesson = transcripts.teach(groups, learning, key_sample, reader, self.room)
        lesson.metrics["row_use"] = player.model.kv_session.counts.row_use
        self.advise(player.model.kv_session)
        if not self.game.has_success:
            del lesson.metrics["success"]
        del player  # and with it the copies of a large model's weights that it wrote with
        if acting.is_large(self.network):
            malloc.release()  # their place is in pieces; what the update takes comes beside it
        if lesson.rows is None:  # nothing to learn from; `alarms` says so where that goes on
            still = dict.fromkeys(("loss", "kl", "clip_fraction", "grad_norm", "row_tokens", "rows_filled"), 0.0)
            return state.replace(iteration=state.iteration + 1), {**still, **lesson.metrics}
        state, metrics = _step(reader, learning)(state, lesson.rows)
        return state, {**metrics, **lesson.metrics}

    def judge(
        self,
        variables: dict[str, Any],
        num_shown: int,
        sampling: Sampling | None = None,
        on_turn: Callable[[int, int], None] | None = None,
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """See `Training.judge`; on the held-out tasks, greedily unless a sampling is given. `on_turn`: as in `play`."""
        player = self.player(variables, sampling or Sampling(self.config.sampling.max_tokens, temperature=0.0))
        game = limited(shared(self.evaluated), self.config.eval_turns)
        tasks, limit = self.tasks.held_out.tasks, self.form.turns.episode_tokens
        played = play(player, game, tasks, 0, pictured=num_shown, episode_tokens=limit, on_turn=on_turn)
        self.faults(episode.episode for episode in played)
        text = [
            as_record(episode, game, self.writer.tokenizer, self.form.turns.turns) for episode in played[:num_shown]
        ]
        return summarize(played, game, self.config.learning.invalid_action_reward), text


def beginnings_of(prompts: Sequence[Tokens], beginning: Tokens) -> list[Tokens]:
    """What an update may read once for all rows, from the longest on: the whole first prompt, where all episodes start
    alike, what does not depend on the task, or nothing.

    Args:
      prompts: the first ones of some tasks. beginning: what those of all tasks begin with.
    """
    alike = os.path.commonprefix(list(prompts))[: min(map(len, prompts)) - 1]  # a row reads a token at least
    # Two programs are compiled where only some iterations have the longer one, so it has to save enough.
    worth = [alike] if len(alike) >= len(beginning) + _SHARED else []
    return [*worth, *([beginning] if len(beginning) >= _SHARED else []), ()]


def limited(game: HostGame, steps: int) -> HostGame:
    """The game with episodes of at most so many steps."""
    return dataclasses.replace(game, max_steps=min(steps, game.max_steps))


@jax.jit
def _split(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The seed of an iteration's episodes, uint32 [], and the key of the AAW sampling."""
    key_play, key_sample = jax.random.split(key)
    return jax.random.bits(key_play), key_sample


@functools.lru_cache(3)
def _step(reader: transcripts.Reader, config: MSGRPOConfig):
    update = transcripts.make_update(reader, config)
    return PROGRAMS.own(jax.jit(update, donate_argnums=0, compiler_options=compiler_options(reader.model)))


def summarize(played: Sequence[PlayedTranscript], game: HostGame, invalid_action_reward: float) -> dict[str, float]:
    """Means over episodes, named as in `players.summarize`."""
    episodes, turns = [episode.episode for episode in played], [turn for episode in played for turn in episode.turns]
    returns = np.array([episode.reward for episode in episodes])
    penalties = np.array([sum(turn.invalid for turn in episode.turns) for episode in played]) * invalid_action_reward
    success = {"success": float(np.mean([episode.success for episode in episodes]))} if game.has_success else {}
    # Of several games, and of several kinds of tasks, what each earns.
    kinds = [kind for kind in game.kinds if any(episode.task[0] == kind for episode in episodes)]
    by_kind = {
        f"env_return/{kind}": float(np.mean([episode.reward for episode in episodes if episode.task[0] == kind]))
        for kind in kinds
    }
    return {
        "episodes": len(played),
        "env_return": float(returns.mean()),
        "env_return_std": float(returns.std()),
        "env_reward": float((returns + penalties).mean()),
        "turns": len(turns) / len(played),
        "invalid_actions": float(np.mean([turn.invalid for turn in turns])),
        "format_penalty": float(np.mean([transcripts.format_penalty(turn) for turn in turns])),
        "actions_read": float(np.mean([not turn.unread for turn in turns])),
        "broke_off": float(np.mean([bool(episode.error) for episode in episodes])),
        **success,
        **(by_kind if len(game.kinds) > 1 else {}),
    }


def as_record(played: PlayedTranscript, game: HostGame, tokenizer: Tokenizer, form: str) -> dict[str, Any]:
    """An episode of a game with its limit, in the form of `transcript.transcripts`: the first prompt is whole, of the
    others what is new in them. form: "chat" or "lines"."""
    episode = played.episode
    boards = list(episode.boards) or [turn.observation for turn in played.turns]
    final = episode.boards[-1] if episode.boards else episode.history.steps[-1].observation
    turns = []
    for t, turn in enumerate(played.turns):
        prompt = tokenizer.decode(list(turn.replies[0].prompt), skip_special_tokens=False)
        texts = [tokenizer.decode(list(reply.written.tokens), continues=form == "lines") for reply in turn.replies]
        line = f"Observation: {marked(turn.observation)}"
        turns.append(
            {
                "board": boards[t],
                "prompt": prompt if not t else turn.observation if form == "chat" else line,
                "reply": "\n".join(text.strip("\n") for text in texts),
                "actions": [] if turn.invalid else [turn.action],
                "steps": int(not turn.invalid),
                "invalid": int(turn.invalid),
                "format_penalty": transcripts.format_penalty(turn),
                "reward": turn.reward,
                "cut": transcripts.cut_replies(turn) > 0,
            }
        )
    success = episode.success if game.has_success else None
    ended = {"success": success, "terminated": not episode.error and len(turns) < game.max_steps}
    return {**ended, "env_return": episode.reward, "final_board": final, "turns": turns}
