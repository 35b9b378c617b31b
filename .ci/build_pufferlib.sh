#!/usr/bin/env bash
# Builds PufferLib with its native environments in the virtual environment that is active, and installs it.
#
# Its setup.py downloads raylib for the web and Box2D, which the Linux build does not use: where their folders
# exist it leaves that out. The one environment that links Box2D is removed. Its metadata wants old versions of NumPy
# and gymnasium, so it is installed without its dependencies; it runs with the present ones.
# Needs a C compiler, and torch and NumPy in the environment; no CUDA, and no network but a package index.
set -euo pipefail

version=3.0.0
if [ -z "${VIRTUAL_ENV:-}" ]; then
    echo "activate a virtual environment first" >&2
    exit 1
fi
python -c "import numpy, torch" 2> /dev/null || { echo "install torch and numpy first" >&2; exit 1; }
command -v "${CC:-gcc}" > /dev/null || { echo "there is no C compiler: install gcc" >&2; exit 1; }
if python - "$version" 2> /dev/null << 'CHECK'; then
import sys
from importlib.metadata import distribution, version

found = distribution("pufferlib")
assert found.version == sys.argv[1]
assert any(file.match("ocean/cartpole/binding.*.so") for file in found.files)
assert version("gym") and version("psutil")
CHECK
    echo "pufferlib $version is there"
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip install --quiet setuptools wheel
# Without native environments setup.py reads a name that it never sets; asking for its metadata runs it so.
mkdir "$folder/site"
printf 'import builtins\nbuiltins.c_extension_paths = []\n' > "$folder/site/sitecustomize.py"
PYTHONPATH="$folder/site" NO_OCEAN=1 NO_TRAIN=1 pip download --quiet --no-deps --no-build-isolation \
    --no-binary pufferlib --dest "$folder" "pufferlib==$version"
tar -xzf "$folder/pufferlib-$version.tar.gz" -C "$folder"
cd "$folder/pufferlib-$version"
mkdir -p raylib-5.5_webassembly box2d-web box2d-linux-amd64/include box2d-linux-amd64/src
rm -rf pufferlib/ocean/impulse_wars
NO_TRAIN=1 pip install --quiet --no-deps --no-build-isolation --force-reinstall .
pip install --quiet --no-deps gym==0.26.2 gym_notices psutil
