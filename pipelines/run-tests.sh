#!/bin/sh
# Runs cargo's tests and closes with one plain line, `N passed, N failed`, summed over all of
# cargo's own. Exit 0 when cargo is content and at least one test ran.
#
#   run-tests.sh [ARGUMENTS OF cargo test]
set -u

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A pipe gives the status of its last command, so that of cargo goes through a file.
{
  cargo test --no-fail-fast "$@" 2>&1
  echo $? >"$log.status"
} | tee "$log"
status=$(cat "$log.status" 2>/dev/null || echo 1)
rm -f "$log.status"

# test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
counts=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | awk '
  /^test result: / {
    for (i = 2; i <= NF; i++) {
      if ($i == "passed;") passed += $(i - 1)
      if ($i == "failed;") failed += $(i - 1)
      if ($i == "ignored;") skipped += $(i - 1)
    }
  }
  END { print passed + 0, failed + 0, skipped + 0 }')
set -- $counts
if [ "$status" -ne 0 ]; then
  echo "make test: cargo test ended with status $status; its words are above" >&2
elif [ "$1" -eq 0 ]; then
  echo "make test: no test ran" >&2
  status=1
fi
if [ "$3" -gt 0 ]; then
  echo "$1 passed, $2 failed, $3 skipped"
else
  echo "$1 passed, $2 failed"
fi
exit "$status"
