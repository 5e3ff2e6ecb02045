# The commands of the course, one line each; `make` alone lists them.
# PYTHON is what .venv is made with: make PYTHON=python3.12 start

PYTHON ?= python3
PY := .venv/bin/python

## make start      set up, build the book, serve it with JupyterLab
## make lab        JupyterLab without the book
## make book       build the book into _build/html
## make cheatsheet.pdf    the cheat sheet on paper (needs Chromium)
## make clean      remove what was built, but neither .venv nor grades
# <!-- full edition -->
## make test       set up, run all checks and tests
## make exercises  write notebooks and goldens from solutions/
## make verify     check that lessons, exercises and answers agree
## make grade SUBMISSIONS=folder   grade a class's notebooks
## make student-edition   the course without answers, as a zip
## make links      do the book's links lead somewhere? (needs the network)
## make bench      how long checks and grading take
# <!-- end -->
help:
	@sed -n 's/^## //p' Makefile

start: book
	@$(PY) -P autograder/serve.py

lab: setup
	@$(PY) -P autograder/serve.py --no-book

# The book keeps one core busy for minutes, so it is built beside `verify`.
# pytest comes last, so that its closing line speaks for the whole run. A
# file's tests stay in one process, which they share servers and builds with.
test: lint
	@$(MAKE) -j2 BESIDE=yes verify book
	$(PY) -m pytest -n auto --dist loadfile

lint: setup
	$(PY) -m ruff check .

exercises: setup
	$(PY) -m autograder build

verify: setup
	$(PY) -m autograder verify

grade: setup
	@$(PY) -m autograder grade "$(or $(SUBMISSIONS),$(error Say what to grade: make grade SUBMISSIONS=folder))"

student-edition: setup
	@$(PY) -m autograder student-edition

cheatsheet.pdf: book
	@$(PY) book/assets/print_cheatsheet.py

links: setup $(MATHJAX)
	.venv/bin/jupyter-book build . --builder linkcheck

bench: setup
	$(PY) -m autograder bench

clean:
	@mkdir -p _build
	find _build -mindepth 1 -maxdepth 1 ! -name nbgrader -exec rm -rf {} +

# Silent and quick when .venv is as requirements.txt wants it.
setup:
	@$(PYTHON) -I autograder/bootstrap.py

# The book is built again when something that it shows has changed.
HELPERS := $(shell find requirements.txt autograder book/figures book/assets -type f ! -path '*/tests/*' ! -path '*/grading/*' ! -name serve.py ! -name bootstrap.py ! -path '*/mathjax/*' ! -name '*.pyc')
SOURCES := $(shell find _config.yml _toc.yml book $(wildcard solutions) -type f ! -path '*/mathjax/*' ! -name '*.ipynb' ! -name '*.pyc')
MATHJAX := book/assets/mathjax/tex-mml-chtml.js

book: _build/book.stamp

# Sphinx repeats no warning about a page that it skips: after a failure it
# has to forget what it knows.
_build/book.stamp: $(SOURCES) $(MATHJAX) _build/helpers.stamp | setup
	.venv/bin/jupyter-book build . -W -n --keep-going || { rm -rf _build/.doctrees; exit 1; }
	@touch $@

# Neither Sphinx nor the cache of executed pages sees a change in a module
# that pages import.
_build/helpers.stamp: $(HELPERS)
	@rm -rf _build/.jupyter_cache _build/.doctrees && mkdir -p _build && touch $@

# The book asks no other host for the script that draws its formulas.
$(MATHJAX): book/assets/fetch_mathjax.py requirements.txt | setup
	@$(PY) book/assets/fetch_mathjax.py && touch $@

# Targets named together come one after the other: `make exercises verify`.
ifndef BESIDE
.NOTPARALLEL:
endif
.PHONY: help start lab test lint exercises verify grade student-edition cheatsheet.pdf links bench clean setup book
