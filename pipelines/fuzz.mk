# Mutated files for every reader, far longer than in `make test`. A failure names its input.
#
#   make fuzz MINUTES=30 [SEED=1]

MINUTES ?= 10
SEED ?= 1

.PHONY: fuzz
fuzz: toolchain libtorch
	AO_FUZZ_SECONDS=$$(( 120 * $(MINUTES) )) AO_FUZZ_SEED=$(SEED) \
	  cargo test --release --test fuzz_readers -- --nocapture --test-threads 2
