# `make quickstart` and `make test` set everything up by themselves.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers, each with a network of its own; tests that share a fixture stay together.
TEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

.PHONY: quickstart test faults check bench search knobs gpu-check wheel clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,check]'
	touch $(READY)

quickstart: $(READY)  ## the main job: tune a small GPT on this machine
	$(BIN)/autotune start examples/quickstart.yaml

test: $(READY)  ## every test but full counts and long studies: minutes
	$(TEST) -m "not slow and not gpu"

faults: $(READY)  ## the table of faults at full counts, and the studies that `make test` leaves out
	$(TEST) -m "(fault or slow) and not gpu" --fault-table=faults.json

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
