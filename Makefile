# The two commands of a day are `make run` and `make test`.
.PHONY: run build test soak-storage soak-agent check dist bench bench-storage bench-select bench-flamegraph bench-agent \
	screenshot help

help:
	@echo "make run    install what is missing, build, start varve up: http://127.0.0.1:4040/"
	@echo "make test   everything there is, from unit tests to the browser"
	@echo "make soak-storage  an hour or two of the storage engine against its model, power cuts and damage"
	@echo "make soak-agent  a million damaged files for the agent's unwind tables"
	@echo "make build  target/release/varve, with the web UI in it"
	@echo "make screenshot  the README's picture, docs/images/web-ui.png, from five minutes of load"
	@echo "make check  format, lints, licences, bans, sources"
	@echo "make dist   a stripped tarball for another machine"
	@echo "make bench  ingest and query figures as JSON; bench-storage, bench-select: of the storage engine by itself; bench-flamegraph: the router; bench-agent: what sampling costs"

run:
	@scripts/run

build:
	scripts/install-build-tools
	scripts/build-page
	cargo build --release --workspace

test:
	@scripts/test

soak-storage:
	@scripts/soak-storage

soak-agent:
	scripts/install-build-tools --test
	VARVE_DAMAGE_CASES=$${VARVE_DAMAGE_CASES:-1000000} cargo test --profile soak -p agent --lib damaged_files -- --nocapture

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

bench-agent: build
	$${CARGO_TARGET_DIR:-target}/release/bench agent

screenshot: build
	@scripts/screenshot
