"""The update of an 8B model and its fine-tuning on long rows, compiled for eight H100s that are not here, and decoding
with a 3B model for one. Needs the extra `aot`."""

import math
import os
import re
import subprocess
import sys

import pytest

from benchmarks import hlo
from nlrl_jax.lm.generate import row_sizes
from nlrl_jax.run import targets

pytestmark = pytest.mark.aot
LONG = 32767
GATHERED = 8.19e9 * 2 / 2**30  # GiB of the weights in one piece


def compiled(mesh, tmp_path_factory, *options):
    """(GiB a device in all, the program, what was printed), in a process without this one's fake devices."""
    if not targets.available():
        pytest.skip("the extra aot is not installed")
    text = tmp_path_factory.mktemp("aot") / "program.hlo"
    options = options or ("--model=qwen3-8b",)
    command = [sys.executable, "-m", "benchmarks.aot", f"--mesh={mesh}", f"--text={text}", *options]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # compiled as for a run
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    line = next(line for line in run.stdout.splitlines() if line.startswith("GiB a device"))
    return float(line.split("all ")[1].split()[0]), hlo.Program(text.read_text()), run.stdout + run.stderr


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory):
    return compiled("1,8,1", tmp_path_factory)


@pytest.fixture(scope="module")
def tensor(tmp_path_factory):
    return compiled("1,1,8", tmp_path_factory)


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    options = ("--program=sft", "--train=params", "--model=llama3.1-8b", "--rows=8", f"--tokens={LONG + 1}")
    return compiled("1,8,1", tmp_path_factory, *options, "--param_dtype=bfloat16")


@pytest.fixture(scope="module")
def tuning(tmp_path_factory):
    """Fine-tuning of all weights of two layers, in eight chunks of logits."""
    options = ("--program=sft", "--train=params", "--model=llama3.1-8b", "--layers=2")
    return compiled("1,8,1", tmp_path_factory, *options)[1]


@pytest.fixture(scope="module")
def decoding(tmp_path_factory):
    """Programs for one H100, by (weights that are read, layers): the update, and sampling from prompts alone."""

    def program(weights, layers):
        given = ("--program=sample", "--prompt=122") if weights == "merged" else ()
        options = ("--model=qwen2.5-3b", f"--layers={layers}", f"--rollout_weights={weights}", *given)
        return compiled("1,1,1", tmp_path_factory, *options)[1]

    return {(weights, layers): program(weights, layers) for weights in ("auto", "merged") for layers in (2, 4)}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Two layers of Qwen3-30B-A3B; the command fails where decoding moves weights or reads experts that none chose."""
    options = ("--model=qwen3-30b-a3b", "--layers=2", "--micro_batch=0", "--rollout_weights=apart")
    return compiled("2,1,4", tmp_path_factory, *options)[1]


def test_few_launches_serve_many_experts(mixture):
    """Once eight for each of at most 133 blocks of a layer; now 16 blocks are computed at once."""
    decoding = [(loops, n) for loops, n in mixture.launches() if hlo.UNKNOWN in loops and hlo.AT_MOST in loops]
    assert decoding
    for loops, launches in decoding:
        assert loops.endswith(f"{hlo.AT_MOST}9]") and launches <= 10


def test_a_layer_launches_few_kernels_for_a_token(decoding):
    """Once 62, when the adapter was cast and rows were filled up in every layer, and weights copied out of a stack."""

    def started(weights, layers):
        """By each loop of unknown length: decoding with each number of rows, and reading prompts."""
        found = sorted(n for loops, n in decoding[weights, layers].launches() if loops.endswith(hlo.UNKNOWN))
        return found[-len(row_sizes(104)) - 1 :]

    for weights, most in (("auto", 32), ("merged", 18)):
        each = [(four - two) / 2 for four, two in zip(started(weights, 4), started(weights, 2), strict=True)]
        assert all(4 <= n <= most for n in each), (weights, each)


def test_nothing_large_is_copied_for_a_token(decoding):
    """Neither weights nor keys and values: together 7.4 GiB at 36 layers."""
    for program in decoding.values():
        copies = [row for row in program.copies(2**22) if hlo.UNKNOWN in row.loops]
        # But for the scores of a block of prompts, once for all of its tokens: 8 heads x 128 tokens to a row.
        assert not [row for row in copies if "[2,13,1024," not in row.type]


def per_token(program):
    """MiB that a device exchanges for one token of all replies."""
    rows = [row for row in program.collectives() if hlo.UNKNOWN in row.loops]
    turns = 5
    return sum(row.runs * row.bytes for row in rows) / turns / 2**20


def test_no_weight_is_gathered_for_a_token(fsdp, tensor):
    assert per_token(fsdp[1]) < 1
    assert per_token(tensor[1]) < 100
    for _, program, _ in (fsdp, tensor):
        gathers = [row for row in program.collectives() if row.kind == "all-gather" and hlo.UNKNOWN in row.loops]
        assert all(row.bytes < 2**20 for row in gathers)


def test_no_weights_are_written_side_by_side_for_a_token(fsdp, tensor):
    """XLA would join the products of one input, gate and up, and copy their weights for that: 6.8 GiB a token."""
    for _, program, _ in (fsdp, tensor):
        joined = [row for row in program.copies() if hlo.UNKNOWN in row.loops and "concatenate" in row.kind]
        assert sum(row.bytes for row in joined) < 2**30  # key and value are still joined, an eleventh of that


def test_memory(fsdp, tensor):
    assert fsdp[0] < GATHERED + 5.6
    assert tensor[0] < 2 * GATHERED / 8 + 2  # rollouts read a copy with an array per layer


def test_the_partitioner_gives_up_nowhere(fsdp, tensor):
    for _, _, printed in (fsdp, tensor):
        assert "Involuntary full rematerialization" not in printed


def test_arithmetic_is_the_models_own(fsdp, tensor):
    """61.3e3 prompt and 100e3 reply tokens, and 125 of 322 tokens learned: read by model, reference and backwards."""
    tokens = 269 + 100 * 5 * 122 + 100 * 5 * 200 + 125 * 322 * (1 + 1 + 1 + 1)  # and again, as blocks are recomputed
    own = 2 * 8.19e9 * tokens / 8 / 1e12
    for _, program, _ in (fsdp, tensor):
        assert sum(program.flop(unknown=199).values()) / 1e12 < 1.15 * own


def test_a_row_of_32k_tokens_never_has_all_its_scores(long_rows):
    memory, program, printed = long_rows
    assert memory < 30
    types = "".join(op.type for ops in program.computations.values() for op in ops)
    largest = max(math.prod(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", types))
    assert 2**24 < largest < LONG**2
    assert "Involuntary full rematerialization" not in printed


def test_blocks_of_scores_stay_on_their_devices(long_rows):
    """528 of 32 x 32 pairs of blocks, and nothing is exchanged for them."""
    _, program, _ = long_rows
    assert any("loop[528]" in loops for loops in program.flop())
    assert not [row for row in program.collectives() if "loop[528]" in row.loops]


def test_fine_tuning_gathers_the_head_once_and_the_embedding_never(tuning):
    """Once 20 GiB in float32: the head for each chunk of logits, the embedding and its gradient whole."""
    table = 128256 * 4096
    large = [row for row in tuning.collectives() if row.bytes >= table and "loop[2]" not in row.loops]
    (head,) = (row for row in large if row.kind == "all-gather")
    assert (head.loops, head.runs, head.bytes) == ("", 1, 2 * table) and "f32" not in head.type
    # The head's gradient, of each chunk; the embedding's is added up where it lies.
    assert all(row.kind == "reduce-scatter" and "loop[8]" in row.loops for row in large if row is not head)
