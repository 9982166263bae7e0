#!/bin/sh
# Makes shards of the zero-shot sets found in a folder, each with the detokenizer, split and field
# of the published loaders (SEDD's, which RADD and AO-GPT share), GPT-2's ids, and an end token
# behind every row, empty ones too.
#
#   zero-shot-data.sh AO-TOKENIZE FOLDER OUT PACK
#
# Says in a line each what is missing and where people get it. Exit 0 when at least one set is there.
set -eu

die() { echo "zero-shot-data: $1" >&2; exit 2; }

tool=$1
from=$2
out=$3
pack=$4
[ -n "$from" ] || die "ZERO_SHOT is not set; give ZERO_SHOT=FOLDER with WikiText, PTB, LAMBADA or LM1B in it"
[ -d "$from" ] || die "ZERO_SHOT=$from: no such folder"
mkdir -p "$out"
made=0

# The first file or folder under $from whose path ends as one of the patterns says.
find_one() {
  for pattern in "$@"; do
    found=$(find -L "$from" -path "*/$pattern" 2>/dev/null | LC_ALL=C sort | head -n 1)
    [ -z "$found" ] || { echo "$found"; return; }
  done
}

# prepare NAME SOURCE WHERE OPTION…
prepare() {
  name=$1 source=$2 where=$3
  shift 3
  if [ -z "$source" ]; then
    echo "zero-shot-data: $name is missing: $where" >&2
    return
  fi
  made=$((made + 1))
  # --resume leaves a complete set as it is and goes on with an unfinished one.
  echo "zero-shot-data: $name from $source" >&2
  "$tool" --tokenizer gpt2 --keep-empty --pack "$pack" --resume "$@" -o "$out/$name" "$source"
}

# The published evaluation takes the train split of WikiText-2 (papers: RADD's and AO-GPT's loader).
prepare wikitext2 "$(find_one 'wikitext-2-raw/wiki.train.raw' 'wikitext-2-raw-v1/train*.parquet')" \
  "wikitext-2-raw/wiki.train.raw, from wikitext-2-raw-v1.zip (Merity et al. 2016), or train*.parquet of wikitext-2-raw-v1 (Salesforce/wikitext on Hugging Face)" \
  --detokenizer wikitext --keep-newline
prepare wikitext103 "$(find_one 'wikitext-103-raw/wiki.test.raw' 'wikitext-103-raw-v1/test*.parquet')" \
  "wikitext-103-raw/wiki.test.raw, from wikitext-103-raw-v1.zip (Merity et al. 2016), or test*.parquet of wikitext-103-raw-v1 (Salesforce/wikitext on Hugging Face)" \
  --detokenizer wikitext --keep-newline
# ptb_text_only strips its lines; its field is `sentence`, where there are fields.
ptb=$(find_one 'ptb.test.txt' 'ptb_text_only/test*.parquet')
case $ptb in *.parquet) ptb_field='--field sentence' ;; *) ptb_field= ;; esac
# shellcheck disable=SC2086 # no word, or two
prepare ptb "$ptb" \
  "ptb.test.txt, from simple-examples.tgz (Mikolov), or test*.parquet of ptb_text_only (Hugging Face)" \
  --detokenizer ptb --strip $ptb_field
prepare lambada "$(find_one 'lambada_test.jsonl')" \
  "lambada_test.jsonl, OpenAI's version (openaipublic gpt-2 data, or EleutherAI/lambada_openai on Hugging Face)" \
  --detokenizer lambada
# The test split is all fifty held-out files.
prepare lm1b "$(find_one 'heldout-monolingual.tokenized.shuffled' '1-billion-word*.tar.gz' 'lm1b/test*.parquet')" \
  "heldout-monolingual.tokenized.shuffled or the release 1-billion-word-language-modeling-benchmark-r13output.tar.gz (statmt.org/lm-benchmark), or test*.parquet of dvruette/lm1b (Hugging Face)" \
  --detokenizer lm1b --include '*news.en.heldout-*'

[ "$made" -gt 0 ] || die "$from holds none of the sets"
