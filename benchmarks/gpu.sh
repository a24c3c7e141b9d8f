#!/usr/bin/env bash
# Everything that is still unmeasured on a GPU, by one command (an hour; each step can be run by itself):
#
#   benchmarks/gpu.sh                     # all steps
#   benchmarks/gpu.sh iteration train     # some of them
#
# PYTHON is the Python with `pip install -e '.[cuda]'`, or one that has jax for this GPU and little else: then WHEELS is a
# folder with the pure-Python packages that it lacks, made elsewhere by
#
#   pip download --no-deps --only-binary :all: -c constraints.txt -d wheels flax optax orbax-checkpoint chex gymnax absl-py ...
#
# and its binary ones for that Python. Models whose weights are not there are measured by their shapes. Logs and runs go to OUT (runs/gpu). MINUTES bounds each part of
# `train`, which goes on from its last checkpoint when the step is run again. A step that fails does not stop the others.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/gpu} PYTHON=${PYTHON:-.venv/bin/python} MINUTES=${MINUTES:-8}
STEPS=(device iteration sizes paper text_games language_model games robots dqn train)
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1
if [ -n "${WHEELS:-}" ]; then  # a wheel is a zip file
  for wheel in "$WHEELS"/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$OUT/site"; done
  export PYTHONPATH=$PWD/$OUT/site:$PWD
fi

device() {
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
  "$PYTHON" -c 'import jax; d = jax.devices()[0]; print(jax.__version__, d.device_kind); assert d.platform == "gpu", d.platform'
}
iteration() {  # time in generation and update, tokens/s, shares of the device's limits
  "$PYTHON" -m benchmarks.ms_grpo_iteration
  "$PYTHON" -m benchmarks.ms_grpo_iteration --model smollm2 --preset paper --dtype bfloat16 --max_tokens 100 --micro_batch 25 --repeats 3
}
sizes() {  # shapes with random weights, 100 rows of 200 tokens: generation's share of the memory limit, the update's of the compute limit
  for model in smollm2-135m qwen2.5-0.5b llama3.1-8b; do
    "$PYTHON" -m benchmarks.ms_grpo_iteration --model "$model" --preset paper --micro_batch 5 --remat --repeats 1 || return
  done
}
paper() { "$PYTHON" -m benchmarks.ms_grpo_iteration --model qwen2.5-3b --preset paper --micro_batch 5 --remat --repeats 3; }
text_games() { "$PYTHON" -m benchmarks.text_games && "$PYTHON" -m benchmarks.text_games --model smollm2 --no_one_by_one; }
language_model() { "$PYTHON" -m benchmarks.language_model; }
games() { "$PYTHON" -m benchmarks.games --games boards pong babyai mcts --batches 1 64 1024 4096; }
robots() { "$PYTHON" -m benchmarks.games --games hopper walker2d ant --batches 1024 2048 4096 8192; }
dqn() {  # the paper's 45 settings as one program, 2 million steps of each
  "$PYTHON" -m nlrl_jax.launch.train_dqn --game snake --sweep --iterations 1000 --eval_every 50 --run_dir "$OUT/dqn_sweep" --overwrite
}
train() {  # SmolLM2 learns the reply format, then FrozenLake by MS-GRPO; run again, it goes on
  [ -d "$OUT/format/model" ] || "$PYTHON" -m nlrl_jax.launch.warm_start --model smollm2 --game frozen_lake --max_tokens 100 \
    --run_dir "$OUT/format" --overwrite || return
  local resume=
  [ -d "$OUT/smollm2/checkpoints" ] && resume=--resume
  timeout --signal=TERM "${MINUTES}m" "$PYTHON" -m nlrl_jax.launch.train_ms_grpo --model "$OUT/format/model" --dtype bfloat16 \
    --max_tokens 100 --micro_batch 25 --eval_every 25 --run_dir "$OUT/smollm2" $resume  # SIGTERM saves
  local status=$?
  [ $status -eq 124 ] || return $status
}

failed=()
for step in "${@:-${STEPS[@]}}"; do
  case " ${STEPS[*]} " in *" $step "*) ;; *) echo "no step '$step'; there are: ${STEPS[*]}" >&2; exit 2 ;; esac
done
for step in "${@:-${STEPS[@]}}"; do
  echo "== $step"
  "$step" 2>&1 | tee "$OUT/$step.log" || failed+=("$step")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
