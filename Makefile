# make demo         starts an installation with three sites on this machine, and creates and removes clusters
# make test         runs every check and the tests in tests/unit to tests/lab
# make test-quick   runs the fast tests that start no lab, in less than a minute
BIN := .venv/bin
PYTEST = $(BIN)/python -m compileall -q virtcloud pbs_hooks sbf_service sbf_command && PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
# The tests start hundreds of Python processes, which would compile the sources again without compiled modules.
SIDE_BY_SIDE = $(MAKE) --no-print-directory --jobs 2 --output-sync=target

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick test-stateful test-durations test-pbs test-ansible test-packages archives wheels deb site screenshots bench \
	check check-types check-rest compile-tests test-browser format docs lock clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: ## install the Debian packages and the .venv for the lab and the tests
	@setup/install

demo: setup ## create virtual clusters across three sites on this machine, and run an MPI program
	@$(BIN)/virtcloud lab demo

test: setup ## run every check and the tests in tests/unit to tests/lab
	@$(SIDE_BY_SIDE) check-types check-rest compile-tests
	@$(PYTEST) -n auto

test-quick: setup ## run the fast tests that start no lab (less than a minute)
	@$(PYTEST) -n auto --quick

TIMES = 20
test-stateful: setup ## run the random sequences of tests/stateful TIMES=20 times as often as `make test`
	@VIRTCLOUD_SEQUENCES=$(TIMES) $(PYTEST) -n auto --timeout $$((300 * $(TIMES))) tests/stateful

test-durations: setup ## run every test and record the duration of each file; later runs start with the longest
	@$(PYTEST) -n auto --record-durations

test-pbs: setup ## run the scenarios on an installed OpenPBS (a quarter of an hour)
	@$(BIN)/pytest tests/pbs/test_install.py
	@$(BIN)/pytest tests/pbs/test_bandwidth_example.py tests/pbs/test_scenarios.py tests/pbs/test_reconciliation.py tests/pbs/test_queues.py \
		tests/pbs/test_repeated_starts.py tests/pbs/test_power_failure.py

test-browser: setup ## run the tests of the web console in headless Chromium (a minute)
	@$(BIN)/pytest tests/browser

test-ansible: setup ## run the playbooks of ansible/ on machines with systemd (ten minutes)
	@cd ansible && PATH="$$PWD/../$(BIN):$$PATH" ansible-lint --offline --profile production
	@$(BIN)/pytest -n 2 tests/playbooks

test-packages: setup ## build, install and use the wheels and the Debian packages (three minutes)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 tests/packages

archives: setup ## write the sdist and the wheels of virtcloud and virtcloud-lab into dist/
	@$(BIN)/python -m hatchling build --directory dist --target sdist --target wheel
	@cd setup/lab_package && ../../$(BIN)/python -m hatchling build --directory ../../dist --target wheel

wheels: setup ## write dist/virtcloud-wheels.tar, from which Ansible installs virtcloud
	@setup/wheels

deb: setup ## write Debian packages with all Python packages into dist/, for hosts without a network
	@setup/deb

site: setup ## write the site of the documentation into dist/site, and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file setup/mkdocs.yml

screenshots: setup ## write the pictures of the console in docs/how-to/console again
	@VIRTCLOUD_SCREENSHOTS=docs/how-to/console $(BIN)/pytest tests/browser/test_console_in_chromium.py -k screenshots

bench: setup ## measure speed and compare it with the targets (ten minutes)
	@PYTHONPATH=tests $(BIN)/python -m benchmarks

check: setup ## check format, lint, types, layers of imports, Ansible's files and generated pages
	@$(SIDE_BY_SIDE) check-types check-rest

check-types:
	@$(BIN)/mypy

check-rest:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/yamllint --strict --config-data '{extends: default, rules: {comments: {min-spaces-from-content: 1}, line-length: {max: 160}}}' ansible
	@$(BIN)/python docs/generate.py --check

compile-tests: # once, because the workers of `make test` start together, and each of them would compile all test modules
	@$(PYTEST) --compile-tests >/dev/null || true # the run itself shows what is wrong with a module

format: setup ## format the code and apply ruff's automatic corrections
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## write docs/reference, the man pages and the completion scripts from the code
	@$(BIN)/python docs/generate.py

lock: ## update setup/requirements.lock within the version ranges of pyproject.toml
	@setup/lock

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
