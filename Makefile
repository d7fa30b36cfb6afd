# Everything runs in .venv, which the first target creates; a second call reuses what is there.
# An environment that happens to be active plays no part, except that PYTHON is looked up in it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported, when it first is: a small part of what is installed.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile
unexport PYTHONPATH PYTHONHOME

# torch comes first: the extension is compiled against the torch that is installed here (pyproject.toml has the bound).
TORCH := $(shell sed -n 's/^ *"\(torch>=[^"]*\)",$$/\1/p' pyproject.toml)
EXTENSION_SOURCES := setup.py pyproject.toml $(shell find csrc -type f -not -name '*.pyc')
FORMATTED_SOURCES := $(filter %.cpp %.h %.cu %.cuh,$(EXTENSION_SOURCES)) $(wildcard benchmarks/*.cu benchmarks/*.cpp)

comma := ,

.PHONY: help train test test-plain docs notebook bench compare gpu wheels lint format clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make train    JoCoR against plain training on digits with half of the labels wrong: a table and curves"
	@echo "make test     the test suite"
	@echo "make test-plain  the tests of public behaviour without the compiled kernels"
	@echo "make docs     the documentation as a site: build/docs/index.html"
	@echo "make notebook executes the notebook in examples/ anew: its outputs are part of it"
	@echo "make bench    loss and training step by pytest-benchmark, on a GPU if any: benchmarks/results/bench_loss.json, .md, .png"
	@echo "              and bench_step.md"
	@echo "make compare  the loss against its contenders, each at its best setting: benchmarks/results/loss_cpu.json and .md,"
	@echo "              and from hidden states: linear_loss.json and .md"
	@echo "make gpu      tests and measures on a GPU, offline, with $(PYTHON): six minutes; PARTS=bench-full for others"
	@echo "make wheels   manylinux wheels for the interpreters at hand, each tested without a compiler: dist/"
	@echo "make lint     formatting, lint and types; make format repairs the formatting"
	@echo "make clean    removes .venv and what was built"
	@echo "PYTHON=python3.12 chooses the interpreter; FORCE_CPU=1, FORCE_CUDA=1, CUDA_HOME and MAX_JOBS reach the build."

train: $(VENV)/.package
	$(BIN)/jocor-fast reproduce digits

# Two at a time, a file of tests in one of them; their threads sleep while they wait, for there are more than cores.
test: $(VENV)/.test $(VENV)/.package
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder --benchmark-disable

# The tests of public functions once more with the compiled kernels hidden: what is "compiled" is then the reference.
test-plain: $(VENV)/.test $(VENV)/.package
	JOCOR_FAST_BUILD=none OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest tests/test_loss_values.py tests/test_loss_edges.py \
		tests/test_selection.py tests/test_exchange_losses.py tests/test_forward_correction.py tests/test_robust_losses.py \
		tests/test_num_keep.py -n 2 --benchmark-disable -k compiled

# Without a network. A warning, such as a link that leads nowhere, is an error.
docs: $(VENV)/.docs $(VENV)/.package
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --doctree-dir build/doctrees docs build/docs
	@echo "build/docs/index.html"

notebook: $(VENV)/.docs $(VENV)/.package
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter-execute --inplace examples/photos_to_clean_labels.ipynb

bench: $(VENV)/.test $(VENV)/.package
	@mkdir -p benchmarks/results
	$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-warmup=on --benchmark-max-time=0.5 --benchmark-json=benchmarks/results/bench_loss.json

compare: $(VENV)/.package
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/linear_loss.py

# Not in .venv: a machine with a GPU may have no network, and its own Python has torch. What it lacks, such as DALI, may
# lie on PYTHONPATH.
gpu:
	PYTHONPATH="$(PYTHONPATH)" $(PYTHON) benchmarks/gpu/run.py $(if $(PARTS),--parts "$(PARTS)") $(if $(OUTPUT),--output "$(OUTPUT)")

# PYTHONS and WHEEL_TORCH choose interpreters and torch; see the script.
wheels: $(VENV)/.torch
	$(PIP) --quiet --group wheels
	BIN=$(BIN) .ci/wheels

lint: $(VENV)/.dev $(VENV)/.package
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(FORMATTED_SOURCES)

clean:
	rm -rf $(VENV) build dist *.egg-info jocor_fast/_C.*.so jocor_fast/_build.json
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps. .torch: what the build imports; .package: the extension and the package, in place; .test: the same with
# what the tests need on top, so that a first `make test` builds once; .dev: the linters; .docs: what makes the
# site. pip hides what setup.py prints, so the decision is shown from the file in which the build keeps it.

define INSTALL
PYTHONWARNINGS=ignore $(PIP) --quiet --no-build-isolation --editable '.$(1)'
@$(BIN)/python -c 'import json; print("jocor_fast is built:", json.load(open("jocor_fast/_build.json")))'
@touch $@ $(VENV)/.package
endef

$(VENV)/.torch: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("jocor_fast needs Python 3.10 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --upgrade pip "setuptools>=77" ninja
	$(PIP) "$(TORCH)"
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.torch
	$(call INSTALL,[test$(comma)dali])

$(VENV)/.dev: pyproject.toml | $(VENV)/.torch
	$(PIP) --quiet --group dev
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.torch
	$(PIP) --quiet --group docs
	@touch $@

$(VENV)/.package: $(EXTENSION_SOURCES) | $(VENV)/.torch
	$(call INSTALL,)
