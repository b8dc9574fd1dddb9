# make run    a virtual environment, the packages, and the main job on the embedded default model
# make quick    the linter and the quick tests
# make test     the linter and all tests but the nightly ones
# make nightly  the tests of faults, interrupted and multi-process runs, browser, drift, tables, supply chain, and
#               further variants of slow tests
# make test-matrix   all tests with several versions of JAX and Flax (scripts/test_matrix.sh)
# make lock   the lock files in locks/, with hashes; LOCKED=1 installs from them
# make soak   the fuzzers and fault tests for long with a table of what was seen, then the property tests with other
#             examples (SEED=2: another round; WORKERS=14)
#
# Each does all its set-up, once. PYTHON=python3.12 chooses an interpreter; VENV=folder another environment.

VENV ?= .venv
CONFIG ?= experiments/tic_tac_toe_selfplay.py
ARGS ?=
WORKERS ?= 2

# The first interpreter that is new enough, unless one is given.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

# requirements-NAME.txt with ranges, or with LOCKED=1 exactly what locks/ has, checked by hash.
SETS = $(basename $(wildcard requirements*.txt))
install = $(VENV)/bin/python -m pip install -q $(if $(LOCKED),--require-hashes -r locks/$(1).lock,-r $(1).txt)

.PHONY: run quick test nightly test-matrix soak lint gpu tpu lock licences clean

run: $(VENV)/run.stamp
	$(VENV)/bin/python launch.py --config=$(CONFIG) $(ARGS)

test: $(VENV)/test.stamp lint
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=40 \
	  -m "not nightly" $(ARGS)

nightly: $(VENV)/test.stamp
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --durations=20 -m nightly $(ARGS)

# Only files with such tests are read: collecting all of them takes 20 seconds.
QUICK = $(shell grep -rl mark.quick tests)
quick: $(VENV)/test.stamp lint
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m "quick and not long" $(QUICK) $(ARGS)

test-matrix:
	scripts/test_matrix.sh $(MATRIX)

SEED ?= 1
soak: $(VENV)/test.stamp
	MARL_JAX_SOAK=$(SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal tests/faults $(ARGS)
	MARL_JAX_SOAK=$(SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m hypothesis --hypothesis-seed=$(SEED)

lint: $(VENV)/test.stamp
	$(VENV)/bin/ruff check .

gpu: $(VENV)/bin/python
	$(call install,requirements-gpu)

tpu: $(VENV)/bin/python
	$(call install,requirements-tpu)

$(VENV)/run.stamp: requirements.txt | $(VENV)/bin/python
	$(call install,requirements)
	@touch $@

$(VENV)/test.stamp: requirements-serving-test.txt requirements-test.txt requirements.txt | $(VENV)/bin/python
	$(call install,requirements-serving-test)
	@touch $@ $(VENV)/run.stamp

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "marl_jax needs Python 3.11 or later; none found (make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "marl_jax needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

lock:
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/python -m pip install -q uv
	mkdir -p locks
	for set in $(SETS); do .venv-lock/bin/uv pip compile -q --universal --generate-hashes --python-version 3.11 \
	  --no-header --no-emit-find-links --no-emit-index-url $$set.txt -o locks/$$set.lock || exit 1; done

licences: $(VENV)/test.stamp
	$(VENV)/bin/python scripts/licences.py locks/requirements.lock locks/requirements-test.lock \
	  locks/requirements-serving-test.lock > docs/licences.md

clean:
	rm -rf $(VENV) .cache
