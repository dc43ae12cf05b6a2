# Each command installs what it needs into .venv. The machine needs Python >= 3.11 and make.
#   make demo           run the demo                          (ARGS="--all" is handed on, as in all commands with ARGS)
#   make test           check the sources and run the tests
#   make test-long      every case of every test, on all supported versions of jax, and all else that takes hours
#   make lint           check the sources: ruff, import-linter, mypy
#   make static-checks  compile the benchmark's programs for GPUs that are not here (ARGS="sm_90 lstm/1 --update")
#   make benchmark      time all models, and judge what is found by the project's targets (ARGS="--small")
#   make card-pack      compile the programs for a card that is elsewhere into build/card/pack; needs nvcc
#                       (JAX=0.11.2, the version there; ARGS="--only lstm/1")
#   make docs           build the site in the folder `site`
#   make install        install the package; `make install-test` adds what the tests need
#   make clean          delete .venv and all that was built
# PYTHON=... chooses the interpreter, JOBS=... the number of test processes, PYTEST_ARGS=... what is tested.

VENV ?= .venv
JOBS ?= 2
ARGS ?=
PYTEST_ARGS ?=

USABLE = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
# The newest jax needs a newer one than 3.11.
PYTHON ?= $(shell for p in python3.13 python3.14 python3.12 python3 python3.11 python; do \
	"$$p" -c '$(USABLE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

# For versions of jax that need a newer one.
NEWER ?= $(shell for p in python3.12 python3.13 python3.14 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[234].*/bin/python; do \
	"$$p" -c 'import ensurepip, venv' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

# Without a C++ compiler the `compiler` extra brings one.
EXTRA_FOR_DEMO = $(shell for c in $$CXX c++ g++ clang++; do \
	command -v "$$c" >/dev/null 2>&1 && { echo found; break; }; done | grep -q found || echo '[compiler]')

PIP = "$(VENV)/bin/python" -m pip --disable-pip-version-check --quiet
RUN = JAX_PLATFORMS="$${JAX_PLATFORMS:-cpu}" "$(VENV)/bin/python"

.PHONY: demo test test-long static-checks lint install install-test benchmark card-pack docs clean

demo: install
	$(RUN) -m jax_cocktail demo $(ARGS)

# A file's tests run in one process: what several of them need is compiled once. The last files are short ones.
# Most tests only compare answers with those of stock XLA, whose programs LLVM need not optimise for that. Those
# marked `exact_xla` compare bits or speed.
TEST = -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder
QUICK_XLA = --xla_backend_optimization_level=0
EXACT_XLA = $(shell grep -rl 'mark.exact_xla' tests --include='test_*.py')
test: lint
	XLA_FLAGS="$(QUICK_XLA) $$XLA_FLAGS" $(RUN) $(TEST) --hold-seconds --exact-xla without $(PYTEST_ARGS)
	$(RUN) $(TEST) --exact-xla only $(or $(filter-out --update-seconds,$(PYTEST_ARGS)),$(EXACT_XLA)) \
		|| test $$? = 5 # none among them

test-long:
	.ci/long

lint: install-test
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/lint-imports"
	"$(VENV)/bin/mypy"

static-checks: install-test
	$(RUN) -m tests.cpu.static_checks $(ARGS)

# Whole loops: stock XLA with any while as one kernel, whose bytes are by default bounded.
BENCHMARK = build/benchmark
MEASURED = --set all --by-hand --seconds 4
WHOLE_LOOPS = --xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000
benchmark: install
	$(RUN) -m jax_cocktail bench $(MEASURED) --html $(BENCHMARK)/bench.html --json $(BENCHMARK)/bench.json $(ARGS)
	XLA_FLAGS="$$XLA_FLAGS $(WHOLE_LOOPS)" \
		$(RUN) -m jax_cocktail bench $(MEASURED) --json $(BENCHMARK)/whole_loops.json $(ARGS)
	$(RUN) -m benchmarks.calls overhead --out $(BENCHMARK)/calls.json
	$(RUN) -m benchmarks.first_call --only /1 tiny_conds --how auto --out $(BENCHMARK)/first_calls.json
	$(RUN) -m benchmarks.targets $(BENCHMARK)/bench.json $(BENCHMARK)/whole_loops.json \
		--calls $(BENCHMARK)/calls.json --first $(BENCHMARK)/first_calls.json

# What is compiled stays in build/card/cache. The folder build/card/pack is all that the card's machine needs
# beside the sources; it must have the same version of jax, or it compiles our programs again.
JAX ?= 0.11.2
CARD = build/card
card-pack: $(CARD)/jax-$(JAX)/bin/python
	JAX_PLATFORMS=cpu JAX_COCKTAIL_CACHE_DIR="$(CURDIR)/$(CARD)/cache" \
		"$(CARD)/jax-$(JAX)/bin/python" benchmarks/gpu_check.py --pack "$(CARD)/pack" $(ARGS)

$(CARD)/jax-$(JAX)/bin/python:
	@test -n "$(NEWER)" || { echo "no Python >= 3.12 with venv and ensurepip on PATH; say make NEWER=..."; exit 1; }
	"$(NEWER)" -m venv "$(CARD)/jax-$(JAX).new"
	"$(CARD)/jax-$(JAX).new/bin/python" -m pip --disable-pip-version-check --quiet install \
		'jax==$(JAX)' 'jaxlib==$(JAX)' numpy absl-py filelock
	mv "$(CARD)/jax-$(JAX).new" "$(CARD)/jax-$(JAX)"

docs: install
	$(PIP) install -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 "$(VENV)/bin/mkdocs" build --strict

install: $(VENV)/.demo-stamp

install-test: $(VENV)/.test-stamp

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv and ensurepip on PATH; say make PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c '$(USABLE)' || { echo "$(PYTHON) is too old or lacks venv; say make PYTHON=..."; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"

$(VENV)/.demo-stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.$(EXTRA_FOR_DEMO)'
	@touch $@

$(VENV)/.test-stamp: pyproject.toml $(VENV)/.demo-stamp
	$(PIP) install -e '.[test,notebooks]'
	@touch $@

clean:
	rm -rf "$(VENV)" .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site
