# make demo: train NUCLR on the embedded data, report, exact popularities.
# make test: every check, as CI runs it.
# Both make a virtual environment in .venv first.
# make docs: the documentation, into site/.
# make parity: the encoders against PyTorch's, in an environment of its own.

PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
WORKDIR ?= runs/demo
BIN := .venv/bin

.PHONY: demo test lint docs parity

demo: .venv/demo.stamp
	$(BIN)/nuclr train --config=configs/glyphs.py "--workdir=$(WORKDIR)"
	$(BIN)/nuclr report "--workdir=$(WORKDIR)"
	$(BIN)/nuclr popularity "--workdir=$(WORKDIR)"

test: .venv/test.stamp lint docs
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: .venv/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

parity: .venv-parity/parity.stamp
	cd experiments/parity && ../../.venv-parity/bin/python parity.py \
	  && ../../.venv-parity/bin/python exported.py

.venv-parity/parity.stamp: pyproject.toml
	@echo "installing the packages and PyTorch into .venv-parity"
	@test -x .venv-parity/bin/python || $(PYTHON) -m venv .venv-parity
	@.venv-parity/bin/python -m pip install --quiet --editable ".[parity]"
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	@echo "installing the packages into .venv (about a minute)"
	@$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/test.stamp: pyproject.toml | .venv/bin/python
	@echo "installing the packages into .venv (about a minute)"
	@$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@ .venv/demo.stamp
