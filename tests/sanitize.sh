#!/bin/sh
# Tests of the C core under AddressSanitizer and UndefinedBehaviorSanitizer. Builds into a temporary directory, so the
# working tree and any installed k3mem stay as they are. Usage: tests/sanitize.sh [pytest arguments]
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
case $python in /*) ;; *) python=$(pwd)/$python ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A copy of what git would commit, or of a plain source tree.
cd "$root"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf "$work/src.tar"
else
    tar cf "$work/src.tar" --exclude=.venv --exclude=build --exclude='*.so' .
fi
mkdir "$work/src"
tar xf "$work/src.tar" -C "$work/src"
cd "$work/src"

K3MEM_SANITIZE=1 "$python" setup.py -q build --build-base "$work/build" --build-lib "$work/lib" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}

# Tests stand outside the source, so that only the sanitized build can be imported.
cp -r tests pyproject.toml "$work/lib/.." && cd "$work"
export PYTHONPATH="$work/lib" PYTHONDONTWRITEBYTECODE=1
export K3MEM_SHARED="${K3MEM_SHARED:-$root/../shared}"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
LD_PRELOAD="$(${CC:-gcc} -print-file-name=libasan.so) $(${CC:-gcc} -print-file-name=libubsan.so)"

suites=
for suite in radix pool replay/test_bound_prices.py executors/test_mock*.py \
    executors/test_sim_rows.py engine/test_lanes.py engine/test_tokens.py engine/test_check_bites.py \
    sched/test_moves.py; do
    for path in tests/$suite; do
        [ -e "$path" ] && suites="$suites $path"
    done
done
export LD_PRELOAD
"$python" - <<'PY'
import os
import k3mem.native._core as core
assert core.__file__.startswith(os.environ["PYTHONPATH"]), core.__file__
PY
"$python" -m pytest -p no:cacheprovider $suites "$@"
