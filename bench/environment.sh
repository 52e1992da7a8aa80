# Sourced by tests/run and bench/demo from the top folder: makes .venv when it is not there,
# or brings it up to date, and leaves its Python in $python. PYTHON chooses the interpreter to
# start from, TORCH what to ask pip for when .venv has no torch yet.

python=$PWD/.venv/bin/python
if [ ! -x "$python" ]; then
    echo "making .venv" >&2
    "${PYTHON:-python3}" -m venv .venv
    # The pip that comes with an older Python takes twice the processor time for what follows.
    "$python" -m pip install --quiet --no-compile --disable-pip-version-check --upgrade pip >&2 || :
fi
torch=
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    torch=${TORCH:-torch==2.13.0}
fi
# What is installed is what pyproject.toml asked for then: install again when it has changed. Modules are
# compiled when they are imported: half of torch's never are.
unset PYTHONDONTWRITEBYTECODE
if [ -n "$torch" ] || [ ! -e .venv/installed ] || [ pyproject.toml -nt .venv/installed ]; then
    echo "installing ${torch:+$torch, }probe and what its tests need into .venv" >&2
    "$python" -m pip install --quiet --no-compile --disable-pip-version-check \
        ${torch:+"$torch"} --editable '.[test]' >&2
    touch .venv/installed
fi
# Where a compiler is, what runs is what the sources say; else the plain source.
if [ -n "$(find probe/base/compiled -name '*.[ch]' -newer probe/base/compiled/_hot.abi3.so 2>/dev/null)" ] ||
    [ ! -e probe/base/compiled/_hot.abi3.so ]; then
    PYTHONPATH=$PWD "$python" -m probe.base.compiled.build
fi
