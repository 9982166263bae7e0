#!/bin/sh
# Says in one line what a machine lacks, before anything long starts.
#
#   need.sh cargo c++ python npm …
#
# Exit 0 when everything named is there, else 2 after the first line that says what to install.
set -eu

lack() { echo "make: $1" >&2; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

for what in "$@"; do
  case $what in
    cargo)
      have cargo || lack "cargo is missing; install Rust 1.89 or newer (rustup, or Debian's rustc and cargo if new enough)"
      version=$(cargo --version 2>/dev/null | sed 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/')
      case $version in *[!0-9\ ]* | '') lack "cargo does not run; try 'cargo --version'" ;; esac
      [ "${version% *}" -gt 1 ] || [ "${version#* }" -ge 89 ] ||
        lack "cargo is $(cargo --version | cut -d' ' -f2), need 1.89 or newer; try 'rustup update'" ;;
    c++)
      have "${CXX:-c++}" || lack "a C++ compiler is missing (looked for ${CXX:-c++}); Debian: apt-get install g++" ;;
    python)
      have python3 || lack "python3 is missing, and fetches libtorch; Debian: apt-get install python3 python3-pip"
      python3 -m pip --version >/dev/null 2>&1 || python3 -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        lack "python3 has neither pip nor venv, and fetches libtorch; Debian: apt-get install python3-pip" ;;
    npm)
      have npm || lack "npm is missing, and fetches the stand-in corpus; Debian: apt-get install npm, or give LM1B=FILE.tar.gz" ;;
    *) lack "need.sh: '$what' is nothing it knows" ;;
  esac
done
