#!/usr/bin/env bash
# The tests of the JAX simulators, in a virtual environment of their own: gymnax wants another gymnasium.
set -euo pipefail
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf .ci-venv/jax
"${PYTHON:-python3}" -m venv .ci-venv/jax
# shellcheck disable=SC1091
source .ci-venv/jax/bin/activate
pip install --quiet torch==2.13.0
pip install --quiet "jax[cpu]" mujoco==3.17.0 brax gymnax six "pytest>=8" "hypothesis>=6.100"
pip install --quiet -e .
pytest -q tests/adapters/test_gymnax.py tests/adapters/test_brax.py
