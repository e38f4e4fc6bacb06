# Sets PYTHON to an interpreter of 3.11 or newer, or says in one line that there is none. Sourced by ./run and ./test.
for PYTHON in python3 python3.14 python3.13 python3.12 python3.11 python; do
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
  PYTHON=
done
if [ -z "$PYTHON" ]; then
  echo "headgate: Python 3.11 or newer is missing: install it and try again." >&2
  exit 2
fi
