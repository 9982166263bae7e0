# The zero-shot sets of the papers as shards, from copies that you have.
#
#   make data/zero-shot ZERO_SHOT=FOLDER                          what FOLDER holds of them
#   make data/zero-shot ZERO_SHOT=FOLDER ZERO_SHOT_PACK=compat    packed as for the printed tables
#
# Figures compare with the zero-shot columns of AO-GPT, RADD and SEDD only if they are packed so: GPT-2's
# ids, blocks of 1,024. Each set lands in data/zero-shot/NAME, for ao-score --shards. Sets that are there are kept.

ZERO_SHOT ?=
ZERO_SHOT_PACK ?= stream

.PHONY: data/zero-shot
data/zero-shot: build
	@pipelines/zero-shot-data.sh '$(BIN)/ao-tokenize' '$(ZERO_SHOT)' $@ '$(ZERO_SHOT_PACK)'
