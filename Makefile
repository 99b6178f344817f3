# make demo: train NUCLR on the built-in glyphs, write a report, solve for the
# exact popularities.
# make icons: get the icons of 120 designers from npm (104 MB), and train on them.
# make test: check the library: lint, documentation, tests, examples.
# make test_runs: test what takes longer: faults that are injected, and whole runs
# of several commands.
# make test_studies: test the studies in experiments/ and what only they use.
# All first make a virtual environment in .venv, with the versions in
# requirements/tested.txt (Python 3.11) or requirements/tested-3.12.txt (3.12 and
# newer), whose hashes are verified. With LOCKED=no they use .venv-newest, with
# the newest versions that pyproject.toml allows.
# make test_core: run the examples of the core in an environment that has JAX,
# jaxtyping and NumPy alone, in the same versions.
# make oldest: test with the oldest versions that pyproject.toml allows.
# make nightly: test with JAX of today.
# make docs: build the documentation into site/, and compare the numbers in it
# with the rows of the studies.
# make lock: add new dependencies to both files. UPGRADE=--upgrade upgrades all
# versions, UPGRADE="--upgrade-package jax" only that of jax.
# make audit: look for known vulnerabilities of these versions.
# make parity: compare the encoders with PyTorch's, in a separate environment.
# make torch: test weights in PyTorch's own format, in that environment.
# make trackers: test W&B, trackio and MLflow, in a separate environment.
# make beam: test ingest with Apache Beam, in a separate environment: Beam needs
# older protobuf and Pillow than the files have.

# uv leaves the compilation of libraries to the processes that import them; one
# that must not keep the result takes 6 s longer to start, like all after it.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
WORKDIR ?= runs/demo
LOCKED ?= yes
# JAX 0.11, Flax 0.12.9, NumPy 2.5 and SciPy 1.18 need Python 3.12, so there are
# two sets of versions; that of an environment is the one of its Python.
LOCKS := requirements/tested.txt requirements/tested-3.12.txt
lock_of = $(word $(shell $(firstword $(wildcard $(1)/bin/python) $(PYTHON)) \
	-c 'import sys; print(1 + (sys.version_info >= (3, 12)))'),$(LOCKS))
TESTED := $(call lock_of,.venv)
CORE_TESTED := $(call lock_of,.venv-core)

ifeq ($(LOCKED),yes)
VENV := .venv
# A package without a wheel is built with the locked setuptools, whose hashes pip
# verifies first: in an isolated environment, pip would take the newest ones or,
# up to version 25, refuse them.
# uv is among them, and installs the others in a tenth of pip's time; where it
# cannot, since it knows nothing of pip's settings, pip does.
BUILD := awk '/^(packaging|setuptools|uv|wheel)==/, /[^\\]$$/' $(TESTED)
LOCKED_ONLY = --require-hashes --no-build-isolation --requirement $(TESTED)
DEPENDENCIES = $(BUILD) > $(VENV)/build.txt && \
  $(PIP) --require-hashes --requirement $(VENV)/build.txt && \
  { $(BIN)/uv pip install --quiet --python $(BIN)/python $(LOCKED_ONLY) || \
    $(PIP) $(LOCKED_ONLY); }
PACKAGE := --no-deps --no-build-isolation --editable .
else ifeq ($(LOCKED),no)
VENV := .venv-newest
DEPENDENCIES := true
PACKAGE := --editable ".[test]"
else
$(error LOCKED is "$(LOCKED)"; it must be "yes" or "no")
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet

# Tests wait for processes and files: with three at a time, two cores are busy.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
  --no-loadscope-reorder

.PHONY: demo icons test test_core test_runs test_studies lint docs lock audit \
  oldest nightly parity torch trackers beam compilers

demo: $(VENV)/installed.stamp
	$(BIN)/nuclr train --config=configs/glyphs.py "--workdir=$(WORKDIR)"
	$(BIN)/nuclr report "--workdir=$(WORKDIR)"
	$(BIN)/nuclr popularity "--workdir=$(WORKDIR)"

# The data set is made in NUCLR_DATA_DIR, or in ~/.cache/nuclr_jax.
ICONS := iconify-json-2.2.535.tgz

icons: $(VENV)/installed.stamp data/$(ICONS)
	$(BIN)/nuclr train --config=configs/icons.py "--workdir=runs/icons" \
	  --config.data.package=data/$(ICONS)

data/$(ICONS):
	mkdir -p data
	npm pack @iconify/json@2.2.535 --pack-destination=data

test: $(VENV)/installed.stamp lint docs
	$(PYTEST)

# Annotations of the core and the lab are checked in `make test`, and not again.
LONG := --import-mode=importlib \
  --jaxtyping-packages=nuclr_jax.contrib,type_checker.check

test_runs: $(VENV)/installed.stamp
	$(PYTEST) -o "addopts=$(LONG)" tests/faults tests/end_to_end

test_studies: $(VENV)/installed.stamp
	$(PYTEST) -o "addopts=$(LONG)" tests/contrib experiments

# What JAX, jaxtyping and NumPy need; pip refuses to install less.
CORE := jax|jaxlib|jaxtyping|ml-dtypes|numpy|opt-einsum|scipy|wadler-lindig

test_core: .venv-core/core.stamp
	.venv-core/bin/python tests/core.py

.venv-core/core.stamp: $(CORE_TESTED)
	@echo "installing JAX, jaxtyping and NumPy into .venv-core"
	@test -x .venv-core/bin/python || $(PYTHON) -m venv .venv-core
	@awk '/^($(CORE))==/, /[^\\]$$/' $(CORE_TESTED) > .venv-core/core.txt
	@.venv-core/bin/python -m pip install --quiet --require-hashes \
	  --requirement .venv-core/core.txt
	touch $@

lint: $(VENV)/installed.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(VENV)/installed.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python -m experiments.check_numbers

lock: $(BIN)/python
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) --python-version 3.11 --output-file $(word 1,$(LOCKS))
	$(COMPILE) --python-version 3.12 --output-file $(word 2,$(LOCKS))

COMPILE = $(BIN)/uv pip compile pyproject.toml --extra test --group build \
  $(UPGRADE) --universal --no-python-downloads --fork-strategy fewest \
  --no-annotate --generate-hashes --custom-compile-command "make lock" --quiet

audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit
	.venv-audit/bin/pip-audit --require-hashes \
	  --requirement $(call lock_of,.venv-audit)

# Dependencies are as old as pyproject.toml allows; what only tests need is new, and
# leaves them as they are. Only uv finds the oldest versions.
oldest: BIN := .venv-oldest/bin
oldest: .venv-oldest/oldest.stamp
	$(PYTEST) tests

.venv-oldest/oldest.stamp: pyproject.toml
	@echo "installing the oldest versions into .venv-oldest"
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet uv
	@for what in "--resolution lowest-direct --editable ." \
	  "--editable .[test]"; do \
	  .venv-oldest/bin/uv pip install --quiet \
	    --python .venv-oldest/bin/python $$what || exit; done
	touch $@

# With the released jaxlib, which JAX's main branch supports.
nightly: BIN := .venv-nightly/bin
nightly: .venv-nightly/nightly.stamp
	$(PYTEST) tests

.venv-nightly/nightly.stamp: pyproject.toml
	@echo "installing JAX's main branch into .venv-nightly"
	@test -x .venv-nightly/bin/python || $(PYTHON) -m venv .venv-nightly
	@.venv-nightly/bin/python -m pip install --quiet --editable ".[test]"
	@.venv-nightly/bin/python -m pip install --quiet --upgrade \
	  "jax @ git+https://github.com/jax-ml/jax"
	touch $@

parity: .venv-parity/parity.stamp
	.venv-parity/bin/python -m experiments.parity.towers
	.venv-parity/bin/python -m experiments.parity.exported

torch: .venv-parity/parity.stamp
	.venv-parity/bin/python -m pytest tests/lab/models/pretrained/torch_file_test.py

.venv-parity/parity.stamp: pyproject.toml
	@echo "installing the packages and PyTorch into .venv-parity"
	@test -x .venv-parity/bin/python || $(PYTHON) -m venv .venv-parity
	@.venv-parity/bin/python -m pip install --quiet --editable ".[parity,test]"
	touch $@

trackers: .venv-trackers/trackers.stamp
	.venv-trackers/bin/python -m pytest tests/lab/train/trackers_test.py

.venv-trackers/trackers.stamp: pyproject.toml
	@echo "installing the packages, W&B, trackio and MLflow into .venv-trackers"
	@test -x .venv-trackers/bin/python || $(PYTHON) -m venv .venv-trackers
	@.venv-trackers/bin/python -m pip install --quiet \
	  --editable ".[mlflow,test,trackio,wandb]"
	touch $@

# What XLA compiles for GPUs, on machines that have none.
compilers: .venv-compilers/compilers.stamp
	.venv-compilers/bin/python -m pytest experiments/step_time/targets_test.py

.venv-compilers/compilers.stamp: pyproject.toml
	@echo "installing the packages and XLA's compilers into .venv-compilers"
	@test -x .venv-compilers/bin/python || $(PYTHON) -m venv .venv-compilers
	@.venv-compilers/bin/python -m pip install --quiet \
	  --editable ".[compilers,test]"
	touch $@

beam: .venv-beam/beam.stamp
	.venv-beam/bin/python -m pytest tests/lab/ingest \
	  tests/lab/user_files/inputs_test.py

.venv-beam/beam.stamp: pyproject.toml
	@echo "installing the packages and Apache Beam into .venv-beam"
	@test -x .venv-beam/bin/python || $(PYTHON) -m venv .venv-beam
	@.venv-beam/bin/python -m pip install --quiet --editable ".[test,beam]"
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed.stamp: pyproject.toml setup.py $(TESTED) | $(BIN)/python
	@echo "installing the packages into $(VENV) (about a minute)"
	@$(DEPENDENCIES)
	@$(PIP) $(PACKAGE)
	touch $@
