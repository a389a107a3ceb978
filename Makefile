# `make` lists the main targets. All but help and clean use the virtual environment .venv. They make it first, unless it is newer
# than pyproject.toml and constraints.txt.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
READY   = $(VENV)/.ready
JOBS   ?= 2

# These decide how long `make proof` takes. EXAMPLES: a factor for the number of examples of property tests that state one; the
# others draw 2000. PROGRAMS: the number of programs that tests/proof/explorer.py explores.
EXAMPLES ?= 40
PROGRAMS ?= 12000
FUZZ_MINUTES ?= 60
GROWTH_MINUTES ?= 20

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all proof proof-explorer proof-kills proof-fuzz proof-growth check golden figures site descriptions profiles bench coverage clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make the virtual environment

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "chimerac needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,tensorboard,dev]'
	touch $(READY)

train: $(READY) ## train a small GPT with Chimera on two ranks (CPU), then run four ranks with timed stages
	$(BIN)/python interpreter/run.py schedules/chimera.sched -p D=2 -p N=8
	@echo
	$(BIN)/python interpreter/run.py schedules/chimera.sched -p D=4 --timed 40

test: $(READY) ## run all tests that need only Python
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-all: $(READY) ## run all tests, including those that need root, a browser or a GPU
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --everything $(ARGS)

proof: $(READY) ## test the verifier and record the results in docs/proof.md: some two hours + FUZZ_MINUTES (60) + GROWTH_MINUTES (20)
	CHIMERA_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=proof --timeout=3600 tests/property $(ARGS)
	$(MAKE) -j$(JOBS) proof-explorer proof-kills
	$(MAKE) proof-fuzz
	$(MAKE) proof-growth

proof-explorer: $(READY)
	$(BIN)/python -m tests.proof.explorer --programs $(PROGRAMS)

proof-kills: $(READY)
	$(BIN)/python -m tests.proof.kills

# The first line may fail, where atheris has no wheel: then only the project's own engine fuzzes.
proof-fuzz: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --only-binary atheris --editable '.[proof]'
	$(BIN)/python -m tests.proof.fuzz --minutes $(FUZZ_MINUTES)

proof-growth: $(READY)
	$(BIN)/python -m tests.proof.growth --minutes $(GROWTH_MINUTES)

check: $(READY) ## lint, check types and import rules, run the unit, golden and contract tests: some minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests/unit tests/golden tests/contract

golden: $(READY) ## rewrite the golden files
	$(BIN)/python -m pytest -q tests/golden --golden

figures: $(READY) ## rewrite the generated drawings, tables and outputs in README, docs and schedules, and the saved parser
	$(BIN)/python -m tools.saved_parser
	$(BIN)/python -m tools.gallery
	$(BIN)/python -m tools.figures --write

site: $(READY) ## build the documentation as a site, in build/site: every link is checked
	$(BIN)/python -m tools.site

profiles: $(READY) ## write the shipped profiles of published hardware again, for chimerac --profile NAME
	$(BIN)/python -m tools.profiles --write

descriptions: $(READY) ## measure the presets' descriptions again, for chimerac --model NAME
	$(BIN)/python -m tools.descriptions --write

BENCHES = bench_runtime bench_instructions bench_timed bench_predicted bench_overlap bench
bench: $(READY) ## compare runtime and compiler with torch's, timed stages with the simulation, and measure overlap (about an hour)
	@status=0; for name in $(BENCHES); do $(BIN)/python -m tools.$$name || status=1; echo; done; exit $$status

coverage: $(READY) ## measure which lines the tests execute
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage report

clean: ## remove the virtual environment and caches; the results of experiments, in runs/, stay
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
