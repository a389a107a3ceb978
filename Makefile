# `make` lists the targets. Everything runs in .venv, set up on first use from constraints.txt.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
READY   = $(VENV)/.ready
JOBS   ?= 2
FUZZ_MINUTES ?= 60
GROWTH_MINUTES ?= 20

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all proof proof-explorer proof-kills proof-fuzz proof-growth check golden figures bench coverage clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make the virtual environment

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "chimerac needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,dev]'
	touch $(READY)

train: $(READY) ## train a small GPT with Chimera on two ranks (CPU), then time four that sleep
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 interpreter/run.py schedules/chimera.sched -p D=2 -p N=8
	@echo
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 4 interpreter/run.py schedules/chimera.sched -p D=4 --timed 40

test: $(READY) ## run everything that needs only Python
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-all: $(READY) ## run everything, the tests that need root, a browser or a GPU too
	$(BIN)/python -m pytest -n $(JOBS) --everything $(ARGS)

proof: $(READY) ## prove the prover anew, write docs/proof.md: FUZZ_MINUTES (60), GROWTH_MINUTES (20) and half an hour
	CHIMERA_EXAMPLES=20 $(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=hunt --timeout=3600 tests/property $(ARGS)
	$(MAKE) -j$(JOBS) proof-explorer proof-kills
	$(MAKE) proof-fuzz
	$(MAKE) proof-growth

proof-explorer proof-kills: proof-%: $(READY)
	$(BIN)/python -m tests.proof.$*

proof-fuzz: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --only-binary atheris --editable '.[proof]'
	$(BIN)/python -m tests.proof.fuzz --minutes $(FUZZ_MINUTES)

proof-growth: $(READY)
	$(BIN)/python -m tests.proof.growth --minutes $(GROWTH_MINUTES)

check: $(READY) ## lint, types, import contracts, fast tests: under a minute, before every commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n $(JOBS) tests/unit tests/golden tests/contract

golden: $(READY) ## write the golden files anew
	$(BIN)/python -m pytest -q tests/golden --golden

figures: $(READY) ## write every drawing and table in README and docs anew, and the saved parser
	$(BIN)/python -m tools.saved_parser
	$(BIN)/python -m tools.figures --write

bench: $(READY) ## measure the runtime beside torch's, timed stages, and the compiler beside torch's (five minutes)
	$(BIN)/python -m tools.bench_runtime
	@echo
	$(BIN)/python -m tools.bench_timed
	@echo
	$(BIN)/python -m tools.bench

coverage: $(READY) ## measure which lines the tests reach
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage report

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache runs
