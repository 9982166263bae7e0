#!/bin/sh
# Fetches libtorch 2.11.0 into the folder named by the first argument, from PyPI's torch wheel, and
# lays it out as the build of tch expects: lib/ and include/. Nothing is touched outside that folder.
#
#   fetch-libtorch.sh .libtorch cpu|cuda
#
# cpu:  the wheel's CPU half and the two small CUDA libraries that it is linked against (no CUDA
#       toolkit, no driver): lib/ holds links to just those.
# cuda: the wheel with all that it depends on: lib is a link to the wheel's own folder.
#
# The folder is complete when lib/ exists: it is renamed into place last, so an interrupted fetch
# is done again and a finished one is not.
set -eu
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

die() { echo "fetch-libtorch: $1" >&2; exit 1; }

[ $# -eq 2 ] || die "usage: fetch-libtorch.sh FOLDER cpu|cuda"
dest=$1
kind=$2
torch=2.11.0
case $kind in cpu | cuda) ;; *) die "'$kind' is not a kind of libtorch; say cpu or cuda" ;; esac

if [ -e "$dest/lib" ] && [ "$(cat "$dest/kind" 2>/dev/null)" = "$kind" ]; then exit 0; fi

command -v python3 >/dev/null || die "python3 is missing; install it (Debian: apt-get install python3 python3-pip)"
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
rm -rf "$dest/lib" "$dest/lib.new" "$dest/include" "$dest/site" "$dest/kind"

# pip itself, or pip inside a virtual environment, whichever this python has.
if python3 -m pip --version >/dev/null 2>&1; then
  pip="python3 -m pip"
elif python3 -m venv "$dest/venv" >/dev/null 2>&1; then
  pip="$dest/venv/bin/python -m pip"
else
  rm -rf "$dest/venv"
  die "python3 has neither pip nor venv; install one (Debian: apt-get install python3-pip)"
fi

echo "fetch-libtorch: libtorch $torch ($kind) into $dest" >&2
if [ "$kind" = cuda ]; then
  $pip install -q --no-warn-script-location --target "$dest/site" "torch==$torch" ||
    die "pip could not fetch torch $torch; see its words above"
  ln -s site/torch/lib "$dest/lib.new"
else
  $pip install -q --no-deps --no-warn-script-location --target "$dest/site" "torch==$torch" \
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*' ||
    die "pip could not fetch torch $torch; see its words above"
  rm -f "$dest"/site/torch/lib/libtorch_cuda*.so # never loaded by a CPU build, 1 GB
  mkdir "$dest/lib.new"
  for so in libtorch_cpu.so libc10.so libgomp.so.1; do
    [ -f "$dest/site/torch/lib/$so" ] || die "the torch wheel has no $so; is this Linux on x86-64?"
    ln -s "../site/torch/lib/$so" "$dest/lib.new/$so"
  done
  for so in libcudart.so.13 libcupti.so.13; do
    found=$(cd "$dest" && find site/nvidia -name "$so" | head -n 1)
    [ -n "$found" ] || die "$so was not in its wheel"
    ln -s "../$found" "$dest/lib.new/$so"
  done
  # tch asks the linker for -ltorch, which in the wheel is the library that pulls CUDA in.
  echo 'INPUT(-ltorch_cpu)' >"$dest/lib.new/libtorch.so"
fi
ln -s site/torch/include "$dest/include"
echo "$kind" >"$dest/kind"
mv "$dest/lib.new" "$dest/lib"
