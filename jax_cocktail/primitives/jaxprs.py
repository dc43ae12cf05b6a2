"""Reads jaxprs of jax 0.10.2, 0.11 and 0.12, which differ.

`scan` has counts or a tree of its operands; `ClosedJaxpr` is a class or an alias of `Jaxpr`; calls store
their body under several names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.extend.core as jex

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")  # the parameter differs by primitive and by release


def open_jaxpr(jaxpr: Any) -> Any:
    """The open jaxpr inside a closed one (jax < 0.11), or the jaxpr itself."""
    return jaxpr if isinstance(jaxpr, jex.Jaxpr) else jaxpr.jaxpr


def constants(jaxpr: Any) -> tuple[Any, ...]:
    return tuple(getattr(jaxpr, "consts", ()))


def nested_jaxprs(equation: Any) -> Iterator[Any]:
    """All jaxprs among the parameters of an equation."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if _is_jaxpr(item):
                yield item


def call_body(params: Mapping[str, Any]) -> Any | None:
    """The body of a call equation with these parameters; None if there is none."""
    return next((params[name] for name in _BODIES if name in params), None)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of constants and of carries among a scan's operands."""
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    constant, carried, _ = params["ft_in"].unpack()
    return len(constant), len(carried)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
