# Everything that is built, tested and checked here. `make` alone lists the targets.

GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
FUZZTIME ?= 20s
COUNT    ?= 1
SEEDS    ?= 10000

# The race detector needs a C compiler.
CC_FOUND := $(shell command -v "$$($(GO) env CC | cut -d' ' -f1)" 2>/dev/null)
RACE     := $(if $(CC_FOUND),-race,)

GO_FILES = $$(git ls-files --cached --others --exclude-standard -- '*.go')

.DEFAULT_GOAL := help
.PHONY: help demo build test test-v2 check lint fmt fix fmt-check vet tidy-check race-check fuzz bench microbench soak simulate mutants cover

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## build, start everything in one process and run real jobs (under a minute)
	./bin/sallyport demo

build: ## build the one binary, bin/sallyport
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/sallyport ./cmd/worker

test: ## run all tests, with the race detector where there is a C compiler
ifeq ($(CC_FOUND),)
	@echo 'make test: no C compiler, so the race detector is NOT on (install gcc)'
endif
	$(GO) test $(RACE) -shuffle=on ./...

test-v2: ## run the sandbox's tests on a kernel with cgroup v2 alone, in a virtual machine (needs qemu)
	./test/v2/run.sh

check: race-check fmt-check vet lint tidy-check test build ## what CI runs: format, vet, lint, modules, tests with -race, build

lint: ## run golangci-lint (its first build takes some minutes)
	$(TOOL) golangci-lint run ./...

fmt: ## rewrite all files in the project's format, imports included
	$(TOOL) golangci-lint fmt ./...

fix: ## correct what go fix and golangci-lint can correct by themselves
	$(GO) fix ./...
	$(TOOL) golangci-lint run --fix ./...

fmt-check: ## fail on files that are not in the project's format
	@bad=$$($(TOOL) gofumpt -l $(GO_FILES)); [ -z "$$bad" ] || { echo "make fmt would change:"; echo "$$bad"; exit 1; }

vet: ## run go vet
	$(GO) vet ./...

tidy-check: ## fail where go.mod or go.sum is not tidy
	$(GO) mod tidy -diff

race-check:
	@[ -n '$(CC_FOUND)' ] || { echo 'make check: the race detector needs a C compiler: install gcc'; exit 1; }

fuzz: ## run every fuzz target for FUZZTIME (20s) each
	@set -e; for file in $$(git grep -l --untracked '^func Fuzz' -- '*_test.go'); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "$$file $$target"; \
			$(GO) test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) ./$$(dirname $$file); \
		done; \
	done

bench: build ## measure our worker against a naive one, interleaved, with ratios
	./bin/sallyport bench

microbench: ## run the packages' own benchmarks
	$(GO) test -run='^$$' -bench=. -benchmem ./...

soak: ## run all tests in their long forms, COUNT (1) times over (up to two hours)
	SALLYPORT_SOAK=1 $(GO) test $(RACE) -p 1 -shuffle=on -count=$(COUNT) -timeout=2h ./...

simulate: ## tell the simulation's stories of the seeds from 1 to SEEDS (10000)
	$(GO) test $(RACE) -run='TestSimulation$$' -timeout=2h ./internal/simulation -seeds=$(SEEDS)

mutants: ## show that the tests find bugs: run them on deliberate one-line bugs (some minutes)
	$(GO) test -v -count=1 -timeout=1h -run='TestMutants$$' ./test/mutants -mutants

cover: ## show how much of each package the tests reach
	$(GO) test -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -func=cover.out | tail -1
