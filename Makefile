# `make quickstart` and `make test` set everything up by themselves.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests that others beside them do not disturb, the longest ones first.
UNTIMED := tests/acceptance/test_first_starts.py tests/unit tests/contract/storage \
	tests/contract/test_trial_ledger.py tests/acceptance/test_bad_study_files.py

.PHONY: quickstart test test-full check bench search knobs gpu-check wheel clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,check]'
	touch $(READY)

quickstart: $(READY)  ## the main job: tune a small GPT on this machine
	$(BIN)/autotune start examples/quickstart.yaml

test: $(READY)  ## all tests but the endurance ones
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses 2 $(UNTIMED)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(UNTIMED:%=--ignore=%)

test-full: $(READY)  ## the full counts: hundreds of kills, minutes of polling
	$(BIN)/python -m pytest -m "not gpu" --timeout 3600 -o faulthandler_timeout=3900

gpu-check: $(READY)  ## what needs an NVIDIA device
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[nvidia]'
	$(BIN)/python -m pytest -m gpu

check: $(READY)  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## the figures of the README
	$(BIN)/python benchmarks/overhead.py --json
	$(BIN)/python benchmarks/agreement.py --json
	$(BIN)/python benchmarks/fidelity.py --json

search: $(READY)  ## how many trials each sampler needs on the recorded tables
	$(BIN)/python benchmarks/search.py --json

knobs: $(READY)  ## docs/knobs.md, from the catalogue and the measured effects
	$(BIN)/python benchmarks/knobs.py --page

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) dist build .autotune autotune.db autotune.db-* best.yaml
