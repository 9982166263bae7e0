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

files=
for set in wikitext2 wikitext103 ptb lambada lm1b; do
  if [ ! -e "$data/$set/manifest.json" ]; then
    echo "zero-shot: $data/$set is not there and is left out; make data/zero-shot ZERO_SHOT=FOLDER makes it" >&2
    continue
  fi
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
  echo "wikitext2 is the train split, which the published loaders score under that name."
  echo "An any-order model scores every token; one that reads from left to right is given the first of each block."
} >"$out/table.md.tmp"
mv "$out/table.md.tmp" "$out/table.md"
cat "$out/table.md"
