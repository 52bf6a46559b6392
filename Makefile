# `make demo` and `make test` need Python 3.11+, make and a package registry, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
# The kernels of a CPU without AVX-512: other code than on one with it, and so other bits.
AS_WITH_AVX2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2

.PHONY: demo test test-unit test-integration test-reliability test-slow test-slurm bench results docs lint clean setup

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("ccl needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 $(MAKECMDGOALS)") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/ccl demo --out demo-run
	@echo "The command is $(BIN)/ccl: try $(BIN)/ccl --help, or '. $(BIN)/activate' and then ccl --help."
	@echo "To have ccl in an environment of your own: pip install . in this folder."

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow"
	$(AS_WITH_AVX2) $(BIN)/pytest -m cpu_kernels tests/unit/views

test-unit test-integration test-reliability: test-%: setup
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" tests/$*

test-slow: setup
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m slow

# A real Slurm of its own; its packages are installed where that may be done, elsewhere the tests are skipped.
SLURM_PACKAGES := slurmctld slurmd slurm-client munge
test-slurm: setup
	-@command -v slurmctld >/dev/null || test -x /usr/sbin/slurmctld || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update --quiet --quiet && apt-get install --yes --quiet --quiet --no-install-recommends $(SLURM_PACKAGES); }
	$(BIN)/pytest -m slow -rs tests/reliability/test_slurm.py

docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The pages: site/index.html; '$(BIN)/mkdocs serve' shows them with a search, and as you write."

$(VENV)/.docs-ready: $(VENV)/.ready
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

bench: setup
	$(BIN)/python -m benchmarks

# The docs' tables from the run folders below RUNS (benchmarks/results.py says which).
results: setup
	$(BIN)/python -m benchmarks.results $(RUNS)

clean:
	rm -rf $(VENV) demo-run build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
