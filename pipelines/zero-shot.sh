#!/bin/sh
# Scores a checkpoint on the zero-shot sets that are there and sets a table of the scores.
#
#   zero-shot.sh BIN CKPT DATA OUT cpu|cuda METHODS MC ENSEMBLE POSITIONS|all [OPTION…]
#
# OUT/SET-METHOD.jsonl are the records, OUT/table.md the table.
set -eu

die() { echo "zero-shot: $1" >&2; exit 2; }

bin=$1 ckpt=$2 data=$3 out=$4 device=$5 methods=$6 mc=$7 ensemble=$8 positions=$9
shift 9
[ -n "$ckpt" ] || die "CKPT is not set; give CKPT=FILE or CKPT=RUN"
[ "$positions" = all ] && subset= || subset="--positions $positions"
mkdir -p "$out"

# The printed columns: GPT-2's ids, packed as the published loaders do, and the whole of each set.
setting="GPT-2 ids, compat packing: with a model of 1,024 tokens the setting of AO-GPT's zero-shot columns."
other() { setting="Not comparable with published tables: $1."; }
[ "$positions" = all ] || case $methods in *ensemble*) other "the ensemble scores $positions positions a sequence" ;; esac
case " $* " in *' --max-sequences'* | *' --skip'*) other "a part of each set" ;; esac

files=
for set in wikitext2 wikitext103 ptb lambada lm1b; do
  if [ ! -e "$data/$set/manifest.json" ]; then
    echo "zero-shot: $data/$set is not there and is left out; make data/zero-shot ZERO_SHOT=FOLDER makes it" >&2
    continue
  fi
  grep -q '"rule": "compat"' "$data/$set/manifest.json" || other "not compat packing (ZERO_SHOT_PACK=compat)"
  grep -q '"vocab_size": 50257,' "$data/$set/manifest.json" || other "not GPT-2's ids"
  for method in $methods; do
    case $method in
      l2r) how="--orders l2r" ;;
      any) how="--orders uniform --mc $mc" ;;
      ensemble) how="--orders uniform --ensemble $ensemble --ensemble-curve $subset" ;;
      bound) how= ;;
      *) die "method '$method': allowed are l2r, any, ensemble, and bound (an encoder's own)" ;;
    esac
    file=$out/$set-$method.jsonl
    echo "zero-shot: $set, $method" >&2
    # shellcheck disable=SC2086 # options are words
    "$bin/ao-score" --ckpt "$ckpt" --shards "$data/$set" $how --seed 1 --device "$device" "$@" --resume "$file"
    files="$files $file"
  done
done
[ -n "$files" ] || die "none of the sets is in $data; make data/zero-shot ZERO_SHOT=FOLDER makes them"

# shellcheck disable=SC2086
{
  "$bin/ao-summary" --table $files
  echo
  echo "$setting"
  echo "wikitext2 is the train split, which the published loaders score under that name."
  echo "An any-order model scores every token; one that reads from left to right is given the first of each block."
} >"$out/table.md.tmp"
mv "$out/table.md.tmp" "$out/table.md"
cat "$out/table.md"
