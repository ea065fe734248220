# The developer's interface. CI runs `make demo test-all`.
#
#   make demo       doctor, plan, training with three faults, a fast model, a report: 90 seconds after set-up
#   make test       what has to hold: lint, types, tests (no accelerator needed)
#   make test-all   `make test`, then the slower tests: what CI runs
#   make test-long  `make test-all`, then the longest tests, and all cases of what the others take samples of
#   make check      lint, format, types and documentation alone
#   make docs       the documentation as a site below build/site/, strictly: a broken link is an error
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
# The first command makes .venv from requirements.lock; later ones install nothing. `make demo` installs only what the
# demo needs, `make docs` what the site needs; `make test` adds the rest. `make hardware PY=python3` uses a Python you
# have instead, with the packages that are in it.

PYTHON ?= python3
PY ?= .venv/bin/python
PYTEST = $(PY) -m pytest
# Tests run in this many processes, a file in one of them. Many tests wait, for a limit or a restart: three keep two cores
# busy. Each process has a nursery of its own, so more need memory.
JOBS ?= 3
# Many tests watch the clock. A test that fails beside others runs once more alone, and fails for good if it fails again.
# Only pytest's exit code 1 (some tests failed) leads here; with nothing to repeat, "none" makes it fail as well.
# $(call tests,OPTIONS)
define tests
$(PYTEST) $(1) -n $(JOBS) --dist loadfile --durations 25 || { test $$? -eq 1 && \
    echo "== The tests that failed run once more, one at a time ==" && \
    $(PYTEST) --everything -n 0 --last-failed --last-failed-no-failures none; }
endef

# Every path here is relative: the folder may have blanks in its name.
ifeq ($(PY),.venv/bin/python)
READY = .venv/.ready
DEMO_READY = .venv/.demo-ready
DOCS_READY = .venv/.docs-ready
else
READY =
DEMO_READY =
DOCS_READY =
export PYTHONPATH := $(CURDIR)/src
endif

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The tests start some thousand Pythons: each would compile our files anew if none of them kept the bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs test test-all test-long check check-fast fix bench hardware verify platforms package package-check
.PHONY: release-check lock clean setup
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(DEMO_READY)
	@$(PY) scripts/demo.py

docs: $(DOCS_READY)
	$(PY) scripts/site_pages.py

test: check
	$(call tests,)

test-all: test
	$(call tests,--rest)

test-long: test-all
	$(call tests,--long)

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

INSTALL = .venv/bin/python -m pip install --quiet --progress-bar off --no-compile --require-hashes
COMPILE = .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # pip would do it on one core
OURS = .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "error: Python 3.10 or newer, please")'
	$(PYTHON) -m venv .venv

# Two stamps: a change of pyproject.toml registers the package anew and downloads nothing.
.venv/.locked: requirements.lock | .venv/bin/python
	@echo "Installing what the tests need into .venv (once, some minutes)"
	$(INSTALL) -r requirements.lock
	$(COMPILE)
	touch $@

.venv/.ready: .venv/.locked pyproject.toml
	$(OURS)
	touch $@ .venv/.demo-ready

# A part of requirements.lock, in the same versions. torch is most of it.
.venv/.demo-ready: requirements-demo.lock pyproject.toml | .venv/bin/python
	@echo "Installing what the demo needs into .venv (once; most of it is torch)"
	@test -e .venv/.ready || $(INSTALL) -r requirements-demo.lock
	@test -e .venv/.ready || $(COMPILE)
	@$(OURS)
	@touch $@

.venv/.docs-ready: requirements-docs.lock | .venv/bin/python
	$(INSTALL) -r requirements-docs.lock
	touch $@

LOCK = uv pip compile --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --quiet

lock:
	$(LOCK) --extra dev --output-file requirements.lock pyproject.toml requirements.in
	$(LOCK) -c requirements.lock --extra demo --output-file requirements-demo.lock pyproject.toml
	echo 'mkdocs-material>=9.6' | $(LOCK) -c requirements.lock --output-file requirements-docs.lock -
	@! grep -n '://' requirements.lock requirements-demo.lock requirements-docs.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
