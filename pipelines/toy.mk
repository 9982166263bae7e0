# The whole chain in under a minute on two cores: 239 kB of stories, a vocabulary of 512, 0.8 M parameters.
#
#   make pipelines/toy            again: only what is missing
#   make clean-runs               to start over

TOY := runs/toy
TOY_MODEL := configs/ao-gpt-toy.json
TOY_BLOCK := 64
TOY_BATCH := 32
TOY_STEPS := 400# x 32 sequences x 64 tokens = 0.8 M tokens, about ten times through the text
TOY_ROWS := 12800# TOY_STEPS x TOY_BATCH orders
TOY_EMA := 0.98
TOY_TRAIN := $(TOY)/shards/train/manifest.json
TOY_VAL := $(TOY)/shards/val/manifest.json
TOY_SCORES := $(foreach w,raw ema mean,$(foreach o,uniform l2r,$(TOY)/scores/$w-$o.jsonl))

.PHONY: pipelines/toy
pipelines/toy: $(TOY)/summary.json
	@cat $(TOY)/summary.txt
