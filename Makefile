# Every target sets itself up: a Debian with python3, python3-venv and make is enough.

PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.ready-core
READY := .venv/.ready-dev
READY_BENCH := .venv/.ready-bench
REQUIRED := pyproject.toml constraints.txt
INSTALL := $(PYTHON) .ci/install.py

.PHONY: demo test check package bench compat debian fuzz reliability clean

demo: $(CORE)
	@$(BIN)/callgate demo

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/test_layering.py

# The wheel, the sdist and an SBOM in dist, each tried in an environment of its own.
package:
	$(PYTHON) .ci/package.py

bench: $(READY_BENCH)
	$(BIN)/python -m benchmarks $(ARGS)

# Real clients, servers and runtimes, each in an environment of its own; they exclude each other.
compat: $(READY)
	$(BIN)/python tests/compat/run.py $(ARGS)

# What only another kernel can prove, on Debian's own under qemu; as root, minutes.
debian: $(READY)
	CALLGATE_VM=debian $(BIN)/python -m pytest tests/containment/test_kernels.py $(ARGS)

# Ten million frames, grammar and bytes; about a quarter of an hour.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --frames 10000000 $(ARGS)

# Every proof at full size but those of `make compat`; most of an hour.
reliability: $(READY)
	CALLGATE_RELIABILITY=full CALLGATE_VM=all $(BIN)/python -m pytest $(ARGS)
	$(BIN)/python -m tests.fuzz --frames 10000000

clean:
	rm -rf .venv .venv-compat .vm .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CORE): $(REQUIRED)
	@$(INSTALL) '' 'the core of callgate'
	@touch $@

$(READY): $(REQUIRED)
	@$(INSTALL) dev 'callgate, every runtime that it mounts in, and the tools to test it'
	@touch $(CORE) $@

$(READY_BENCH): $(READY)
	@$(INSTALL) dev,bench 'what the benchmarks compare with'
	@touch $@
