"""Loads and saves a folder of safetensors and prints what the host needs beyond the arrays; no weights are downloaded.

    python -m benchmarks.loading                                        # Qwen2.5-3B's shapes, on the CPU's one device
    python -m benchmarks.loading --mesh 1,2,2                           # four devices, each with its slices
    python -m benchmarks.loading --mesh 1,2,2 --processes 2             # two of them in each of two processes
    python -m benchmarks.loading --torch_python /root/venvs/torch/bin/python

The folder is written to --tmp (6.2 GB; what is saved from it takes as much again). Each row runs in a
process of its own:

    load     huggingface.load, until the arrays are there
    save     huggingface.save of what was loaded; its files are compared with the folder's, tensor by tensor
    merged   the same with a LoRA adapter of rank 16 on all linear layers merged in
    adapter  peft.save of that adapter

On a CPU the memory of a device is the host's. "beyond" is the process's largest resident set (interpreter and JAX
included) less the bytes of its arrays; "anonymous" leaves out the pages of files that are only mapped, which the
system takes back when it likes. Expected: "beyond" at most the largest file + 2 GB. A save ends when the disk has
the bytes. With several processes the worst of them is shown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks.timing import ROOT, host, last_json, parser_of, print_head, print_row

GB = 1e9
HEADLINE = ("row", "s", "GB/s", "arrays GB", "beyond GB", "anonymous GB", "expected GB")
JOBS = ("load", "save", "merged", "adapter")


class Peak:
    """The largest resident set of this process while the block runs, whole and without the pages of mapped files."""

    def __enter__(self):
        self.seconds, self.rss, self.anonymous = -time.perf_counter(), 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.seconds += time.perf_counter()
        self._over.set()
        self._thread.join()
        self.rss = status("VmHWM")

    def row(self, **sizes: int) -> dict[str, float]:
        return {"seconds": self.seconds, "rss": self.rss, "anonymous": self.anonymous, **sizes}

    def _watch(self):
        while not self._over.wait(0.005):
            self.anonymous = max(self.anonymous, status("RssAnon"))


def status(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def make_folder(folder: pathlib.Path, model: str, max_shard_gb: float) -> None:
    """Writes a folder of random weights in the shapes of a model."""
    import jax

    from benchmarks.models import MODELS
    from nlrl_jax.lm.transformer import Transformer, init_params
    from nlrl_jax.weights import huggingface

    config = MODELS[model] if model in MODELS else huggingface.read_config(model)
    params = init_params(Transformer(config), jax.random.key(0))
    huggingface.save(folder, config, params, max_shard_bytes=int(max_shard_gb * GB))


def same_tensors(folder: pathlib.Path, copy: pathlib.Path) -> bool:
    """Whether two folders hold the same tensors, bit for bit."""
    import jax.numpy  # noqa: F401  (bfloat16)
    import numpy as np
    from safetensors import safe_open

    def tensors(path):
        files = [safe_open(file, "numpy") for file in sorted(path.glob("*.safetensors"))]
        return {name: file for file in files for name in file.keys()}

    first, second = tensors(folder), tensors(copy)
    if first.keys() != second.keys():
        return False
    return all(np.array_equal(file.get_tensor(name), second[name].get_tensor(name)) for name, file in first.items())


def ours(job: str, folder: str, out: str, sizes: list[int], several: list[str]) -> dict[str, float]:
    """One row, in this process: seconds, peaks, and bytes of arrays in this process and of the model."""
    import jax

    if several:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(several[0], int(several[1]), int(several[2]))
    from nlrl_jax.lm.sharding import make_mesh, shard
    from nlrl_jax.lm.transformer import Transformer, init_lora, param_specs
    from nlrl_jax.weights import huggingface, peft

    mesh = make_mesh(*sizes) if sizes else None
    with Peak() as peak:
        config, params = jax.block_until_ready(huggingface.load(folder, mesh=mesh))
    arrays, lora = params, None
    if job in ("merged", "adapter"):
        model = Transformer(config)
        lora = jax.tree.map(lambda x: x + 0.01, init_lora(model, jax.random.key(0)))  # b starts at zero
        lora = jax.block_until_ready(shard(lora, param_specs(model)["lora"], mesh) if mesh else lora)
        arrays = (params, lora)
    if job in ("save", "merged"):
        with Peak() as peak:
            huggingface.save(out, config, params, lora=lora)
    if job == "adapter":
        with Peak() as peak:
            peft.save(out, config, lora)
    here = {shard.data.unsafe_buffer_pointer(): shard.data.nbytes for x in jax.tree.leaves(arrays)
            for shard in x.addressable_shards}  # fmt: skip
    moved = lora if job == "adapter" else params
    return peak.row(arrays=sum(here.values()), moved=sum(x.nbytes for x in jax.tree.leaves(moved)))


def theirs(job: str, folder: str, out: str) -> dict[str, float]:
    """The same with transformers on PyTorch: load and save only."""
    import torch
    from transformers import AutoModelForCausalLM

    with Peak() as peak:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        for weight in model.parameters():
            weight.data = weight.data.clone()  # it maps the files; now the weights are in memory, as ours are
    if job == "save":
        with Peak() as peak:
            model.save_pretrained(out, max_shard_size="5GB")
            os.sync()
    size = sum(x.numel() * x.element_size() for x in model.parameters())
    return peak.row(arrays=size, moved=size)


def run(python: str, job: str, folder: pathlib.Path, out: pathlib.Path, args: argparse.Namespace, peer: bool) -> dict:
    """One row in processes of its own; the worst of what they report."""
    count = 1 if peer else args.processes
    command = [python, "-m", "benchmarks.loading", "--worker", job, str(folder), str(out)]
    command += ["--peer"] if peer else []
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    if args.mesh and not peer:
        command += ["--mesh", args.mesh]
        env["JAX_NUM_CPU_DEVICES"] = str(math.prod(map(int, args.mesh.split(","))) // count)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [["--several", address, str(count), str(i)] if count > 1 else [] for i in range(count)]
    pipe = {"cwd": ROOT, "env": env, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, *of_process], **pipe) for of_process in options]
    rows = [last_json(process) for process in processes]
    return max(rows, key=lambda row: row["rss"] - row["arrays"]) | {"seconds": max(row["seconds"] for row in rows)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="qwen2.5-3b", help="of benchmarks/models.py, or a folder with a config")
    parser.add_argument("--folder", type=pathlib.Path, help="a folder to load in place of one that is made")
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--mesh", default="", help="DATA,FSDP,TENSOR; one device without it")
    parser.add_argument("--processes", type=int, default=1, help="that share the devices of the mesh")
    parser.add_argument("--max_shard_gb", type=float, default=4.0, help="size of the folder's files (the Hub's are 4)")
    parser.add_argument("--torch_python", default="", help="also transformers, run by this interpreter")
    parser.add_argument("--tmp", default=None, help="where the folders go")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--several", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sizes = [int(size) for size in args.mesh.split(",")] if args.mesh else []
        result = theirs(*args.worker) if args.peer else ours(*args.worker, sizes, args.several or [])
        return print(json.dumps(result))
    print(host())
    with tempfile.TemporaryDirectory(dir=args.tmp) as temporary:
        out = pathlib.Path(temporary, "out")
        folder = args.folder.absolute() if args.folder else pathlib.Path(temporary, "model")
        if not args.folder:
            make_folder(folder, args.model, args.max_shard_gb)
        table(folder, out, args)


def table(folder: pathlib.Path, out: pathlib.Path, args: argparse.Namespace) -> None:
    largest = max(file.stat().st_size for file in folder.glob("*.safetensors"))
    subjects = [(sys.executable, False)] + ([(args.torch_python, True)] if args.torch_python else [])
    print_head(*HEADLINE)
    for job in args.jobs:
        seconds = []
        for python, peer in subjects:
            if peer and job not in ("load", "save"):
                continue
            row = run(python, job, folder, out, args, peer)
            seconds.append(row["seconds"])
            beyond, anonymous = row["rss"] - row["arrays"], row["anonymous"] - row["arrays"]
            sizes = (row["moved"] / row["seconds"], row["arrays"], beyond, anonymous, largest + 2 * GB)
            name = f"{job}, transformers" if peer else job
            print_row(name, f"{row['seconds']:.2f}", *(f"{size / GB:.2f}" for size in sizes))
            if job == "save" and not same_tensors(folder, out):
                print("what was saved is not what was loaded")
            shutil.rmtree(out, ignore_errors=True)
        if len(seconds) > 1:
            print(f"{job}: {seconds[1] / seconds[0]:.2f} times as fast as transformers")


if __name__ == "__main__":
    main()
