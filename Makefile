# The README's two commands are `make demo` and `make test`; each prepares .venv first.
PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
RUNS   ?= runs

.PHONY: demo test lint parity bench clean

$(VENV)/.base: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

$(VENV)/.parity: $(VENV)/.test
	$(PIP) install --quiet --constraint constraints.txt --editable ".[parity]"
	touch $@

$(VENV)/.bench: $(VENV)/.parity
	$(PIP) install --quiet --constraint constraints.txt --editable ".[bench]"
	touch $@

demo: $(VENV)/.base
	$(VENV)/bin/turnwise study --config=configs/worlds/demo.py --config.dir=$(RUNS)/demo

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# By files in two processes: what one file compiles stays with it.
test: lint
	$(VENV)/bin/python -m pytest --numprocesses=2 --dist=loadfile --ignore=tests/parity

# Comparisons with transformers' own models; needs torch (CPU is enough).
parity: $(VENV)/.parity
	OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest tests/parity

# What is timed against what: docs/performance.md. Small sizes; each script's own are larger.
BENCH := $(VENV)/bin/python benchmarks
MODEL := --layers=2 --vocabulary=16000 --context-frames=12 --turns=4 --rounds=3

bench: $(VENV)/.bench
	$(BENCH)/kernels.py --numpy-groups=256 --json=$(RUNS)/bench/kernels.json
	$(BENCH)/train_step.py $(MODEL) --json=$(RUNS)/bench/train_step.json
	$(BENCH)/rollout.py $(MODEL) --marker-gain=1.8 --json=$(RUNS)/bench/rollout.json
	$(BENCH)/end_to_end.py $(MODEL) --marker-gain=1.8 --json=$(RUNS)/bench/end_to_end.json
	$(BENCH)/decode_video.py --frames=20 --json=$(RUNS)/bench/decode_video.json
	$(BENCH)/input.py --rounds=1 --steps=6 --json=$(RUNS)/bench/input.json
	$(BENCH)/evaluation.py --videos=8 --rounds=2 --json=$(RUNS)/bench/evaluation.json

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache build *.egg-info
