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

demo: $(VENV)/.base
	$(VENV)/bin/turnwise study --config=configs/worlds/demo.py --config.dir=$(RUNS)/demo

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(VENV)/bin/python -m pytest --ignore=tests/parity

# Comparisons with transformers' own models; needs torch (CPU is enough).
parity: $(VENV)/.parity
	OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest tests/parity

bench: $(VENV)/.base
	$(VENV)/bin/python benchmarks/kernels.py

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache build *.egg-info
