# `make demo` shows what kvatlas does, `make test` checks all of it. Both set up what they need in .venv and target.
# A Python of your choice: make PYTHON=/path/to/python demo

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
MINUTES ?= 5
BIN := .venv/bin
RUST := $(wildcard Cargo.toml Cargo.lock pyproject.toml crates/*/Cargo.toml) $(shell find crates -path '*/src/*' -name '*.rs' -o -name openapi.json)
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python

.PHONY: demo test lint bench bench-peers bench-service soak fuzz loom sanitize docs wheel build check-tools clean

demo: build  ## a generated trace replayed by every policy, then a live fleet of simulated engines with the service
	$(BIN)/kvatlas replay
	$(BIN)/kvatlas live

test: lint  ## everything that must hold, the same as in CI
	cargo test --workspace --exclude kvatlas-python
	$(BIN)/python -m pytest

lint: build  ## format, lints, types, and stubs against the built extension
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --profile test -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest kvatlas._native

bench: build  ## what the calls from Python cost on this machine, and readers beside a writer
	$(BIN)/python benchmarks/python_calls.py
	cargo run --release -p kvatlas-index --example readers

bench-peers: build  ## the index beside other released indexes, in one process
	cargo run --release --manifest-path benchmarks/peers/Cargo.toml -- $(ARGS)
	$(BIN)/python benchmarks/peers/python/run.py --in-place

bench-service: build target/dynamo/ready  ## the service beside the standalone indexer of ai-dynamo; needs wrk
	$(BIN)/python -m benchmarks.service --dynamo-python target/dynamo/bin/python $(ARGS)

soak: build  ## simulated engines and the service, killed and disturbed at random: make soak MINUTES=60
	$(BIN)/python -m tests.service.soak --minutes $(MINUTES)

fuzz: check-tools  ## random streams against the model: make fuzz MINUTES=60
	cargo run --release -p kvatlas-index --example fuzz -- --minutes $(MINUTES)
	cargo run --release -p kvatlas-wire --example fuzz -- --minutes $(MINUTES)

loom: check-tools  ## every interleaving of the orderings made by hand
	RUSTFLAGS="--cfg loom" cargo test --release -p kvatlas-index --lib --target-dir target/loom loom

sanitize: check-tools  ## address sanitizer (needs a nightly toolchain), then Valgrind, over the tests of the index
	RUSTFLAGS="-Zsanitizer=address" cargo +nightly test -p kvatlas-index --lib --test random_streams --test concurrency \
		--target $$(rustc -vV | sed -n 's/host: //p') --target-dir target/asan
	CARGO_TARGET_$$(rustc -vV | sed -n 's/host: //p' | tr 'a-z-' 'A-Z_')_RUNNER="valgrind -q --error-exitcode=9" \
		KVATLAS_SEEDS=20 cargo test -p kvatlas-index --lib --test random_streams --test concurrency

docs: build  ## the Rust documentation, and every Python example of the documents
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	$(BIN)/python -m pytest tests/test_docs.py

wheel: .venv/ready  ## one wheel for every Python from 3.11 on, in dist
	$(BIN)/maturin build --release --locked --out dist

build: .venv/built  ## the extension, installed in .venv

.venv/built: .venv/ready $(RUST)
	$(BIN)/maturin develop --release --locked
	@touch $@

.venv/ready: requirements-dev.txt | check-tools
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

target/dynamo/ready: benchmarks/service/requirements-dynamo.txt | check-tools
	$(PYTHON) -m venv target/dynamo
	target/dynamo/bin/python -m pip install --quiet --requirement benchmarks/service/requirements-dynamo.txt
	@touch $@

check-tools:
	@test -n "$(PYTHON)" || { echo "kvatlas needs Python 3.11 or newer: install it, or say where it is: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvatlas needs Python 3.11 or newer, and $(PYTHON) is not" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "kvatlas needs Rust 1.88 or newer: see https://rustup.rs" >&2; exit 1; }

clean:
	rm -rf .venv target dist python/kvatlas/*.so
