# Everything a person needs: make demo, make test. See README.md.
.PHONY: help setup demo test build attack bench fuzz sim soak loom nightly mahimahi torch clean

CCPLANE := target/release/ccplane

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

build: ## the ccplane binary, in target/release
	@.ci/setup demo
	cargo build --release --quiet -p ccplane

demo: build ## ours, CUBIC and BBR on four kinds of link: live table, HTML report
	@trace=$$(.ci/traces target/traces) && $(CCPLANE) demo $${trace:+--trace $$trace}

test: ## everything that CI checks
	@.ci/setup test
	@.ci/checks

attack: ## every attack of the tests in full: other users, hostile peers, dying machines; as root
	@.ci/setup test
	@.ci/attack

bench: build ## every figure; needs root and a quiet machine
	cargo build --release --quiet -p ccplane-oracle
	$(CCPLANE) bench --all

fuzz: ## the fuzz targets, FUZZ_SECONDS (60) each, or FUZZ_COUNT inputs each; says how many inputs each has had
	@.ci/fuzz $(if $(FUZZ_COUNT),--count $(FUZZ_COUNT),$${FUZZ_SECONDS:-60})

sim: ## the agent's core through faults of all kinds, CCPLANE_SEEDS (100000) runs in virtual time
	CCPLANE_SEEDS=$${CCPLANE_SEEDS:-100000} cargo test --release -p ccplane-core --test endurance -- --nocapture

soak: build ## a real agent under faults for SOAK_HOURS (1): fails where anything grows; needs root
	cargo build --release --quiet -p ccplane-soak
	target/release/ccplane-soak --hours $${SOAK_HOURS:-1} --seed $${SOAK_SEED:-1}

loom: ## what threads and processes share without locks, under every interleaving
	@.ci/loom

nightly: ## the shipped policies, trained anew by their recorded commands: the same bits, or which differ; learning on random links pays
	@.ci/nightly

mahimahi: ## the real mahimahi, to compare with, in target/mahimahi (nothing is installed)
	@.ci/mahimahi target/mahimahi

torch: ## libtorch for the learner's torch back end, in target/torch (nothing is installed)
	@.ci/torch target/torch
	@echo "now: LIBTORCH=$$(readlink -f target/torch) cargo build --release -p ccplane --features torch"

clean: ## build products, and what killed runs left in the kernel
	-[ -x $(CCPLANE) ] && $(CCPLANE) doctor --clean
	cargo clean
