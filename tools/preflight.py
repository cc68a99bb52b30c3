"""What a machine must have before the package can be built, said in one line where it lacks it.

Runs under any Python 3, so that an old one is told apart from a broken one.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig


def missing() -> "str | None":
    """What is missing, as a sentence with its remedy; None when all is there."""
    if sys.version_info < (3, 10):
        return "k3mem needs Python 3.10 or newer, this is %d.%d; name another one: make PYTHON=python3.12" % (
            sys.version_info[:2])
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        return "this Python has no venv; install it (Debian and Ubuntu: python3-venv)"
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        return "%s is missing; install Python's headers (Debian and Ubuntu: python3-dev)" % header
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return "no C compiler: %r is not on the path; install one, or name it: make CC=..." % compiler.split()[0]
    return None


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        sys.exit(reason)
