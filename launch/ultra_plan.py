"""What a run of `reproduce_ultra` would ask of the analyst and of the machine, without training or asking anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nlrl_jax.algorithms.analyst import AnalysisConfig
from nlrl_jax.algorithms.refiners import methods as ultra_methods
from nlrl_jax.roles.trajectories import Episode, Verdict
from nlrl_jax.rollouts import control

if TYPE_CHECKING:
    from launch.reproduce_ultra import Run

CHARACTERS = 4  # a token, about
SHOWN = 16  # episodes whose prompts are written out and measured


class Asked(NamedTuple):
    """Of one role: calls, tokens read (about) and tokens written (at most)."""

    role: str
    calls: int
    read: int
    written: int


def asked_of(run: Run, episodes: list[Episode], share: float) -> list[Asked]:
    """What the analysis of `config.episodes` episodes like these asks, if `share` of the timeslots are critical.

    Every critical timeslot gets two rewards, of the action taken and of one suggested in its place.
    """
    roles, samplings = run.setting.roles, AnalysisConfig()
    chats: dict[str, list] = {"identify": [], "analyse": [], "reward": []}
    for episode in episodes:
        steps = [t for t in range(len(episode)) if int((t + 1) * share) > int(t * share)]
        verdicts = [Verdict(t, True, None, "the ball decides here, and the action loses it") for t in steps]
        analysis = "x" * samplings.analysis.max_tokens * CHARACTERS
        starts = range(0, len(episode), roles.chunk)
        chats["identify"] += [roles.identify(episode, t, min(t + roles.chunk, len(episode))) for t in starts]
        chats["analyse"].append(roles.analyse(episode, verdicts))
        chats["reward"] += [roles.reward(episode, t, episode.action(t), analysis) for t in steps for _ in range(2)]
    longest = {"identify": samplings.verdicts, "analyse": samplings.analysis, "reward": samplings.reward}
    times = run.config.episodes / len(episodes)
    found = []
    for role, known in chats.items():
        characters = sum(len(message["content"]) for chat in known for message in chat.messages)
        calls = round(len(known) * times)
        read = round(characters / CHARACTERS * times)
        found.append(Asked(role, calls, read, calls * longest[role].max_tokens))
    return found


def plan(run: Run, share: float) -> str:
    """The plan in words: calls and tokens by role, and environment steps by part.

    Args:
      share: of the timeslots that are taken for critical.
    """
    config = run.config
    base = run.fresh_agent()
    record = control.record(
        run.setting.game.env, run.setting.game.params, run.agent, base.params, base.obs_moments, run.key(2), SHOWN,
        config.episode_steps,
    )  # fmt: skip
    asked = asked_of(run, control.episodes_of(record), share)
    if "MASK-R" in run.methods:  # its analyses and rewards are of the mask's timeslots
        again = asked_of(run, control.episodes_of(record), config.mask_share)[1:]
        asked += [entry._replace(role=f"{entry.role} (MASK-R)") for entry in again]
    lines = [f"{'role':18}{'calls':>10}{'tokens read, about':>22}{'written, at most':>20}"]
    lines += [f"{role:18}{calls:>10,}{read:>22,}{written:>20,}" for role, calls, read, written in asked]
    total = sum(entry.read + entry.written for entry in asked)
    lines += [
        f"{total / 1e6:.1f}e6 tokens at most, if {share:.0%} of the timeslots are critical. The lengths are of an "
        "untrained agent's",
        f"episodes ({record.steps.mean():.0f} steps on average); a better agent's may be longer, up to "
        f"{config.episode_steps}.",
    ]
    update = run.ppo.num_envs * run.ppo.num_steps
    masked = bool(set(run.methods) & set(ultra_methods.MASKED))
    parts = {
        "base agent": 0 if config.base else config.base_iterations * update,
        "mask network": config.mask_iterations * update if masked else 0,
        f"{len(run.methods)} methods x {config.seeds} seeds": (
            len(run.methods) * config.seeds * config.iterations * update
        ),
    }
    lines += [f"{part}: {steps:,} environment steps" for part, steps in parts.items() if steps]
    return "\n".join(lines)
