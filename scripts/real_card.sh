#!/usr/bin/env bash
# First calibration of a card whose clocks may not be touched: doctor, hardware tests, sensor, campaign, fit, counters, whole models.
#
#   scripts/real_card.sh [STAGE…]        all without an argument:
#     setup doctor tests sensor            wheels; a check of the machine; pytest -m gpu; the power sensor
#     anchors                              30 kernels, 1.5 minutes; the second run also compares both runs
#     campaign instructions                library kernels (8 minutes), generated ones (3.5 minutes)
#     fit                                  the bundle and its report; needs no card
#     traffic models                       hardware counters; whole models
#     pack                                 all results in pieces for transport
#
#   GPU=0            the board (a rehearsal: GPU=sim:h200-sxm)
#   FOLDER=build/real-card   results: dataset, sensor, recordings, reports, logs
#   BUDGET=8m        board time of the campaign, which chooses its kernels for it; another call continues a stopped campaign
#   CAMPAIGN=real-card   campaign name or file; INSTRUCTIONS=real-card-instructions and ANCHORS=real-card-anchors likewise
#   PYTHON=python3   interpreter that has the packages
#   TORCH=$PYTHON    interpreter that has PyTorch (models)
#   WHEELS=.whl      folder of wheels to install first, without a package index (setup)
#   NCU=ncu          Nsight Compute (traffic)
#   CALL_S=          time limit of this call [s] (unset: none): a stage that exceeds it is stopped as by Ctrl-C, a stage that would
#                    start after it is skipped, and `pack` still runs
#   OUT=             folder that `pack` copies its pieces to (unset: none)
#
# On a card that is available for minutes, in calls of at most nine:
#
#   CALL_S=530 scripts/real_card.sh setup doctor tests sensor anchors pack
#   CALL_S=530 scripts/real_card.sh setup campaign pack         again if it reports missing rows
#   CALL_S=530 scripts/real_card.sh setup instructions anchors pack
#   CALL_S= scripts/real_card.sh setup fit pack                 on any machine
#   CALL_S=530 scripts/real_card.sh setup traffic models pack
#
# A machine with PyTorch and CuPy for CUDA 13.0 usually lacks one wheel, which reports the kernels that ran:
#
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d .whl cupti-python==13.0.1
#
# `pack` writes all results to FOLDER/results.tar.gz.NN, pieces of 15 MiB; `setup` unpacks pieces in that folder, so that a new machine
# continues the work of the former one.  Kernels that broke the context are listed beside their dataset (dataset.parquet.killers.json): the
# next call skips and reports them.
#
# No stage changes a clock, a power limit or a mode of the card: --freqs current, ncu with --clock-control none.
set -uo pipefail
cd "$(dirname "$0")/.."

GPU=${GPU:-0}
FOLDER=${FOLDER:-build/real-card}
BUDGET=${BUDGET:-8m}
CAMPAIGN=${CAMPAIGN:-real-card}
INSTRUCTIONS=${INSTRUCTIONS:-real-card-instructions}
ANCHORS=${ANCHORS:-real-card-anchors}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-$PYTHON}
NCU=${NCU:-ncu}
WHEELS=${WHEELS:-.whl}
SEED=${SEED:-1}
SITE=$FOLDER/site
mkdir -p "$FOLDER"
CALL_S=${CALL_S:-}
OUT=${OUT:-}
PACK_S=25 # longest time for packing and copying, and for an interrupted stage to end
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
[ -d "$SITE" ] && export PYTHONPATH=$SITE:$PYTHONPATH

failed=0

# Runs a command with its output on the terminal and in a log; exit status 3 means done with warnings.
step() {
  local name=$1 status limit=()
  shift
  if [ -n "$CALL_S" ]; then
    if [ $((CALL_S - PACK_S - SECONDS)) -lt 1 ]; then
      echo "== $name: no time is left in this call; call again"
      failed=1
      return 1
    fi
    limit=(timeout --signal=INT --kill-after=10 $((CALL_S - PACK_S - SECONDS)))
  fi
  echo "== $name after $SECONDS s: $*"
  "${limit[@]}" "$@" 2>&1 | tee "$FOLDER/$name.log"
  status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ] && [ "$status" -ne 3 ]; then
    echo "== $name ended with status $status"
    failed=1
    return "$status"
  fi
}

# The first free name, so that a second call keeps the first one's recording.
free_name() {
  local stem=$1 suffix=$2 number=1
  while [ -e "$FOLDER/$stem-$number.$suffix" ]; do number=$((number + 1)); done
  echo "$FOLDER/$stem-$number.$suffix"
}

# A rehearsal has no card.
rehearsal() { case $GPU in sim:* | replay:*) true ;; *) false ;; esac; }

setup() {
  if [ ! -e "$FOLDER/sensor.json" ] && compgen -G "$FOLDER/results.tar.gz.*" > /dev/null; then
    cat "$FOLDER"/results.tar.gz.* | tar -xzf - -C "$FOLDER" && echo "== setup: went on from $FOLDER/results.tar.gz.*"
  fi
  if compgen -G "$WHEELS/*.whl" > /dev/null; then
    step setup "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" "$WHEELS"/*.whl
    export PYTHONPATH=$SITE:$PYTHONPATH
  fi
  step versions "$PYTHON" -c '
import importlib.metadata as found, sys
print("python", sys.version.split()[0])
for name in ("numpy", "click", "pyarrow", "nvidia-ml-py", "cupy-cuda13x", "cupti-python", "torch", "scipy", "pandas", "scikit-learn"):
    try: print(name, found.version(name))
    except found.PackageNotFoundError: print(name, "not installed")'
}

doctor() {
  if rehearsal; then step doctor "$PYTHON" -m collector.cli doctor; else step doctor "$PYTHON" -m collector.cli doctor --gpu "$GPU"; fi
  step devices "$PYTHON" -m collector.cli devices --json
}

tests() {
  if rehearsal; then
    echo "== tests: those on the card need one; skipped for $GPU"
    return
  fi
  # A kernel that breaks the context also fails the other tests of the process: they run again without it.
  export WATTPRINT_KILLERS=$PWD/$FOLDER/tests-killers.txt
  case $FOLDER in /*) WATTPRINT_KILLERS=$FOLDER/tests-killers.txt ;; esac
  local before
  for _ in 1 2 3; do
    touch "$WATTPRINT_KILLERS"
    before=$(wc -l < "$WATTPRINT_KILLERS")
    step tests "$PYTHON" -m pytest -q -m gpu tests/hardware -p no:cacheprovider
    [ "$(wc -l < "$WATTPRINT_KILLERS")" -gt "$before" ] || break
  done
}

sensor() {
  step sensor "$PYTHON" -m collector.cli sensor --gpu "$GPU" --freq current --seed "$SEED" \
    --force --out "$FOLDER/sensor.json" --record "$(free_name sensor recording)"
}

# Runs a campaign into its own dataset: NAME CAMPAIGN [OPTION…].
measure() {
  local name=$1 chosen=$2 out=$FOLDER/$1.parquet more=() known=()
  shift 2
  [ -e "$out" ] || compgen -G "$out.log*" > /dev/null && more=(--resume)
  [ -e "$FOLDER/sensor.json" ] && known=(--sensor "$FOLDER/sensor.json")
  step "$name" "$PYTHON" -m collector.cli --gpu "$GPU" --freqs current --campaign "$chosen" --seed "$SEED" "$@" \
    "${known[@]}" "${more[@]}" --out "$out" --record "$(free_name "$name" recording)"
  if [ -e "$out.killers.json" ]; then
    echo "== kernels that broke the context, passed over from now on:"
    cat "$out.killers.json"
  fi
}

campaign() { measure dataset "$CAMPAIGN" --budget "$BUDGET"; }

instructions() { measure instructions "$INSTRUCTIONS"; }

# Each call measures all of them once; the first two calls are compared.
anchors() {
  local number=1
  while [ -e "$FOLDER/anchors-$number.parquet" ] && ! compgen -G "$FOLDER/anchors-$number.parquet.log*" > /dev/null; do number=$((number + 1)); done
  measure "anchors-$number" "$ANCHORS"
  if [ -e "$FOLDER/anchors-1.parquet" ] && [ -e "$FOLDER/anchors-2.parquet" ]; then
    step anchors "$PYTHON" -m scripts.anchor_check "$FOLDER/anchors-1.parquet" "$FOLDER/anchors-2.parquet" -o "$FOLDER/anchors.json"
  fi
}

fit() {
  local datasets=() found
  for found in dataset instructions anchors-1; do
    if [ -e "$FOLDER/$found.parquet.log.jsonl" ]; then # unfinished: its rows so far
      step export "$PYTHON" -m collector.cli export "$FOLDER/$found.parquet.log.jsonl" --to parquet --force --out "$FOLDER/$found-so-far.parquet"
      datasets+=("$FOLDER/$found-so-far.parquet")
    elif [ -e "$FOLDER/$found.parquet" ]; then
      datasets+=("$FOLDER/$found.parquet")
    fi
  done
  step fit "$PYTHON" -m fitter.cli "${datasets[@]}" --force -o "$FOLDER/bundle.json" --report "$FOLDER/report.html" --seed "$SEED"
  step estimate "$PYTHON" -m estimator.cli examples/gpt2-prefill.json --bundle "$FOLDER/bundle.json"
}

# Derived traffic compared with the hardware's counters, in a separate pass: counting slows kernels down.
traffic() {
  local profile=("$PYTHON" -m scripts.traffic_check launch "$FOLDER/traffic-kernels.json" --gpu "$GPU")
  step traffic-choose "$PYTHON" -m scripts.traffic_check choose "$FOLDER/traffic-kernels.json"
  if rehearsal; then
    echo "== traffic: counters need a card; skipped for $GPU"
    return
  fi
  step traffic-count "$NCU" --clock-control none --cache-control all --profile-from-start off --target-processes all --csv \
    --metrics "$("$PYTHON" -m scripts.traffic_check metrics)" --log-file "$FOLDER/counters.csv" "${profile[@]}"
  step traffic "$PYTHON" -m scripts.traffic_check compare "$FOLDER/traffic-kernels.json" "$FOLDER/counters.csv" \
    --bundle "$FOLDER/bundle.json" -o "$FOLDER/traffic.json"
}

# Whole models: measured with `collect run`, estimated from a trace.
models() {
  local more=()
  rehearsal && more=(--rehearse)
  [ -e "$FOLDER/sensor.json" ] && more+=(--sensor "$FOLDER/sensor.json")
  if ! "$TORCH" -c 'import torch' 2> /dev/null; then
    echo "== models: $TORCH has no PyTorch; name one that has with TORCH=; skipped"
    return
  fi
  step models "$PYTHON" -m scripts.end_to_end --gpu "$GPU" --bundle "$FOLDER/bundle.json" --folder "$FOLDER/models" --python "$TORCH" "${more[@]}"
}

pack() {
  local beside
  beside=$(mktemp -d)
  rm -f "$FOLDER"/results.tar.gz.*
  tar -czf - -C "$FOLDER" --exclude=./site . | split -b 15m -d - "$beside/results.tar.gz."
  mv "$beside"/results.tar.gz.* "$FOLDER" && rmdir "$beside"
  if [ -n "$OUT" ]; then cp "$FOLDER"/results.tar.gz.* "$OUT" && echo "== pack: $(ls "$FOLDER"/results.tar.gz.* | wc -l) pieces in $OUT after $SECONDS s"; fi
}

known=(setup doctor tests sensor anchors campaign instructions fit traffic models pack)
stages=("$@")
[ ${#stages[@]} -eq 0 ] && stages=("${known[@]}")
for stage in "${stages[@]}"; do
  case $stage in
    setup | doctor | tests | sensor | anchors | campaign | instructions | fit | traffic | models | pack) "$stage" ;;
    *)
      echo "no stage is called $stage; stages: ${known[*]}" >&2
      exit 2
      ;;
  esac
done
ls -l "$FOLDER"
exit "$failed"
