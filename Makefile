# Everything a person needs, from any state, twice in a row.
#
#   make serve   run a node on 127.0.0.1:7070 with SQLite in ./data
#   make quick   run the tests that need no process, server or browser: under a minute
#   make test    run all tests
#   make check   linters, types, import direction, the rules of the house
#   make bench   measure, one JSON object per part
#   make bench-report  measure for some 25 minutes, and write docs/benchmarks: a page with plots
#   make pages   write the reference pages that are made from the code
#   make docs    build the documentation as a site into build/site; a link that leads nowhere is an error
#   make crash   kill nodes under load a thousand times, and look for anything lost
#   make power-cuts open every state that a loss of power may leave of the log's files
#   make mutants break the code on purpose, one fault at a time, and see that the tests notice
#   make simulate  run the whole system under simulated faults with SEEDS seeds (500), on virtual time
#   make fuzz    send a million random inputs to every face of a node, beside an innocent client
#   make autobahn  run the cases of the Autobahn test suite on both WebSocket implementations (needs Python 2.7)
#   make generators  generate clients in Python, TypeScript and Go of the OpenAPI document, and let them publish and read
#   make collector  send the traces of a node and its client to a real OpenTelemetry collector (needs Go, some minutes)
#   make lowest  run the quick tests with the lowest versions that pyproject.toml allows
#   make lock    write the hashes of the locked versions
#   make release build the packages, check them, install them, and write the bill of materials into dist
#   make chaos   break servers, nodes and clocks for an hour, and check what they promised
#   make clean   remove what these commands made (./data stays)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
FUZZ := $(VENV)/.installed-fuzz
LOWEST := $(VENV)/.installed-lowest
RELEASE := $(VENV)/.installed-release
AUTOBAHN := $(VENV)/.installed-autobahn
COLLECTOR := $(VENV)/.installed-collector
SITE := $(VENV)/.installed-docs
PYTHON2 ?= python2.7
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# At a terminal pip shows each package as it comes; in a log it says nothing but errors.
PIP_PROGRESS := $(shell test -t 1 && echo --progress-bar on || echo -q)
PYTEST_ARGS ?= -n 3 --dist loadgroup

.PHONY: serve quick prepare test check format bench bench-long bench-report docs crash power-cuts mutants simulate fuzz fuzz-openapi autobahn generators collector lowest lock release chaos pages clean help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -23

serve: $(RUNTIME)
	@exec $(BIN)/mainspring serve $(ARGS)

quick: $(DEV)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not servers and not slow and not process" \
	  tests/unit tests/simulated tests/expectations $(ARGS)

# What the tests need that must be built or fetched; a second time nothing happens.
prepare: $(DEV) $(SITE)
	@$(BIN)/python -m tests.support.prepare

test: prepare
	$(BIN)/python -m tests.support.suite $(PYTEST_ARGS) $(ARGS)

check: $(DEV)
	$(BIN)/ruff check src tests bench examples tools
	$(BIN)/ruff format --check src tests bench examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.house_rules

format: $(DEV)
	$(BIN)/ruff check --fix src tests bench examples tools
	$(BIN)/ruff format src tests bench examples tools

bench: $(DEV)
	@$(BIN)/python -m bench $(ARGS)

bench-long: $(DEV)
	@$(BIN)/python -m bench --long $(ARGS)

# On a quiet machine; ARGS=--quick takes two minutes and writes into build/benchmarks.
bench-report: $(DEV)
	@$(BIN)/python -m bench.report $(ARGS)

# What docs/reference says about names, commands and settings is what the code says; tests compare.
pages: $(DEV)
	$(BIN)/python -m tools.reference_pages docs/reference
	$(BIN)/python -m tools.command_line_page > docs/reference/command-line.md
	$(BIN)/mainspring settings --markdown > docs/reference/settings.md

# Its versions: CONTRIBUTING.md.
docs: $(BIN)/python $(SITE)
	$(BIN)/python -m tools.site build
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build -q --strict
	@echo "build/site/index.html"

# A thousand rounds of kill -9 under load; the tests run fifty.
crash: prepare
	MAINSPRING_TEST_CRASH_ROUNDS=1000 $(BIN)/python -m pytest tests -k "kill" --timeout 3600 $(ARGS)

# Deliberate faults, one at a time in a copy of the tree; each must be caught by a test of `make test`.
mutants: prepare
	$(BIN)/python -m tools.mutants $(ARGS)

# The whole system under simulated faults, for each of SEEDS (500, or 1000:2000); the tests run 500. JOBS processes.
# It says where it is; FROM=1500 goes on from there, so that a long campaign can be run in pieces.
simulate: $(DEV)
	$(BIN)/python -m mainspring.testing.simulation tests.simulated.system.promises:Promises \
	  --seeds $${SEEDS:-500} --jobs $${JOBS:-2} $${FROM:+--from $$FROM}

# A million inputs for every face, then what schemathesis makes of the node's own OpenAPI; ARGS as in `python -m tests.fuzz -h`.
fuzz: $(FUZZ)
	$(BIN)/python -m tests.fuzz $(ARGS)
	$(BIN)/python -m tests.fuzz.openapi $(VENV)/schemathesis/bin/schemathesis

# The second half alone; ARGS go to `schemathesis run`.
fuzz-openapi: $(FUZZ)
	$(BIN)/python -m tests.fuzz.openapi $(VENV)/schemathesis/bin/schemathesis $(ARGS)

# ARGS are the cases, as in "6.* 7.*"; all of them take some twenty minutes. The suite itself is a program for Python 2.7.
autobahn: $(DEV) $(AUTOBAHN)
	$(BIN)/python -m tests.autobahn $(VENV)/autobahn/bin/wstest $(ARGS)

# With openapi-generator; needs Java, Node.js and Go. ARGS=python does one of them.
generators: prepare
	$(BIN)/python -m tests.generators $(ARGS)

collector: $(DEV) $(COLLECTOR)
	$(BIN)/python -m tests.collector $(VENV)/collector

# What the lower bounds in pyproject.toml promise. Tests of outside tools (SDKs, web frameworks) skip themselves there.
lowest: $(LOWEST)
	$(VENV)/lowest/bin/python -m pytest $(PYTEST_ARGS) -m "not servers and not slow and not process" \
	  tests/unit tests/simulated tests/expectations $(ARGS)

lock: $(BIN)/python
	$(BIN)/python -m tools.requirements hashes requirements/*.txt

# PYTHONS="python3.11 python3.12 python3.13" installs the packages with each of them.
release: $(DEV) $(RELEASE)
	$(BIN)/python -m tools.release dist $(PYTHONS)
	@if command -v npm >/dev/null; then npm pack --silent --pack-destination dist ./src/mainspring/client; \
	  else echo "npm is not installed: the JavaScript package is not made"; fi
	$(VENV)/release/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python -m tools.requirements bill dist/mainspring.cdx.json

# What a loss of power may leave of the files, for every sequence of up to three operations; POWER_CUTS=100 takes so many,
# POWER_CUTS=400:800 those with these numbers: a long campaign can be run in pieces.
power-cuts: prepare
	POWER_CUTS=$(or $(POWER_CUTS),all) $(BIN)/python -m pytest tests/process/log/test_power_cuts.py -s --timeout 86400 $(ARGS)

# Rounds of faults on real servers: an hour on each engine unless CHAOS_SECONDS and CHAOS_ROUNDS say otherwise.
chaos: prepare
	CHAOS_SECONDS=$${CHAOS_SECONDS:-300} CHAOS_ROUNDS=$${CHAOS_ROUNDS:-12} $(BIN)/python -m pytest tests/chaos -s $(ARGS)

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's python3 comes without ensurepip: a venv is then made without pip, and the machine's pip puts one in.
$(BIN)/python:
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit("Mainspring needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install -q pip; }

# The stamps depend on what was asked for, so a second run installs nothing and a changed lock installs again.
$(RUNTIME): requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "installing what a node needs into $(VENV) (once, about 20 seconds)"
	@$(PIP) install $(PIP_PROGRESS) --no-deps -r requirements/runtime.txt
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(RUNTIME) requirements/dev.txt
	@echo "installing what tests and benchmarks need into $(VENV) (once, about a minute)"
	@$(PIP) install $(PIP_PROGRESS) --no-deps -r requirements/runtime.txt -r requirements/dev.txt
	@touch $@

# Schemathesis has an environment of its own: what it needs is not what the tests need.
$(FUZZ): requirements/fuzz.txt $(DEV)
	@echo "installing schemathesis into $(VENV)/schemathesis (once)"
	@$(BIN)/python -m venv --without-pip $(VENV)/schemathesis
	@$(PIP) --python $(VENV)/schemathesis/bin/python install $(PIP_PROGRESS) --no-deps -r requirements/fuzz.txt
	@touch $@

$(LOWEST): pyproject.toml requirements/dev.txt | $(BIN)/python
	@echo "installing the lowest allowed versions into $(VENV)/lowest (about a minute)"
	@rm -rf $(VENV)/lowest && $(BIN)/python -m venv --without-pip $(VENV)/lowest
	@$(BIN)/python -m tools.requirements lowest > $(VENV)/lowest/constraints.txt
	@$(PIP) --python $(VENV)/lowest/bin/python install $(PIP_PROGRESS) -c $(VENV)/lowest/constraints.txt \
	  ".[django,fast,mongo,nats,otel,postgres,pydantic,sqlalchemy,wasm]" editables hatchling hypothesis pytest pytest-asyncio \
	  pytest-timeout pytest-xdist PyYAML trustme "opentelemetry-sdk<1.28"
	@$(PIP) --python $(VENV)/lowest/bin/python install -q --no-deps --no-build-isolation -e .
	@touch $@

$(AUTOBAHN): | $(BIN)/python
	@$(PYTHON2) --version || { echo "the Autobahn test suite needs Python 2.7: make autobahn PYTHON2=..."; exit 1; }
	@rm -rf $(VENV)/autobahn $(VENV)/virtualenv
	@$(PIP) install $(PIP_PROGRESS) --target $(VENV)/virtualenv virtualenv==20.21.1
	@PYTHONPATH=$(VENV)/virtualenv $(BIN)/python -m virtualenv -q -p $(PYTHON2) $(VENV)/autobahn
	@$(VENV)/autobahn/bin/pip install -q autobahntestsuite==25.10.1
	@touch $@

$(COLLECTOR): pyproject.toml | $(BIN)/python
	@rm -rf $(VENV)/collector && $(BIN)/python -m venv --without-pip $(VENV)/collector
	@$(PIP) --python $(VENV)/collector/bin/python install $(PIP_PROGRESS) -e ".[otel]" \
	  opentelemetry-distro==0.66b1 opentelemetry-exporter-otlp-proto-http==1.45.1
	@touch $@

$(SITE): requirements/docs.txt | $(BIN)/python
	@rm -rf $(VENV)/docs && $(BIN)/python -m venv --without-pip $(VENV)/docs
	@$(PIP) --python $(VENV)/docs/bin/python install $(PIP_PROGRESS) --no-deps -r requirements/docs.txt
	@touch $@

$(RELEASE): requirements/release.txt | $(BIN)/python
	@rm -rf $(VENV)/release && $(BIN)/python -m venv --without-pip $(VENV)/release
	@$(PIP) --python $(VENV)/release/bin/python install $(PIP_PROGRESS) --no-deps -r requirements/release.txt
	@touch $@
