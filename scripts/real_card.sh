#!/usr/bin/env bash
# First calibration of a card whose clocks may not be touched: doctor, hardware tests, sensor, campaign, fit, counters, whole models.
#
#   scripts/real_card.sh [STAGE…]        stages: setup doctor tests sensor campaign fit traffic models pack; all without an argument
#
#   GPU=0            the board (a rehearsal: GPU=sim:h200-sxm)
#   FOLDER=build/real-card   results: dataset, sensor, recordings, reports, logs
#   BUDGET=8m        board time of one call of the campaign; call again to go on where it stopped
#   CAMPAIGN=real-card   campaign name or file
#   PYTHON=python3   interpreter that has the packages
#   TORCH=$PYTHON    interpreter that has PyTorch (models)
#   WHEELS=.whl      folder of wheels to install first, where there is no package index (setup)
#   NCU=ncu          Nsight Compute (traffic)
#
# On a card that is lent for minutes, in calls of at most nine:
#
#   scripts/real_card.sh setup doctor tests sensor pack
#   scripts/real_card.sh setup campaign pack                    as often as the campaign says that it is not complete
#   scripts/real_card.sh setup fit traffic models pack
#
# `pack` leaves everything in FOLDER/results.tar.gz.NN, pieces of 15 MiB; `setup` unpacks pieces that lie there, so that a fresh machine
# goes on where the one before stopped.  Kernels that broke the context are listed beside the dataset (dataset.parquet.killers.json): the
# next call passes over them and says so.
#
# Nothing here changes a clock, a power limit or a mode of the card: --freqs current, ncu with --clock-control none.
set -uo pipefail
cd "$(dirname "$0")/.."

GPU=${GPU:-0}
FOLDER=${FOLDER:-build/real-card}
BUDGET=${BUDGET:-8m}
CAMPAIGN=${CAMPAIGN:-real-card}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-$PYTHON}
NCU=${NCU:-ncu}
WHEELS=${WHEELS:-.whl}
SEED=${SEED:-1}
SITE=$FOLDER/site
mkdir -p "$FOLDER"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
[ -d "$SITE" ] && export PYTHONPATH=$SITE:$PYTHONPATH

failed=0

# Runs a command, its output on the terminal and in a log; exit status 3 means: done, with warnings.
step() {
  local name=$1 status
  shift
  echo "== $name: $*"
  "$@" 2>&1 | tee "$FOLDER/$name.log"
  status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ] && [ "$status" -ne 3 ]; then
    echo "== $name ended with status $status"
    failed=1
    return "$status"
  fi
}

# The first name that is free, so that a second call keeps the first one's recording.
free_name() {
  local stem=$1 suffix=$2 number=1
  while [ -e "$FOLDER/$stem-$number.$suffix" ]; do number=$((number + 1)); done
  echo "$FOLDER/$stem-$number.$suffix"
}

# A rehearsal has no card behind it.
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
  step tests "$PYTHON" -m pytest -q -m gpu tests/hardware -p no:cacheprovider
}

sensor() {
  step sensor "$PYTHON" -m collector.cli sensor --gpu "$GPU" --freq current --seed "$SEED" \
    --out "$FOLDER/sensor.json" --record "$(free_name sensor recording)"
}

campaign() {
  local more=() known=()
  [ -e "$FOLDER/dataset.parquet" ] || compgen -G "$FOLDER/dataset.parquet.log*" > /dev/null && more=(--resume)
  [ -e "$FOLDER/sensor.json" ] && known=(--sensor "$FOLDER/sensor.json")
  step campaign "$PYTHON" -m collector.cli --gpu "$GPU" --freqs current --campaign "$CAMPAIGN" --seed "$SEED" --budget "$BUDGET" --select all \
    "${known[@]}" "${more[@]}" --out "$FOLDER/dataset.parquet" --record "$(free_name campaign recording)"
  if [ -e "$FOLDER/dataset.parquet.killers.json" ]; then
    echo "== kernels that broke the context, passed over from now on:"
    cat "$FOLDER/dataset.parquet.killers.json"
  fi
}

fit() {
  step fit "$PYTHON" -m fitter.cli "$FOLDER/dataset.parquet" -o "$FOLDER/bundle.json" --report "$FOLDER/report.html" --seed "$SEED"
  step estimate "$PYTHON" -m estimator.cli examples/gpt2-prefill.json --bundle "$FOLDER/bundle.json"
}

# Derived traffic against the hardware's counters, in a pass of its own: counting slows kernels down.
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
}

stages=("$@")
[ ${#stages[@]} -eq 0 ] && stages=(setup doctor tests sensor campaign fit traffic models pack)
for stage in "${stages[@]}"; do
  case $stage in
    setup | doctor | tests | sensor | campaign | fit | traffic | models | pack) "$stage" ;;
    *)
      echo "no stage is called $stage; stages: setup doctor tests sensor campaign fit traffic models pack" >&2
      exit 2
      ;;
  esac
done
ls -l "$FOLDER"
exit "$failed"
