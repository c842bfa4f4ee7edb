# From a fresh clone, with python3 (3.11 or later) and make:
#   make demo    collect on the simulated A100, fit, estimate a real model
#   make test    style, types, import rules, tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := build/demo
WORKERS ?= auto

# One thread a process: the tests run side by side, and small matrices gain nothing from more.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-torch lint format bench fuzz pictures simgrid simgrid-install wheel clean distclean

help:
	@echo 'make demo    collect on the simulated A100, fit, estimate a real model'
	@echo 'make test    style, types, import rules and tests'
	@echo 'make test-torch  tests that need PyTorch, in an environment of its own'
	@echo 'make lint    style, types and import rules alone'
	@echo 'make bench   timings and accuracies'
	@echo 'make fuzz    changed inputs of every kind, and small files that stand for gigabytes'
	@echo 'make pictures those of the documentation (Debian, as root: installs Chromium)'
	@echo 'make simgrid install SimGrid (Debian, as root), run its example and test'
	@echo 'make wheel   the distribution, in dist/'
	@echo 'make clean   remove what these made (distclean: the virtual environment too)'

install: $(STAMP)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo 'wattprint needs python3, version 3.11 or later; none found' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "wattprint needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1 | cut -d' ' -f2); name another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo 'this Python cannot make virtual environments; install its venv package (Debian, Ubuntu: python3-venv)' >&2; exit 1; }
	@echo 'installing wattprint into $(VENV) (once)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq -e '.[all,dev]'
	@touch $@

# Prints a command, then runs it.
run = @echo; echo '$$ $(1)'; $(BIN)/$(1)

demo: $(STAMP)
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(call run,collect --gpu sim:a100-pcie-40gb --freqs 510$(comma)900$(comma)1410 --pmd sim --seed 1 --out $(DEMO)/dataset.parquet)
	$(call run,fit $(DEMO)/dataset.parquet -o $(DEMO)/a100-simulated.json --seed 1)
	$(call run,estimate examples/gpt2-prefill.json --bundle $(DEMO)/a100-simulated.json --freq 900)
	$(call run,estimate examples/gpt2-prefill.json --bundle $(DEMO)/a100-simulated.json --freqs 510$(comma)900$(comma)1410 --quiet)
	@echo; echo 'That board was simulated: its numbers show that the chain works, not what an A100 does.'
	@echo 'The next bundle was fitted on published runs on a real A100:'
	$(call run,estimate examples/gpt2-prefill.json --bundle a100-pcie-40gb-eager --freqs 510$(comma)900$(comma)1410)
	@echo; echo 'To type such commands yourself: . $(BIN)/activate'
comma := ,

# Both halves run whatever the first one says.
test: $(STAMP)
	@status=0; $(MAKE) --no-print-directory lint || status=1; \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --quiet || status=1; exit $$status

# PyTorch is large, so its tests have an environment of their own.  This version also exists as a build for CPUs (2.13.0+cpu), which pip
# prefers where its index or its links offer it.
TORCH   ?= torch==2.13.0
TORCHED := build/torch
test-torch: $(TORCHED)/.installed
	@$(TORCHED)/bin/python -m pytest -n $(WORKERS) --quiet tests/estimator/test_trace_models.py tests/estimator/test_trace_user_code.py \
	  tests/estimator/test_trace_command.py tests/estimator/test_trace_lowering.py tests/microbench_library

$(TORCHED)/.installed: pyproject.toml
	@echo 'installing wattprint and $(TORCH) into $(TORCHED) (once)'
	@$(PYTHON) -m venv $(TORCHED)
	@$(TORCHED)/bin/python -m pip install -qq '$(TORCH)' -e '.[all,torch,dev]'
	@touch $@

lint: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo 'files are not formatted: make format' >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@mkdir -p build; $(BIN)/lint-imports --no-logo >build/lint-imports.txt 2>&1 || { cat build/lint-imports.txt; exit 1; }
	@echo 'style, types and import rules: no complaint'

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

# Timings need some bundle; the demo's is always there to be had.
bench: $(STAMP) $(DEMO)/a100-simulated.json
	@$(BIN)/python benchmarks/bench_estimate.py --bundle $(DEMO)/a100-simulated.json
	@for file in $(filter-out %/bench_estimate.py,$(wildcard benchmarks/*.py)); do echo; echo "$$ python $$file"; $(BIN)/python $$file || exit 1; done

$(DEMO)/a100-simulated.json:
	@$(MAKE) --no-print-directory demo

wheel: $(STAMP)
	@$(BIN)/python -m pip wheel -qq --no-deps --wheel-dir dist . && ls dist

clean:
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)

# A simulator that reads our platforms runs the example and the tests.
simgrid: $(STAMP) simgrid-install
	/usr/bin/python3 examples/simgrid/blocks.py
	@$(BIN)/python -m pytest --quiet tests/estimator/test_block_count.py

# Debian's and Ubuntu's package for the system's Python; fails with the reason where it cannot be installed.
APT := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -o Acquire::Retries=1 -o DPkg::Lock::Timeout=60
simgrid-install:
	@/usr/bin/python3 -c 'import simgrid' 2>/dev/null || { \
	  command -v apt-get >/dev/null || { echo 'SimGrid is not installed, and there is no apt-get' >&2; exit 1; }; \
	  [ "$$(id -u)" = 0 ] || { echo 'SimGrid is not installed; as root: apt-get install python3-simgrid' >&2; exit 1; }; \
	  { $(APT) update && $(APT) install -y --no-install-recommends python3-simgrid; } >/dev/null \
	    || { echo 'apt-get cannot install python3-simgrid here' >&2; exit 1; }; }

# A browser photographs pages.
pictures: $(STAMP) $(DEMO)/a100-simulated.json
	@command -v chromium >/dev/null || { $(APT) update && $(APT) install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null
	@$(BIN)/python scripts/pictures.py $(DEMO)/dataset.parquet

# Changes real examples of every kind of file, and runs what reads them; then small files that stand for gigabytes.
FUZZ_SEED ?= 0
FUZZ_COUNT ?= 10000
fuzz: $(STAMP)
	@$(BIN)/python -m tests.fuzz.mutate --seed $(FUZZ_SEED) --count $(FUZZ_COUNT) && $(BIN)/python -m tests.fuzz.floods
