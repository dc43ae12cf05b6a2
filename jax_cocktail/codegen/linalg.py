"""Emits the factorisations of matrices, and solutions of triangular systems, as calls of templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index
from jax_cocktail.codegen.writer import code
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.lapack import workspace


def emit_cholesky(context: Context, operator: UOperator) -> None:
    a = context.array(operator.inputs[0])
    size = operator.output.type.shape[-1]
    with context.result(operator.output) as factor, _each(context, operator) as at:
        call = code("ck_cholesky<{}>({}, {});", size, _matrix(a, at), _from(factor, at))
        context.writer.add(call)


def emit_factors(context: Context, operator: UOperator) -> None:
    """LU or QR: both factors in one matrix, and a vector."""
    a = context.array(operator.inputs[0])
    factors, vector = operator.outputs
    rows, columns = factors.type.shape[-2:]
    with context.result(factors) as x, context.result(vector) as y, _each(context, operator) as at:
        places = [_matrix(a, at), _from(x, at), _from(y, at)]
        context.writer.add(code("ck_{}<{}, {}>({}, {}, {});", operator.kind, rows, columns, *places))


def emit_householder_product(context: Context, operator: UOperator) -> None:
    a, taus = map(context.array, operator.inputs)
    rows, columns = operator.output.type.shape[-2:]
    sizes = rows, columns, operator.inputs[1].type.shape[-1]
    with context.result(operator.output) as x, _each(context, operator) as at:
        places = [_matrix(a, at), _from(taus, at), taus.strides[-1], _from(x, at)]
        call = code("ck_householder_product<{}, {}, {}>({}, {}, {}, {});", *sizes, *places)
        context.writer.add(call)


def emit_triangular_solve(context: Context, operator: UOperator) -> None:
    a, b = map(context.array, operator.inputs)
    rows, columns = operator.output.type.shape[-2:]
    flags = ", ".join(str(operator[name]).lower() for name in ("lower", "unit_diagonal"))
    with context.result(operator.output) as x, _each(context, operator) as at:
        places = [_matrix(a, at), _matrix(b, at), _from(x, at)]
        call = code("ck_triangular_solve<{}, {}, {}>({}, {}, {});", flags, rows, columns, *places)
        context.writer.add(call)


def emit_eigh(context: Context, operator: UOperator) -> None:
    a = context.array(operator.inputs[0])
    vectors, values = operator.outputs
    flags = f"{str(operator['lower']).lower()}, {vectors.type.shape[-1]}"
    scratch = _lapack_scratch(context, operator)
    with context.result(vectors) as v, context.result(values) as w, _each(context, operator) as at:
        places = [_matrix(a, at), _from(v, at), _from(w, at), scratch]
        context.writer.add(code("ck_eigh<{}>({}, {}, {}, {});", flags, *places))


def emit_svd(context: Context, operator: UOperator) -> None:
    """Singular values, and vectors if they are results, too."""
    a = context.array(operator.inputs[0])
    rows, columns = operator.inputs[0].type.shape[-2:]
    scratch = _lapack_scratch(context, operator)
    with ExitStack() as stack:
        results = [stack.enter_context(context.result(v)) for v in operator.outputs]
        at = stack.enter_context(_each(context, operator))
        s, *vectors = (_from(x, at) for x in results)
        counts: tuple[int, ...] = 0, 0
        if vectors:
            counts = operator.outputs[1].type.shape[-1], operator.outputs[2].type.shape[-2]
        places = [_matrix(a, at), s, *(vectors or [s, s]), scratch, str(workspace(operator))]
        sizes = ", ".join(map(str, (rows, columns, *counts)))
        context.writer.add(code("ck_svd<{}>({}, {}, {}, {}, {}, {});", sizes, *places))


def _lapack_scratch(context: Context, operator: UOperator) -> Expression:
    """The memory for a call of LAPACK. Raises UnsupportedError on a GPU."""
    if context.target.has_threads:
        raise UnsupportedError(f"{operator.kind}: a GPU program has no template for it")
    context.needs.add("lapack")
    return context.scratch(operator.inputs[0].type.dtype)


@contextmanager
def _each(context: Context, operator: UOperator) -> Iterator[Sequence[Index]]:
    """Loops over the matrices of a batch. Yields the indices of one."""
    context.needs.add("linalg")
    with context.writer.nest(operator.inputs[0].type.shape[:-2]) as indices:
        yield indices
        context.fence()


def _from(array: ArrayView, at: Sequence[Index]) -> Expression:
    """The pointer to the part of an array with these leading indices."""
    place = array.base.along(at, array.strides[: len(at)])
    return array.pointer if place == Index() else code("{} + {}", array.pointer, place)


def _matrix(array: ArrayView, at: Sequence[Index]) -> Expression:
    """A matrix as arguments of a template: pointer and strides."""
    return code("{}, {}, {}", _from(array, at), *array.strides[-2:])


EMITTERS: dict[str, Emitter] = {
    "cholesky": emit_cholesky,
    "eigh": emit_eigh,
    "geqrf": emit_factors,
    "householder_product": emit_householder_product,
    "lu": emit_factors,
    "singular_values": emit_svd,
    "svd": emit_svd,
    "triangular_solve": emit_triangular_solve,
}
