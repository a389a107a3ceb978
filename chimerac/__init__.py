"""chimerac: pipeline schedules as text, compiled to verified programs.

The packages of the project are imported below this name. In a checkout chimera_ir, compiler, experiments,
interpreter, models and schedules are symbolic links to the folders beside this one. An installed package has the folders
themselves.
"""

from __future__ import annotations

import os

if os.path.isfile(os.path.join(os.path.dirname(__file__), "compiler")):
    raise ImportError(
        "chimerac/compiler is a file, and should be a symbolic link: this checkout was made without links. "
        "Clone again with `git clone -c core.symlinks=true`, or install a wheel"
    )
