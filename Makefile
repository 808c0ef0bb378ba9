# `make quickstart` and `make test` set everything up by themselves.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Side by side, each worker with a network of its own. Tests that share a fixture stay together.
TEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder --numprocesses

# Of the machine that `make bundle` packs for.
BUNDLE := dist/bundle
BUNDLE_PYTHON := 3.12
BUNDLE_PLATFORMS := manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_27_x86_64 manylinux_2_28_x86_64
BUNDLE_MOST_MIB := 60

.PHONY: quickstart pictures test test-all test-versions faults fault-sample errands check docs bench search knobs gpu-check wheel bundle bundle-check clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,check,docs,nvidia]'
	touch $(READY)

quickstart: $(READY)  ## the main job: tune a small GPT on this machine
	$(BIN)/autotune start examples/quickstart.yaml

pictures: quickstart  ## docs/images, from the study of the quickstart; build/screens, every state
	$(BIN)/python -m docs.pictures quickstart --states build/screens

test: $(READY)  ## the tests, without those that take long: about eight minutes on two cores
	$(TEST) 5 -m "not long and not slow and not errand and not gpu and not index"

test-all: $(READY)  ## every test but full counts and errands
	$(TEST) 5 -m "not slow and not errand and not gpu and not index"

VERSIONS ?= 3.11 3.12 3.13
test-versions:  ## unit and control tests on each supported Python that this machine has
	@tested=; for version in $(VERSIONS); do \
		if ! python$$version -c '' 2> /dev/null; then echo "python$$version: not on this machine"; continue; fi; \
		$(MAKE) PYTHON=python$$version VENV=.venv-$$version .venv-$$version/.ready || exit 1; \
		echo "python$$version:"; \
		env -u PYTHONDONTWRITEBYTECODE .venv-$$version/bin/python -m pytest -q --dist loadgroup --numprocesses 4 \
			-m "not slow and not errand and not gpu and not index" tests/unit tests/control || exit 1; \
		tested="$$tested $$version"; \
	done; test -n "$$tested" && echo "passed on:$$tested"

faults: $(READY)  ## the table of faults, and what else has a full count
	$(TEST) 4 -m "fault or slow" --fault-table=faults.json

fault-sample: $(READY)  ## each line of the table of faults once
	$(TEST) 4 -m sample --first-of-each --fault-table

errands: $(READY)  ## what users do with the command, each with real studies, as far as `make test` leaves it out
	$(TEST) 4 -m errand

ifeq ($(origin PYTHON),command line)
# That interpreter with its own torch, as it stands: no environment, no network.
gpu-check: GPU_PYTHON := $(PYTHON)
gpu-check:  ## what needs an NVIDIA device; PYTHON=python3: with the torch of that interpreter
	test ! -e $(BUNDLE)/requirements.txt || $(PYTHON) -m pip install --quiet --no-deps -r $(BUNDLE)/requirements.txt
else
gpu-check: GPU_PYTHON := $(BIN)/python
gpu-check: $(READY)
endif
	$(GPU_PYTHON) tests/gpu/seen.py
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m pytest -m gpu tests/gpu

check: $(READY)  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## build/site: the documentation, with a page per knob; nothing is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(READY)  ## what a trial costs, agreement (after `make quickstart`), fidelity
	$(BIN)/python benchmarks/overhead.py --json
	$(BIN)/python benchmarks/agreement.py --json
	$(BIN)/python benchmarks/fidelity.py --json

search: $(READY)  ## how many trials each sampler needs on the recorded tables
	$(BIN)/python benchmarks/search.py --json

knobs: $(READY)  ## docs/knobs.md, from the catalogue and the measured effects
	$(BIN)/python benchmarks/knobs.py --page

wheel: $(READY)  ## dist/*.whl
	$(BIN)/python -m build --wheel

bundle: $(READY)  ## dist/bundle: the wheels for a machine with its own torch and no index
	rm -rf $(BUNDLE)
	$(BIN)/pip download --quiet --no-deps --only-binary :all: --python-version $(BUNDLE_PYTHON) \
		$(BUNDLE_PLATFORMS:%=--platform %) --constraint constraints.txt --dest $(BUNDLE) \
		--requirement requirements-bundle.txt
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir $(BUNDLE) .
	{ echo '# pip install --no-deps -r requirements.txt   (what is installed already stays as it is)'; \
		echo '--no-index'; echo '--find-links .'; echo torch-autotune; cat requirements-bundle.txt; } \
		> $(BUNDLE)/requirements.txt
	du --apparent-size --human-readable --summarize $(BUNDLE)
	test $$(du --apparent-size --block-size 1M --summarize $(BUNDLE) | cut -f 1) -le $(BUNDLE_MOST_MIB)

bundle-check: $(READY)  ## that it suffices where there is a torch and nothing else; needs the index
	$(BIN)/python -m pytest -m index tests/acceptance/test_bundle.py

clean:  ## removes environments, build outputs and caches; nothing of studies
	rm -rf $(VENV) .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -path ./.autotune -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
