#!/bin/sh
# Runs the packed tests on this machine. Arguments go to every test binary (a filter, --nocapture, …).
# Needs an NVIDIA driver for the tests on a GPU; without one they print NOT RUN.
here=$(cd "$(dirname "$0")" && pwd)
export FERROFLASH_BIN="$here/bin/ferroflash" FERROFLASH_DATA="$here"
failed=0
"$FERROFLASH_BIN" info || failed=1
for test in "$here"/tests/*; do
    echo "== $(basename "$test")"
    "$test" "$@" || failed=1
done
echo "== ferroflash verify"
"$FERROFLASH_BIN" verify --cases 200 || failed=1
if [ "$failed" = 0 ]; then echo "run-tests: all passed"; else echo "run-tests: FAILED"; fi
exit "$failed"
