"""The list of passes up to `fuse`, and the choices that they leave.

`passes` is the list for a candidate. Whatever only makes programs faster can be left out: each such pass is a
choice by its own name, and a pass that chooses for each loop or branch asks `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from jax_cocktail.codegen.machines import HOST
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import ELEMENTS
from jax_cocktail.errors import PlacementError
from jax_cocktail.placement.limits import in_cluster, limits_for
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.launch_parameters import known_lengths, launch_parameters
from jax_cocktail.schedule.loops.concat_gates import concat_gates
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import layers
from jax_cocktail.schedule.loops.unroll import unroll
from jax_cocktail.schedule.loops.wavefront.pipeline import pipeline
from jax_cocktail.schedule.products.exact_products import exact_products
from jax_cocktail.schedule.products.products import products
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sink import sink
from jax_cocktail.schedule.sync.double_buffer import double_buffer
from jax_cocktail.schedule.sync.exchange import exchange
from jax_cocktail.schedule.sync.plan_tail import finish
from jax_cocktail.schedule.unit_count import fix_unit_count
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.schedule.vmap.threads import threads
from jax_cocktail.schedule.vmap.updates import updates
from jax_cocktail.stitch.collapse_axes import collapse_axes
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.stitch.share_exponentials import share_exponentials
from jax_cocktail.stitch.split_reductions import split_reductions
from jax_cocktail.stitch.split_scans import split_scans
from jax_cocktail.utask.candidate import OFF, ON, Candidate, usually
from jax_cocktail.utask.choices import Choice, Choose, usual
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.remarks import Listener, nobody

Pass = Callable[[UProgram], UProgram]
OPTIONAL = frozenset(
    {
        "collapse_axes",
        "concat_gates",
        "distribute",
        "double_buffer",
        "exchange",
        "hoist",
        "layers",
        "pipeline",
        "recover",
        "share_exponentials",
        "sink",
        "split_reductions",
        "split_scans",
        "unroll",
        "updates",
    }
)
"""The passes that a candidate can leave out."""
OF_ELEMENTS = "elements", "local"  # the choices of `threads`, see `Candidate`


def passes(
    candidate: Candidate, remark: Listener = nobody, machine: Machine = HOST, choose: Choose = usual
) -> tuple[tuple[str, Pass], ...]:
    """The passes for a candidate, in order, each by the name of its module. Those that have something to say
    are given `remark`, and those that choose `choose`."""
    table = _translated(candidate, remark, machine, choose) + _placed(candidate, remark, machine)
    return tuple((name, run) for name, run in table if name not in OPTIONAL or candidate.runs(name))


def _translated(
    candidate: Candidate, remark: Listener, machine: Machine, choose: Choose
) -> list[tuple[str, Pass]]:
    """The passes before `place`."""
    table: list[tuple[str, Pass]] = [("unit_count", partial(fix_unit_count, units=candidate.units))]
    if machine.spec is not None and machine.spec.matrix_float32 == "none":
        table.append(("exact_products", exact_products))
    table += [("simplify", simplify), ("launch_parameters", launch_parameters)]
    if not machine.is_gpu:
        table.append(("recover", partial(recover, units=candidate.units, remark=remark)))
    elif candidate.units > 1 and candidate.runs("elements"):
        elements = ELEMENTS if candidate.runs("local") else replace(ELEMENTS, local=0)
        by_threads = partial(threads, remark=remark, limits=elements, warps=machine.has_single_warps)
        table.append(("threads", by_threads))
    table.append(("updates", updates))
    if candidate.runs("distribute"):
        table.append(("layers", partial(layers, remark=remark)))
    table.append(("hoist", partial(hoist, remark=remark)))
    if candidate.units > 1:
        table.append(("concat_gates", concat_gates))
    table += [
        ("pipeline", partial(pipeline, remark=remark)),
        ("distribute", partial(distribute, remark=remark)),
        ("unroll", partial(unroll, choose=choose)),
        ("simplify", simplify),
        ("canonicalise", canonicalise),
    ]
    if not machine.is_gpu:
        # threads load the elements of short groups side by side, and compute an exponential sooner than they
        # store it
        table += [("collapse_axes", collapse_axes), ("share_exponentials", share_exponentials)]
    table.append(("split_reductions", partial(split_reductions, machine=machine)))
    table.append(("split_scans", partial(split_scans, machine=machine)))
    return table


def _placed(candidate: Candidate, remark: Listener, machine: Machine) -> list[tuple[str, Pass]]:
    """The passes from `place` on."""
    divide = partial(place, mesh=UnitMesh(units=candidate.units), remark=remark)
    if machine.spec is not None:
        limits = limits_for(machine.spec, machine.target.threads)
        divide = partial(divide, limits=in_cluster(limits, machine.spec) if candidate.cluster else limits)
    table: list[tuple[str, Pass]] = [("place", divide)]
    several = candidate.units > 1
    if several and machine.is_gpu:
        table.append(("exchange", partial(exchange, remark=remark, trial=trial)))
    if several:
        table.append(("double_buffer", partial(double_buffer, trial=trial)))
    table += [("simplify", simplify), ("products", partial(products, machine=machine))]
    table += [("sink", sink), ("fuse", partial(fuse, threads=machine.target.threads))]
    if machine.is_gpu:
        table.append(("launch_parameters", partial(known_lengths, most_loops=machine.target.outline_limit)))
    return table


def trial(program: UProgram) -> UProgram | None:
    """A placed program with the barriers between units; None if its tiles cannot be written in place. It is
    planned for the host, which has no other barriers."""
    try:
        return finish(fuse(simplify(program))).program
    except PlacementError:
        return None


def switches(candidate: Candidate, machine: Machine, fired: Collection[str]) -> Iterator[Choice]:
    """The choices of a candidate for the whole program that make a difference: the passes that have changed
    something (`fired`, in order), and what is not usual."""
    for name in dict.fromkeys((*fired, *sorted(OPTIONAL))):
        first = usually(name)
        if name in OPTIONAL and (name in fired or candidate.taken(name) != first):
            yield Choice(name, tuple(sorted((ON, OFF), key=first.__ne__)), candidate.taken(name))
    if machine.is_gpu and candidate.units > 1:
        for name in OF_ELEMENTS:
            if "threads" in fired or not candidate.runs(name):
                yield Choice(name, (ON, OFF), candidate.taken(name))
