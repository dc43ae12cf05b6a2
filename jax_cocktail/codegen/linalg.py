"""Emits the factorisations of matrices, and solutions of triangular systems, as calls of templates, ours
or those that call LAPACK."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.lapack import calls_lapack, workspace


def _size(operator: UOperator) -> list[int | str]:
    return [operator.outputs[0].type.shape[-1]]


def _sizes(operator: UOperator) -> list[int | str]:
    return [*operator.outputs[0].type.shape[-2:]]


def _flags(operator: UOperator) -> list[int | str]:
    return [str(value).lower() for _, value in operator.attributes]


def _factored(operator: UOperator) -> list[int | str]:
    """Rows and columns, and the columns of left and the rows of right vectors, 0 without them."""
    vectors = [v.type.shape for v in operator.outputs[1:]]
    counts = [vectors[0][-1], vectors[1][-2]] if vectors else [0, 0]
    return [*operator.inputs[0].type.shape[-2:], *counts]


# The arguments of a kind's template before those of its call.
_PARAMETERS: dict[str, Callable[[UOperator], list[int | str]]] = {
    "cholesky": _size,
    "eigh": lambda operator: [*_flags(operator), *_size(operator)],
    "geqrf": _sizes,
    "householder_product": lambda operator: [*_sizes(operator), operator.inputs[1].type.shape[-1]],
    "lu": _sizes,
    "singular_values": _factored,
    "svd": _factored,
    "triangular_solve": lambda operator: [*_flags(operator), *_sizes(operator)],
}


def _emit(context: Context, operator: UOperator) -> None:
    """The call takes the operands, with their strides, then the results, then scratch memory."""
    arrays, parameters = [context.array(v) for v in operator.inputs], _PARAMETERS[operator.kind]
    name, *scratch = _template(context, operator)
    with ExitStack() as stack:
        results = [stack.enter_context(context.result(v)) for v in operator.outputs]
        at = stack.enter_context(_each(context, operator))
        places = [_from(x, at) for x in results]
        if parameters is _factored:  # one template for both kinds; values stand for vectors
            places = places * (3 // len(places))
            name, scratch = "ck_lapack_svd", [*scratch, str(workspace(operator))]
        operands = [_operand(x, at) for x in arrays]
        arguments = ", ".join(map(str, parameters(operator)))
        context.writer.add(code("{}<{}>({});", name, arguments, joined(", ", [*operands, *places, *scratch])))


def _template(context: Context, operator: UOperator) -> list[Expression]:
    """The name of the template, and the scratch memory that it takes if it calls LAPACK. Raises
    UnsupportedError on a GPU."""
    if not calls_lapack(operator):
        context.needs |= {"linalg", "block"}
        return [f"ck_{operator.kind}"]
    if context.target.has_threads:
        raise UnsupportedError(f"{operator.kind}: a GPU program has no template for it")
    context.needs.add("lapack")
    return [f"ck_lapack_{operator.kind}", context.scratch(operator.inputs[0].type.dtype)]


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


def _operand(array: ArrayView, at: Sequence[Index]) -> Expression:
    """A part as arguments of a template: pointer and strides."""
    return joined(", ", [_from(array, at), *map(str, array.strides[len(at) :])])


EMITTERS: dict[str, Emitter] = dict.fromkeys(_PARAMETERS, _emit)
