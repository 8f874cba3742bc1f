# Two commands do everything on a bare Debian 12 machine: `make demo` and `make test`.
BUILD ?= build
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.PHONY: all setup build demo test test-all asan clean
all: build

setup:
	@bash .ci/setup

build: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	@cmake --build $(BUILD)

# Trains a bundled exported Mixtral on this project's own sources and docs, then exports it.
demo: build
	@bash models/demo.sh $(BUILD)/cli/weir

# The fast suite; `make test-all` adds the tests labelled slow.
test: build
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS) -LE slow

test-all: build
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS)

# The fast suite under address and undefined-behaviour sanitizers.
asan: setup
	@cmake -S . -B $(BUILD)-asan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIR_SANITIZE=ON
	@cmake --build $(BUILD)-asan
	@cd $(BUILD)-asan && ctest --output-on-failure -j $(JOBS) -LE slow

clean:
	@rm -rf $(BUILD) $(BUILD)-asan
