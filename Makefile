# Every target sets itself up: a Debian with python3, python3-venv and make is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench
REQUIRED := pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test check bench compat fuzz reliability clean

demo: $(READY)
	$(BIN)/callgate demo

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/test_layering.py

bench: $(READY_BENCH)
	$(BIN)/python -m benchmarks $(ARGS)

# Real clients, servers and runtimes, each in an environment of its own; they exclude each other.
compat: $(READY)
	$(BIN)/python tests/compat/run.py $(ARGS)

# Ten million frames, grammar and bytes; about a quarter of an hour.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --frames 10000000 $(ARGS)

# The property tests at full size; minutes, not seconds.
reliability: $(READY)
	CALLGATE_RELIABILITY=full $(BIN)/python -m pytest $(ARGS)

clean:
	rm -rf $(VENV) .venv-compat .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): $(REQUIRED) | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@

$(READY_BENCH): $(READY)
	$(PIP) -e '.[dev,bench]'
	touch $@
