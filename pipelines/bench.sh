#!/bin/sh
# Times each stage and prints one line a figure.
#
#   bench.sh BIN FOLDER cpu|cuda        FOLDER/shards are there
set -eu

bin=$1
folder=$2
device=$3
model=configs/ao-gpt-bench.json

now() { date +%s.%N; }
per_second() { awk -v n="$1" -v a="$2" -v b="$3" 'BEGIN { printf "%.0f", n / (b - a) }'; }

rows=1000000
start=$(now)
"$bin/ao-orders" uniform --block-size 1024 --count "$rows" --quiet >/dev/null
echo "ao-orders uniform, block 1024: $(per_second "$rows" "$start" "$(now)") rows a second"

bytes=$(wc -c <testdata/toy/stories.txt)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat testdata/toy/stories.txt; done >"$folder/text.txt"
start=$(now)
"$bin/ao-tokenize" --tokenizer gpt2 --quiet --force -o "$folder/text" "$folder/text.txt"
echo "ao-tokenize, GPT-2's vocabulary: $(per_second "$((bytes * 20))" "$start" "$(now)") bytes a second, start included"

# The number KEY of the JSON line on stdin; nothing where it is null.
number() { sed -n "s/.*\"$1\":\([0-9.eE+-]*\)[,}].*/\1/p"; }

# The median of twelve steps, the first two left out, and what the run says of itself: the share of
# the best matrix product measured at its start, where the time went, and the most memory it held.
for dtype in f32 bf16; do
  run=$folder/train-$dtype
  "$bin/ao-train" --model "$model" --shards "$folder/shards" --out "$run" --force --quiet \
    --batch-size 8 --steps 14 --ema 0.9999 --dtype "$dtype" --device "$device" --peak-tflops measure
  seconds=$(grep '"type":"step"' "$run/metrics.jsonl" | number seconds |
    awk 'NR > 2 { print $1 - last } { last = $1 }' | sort -n | awk '{ s[NR] = $1 } END { printf "%.3f", s[int((NR + 1) / 2)] }')
  peak=$(grep '"type":"run"' "$run/metrics.jsonl" | number tflops)
  summary() { tail -n 1 "$run/metrics.jsonl" | number "$1"; }
  share() { awk -v part="$(summary "$1_seconds")" -v steps="$(summary steps_of_start)" 'BEGIN { printf "%.3f", part / steps }'; }
  echo "ao-train, $dtype on $device: $seconds s a step of 8 x 256 tokens, $(awk -v s="$seconds" 'BEGIN { printf "%.0f", 2048 / s }') tokens a second"
  echo "  $(awk -v f="$(summary flops_per_token)" -v s="$seconds" -v p="$peak" 'BEGIN { printf "%.1f", 2048 * f / s / p / 1e10 }') % of the best matrix product, $(awk -v p="$peak" 'BEGIN { printf "%.3f", p }') TFLOP/s; $(awk -v m="$(summary peak_memory_bytes)" 'BEGIN { printf "%.0f", m / 1048576 }') MiB of memory at most"
  echo "  seconds a step: waiting for data $(share data), forward $(share forward), head and loss $(share head), backward $(share backward), optimizer and averages $(share optimizer)"
done

for dtype in f32 bf16; do
  out=$("$bin/ao-score" --ckpt "$folder/train-f32" --shards "$folder/shards" --orders uniform --max-sequences 64 \
    --batch-size 8 --quiet --dtype "$dtype" --device "$device" | tail -n 1)
  seconds=$(echo "$out" | sed 's/.*"seconds":\([0-9.eE+-]*\).*/\1/')
  echo "ao-score, $dtype on $device: $(awk -v s="$seconds" 'BEGIN { printf "%.3f", s / 8 }') s for 8 x 256 tokens"
  "$bin/ao-bench" generate --ckpt "$folder/train-f32" --batch-size 8 --steps 32,128,256 --repeats 3 --quiet \
    --dtype "$dtype" --device "$device" | grep '"type":"bench"' | while read -r line; do
    of() { echo "$line" | number "$1"; }
    percent() { awk -v x="$(of "$1")" 'BEGIN { printf "%.0f %%", 100 * x }'; }
    echo "ao-bench generate, $dtype on $device, $(of steps) steps: $(of seconds | awk '{ printf "%.3f", $1 }') s for 8 x 256 tokens, $(of tokens_per_second | awk '{ printf "%.0f", $1 }') tokens a second"
    echo "  $(of rows_forwarded | awk '{ print int($1) }') rows forwarded; blocks $(percent trunk_share), head $(percent head_share), draws $(percent sampling_share) of the time"
  done
done
