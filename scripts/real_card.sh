#!/usr/bin/env bash
# First calibration of a card whose clocks may not be touched: doctor, hardware tests, sensor, campaign, fit.
#
#   scripts/real_card.sh [STAGE…]        stages: setup doctor tests sensor campaign fit; all of them without an argument
#
#   GPU=0            the board (a rehearsal: GPU=sim:h200-sxm)
#   FOLDER=build/real-card   results: dataset, sensor, recordings, reports, logs
#   BUDGET=7m        board time of one call of the campaign; call again to go on where it stopped
#   CAMPAIGN=quick   campaign name or file
#   PYTHON=python3   interpreter that has the packages
#   WHEELS=.whl      folder of wheels to install first, where there is no package index (setup)
#
# Nothing here changes a clock, a power limit or a mode of the card: --freqs current only.
set -uo pipefail
cd "$(dirname "$0")/.."

GPU=${GPU:-0}
FOLDER=${FOLDER:-build/real-card}
BUDGET=${BUDGET:-7m}
CAMPAIGN=${CAMPAIGN:-quick}
PYTHON=${PYTHON:-python3}
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

setup() {
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
  case $GPU in
    sim:* | replay:*) step doctor "$PYTHON" -m collector.cli doctor ;;
    *) step doctor "$PYTHON" -m collector.cli doctor --gpu "$GPU" ;;
  esac
  step devices "$PYTHON" -m collector.cli devices --json
}

tests() {
  case $GPU in
    sim:* | replay:*) echo "== tests: tests/hardware needs a card; skipped for $GPU" ;;
    *) step tests "$PYTHON" -m pytest -q -m gpu tests/hardware -p no:cacheprovider ;;
  esac
}

sensor() {
  step sensor "$PYTHON" -m collector.cli sensor --gpu "$GPU" --freq current --seed "$SEED" \
    --out "$FOLDER/sensor.json" --record "$(free_name sensor recording)"
}

campaign() {
  local more=() known=()
  [ -e "$FOLDER/dataset.parquet" ] || compgen -G "$FOLDER/dataset.parquet.log*" > /dev/null && more=(--resume)
  [ -e "$FOLDER/sensor.json" ] && known=(--sensor "$FOLDER/sensor.json")
  step campaign "$PYTHON" -m collector.cli --gpu "$GPU" --freqs current --campaign "$CAMPAIGN" --seed "$SEED" --budget "$BUDGET" \
    "${known[@]}" "${more[@]}" --out "$FOLDER/dataset.parquet" --record "$(free_name campaign recording)"
}

fit() {
  step fit "$PYTHON" -m fitter.cli "$FOLDER/dataset.parquet" -o "$FOLDER/bundle.json" --report "$FOLDER/report.html" --seed "$SEED"
  step estimate "$PYTHON" -m estimator.cli examples/gpt2-prefill.json --bundle "$FOLDER/bundle.json"
}

stages=("$@")
[ ${#stages[@]} -eq 0 ] && stages=(setup doctor tests sensor campaign fit)
for stage in "${stages[@]}"; do
  case $stage in
    setup | doctor | tests | sensor | campaign | fit) "$stage" ;;
    *)
      echo "no stage is called $stage; stages: setup doctor tests sensor campaign fit" >&2
      exit 2
      ;;
  esac
done
ls -l "$FOLDER"
exit "$failed"
