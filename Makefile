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
KERNELS := lakestream.pipeline.work, lakestream.data.table.replay, lakestream.data.typed.avro, lakestream.data.typed.json_codec, lakestream.data.typed.kernels_json_keys, lakestream.data.typed.protobuf
SOAK_S ?= 120
TURMOIL_S ?= 600

# The tests that talk to real servers and processes.
SERVED := tests --ignore=tests/unit --ignore=tests/property --ignore=tests/test_architecture.py

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is newer than everything that decides what is installed, so a second run takes no time.
$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Lakestream needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -c 'import $(KERNELS)'  # compiles them, once for all
	touch $@

setup: $(VENV)/.ready ## build .venv from the pinned list; nothing else

lock: setup ## pin requirements.txt anew from pyproject.toml
	$(BIN)/pip-compile --quiet --extra dev --extra oxia --generate-hashes --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --pip-args='--only-binary :all: --no-binary pyspark' -o requirements.txt pyproject.toml

serve: setup ## everything in one, on the defaults: Kafka 9092, HTTP 8080, data in ./lakestream-data
	$(BIN)/lakestream serve

tools: setup ## build the outside programs that tests need (Oxia, S3, Azure, faults) into the user's cache
	$(BIN)/python scripts/tools.py

format: setup ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup ## format, lint, types, layers, unit and property tests, a short simulation: under two minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 tests/test_architecture.py tests/unit tests/property
	$(BIN)/python -m tests.simulation.run --seeds 60

test: check tools ## everything: check, then the tests that talk to real servers and processes
	$(BIN)/pytest -n 2 --dist loadfile --durations 30 -m "not alone" $(SERVED)
	$(BIN)/pytest --durations 30 -m alone $(SERVED)

soak: tools ## for an hour or more: every client in every setting, brokers killed and attacked for longer than in make test
	SOAK=1 FUZZ_S=$(SOAK_S) KILL_RUN_S=$(SOAK_S) TURMOIL_S=$(TURMOIL_S) $(BIN)/pytest -rfE --timeout 600 $(addprefix tests/integration/test_,$(addsuffix .py,\
	  kafka_clients kafka_java kafka_programs admin_clients zones killed_leader killed_kafka killed_brokers killed_pipeline kafka_fuzz \
	  groups consumer_protocol transactions kafka_apps rolling_restart whole_transactions turmoil))

sim: setup ## the deterministic simulation: SEEDS=n runs, or one with SEED=k
	$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-mutants: setup ## switch off the protocol's rules one by one and see the simulation catch each
	$(BIN)/python -m tests.simulation.mutants

compat: tools ## other projects' own tests (librdkafka, kafka-python) against our brokers: passed, failed, why skipped
	$(BIN)/python -m tests.compat $(COMPAT)

bench: bench-log bench-kafka bench-table ## every benchmark

bench-log: tools ## the log against the bare disk, the bare bucket, and itself; results in benchmarks/results
	$(BIN)/python -m benchmarks.log

bench-kafka: tools ## brokers beside Apache Kafka, some forty minutes; ONLY="produce steady" for parts of it
	$(BIN)/python -m benchmarks.kafka $(ONLY)

bench-table: tools ## into the table and back, beside Apache Kafka with Spark, some fifty minutes; ONLY="move fresh" for parts
	$(BIN)/python -m benchmarks.table $(ONLY)

docs: setup ## write docs/coverage.md anew from the handlers' headers
	$(BIN)/python scripts/coverage.py

clean: ## remove .venv and caches of the clone; the tools in the user's cache stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup lock serve tools format check test soak sim sim-mutants compat bench bench-log bench-kafka bench-table docs clean
