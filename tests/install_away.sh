#!/usr/bin/env bash
# Installs the wheel, then the sdist, of the folder $1 into an empty environment, and uses each away from the checkout.
set -euo pipefail
dist=$(cd "$1" && pwd)
constraints=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/constraints.txt
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
unset PYTHONPATH
${PYTHON:-python3} -m venv "$away/venv"
cd "$away"
pip() { venv/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$@"; }
pip "${TORCH:-torch==2.13.0}" # first, so that the resolver takes no other build
pip "$(echo "$dist"/*.whl)[viewer]"
HF_HUB_OFFLINE=1 venv/bin/trustmopd quickstart
test -s runs/quickstart/report.html
# What its last line advises, for two steps.
HF_HUB_OFFLINE=1 venv/bin/trustmopd train runs/quickstart/trust/recipe.yaml 'seeds=[1, 2]' output=runs/quickstart/trust-seeds training.max_steps=2
pip --no-deps --force-reinstall "$(echo "$dist"/*.tar.gz)"
venv/bin/trustmopd --version
venv/bin/python -c 'from trustmopd.quickstart.shipped import MODELS, checkpoint; print([str(checkpoint(name)) for name in MODELS])'
du -sh venv
