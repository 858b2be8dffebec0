# make demo   a whole installation on this machine: three sites, two clusters, faults and all, in a minute
# make test   every check and every test
# make test-quick   the tests that start no lab and take little time, in less than a minute
BIN := .venv/bin
PYTEST = $(BIN)/python -m compileall -q virtcloud pbs_hooks sbf_service sbf_command && PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
# Tests start hundreds of Python processes: without compiled modules each of them compiles the sources again.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick test-durations test-pbs bench check format docs lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

setup: ## install what the lab and the tests need (Debian packages, .venv)
	@setup/install

demo: setup ## two virtual clusters over three sites, on this machine
	@$(BIN)/virtcloud lab demo

test: setup check ## every check and every test
	@$(PYTEST) -n auto

test-quick: setup ## tests that start no lab and take little time (less than a minute)
	@$(PYTEST) -n auto --quick

test-durations: setup ## every test, and record how long each file takes: the next runs start with the longest
	@$(PYTEST) -n auto --record-durations

test-pbs: setup ## the scenarios on a real OpenPBS (a quarter of an hour), where one is installed
	@$(BIN)/pytest tests/pbs/test_install.py
	@$(BIN)/pytest tests/pbs/test_scenarios.py tests/pbs/test_reconciliation.py tests/pbs/test_queues.py

bench: setup ## measure what is promised about speed, beside its targets (ten minutes)
	@PYTHONPATH=tests $(BIN)/python -m benchmarks

check: setup ## format, lint, types, layers, docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check

format: setup ## let ruff write what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## write the generated pages of docs/reference
	@$(BIN)/python docs/generate.py

lock: ## choose versions anew within the ranges of pyproject.toml
	@setup/lock

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
