# Zero-shot perplexity of a checkpoint on the sets of the papers: left to right, in random orders,
# and with contexts ensembled. The sets are those of `make data/zero-shot ZERO_SHOT=FOLDER`.
#
#   make pipelines/zero-shot CKPT=runs/a               what data/zero-shot holds; again: only what is missing
#   make pipelines/zero-shot CKPT=m.st ZS_METHODS=l2r  a model that reads from left to right
#
# An interrupted evaluation goes on where it stopped.

CKPT ?=
ZS_DATA ?= data/zero-shot
ZS_OUT ?= runs/zero-shot/$(basename $(notdir $(patsubst %/,%,$(CKPT))))
ZS_METHODS ?= l2r any ensemble
ZS_MC ?= 4# orders a sequence of `any`
ZS_ENSEMBLE ?= 8# orderings of each context
ZS_POSITIONS ?= 32# of 1024 a sequence, for the ensemble; all: every position
# Further options of ao-score, such as --weights raw, --dtype bf16 or --max-sequences 100.
ZS_OPTIONS ?=

.PHONY: pipelines/zero-shot
pipelines/zero-shot: build
	@pipelines/zero-shot.sh '$(BIN)' '$(CKPT)' '$(ZS_DATA)' '$(ZS_OUT)' '$(DEVICE)' '$(ZS_METHODS)' \
	  '$(strip $(ZS_MC))' '$(strip $(ZS_ENSEMBLE))' '$(strip $(ZS_POSITIONS))' $(ZS_OPTIONS)
