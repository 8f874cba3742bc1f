#!/usr/bin/env bash
# Trains the bundled exported Mixtral (2 layers, 5 experts, vocabulary 307) on the bytes of this project's own
# sources and docs for 300 steps, exports the trained model as ONNX and draws the loss.
set -euo pipefail
weir=${1:-build/cli/weir}
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/weir_runs/demo
model=$root/models/mixtral/dynamo18_batched_mm_sdpa.onnx
names=$root/models/mixtral/weights.safetensors
rm -rf "$out"
mkdir -p "$(dirname "$out")"
data=()
for folder in graph importer graph_passes backend kernels optim cli docs; do data+=(--data "$root/$folder"); done
echo "== weir import"
"$weir" import "$model" --names "$names"
echo "== weir train"
"$weir" train "$model" --names "$names" "${data[@]}" --data-format text --out "$out" --steps 300 \
  --micro-batch 32 --sequence 256 --learning-rate 3e-3 --min-learning-rate 3e-4 --warmup-steps 20
"$weir" report "$out"
echo "== weir export"
"$weir" export "$model" --names "$names" --weights "$out/weights.safetensors" -o "$out/trained.onnx"
echo
echo "run folder  weir_runs/demo"
echo "model       weir_runs/demo/trained.onnx"
echo "picture     weir_runs/demo/loss.svg
page        weir_runs/demo/report.html"
