# Each target depends on everything that it needs, so any target can be the first one on a new machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.SILENT:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  ?= $(or $(LAKESTREAM_CACHE),$(HOME)/.cache/lakestream)
export LAKESTREAM_CACHE := $(CACHE)

SEEDS ?= 200
KERNELS := lakestream.pipeline.worker, lakestream.data.table.read.history_reader, lakestream.data.typed.avro.codec, lakestream.data.typed.json.codec, lakestream.data.typed.json.key_kernels, lakestream.data.typed.protobuf.codec
SOAK_S ?= 120
TURMOIL_S ?= 600
CLUSTER_S ?= 3600
COVERAGE := build/coverage.sqlite

# The tests that use real servers and processes.
SERVED := tests --ignore=tests/unit --ignore=tests/property --ignore=tests/test_architecture.py

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is newer than all inputs of the installation, so a second run does nothing.
$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Lakestream needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Set PYTHON=...")'
	echo 'setup: creating $(VENV), and installing the pinned packages into it (some minutes)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	echo 'setup: compiling the numba kernels into their cache (a minute)'
	$(BIN)/python -c 'import $(KERNELS)'
	touch $@

setup: $(VENV)/.ready ## create .venv with the pinned packages, and with a Java if the machine has none for Spark
	@$(BIN)/python scripts/java.py

lock: setup ## update the pinned versions in requirements.txt and requirements-java.txt from pyproject.toml
	$(BIN)/pip-compile --quiet --extra dev --extra oxia --generate-hashes --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --pip-args='--only-binary :all: --no-binary pyspark' -o requirements.txt pyproject.toml
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["java"])' \
	  | $(BIN)/pip-compile --quiet --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --pip-args='--only-binary :all:' -o requirements-java.txt -

serve: setup ## run broker, catalog and pipeline: Kafka 9092, HTTP 8080, data in ./lakestream-data; ARGS="--workers 2"
	$(BIN)/lakestream serve $(ARGS)

tools: setup ## build the external programs that tests need (Oxia, S3, Azure, proxies) into the user's cache
	$(BIN)/python scripts/tools.py

format: setup ## format the code and apply lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup ## format, lint, types, layers, unit and property tests, a short simulation: under two minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 tests/test_architecture.py tests/unit tests/property
	$(BIN)/python -m tests.simulation.run --seeds 60

test: check tools ## check, then the tests with real servers and processes
	$(BIN)/pytest -n 2 --dist loadfile --durations 30 -m "not alone" $(SERVED)
	$(BIN)/pytest --durations 30 -m alone $(SERVED)

coverage: tools ## record the lines that each unit, property and contract test executes, for `make covers`
	COVERAGE_FILE=$(COVERAGE) $(BIN)/pytest -n 2 --cov=lakestream --cov-context=test --cov-report= tests/unit tests/property tests/contract

covers: setup ## list the tests that execute a file: FILE=src/lakestream/…/module.py (records coverage first if there is none)
	@test -f $(COVERAGE) || $(MAKE) coverage
	@$(BIN)/python scripts/covers.py $(COVERAGE) "$(FILE)"

soak: tools ## the long tests, for two hours or more: all clients and settings, more broker kills and faults than make test
	SOAK=1 FUZZ_S=$(SOAK_S) KILL_RUN_S=$(SOAK_S) TURMOIL_S=$(TURMOIL_S) CLUSTER_RUN_S=$(CLUSTER_S) $(BIN)/pytest -rfE --timeout 600 $(addprefix tests/integration/,\
	  clients groups transactions chaos processes/test_http_fuzz.py) tests/property/test_damaged_files.py

sim: setup ## run the deterministic simulation: SEEDS=n runs, or one run with SEED=k
	$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-mutants: setup ## disable the rules of the protocol one by one, and check that the simulation detects each
	$(BIN)/python -m tests.simulation.mutants

compat: tools ## run the tests of librdkafka and kafka-python against Lakestream: passed, failed, and reasons for skips
	$(BIN)/python -m tests.compat $(COMPAT)

bench: bench-log bench-kafka bench-table ## run all benchmarks

bench-log: tools ## measure the log against raw disk and raw bucket; results in benchmarks/results
	$(BIN)/python -m benchmarks.log

bench-kafka: tools ## compare brokers with Apache Kafka, about 40 minutes; ONLY="produce steady" for parts
	$(BIN)/python -m benchmarks.kafka $(ONLY)

bench-table: tools ## compare table writes and reads with Apache Kafka and Spark, about 50 minutes; ONLY="move fresh" for parts
	$(BIN)/python -m benchmarks.table $(ONLY)

docs: setup ## generate docs/coverage.md from the headers of the handlers
	$(BIN)/python scripts/coverage.py

clean: ## remove .venv and the caches of this clone, but not the tools in the user's cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup lock serve tools format check test coverage covers soak sim sim-mutants compat bench bench-log bench-kafka bench-table docs clean
