"""Axis classes and clusters: the soundness rules of the design (section 1.1), and its examples."""

from __future__ import annotations

import pytest

from jax_cocktail.analysis.axes import RULES
from jax_cocktail.analysis.classes import AxisClass, axis_classes
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.tile_groups import divide
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, StitchedUTask, UOperator
from jax_cocktail.utask.printer import shape
from jax_cocktail.utask.types import Value
from tests.null.programs import branch, build, counted, elementwise, matmul, while_loop

SMALL = Limits(flops=1, bytes=1, light=0, least_part=2)


def class_of(classes, value: Value, axis: int) -> AxisClass:
    return next(c for c in classes if c.axes.get(value) == axis or (c.clash and value in c.axes))


def consumers(cut: AxisClass) -> set[str]:
    return {c.leaf.kind for c in cut.crossings if not c.makes}


def of_body(parameters, body, classes_of=axis_classes):
    """The classes of the entry region, and its results."""
    program = build(parameters, body)
    return classes_of(program.entry.body), program.entry.results


def test_elementwise_ties_and_reduce_consumes():
    def body(b, x):
        y = elementwise(b, "exp", x)
        total = b.emit("reduce", (y,), "float32", (4,), axes=(1,), op="sum")
        return y, elementwise(b, "neg", total)

    classes, (y, total) = of_body(["float32[4,6]"], body)
    assert class_of(classes, y, 0) is class_of(classes, total, 0)
    assert consumers(class_of(classes, y, 0)) == set()
    assert consumers(class_of(classes, y, 1)) == {"reduce"}


def test_operator_without_a_rule_consumes(monkeypatch):
    monkeypatch.delitem(RULES, "sin")
    classes, (y, z) = of_body(
        ["float32[4]"], lambda b, x: ((y := elementwise(b, "neg", x)), elementwise(b, "sin", y))
    )
    assert consumers(class_of(classes, y, 0)) == {"sin"}
    assert [c.makes for c in class_of(classes, z, 0).crossings] == [True]


def test_two_axes_of_one_value_clash():
    """X + X.T: no part of the sum needs only a part of X."""

    def body(b, x):
        x = elementwise(b, "neg", x)
        turned = b.emit("transpose", (x,), "float32", (4, 4), permutation=(1, 0))
        return (elementwise(b, "add", x, turned),)

    classes, (y,) = of_body(["float32[4,4]"], body)
    (cut,) = classes
    assert cut.clash and y in cut.axes


def test_values_from_outside_are_in_no_class():
    """X @ X.T of a parameter: each operand is read by parts of its own."""

    def body(b, x):
        turned = b.emit("transpose", (x,), "float32", (6, 4), permutation=(1, 0))
        return (matmul(b, x, turned),)

    program = build(["float32[4,6]"], body)
    turned, product = (s.outputs[0] for s in program.entry.body)
    classes = axis_classes(program.entry.body)
    rows, columns = class_of(classes, product, 0), class_of(classes, product, 1)
    assert rows is not columns and not rows.clash
    assert columns is class_of(classes, turned, 1) and consumers(class_of(classes, turned, 0)) == {"dot"}


def test_reshape_takes_the_greatest_common_divisor():
    def body(b, x):
        y = elementwise(b, "sin", b.reshape(elementwise(b, "neg", x), (24,)))
        return (b.reshape(y, (6, 4)),)

    classes, (z,) = of_body(["float32[4,6]"], body)
    cut = class_of(classes, z, 0)
    assert cut.parts == 2 and cut.extents == {4, 24, 6} and not cut.is_uniform


def test_windows_convolutions_and_sorts_consume_only_their_axes():
    def body(b, x, k):
        x = elementwise(b, "neg", x)
        channels = (0, 2, 1)
        y = b.emit(
            "conv", (x, k), "float32", (4, 5, 6), batch_group_count=1, feature_group_count=1,
            lhs_dilation=(1,), lhs_spec=channels, out_spec=channels, padding=((1, 1),), rhs_dilation=(1,),
            rhs_spec=(2, 1, 0), window_strides=(1,),
        )  # fmt: skip
        (z,) = b.emit_many("sort", (y,), [("float32", (4, 5, 6))], dimension=2, num_keys=1)
        return x, y, z

    classes, (x, y, z) = of_body(["float32[4,5,2]", "float32[3,2,6]"], body)
    assert class_of(classes, x, 0) is class_of(classes, z, 0)
    assert consumers(class_of(classes, x, 0)) == set()
    assert consumers(class_of(classes, x, 1)) == consumers(class_of(classes, x, 2)) == {"conv"}
    assert consumers(class_of(classes, y, 2)) == {"sort"}


def test_gather_keeps_batching_dimensions():
    def body(b, table, indices):
        rows = elementwise(b, "neg", table)
        y = b.emit(
            "gather", (rows, indices), "float32", (6, 3, 4), collapsed_slice_dims=(1,), fill_value=bytes(4),
            mode="clip", offset_dims=(2,), operand_batching_dims=(0,), slice_sizes=(1, 1, 4),
            start_index_map=(1,), start_indices_batching_dims=(0,),
        )  # fmt: skip
        return rows, y

    classes, (rows, y) = of_body(["float32[6,5,4]", "int32[6,3,1]"], body)
    assert class_of(classes, rows, 0) is class_of(classes, y, 0)
    assert consumers(class_of(classes, rows, 1)) == {"gather"}
    assert class_of(classes, rows, 2) is class_of(classes, y, 2)


def test_back_edges_tie():
    """The rows of a recurrence are one class, from the initial value to the result; columns are consumed."""

    def body(b, x, w):
        start = elementwise(b, "neg", x)
        (h,) = counted(b, 3, (start,), lambda _, h: (elementwise(b, "tanh", matmul(b, h, w)),))
        return start, h

    classes, (start, h) = of_body(["float32[6,4]", "float32[4,4]"], body)
    rows = class_of(classes, h, 0)
    assert rows is class_of(classes, start, 0) and not rows.crossings
    assert consumers(class_of(classes, h, 1)) == {"dot"}


def test_carries_that_change_places_are_one_class():
    def body(b, x, y):
        return counted(b, 3, (elementwise(b, "neg", x), elementwise(b, "neg", y)), lambda _, p, q: (q, p))

    classes, (p, q) = of_body(["float32[6]", "float32[6]"], body)
    assert class_of(classes, p, 0) is class_of(classes, q, 0)


def test_predicates_are_walked():
    """A condition that reads the class is an edge to everything that the loop controls."""

    def body(b, x):
        def below(y):
            total = b.emit("reduce", (y,), "float32", (), axes=(0,), op="sum")
            return b.emit("lt", (total, b.constant(9.0, "float32")), "bool", ())

        return while_loop(b, (elementwise(b, "neg", x),), below, lambda y: (elementwise(b, "add", y, y),))

    program = build(["float32[6]"], body)
    cut = class_of(axis_classes(program.entry.body), program.entry.results[0], 0)
    assert consumers(cut) == {"reduce"} and cut.crossings[0].position == 1
    division = divide(program.entry, 2, SMALL)
    assert [c.positions for c in division.tile_groups] == [(0,)]


def test_all_branches_are_walked():
    def body(b, x, which):
        y = elementwise(b, "neg", x)
        return branch(
            b,
            which,
            lambda: (elementwise(b, "sin", y),),
            lambda: (b.emit("reverse", (y,), "float32", (6,), dimensions=(0,)),),
        )

    program = build(["float32[6]", "int32[]"], body)
    cut = class_of(axis_classes(program.entry.body), program.entry.results[0], 0)
    assert consumers(cut) == {"reverse"} and any(c.makes for c in cut.crossings)


@pytest.mark.parametrize("kind", ["cumulative", "arg_reduce"])
def test_other_axes_of_a_scan_stay(kind):
    def body(b, x):
        x = elementwise(b, "neg", x)
        if kind == "cumulative":
            return x, b.emit(kind, (x,), "float32", (4, 6), axis=0, op="sum", reverse=False)
        return x, b.emit(kind, (x,), "int32", (6,), axis=0, op="max")

    classes, (x, y) = of_body(["float32[4,6]"], body)
    assert consumers(class_of(classes, x, 0)) == {kind}
    assert class_of(classes, x, 1) is class_of(classes, y, y.type.rank - 1)


def test_groups_read_and_make_everything_whole():
    program = build(["float32[6]"], lambda b, x: (elementwise(b, "neg", x),))
    (y,) = program.entry.results
    z = Value(99, y.type)
    group = StitchedUTask((UOperator("exp", (y,), (z,)),), (y,), (z,))
    statements = (*program.entry.body, group)
    cut = axis_classes(statements)
    assert [(c.value, c.makes) for k in cut for c in k.crossings] == [(y, False), (z, True)]
    division = divide(Region(program.entry.parameters, statements, (z,)), 2, SMALL)
    assert [c.positions for c in division.tile_groups] == [(0,)]


def test_stages_count_crossings():
    """A chain of two products meets between them; element-wise work goes with its producer."""

    def body(b, x, w, v):
        y = elementwise(b, "tanh", matmul(b, x, w))
        return (elementwise(b, "tanh", matmul(b, y, v)),)

    program = build(["float32[8]", "float32[8,8]", "float32[8,8]"], body)
    division = divide(program.entry, 2, SMALL)
    assert [[c.positions for c in s.tile_groups] for s in division.supersteps] == [[(0, 1)], [(2, 3)]]
    assert division.barrier_count == 2


@pytest.mark.parametrize("alone", [False, True])
def test_small_updates_in_branches_stay_in_place(alone):
    """A table of which a side of a branch changes a row is cut only if units read nothing but their parts of
    it: else it would be copied."""

    def body(b, which, table, row, at):
        zero = b.constant(0, "int32")
        row = elementwise(b, "tanh", elementwise(b, "sin", row))
        (changed,) = branch(
            b,
            which,
            lambda: (b.emit("dynamic_update_slice", (table, row, at, zero), "float32", (64, 32)),),
            lambda: (table,),
        )
        return changed, row if alone else b.emit("reverse", (table,), "float32", (64, 32), dimensions=(1,))

    program = build(["int32[]", "float32[64,32]", "float32[1,32]", "int32[]"], body)
    region = program.entry
    division = divide(region, 2, SMALL)
    place = next(n for n, s in enumerate(region.body) if isinstance(s, BranchUTask))
    assert (place in division.tile_group_of) == alone


def test_products_share_their_weights():
    """Of two ways to cut a product, the one by which no unit reads all of the larger operand."""

    def body(b, x, w):
        return (elementwise(b, "tanh", matmul(b, elementwise(b, "tanh", x), w)),)

    program = build(["float32[32,64]", "float32[64,512]"], body)
    division = divide(program.entry, 2, SMALL)
    product = next(s for s in program.entry.body if isinstance(s, UOperator) and s.kind == "dot")
    assert next(c.axes[product.output] for c in division.tile_groups if product.output in c.axes) == 1


def test_weak_clusters_stay_at_mesh_level():
    def body(b, x, w):
        y = elementwise(b, "tanh", matmul(b, x, w))
        return (elementwise(b, "neg", b.emit("reverse", (y,), "float32", (8,), dimensions=(0,))),)

    program = build(["float32[8]", "float32[8,8]"], body)
    division = divide(program.entry, 2, Limits(flops=100, bytes=1e9, light=0))
    assert [c.positions for c in division.tile_groups] == [(0, 1)]
    assert division.supersteps[-1].mesh == (2, 3)


def test_loops_need_nearly_all_their_work_in_the_class():
    def body(b, x, w):
        def step(_, h, state):
            return elementwise(b, "neg", h), matmul(b, state, w)

        return counted(b, 3, (x, b.full(1.0, "float32", (32, 32))), step)[:1]

    program = build(["float32[6]", "float32[32,32]"], body)
    division = divide(program.entry, 2, SMALL)
    loop = next(n for n, s in enumerate(program.entry.body) if isinstance(s, LoopUTask))
    claimed = division.tile_group_of.get(loop)
    assert claimed is None or 6 not in {v.type.shape[d] for v, d in claimed.axes.items()}


@pytest.mark.parametrize(
    ("extent", "units", "parts"),
    [(256, 2, 2), (257, 2, 2), (9, 2, 2), (3, 2, 3), (12, 8, 12), (255, 2, 2), (16, 8, 8), (33, 8, 8)],
)
def test_number_of_parts(extent, units, parts):
    """Parts of two lengths beat equal parts that leave a unit idle, unless one is much longer."""
    cut = AxisClass({}, extent, extents=frozenset({extent}))
    assert Limits(least_part=4).parts(cut, units) == parts


def test_no_number_of_parts():
    assert Limits().parts(AxisClass({}, 5, extents=frozenset({5})), 4) is None
    assert Limits().parts(AxisClass({}, 257, extents=frozenset({257, 514})), 2) is None


@pytest.mark.parametrize("extent", [2, 12, 97, 360, 1024])
def test_equal_parts_divide_the_axis(extent):
    cut = AxisClass({}, extent, extents=frozenset({extent}))
    found = Limits(balance=0.0).even_parts(cut, 2, extent)
    assert found == [n for n in range(2, extent + 1) if extent % n == 0]


def test_a_long_axis_is_divided_soon():
    """Nobody tries a billion numbers of parts."""
    cut = AxisClass({}, 10**9, extents=frozenset({10**9}))
    assert len(Limits(balance=0.0).even_parts(cut, 2, 10**9)) == 99  # 2 ** 9 * 5 ** 9 has 100 divisors


def test_regions_of_one_shape_share_a_division():
    def layer(b, x, w):
        return (elementwise(b, "tanh", matmul(b, matmul(b, x, w), w)),)

    def body(b, selector, x, w):
        layers = (lambda: layer(b, x, w), lambda: layer(b, x, w), lambda: (matmul(b, x, w),))
        return branch(b, selector, *layers)

    program = build(["int32[]", "float32[64,64]", "float32[64,64]"], body)
    (choice,) = program.entry.body
    one, two, other = choice.branches
    assert shape(one) == shape(two) != shape(other)
    assert divide(one, 2, SMALL).tile_groups
    assert divide(one, 2, SMALL).moved(one, two) == divide(two, 2, SMALL)
