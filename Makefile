# The project's commands. Each needs only make and Python 3.11 or later: the first one that runs makes .venv.
#
#   make demo    the main job: a group under faults, checked, traced, analysed; leaves demo/report.html
#   make test    the tests that run in one process; with ALL=1 all of them, and three times the examples of a property
#   make other   a part of them on the newest other Python that is here
#   make suites  the test suites of librdkafka and franz-go on an embedded Kafka; wants cargo, cc and go
#   make check   style, types, import rules
#   make docs    renew what the code knows best in the docs: machines, keys, options, output of examples
#   make site    the docs as a searchable site in build/site, with an API reference
#   make bench   the measurements that the docs quote
#   make release build the package in dist/ and try it; REPOSITORY=https://... sets its URLs, ARGS=--quick does less
#   make venv    .venv with everything in it
#   make lock    resolve requirements.lock anew from pyproject.toml
#   make clean   remove what the commands above made (distclean: .venv too)

UV_VERSION := 0.13.8
WORKERS ?= 4
DEMO_SCENARIOS ?= rolling-deploy lossy-network coordinator-failover
DEMO_SEEDS ?= 15
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := public coordinator member simulation

# Hundreds of processes run here: each would compile all that it imports, where Python is told to keep nothing.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo collect test other suites check docs site bench release venv lock clean distclean FORCE

help:
	@sed -n 's/^#   //p' Makefile

# The same commands a user would type; `make demo` only echoes them first.
demo: venv
	@rm -rf demo && mkdir demo
	@export FENCEPOST_PROGRESS=lines; set -e; run() { echo; echo "$$ fencepost $$*"; $(BIN)/fencepost "$$@"; }; \
	run simulate rolling-deploy --seed 7 --trace demo/trace.parquet; \
	run campaign $(DEMO_SCENARIOS) --seeds $(DEMO_SEEDS) --out demo/campaign --report demo/report.html; \
	echo; echo "The report is in demo/report.html: open it in a browser."

# Workers that begin at once would all compile each file of tests: two processes do it first, half of them each,
# unless that was done (COLLECTED=1).
COLLECT := $(BIN)/python -m pytest --collect-only -qq
HALF := tests/unit/simulation tests/unit/member
OTHER_HALF := tests/unit/coordinator tests/conformance tests/property tests/architecture tests/docs

collect: venv
	@$(COLLECT) $(HALF) >/dev/null 2>&1 & $(COLLECT) $(OTHER_HALF) >/dev/null 2>&1 & wait

# Without ALL and ARGS each worker collects a share of the files for itself. A worker that the watchdog ends, ends the run.
SHARES := --dist each --max-worker-restart 0
SHORT := -m "not long and not processes" --hypothesis-profile short

test: venv $(if $(ALL),$(if $(ARGS)$(COLLECTED),,collect))
	@$(BIN)/python -m pytest -n $(WORKERS) $(if $(ALL)$(ARGS),--dist worksteal,$(SHARES)) $(if $(ALL),,$(SHORT)) $(ARGS)

other: venv
	@.ci/other-python $(UV_VERSION)

suites: venv
	@$(BIN)/python tests/suites/run.py $(ARGS)

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p fencepost
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/lint-imports

docs: venv
	@$(BIN)/python docs/generate.py --examples

# A small environment of its own: the site reads sources, and imports nothing of the project.
SITE_VENV := .venv-site

site: $(SITE_VENV)/.dependencies
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict $(ARGS)
	@echo "The site is in build/site. To read it: python3 -m http.server --bind 127.0.0.1 --directory build/site"

$(SITE_VENV)/.dependencies: requirements-site.lock
	@VENV=$(SITE_VENV) .ci/venv $(UV_VERSION) site
	@touch $@

bench: venv
	@set -e; for each in benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each $(ARGS); done

export REPOSITORY
release:
	@.ci/venv $(UV_VERSION) release $(ARGS)

venv: $(VENV)/.project

$(VENV)/.dependencies: requirements.lock
	@.ci/venv $(UV_VERSION) dependencies
	@touch $@

# An editable install links each source file, so it is made anew when a file comes or goes. Two of make may look at once.
$(VENV)/.files: FORCE $(VENV)/.dependencies
	@new=$@.$$$$; find $(PACKAGES) -type f ! -path '*/__pycache__/*' | LC_ALL=C sort > $$new; \
	if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi

$(VENV)/.project: $(VENV)/.dependencies $(VENV)/.files pyproject.toml
	@.ci/venv $(UV_VERSION) project
	@touch $@

lock:
	@.ci/venv $(UV_VERSION) lock

clean:
	rm -rf build dist demo out spark-warehouse metastore_db derby.log *.egg-info $(VENV)/.project
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d ! -path './.venv*/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(SITE_VENV)

FORCE:
