#!/usr/bin/env bash
# One virtual environment per peer under $SHOAL_PEERS (default ~/.cache/shoal-peers).
#   benchmarks/peers/setup.sh [sb3] [sf] [rllib] [tianshou] [pfrl] [sbx] [evotorch] [rlox] [reverb]     default: all
# torch comes first, so that no later requirement pulls a build with CUDA packages.
set -eu
root=${SHOAL_PEERS:-$HOME/.cache/shoal-peers}
mkdir -p "$root"
environment() { # name, packages
  name=$1
  shift
  [ -x "$root/$name/bin/python" ] || python3 -m venv "$root/$name"
  "$root/$name/bin/pip" install -q "torch==2.13.0"
  "$root/$name/bin/pip" install -q "$@"
}
shared=("gymnasium[classic-control]" ale-py opencv-python-headless psutil)
for peer in ${*:-sb3 sf rllib tianshou pfrl sbx evotorch rlox reverb}; do
  case $peer in
    sb3) environment sb3 "stable-baselines3[extra]==2.9.0" sb3-contrib minatar "gymnasium[box2d,mujoco]" "${shared[@]}" ;;
    sf) environment sf "sample-factory==2.1.1" box2d "${shared[@]}" ;;
    rllib) environment rllib "ray[rllib,tune]==2.60.0" "${shared[@]}" ;;
    tianshou) environment tianshou "tianshou==2.0.*" "${shared[@]}" ;;
    pfrl) environment pfrl "pfrl==0.4.0" packaging "${shared[@]}" ;; # which it imports without asking for it
    sbx) environment sbx "sbx-rl==0.28.0" "gymnasium[mujoco]" "${shared[@]}" ;;
    evotorch) environment evotorch "evotorch==0.6.1" "gymnasium[mujoco]" "${shared[@]}" ;;
    rlox) environment rlox rlox "${shared[@]}" ;;
    reverb) environment reverb "dm-reverb[tensorflow]==0.14.0" psutil ;;
    *) echo "unknown peer: $peer" >&2; exit 2 ;;
  esac
done
