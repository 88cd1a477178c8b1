# `make demo` shows what kvatlas does, `make test` checks all of it. Both set up what they need in .venv and target.
# A Python of your choice: make PYTHON=/path/to/python demo

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
MINUTES ?= 5
BIN := .venv/bin
RUST := $(wildcard Cargo.toml Cargo.lock pyproject.toml crates/*/Cargo.toml) $(shell find crates -path '*/src/*' -name '*.rs' -o -name openapi.json)
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python

.PHONY: demo test lint ladder ladder-short bench bench-peers bench-family bench-service soak fuzz loom sanitize docs wheel build check-tools clean

demo: build  ## a generated trace replayed by every policy, then simulated engines with the service
	$(BIN)/kvatlas replay
	$(BIN)/kvatlas demo

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

# One workload each: the trace (the conversation trace if TRACE names it, else a generated one), and its fleet.
TRACE ?=
PEERS ?=
LADDER := $(BIN)/kvatlas bench
LADDER_W1 := --duplication 20 --group-size 8
LADDER_W2 := --block-size 16 --duplication 2 --group-size 8
LADDER_W4 := --engines 1000 --cache-blocks 4096 --copies 32
SWEEP = $(LADDER) sweep $(TRACE) $(if $(PEERS),--peers $(PEERS)) $(ARGS)

ladder: build  ## the figures of docs/ladder.md: make ladder TRACE=trace.jsonl PEERS=program; hours, resumable
	$(SWEEP) $(LADDER_W1) --out target/ladder/w1
	$(SWEEP) $(LADDER_W2) --out target/ladder/w2
	$(SWEEP) $(LADDER_W4) --out target/ladder/w4
	$(LADDER) grow --out target/ladder/grow
	mkdir -p docs/ladder
	for name in w1 w2 w4; do cp target/ladder/$$name/sweep.png docs/ladder/$$name.png; done
	cp target/ladder/grow/grow.png docs/ladder/grow.png
	$(BIN)/python -m kvatlas.lab.bench.fill docs/ladder.md W1=target/ladder/w1/sweep.json W2=target/ladder/w2/sweep.json \
		W4=target/ladder/w4/sweep.json grow=target/ladder/grow/grow.json

ladder-short: build  ## all rungs, small and rough, in minutes; results in target/ladder-short
	$(LADDER) sweep $(TRACE) --short --duplication 4 --check-seconds 0.3 --out target/ladder-short/sweep $(ARGS)
	$(LADDER) grow --short --lookup-seconds 0.3 --build-seconds 5 --out target/ladder-short/grow

bench: build  ## what the calls from Python cost on this machine, and readers beside a writer
	$(BIN)/python benchmarks/python_calls.py
	cargo run --release -p kvatlas-index --example readers

bench-peers: build  ## the index beside other released indexes, in one process
	cargo run --release --manifest-path benchmarks/peers/Cargo.toml -- $(ARGS)
	$(BIN)/python benchmarks/peers/python/run.py --in-place

bench-family: build  ## the trees beside kv-index, the prefix table beside AIBrix's figures, the trie beside plain Python
	cargo run --release --manifest-path benchmarks/peers/Cargo.toml --bin family -- $(ARGS)
	cargo run --release -p kvatlas-trees --example prefix_table
	$(BIN)/python -m benchmarks.family.radix_trie

bench-service: build target/dynamo/ready  ## the service beside the standalone indexer of ai-dynamo; needs wrk
	$(BIN)/python -m benchmarks.service --dynamo-python target/dynamo/bin/python $(ARGS)

soak: build  ## simulated engines and the service, killed and disturbed at random: make soak MINUTES=60
	$(BIN)/python -m tests.service.soak --minutes $(MINUTES)

fuzz: check-tools  ## random streams against the models: make fuzz MINUTES=60
	cargo run --release -p kvatlas-index --example fuzz -- --minutes $(MINUTES)
	cargo run --release -p kvatlas-wire --example fuzz -- --minutes $(MINUTES)
	KVATLAS_SEEDS=$$((1200 * $(MINUTES))) cargo test -p kvatlas-trees -p kvatlas-designs --test trees --test designs

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
