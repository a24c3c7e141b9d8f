"""Two processes of four devices each train as one of eight does, by every trainer; a killed one ends the other."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file

from nlrl_jax.run import processes
from nlrl_jax.weights.checkpoint import Checkpoints

TINY = (
    "--model=nano", "--preset=demo", "--group_size=8", "--group_sample=4", "--num_groups=2", "--max_turns=4",
    "--max_steps=8", "--micro_batch=8", "--eval_episodes=8", "--eval_turns=2", "--eval_every=0", "--checkpoint_every=1",
    "--mesh=2,2,2",
)  # fmt: skip


# Every other trainer, as small as it goes.
OTHERS = {
    "train_ms_grpo": (  # in transcripts
        "--model=nano_babyai", "--preset=babyai", "--missions=go to", "--iterations=2", "--group_size=4",
        "--num_groups=2", "--max_turns=4", "--eval_episodes=4", "--eval_turns=2", "--eval_every=0",
    ),
    "warm_start": ("--model=nano", "--batch=8", "--micro_batch=4", "--iterations=3", "--lora_rank=4"),
    "finetune_lac": (
        "--model=nano_babyai", "--rows=episodes", "--iterations=3", "--successes=2", "--failures=1", "--batch=4",
        "--eval_every=3",
    ),
    "train_language_td": (
        "--iterations=1", "--states=32", "--test_states=16", "--simulations=8", "--judge_games=4", "--remat",
        "--micro_batch=2",
    ),
    "train_language_ppo": ("--iterations=1", "--games=32", "--eval_games=32"),
    "train_language_actor_critic": ("--opponent=random", "--iterations=1", "--games=16", "--eval_games=16", "--noppo"),
}  # fmt: skip


# Programs run a few times only here: compiling them faster is worth more than their speed.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def start(run_dir, devices, *more, script="train_ms_grpo", options=TINY):
    flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}"
    if "--process_id" not in str(more):  # nobody is lost: patience on a busy machine
        flags += " --xla_cpu_collective_call_terminate_timeout_seconds=300"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "XLA_FLAGS": flags}
    command = [sys.executable, "-m", f"nlrl_jax.launch.{script}", *options, f"--run_dir={run_dir}", *more]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start_two(run_dir, *more, second=(), **what):
    """Args:
    second: options of the second process alone.
    """
    both = f"--coordinator_address={free_address()}", "--num_processes=2", *more
    return [start(run_dir, 4, *both, f"--process_id={i}", *(second if i else ()), **what) for i in range(2)]


def run_two(code, devices, *args):
    """What two processes of a program write to standard error. It gets the address and its number as arguments."""
    env, address = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}, free_address()
    command = lambda i: [sys.executable, "-c", code, address, str(i), *args]
    running = [subprocess.Popen(command(i), env=env, stderr=subprocess.PIPE, text=True) for i in range(2)]
    return [one.communicate(timeout=120)[1] for one in running]


def finish(running):
    texts = [one.communicate(timeout=600)[0] for one in running]
    assert not any(one.returncode for one in running), "\n".join(texts)
    return texts


def adapter(run_dir):
    return load_file(run_dir / "adapter" / "adapter_model.safetensors")


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two iterations in one process."""
    run_dir = tmp_path_factory.mktemp("processes") / "alone"
    finish([start(run_dir, 8, "--iterations=2")])
    return run_dir


def assert_same(run_dir, alone, tolerance=1e-6):
    one, other = adapter(alone), adapter(run_dir)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=tolerance, err_msg=name)
    assert [row["return"] for row in metrics(run_dir)] == [row["return"] for row in metrics(alone)]  # the same episodes


@pytest.mark.promises
def test_two_processes_equal_one(tmp_path, alone):
    texts = finish(start_two(tmp_path / "two", "--iterations=2"))
    assert_same(tmp_path / "two", alone)
    assert "report:" in texts[0] and "report:" not in texts[1]  # one speaks


LONG = "finetune_lac"  # more than two minutes of CPU time


@pytest.mark.parametrize("script", [pytest.param(x, marks=pytest.mark.slow) if x == LONG else x for x in OTHERS])
@pytest.mark.promises
def test_every_trainer_learns_over_two_processes_what_it_learns_in_one(tmp_path, script):
    what = {"script": script, "options": (*OTHERS[script], "--mesh=2,2,2")}
    finish([start(tmp_path / "one", 8, **what)])
    texts = finish(start_two(tmp_path / "two", **what))
    assert texts[0].count("Gloo") < len(texts[0].splitlines()) and "[1/" not in texts[1]  # one speaks
    folders = [next((tmp_path / name).rglob("metrics.jsonl")).parent for name in ("one", "two")]
    one, two = map(metrics, folders)
    assert len(one) == len(two) >= 1
    for row, other in zip(one, two, strict=True):
        assert other == pytest.approx(row, rel=1e-3, abs=1e-4)
    left = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json*")) for folder in folders]
    assert left[0] == left[1]  # each process has written only once, and nothing is missing


ROOMS = """
import os, pathlib, random
class Rooms:
    'Write.'
    max_steps = 4
    def reset(self, seed):
        self.random, self.steps = random.Random(seed), 0
        with open(pathlib.Path(__file__).parent / f"{os.environ['JAX_NUM_CPU_DEVICES']}_{os.getpid()}", "a") as log:
            log.write(f"{seed}\\n")
        return f"task {seed % 5}", {}
    def step(self, action):
        self.steps += 1
        done = self.random.random() < 0.2
        return f"seen {self.random.random()}", action.count("e") + self.random.random(), done, False, {}
"""
SHARED = (
    "--game=rooms:Rooms", "--model=nano_babyai", "--prompt=compact", "--group_size=4", "--num_groups=4",
    "--sampling_temperature=0", "--temperature=1", "--top_k=0", "--max_tokens=6", "--max_turns=4", "--eval_turns=3",
    "--eval_episodes=8", "--lora_rank=2", "--checkpoint_every=1", "--mesh=2,2,2",
)  # fmt: skip


@pytest.mark.promises
def test_each_process_plays_its_own_groups_and_all_learn_from_all(tmp_path, monkeypatch):
    (tmp_path / "rooms.py").write_text(ROOMS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    finish([start(tmp_path / "one", 8, "--iterations=2", options=SHARED)])
    finish(start_two(tmp_path / "two", "--iterations=1", options=SHARED))
    finish(start_two(tmp_path / "two", "--iterations=2", "--resume", options=()))
    rows, shared = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(rows) == len(shared) == 2
    played = ("return", "env_return", "invalid_actions", "reply_tokens", "turns", "distinct_replies", "return_spread")
    for row, other in zip(rows, shared, strict=True):
        assert {name: other[name] for name in played} == {name: row[name] for name in played}
        assert other["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-5) and row["grad_norm"] > 0
    assert_same(tmp_path / "two", tmp_path / "one")
    assert episodes_of(tmp_path / "two") == episodes_of(tmp_path / "one")
    # Tasks of training have seeds from 5,000 on, and four episodes each; what begins a run looks at others.
    alone, *others = [
        {int(seed) for seed, number in Counter(path.read_text().split()).items() if int(seed) >= 5000 and number >= 4}
        for devices in (8, 4)
        for path in sorted(tmp_path.glob(f"{devices}_*"))
    ]
    assert len(alone) == 8  # 4 groups in each of 2 iterations
    assert [len(seeds) for seeds in others] == [2] * 4 and set.union(*others) == alone  # two processes, started twice


def episodes_of(run_dir):
    return json.loads((run_dir / "results.json").read_text())["transcripts"]


ASKING = """
import sys
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.run import processes
from nlrl_jax.backends.wrappers import first_process_asks
from nlrl_jax.types import Chat, LanguageModelError, Sampling

me = int(sys.argv[2])
processes.start(sys.argv[1], 2, me)
asked = []
def script(context, rng):
    asked.append(me)
    if len(asked) == 3:
        raise LanguageModelError("the budget is spent")
    return "from process %d" % me
model = first_process_asks(ScriptedModel({"role": script}))
chats = [Chat.of("a"), Chat.of("b")]
found = [reply.text for reply in model.complete(chats, Sampling(), "role")]
try:
    model.complete(chats, Sampling(), "role")
except LanguageModelError as error:
    found.append(str(error))
print([found, asked], file=sys.stderr)
"""


@pytest.mark.promises
def test_a_reply_is_asked_for_once_and_all_processes_have_it():
    texts = run_two(ASKING, 1)
    said = "['from process 0', 'from process 0', 'the budget is spent']"
    assert f"[{said}, [0, 0, 0]]" in texts[0] and f"[{said}, []]" in texts[1], texts


SAVING = """
import pathlib, sys, time, warnings
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from nlrl_jax.run import processes
from nlrl_jax.weights.checkpoint import Checkpoints

address, me, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
processes.start(address, 2, me)
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sharded = lambda x: jax.make_array_from_callback(x.shape, NamedSharding(mesh, PartitionSpec("data")), lambda i: x[i])
tree = lambda step: {"x": sharded(np.arange(64, dtype=np.float32).reshape(8, 8) + step), "step": np.int32(step)}
checkpoints = Checkpoints(folder)
for step in (1, 2, 3):
    checkpoints.save(step, tree(step))
checkpoints.close()
processes.wait()
if me == 0:  # half of the last one's bytes, which only one process reads
    for path in (folder / "3" / "tree").rglob("d/*"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
processes.wait()
checkpoints = Checkpoints(folder)
with warnings.catch_warnings(record=True) as warned:
    step, found, _ = checkpoints.restore(tree(0))
refused = [warning for warning in warned if "is refused" in str(warning.message)]  # libraries warn, too, now and then
same = all((np.asarray(s.data) == np.arange(64).reshape(8, 8)[s.index] + step).all()
           for s in found["x"].addressable_shards)
if me == 1:  # a slower disk
    now = Checkpoints.steps
    Checkpoints.steps = lambda self: (time.sleep(0.3), now(self))[1]
checkpoints.save(3, tree(7))
checkpoints.save(4, tree(4))
checkpoints.close()
processes.wait()
again = checkpoints.restore(tree(0), step=3)[1]
print([step, same, len(refused), now(checkpoints) if me else checkpoints.steps(),
       float(again["x"].addressable_shards[0].data[0, 0]) >= 7], file=sys.stderr)
"""


@pytest.mark.promises
def test_a_refused_checkpoint_is_saved_over_by_all(tmp_path):
    texts = run_two(SAVING, 2, str(tmp_path / "saved"))
    assert all("[2, True, 1, [2, 3, 4], True]" in text for text in texts), texts
    leaf = {"x": np.zeros((8, 8), np.float32), "step": np.int32(0)}
    assert (Checkpoints(tmp_path / "saved").restore(leaf)[1]["x"][0] == np.arange(8) + 4).all()  # in one process
    index = next(p for p in (tmp_path / "saved" / "4" / "index").iterdir() if b"leaves" in p.read_bytes())
    stored = json.loads(index.read_text())
    stored["leaves"]["x"]["sum"] ^= 1
    index.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="bytes of leaf x are not those"):
        Checkpoints(tmp_path / "saved").restore(leaf, step=4)


ALIKE = "error: the processes of a run must be started alike, but --seed is not given in process 0 and 8 in process 1"


@pytest.mark.promises
@pytest.mark.parametrize(
    "what, says",
    [
        ({}, ("is not empty and holds no run", "the first process cannot use --run_dir")),
        ({"second": ("--seed=8",)}, (ALIKE, ALIKE)),
        ({"options": tuple(x for x in TINY if "mesh" not in x)}, ("say how, as in --mesh 1,8,1",) * 2),
    ],
    ids=["folder", "commands", "mesh"],
)
def test_what_cannot_be_meant_ends_both_before_anything_is_written(tmp_path, what, says):
    (tmp_path / "mine.txt").write_text("not a run")
    running = start_two(tmp_path if not what else tmp_path / "run", **what)
    texts = [one.communicate(timeout=300)[0] for one in running]
    assert [one.returncode for one in running] == [1, 1], texts
    assert all(words in text for words, text in zip(says, texts)), texts
    assert not (tmp_path / "run").exists()


def wait_for(path, running):
    while not path.exists():
        assert all(process.poll() is None for process in running), [process.communicate()[0] for process in running]
        time.sleep(0.05)


@pytest.mark.promises
@pytest.mark.parametrize("stopped, killed", [(0, 1), (1, 0)])
def test_a_signal_stops_both_and_a_death_ends_both_and_the_run_goes_on(tmp_path, alone, stopped, killed):
    run_dir = tmp_path / "run"
    more = "--iterations=1000", "--checkpoint_every=1000"
    running = start_two(run_dir, *more)
    wait_for(run_dir / "metrics.jsonl", running)
    running[stopped].send_signal(signal.SIGTERM)
    texts = finish(running)
    assert "saved after iteration" in texts[0]
    done = len(metrics(run_dir))
    assert (run_dir / "checkpoints" / str(done)).is_dir()

    running = start_two(run_dir, "--iterations=1000", "--resume")
    wait_for(run_dir / "checkpoints" / str(done + 1), running)
    running[killed].send_signal(signal.SIGKILL)
    clock = time.monotonic()
    text = running[1 - killed].communicate(timeout=300)[0]
    assert running[1 - killed].returncode, text
    assert f"error: process {killed} of this run died; start all again with --resume" in text
    assert "stack trace" not in text and "Traceback" not in text
    assert time.monotonic() - clock < 120

    if killed == 0:
        done = max(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdecimal())
        whole = tmp_path / "whole"
        shutil.copytree(alone, whole)
        for folder in (whole, run_dir):
            finish([start(folder, 8, f"--iterations={done + 1}", "--resume")])  # in one process
        assert_same(run_dir, whole, 1e-5 * done)


def test_half_a_description_is_refused():
    with pytest.raises(ValueError, match="'host:1', 2, -1"):
        processes.start("host:1", 2)
    with pytest.raises(ValueError, match="--process_id 0 to N - 1; got 'host:1', 2, 2"):
        processes.start("host:1", 2, 2)
