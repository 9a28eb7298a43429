# Everything from a fresh clone: Python 3.11+, pip, venv and git are all that must exist beforehand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TEST_STAMP := $(VENV)/.ready-for-tests

.PHONY: setup test-setup quickstart test check nightly compat fleet screenshots reference outputs docs skills-table system-packages clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up what it needs, then run the whole loop on the bundled model (CPU, no key)"
	@echo "make test         set up more (it says what and why), then lint, types, layers and all tests"
	@echo "make setup        only the environment of the quickstart in $(VENV); the log is $(VENV)/setup.log"
	@echo "make setup PIP=1      the same, without uv"
	@echo "make setup LOCKED=1   the same, every package checked by its hash in requirements.lock"
	@echo "make nightly      the slow checks too"
	@echo "make compat       tinker-cookbook's own loops against the engine"
	@echo "make fleet        a sampling fleet in front of vLLM itself, on the CPU"
	@echo "make docs         the documentation as a site in site/; make reference writes its generated pages"
	@echo "make outputs      the output blocks of the documentation, by executing the commands above them"
	@echo "make screenshots  the pictures of the web app in docs/images, made by its browser tests"
	@echo "make skills-table check every skill against its packages, and write the table in docs/skills.md"

setup: $(STAMP)

# What is installed, and in which order: scripts/setup.sh. The output goes to $(VENV)/setup.log.
# LOCKED=1: from requirements.lock, by hash; scripts/lock.py writes that file.
$(STAMP): pyproject.toml constraints.txt requirements.lock scripts/setup.sh
	@LOCKED=$(LOCKED) PIP=$(PIP) sh scripts/setup.sh $(VENV) $(PYTHON) quickstart
	@touch $(STAMP)

test-setup: $(TEST_STAMP)

$(TEST_STAMP): pyproject.toml constraints.txt requirements.lock scripts/setup.sh
	@LOCKED=$(LOCKED) PIP=$(PIP) sh scripts/setup.sh $(VENV) $(PYTHON) test
	@touch $(STAMP) $(TEST_STAMP)

quickstart: setup
	$(BIN)/hermes quickstart

# What tests need from the system. Where it may not be installed, the tests that need it say so and skip.
system-packages:
	@sh scripts/install-test-packages.sh

check: test-setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three workers on two cores: a third of the time a test waits for a process that it started. A file is one worker's, so
# that its servers and models are made once. The longest file starts first (tests/conftest.py).
test: test-setup system-packages check
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow" --durations 50

nightly: test-setup system-packages check
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[ray]'
	HERMES_EXPLORE=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
	HERMES_HOME=$(VENV)/skills-home PYTHONPATH=scripts $(BIN)/python -m skills_check --all --online --run

# In an environment of its own under .compat: the cookbook pins an older transformers.
compat: test-setup
	$(BIN)/python scripts/compat

# In an environment of its own under .fleet: vLLM pins what Hermes does not.
fleet: test-setup
	$(BIN)/python scripts/fleet.py

screenshots: test-setup system-packages
	HERMES_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/web/test_screenshots.py

# The pages of docs/reference, from the code.
reference: test-setup
	$(BIN)/python scripts/docs/reference.py

# The blocks beneath the marked commands of the pages; the commands run in an empty home.
outputs: test-setup
	$(BIN)/python scripts/docs/outputs.py

docs: test-setup
	$(BIN)/python -m zensical build --strict --clean

skills-table: test-setup
	HERMES_HOME=$(VENV)/skills-home $(BIN)/python scripts/skills_table.py

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .import_linter_cache
