# Sourced by tests/run and bench/demo from the top folder: creates or updates .venv and sets
# $python to its Python. PYTHON: the interpreter to create it with; TORCH: the pip requirement
# if .venv has no torch yet.

python=$PWD/.venv/bin/python
if [ ! -x "$python" ]; then
    echo "making .venv" >&2
    "${PYTHON:-python3}" -m venv .venv
    # The pip of an older Python needs twice the processor time for the following installs.
    "$python" -m pip install --quiet --no-compile --disable-pip-version-check --upgrade pip >&2 || :
fi
torch=
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    torch=${TORCH:-torch==2.13.0}
fi
# Reinstall if pyproject.toml has changed. Modules are compiled on import: half of torch's never are.
unset PYTHONDONTWRITEBYTECODE
if [ -n "$torch" ] || [ ! -e .venv/installed ] || [ pyproject.toml -nt .venv/installed ]; then
    echo "installing ${torch:+$torch, }probe and what its tests need into .venv" >&2
    "$python" -m pip install --quiet --no-compile --disable-pip-version-check \
        ${torch:+"$torch"} --editable '.[test]' >&2
    touch .venv/installed
fi
# Rebuild the compiled hooks if their sources are newer; without a compiler the Python sources are used.
if [ -n "$(find probe/base/compiled -name '*.[ch]' -newer probe/base/compiled/_hot.abi3.so 2>/dev/null)" ] ||
    [ ! -e probe/base/compiled/_hot.abi3.so ]; then
    PYTHONPATH=$PWD "$python" -m probe.base.compiled.build
fi
