"""Emits the factorisations of matrices, and solutions of triangular systems, as calls of templates, ours
or those that call LAPACK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.lapack import calls_lapack, workspace


def emit_cholesky(context: Context, operator: UOperator) -> None:
    a = context.array(operator.inputs[0])
    size, (name, *scratch) = operator.output.type.shape[-1], _template(context, operator)
    with context.result(operator.output) as factor, _each(context, operator) as at:
        _add_call(context, name, [size], [_matrix(a, at), _from(factor, at), *scratch])


def emit_factors(context: Context, operator: UOperator) -> None:
    """LU or QR: both factors in one matrix, and a vector."""
    a = context.array(operator.inputs[0])
    factors, vector = operator.outputs
    name, *scratch = _template(context, operator)
    with context.result(factors) as x, context.result(vector) as y, _each(context, operator) as at:
        places = [_matrix(a, at), _from(x, at), _from(y, at), *scratch]
        _add_call(context, name, factors.type.shape[-2:], places)


def emit_householder_product(context: Context, operator: UOperator) -> None:
    a, taus = map(context.array, operator.inputs)
    rows, columns = operator.output.type.shape[-2:]
    sizes, (name, *scratch) = (rows, columns, operator.inputs[1].type.shape[-1]), _template(context, operator)
    with context.result(operator.output) as x, _each(context, operator) as at:
        places = [_matrix(a, at), _from(taus, at), str(taus.strides[-1]), _from(x, at), *scratch]
        _add_call(context, name, sizes, places)


def emit_triangular_solve(context: Context, operator: UOperator) -> None:
    a, b = map(context.array, operator.inputs)
    flags = [str(operator[name]).lower() for name in ("lower", "unit_diagonal")]
    name, *scratch = _template(context, operator)
    with context.result(operator.output) as x, _each(context, operator) as at:
        places = [_matrix(a, at), _matrix(b, at), _from(x, at), *scratch]
        _add_call(context, name, [*flags, *operator.output.type.shape[-2:]], places)


def emit_eigh(context: Context, operator: UOperator) -> None:
    a = context.array(operator.inputs[0])
    vectors, values = operator.outputs
    lower, (name, *scratch) = str(operator["lower"]).lower(), _template(context, operator)
    with context.result(vectors) as v, context.result(values) as w, _each(context, operator) as at:
        places = [_matrix(a, at), _from(v, at), _from(w, at), *scratch]
        _add_call(context, name, [lower, vectors.type.shape[-1]], places)


def emit_svd(context: Context, operator: UOperator) -> None:
    """Singular values, and vectors if they are results, too."""
    a = context.array(operator.inputs[0])
    counts = [0, 0]
    if len(operator.outputs) > 1:
        counts = [operator.outputs[1].type.shape[-1], operator.outputs[2].type.shape[-2]]
    parameters = [*operator.inputs[0].type.shape[-2:], *counts]
    _, scratch = _template(context, operator)
    with ExitStack() as stack:
        results = [stack.enter_context(context.result(v)) for v in operator.outputs]
        at = stack.enter_context(_each(context, operator))
        s, *vectors = (_from(x, at) for x in results)
        places = [_matrix(a, at), s, *(vectors or [s, s]), scratch, str(workspace(operator))]
        _add_call(context, "ck_lapack_svd", parameters, places)


def _template(context: Context, operator: UOperator) -> list[Expression]:
    """The name of the template, and the scratch memory that it takes if it calls LAPACK. Raises
    UnsupportedError on a GPU."""
    if not calls_lapack(operator):
        context.needs.add("linalg")
        return [f"ck_{operator.kind}"]
    if context.target.has_threads:
        raise UnsupportedError(f"{operator.kind}: a GPU program has no template for it")
    context.needs.add("lapack")
    return [f"ck_lapack_{operator.kind}", context.scratch(operator.inputs[0].type.dtype)]


def _add_call(
    context: Context, name: Expression, parameters: Sequence[int | str], places: Sequence[Expression]
) -> None:
    arguments = ", ".join(map(str, parameters))
    context.writer.add(code("{}<{}>({});", name, arguments, joined(", ", places)))


@contextmanager
def _each(context: Context, operator: UOperator) -> Iterator[Sequence[Index]]:
    """Loops over the matrices of a batch. Yields the indices of one."""
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
