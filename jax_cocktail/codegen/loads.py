"""The loads of a lane loop, as its element functions write them: the bytes that it reads follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jax_cocktail.codegen.element import ElementWriter
from jax_cocktail.codegen.kernel import Declaration, Expression, Index, Name, Pointer, names_in
from jax_cocktail.codegen.text import literal
from jax_cocktail.codegen.writer import Writer, axes_of, indices_within
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.layout import Layout, core, dense
from jax_cocktail.utask.types import Value


class _Once(Writer):
    """Declares equal values once, as compilers do."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[tuple[str, Expression], Name] = {}

    def let(self, type_: str, name: Name, value: Expression) -> Name:
        found = self.named.setdefault((type_, value), name)
        return super().let(type_, name, value) if found == name else found


class LaneLoads:
    """Collects the loads of one lane loop. `layouts`: of values in memory; a value without one is dense."""

    def __init__(self, members: Sequence[UOperator], layouts: Mapping[Value, Layout]) -> None:
        self.layouts = layouts
        self.writer = _Once()
        self.roots: dict[Expression, Value] = {}  # by what names their memory
        self.axes: dict[Name, frozenset[int]] = {}  # of the loop, on which a variable depends
        access = self._place, self._pointer, literal
        self.elements = ElementWriter(self.writer, members, *access, set(), frozenset())

    def _place(self, value: Value, indices: Sequence[Index]) -> Expression:
        if value.type.is_scalar:
            return Name(str(value))
        layout = self.layouts.get(value) or dense(value)
        steps = [step if n != 1 else 0 for step, n in zip(layout.strides, layout.shape, strict=True)]
        return Index(layout.offset).along(indices, steps)

    def _pointer(self, value: Value) -> Pointer:
        layout = self.layouts.get(value) or dense(value)
        self.roots[base := Name(str(layout.base))] = layout.root
        return Pointer(base, "")

    def element(self, value: Value) -> None:
        """Notes what an element takes, in a loop for each axis that is no unit axis."""
        loops = axes_of(core(value.type.shape))
        self.axes.update((name, frozenset((number,))) for number, (name, _) in enumerate(loops))
        self.elements.element(value, indices_within(loops, value.type.shape))

    def _depends(self, *on: Expression) -> frozenset[int]:
        return frozenset[int]().union(*(self.axes.get(name, ()) for name in names_in(*on)))

    def found(self) -> Iterator[tuple[Value, frozenset[int], Mapping[int, int]]]:
        """Every load: the root of its array, the axes of the loop on which it depends, and the number of
        elements that it moves on with each of them, if that is one number."""
        for node in self.writer.nodes:
            if isinstance(node, Declaration):
                self.axes[node.name] = self._depends(node.value)
        for load in self.elements.loaded:
            assert isinstance(load.place, Index)
            terms = [(self._depends(term), step) for term, step in load.place.terms]
            met = Counter(axis for axes, _ in terms for axis in axes)
            steps = {axis: step for axes, step in terms if len(axes) == 1 for axis in axes if met[axis] == 1}
            yield self.roots[load.pointer.base], self._depends(load.place), steps
