#!/usr/bin/env bash
# deploy/demo does what it says against the real server, on the CPU: every kernel is right on random numbers and
# on a real model's tensors; with --serve it stays until it is told to stop, and then ends whole.
# Usage: demo_test.sh BUILD_DIR
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A word that it does not know ends it before it builds anything.
code=0
deploy/demo --bogus 2>"$work/error" || code=$?
[[ $code -eq 2 ]]
grep -q "no option '--bogus'" "$work/error"
code=0
deploy/demo --device bogus 2>"$work/error" || code=$?
[[ $code -eq 2 ]]
grep -q "'bogus' is none of auto, cuda, cpu" "$work/error"

deploy/demo --build-dir "$build" --device cpu --quick | tee "$work/demo"
grep -q '^All answers are right' "$work/demo"
[[ $(grep -cE 'layer[0-5] .* ok$' "$work/demo") -eq 18 ]]

deploy/demo --build-dir "$build" --device cpu --serve >"$work/serve" &
pid=$!
until grep -q 'Ctrl-C' "$work/serve"; do
  kill -0 "$pid"
  sleep 0.1
done
ATTEND_ADDRESS=$(sed -n 's/.*export ATTEND_ADDRESS=//p' "$work/serve") "$build/client/cli/attend" explain | grep -q ': ok$'
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[[ $code -eq 143 ]]
