# Every target sets up .venv by itself, with a GPU or without. `make help` lists them.

# The first Python that is new enough, unless PYTHON= names one.
PYTHONS = python3 python3.14 python3.13 python3.12 python3.11
PYTHON ?= $(firstword $(shell for p in $(PYTHONS); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p; done) python3)
EXTRA ?=
ARGS ?=
# Tests run side by side; a test process takes about 1 GB.
JOBS ?= auto

VENV_PYTHON = .venv/bin/python
READY = .venv/ready

.PHONY: help run test lab check notebooks setup clean

help:
	@echo "make run        every stage, checked; executed notebooks, charts and the stage table in out/"
	@echo "make test       all tests                       (ARGS='-k 03_ -x' goes to pytest)"
	@echo "make lab        JupyterLab on the notebooks"
	@echo "make notebooks  rebuild the executed notebooks in notebooks/"
	@echo "make check      lint and formatting"
	@echo "make setup      set up again                    (EXTRA=nogpu|cuda12|cuda13, PYTHON=python3.12)"
	@echo "make clean      remove out/ and caches          (.venv stays)"

# A checkout that was moved or copied has a .venv that points elsewhere.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

$(READY): pyproject.toml labs_common/setup_env.py
	@command -v $(PYTHON) >/dev/null || { echo "set-up: no $(PYTHON) here; the lab needs Python 3.11 or newer (PYTHON=…)" >&2; exit 1; }
	@$(PYTHON) -I labs_common/setup_env.py $(EXTRA)

setup:
	@$(PYTHON) -I labs_common/setup_env.py $(EXTRA)

# The notebooks are executed also where a stage is wrong; after Ctrl-C they are not.
run: $(READY)
	@status=0; \
	$(VENV_PYTHON) -m labs_common run --save out/counts $(ARGS) || status=$$?; \
	[ $$status -ne 130 ] || exit 130; \
	$(VENV_PYTHON) -m labs_common run 1 2 3 4 --problem seed --save out/counts || status=$$?; \
	[ $$status -ne 130 ] || exit 130; \
	$(VENV_PYTHON) -m labs_common.notebooks --out out || status=$$?; \
	exit $$status

test: $(READY)
	$(VENV_PYTHON) -m pytest -n $(JOBS) --maxprocesses 4 --dist worksteal $(ARGS)

lab: $(READY)
	$(VENV_PYTHON) -m jupyterlab --ServerApp.root_dir=. $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/start_here.ipynb

notebooks: $(READY)
	$(VENV_PYTHON) -m labs_common.notebooks --write --out out

check: $(READY)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

clean:
	rm -rf out .pytest_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
