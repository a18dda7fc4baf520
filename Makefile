# Start with `make serve`; `make` alone lists all commands. Python 3.11 or newer and make are enough for serve, console and
# dist. Some tests need more programs, and say so.

# `python3`, unless it was built without optimisation, as pyenv does by default: a request then takes 1.3 times the processor
# time. In its place comes the system's own Python, if that is new enough and can make environments.
PYTHON ?= $(shell python3 -c 'import sys, sysconfig; sys.exit("--enable-optimizations" in sysconfig.get_config_var("CONFIG_ARGS"))' \
  && /usr/bin/python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NODE_TOOLS := client/tests/typescript tests/openapi-lint

.DEFAULT_GOAL := help
.PHONY: help setup serve console test test-thorough test-proofs check docs prove bench bench-quick dist release-check container-check lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Only files whose digests the lock files name are installed; then this project, built by the pinned backend.
$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock | $(VENV)/bin/python
	$(PIP) install --require-hashes --requirement requirements.lock --requirement requirements-build.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml client/pyproject.toml requirements-dev.lock requirements-build.lock | $(VENV)/bin/python
	$(PIP) install --require-hashes --requirement requirements-dev.lock --requirement requirements-build.lock
	$(PIP) install --no-deps --no-build-isolation --editable . --editable ./client
	@touch $@ $(VENV)/.installed

# The tools of two tests, which are skipped without them: a machine without npm, or without a network, is no failure here.
%/node_modules/.package-lock.json: %/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $* --silent && touch $@; fi || true

setup: $(VENV)/.installed ## Make .venv; afterwards .venv/bin/petstore is the command

serve: setup ## Start the service on 127.0.0.1:8080 (options: make serve ARGS="--port 9000")
	@$(BIN)/petstore serve --show-first-key $(ARGS)

console: setup ## Start the operator's console on 127.0.0.1:8081 (make console ARGS="--data …")
	@$(BIN)/petstore console $(ARGS)

# In memory, where there is room: tests sync thousands of small files, and only proofs cut the power.
TEST_FILES := $(shell [ -w /dev/shm ] && [ "$$(df --output=avail -m /dev/shm | tail -1)" -gt 6000 ] && echo TMPDIR=/dev/shm)
# Byte code is kept even where the environment says not to: each of many processes would compile all of it again.
# Several processes, except for a single file.
SINGLE_FILE = $(filter 1,$(words $(foreach word,$(ARGS),$(findstring .py,$(word)))))
PARALLEL = $(if $(SINGLE_FILE),,--numprocesses 4 --dist loadfile --no-loadscope-reorder)
PYTEST = PYTHONDONTWRITEBYTECODE= $(TEST_FILES) $(BIN)/python -m pytest $(PARALLEL)
NODE_MODULES = $(NODE_TOOLS:%=%/node_modules/.package-lock.json)

test: $(VENV)/.installed-dev $(NODE_MODULES) ## Run the tests (some of them: make test ARGS="-k limits")
	$(PYTEST) -m "not static and not proof and not thorough" $(ARGS)

test-thorough: $(VENV)/.installed-dev $(NODE_MODULES) ## Run the slow tests: every page under axe-core, generated clients, repeated faults
	$(PYTEST) -m thorough $(ARGS)

test-proofs: $(VENV)/.installed-dev ## Run every proof in its short form, as it is and with a planted fault
	$(PYTEST) -m proof --dist load --timeout 1800 tests/project/test_prove.py $(ARGS)

check: $(VENV)/.installed-dev $(NODE_MODULES) ## Lint, documents, the direction of imports, types and known weaknesses, fastest first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/python -m tools.documents
	@$(BIN)/python -m tools.references --check
	@$(BIN)/python -m tools.breaking_changes
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src client/src
	$(BIN)/mypy
	$(PYTEST) -q -m static tests/web/test_openapi_lint.py client/tests/test_types.py
	@$(BIN)/python -m tools.advisories

docs: $(VENV)/.installed-dev ## Write docs/reference/ from the code
	@$(BIN)/python -m tools.references

prove: $(VENV)/.installed-dev ## Try the claims where others break (three hours; about a minute with ARGS="--scale short")
	$(BIN)/python -m prove $(ARGS)

bench: $(VENV)/.installed-dev ## Race the service against Go and FastAPI doing the same work (needs wrk)
	$(BIN)/python bench/race.py $(ARGS)

bench-quick: $(VENV)/.installed-dev ## The same in under two minutes: fewer rows, shorter rounds
	$(BIN)/python bench/race.py --seconds 2 --rounds 2 --animals 20000 --rows list,get,create --contenders petstore,go,nginx \
	  --out bench/results/quick.json $(ARGS)

dist: $(VENV)/.installed ## Build wheels and source archives of service and client, and an SBOM, into dist/
	@$(BIN)/python -m tools.dist

release-check: dist $(VENV)/.installed-dev ## Install the wheel of dist/ in a new environment and use it (PYTHON=python3.14: in that one)
	@$(BIN)/python -m tools.release --python $(PYTHON)

container-check: dist $(VENV)/.installed-dev ## Build the container image and use it (needs podman and debootstrap, as root)
	@$(BIN)/python -m tools.containers $(ARGS)

# Pins stay as they are unless ARGS=--upgrade. The platforms at the end are those the service can be installed on.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
PLATFORMS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu

lock: ## Pin all dependencies with their digests in requirements*.lock (make lock ARGS=--upgrade: the newest)
	@test -x $(BIN)/uv || { $(MAKE) $(VENV)/bin/python && $(PIP) install uv; }
	$(COMPILE) $(ARGS) --all-extras --output-file requirements.lock pyproject.toml
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(COMPILE) --output-file requirements-build.lock -
	$(COMPILE) $(ARGS) --all-extras --group dev --constraint requirements.lock --constraint requirements-build.lock \
	  --output-file requirements-dev.lock pyproject.toml client/pyproject.toml
	@for platform in $(PLATFORMS); do for python in 3.11 3.12 3.13 3.14; do \
	  $(BIN)/uv pip install --quiet --dry-run --target $(VENV)/none --require-hashes --only-binary :all: \
	    --python-platform $$platform --python-version $$python --requirement requirements.lock \
	    && echo "requirements.lock has wheels for CPython $$python on $$platform" || exit 1; \
	done; done

clean: ## Remove .venv and caches (never data)
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench/.venv bench/build \
	  $(NODE_TOOLS:%=%/node_modules)
