# Everything a person types. `make run` and `make test` set themselves up on a bare Debian 12.
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)

.PHONY: run build test verify-all model bench format lint clean help

help:            ## list the targets
	@grep -hE '^[a-z]+: .*##' Makefile | sed 's/:.*##/\t/' | expand -t 16

run: build       ## build, serve the default model (without a network the bundled one), ask it one question, print the URL
	@{ tools/setup.sh model && tools/fetch_default_model.sh; } || \
	  echo "the default model could not be fetched: serving the bundled toy model, models/toy"
	@tools/run.sh

build:           ## build/release/sixfold
	@tools/setup.sh build
	@cmake --preset release -DBUILD_TESTING=OFF >build-release.log 2>&1 || { cat build-release.log; exit 1; }; rm -f build-release.log
	@cmake --build --preset release --target sixfold

model:           ## fetch the default model once, verified, into build/models
	@tools/setup.sh model
	@tools/fetch_default_model.sh

test:            ## everything that CI runs
	@tools/setup.sh build model test
	@tools/test.sh

# A golden model of each kind of attention and experts, the bundled model, the default one.
VERIFY = llama_gqa qwen3 olmoe mixtral deepseek_v3 gpt_oss
verify-all: build model ## layouts of every pair of sizes against one rank, bit for bit: tiny models, the bundled and the default one
	@for m in $(VERIFY:%=tests/golden/%) models/toy build/models/*.gguf; do \
	  echo "== $$m"; build/release/sixfold verify $$m --layouts covering || exit 1; done
	@echo "== context parallelism, longer prompts"; python3 tests/mesh/verify_context.py build/release/sixfold

bench:           ## benchmarks of bench/, JSON on stdout
	@tools/setup.sh build test
	@cmake --preset release -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset release
	@for b in build/release/bench/*_bench; do $$b || exit 1; done

lint:            ## order of includes
	@python3 tools/lint_includes.py

format:          ## clang-format 14 over src
	@find src bench -name '*.h' -o -name '*.cc' | xargs clang-format-14 -i

clean:           ## remove build/, the fetched model included
	@rm -rf build
