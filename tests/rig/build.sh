#!/usr/bin/env bash
# Builds the virtual cards into target/rig/. Needs g++.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p target/rig
# Under another name first: tests that run at the same time never load half a library.
g++ -std=c++20 -O1 -Wall -Wextra -Werror -shared -fPIC tests/rig/nvml.cpp -o "target/rig/nvml.$$"
mv "target/rig/nvml.$$" target/rig/libnvidia-ml.so.1
