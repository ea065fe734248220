# The developer's interface. CI runs `make test` and nothing else.
#
#   make demo       doctor, plan, training with three faults, receipt, a fast model, and a page to look at
#   make test       what has to hold: lint, types, tests (no accelerator needed)
#   make test-all   the same with every case of the long matrices of tests
#   make check      lint, format, types and documentation alone
#   make fix        let ruff repair what it can
#   make bench      the long measurements, kept in benchmarks/results/ (ARGS=--quick: a smoke test of them)
#   make hardware   the tests that need a real accelerator
#   make verify     holdfast-verify.pyz below dist/: `holdfast verify` as one file for people with other cards
#   make platforms  types as on Windows and macOS (minutes; not part of `make check`)
#   make package    wheel and sdist below dist/, looked into (package-check: and installed into an empty environment)
#   make release-check  versions, workflows, Dockerfile, wheel and sdist; `holdfast doctor` by uvx and pipx (minutes)
#   make lock       make requirements.lock anew from pyproject.toml and requirements.in (needs uv)
#   make clean      remove everything that was made, .venv included
#
# The first command makes .venv from requirements.lock; later ones install nothing. `make hardware PY=python3` uses
# a Python you have instead, with the packages that are in it.

PYTHON ?= python3
PY ?= .venv/bin/python
PYTEST = $(PY) -m pytest
# Tests run in this many processes, a file in one of them. Many tests wait, for a limit or a restart: three keep two cores
# busy. Each process has a nursery of its own, so more need memory.
JOBS ?= 3
# Many tests watch the clock. A test that fails beside others runs once more alone, and fails for good if it fails again.
# Only pytest's exit code 1 (some tests failed) leads here; with nothing to repeat, "none" makes it fail as well.
AGAIN = { echo "== The tests that failed run once more, one at a time ==" && \
    $(PYTEST) -n 0 --last-failed --last-failed-no-failures none; }

# Every path here is relative: the folder may have blanks in its name.
ifeq ($(PY),.venv/bin/python)
READY = .venv/.ready
else
READY =
export PYTHONPATH := $(CURDIR)/src
endif

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test test-all check check-fast fix bench hardware verify platforms package package-check release-check lock clean setup
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(READY)
	$(PY) scripts/demo.py

test: check
	$(PYTEST) -n $(JOBS) --dist loadfile --durations 25 || { test $$? -eq 1 && $(AGAIN); }

test-all: PYTEST += --everything
test-all: test

check: check-fast
	$(PY) -m ruff format --check .
	$(PY) scripts/check_docs.py

check-fast: $(READY)
	$(PY) -m ruff check .
	$(PY) -m mypy

fix: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(READY)
	$(PY) benchmarks/bench.py $(ARGS)

hardware: $(READY)
	$(PYTEST) -m hardware --timeout 600 tests
	$(PY) benchmarks/hardware.py --out benchmarks/results/hardware.json

verify: $(READY)
	$(PY) scripts/verify_pyz.py

platforms: $(READY)
	$(PY) -m mypy --platform win32 --cache-dir .mypy_cache/win32
	$(PY) -m mypy --platform darwin --cache-dir .mypy_cache/darwin

package: $(READY)
	$(PY) scripts/package.py

package-check: $(READY)
	$(PY) scripts/package.py --try

release-check: $(READY)
	$(PY) scripts/release.py --try

setup: $(READY)

# Two stamps: a change of pyproject.toml registers the package anew and downloads nothing.
.venv/.locked: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "error: Python 3.10 or newer, please")'
	.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --progress-bar off --no-compile --require-hashes -r requirements.lock
	.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # pip would do it on one core
	touch $@

.venv/.ready: .venv/.locked pyproject.toml
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

lock:
	uv pip compile --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --quiet \
	    --extra dev --output-file requirements.lock pyproject.toml requirements.in
	@! grep -n '://' requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
