# make run    a virtual environment, the packages, and the main job on the embedded default model
# make quick  the linter and the quick tests: an answer in three minutes
# make test   the linter and all tests
# make soak   the fuzzers and fault tests for long: kills, damaged files, odd configs, memory (SEED=2: another round)
#
# Each does all its set-up, once. PYTHON=python3.12 chooses an interpreter; VENV=folder another environment.

VENV ?= .venv
CONFIG ?= experiments/tic_tac_toe_selfplay.py
ARGS ?=
WORKERS ?= 2

# The first interpreter that is new enough, unless one is given.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

.PHONY: run quick test soak lint gpu tpu clean

run: $(VENV)/run.stamp
	$(VENV)/bin/python launch.py --config=$(CONFIG) $(ARGS)

test: $(VENV)/test.stamp lint
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(VENV)/test.stamp lint
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m quick $(ARGS)

SEED ?= 1
soak: $(VENV)/test.stamp
	MARL_JAX_SOAK=$(SEED) $(VENV)/bin/python -m pytest -q -s tests/faults $(ARGS)

lint: $(VENV)/test.stamp
	$(VENV)/bin/ruff check .

gpu: $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -q -r requirements-gpu.txt

tpu: $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -q -r requirements-tpu.txt

$(VENV)/run.stamp: requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -q -r requirements.txt
	@touch $@

$(VENV)/test.stamp: requirements-serving-test.txt requirements-test.txt requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -q -r requirements-serving-test.txt
	@touch $@ $(VENV)/run.stamp

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "marl_jax needs Python 3.11 or later; none found (make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "marl_jax needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

clean:
	rm -rf $(VENV) .cache
