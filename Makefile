# Everything a person or CI does with this repository. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Torch and OpenMP start a thread per core in every process; tests run several processes at once.
export OMP_NUM_THREADS ?= 1
# Nothing here may reach for a hub by itself; loading from one is asked for by name.
export HF_HUB_DISABLE_TELEMETRY = 1

.DEFAULT_GOAL := help
.PHONY: help install demo up down test test-full test-fast check format bench clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## Make .venv with pinned versions and install meshnet into it

$(STAMP): pyproject.toml constraints.txt
	@echo "==> Making $(VENV) and installing meshnet (torch is about 200 MB; the first time takes minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[node,dev]'
	@touch $(STAMP)
	@echo "==> Installed. The command is $(BIN)/meshnet"

demo: $(STAMP) ## One question to a real model on a tracker and three nodes; the mesh stays up
	@$(BIN)/meshnet up
	@$(BIN)/meshnet chat --temperature 0 --max-tokens 64 "What is the capital of France?"
	@$(BIN)/meshnet routes
	@echo
	@echo "The mesh is up. Next: $(BIN)/meshnet chat | $(BIN)/meshnet console | $(BIN)/meshnet down"

up: $(STAMP) ## Start the mesh of meshnet.toml, or the demo mesh
	@$(BIN)/meshnet up

down: ## Stop what up or demo started
	@test ! -x $(BIN)/meshnet || $(BIN)/meshnet down

# Lint, types and the floors, then every test but the long matrices.
test: $(STAMP) ## Everything a newcomer and CI run
	@echo "==> Format, lint, types"
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/pyright
	@echo "==> All tests (the real model is fetched once, about 90 MB)"
	@$(BIN)/python -m pytest -q -m "not full" -n 2 --dist worksteal --durations=15

test-full: $(STAMP) ## The long matrices too
	@$(BIN)/python -m pytest -q

test-fast: $(STAMP)
	@$(BIN)/python -m pytest -q -m "not full and not slow and not real" -x

# Rooms whose tests start processes or draw whole screens: seconds each, so they wait for make test.
IN_MAKE_TEST := $(addprefix --ignore=tests/,cli tui relay failover security bench weights test_light.py)

check: $(STAMP) ## Format, lint, types, floors and fast tests: under 90 s warm
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .
	@$(BIN)/pyright & types=$$!; \
		$(BIN)/python -m pytest -q -m "not full and not slow and not real" -n 2 --dist worksteal $(IN_MAKE_TEST); \
		tests=$$?; wait $$types && exit $$tests

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure: chat, tracker, routing, failover, console, relay, ring (docs/benchmarks.md says how)
	@$(BIN)/meshnet bench --help

clean: down ## Stop the mesh and remove .venv and caches; models and state stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
