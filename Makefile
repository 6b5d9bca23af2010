# Daily commands: `make run` and `make test`.
.PHONY: run cluster build test test-runtimes chaos soak-storage soak-agent check dist screenshot help
.PHONY: bench bench-storage bench-select bench-node bench-flamegraph bench-agent bench-cluster

help:
	@echo "make run    install missing packages, build, start varve up: http://127.0.0.1:4040/"
	@echo "make cluster  build, start three nodes, two routers and an agent on this machine"
	@echo "make test   all tests, from units to the browser"
	@echo "make test-runtimes  the agent with every version of every language runtime"
	@echo "make chaos  faults against a cluster: ROWS=R1,R12 (default all), SIZE=ci, night or a number, SEED=1"
	@echo "make soak-storage  random tests of the storage engine for an hour or two"
	@echo "make soak-agent    a million damaged files for unwind tables, and images of each language runtime"
	@echo "make build  target/release/varve, with the web UI"
	@echo "make check  format, lints, rules of the source, licences, bans, sources"
	@echo "make dist   a stripped tarball for another machine"
	@echo "make screenshot  the README's picture, docs/images/web-ui.png, from five minutes of load"
	@echo "make bench  figures of ingest and queries, as JSON"
	@echo "make bench-storage, bench-select, bench-node, bench-flamegraph  figures of single parts"
	@echo "make bench-agent  the cost of sampling"
	@echo "make bench-cluster  the cost of replication"

run:
	@scripts/run

cluster: build
	@deploy/local/cluster up --dir ./varve-cluster

build:
	scripts/install-build-tools
	scripts/build-web-ui
	cargo build --release --workspace

test:
	@scripts/test

test-runtimes:
	@scripts/test-runtimes

chaos:
	scripts/install-build-tools --test
	cargo build --release --workspace --bin varve
	@VARVE_CHAOS_ROWS="$(or $(ROWS),all)" VARVE_CHAOS_SIZE="$(or $(SIZE),ci)" VARVE_CHAOS_SEED="$(or $(SEED),1)" \
		cargo test --release --workspace --test chaos -- --ignored --exact rows_of_the_environment --nocapture

soak-storage:
	@scripts/soak-storage

soak-agent:
	scripts/install-build-tools --test
	cases=$${VARVE_DAMAGE_CASES:-1000000}; VARVE_DAMAGE_CASES=$$cases PROPTEST_CASES=$$cases \
		cargo test --profile soak -p agent --lib -- damaged_ random_objects --nocapture

check:
	@scripts/check

dist:
	scripts/install-build-tools
	scripts/dist

bench: build
	$${CARGO_TARGET_DIR:-target}/release/bench up

bench-storage: build
	$${CARGO_TARGET_DIR:-target}/release/bench storage

bench-select: build
	$${CARGO_TARGET_DIR:-target}/release/bench select

bench-flamegraph: build
	$${CARGO_TARGET_DIR:-target}/release/bench flamegraph

bench-node: build
	$${CARGO_TARGET_DIR:-target}/release/bench node

bench-cluster: build
	$${CARGO_TARGET_DIR:-target}/release/bench cluster

bench-agent: build
	$${CARGO_TARGET_DIR:-target}/release/bench agent

screenshot: build
	@scripts/screenshot
