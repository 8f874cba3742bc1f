#!/bin/sh
# The tables of arXiv 2609.14306 on this machine's GPUs, beside the paper's figures.
#   bench/paper_tables.sh --ranks R [--device cpu] [--out FOLDER] SECTION
# SECTION: dispatch, head, sco, optimizer, long_context; each takes under ten minutes and writes
# FOLDER/SECTION_R.json and FOLDER/SECTION_R.md. WEIR is the program (build/cli/weir); MODELS the folder of
# what models/full_size.tar.gz holds (unpacked there when missing). --device cpu runs small sizes: a check of the script.
set -eu
cd "$(dirname "$0")/.."
ranks=2 device=cuda out=bench/results section=
usage() { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --ranks | --device | --out) [ $# -gt 1 ] || usage
      case $1 in --ranks) ranks=$2 ;; --device) device=$2 ;; --out) out=$2 ;; esac
      shift ;;
    dispatch | head | sco | optimizer | long_context) section=$1 ;;
    *) usage ;;
  esac
  shift
done
[ -n "$section" ] || usage
weir=${WEIR:-build/cli/weir} models=${MODELS:-build/full_size}
mkdir -p "$out"
lines=$out/${section}_$ranks.jsonl
: > "$lines"

# run NAME COMMAND...: one line of JSON with the command's own, or with why it failed.
run() {
  name=$1; shift
  echo "== $name" >&2
  command=$(echo "$*" | sed 's#[^ ]*/##g')
  if result=$("$@" 2> "$lines.err"); then
    printf '{"name": "%s", "command": "%s", "result": %s}\n' "$name" "$command" "$result" >> "$lines"
  else
    status=$?
    why=$(grep -v '^see ' "$lines.err" | tail -1 | tr -d '"\\' | cut -c1-300)
    printf '{"name": "%s", "command": "%s", "failed": "status %d: %s"}\n' "$name" "$command" "$status" "$why" >> "$lines"
    tail -5 "$lines.err" >&2
  fi
}

model() { # the path of a full-size model
  [ -e "$models/$1" ] || { mkdir -p "$models" && tar xzf models/full_size.tar.gz -C "$models" "$1"; }
  echo "$models/$1"
}
step() { # NAME MODEL FLAGS...
  step_name=$1 step_model=$2; shift 2
  run "$step_name" "$weir" bench step "$step_model" --device "$device" --ranks "$ranks" --json "$@"
}

case $section in
  dispatch)
    if [ "$device" = cuda ]; then
      sizes="--tokens 65536 --hidden 7168 --expert-width 2048 --top-k 8 --leaves 32 --unit-rows 16384 --chunk-tokens 6554 --max-chunks 11 --repeats 5"
    else
      sizes="--tokens 512 --hidden 32 --expert-width 16 --top-k 4 --leaves 8 --unit-rows 64 --chunk-tokens 64 --min-rows 8 --repeats 2"
    fi
    for skew in 0 30:16 50:16 80:16 95:16 30:4 50:4 80:4 95:4; do
      # shellcheck disable=SC2086
      run "$skew" "$weir" bench dispatch --device "$device" --ranks "$ranks" --expert-parallel "$ranks" --experts $((16 * ranks)) $sizes --skew $skew --json
    done ;;
  head)  # whole logits, strips, spread over the ranks: in one run each
    if [ "$device" = cuda ]; then sizes="16384 32768" shape="--channels 7168 --vocabulary 200000"; else sizes=64 shape="--channels 32 --vocabulary 5000"; fi
    head() { # TOKENS PRECISION REPEATS; float32 runs outside tensor cores: once, at the smaller size
      # shellcheck disable=SC2086
      run "$1 $2" "$weir" bench head --device "$device" --ranks "$ranks" --vocab-parallel "$ranks" --tokens "$1" $shape --precision "$2" --json --repeats "$3"
    }
    for tokens in $sizes; do head "$tokens" bfloat16 3; done
    head "${sizes%% *}" float32 1 ;;
  sco)
    if [ "$device" = cuda ]; then
      m=$(model gpt-oss-20b_opset18_batched_mm.onnx) flags="--precision bfloat16 --sequence 65536 --steps 2 --strip 8192 --bucket 33554432 --expert-parallel $ranks --chunk-tokens 8192"
    else
      m=models/mixtral/dynamo18_batched_mm_sdpa.onnx flags="--sequence 64 --steps 2"
    fi
    for budget in 0 8GiB 16GiB 1TiB; do
      # shellcheck disable=SC2086
      step "$budget" "$m" $flags --recompute layer --host-budget $budget
    done
    if [ "$device" = cuda ]; then sizes="--layers 16"; else sizes="--layers 3 --tokens 64 --hidden 32 --products 2 --repeats 2"; fi
    # shellcheck disable=SC2086
    run "products alone" "$weir" bench checkpoint --device "$device" --ranks "$ranks" $sizes --json ;;
  optimizer)
    if [ "$device" = cuda ]; then
      m=$(model gpt-oss-20b_opset18_batched_mm.onnx) flags="--precision bfloat16 --sequence 4096 --steps 3 --strip 8192 --recompute layer --expert-parallel $ranks"
    else
      m=models/mixtral/dynamo18_batched_mm_sdpa.onnx flags="--sequence 64 --steps 2"
    fi
    for bucket in 0 33554432 134217728; do
      # shellcheck disable=SC2086
      step "bucket $bucket" "$m" $flags --bucket $bucket --trace "$lines.$bucket"
    done
    if [ "$device" = cuda ]; then size=4294967296 buckets="8388608 33554432"; else size=100000 buckets=20000; fi
    for bucket in $buckets; do
      run "bucket $bucket" "$weir" bench optimizer --device "$device" --ranks "$ranks" --parameters $size --bucket "$bucket" --json
    done ;;
  long_context)
    if [ "$device" = cuda ]; then
      # host memory of each rank: eight of 60 GiB in 560, two of 70 in 256
      if [ "$ranks" -ge 8 ]; then m=$(model qwen3-30b-a3b_opset18_batched_mm.onnx) host=60GiB; else m=$(model olmoe-1b-7b_opset18_batched_mm.onnx) host=70GiB; fi
      flags="--precision bfloat16 --strip 65536 --recompute layer --recompute-keep attention --shard-optimizer --host-budget $host --chunk-tokens 32768 --expert-parallel $ranks --context-parallel $ranks"
      lengths="131072 262144 524288 1048576"
    else
      m=models/mixtral/dynamo18_batched_mm_sdpa.onnx flags="--recompute layer" lengths="64 128"
    fi
    for length in $lengths; do
      # shellcheck disable=SC2086
      step "$length" "$m" $flags --sequence "$length" --steps $((length * 8 / $ranks > 1048576 ? 1 : 2))
    done ;;
esac
rm -f "$lines.err"
python3 bench/paper_tables.py "$section" "$ranks" "$device" "$lines" "$out/${section}_$ranks"
rm -f "$lines" "$lines".*
