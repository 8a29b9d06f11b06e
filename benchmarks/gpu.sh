#!/usr/bin/env bash
# Measurements on a GPU (benchmarks/gpu.py), in one command, on a machine with its own torch and without a network:
#   benchmarks/gpu.sh pack                  here: fills build/gpu/1, 2, … with what that machine lacks
#   benchmarks/gpu.sh [--steps … --minutes 8]   there: writes $OUT/gpu.json, or results/bench/gpu.json
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
site=${TMPDIR:-/tmp}/howlinear-gpu-site
if [ "${1:-}" != pack ] && compgen -G 'build/gpu/*/*.whl' > /dev/null; then
  rm -rf "$site"
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" build/gpu/*/*.whl
fi
PYTHONPATH=lib:benchmarks:$site exec "$PYTHON" benchmarks/gpu.py --out "${OUT:-results/bench}/gpu.json" "$@"
