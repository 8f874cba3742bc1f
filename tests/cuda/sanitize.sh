#!/bin/bash
# compute-sanitizer over tests of a GPU, own kernels only, in bounded time:
#   tests/cuda/sanitize.sh [PROGRAM [FILTER [SECONDS [JOBS]]]]
# Each test runs alone under memcheck and under racecheck. Prints what failed with the tool's words, what time did not suffice for and where the tool itself fails;
# exit code 1 when anything failed, 2 where the tool cannot run.
program=${1:-build/tests/cuda_test} filter=${2:-All/CudaOp.*:CudaOps.EveryPath*:CudaHeavy.*} seconds=${3:-240} jobs=${4:-6}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer 2>/dev/null | head -1)
[ -n "$sanitizer" ] || { echo "no compute-sanitizer on PATH or in /usr/local/cuda"; exit 2; }
own=(--kernel-name kns=weir)
"$sanitizer" "${own[@]}" /bin/true 2>&1 | grep -qi 'unrecogni' && own=()  # an older tool: all kernels
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" --gtest_list_tests --gtest_filter="$filter" | sed 's/ *#.*//' | awk '/^[^ ]/ {suite = $1} /^ / {print suite $1}' |
  awk '{print "memcheck " $0; print "racecheck " $0}' >"$folder/list"
end=$(($(date +%s) + seconds))
check() {  # tool test
  local left=$((end - $(date +%s))) log
  [ "$left" -gt 0 ] || { echo "SKIP $1 $2"; return; }
  log=$folder/$1.$(echo "$2" | tr / _)
  timeout "$left" "$sanitizer" --tool "$1" "${own[@]}" --error-exitcode 9 --print-limit 20 "$program" --gtest_brief=1 --gtest_filter="$2" >"$log" 2>&1
  local code=$?
  if grep -q 'Device not supported' "$log"; then
    echo "BROKEN $1 $2"
  elif grep -q 'Internal Sanitizer Error' "$log"; then
    echo "UNABLE $1 $2"  # the tool gave up, as racecheck does at tensor memory copies
  else
    case $code in 0) echo "PASS $1 $2" ;; 124) echo "SKIP $1 $2" ;; *) echo "FAIL $1 $2 $log" ;; esac
  fi
}
export -f check
export program sanitizer end folder
export own_words="${own[*]}"
xargs -a "$folder/list" -P "$jobs" -L 1 bash -c 'own=($own_words); check "$@"' _ >"$folder/results"
for verdict in PASS FAIL SKIP UNABLE BROKEN; do echo "$verdict $(grep -c "^$verdict" "$folder/results")"; done | paste -sd' '
grep -E '^(SKIP|UNABLE)' "$folder/results" | head -20
while read -r _ tool test log; do echo "--- $tool $test"; grep -E '=========|Failure|error' "$log" | head -25; done < <(grep '^FAIL' "$folder/results")
grep -q '^BROKEN' "$folder/results" && { echo "this machine's GPU is closed to compute-sanitizer"; exit 2; }
! grep -q '^FAIL' "$folder/results"
