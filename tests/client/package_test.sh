#!/usr/bin/env bash
# Installs the client package from a build folder, builds the README's example with it as a project of
# somebody else's, once with CMake and once with pkg-config, and runs both against a server.
# Usage: package_test.sh BUILD_DIR ADDRESS
set -euo pipefail
build=$1 address=$2
readme=$(cd "$(dirname "$0")/../.." && pwd)/README.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first block of a language in the README.
block() { awk -v start="\`\`\`$1" '$0 == start {inside = 1; next} /^```/ {if (inside) exit} inside' "$readme"; }
mkdir "$work/source"
block cmake >"$work/source/CMakeLists.txt"
block cpp >"$work/source/example.cc"

cmake --install "$build" --prefix "$work/first" --component development >/dev/null
# A package that can be moved names no folder of its first one.
mv "$work/first" "$work/prefix"
cmake -G Ninja -S "$work/source" -B "$work/outside" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/outside"
[[ $("$work/outside/example" "$address") == "out 2" ]]

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name attend.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # flags are words
g++ -std=c++20 -Wall -Wextra -Werror "$work/source/example.cc" -o "$work/by-pkg-config" $(pkg-config --cflags --libs attend)
[[ $("$work/by-pkg-config" "$address") == "out 2" ]]
echo "built and ran by find_package and by pkg-config"
