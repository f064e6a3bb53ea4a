# Every target works on a fresh machine. They need root (they make networks and containers); setup says so.
.DEFAULT_GOAL := setup
# Other shells leave by a signal without running what `trap … EXIT` asked for.
SHELL := /bin/bash
.PHONY: setup documentation emulate test verify coverage mutants stress test-action test-dashboard test-page test-api cluster-test check smoke dist image bench published chaos fuzz soak docs doctor update clean

# Files that root makes in the checkout are handed back to the user who called sudo, however the recipe ends.
GIVE_BACK = trap './setup.sh give-back' EXIT
# Wherever the caller's Python writes no bytecode: several processes of pytest import the same tests, with assertions
# that pytest compiles, and their programs the same modules.
unexport PYTHONDONTWRITEBYTECODE
HAS_NETEM = unshare --net tc qdisc add dev lo root netem 2>/dev/null
BENCHMARKS = fidelity startup shaping replay transport allreduce tls policies hop cpn systems

setup: ## packages, environment, Docker engine, worker image: what is missing of them
	@./setup.sh

emulate: setup ## train a model over an emulated wide-area network
	@$(GIVE_BACK); .venv/bin/testbed run experiments/quickstart.yaml

# Which tests run beside which is decided by tests/__main__.py, from the marks that say what a test needs.
test: setup ## style, types, the tests that need no root, and a tour through the real system
	@$(GIVE_BACK); .venv/bin/python -m tests gate

verify: setup ## the other system tests, the guest kernel, and physics: rates and times, alone on the machine
	@$(GIVE_BACK); .venv/bin/python -m tests verify

coverage: setup ## the lines of testbed/ that the tests without root reach
	@$(GIVE_BACK); .venv/bin/python -m pytest -q -m 'pure or local' --numprocesses=auto --cov=testbed --cov-report=term

mutants: setup ## small changes of the source, drawn by a seed: what part of them the tests find
	@$(GIVE_BACK); .venv/bin/python -m tests.mutants --seed 1

stress: chaos fuzz soak ## what tries to break it for hours: faults by a seed, inputs by coverage, churn

test-dashboard: setup ## each query of examples/grafana-dashboard.json, asked of a real Prometheus
	@$(GIVE_BACK); ./setup.sh dashboard && \
	PATH="$$PWD/build/prometheus/usr/bin:$$PATH" .venv/bin/python -m pytest tests/telemetry/test_dashboard.py

# From Debian 12's packages, unpacked: 15 MB, and 14 million characters of them.
documentation: setup ## the text that `dataset: documentation` learns from
	@$(GIVE_BACK); .venv/bin/python containers/documentation.py build/documentation

test-action: setup ## the steps of action.yml, run here as a runner would: the smoke experiment, then beside itself
	@$(GIVE_BACK); .venv/bin/python -m tests.action

# What changed since this commit.
SINCE ?= HEAD
check: setup ## style, types and the tests that mirror what changed, in a minute
	@$(GIVE_BACK); \
	tests=$$(.venv/bin/python -m tests.changed $(SINCE)) && \
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && \
	.venv/bin/python -m pytest -q -m '(pure or local) and not long' --numprocesses=auto --dist=worksteal \
	    --one-processor-each $$tests

test-page: setup ## the page in a browser: Debian's chromium, which it installs
	@$(GIVE_BACK); ./setup.sh browser && .venv/bin/python -m pytest tests/page/checks.py

test-api: setup ## the API of a real network, held against its own description by Schemathesis
	@$(GIVE_BACK); ./setup.sh api && .venv/bin/python -m tests.api.conformance

cluster-test: setup ## a sweep over three pretended hosts, one killed and one cut off; networks split over hosts; 4 GB of memory
	@$(GIVE_BACK); ./setup.sh cluster && .venv/bin/python -m pytest tests/cluster/checks.py tests/cluster/split_checks.py

smoke: setup ## a short run in a container with its own engine; fails unless its verdict is `trusted`
	@$(GIVE_BACK); .venv/bin/python -m containers.smoke

dist: setup ## the wheel and the source archive, in dist/, tried in the image for CI
	@$(GIVE_BACK); .venv/bin/python -m containers.dist

image: setup ## an image with the testbed and a Docker engine, for CI and for the curious: wan-testbed:VERSION
	@$(GIVE_BACK); .venv/bin/python -m containers.ci_image

bench: setup ## what is measured against peers, in short
	@$(GIVE_BACK); missed=; \
	for name in $(BENCHMARKS); do \
	    .venv/bin/python -m benchmarks.$$name --quick || missed="$$missed $$name"; \
	done; \
	$(HAS_NETEM) || .venv/bin/python -m benchmarks.fidelity --quick --guest || missed="$$missed fidelity in the guest"; \
	[ -z "$$missed" ] || { echo "a claim was missed, or not measured, by:$$missed" >&2; exit 1; }

published: setup ## published runs at the scale of two cores: what was claimed beside what comes; goes on where it was ended
	@$(GIVE_BACK); .venv/bin/python -m benchmarks.published

chaos: setup ## bugs planted and found, then 300 small runs with faults, each checked to the bit (tests.chaos --case N --shrink makes a finding small)
	@$(GIVE_BACK); .venv/bin/python -m tests.chaos --planted && .venv/bin/python -m tests.chaos --runs 300

fuzz: setup ## ten minutes of searching by coverage for each kind of input; goes on where it was ended
	@$(GIVE_BACK); ./setup.sh fuzz && .venv/bin/python -m tests.fuzz --resume

soak: setup ## two hours of churn and swaps: what grows of memory, descriptors, threads and records
	@$(GIVE_BACK); .venv/bin/python -m tests.soak --pieces 3

docs: setup ## the documentation as a site, in build/site; a link that leads nowhere ends it
	@$(GIVE_BACK); ./setup.sh docs && .venv/bin/python docs/site.py build/docs && .venv/bin/zensical build --strict --config-file mkdocs.yml && echo build/site/index.html

doctor: setup ## what this machine can do
	@.venv/bin/testbed doctor

# First the lock, since what setup installs follows from it; the images at last, since that needs what setup installs.
update: ## renew requirements.lock and the worker image's Debian packages, and say what changed
	@$(GIVE_BACK); ./setup.sh lock && ./setup.sh && .venv/bin/python -m containers.update

clean: ## take away what runs left on this machine
	@if [ -x .venv/bin/testbed ]; then .venv/bin/testbed network clean; fi
	@echo "What remains: runs/ (results), .venv/ and build/ (made again by make setup), the packages that apt"
	@echo "installed, the images that \`docker images --filter label=testbed.image\` lists, and the volume that"
	@echo "\`docker volume ls --filter label=testbed.cache\` lists."
	@if [ -e /run/testbed/engine.json ]; then \
	    echo "The Docker engine that make setup started: .venv/bin/python -m testbed.emulation.containers.engine stop"; fi
