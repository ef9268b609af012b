# Everything a person needs: make demo, make test. See README.md.
.PHONY: help setup demo quick test build attack bench book screenshots evaluations fuzz sim soak packages deb deb-test upgrade-test static container loom nightly retrain mahimahi torch trainers wheel module module-test module-headers module-debug module-differential clean

CCPLANE := target/release/ccplane

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /  make \1\t/; s/-%/-CRATE/' | expand -t 20

build: ## the ccplane binary, in target/release
	@.ci/setup demo
	cargo build --release --quiet -p ccplane

demo: build ## ours, CUBIC and BBR on four kinds of link: live table, HTML report
	@trace=$$(.ci/traces target/traces) && $(CCPLANE) demo $${trace:+--trace $$trace}

quick: ## format, clippy, and the tests that need no privileges: minutes, for while you work
	@.ci/quick

test: ## everything that CI checks
	@.ci/setup test
	@.ci/checks

test-%: ## the tests of one crate, such as make test-quic; make test-cli for the ccplane command
	@.ci/test-crate $*

attack: ## every attack of the tests in full: other users, hostile peers, dying machines; as root
	@.ci/setup test
	@.ci/attack

bench: build ## every figure; needs root and a quiet machine
	cargo build --release --quiet -p ccplane-oracle -p ccplane-wait-preload
	$(CCPLANE) bench --all

book: ## the book, in target/book/html; the pages of it that are made from the code are written anew
	@.ci/mdbook target/mdbook
	CCPLANE_BLESS=1 cargo test --quiet -p ccplane --test suite book::pages_that_are_made
	@.ci/book target/book

screenshots: build ## the book's pictures, in experiments/book/pictures; needs chromium
	@.ci/screenshots $(CCPLANE) experiments/book/pictures

evaluations: build ## every algorithm by the criteria of RFC 9743, in experiments/evaluations; LIVE (0.02) of the cases live, so as root on a quiet machine
	mkdir -p target/evaluations
	$(CCPLANE) evaluate --all --live $${LIVE:-0.02} --results target/evaluations
	cp target/evaluations/*.html target/evaluations/*.md experiments/evaluations/

fuzz: ## the fuzz targets, FUZZ_SECONDS (60) each, or FUZZ_COUNT inputs each; says how many inputs each has had
	@.ci/fuzz $(if $(FUZZ_COUNT),--count $(FUZZ_COUNT),$${FUZZ_SECONDS:-60})

sim: ## the agent's core through faults of all kinds, CCPLANE_SEEDS (100000) runs in virtual time
	CCPLANE_SEEDS=$${CCPLANE_SEEDS:-100000} cargo test --release -p ccplane-core --test endurance -- --nocapture

soak: build ## a real agent under faults for SOAK_HOURS (1): fails where anything grows; needs root
	cargo build --release --quiet -p ccplane-soak
	target/release/ccplane-soak --hours $${SOAK_HOURS:-1} --seed $${SOAK_SEED:-1}

packages: ## the crates that are to be published, packaged and built from that; SINCE=REVISION compares their interfaces with a revision's
	@.ci/packages $(SINCE)

deb: ## Debian packages in target/deb: the command, the agent as a service, the kernel module for DKMS
	@.ci/setup deb
	@.ci/deb

deb-test: ## these packages: reproducible, by lintian, installed, upgraded and purged in clean roots of Debian 12 and 13; as root
	@.ci/setup deb
	@.ci/deb-test

upgrade-test: ## an earlier version's agent, restarted as this one's under live flows; SINCE=REVISION, else the last one with other messages; as root
	@.ci/setup test
	@.ci/upgrade $(SINCE)

static: ## the agent as one static binary, in target/static
	@.ci/static

container: ## the agent's container image, as an OCI archive in target/static; needs buildah
	@.ci/container

loom: ## what threads and processes share without locks, under every interleaving
	@.ci/loom

nightly: ## the shipped policies, trained anew by their recorded commands: the same bits, or which differ; learning on random links pays
	@.ci/nightly

retrain: ## aurora, mocc and aurora-lossy trained anew, judged on validation links, kept by the rule in algs/policies; RETRAIN_DIR (target/retrain)
	@.ci/retrain $${RETRAIN_DIR:-target/retrain}

mahimahi: ## the real mahimahi, to compare with, in target/mahimahi (nothing is installed)
	@.ci/mahimahi target/mahimahi

wheel: ## the Python package as a wheel, in target/wheels
	@.ci/setup demo
	@.ci/python target/python
	@rm -f target/wheels/ccplane-*.whl
	cd experiments/python && ../../target/python/venv/bin/python3 -m maturin build --release --out ../../target/wheels

trainers: wheel ## the Python package with torch, Stable-Baselines3 and Ray: some 6 GB of packages once, then minutes
	@.ci/python target/trainers experiments/python/requirements-trainers.txt
	target/trainers/venv/bin/python3 -m pip install --quiet --force-reinstall --no-deps target/wheels/ccplane-*.whl
	cd experiments/python && ../../target/trainers/venv/bin/python3 -m pytest -p no:cacheprovider tests/training

torch: ## libtorch for the learner's torch back end, in target/torch (nothing is installed)
	@.ci/torch target/torch
	@echo "now: LIBTORCH=$$(readlink -f target/torch) cargo build --release -p ccplane --features torch"

module: ## the kernel module, for the running kernel, in target/module: needs its headers
	mkdir -p target/module
	cp -u datapath-shims/module/kernel/* target/module
	make -C /lib/modules/$$(uname -r)/build M=$(CURDIR)/target/module modules
	@echo "now, as root: insmod target/module/ccplane.ko"

module-test: ## the kernel module in virtual machines with Debian's 6.1 and 6.12: every test at full length
	@.ci/setup test
	cargo build --quiet -p ccplane-agent -p ccplane
	GUEST_APPEND=slub_debug=FZPU CCPLANE_TIMES=20 cargo test -p ccplane-module --test guest -- --nocapture --include-ignored host:: --skip nothing_is_found_by_kasan
	CCPLANE_CASES=1000000 cargo test --release -p ccplane-module --test suite

module-headers: ## the kernel module compiled for every kernel that Debian's archive has headers for, and for the prepared TREES given
	@.ci/module-headers target/headers $(TREES)

module-debug: ## the kernel module under KASAN and lockdep, in a virtual machine: builds that kernel first (ten minutes, once)
	@.ci/setup test
	@.ci/guest-debug target/guest
	cargo build --quiet -p ccplane-agent
	cargo test -p ccplane-module --test guest -- --nocapture --ignored host::nothing_is_found_by_kasan

module-differential: ## the kernel module's interpreter against the reference VM, under ASan and UBSan: CCPLANE_CASES (1000000) random programs and mutants
	CCPLANE_CASES=$${CCPLANE_CASES:-1000000} cargo test --release -p ccplane-module --test suite -- --nocapture differential:: verifier::

clean: ## build products, and what killed runs left in the kernel
	-[ -x $(CCPLANE) ] && $(CCPLANE) doctor --clean
	cargo clean
