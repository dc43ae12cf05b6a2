"""Makes the arguments of rows of a pack on the host: python -m benchmarks.gpu.inputs PACK FOLDER ROW...

It imports jax, which what uses the card does not; it runs beside it. A row whose arguments cannot be
made has a file with the reason.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.packed import Pack, Row, file_name
from benchmarks.gpu.pool import end_with_parent
from benchmarks.gpu.rows import ROWS


def make(row: Row, folder: Path, small: bool) -> None:
    """Writes the arguments that are operands: ``argument N`` in ROW.npz."""
    path, arrays = folder / f"{file_name(row.name)}.npz", dict[str, Any]()
    leaves = jax.tree.leaves(ROWS[row.name].make(small)[1])
    for number in {operand.argument for operand in row.operands} - {-1}:
        arrays[f"argument {number}"] = np.asarray(leaves[number])
    with open(path.with_suffix(".new"), "wb") as file:
        np.savez(file, **arrays)
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    end_with_parent()
    pack, folder = Pack(Path(sys.argv[1])), Path(sys.argv[2])
    for name in sys.argv[3:]:
        try:
            row = pack.row(name)
            assert row is not None
            make(row, folder, pack.facts["small"])
        except Exception as error:  # the other rows have theirs
            words = f"{type(error).__name__}: {error}"
            path = folder / f"{file_name(name)}.error"
            path.with_suffix(".words").write_text(words, encoding="utf-8")
            os.replace(path.with_suffix(".words"), path)


if __name__ == "__main__":
    main()
