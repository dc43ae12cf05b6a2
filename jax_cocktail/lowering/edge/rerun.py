"""The equations after a custom call: its messages, and the second run after a side exit.

If the exit flag is set, stock XLA runs the region again; else the messages in the log are made. Nothing of a
region is traced again, so sources, contexts, manual axes and effects do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.primitives.jaxprs import constants, open_jaxpr
from jax_cocktail.primitives.messages import Log


@dataclass(frozen=True, eq=False, slots=True)
class Rewritten:
    """A marked jaxpr with custom calls, and the variables that hold their exit flags and, of traced programs,
    their rings of stamps."""

    jaxpr: Any
    flags: tuple[Any, ...]
    rings: tuple[Any, ...] = ()

    def with_rings(self) -> Any:
        """The jaxpr that returns the rings as well, after its results."""
        opened = open_jaxpr(self.jaxpr)
        outer = opened.replace(outvars=[*opened.outvars, *self.rings])
        return jex.ClosedJaxpr(outer, list(constants(self.jaxpr)))

    def only_flags(self) -> Any | None:
        """The part of the jaxpr that computes the flags; None if that has side effects."""
        opened, needed, kept = open_jaxpr(self.jaxpr), set(self.flags), []
        for equation in reversed(opened.eqns):
            if needed.isdisjoint(equation.outvars):
                continue
            if equation.effects:
                return None
            kept.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, jex.Literal))
        part = opened.replace(eqns=kept[::-1], outvars=list(self.flags), effects=jex.no_effects)
        return jex.ClosedJaxpr(part, list(constants(self.jaxpr)))


# JAX copies the operands of a callback. On a CPU it hands larger ones than 100 KiB to a pool of threads, and
# waits without end if all of them are in callbacks, as with one device per core.
_PIECE = 1 << 14  # words


@dataclass(frozen=True, eq=False, slots=True)
class Told:
    """The messages of a custom call: the variables that hold the number of words in use and the log."""

    log: Log
    used: Any
    words: Any

    @property
    def equations(self) -> tuple[Any, ...]:
        """They make the messages, with a debug callback of JAX's."""
        log, callback = self.log, partial(_deliver, self.log)

        def call_back(used: Any, words: Any) -> None:
            pieces = [words[at : at + _PIECE] for at in range(0, log.words, _PIECE)]
            jax.debug.callback(callback, used, *pieces, ordered=log.ordered, partitioned=log.partitioned)

        return _spliced(call_back, [self.used, self.words])


def _deliver(log: Log, used: Any, *pieces: Any) -> None:
    needed = pieces[: -(-int(used) // _PIECE)]
    words = np.concatenate([np.asarray(piece) for piece in needed])[: int(used)]
    for message, operands in log.read(words):
        message.deliver(*operands)


def _type_of(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)


def deliver(told: Told) -> list[Any]:
    """Equations that make the messages, if there are any."""
    return branch(_some, [told.used], [Side(), Side(told.equations)], [])


def run_again(
    stock: Sequence[Any], flag: Any, ours: Sequence[Any], results: Sequence[Any], told: Told | None = None
) -> list[Any]:
    """Equations that define the variables `results`: by the equations `stock` if `flag`, else as `ours`, and
    make the messages in that case."""
    again, kept = Side(tuple(stock), tuple(results)), Side((), tuple(ours))
    if told is None:
        return branch(lambda flag: flag.astype(np.int32), [flag], [kept, again], results)
    sides = [kept, Side(told.equations, tuple(ours)), again]
    return branch(lambda flag, used: jnp.where(flag, 2, _some(used)), [flag, told.used], sides, results)


def _some(used: Any) -> Any:
    return (used > 0).astype(np.int32)


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """A side of a branch: equations on variables from outside, and the results."""

    equations: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()


def branch(
    index: Callable[..., Any], operands: Sequence[Any], sides: Sequence[Side], results: Sequence[Any]
) -> list[Any]:
    """Equations that define the variables `results` by one of the sides. `index`: its number, computed from
    the variables `operands`."""

    def template(*values: Any) -> Any:
        return lax.switch(index(*values), [partial(lambda n: n, n) for n in range(len(sides))])

    *before, switch = _spliced(template, operands)
    empty = open_jaxpr(switch.params["branches"][0])
    inputs = list(dict.fromkeys(atom for side in sides for atom in _free(side)))
    effects = frozenset().union(*(each.effects for side in sides for each in side.equations))
    jaxprs = tuple(
        empty.replace(
            invars=inputs,
            eqns=list(side.equations),
            outvars=list(side.results),
            effects=frozenset().union(*(each.effects for each in side.equations)),
        )
        for side in sides
    )
    return [
        *before,
        switch.replace(
            invars=[*switch.invars, *inputs],
            outvars=list(results),
            params={**switch.params, "branches": tuple(jex.ClosedJaxpr(each, []) for each in jaxprs)},
            effects=effects,
        ),
    ]


def _spliced(function: Callable[..., Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The equations of a function on these variables."""
    traced = open_jaxpr(jax.make_jaxpr(function)(*map(_type_of, operands)))
    names = dict(zip(traced.invars, operands, strict=True))

    def named(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    return tuple(each.replace(invars=[*map(named, each.invars)]) for each in traced.eqns)


def _free(side: Side) -> list[Any]:
    """The variables that a side takes from outside."""
    made = {var for equation in side.equations for var in equation.outvars}
    atoms = [atom for equation in side.equations for atom in equation.invars]
    return [a for a in (*atoms, *side.results) if not isinstance(a, jex.Literal) and a not in made]
