# make demo      set up, then replay a synthetic agent trace: arrival order, then in virtual time
# make test      set up, then run the tests            (PYTEST_ARGS="-k arena" narrows them)
# make lint      ruff and mypy --strict
# make sanitize  tests of the C core under ASan and UBSan
# make fuzz      all of the fuzzer: every script, order and planted bug, 10 million events (hours)
# make fuzz-share  the share of it that today's date chooses, in FUZZ_MINUTES (9); FUZZ_SHARE=3/8 chooses another
# make fuzz-native  fuzz the C core for FUZZ_SECONDS (60): libFuzzer where clang has it, else a driver built by cc
# make clean     forget what was built
#
# All of it happens in .venv; nothing else on the machine changes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && exit; done; echo python3)
JOBS ?= auto
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
BUILD := pyproject.toml setup.py native/build.py $(wildcard native/*.c native/*.h)
DEMO := out/demo.jsonl.gz
# 48 sessions of coding agents: 372 M input tokens, 13.6 M of them new. Kept whole these are 377 GB of KV.
SYNTH := --sessions 48 --seed 7
POOL := 40GB
# Which share of the fuzzer, of so many: a whole one takes so many days.
FUZZ_SHARE ?= $(shell echo $$(($$(date +%s) / 86400 % 8)))/8
FUZZ_MINUTES ?= 9
FUZZ_ARGS ?=

.PHONY: help demo test lint sanitize fuzz fuzz-share fuzz-native clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

# The package, editable, with what it needs to run.
$(VENV)/.run: $(BUILD)
	@$(PYTHON) tools/preflight.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip "setuptools>=68" wheel "cffi>=1.16"
	$(BIN)/python -m pip install -q --no-build-isolation -e .
	@touch $@

# The tools of development, and the C core once more with planted bugs that the tests must see.
$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install -q --no-build-isolation -e '.[dev]'
	K3MEM_MUTANTS=1 $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(DEMO): $(VENV)/.run
	@mkdir -p $(@D)
	$(BIN)/k3mem trace synth $@ $(SYNTH)

demo: $(DEMO)
	@echo; echo "== In arrival order: what one cache of $(POOL) reuses, request after request"
	$(BIN)/k3mem replay $(DEMO) --mode arrival --shape kimi-k3 --tp 8 --pool $(POOL)
	@echo; echo "== In virtual time: 16 sessions at once through the scheduler, running requests in the same $(POOL)"
	$(BIN)/k3mem replay $(DEMO) --mode timed --loop closed --concurrency 16 --shape kimi-k3 --tp 8 --pool $(POOL)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/python tools/typecheck.py

sanitize: $(VENV)/.dev
	PYTHON=$(BIN)/python sh tests/sanitize.sh -n $(JOBS) $(PYTEST_ARGS)

fuzz: $(VENV)/.dev
	@mkdir -p out
	$(BIN)/k3mem fuzz all --json out/fuzz.json $(FUZZ_ARGS)

fuzz-share: $(VENV)/.dev
	@mkdir -p out
	$(BIN)/k3mem fuzz all --share $(FUZZ_SHARE) --minutes $(FUZZ_MINUTES) --json out/fuzz-share.json $(FUZZ_ARGS)

fuzz-native:
	@$(MAKE) -f fuzz/native/Makefile run

clean:
	rm -rf $(VENV) build out .mypy_cache .ruff_cache .pytest_cache *.egg-info native/_core*.so native/_core*.c
