# Everything runs in .venv of this folder, from the versions in requirements.lock. `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BUSY   := $(VENV)/.setup-unfinished
TOOLS  := $(VENV)/.tools

SOURCES := simulator policies profiles tests

# make recommend: options of `kplan recommend`, passed on when given on make's command line (not from the environment,
# where MODEL or SEED may mean something else): make recommend QPS=64 MODEL=qwen3-8b SLO_TPOT_MS=20
OUT ?= runs/recommend
RECOMMEND_OPTIONS := QPS CONCURRENCY REPLAY COLUMNS ARRIVALS BURSTINESS RAMP_TO_QPS THINK_S MODEL HARDWARE CALIBRATION \
  TP DP QUANTIZATION KV_CACHE_DTYPE PROPOSER DRAFTER WORKLOAD TRACES ENGINE POLICY SLO_TPOT_MS SLO_TTFT_MS REPLICAS \
  ROUTER MAX_K PROMPT_TOKENS OUTPUT_TOKENS MAX_NUM_SEQS MAX_NUM_BATCHED_TOKENS MAX_MODEL_LEN GPU_MEMORY_UTILIZATION \
  REQUESTS REPLICATIONS SEED
GIVEN   := $(foreach name,$(RECOMMEND_OPTIONS),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
LOAD    := $(if $(filter QPS CONCURRENCY REPLAY,$(GIVEN)),,--qps 64)
as_flag  = --$(shell printf '%s' '$(1)' | tr 'A-Z_' 'a-z-')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup recommend test lint types imports unit notebooks test-live soak coverage mutants audit example-trace \
  gpu bench docs lock lock-tools clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'
	@echo "  make recommend takes OUT ($(OUT)) and, without a load at QPS=64: $(RECOMMEND_OPTIONS)"

setup: $(READY) ## .venv with the pinned versions; again only when requirements.lock or pyproject.toml changed

# The mark $(BUSY) stands in .venv while it is being changed: found here, a set-up was cut short, so start over.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  "kplan needs Python 3.11 or newer: $(PYTHON) is %d.%d; run make with PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@if [ -e $(BUSY) ] || ! $(BIN)/python -c '' 2>/dev/null; then rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); fi
	@rm -f $(READY) && touch $(BUSY)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps -e .
	@rm -f $(BUSY) && touch $(READY)

$(TOOLS): tests/tools.lock $(READY)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-deps -r tests/tools.lock
	@touch $(TOOLS)

recommend: setup ## what K at QPS=64 (or CONCURRENCY=, REPLAY=log)? writes plan, engine configs and report to OUT
	$(BIN)/kplan recommend $(LOAD) --out '$(OUT)' $(foreach name,$(GIVEN),$(call as_flag,$(name)) '$($(name))')

test: lint types imports unit notebooks ## ruff, mypy --strict, import order, pytest, notebooks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# One process a core, of a file all tests in one: what a file has made once, its tests share.
unit: setup
	$(BIN)/python -m pytest -m 'not live and not soak' --ignore tests/notebooks --ignore tests/bench -n auto --maxprocesses 4 --dist loadfile --durations 25

notebooks: setup
	$(BIN)/python -m pytest tests/notebooks

# What only asks an engine's code runs two at a time; servers have the machine to themselves.
# LIVE_REQUIRED= (empty) goes on without an engine whose packages cannot be had here; its tests then skip.
LIVE_REQUIRED ?= yes

test-live: setup ## the exported configs on a real vLLM (and SGLang's parser), on the CPU; first run installs them
	$(BIN)/python -m tests.live.install $(if $(LIVE_REQUIRED),--required)
	$(BIN)/python -m pytest tests/live -m 'live and not served' -n auto --maxprocesses 2 --dist loadfile -rs --durations 10
	$(BIN)/python -m pytest tests/live -m 'live and served' -v -rs --durations 20

soak: $(TOOLS) ## long fuzzing, kills and memory, KPLAN_SOAK_S seconds a suite; figures go to runs/soak.jsonl
	$(BIN)/python -m pytest tests/soak -m soak -v

# Coverage sees no line of a compiled kernel: the tests that meet them run once more with the kernels as plain Python,
# properties briefly. A test that fails here, say of speed under a tracer, is the business of make test.
KERNELS := tests/engine tests/latency tests/acceptance tests/policies tests/simulate tests/workload
SPREAD  := -n auto --maxprocesses 4 --dist loadfile

coverage: $(TOOLS) ## branches of simulator/ and policies/ that the tests take, 90% at least (about 30 minutes)
	rm -rf build/coverage && mkdir -p build/coverage
	-$(BIN)/python -m pytest -m 'not live and not soak' --ignore tests/notebooks --ignore tests/bench $(SPREAD) \
	  --cov --cov-report=
	-NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest $(KERNELS) -p tests.gates.brief $(SPREAD) --cov --cov-append --cov-report=
	$(BIN)/coverage combine --quiet --append || true
	$(BIN)/coverage json --quiet -o build/coverage/coverage.json
	$(BIN)/python -m tests.gates.branches build/coverage/coverage.json

mutants: $(TOOLS) ## 200 mutants of latency, acceptance and scheduler against the tests, 85% at least must die (SEED=1)
	$(BIN)/python -m tests.gates.mutants --seed '$(if $(filter command,$(firstword $(origin SEED))),$(SEED),1)'

audit: $(TOOLS) ## vulnerable or withdrawn releases among the pinned versions, and docs/licences.md against them
	$(BIN)/python -m tests.gates.licences
	$(BIN)/python -m tests.gates.audit requirements.lock tests/tools.lock

# make gpu: HARDWARE (a profile, see `kplan profiles`), GPU_PYTHON (with torch and, better, vLLM), OUT, and GPU_FLAGS
# for what else tests/gpu/run.sh takes: GPU_FLAGS='--serve MODEL_FOLDER --prompts FILE'. Without a GPU it says so.
GPU_PYTHON ?= python3
GPU_FLAGS  ?=

gpu: setup ## times this machine's GPU and calibrates for it (HARDWARE=, GPU_PYTHON=, OUT=; tests/gpu/README.md)
	@tests/gpu/run.sh --hardware '$(HARDWARE)' --gpu-python '$(GPU_PYTHON)' \
	  --out '$(if $(filter command,$(firstword $(origin OUT))),$(OUT),runs/gpu)' $(GPU_FLAGS) \
	  || { code=$$?; [ $$code -eq 77 ] || exit $$code; }

example-trace: setup ## record the trace that ships anew, on a real vLLM on the CPU (again after a stop: it goes on)
	$(BIN)/python -m tests.live.install --required vllm
	$(BIN)/python -m tests.live.make_example

bench: setup ## speed of the simulator, answers asserted too
	$(BIN)/python -m pytest tests/bench --benchmark-only

docs: setup ## build/api/index.html: the API, from the docstrings; opens with the network off
	$(BIN)/python -W error docs/api/build.py --out build/api

lock: ## renew requirements.lock from the newest versions that pyproject.toml allows
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv $$scratch \
	  && $$scratch/bin/python -m pip install --disable-pip-version-check --progress-bar off '.[dev]' \
	  && { grep '^#' requirements.lock; $$scratch/bin/python -m pip freeze --exclude kplan; } > $$scratch/new.lock \
	  && mv $$scratch/new.lock requirements.lock

lock-tools: $(READY) ## renew tests/tools.lock beside requirements.lock
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv $$scratch \
	  && $$scratch/bin/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock \
	  && $$scratch/bin/python -m pip freeze > $$scratch/base \
	  && $$scratch/bin/python -m pip install --disable-pip-version-check --progress-bar off -c requirements.lock \
	    atheris cosmic-ray pytest-cov pip-audit pip-licenses \
	  && { grep '^#' tests/tools.lock; $$scratch/bin/python -m pip freeze | grep -vxFf $$scratch/base; } > $$scratch/new.lock \
	  && mv $$scratch/new.lock tests/tools.lock

clean: ## caches and build products (not .venv, not runs/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
