"""The operators that call LAPACK, and the memory that it needs."""

from __future__ import annotations

from math import prod

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import ITEM_SIZE

LARGEST = 8192  # rows and columns: LAPACK counts the elements of its workspace in 32 bits
_BLOCK = 64  # the most columns that it takes together


def calls_lapack(operator: UOperator) -> bool:
    """True if the matrix is larger than the operator's template is for."""
    largest = operator.facts.largest
    return largest is not None and max(operator.inputs[0].type.shape[-2:]) > largest


def workspace(operator: UOperator) -> int:
    """The floating-point elements of LAPACK's workspace: no fewer than it asks for."""
    rows, columns = operator.inputs[0].type.shape[-2:]
    if operator.kind == "eigh":
        return 1 + 6 * rows + 2 * rows * rows
    least, most = sorted((rows, columns))
    vectors = 4 * least * least if operator.kind == "svd" else 0
    return vectors + 8 * least + most + _BLOCK * (rows + columns)  # enough for all others


def lapack_bytes(operator: UOperator) -> int:
    """The bytes that a call needs: copies of the matrices of one batch element, and workspaces."""
    a = operator.inputs[0].type
    matrices = [a, *(v.type for v in operator.outputs if v.type.rank == a.rank)]
    elements = sum(prod(matrix.shape[-2:]) for matrix in matrices) + workspace(operator)
    integers = 8 * max(a.shape[-2:]) + 8
    return ITEM_SIZE[a.dtype] * elements + 4 * integers
