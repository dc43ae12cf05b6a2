"""One operator of every kind, small, with an input for each operand (no jax)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.operators import KINDS
from tests.null.programs import build, tensor

FLOAT, INT, UINT = "float32[4,6]", "int32[4,6]", "uint32[4,6]"


@dataclass(frozen=True)
class Sample:
    """An operator: types of its operands and results, attributes; `indices`: operands that are indices."""

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.operands)})"

    def program(self) -> Any:
        outputs = [(t.dtype, t.shape) for t in map(tensor, self.results)]
        attributes = dict(self.attributes)
        return build(self.operands, lambda b, *values: b.emit_many(self.kind, values, outputs, **attributes))

    def operator(self) -> UOperator:
        (operator,) = self.program().entry.body
        assert isinstance(operator, UOperator)
        return operator


def sample(kind: str, operands: str, results: str, **attributes: Any) -> Sample:
    return Sample(kind, tuple(operands.split()), tuple(results.split()), tuple(attributes.items()))


def _elementwise() -> Iterator[Sample]:
    special = {
        "integer_pow": {"exponent": 3},
        "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 10},
        "threefry2x32": {"word": 1},
    }
    for name, kind in KINDS.items():
        if kind.sort != "elementwise":
            continue
        of = INT if kind.takes in ("bits", "integers") else UINT if name == "threefry2x32" else FLOAT
        operands = [of] * (kind.arity or 0)
        if name == "select":
            operands[0] = "bool[4,6]"
        result = "bool[4,6]" if kind.gives == "bool" else INT if name in ("convert", "bitcast") else of
        yield sample(name, " ".join(operands), result, **special.get(name, {}))


def _movement() -> Iterator[Sample]:
    yield sample("copy", FLOAT, FLOAT)
    yield sample("constant", "", "int32[4,6]", data=np.arange(24, dtype="<i4").tobytes())
    yield sample("constant", "", "int32[4,6]", data=np.tile(np.arange(6, dtype="<i4"), 4).tobytes())
    for dtype in ("int64", "int32", "float32", "uint8", "bfloat16"):
        yield sample("iota", "", f"{dtype}[4,6]", dimension=1)
    yield sample("broadcast", "float32[4,1]", "float32[2,4,6]", dimensions=(1, 2))
    yield sample("broadcast", "float32[6,4]", "float32[4,2,6]", dimensions=(2, 0))
    for shapes in ("4,6 24", "24 4,6", "2,6,4 6,2,4", "4,1,6 1,4,6", "6,4 4,6", "2,3,4 2,12", "4,6 4,2,3"):
        source, target = shapes.split()
        yield sample("reshape", f"float32[{source}]", f"float32[{target}]")
    yield sample("transpose", "float32[2,4,6]", "float32[6,2,4]", permutation=(2, 0, 1))
    yield sample("slice", "float32[4,6]", "float32[4,2]", starts=(0, 1), strides=(1, 3))
    yield sample("reverse", FLOAT, FLOAT, dimensions=(1,))
    yield sample("pad", "float32[4,6] float32[]", "float32[4,9]", low=(0, -1), interior=(0, 0))
    yield sample("pad", "float32[4,6] float32[]", "float32[7,6]", low=(0, 0), interior=(1, 0))
    yield sample("concatenate", "float32[4,2] float32[4,6]", "float32[4,8]", dimension=1)
    yield sample("dynamic_slice", "float32[4,6] int32[] int32[]", "float32[4,2]")
    yield sample("dynamic_update_slice", "float32[4,6] float32[4,2] int32[] int32[]", FLOAT)


def _gather(operands: str, result: str, **changes: Any) -> Sample:
    defaults: dict[str, Any] = {
        "collapsed_slice_dims": (),
        "fill_value": np.float32(7).tobytes(),
        "mode": "fill",
        "offset_dims": (),
        "operand_batching_dims": (),
        "slice_sizes": (),
        "start_index_map": (),
        "start_indices_batching_dims": (),
    }
    return sample("gather", operands, result, **(defaults | changes))


def _scatter(operands: str, **changes: Any) -> Sample:
    defaults: dict[str, Any] = {
        "inserted_window_dims": (),
        "mode": "fill_or_drop",
        "op": "add",
        "operand_batching_dims": (),
        "scatter_dims_to_operand_dims": (),
        "scatter_indices_batching_dims": (),
        "update_window_dims": (),
    }
    return sample("scatter", operands, operands.split()[0], **(defaults | changes))


def _indexing() -> Iterator[Sample]:
    rows = {"collapsed_slice_dims": (0,), "start_index_map": (0,)}
    for mode in ("fill", "clip", "promise_in_bounds"):
        yield _gather(
            "float32[5,4] int32[6,1]", "float32[6,4]", offset_dims=(1,), slice_sizes=(1, 4), mode=mode, **rows
        )
    yield _gather("float32[5,4] int32[6,1]", "float32[6,3]", offset_dims=(1,), slice_sizes=(1, 3), **rows)
    yield _gather(
        "float32[5,4] int32[6,2]", "float32[4,6]", offset_dims=(0,), slice_sizes=(1, 4),
        collapsed_slice_dims=(0,), start_index_map=(0, 1),
    )  # fmt: skip
    batched = {"operand_batching_dims": (0,), "start_indices_batching_dims": (1,)}
    yield _gather(
        "float32[6,5,4] int32[2,6,1]", "float32[2,6,4]", offset_dims=(2,), slice_sizes=(1, 1, 4),
        collapsed_slice_dims=(1,), start_index_map=(1,), **batched,
    )  # fmt: skip
    rows = {"inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)}
    for op in ("add", "set", "max"):
        yield _scatter("float32[5,4] int32[6,1] float32[6,4]", update_window_dims=(1,), op=op, **rows)
    yield _scatter("float32[5,4] int32[6,1] float32[6,3]", update_window_dims=(1,), **rows)
    yield _scatter(
        "float32[6,5,4] int32[2,6,1] float32[2,6,4]", update_window_dims=(2,), inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(1,),
    )  # fmt: skip


def _conv(operands: str, result: str, **changes: Any) -> Sample:
    defaults: dict[str, Any] = {
        "batch_group_count": 1,
        "feature_group_count": 1,
        "lhs_dilation": (1,),
        "lhs_spec": (0, 2, 1),
        "out_spec": (0, 2, 1),
        "padding": ((1, 1),),
        "rhs_dilation": (1,),
        "rhs_spec": (2, 1, 0),
        "window_strides": (1,),
    }
    return sample("conv", operands, result, **(defaults | changes))


def _contraction() -> Iterator[Sample]:
    axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
    yield sample("dot", "float32[4,3] float32[3,6]", "float32[4,6]", **axes)
    yield sample("dot", "float32[4,3] float32[3,2,6]", "float32[4,2,6]", **axes)
    axes = {"lhs_batch": (1,), "lhs_contract": (2,), "rhs_batch": (2,), "rhs_contract": (0,)}
    yield sample("dot", "int32[4,2,3] int32[3,6,2]", "int32[2,4,6]", **axes)
    yield _conv("float32[4,5,2] float32[3,2,6]", "float32[4,5,6]")
    yield _conv("float32[4,5,8] float32[3,2,12]", "float32[4,5,12]", feature_group_count=4)
    yield _conv("float32[4,5,2] float32[3,2,6]", "float32[2,5,6]", batch_group_count=2)
    spec = (0, 1, 2)
    yield _conv(
        "float32[4,2,5] float32[6,2,3]", "float32[4,6,5]", lhs_spec=spec, rhs_spec=spec, out_spec=spec
    )


def _reduction() -> Iterator[Sample]:
    yield sample("reduce", "float32[4,3,6]", "float32[4,6]", axes=(1,), op="sum")
    yield sample("arg_reduce", "float32[4,3,6]", "int32[4,6]", axis=1, op="max")
    yield sample("cumulative", FLOAT, FLOAT, axis=0, op="sum", reverse=True)
    yield sample("sort", f"{FLOAT} {INT}", f"{FLOAT} {INT}", dimension=1, num_keys=1)
    yield sample("top_k", FLOAT, "float32[4,2] int32[4,2]", axis=1, k=2)
    ones = (1, 1, 1)
    yield sample(
        "reduce_window", "float32[4,5,6]", "float32[4,3,3]", base_dilation=ones, op="max", strides=(1, 2, 2),
        padding=((0, 0), (1, 1), (0, 0)), window=(1, 3, 1), window_dilation=ones,
    )  # fmt: skip
    yield sample(
        "select_and_scatter_add", "float32[4,2,6] float32[4,4,6]", "float32[4,4,6]", select="ge",
        padding=((0, 0),) * 3, strides=(1, 2, 1), window=(1, 2, 1),
    )  # fmt: skip


def _linalg() -> Iterator[Sample]:
    yield sample("cholesky", "float32[2,6,6]", "float32[2,6,6]")
    yield sample("lu", "float32[2,6,4]", "float32[2,6,4] int32[2,4]")
    yield sample("geqrf", "float32[2,6,4]", "float32[2,6,4] float32[2,4]")
    yield sample("householder_product", "float32[2,6,4] float32[2,3]", "float32[2,6,4]")
    yield sample("singular_values", "float32[2,6,4]", "float32[2,4]")
    yield sample("svd", "float32[2,6,4]", "float32[2,4] float32[2,6,4] float32[2,4,4]")
    for lower in (True, False):
        yield sample("eigh", "float32[2,6,6]", "float32[2,6,6] float32[2,6]", lower=lower)
        yield sample(
            "triangular_solve", "float32[2,6,6] float32[2,6,4]", "float32[2,6,4]", lower=lower,
            unit_diagonal=not lower,
        )  # fmt: skip


SAMPLES: tuple[Sample, ...] = (
    *_elementwise(),
    *_movement(),
    *_indexing(),
    *_contraction(),
    *_reduction(),
    *_linalg(),
    sample("empty", "", "float32[4,6]"),
)
