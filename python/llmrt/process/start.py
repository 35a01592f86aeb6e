"""How a module of llmrt runs in a process of its own: the command for it, and the script that the command runs.

``python -m`` would put the working directory before all else that modules are imported from. A folder with a model in
it, which somebody else has filled, must not bring code into a server that is started there.
"""

import runpy
import sys


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module`` as its main module, with ``arguments``."""
    return [sys.executable, __file__, module, *arguments]


if __name__ == "__main__":
    # Before PYTHONPATH comes the folder of this file, whose modules have a package, unless Python left it out itself.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    # The module finds its arguments where it would behind -m.
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
