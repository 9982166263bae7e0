# The whole chain in under a minute on two cores: 239 kB of stories, 512 ids, 0.7 M parameters.
#
#   make pipelines/toy                    again: only what is missing
#   rm -r runs/toy                        to start over
#   make runs/toy/samples.jsonl           any file of the chain alone

TOY := runs/toy
TOY_MODEL := configs/ao-gpt-toy.json
TOY_BLOCK := 32
TOY_BATCH := 16
TOY_STEPS := 1000# x 16 sequences x 32 tokens = 0.5 M tokens
TOY_ORDERS := 16000# 1000 steps x 16 sequences
# From left to right to the paper's mix over the first 600 steps: a model this small, trained this
# briefly, does not leave the unigram plateau on shuffled orders alone.
TOY_SPEC := ramp:0..9600:l2r->mix:0.1*l2r+0.9*uniform
TOY_EMA := 0.98
# One thread: matrices this small gain nothing from a second, and a busy machine costs less.
TOY_CKPT_raw := $(TOY)/train --weights raw
TOY_CKPT_ema := $(TOY)/train --weights ema:$(TOY_EMA)
TOY_CKPT_mean := $(TOY)/mean.st
TOY_SCORES := $(foreach w,raw ema mean,$(TOY)/scores/$w-any.jsonl $(TOY)/scores/$w-l2r.jsonl)

.PHONY: pipelines/toy
pipelines/toy: $(TOY)/summary.json
	@$(BIN)/ao-summary --show $(TOY)/summary.json

# Text to tokens: a vocabulary is learned first, and a tenth of the stories is held out.
$(TOY)/shards/train/manifest.json: testdata/toy/stories.txt | build
	rm -rf $(TOY)/shards
	$(BIN)/ao-tokenize --train-tokenizer 512 --split val=0.1 -o $(TOY)/shards $<

$(TOY)/shards/val/manifest.json: $(TOY)/shards/train/manifest.json ;

# One order a training sequence.
$(TOY)/orders.npy: | build
	mkdir -p $(TOY)
	$(BIN)/ao-orders '$(TOY_SPEC)' --block-size $(TOY_BLOCK) --count $(TOY_ORDERS) --seed 1 --force -o $@

# Training goes on from its last checkpoint where there is one.
$(TOY)/train.done: $(TOY)/shards/train/manifest.json $(TOY)/orders.npy $(TOY_MODEL) | build
	if $(call resumable,$(TOY)/train,$^); then \
	  $(BIN)/ao-train --resume $(TOY)/train --threads 1; \
	else \
	  rm -rf $(TOY)/train; \
	  $(BIN)/ao-train --model $(TOY_MODEL) --shards $(TOY)/shards/train --val-shards $(TOY)/shards/val \
	    --orders $(TOY)/orders.npy --out $(TOY)/train --batch-size $(TOY_BATCH) --steps $(TOY_STEPS) \
	    --lr 4e-3 --min-lr 4e-4 --warmup 20 --decay-steps $(TOY_STEPS) --weight-decay 0.05 --ema $(TOY_EMA) \
	    --eval-every 500 --save-every 100 --keep-last 3 --seed 1 --device $(DEVICE) --threads 1; \
	fi
	touch $@

# The plain mean of the last checkpoints.
$(TOY)/mean.st: $(TOY)/train.done | build
	$(BIN)/ao-ema --mean $(TOY)/train/checkpoints/step-*/model.st --force -o $@

# Any-order and left-to-right scores of the held-out stories, for each set of weights.
$(TOY)/scores/%-any.jsonl: $(TOY)/mean.st $(TOY)/shards/val/manifest.json | build
	mkdir -p $(@D)
	$(BIN)/ao-score --ckpt $(TOY_CKPT_$*) --shards $(TOY)/shards/val --orders uniform --mc 2 --seed 1 --device $(DEVICE) --threads 1 --force -o $@

$(TOY)/scores/%-l2r.jsonl: $(TOY)/mean.st $(TOY)/shards/val/manifest.json | build
	mkdir -p $(@D)
	$(BIN)/ao-score --ckpt $(TOY_CKPT_$*) --shards $(TOY)/shards/val --orders l2r --device $(DEVICE) --threads 1 --force -o $@

$(TOY)/samples.jsonl: $(TOY)/mean.st | build
	$(BIN)/ao-sample --ckpt $(TOY_CKPT_ema) --n 16 --order l2r --seed 1 --device $(DEVICE) --threads 1 --force -o $@

$(TOY)/summary.json: $(TOY_SCORES) $(TOY)/samples.jsonl | build
	$(BIN)/ao-summary --corpus 'toy: stories written for this project (testdata/toy): not comparable with published tables' --shards $(TOY)/shards/train \
	  --val-shards $(TOY)/shards/val --run $(TOY)/train --samples $(TOY)/samples.jsonl --force -o $@ $(TOY_SCORES)
