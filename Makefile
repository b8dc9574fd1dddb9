# make run      create a virtual environment, install the packages and train the embedded model on tic-tac-toe
# make quick    run the linter and the quick tests
# make test     run the linter, the type checker and all tests except the nightly ones
# make nightly  run the tests of faults, interrupted and multi-process runs, agent frameworks, browser, drift, tables,
#               docs and supply chain, and slow variants of other tests; installs the frameworks and a Chromium first
# make types    run the type checker
# make docs     build the documentation site into site/
# make test-matrix   run all tests with several versions of JAX and Flax (scripts/test_matrix.sh)
# make lock     write the lock files in locks/, with hashes; LOCKED=1 installs from them
# make soak     run fuzzers and fault tests for a long time, then the property tests with other examples
#               (SEED=2 for another round, WORKERS=14)
#
# Each target installs what it needs, once. PYTHON=python3.12 selects an interpreter, VENV=folder another environment.

VENV ?= .venv
CONFIG ?= experiments/tic_tac_toe_selfplay.py
ARGS ?=
# Tests wait for sandboxes and servers, so three processes keep two cores busy.
WORKERS ?= 3

# The first interpreter that is new enough, unless one is set.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

# Install the project with an extra of pyproject.toml; LOCKED=1 installs the versions in locks/, checked by hash. The
# lock is a constraint too: pip 23, which comes with Python 3.11, picks the newest version for `package[extra]` otherwise.
EXTRAS = gpu tpu test docs vision mcp langgraph ag2
SEPARATE = autogen llamaindex
pip = $(VENV)/bin/python -m pip install -q
locked = $(pip) --require-hashes -r locks/$(1).lock -c locks/$(1).lock
install = $(if $(LOCKED),$(call locked,$(or $(1),base)) && $(pip) --no-deps -e .,$(pip) -e ".$(if $(1),[$(1)])")

.PHONY: run quick test nightly chromium types docs test-matrix soak lint gpu tpu lock licences clean

run: $(VENV)/run.stamp
	$(VENV)/bin/python launch.py --config=$(CONFIG) $(ARGS)

test: $(VENV)/test.stamp lint types
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=40 \
	  -m "not nightly" $(ARGS)

# Agent frameworks have environments of their own, because they need other versions of shared packages.
FRAMEWORKS = autogen llamaindex langgraph ag2
nightly: $(VENV)/nightly.stamp $(FRAMEWORKS:%=$(VENV)/frameworks/%.stamp) chromium
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --durations=20 -m nightly $(ARGS)

extra = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"], sep="\n")
$(VENV)/frameworks/%.stamp: pyproject.toml $(SEPARATE:%=requirements-%.txt) | $(VENV)/bin/python
	$(VENV)/bin/python -m venv $(VENV)/frameworks/$*
	$(if $(filter $*,$(SEPARATE)),cat requirements-$*.txt,$(VENV)/bin/python -c '$(call extra,$*)') > $(VENV)/frameworks/$*.txt
	$(VENV)/frameworks/$*/bin/python -m pip install -q -r $(VENV)/frameworks/$*.txt
	@touch $@

# Without a Chromium the browser tests are skipped.
chromium: $(VENV)/test.stamp
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  $(VENV)/bin/playwright install chromium || echo "no Chromium: the browser tests are skipped (docs/page.md)" >&2

# Only files with such tests are read: collecting all of them takes 20 seconds.
QUICK = $(shell grep -rl mark.quick tests)
quick: $(VENV)/test.stamp lint
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m "quick and not long and not nightly" $(QUICK) $(ARGS)

test-matrix:
	scripts/test_matrix.sh $(MATRIX)

SEED ?= 1
soak: $(VENV)/test.stamp
	MARL_JAX_SOAK=$(SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal tests/faults $(ARGS)
	MARL_JAX_SOAK=$(SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m hypothesis --hypothesis-seed=$(SEED)

lint: $(VENV)/test.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check -q .

types: $(VENV)/test.stamp
	$(VENV)/bin/pyright --threads 2 --pythonpath $(VENV)/bin/python

docs: $(VENV)/docs.stamp
	$(VENV)/bin/mkdocs build --strict

gpu: $(VENV)/bin/python
	$(call install,gpu)

tpu: $(VENV)/bin/python
	$(call install,tpu)

$(VENV)/run.stamp: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(call install,)
	@touch $@

$(VENV)/test.stamp: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(call install,test)
	@touch $@ $(VENV)/run.stamp

$(VENV)/nightly.stamp: $(VENV)/test.stamp
	$(call install,mcp)
	$(call install,vision)
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(VENV)/bin/python
	$(call install,docs)
	@touch $@

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "marl_jax needs Python 3.11 or later; none found (make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "marl_jax needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

compile = .venv-lock/bin/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header \
	  --no-emit-find-links --no-emit-index-url
lock:
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/python -m pip install -q uv
	mkdir -p locks
	$(compile) pyproject.toml -o locks/base.lock
	for extra in $(EXTRAS); do $(compile) pyproject.toml -c locks/base.lock --extra $$extra -o locks/$$extra.lock || exit 1; done
	for name in $(SEPARATE); do $(compile) requirements-$$name.txt -o locks/$$name.lock || exit 1; done

licences: $(VENV)/test.stamp
	$(VENV)/bin/python scripts/licences.py locks/base.lock locks/test.lock > docs/licences.md

clean:
	rm -rf $(VENV) .cache
