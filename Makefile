# Everything works from a bare machine with python3 (3.11 or newer) and make.
#   make generate ARGS='--prompt "The sea" --temperature 0.8'

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# stamps: a second call installs nothing unless the metadata changed
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.test-installed
# two processes; files stay whole, because the tests of a file share compiled programs; a process
# that dies ends the run at once: a new one in its place would wait for work for ever
SPREAD := --numprocesses 2 --dist loadfile --max-worker-restart 0

.PHONY: help generate test test-slow lint format bench clean

help:
	@echo "make generate   run the embedded model; pass options in ARGS='...'"
	@echo "make test       run the tests that fit in 20 minutes on two cores"
	@echo "make test-slow  run the long ones as well"
	@echo "make lint       style, format and types"
	@echo "make format     rewrite the files in the project's format"
	@echo "make bench      run the benchmarks in tools/"
	@echo "make clean      remove the virtual environment and caches of this folder"

generate: $(RUNTIME)
	@$(BIN)/python -m dsinfer_jax.generate $(ARGS)

test: $(TOOLS)
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-slow: $(TOOLS)
	$(BIN)/python -m pytest $(SPREAD) -m 'not deviceless' $(ARGS)

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TOOLS)
	@set -e; for program in tools/bench_*.py; do \
		echo "== $$program"; $(BIN)/python "$$program"; \
	done

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Files are compiled when they are first imported: few of the installed ones ever are.
$(RUNTIME): pyproject.toml | $(BIN)/python
	$(PIP) install --no-compile --editable .
	@touch $@

$(TOOLS): pyproject.toml | $(BIN)/python
	$(PIP) install --no-compile --editable '.[test]'
	@touch $@ $(RUNTIME)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
