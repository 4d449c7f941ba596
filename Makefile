# Everything a developer runs. `make demo` and `make test` need nothing but this clone, git, make
# and Python 3.11 or newer; they create .venv by themselves.

VENV := .venv
BIN := $(VENV)/bin
# The CPU build is enough for every target but bench-gpu. Another: make TORCH=torch==2.14.1 test
TORCH ?= torch==2.13.0
PYTEST := $(BIN)/python -m pytest
UNIT_JOBS ?= 2
# The cluster tests mostly wait; three at a time still fit on two cores.
SLURM_JOBS ?= 3
E2E_JOBS ?= 2
# Those of the cluster mostly wait, the others compute: together they take less time than in turn.
TEST_JOBS ?= 4
FAULTS ?= 150
RUNS ?= 3

.PHONY: help demo test check fix unit rounds slurm e2e long chaos bench golden packages clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/ready: pyproject.toml .ci/venv
	.ci/venv "$(VENV)" "$(TORCH)"
	@touch $@

demo: $(VENV)/ready  ## Train on this machine, be preempted, come back, finish. No Slurm, no GPU.
	@$(BIN)/python jobs/demo.py

test: $(VENV)/ready packages  ## Everything but `long`: check, rounds, slurm, e2e. As root it installs Slurm.
	$(MAKE) check
	$(PYTEST) tests/rounds
	@if .ci/can-run-slurm; then \
	  set -x; FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/slurm/test_sites.py && \
	  FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/slurm tests/e2e --ignore=tests/slurm/test_sites.py \
	    -m "not long" -n $(TEST_JOBS) --dist worksteal; \
	else \
	  echo "LEFT OUT: tests/slurm and those of tests/e2e that start a real Slurm cluster"; \
	  set -x; $(PYTEST) tests/e2e -n $(E2E_JOBS) --dist worksteal -m "not long"; \
	fi
	@echo "LEFT OUT: the tests marked long, some 20 minutes (make long)"

long: $(VENV)/ready  ## A 135M model, frameworks' scripts, more ends and containers on Slurm, families, compile.
	FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/slurm tests/e2e -m long -n $(E2E_JOBS) --dist worksteal

packages:
	.ci/packages

check: $(VENV)/ready  ## Format, lint, types, import rules, unit tests, golden scripts, packaging.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) unit

fix: $(VENV)/ready  ## Format and mend what ruff can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(VENV)/ready  ## Unit tests, golden scripts and packaging; seconds.
	$(PYTEST) tests/unit tests/golden tests/packaging -n $(UNIT_JOBS) --dist loadfile

ROUNDS ?= 1000
ROUNDS_SEED ?= 1
rounds: $(VENV)/ready  ## A thousand times two to four watchers, killed at random; half an hour.
	$(BIN)/python -m tests.rounds --rounds $(ROUNDS) --seed $(ROUNDS_SEED)

slurm: $(VENV)/ready  ## Faults on a real Slurm cluster (root, Debian's Slurm packages).
	@# Many quick questions to one cluster of their own: several workers would start one each.
	FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/slurm/test_sites.py
	FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/slurm --ignore=tests/slurm/test_sites.py \
	  -n $(SLURM_JOBS) --dist worksteal

e2e: $(VENV)/ready  ## Real FSDP2 training, interrupted, on the real cluster.
	FSDPQ_REQUIRE_SLURM=1 $(PYTEST) tests/e2e -n $(E2E_JOBS) --dist worksteal

chaos: $(VENV)/ready  ## About 20 minutes of faults over several runs (SEED=7 FAULTS=150 RUNS=3).
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --faults $(FAULTS) --runs $(RUNS) \
	  --keep tests/chaos/RESULTS.md --wreck build/wreck

golden: $(VENV)/ready  ## Render the golden scripts anew; look at the difference.
	$(BIN)/python -m tests.golden.regenerate

bench: $(VENV)/ready  ## Measure; compare with the peers in one run. Never part of the tests.
	$(BIN)/python -m tests.bench

clean:  ## Remove what the targets made.
	rm -rf $(VENV) runs dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
