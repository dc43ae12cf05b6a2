"""Names of a notebook's cells, as in tracebacks of IPython, in place of those of temporary files."""

from __future__ import annotations

import sys

_files: dict[str, str] = {}  # by the name of a cell


def shown(file: str) -> str:
    """``In[3]`` for the file of a cell that this process has run; any other name as it is."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    if label is None:
        return file
    name = str(label[1])
    return name if _files.setdefault(name, file) == file else file  # cells without a history share a number


def file_of(name: str) -> str:
    """The file of a cell with this name, by which `linecache` has its text; any other name as it is."""
    return _files.get(name, name)
