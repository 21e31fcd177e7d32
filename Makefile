# Every target sets up what it needs by itself and may be the first one run on a fresh machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  ?= $(or $(LAKESTREAM_CACHE),$(HOME)/.cache/lakestream)
export LAKESTREAM_CACHE := $(CACHE)

SEEDS ?= 200

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is newer than everything that decides what is installed, so a second run takes no time.
$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Lakestream needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

setup: $(VENV)/.ready ## build .venv from the pinned list; nothing else

lock: setup ## pin requirements.txt anew from pyproject.toml
	$(BIN)/pip-compile --quiet --extra dev --extra oxia --generate-hashes --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --pip-args='--only-binary :all:' -o requirements.txt pyproject.toml

tools: setup ## build the outside programs that tests need (Oxia, S3, Azure, faults) into the user's cache
	$(BIN)/python scripts/tools.py

format: setup ## rewrite the code in the house format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: help setup lock tools format
