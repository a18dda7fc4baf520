# Start with `make serve`. Run `make` to list all commands. The commands serve, console and dist need only make and Python
# 3.11 or newer. Tests that need other programs are skipped with a message if these are not installed.

# If `python3` was built without optimisation, which is pyenv's default, requests take 1.3 times as much CPU time. In that
# case, use the system's Python instead, if it is new enough and can create virtual environments.
PYTHON ?= $(shell python3 -c 'import sys, sysconfig; sys.exit("--enable-optimizations" in sysconfig.get_config_var("CONFIG_ARGS"))' \
  && /usr/bin/python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NODE_TOOLS := client/tests/typescript tests/openapi-lint

.DEFAULT_GOAL := help
.PHONY: help setup serve console test test-thorough test-proofs check docs prove bench bench-quick dist release-check container-check lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Petstore requires Python 3.11 or newer. Try: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Installs only files whose digests are in the lock files, and then this project, built with the pinned backend.
$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock | $(VENV)/bin/python
	$(PIP) install --require-hashes --requirement requirements.lock --requirement requirements-build.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml client/pyproject.toml requirements-dev.lock requirements-build.lock | $(VENV)/bin/python
	$(PIP) install --require-hashes --requirement requirements-dev.lock --requirement requirements-build.lock
	$(PIP) install --no-deps --no-build-isolation --editable . --editable ./client
	@touch $@ $(VENV)/.installed

# The two tests that use these tools are skipped without them, so a missing npm or network is not an error here.
%/node_modules/.package-lock.json: %/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $* --silent && touch $@; fi || true

setup: $(VENV)/.installed ## Create .venv with the command .venv/bin/petstore

serve: setup ## Start the service on 127.0.0.1:8080 (options: make serve ARGS="--port 9000")
	@$(BIN)/petstore serve --show-first-key $(ARGS)

console: setup ## Start the operator console on 127.0.0.1:8081 (options: make console ARGS="--data …")
	@$(BIN)/petstore console $(ARGS)

# Keep files in memory if there is enough space, because tests sync thousands of small files.
TEST_FILES := $(shell [ -w /dev/shm ] && [ "$$(df --output=avail -m /dev/shm | tail -1)" -gt 6000 ] && echo TMPDIR=/dev/shm)
# Use several processes, except for a single file. Write bytecode even if the environment disables it, because otherwise
# every process would have to compile all modules.
SINGLE_FILE = $(filter 1,$(words $(foreach word,$(ARGS),$(findstring .py,$(word)))))
PARALLEL = $(if $(SINGLE_FILE),,--numprocesses 4 --dist loadfile --no-loadscope-reorder)
PYTEST = PYTHONDONTWRITEBYTECODE= $(TEST_FILES) $(BIN)/python -m pytest $(PARALLEL)
NODE_MODULES = $(NODE_TOOLS:%=%/node_modules/.package-lock.json)

test: $(VENV)/.installed-dev $(NODE_MODULES) ## Run the tests (to run some of them: make test ARGS="-k limits")
	$(PYTEST) -m "not static and not proof and not thorough" $(ARGS)

test-thorough: $(VENV)/.installed-dev $(NODE_MODULES) ## Run the slow tests: axe-core on every page, generated clients, repeated faults
	$(PYTEST) -m thorough $(ARGS)

test-proofs: $(VENV)/.installed-dev ## Run every proof in its short form, with and without a planted fault
	$(PYTEST) -m proof --dist load --timeout 1800 tests/project/test_prove.py $(ARGS)

check: $(VENV)/.installed-dev $(NODE_MODULES) ## Check style, documents, imports, types and known vulnerabilities, fastest first
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

docs: $(VENV)/.installed-dev ## Generate docs/reference/ from the code, and the help page of the console
	@$(BIN)/python -m tools.references

prove: $(VENV)/.installed-dev ## Test the guarantees under faults (three hours; about a minute with ARGS="--scale short")
	$(BIN)/python -m prove $(ARGS)

bench: $(VENV)/.installed-dev ## Compare the service with Go and FastAPI doing the same work (needs wrk)
	$(BIN)/python bench/race.py $(ARGS)

bench-quick: $(VENV)/.installed-dev ## Run a shorter benchmark, in under two minutes
	$(BIN)/python bench/race.py --seconds 2 --rounds 2 --animals 20000 --rows list,get,create --contenders petstore,go,nginx \
	  --out bench/results/quick.json $(ARGS)

dist: $(VENV)/.installed ## Build wheels, source archives and an SBOM of the service and the client in dist/
	@$(BIN)/python -m tools.dist

release-check: dist $(VENV)/.installed-dev ## Install the wheel from dist/ in a new environment and test it (with another Python: PYTHON=python3.14)
	@$(BIN)/python -m tools.release --python $(PYTHON)

container-check: dist $(VENV)/.installed-dev ## Build the container image and test it (needs root, podman and debootstrap)
	@$(BIN)/python -m tools.containers $(ARGS)

# Existing pins do not change unless you pass ARGS=--upgrade. The lock file must contain wheels for all PLATFORMS.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
PLATFORMS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu

lock: ## Pin all dependencies with their digests in requirements*.lock (to upgrade them: make lock ARGS=--upgrade)
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
