#!/usr/bin/env bash
# Installs the client package from a build folder, builds an outside project with it, once with CMake and
# once with pkg-config, and runs both against a server. Usage: package_test.sh BUILD_DIR ADDRESS
set -euo pipefail
build=$1 address=$2
source=$(cd "$(dirname "$0")/package" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" --component development >/dev/null
# A package that can be moved names no folder of its first one.
mv "$work/first" "$work/prefix"
cmake -G Ninja -S "$source" -B "$work/outside" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/outside"
[[ $("$work/outside/outside" "$address") == "out 2" ]]

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name attend.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # flags are words
g++ -std=c++20 -Wall -Wextra -Werror "$source/main.cc" -o "$work/by-pkg-config" $(pkg-config --cflags --libs attend)
[[ $("$work/by-pkg-config" "$address") == "out 2" ]]
echo "built and ran by find_package and by pkg-config"
