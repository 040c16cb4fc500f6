# `make help` lists the targets. ARGS go to the command behind a target: make serve ARGS="--port 9000"
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup runtime python mpc vllm serve check test test-all test-vllm lint bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: python ## make .venv with everything serving and testing need, and the default model
	@$(PYTHON) scripts/setup.py --test

runtime: python
	@$(PYTHON) scripts/setup.py

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Cloister needs Python 3.11 or newer, and '$(PYTHON)' is not that ($$($(PYTHON) --version 2>&1 | head -n 1))." >&2; \
	  echo "Install one, or name one you have: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }

mpc: python ## add what the level mpc needs (Python 3.11, Linux on x86-64 or ARM); then serve as before
	@$(PYTHON) scripts/setup.py --mpc

vllm: python ## add vLLM as an engine, in .venv-vllm (3.5 GB); then `cloister serve --engine vllm`
	@$(PYTHON) scripts/setup.py --vllm
	@$(PYTHON) scripts/setup_vllm.py

serve: runtime ## serve the default model on http://127.0.0.1:8000 (ARGS="--port … --model …")
	@$(BIN)/cloister serve $(ARGS)

check: setup ## lint, types and the tests that start no processes: about two minutes
	@$(BIN)/python scripts/run_tests.py --check

test: setup ## lint, types and all tests: 20 minutes on two cores (ARGS="-k scheduler -x": these tests alone)
	@$(BIN)/python scripts/run_tests.py $(ARGS)

test-all: setup ## all that and what only a release needs: soaks, fuzzing, the real model on shares, every benchmark
	@$(BIN)/python scripts/run_tests.py --release

test-vllm: setup vllm ## the tests of the engine vllm, with the real one
	@$(BIN)/python -m pytest tests/cloister_vllm $(ARGS)

lint: setup ## lint and types only: ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: python ## load a running server (ARGS="--server http://127.0.0.1:8000 --users 1,8,32")
	@$(PYTHON) scripts/setup.py --bench
	@$(BIN)/cloister bench peers $(ARGS)

clean: ## remove .venv and what tools left behind; converted models stay in the cache folder
	rm -rf .venv .venv-vllm build dist artifacts src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf
