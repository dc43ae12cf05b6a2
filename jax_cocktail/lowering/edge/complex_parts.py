"""Control flow on complex numbers, rewritten for their real and imaginary parts.

A loop or branch becomes the same one on pairs of real arrays, between equations that split its operands and
join its results. It is traced again for that, so derivatives and `vmap` come before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import source_info_util

from jax_cocktail.primitives.jaxprs import (
    equations_in,
    interpret,
    nested_jaxprs,
    once,
    open_jaxpr,
    scan_counts,
)


class Complex(NamedTuple):
    """A complex value as two real ones."""

    re: Any
    im: Any


class Calls(Protocol):
    """The knowledge of calls that `adapter.Calls` has."""

    def body(self, equation: Any) -> Any | None: ...

    def arguments(self, body: Any, operands: Sequence[Any]) -> Sequence[Any]: ...


def can_split(equation: Any, calls: Calls) -> bool:
    """True if an equation, or one inside it, has complex operands or results and a rule for their parts.

    It is false for what `on_parts` makes, which may still hold complex numbers for other primitives.
    """
    if not _holds_complex(equation):
        return False
    if equation.primitive.name in _CONTROL:
        bodies = list(nested_jaxprs(equation))
        if _touches_complex(equation):
            return True
    elif (body := calls.body(equation)) is not None:
        bodies = [body]
    else:
        return equation.primitive.name in _WITH_RULE
    return any(can_split(inner, calls) for body in bodies for inner in open_jaxpr(body).eqns)


def _holds_complex(equation: Any) -> bool:
    return _touches_complex(equation) or any(map(_has_complex, nested_jaxprs(equation)))


@once
def _has_complex(jaxpr: Any) -> bool:
    return any(map(_holds_complex, open_jaxpr(jaxpr).eqns))


def _touches_complex(equation: Any) -> bool:
    return any(map(is_complex, (*equation.invars, *equation.outvars)))


def is_complex(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, np.complexfloating))


def on_parts(equation: Any, calls: Calls, operands: Sequence[Any]) -> list[Any]:
    """The results of a loop or branch, computed on parts. Other primitives get whole numbers."""
    found = _Interpreter(calls).control(equation, _split(equation.invars, operands))
    return _joined(found)


def operations_on_complex(jaxpr: Any) -> Iterator[str]:
    """The primitives of a jaxpr that still get or make complex numbers, besides those that split and join."""
    for equation in equations_in(jaxpr):
        name = str(equation.primitive.name)
        if name not in ("real", "imag", "complex", *_CONTROL) and _holds_complex(equation):
            yield name


def _split(atoms: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    pairs = zip(atoms, values, strict=True)
    return [Complex(lax.real(x), lax.imag(x)) if is_complex(atom) else x for atom, x in pairs]


def _joined(values: Iterable[Any]) -> list[Any]:
    return [lax.complex(*x) if isinstance(x, Complex) else x for x in values]


class _Interpreter:
    """Runs jaxprs on tracers, with parts in place of complex values."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def run(self, jaxpr: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
        return interpret(jaxpr, operands, _constant, self._apply)

    def _apply(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        with equation.ctx.manager, source_info_util.user_context(equation.source_info.traceback):
            if not _holds_complex(equation):
                return _bind(equation, operands)
            if equation.primitive.name in _CONTROL and equation.params.get("branches_platforms") is None:
                return self.control(equation, operands)
            body = self._calls.body(equation)
            if body is not None:
                return self.run(body, self._calls.arguments(body, operands))
            return _on_parts(equation, operands)

    def control(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return _CONTROL[equation.primitive.name](self, equation.params, operands)

    def _while(self, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

        def active(carried: Sequence[Any]) -> Any:
            return self.run(params["cond_jaxpr"], [*operands[:first], *carried])[0]

        def body(carried: Sequence[Any]) -> tuple[Any, ...]:
            following = self.run(params["body_jaxpr"], [*operands[first:second], *carried])
            if not batched:
                return following
            which = active(carried)  # a batch element that is done keeps its values

            def choose(new: Any, old: Any) -> Any:
                return jnp.where(which.reshape(which.shape + (1,) * (new.ndim - batched)), new, old)

            return jax.tree.map(choose, following, carried)

        batched = len(open_jaxpr(params["cond_jaxpr"]).outvars[0].aval.shape)
        start = tuple(operands[second:])
        found: Sequence[Any] = lax.while_loop(lambda carried: jnp.any(active(carried)), body, start)
        return found

    def _scan(self, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        first, carries = scan_counts(params)
        second = first + carries

        def step(carried: Sequence[Any], xs: Sequence[Any]) -> tuple[Any, Any]:
            found = self.run(params["jaxpr"], [*operands[:first], *carried, *xs])
            return found[:carries], found[carries:]

        start, xs = tuple(operands[first:second]), tuple(operands[second:])
        carried, stacked = lax.scan(step, start, xs, params["length"], params["reverse"])
        return [*carried, *stacked]

    def _cond(self, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        def side(branch: Any) -> Callable[..., Any]:
            return lambda *values: self.run(branch, values)

        index, *values = operands
        found: Sequence[Any] = lax.switch(index, [side(branch) for branch in params["branches"]], *values)
        return found


_CONTROL = {"while": _Interpreter._while, "scan": _Interpreter._scan, "cond": _Interpreter._cond}


def _constant(atom: Any, value: Any) -> Any:
    if not is_complex(atom):
        return value
    array = np.asarray(value, atom.aval.dtype)
    return Complex(jnp.asarray(array.real), jnp.asarray(array.imag))


def _bind(equation: Any, operands: Iterable[Any], whole: bool = False) -> Sequence[Any]:
    """Applies the equation's primitive to parts, or to whole numbers."""
    params = equation.primitive.get_bind_params(equation.params)
    if not whole:
        params = {name: _real_dtype(value) for name, value in params.items()}
    found: Any = equation.primitive.bind(*operands, **params)
    return found if equation.primitive.multiple_results else [found]


def _real_dtype(param: Any) -> Any:
    """The dtype of the parts, if a parameter is a complex dtype."""
    return np.finfo(param).dtype if isinstance(param, np.dtype) and param.kind == "c" else param


def _on_parts(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Applies a primitive without a body to operands of which some are complex."""
    name = equation.primitive.name
    if name in _BY_PARTS or name in _SCATTERS:
        apply = _bind if name in _BY_PARTS else _scatter
        parts = ([x[part] if isinstance(x, Complex) else x for x in operands] for part in (0, 1))
        pairs = zip(equation.outvars, *(apply(equation, part) for part in parts), strict=True)
        return [Complex(re, im) if is_complex(out) else re for out, re, im in pairs]
    if name == "complex":
        return [Complex(*jnp.broadcast_arrays(*operands))]
    values = [x if isinstance(x, Complex) else Complex(x, jnp.zeros_like(x)) for x in operands]
    if name in _BILINEAR:
        x, y = values
        return [_product(x, y, lambda x, y: _bind(equation, (x, y))[0])]
    if name == "integer_pow":
        return [_power(values[0], equation.params["y"])]
    if name == "convert_element_type":
        dtype = _real_dtype(equation.params["new_dtype"])
        whole = Complex(*(lax.convert_element_type(part, dtype) for part in values[0]))
        return [whole if is_complex(equation.outvars[0]) else whole.re]
    if name in _FORMULAS:
        return [_FORMULAS[name](*values)]
    return _split(equation.outvars, _bind(equation, _joined(operands), whole=True))


# Primitives that do the same with both parts, and whose other operands are indices and predicates.
_BY_PARTS = frozenset(
    ("neg", "add", "sub", "add_any", "select_n", "copy", "copy_p", "empty", "empty2", "optimization_barrier")
    + (
        "device_put",
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "rev",
        "slice",
        "split",
        "pad",
    )
    + ("dynamic_slice", "dynamic_update_slice", "concatenate", "gather", "reduce_sum", "cumsum")
    + ("stack", "unstack", "tile", "reduce_window_sum", "name", "stop_gradient")
    + ("pvary", "pcast", "sharding_constraint", "reshard", "mesh_cast", "layout_constraint")
)
_SCATTERS = {"scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub}
_BILINEAR = frozenset(("mul", "dot_general", "conv_general_dilated"))


def _scatter(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Without the equation's jaxpr of one update, which is on complex numbers."""
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    return [_SCATTERS[equation.primitive.name](*operands, **{n: equation.params[n] for n in names})]


def _product(x: Complex, y: Complex, times: Callable[[Any, Any], Any] = jnp.multiply) -> Complex:
    return Complex(times(x.re, y.re) - times(x.im, y.im), times(x.re, y.im) + times(x.im, y.re))


def _power(x: Complex, exponent: int) -> Complex:
    """By repeated squaring. Nothing is multiplied by one: infinite parts would become NaN."""
    one = Complex(jnp.ones_like(x.re), jnp.zeros_like(x.re))
    result = None
    for bit in bin(abs(exponent))[:1:-1]:
        if bit == "1":
            result = x if result is None else _product(result, x)
        x = _product(x, x)
    result = result or one
    return result if exponent >= 0 else _quotient(one, result)


def _square(x: Complex) -> Complex:
    even = jnp.isfinite(x.re) & (jnp.abs(x.re) == jnp.abs(x.im))
    return Complex(jnp.where(even, 0, (x.re - x.im) * (x.re + x.im)), 2 * (x.re * x.im))


def _quotient(x: Complex, y: Complex) -> Complex:
    """Divides by the larger part first, so that nothing overflows that need not (Smith, 1962)."""
    wide = jnp.abs(y.re) >= jnp.abs(y.im)
    large, small = jnp.where(wide, y.re, y.im), jnp.where(wide, y.im, y.re)
    first, second = jnp.where(wide, x.re, x.im), jnp.where(wide, x.im, x.re)
    ratio = small / large
    scale = large + small * ratio
    re, im = (first + second * ratio) / scale, (second - first * ratio) / scale
    zero = (y.re == 0) & (y.im == 0)
    im = jnp.where(wide, im, -im)
    plain = Complex(jnp.where(zero, x.re / y.re, re), jnp.where(zero, x.im / y.re, im))
    # If both parts are NaN and one of both numbers is infinite, the directions of its infinite parts count.
    lost = jnp.isnan(plain.re) & jnp.isnan(plain.im)
    over, under = _either(jnp.isinf, x), _either(jnp.isinf, y)
    limit = lost & ((over & ~_either(_unbounded, y)) | (under & ~_either(_unbounded, x)))
    (a, b), (c, d) = _directed(x, over), _directed(y, under)
    size = jnp.where(over, jnp.inf, 0).astype(x.re.dtype)
    found = Complex(size * (a * c + b * d), size * (b * c - a * d))
    return Complex(*(jnp.where(limit, new, old) for new, old in zip(found, plain, strict=True)))


def _either(test: Callable[[Any], Any], x: Complex) -> Any:
    return test(x.re) | test(x.im)


def _unbounded(part: Any) -> Any:
    return ~jnp.isfinite(part)


def _directed(x: Complex, infinite: Any) -> Complex:
    """The parts; of an infinite number, 1 or -1 for an infinite part and 0 for the other one."""
    ends = (jnp.copysign(jnp.isinf(part).astype(part.dtype), part) for part in x)
    return Complex(*(jnp.where(infinite, end, part) for end, part in zip(ends, x, strict=True)))


def _size(x: Complex) -> Any:
    """The absolute value, without squares that overflow."""
    large, small = jnp.maximum(*map(jnp.abs, x)), jnp.minimum(*map(jnp.abs, x))
    plain = (large == 0) | jnp.isinf(large)
    return jnp.where(plain, large, large * jnp.sqrt(1 + (small / jnp.where(plain, 1, large)) ** 2))


def _sign(x: Complex) -> Complex:
    size = _size(x)
    return Complex(*(jnp.where(size == 0, part, part / size) for part in x))


def _exp(x: Complex) -> Complex:
    """In two halves where the absolute value overflows, since the parts need not."""
    whole, half = jnp.exp(x.re), jnp.exp(x.re / 2)
    first, second = (jnp.where(jnp.isinf(whole), *pair) for pair in ((half, whole), (half, 1)))
    return Complex(first * jnp.cos(x.im) * second, jnp.where(x.im == 0, 0, first * jnp.sin(x.im) * second))


def _sin(x: Complex) -> Complex:
    re, im = jnp.sin(x.re) * jnp.cosh(x.im), jnp.cos(x.re) * jnp.sinh(x.im)
    return Complex(jnp.where(x.re == 0, 0, re), im)


def _cos(x: Complex) -> Complex:
    re, im = jnp.cos(x.re) * jnp.cosh(x.im), -jnp.sin(x.re) * jnp.sinh(x.im)
    return Complex(re, jnp.where(x.re == 0, 0, im))


def _sqrt(x: Complex) -> Complex:
    """The root in the right half plane. XLA takes a negative zero below the cut for a positive one."""
    root = jnp.sqrt(_size(x) / 2 + jnp.abs(x.re) / 2)
    other = jnp.where(root == 0, 0, jnp.abs(x.im) / (2 * jnp.where(root == 0, 1, root)))
    high = jnp.isinf(x.im) & ~jnp.isnan(x.re)
    root, other = (jnp.where(high, jnp.inf, part) for part in (root, other))
    re, im = jnp.where(x.re >= 0, root, other), jnp.where(x.re >= 0, other, root)
    return Complex(re, jnp.where(x.im < 0, -im, im))


_FORMULAS: Mapping[str, Callable[..., Any]] = {
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "conj": lambda x: Complex(x.re, -x.im),
    "eq": lambda x, y: (x.re == y.re) & (x.im == y.im),
    "ne": lambda x, y: (x.re != y.re) | (x.im != y.im),
    "abs": _size,
    "sign": _sign,
    "square": _square,
    "div": _quotient,
    "exp": _exp,
    "log": lambda x: Complex(jnp.log(_size(x)), jnp.arctan2(x.im, x.re)),
    "sqrt": _sqrt,
    "sin": _sin,
    "cos": _cos,
}
_WITH_RULE = ({*_BY_PARTS, *_SCATTERS, *_BILINEAR, *_FORMULAS, "integer_pow", "convert_element_type"}) - {
    "real",
    "imag",
}
