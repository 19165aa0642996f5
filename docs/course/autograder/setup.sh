#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image: a Python of at least 3.11, and NumPy.
set -e
folder="${AUTOGRADER:-/autograder}"
for python in python3.14 python3.13 python3.12 python3.11 python3 ""; do
    if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        break
    fi
done
if [ -z "$python" ] || ! "$python" -m venv "$folder/venv"; then
    apt-get update
    apt-get install -y python3.11 python3.11-venv
    python3.11 -m venv "$folder/venv"
fi
"$folder/venv/bin/pip" install --quiet "numpy>=2"
