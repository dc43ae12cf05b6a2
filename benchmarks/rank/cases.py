"""The programs whose times the cost models of the host have to rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.census.measure import FORMS, TRIPS
from benchmarks.census.patterns import PATTERNS, Pattern, in_loop
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.host import SERVER, HostSpec
from jax_cocktail.lowering.choice.variants import Prepared, prepare
from jax_cocktail_tools.models import MODELS
from jax_cocktail_tools.models.programs import PROGRAMS


@dataclass(frozen=True, slots=True)
class Case:
    """A program and how it is captured. `make`: the function and its arguments."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    memory_bound: bool = False

    def prepared(self, host: HostSpec = SERVER) -> tuple[Prepared, Any, list[Any]]:
        """The captured program, its jaxpr, which has to live as long, and the flat arguments. `host`: for
        prices."""
        function, arguments = self.make()
        closed = jax.make_jaxpr(function)(*arguments)
        machine = machine_of(None, host=host)
        prepared = prepare(closed, "rank", machine, memory_bound=self.memory_bound)
        return prepared, closed, jax.tree.leaves(arguments)


def _pattern(pattern: Pattern, form: str) -> Case:
    function = in_loop(pattern.function, TRIPS) if form == "loop" else pattern.function
    return Case(f"{pattern.name}, {form}", lambda: (function, pattern.operands()), memory_bound=True)


def _cases() -> Iterator[Case]:
    for pattern in PATTERNS.values():
        yield from (_pattern(pattern, form) for form in FORMS)
    for name, program in PROGRAMS.items():
        yield Case(name, program.make)
    for model in MODELS.values():
        for batch in model.batches:
            yield Case(f"{model.name}/{batch}", lambda model=model, batch=batch: model.make(batch))


CASES: Sequence[Case] = tuple(_cases())
