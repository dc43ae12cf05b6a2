"""Sequential loop nests of the templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax_cocktail.codegen.kernel import Index, Name, Writer


def loop_over(
    writer: Writer, shape: Sequence[int], body: Callable[[tuple[Index, ...]], None], prefix: str = "i"
) -> None:
    """A sequential loop nest; `body` gets the indices. Unit axes get index 0 and no loop."""
    indices: list[Index] = []

    def nest(d: int) -> None:
        if d == len(shape):
            body(tuple(indices))
        elif shape[d] == 1:
            indices.append(Index())
            nest(d + 1)
            indices.pop()
        else:
            name = Name(f"{prefix}{d}")
            with writer.loop(name, shape[d]):
                indices.append(Index(0, ((name, 1),)))
                nest(d + 1)
                indices.pop()

    nest(0)
