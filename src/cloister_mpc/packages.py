"""What computing on shares needs beside Cloister: found or not, and never imported here."""

from __future__ import annotations

from importlib.util import find_spec

from cloister.errors import SetupError

_PACKAGES = ("spu", "jax")


def require_packages() -> None:
    """SetupError that names what is missing."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise SetupError(
            f"The level mpc needs {' and '.join(missing)}.",
            hint="`make mpc` installs them. (SPU has packages for Python 3.11 on Linux, x86-64 and ARM.)",
        )
