#!/usr/bin/env bash
# Measure the GPU at hand and calibrate kplan for it; with a model, serve it, record, calibrate and verify.
# One card, ten minutes. See README.md beside this file; `run.sh --help` lists the flags.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tests/gpu/run.sh --out DIR --hardware NAME [flags]
  --out DIR             results, a new or empty folder
  --hardware NAME       profile of the card (kplan profiles), or a YAML of one
  --model NAME          model whose shapes are timed, profile or folder [llama-3.1-8b]
  --gpu-python PYTHON   interpreter with torch (and vLLM) on the card [python3]
  --limit-s S           wall time of everything [600]
  --plan FILE           rows to measure instead of the model's (python -m tests.gpu.plan)
  --device cpu          shows that it runs without a GPU; such times calibrate nothing
A card without a profile: --hardware is then the YAML to write
  --name NAME --bandwidth-gb-s N --peak-tflops N [--peak-fp8-tflops N] [--link-gb-s N] --source TITLE
Serving (needs vLLM in --gpu-python):
  --serve DIR           folder of a model with weights and tokenizer, served with n-gram drafts
  --prompts FILE        prompts for kplan record and kplan verify
  --port N              [8000]
Exit: 0 done, 1 a stage failed or was cut, 2 bad input, 77 no GPU.
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 2
bin=$here/.venv/bin
out='' hardware='' model=llama-3.1-8b gpu_python=python3 limit_s=600 plan=''
serve='' prompts='' port=8000 device=cuda datasheet=()
while (($#)); do
  case $1 in
    --help) usage; exit 0 ;;
    --out | --hardware | --model | --gpu-python | --limit-s | --plan | --device | --serve | --prompts | --port | \
      --name | --bandwidth-gb-s | --peak-tflops | --peak-fp8-tflops | --link-gb-s | --source)
      (($# > 1)) || { echo "$1: got nothing, needs a value" >&2; exit 2; } ;;
    *) echo "$1: no such flag; see --help" >&2; exit 2 ;;
  esac
  case $1 in
    --out) out=$2 ;;
    --hardware) hardware=$2 ;;
    --model) model=$2 ;;
    --gpu-python) gpu_python=$2 ;;
    --limit-s) limit_s=$2 ;;
    --plan) plan=$2 ;;
    --device) device=$2 ;;
    --serve) serve=$2 ;;
    --prompts) prompts=$2 ;;
    --port) port=$2 ;;
    *) datasheet+=("$1" "$2") ;;
  esac
  shift 2
done
[[ $device == cuda || $device == cpu ]] || { echo "--device: got '$device', must be cuda or cpu" >&2; exit 2; }
if [[ $device == cuda ]] \
  && ! "$gpu_python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "no GPU: torch of '$gpu_python' is missing or sees no CUDA device; nothing was measured" >&2; exit 77
fi
[[ $out && $hardware ]] || { usage >&2; exit 2; }
[[ $limit_s =~ ^[1-9][0-9]*$ ]] || { echo "--limit-s: got '$limit_s', must be whole seconds" >&2; exit 2; }
if [[ $serve ]]; then
  [[ -f $serve/config.json ]] || { echo "--serve: got '$serve', must hold a config.json" >&2; exit 2; }
  [[ -f $prompts ]] || { echo "--prompts: got '$prompts', --serve needs a file of prompts" >&2; exit 2; }
fi
if [[ -d $out && $(ls -A "$out") ]]; then
  echo "--out: got '$out', must be empty; give another folder" >&2; exit 2
fi
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
out=$(absolute "$out") plan=$(absolute "$plan") prompts=$(absolute "$prompts") serve=$(absolute "$serve")
[[ $hardware != *.y*ml ]] || hardware=$(absolute "$hardware")
[[ ! -e $model ]] || model=$(absolute "$model")
[[ $gpu_python != */* ]] || gpu_python=$(absolute "$gpu_python")
cd "$here" || exit 2  # tests.gpu is imported from here
name=$("$bin/python" -m tests.gpu.hardware --hardware "$hardware" "${datasheet[@]}") || exit 2
mkdir -p "$out/logs" || exit 2
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1

server=''
stop_server() {
  [[ $server ]] || return 0
  kill -TERM -- "-$server" 2>/dev/null  # its process group: the engine's workers too
  for _ in {1..20}; do
    kill -0 -- "-$server" 2>/dev/null || break
    sleep 0.5
  done
  kill -KILL -- "-$server" 2>/dev/null
  wait "$server" 2>/dev/null
  server=''
}
running=''
trap 'kill $running 2>/dev/null; stop_server' EXIT
trap 'exit 1' INT TERM

failed=0
printf 'stage\tresult\tseconds\n' > "$out/stages.tsv"
# stage NAME LIMIT_S COMMAND...: run it, no longer than its limit and what is left of the whole; keep its output.
stage() {
  local stage=$1 limit=$2 begun=$SECONDS code result=done
  shift 2
  ((limit > limit_s - SECONDS)) && limit=$((limit_s - SECONDS))
  if ((limit < 1)); then
    code=124
  else
    timeout -k 10 "$limit" "$@" > "$out/logs/$stage.log" 2>&1 &
    running=$!
    wait "$running"  # in the background, so that Ctrl-C is seen at once
    code=$?
    running=''
  fi
  case $code in 0) ;; 124 | 137) result=cut ;; *) result="failed ($code)" ;; esac
  ((code == 0)) || failed=1
  printf '%s\t%s\t%s\n' "$stage" "$result" $((SECONDS - begun)) | tee -a "$out/stages.tsv" >&2
  return "$code"
}

# start_server NAME ARGUMENTS...: vllm serve in a process group of its own, until /health answers.
start_server() {
  local stage=$1
  shift
  stop_server
  setsid "$gpu_python" -m vllm.entrypoints.cli.main serve "$@" --host 127.0.0.1 --port "$port" \
    > "$out/logs/$stage-server.log" 2>&1 &
  server=$!
  # shellcheck disable=SC2016  # expanded by the inner shell
  stage "$stage" 150 bash -c 'until curl -sf --noproxy "*" -m 2 "$1/health"; do kill -0 "$2" || exit 1; sleep 1; done' \
    health "$url" "$server"
}

# 1. Microbenchmarks. What is left for serving: two starts, record, calibrate, verify.
if [[ -z $plan ]]; then
  plan=$out/plan.jsonl
  stage plan 30 "$bin/python" -m tests.gpu.plan --model "$model" --out "$plan" || exit 1
fi
budget_s=$((limit_s * 4 / 5))
[[ -z $serve ]] || budget_s=$((limit_s * 3 / 10))
stage microbench $((budget_s + 30)) "$gpu_python" -m tests.gpu.microbench \
  --plan "$plan" --hardware "$name" --out "$out/tables" --budget-s "$budget_s" --device "$device"

# 2. The calibration; what no table tells is borrowed from another card, and says so.
calibration=() kernels=()
stage calibrate 45 "$bin/kplan" calibrate --hardware "$hardware" --tables "$out/tables" \
  --out "$out/calibration.yaml" --report "$out/calibration.html" \
  && calibration=(--calibration "$out/calibration.yaml") kernels=(--tables "$out/tables")

# 3. A served model: first with a table over the batch, so that several K are seen; then with kplan's plan.
if [[ $serve ]]; then
  url=http://127.0.0.1:$port
  table='{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 7,
    "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 2], [33, 256, 0]]}'
  eager=()
  [[ $device == cuda ]] || eager=(--enforce-eager)
  if start_server start-table "$serve" --max-num-seqs 256 --max-model-len 4096 \
    --per-request-spec-decode-metrics detailed --speculative-config "$table" "${eager[@]}"; then
    stage record 60 "$bin/kplan" record --url "$url" --prompts "$prompts" --proposer ngram --concurrency 16 \
      --limit-s 40 --out "$out/record.jsonl"
    stage calibrate-url 70 "$bin/kplan" calibrate --url "$url" --hardware "$hardware" --model "$serve" \
      --proposer ngram --partial "${kernels[@]}" "${eager[@]}" --batches 1,4,16,64 --limit-s 50 \
      --out "$out/calibration-served.yaml" \
      && calibration=(--calibration "$out/calibration-served.yaml")
  fi
  # A server tells of the positions where a step stood; a replay over the same tokens knows all of them.
  if stage replay 30 "$bin/kplan" traces replay "$out/record.jsonl" --proposer ngram --out "$out/ngram.parquet" \
    && stage recommend 60 "$bin/kplan" recommend --concurrency 16 --hardware "$hardware" --model "$serve" \
    "${calibration[@]}" --proposer ngram --traces "$out/ngram.parquet" --max-num-seqs 256 \
    --max-model-len 4096 --replicas 1 "${eager[@]}" --out "$out/plan" \
    && start_server start-plan --config "$out/plan/vllm.yaml" "${eager[@]}"; then
    stage verify 90 "$bin/kplan" verify "$out/plan" --url "$url" --prompts "$prompts" --limit-s 60 \
      --traces "$out/ngram.parquet" "${calibration[@]}" --engine-python "$gpu_python" --out "$out/verify"
  fi
fi

echo "results in $out (stages.tsv, tables/run.json, calibration.yaml)" >&2
exit "$failed"
