# make demo: train on this machine.  make test: the tests.  Both need nothing but Python 3.10 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := tests/setup/torch.txt tests/setup/torchvision.txt
# Most tests wait for other processes, so eight run at once; tests/suite says which may not. `make test PARALLEL=` runs
# them one by one.
SPREAD := --dist loadscope
PARALLEL := -n 8 $(SPREAD)
# `make test TIER=2/5` adds the third fifth of the tests that only `make test-all` runs.
TIER := test
ROOT := $(filter 0,$(shell id -u))
SEED := 1
N := 40
SECONDS := 60
DIST := dist

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# An empty value counts as unset: without bytecode files each of the many interpreters that the tests start compiles all
# of ddpctl again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv demo test test-all unit lint style coverage format docs system interpreters bench chaos fuzz garble hangs pages ranks restarts saves
.PHONY: recordings dist requirements clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(VENV)/.torch $(VENV)/.project ## .venv with ddpctl, its development tools and torch

demo: venv ## two local nodes of two processes train resnet_ddp on synthetic images
	$(BIN)/ddpctl up inventory/local.yaml --fresh # another checkout may have left its checkpoints

test: system venv interpreters lint ## each promise of the README; as root also on hosts in network namespaces
	$(if $(ROOT),DDPCTL_REQUIRE_LAB=1) $(BIN)/pytest $(PARALLEL) --tier $(TIER) $(ARGS)

test-all: ## all tests, and how much of the worker they run
	$(MAKE) test TIER=all
	$(MAKE) coverage

unit: venv style ## the tests that start no process and wait for nothing, and ruff
	$(BIN)/pytest -n 2 $(SPREAD) --tier unit $(ARGS)

lint: style ## ruff and mypy
	$(BIN)/mypy

style: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

coverage: venv ## the share of the worker's lines that its own tests run, in all of its processes
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -n 4 $(SPREAD) --tier test tests/worker
	$(BIN)/coverage combine --quiet 2>/dev/null # a process that was killed leaves half a file
	@echo "lines of the worker that its tests run: $$($(BIN)/coverage report --format=total) %"

format: venv ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.project ## the documentation as a site, in build/site/index.html, without torch; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/site

bench: venv system interpreters ## compare ddpctl with the same commands run by hand
	$(if $(ROOT),tests/setup/system-packages clustershell pdsh)
	$(BIN)/python -m tests.bench $(ARGS)

chaos: venv system interpreters ## as root: random faults on hosts in network namespaces: make chaos SEED=1 N=200
	$(BIN)/python -m tests.chaos --seed $(SEED) --number $(N) $(ARGS)

hangs: venv system interpreters ## as root: jobs that hang, and what `ddpctl doctor` says of each: make hangs SEED=1 N=60
	$(BIN)/python -m tests.hangs --seed $(SEED) --number $(N) $(ARGS)

ranks: venv ## ranks with the real torch under the doctor: they must not notice it
	DDPCTL_RANKS=1 $(BIN)/pytest tests/worker/doctor/test_in_rank_torch.py $(ARGS)

restarts: venv system interpreters ## as root: faults under trainings with restarts: make restarts SEED=1 N=28
	$(BIN)/python -m tests.restarts --seed $(SEED) --number $(N) $(ARGS)

garble: venv ## thousands of garbled answers from a node: make garble SEED=1 N=5000
	$(BIN)/python -m tests.garble --seed $(SEED) --number $(N) $(ARGS)

fuzz: venv ## coverage-guided fuzzing of the parsers of foreign bytes: make fuzz SECONDS=60 ARGS=hello
	$(BIN)/pip install -qq --editable '.[dev,fuzz]'
	$(BIN)/python -m tests.fuzz $(SECONDS) $(ARGS)

pages: venv ## the HTML report and the documentation in Chromium: light, dark, and on a phone
	$(if $(ROOT),tests/setup/system-packages chromium)
	$(BIN)/pip install -qq --editable '.[dev,pages]'
	$(BIN)/pytest tests/pages $(ARGS)

saves: venv ## a training stopped with `ddpctl kill --save`, and resumed, again and again: make saves SEED=1 N=50
	$(BIN)/python -m tests.saves --seed $(SEED) --number $(N) $(ARGS)

recordings: venv system interpreters ## as root: the terminal recordings and JSON documents of the docs, by real commands
	$(BIN)/python -m tests.recordings $(ARGS)

dist: $(VENV)/.project ## wheel, source distribution, and the SBOM of the locked dependencies, in dist/
	rm -rf $(DIST)
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir $(DIST) .
	PYTHONWARNINGS=ignore $(BIN)/uv tool run --quiet --from 'cyclonedx-bom>=7,<8' \
	  cyclonedx-py requirements requirements.txt --pyproject pyproject.toml --output-reproducible --output-file $(DIST)/ddpctl.cdx.json

requirements: $(VENV)/.project ## lock ddpctl's dependencies in requirements.txt; newest versions: ARGS=--upgrade
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	  --custom-compile-command 'make requirements' --output-file requirements.txt $(ARGS) pyproject.toml

clean: ## remove everything that make created in this folder
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Only root can install packages and start hosts; without it the tests that need either are skipped.
system:
	$(if $(ROOT),tests/setup/system-packages)

interpreters: system
	$(if $(ROOT),tests/setup/lab-interpreter)
	-$(if $(ROOT),tests/setup/controller-interpreter)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ddpctl needs Python 3.10 or newer: make PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tests/setup/system-packages python3-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(TORCH) | $(BIN)/pip
	$(BIN)/pip install -qq -r tests/setup/torch.txt
	$(BIN)/pip install -qq --no-deps -r tests/setup/torchvision.txt
	@touch $@

$(VENV)/.project: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -qq --editable '.[dev]'
	@touch $@
