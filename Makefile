# Every target works on a fresh machine. They need root (they make networks and containers); setup says so.
.DEFAULT_GOAL := setup
# Other shells leave by a signal without running what `trap … EXIT` asked for.
SHELL := /bin/bash
.PHONY: setup documentation emulate test types test-in-guest test-units test-action test-dashboard test-computing test-runs test-endings test-commands test-networks test-page test-api cluster-test check smoke bench chaos fuzz soak docs doctor update clean

# Files that root makes in the checkout are handed back to the user who called sudo, however the recipe ends.
GIVE_BACK = trap './setup.sh give-back' EXIT
# Wherever the caller's Python writes no bytecode: eleven processes of pytest import the same tests, with assertions that
# pytest compiles, and their programs the same modules.
unexport PYTHONDONTWRITEBYTECODE
HAS_NETEM = unshare --net tc qdisc add dev lo root netem 2>/dev/null
BENCHMARKS = $(foreach name,fidelity startup shaping replay swap transport allreduce tls packing simulated policies hop cpn systems,$(wildcard benchmarks/$(name).py))

setup: ## packages, environment, Docker engine, worker image: what is missing of them
	@./setup.sh

emulate: setup ## train a model over an emulated wide-area network
	@$(GIVE_BACK); .venv/bin/testbed run experiments/quickstart.yaml

# Tests marked `guest` need netem and Open vSwitch in the kernel; where this one lacks either they run in a guest's.
# That takes one processor for some minutes; types and the tests that need no root have what it leaves, and then both.
# They begin all at once, since four at a time left the last one a processor of two for two minutes. Each part stays on
# one processor (tests/conftest.py says why): all that is no part of its own on the first, the others on the second,
# which comes to about the same, and of those sockets before the others, since they wait for much; the guest and types
# go where there is room. Then come those that need root, in four lanes that take about as long each: runs that train to
# their end; those that break; commands, what stands without a run, and short runs; and all else. They wait for much,
# and have the processors first; a fifth lane, which only computes, has what they leave until they have ended: no test
# of it is held to a time, since beside other work that may be next to nothing. At last come those that would disturb
# any other, or that another would disturb.
PARTS = sockets schemes controller
sockets = sync/c10d sync/gossip
schemes = schemes worker report fuzz
controller = controller run cli simulation
COMPUTING = planning benchmarks
FOLDERS = $(addprefix tests/,$(1))
ROOTS = not guest and not unit
PRIVILEGED = .venv/bin/python -m tests.marked privileged
TRAINING = --extended-regexp '^tests/run/(sweep/)?test_(compare|elastic_run|execute|hop_run|sweep|whole_run)\.py'
ENDINGS = --extended-regexp '^tests/run/'
COMMANDS = --extended-regexp '^tests/(cli/|test_result|run/test_(crashes|overload|program_run|workers))'
LANE = flock --shared build/lanes
NETEM_AND_OVS = unshare --net sh -c 'tc qdisc add dev lo root netem && ovs-dpctl add-dp trial' 2>/dev/null
test: setup ## style, types and every test
	@$(GIVE_BACK); \
	.venv/bin/ruff check . && \
	if $(NETEM_AND_OVS); then \
	    .venv/bin/mypy && .venv/bin/python -m pytest; \
	else \
	    $(MAKE) --no-print-directory --jobs=6 test-in-guest types $(PARTS:%=test-units-%) test-units && \
	    $(MAKE) --no-print-directory --jobs=5 test-runs test-endings test-commands test-networks test-computing && \
	    .venv/bin/python -m pytest -m '$(ROOTS) and alone' $$(.venv/bin/python -m tests.marked alone); \
	fi

# Debian's package, unpacked: installed, it would start a service. It is 110 MB.
test-dashboard: setup ## each query of examples/grafana-dashboard.json, asked of a real Prometheus
	@$(GIVE_BACK); set -e; export PATH="$$PWD/build/prometheus/usr/bin:$$PATH"; \
	if ! command -v prometheus >/dev/null; then \
	    mkdir -p build/prometheus; cd build/prometheus; apt-get download prometheus; dpkg -x prometheus_*.deb .; cd ../..; \
	fi; \
	.venv/bin/python -m pytest tests/telemetry/test_dashboard.py

# From Debian 12's packages, unpacked: 15 MB, and 14 million characters of them.
documentation: setup ## the text that `dataset: documentation` learns from
	@$(GIVE_BACK); .venv/bin/python containers/documentation.py build/documentation

test-action: setup ## the steps of action.yml, run here as a runner would: the smoke experiment, then beside itself
	@$(GIVE_BACK); .venv/bin/python -m tests.action

# A clean clone's cache would be for nobody: to write it takes a tenth of the time.
types:
	@nice -n 10 .venv/bin/mypy $(if $(CI),--cache-dir=/dev/null)

test-in-guest:
	@.venv/bin/python -m tests.guest

test-units-%:
	@nice -n $(if $(filter sockets,$*),0,10) \
	    .venv/bin/python -m pytest -m 'unit and not guest' --processor=1 $(call FOLDERS,$($*))

test-units:
	@nice -n 5 .venv/bin/python -m pytest -m 'unit and not guest' --processor=0 \
	    $(addprefix --ignore=,$(call FOLDERS,$(foreach part,$(PARTS),$($(part))) $(COMPUTING)))

test-computing:
	@.venv/bin/python -m pytest -m 'unit and not guest' --give-way=build/lanes --timeout=3000 $(call FOLDERS,$(COMPUTING))

test-runs:
	@$(LANE) .venv/bin/python -m pytest -m '$(ROOTS) and not alone' $$($(PRIVILEGED) | grep $(TRAINING))

test-endings:
	@$(LANE) .venv/bin/python -m pytest -m '$(ROOTS) and not alone' \
	    $$($(PRIVILEGED) | grep --invert-match $(TRAINING) | grep --invert-match $(COMMANDS) | grep $(ENDINGS))

test-commands:
	@$(LANE) .venv/bin/python -m pytest -m '$(ROOTS) and not alone' $$($(PRIVILEGED) | grep $(COMMANDS))

test-networks:
	@$(LANE) .venv/bin/python -m pytest -m '$(ROOTS) and not alone' \
	    $$($(PRIVILEGED) | grep --invert-match $(ENDINGS) | grep --invert-match $(COMMANDS))

# What changed since this commit.
SINCE ?= HEAD
check: setup ## style, types, sizes and the unit tests of what changed, in two minutes
	@$(GIVE_BACK); \
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/python -m tests.sizes && \
	.venv/bin/python -m pytest -m unit $$(.venv/bin/python -m tests.changed $(SINCE))

test-page: setup ## the page in a browser: Debian's chromium, which it installs
	@$(GIVE_BACK); ./setup.sh browser && .venv/bin/python -m pytest tests/page/checks.py

test-api: setup ## the API of a real network, held against its own description by Schemathesis
	@$(GIVE_BACK); ./setup.sh api && .venv/bin/python -m tests.api.conformance

cluster-test: setup ## a sweep over three pretended hosts, one killed and one cut off; networks split over hosts; 4 GB of memory
	@$(GIVE_BACK); ./setup.sh cluster && .venv/bin/python -m pytest tests/cluster/checks.py tests/cluster/split_checks.py

smoke: setup ## a short run in a container with its own engine; fails unless its verdict is `trusted`
	@$(GIVE_BACK); .venv/bin/python -m containers.smoke

bench: setup ## what is measured against peers, in short
	@$(GIVE_BACK); \
	for file in $(BENCHMARKS); do \
	    .venv/bin/python -m benchmarks.$$(basename $$file .py) --quick || exit; \
	done; \
	$(HAS_NETEM) || .venv/bin/python -m benchmarks.fidelity --quick --guest

chaos: setup ## bugs planted and found, then 300 small runs with faults, each checked to the bit
	@$(GIVE_BACK); .venv/bin/python -m tests.chaos --planted && .venv/bin/python -m tests.chaos --runs 300

fuzz: setup ## ten minutes of searching by coverage for each kind of input; goes on where it was ended
	@$(GIVE_BACK); ./setup.sh fuzz && .venv/bin/python -m tests.fuzz --resume

soak: setup ## two hours of churn and swaps: what grows of memory, descriptors, threads and records
	@$(GIVE_BACK); .venv/bin/python -m tests.soak --pieces 3

docs: setup ## the documentation as a site, in build/site; a link that leads nowhere ends it
	@$(GIVE_BACK); ./setup.sh docs && NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet && echo build/site/index.html

doctor: setup ## what this machine can do
	@.venv/bin/testbed doctor

# First the lock, since what setup installs follows from it; the images at last, since that needs what setup installs.
update: ## renew requirements.lock and the worker image's Debian packages, and say what changed
	@$(GIVE_BACK); ./setup.sh lock && ./setup.sh && .venv/bin/python -m containers.update

clean: ## take away what runs left on this machine
	@if [ -x .venv/bin/testbed ]; then .venv/bin/testbed clean; fi
	@echo "What remains: runs/ (results), .venv/ and build/ (made again by make setup), the packages that apt"
	@echo "installed, the images that \`docker images --filter label=testbed.image\` lists, and the volume that"
	@echo "\`docker volume ls --filter label=testbed.cache\` lists."
	@if [ -e /run/testbed/engine.json ]; then \
	    echo "The Docker engine that make setup started: .venv/bin/python -m testbed.emulation.containers.engine stop"; fi
