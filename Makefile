# Sets up, builds, tests and runs the toolkit. Everything stays inside this checkout.
#
#   make pipelines/lm1b-small     the whole chain on real text
#   make test                     every test
#   make install PREFIX=/usr/local
#
# DEVICE=cpu|cuda   which libtorch to fetch and where to compute (default: cuda when nvidia-smi answers)
# LIBTORCH=FOLDER   a libtorch 2.11.0 of your own instead of the fetched one

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
ifeq ($(filter cpu cuda,$(DEVICE)),)
  $(error DEVICE=$(DEVICE): allowed are cpu and cuda)
endif

# The value of .cargo/config.toml, spelt alike: another spelling would build libtorch's bindings anew.
OWN_LIBTORCH := $(CURDIR)/.libtorch
LIBTORCH ?= $(OWN_LIBTORCH)
export LIBTORCH

BIN := $(or $(CARGO_TARGET_DIR),target)/release

# Shell test for a recipe: the run folder $1 has a checkpoint and none of its inputs $2 is newer.
resumable = [ -e $1/latest ] && [ -z "$$(find $2 -newer $1/config.json)" ]

include $(sort $(wildcard pipelines/*.mk))

.PHONY: help
help:
	@echo 'make pipelines/lm1b-small   real text to a trained any-order GPT, its samples and scores (CPU: 10 minutes)'
	@echo '                            LM1B=FILE.tar.gz|FOLDER for the One Billion Word data, SIZE=cpu|gpu'
	@echo '                            PROTOCOL=mdlm BERT=tokenizer.json for the setting of MDLM’s LM1B table'
	@echo 'make pipelines/toy          the same chain on text in testdata/, under a minute'
	@echo 'make pipelines/zero-shot    CKPT=FILE|RUN on the zero-shot sets that are there, as a table with errors'
	@echo 'make test                   every test'
	@echo 'make fuzz                   MINUTES=N of mutated files for every reader'
	@echo 'make bench                  speed of the stages on this machine'
	@echo 'make build                  the programs, into $(BIN)/'
	@echo 'make install PREFIX=FOLDER  programs, man pages, completions, documents, licences; DESTDIR is honoured'
	@echo 'make man, make completions  pages and shell completions alone, into $(BIN)/share/'
	@echo 'make libtorch               fetch libtorch 2.11.0 into .libtorch/'
	@echo 'make lint                   formatting, clippy and documentation'
	@echo 'make clean-runs             remove what the pipelines made'
	@echo 'DEVICE=$(DEVICE) here; DEVICE=cpu or DEVICE=cuda picks by hand'

# Fetches once. A CUDA libtorch also serves DEVICE=cpu; a CPU one is replaced for DEVICE=cuda, and
# what was linked against it is built anew.
.PHONY: libtorch
libtorch:
ifeq ($(LIBTORCH),$(OWN_LIBTORCH))
	@set -e; kind=$$(cat .libtorch/kind 2>/dev/null || echo none); \
	if [ -e .libtorch/lib ] && { [ $$kind = $(DEVICE) ] || [ $$kind = cuda ]; }; then exit 0; fi; \
	pipelines/need.sh python; \
	if [ $$kind != none ]; then cargo clean -q --release -p torch-sys -p tch -p ao-torch -p ao; fi; \
	pipelines/fetch-libtorch.sh .libtorch $(DEVICE)
else
	@[ -e '$(LIBTORCH)/lib' ] || { echo 'make: LIBTORCH=$(LIBTORCH) has no lib folder; unset it and make fetches one' >&2; exit 2; }
endif

.PHONY: build
build: toolchain libtorch
	cargo build --release

# Every program writes its own page and completions.
PROGRAMS := ao-bench ao-ema ao-import ao-orders ao-sample ao-score ao-summary ao-tokenize ao-train
SHARE := $(BIN)/share

.PHONY: man
man: build
	@mkdir -p $(SHARE)/man/man1
	@for p in $(PROGRAMS); do $(BIN)/$$p --generate man > $(SHARE)/man/man1/$$p.1 || exit 1; done

.PHONY: completions
completions: build
	@mkdir -p $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions
	@mkdir -p $(SHARE)/fish/vendor_completions.d
	@for p in $(PROGRAMS); do \
		$(BIN)/$$p --generate bash > $(SHARE)/bash-completion/completions/$$p && \
		$(BIN)/$$p --generate zsh > $(SHARE)/zsh/site-functions/_$$p && \
		$(BIN)/$$p --generate fish > $(SHARE)/fish/vendor_completions.d/$$p.fish || exit 1; done

# The tensor programs go on loading the libtorch that they were built with, where it lies now.
PREFIX ?= /usr/local
.PHONY: install
install: man completions
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/doc/ao/configs
	install -m 755 $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin
	cp -R $(SHARE)/. $(DESTDIR)$(PREFIX)/share
	install -m 644 README.md CHANGELOG.md CITATION.cff LICENSE-MIT LICENSE-APACHE docs/*.md \
		$(DESTDIR)$(PREFIX)/share/doc/ao
	cp -R configs/. $(DESTDIR)$(PREFIX)/share/doc/ao/configs

.PHONY: toolchain
toolchain:
	@pipelines/need.sh cargo c++

.PHONY: test
test: toolchain libtorch
	@pipelines/run-tests.sh --release --workspace

.PHONY: lint
lint: toolchain libtorch
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --release --workspace --no-deps

.PHONY: clean-runs
clean-runs:
	rm -rf runs
