"""The kernel IR and its passes, on nodes that are built by hand."""

from dataclasses import replace

import pytest

from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.kernel import (
    Assign,
    Barrier,
    Comment,
    Compound,
    Declaration,
    Index,
    Load,
    Loop,
    Name,
    Pointer,
    Select,
    Store,
    length,
    names_in,
    nodes_in,
    printed,
    text,
)
from jax_cocktail.codegen.outline import Outer, OutlineTable, body_of, touches
from jax_cocktail.codegen.passes import Copy, batch, copy_in, divided, hoisted, unrolled
from jax_cocktail.codegen.writer import Writer, call, code, down, joined, up, variable
from jax_cocktail.device.tuning import BLOCK

L, K, T1, T2 = Name("i"), Name("k"), Name("t1"), Name("t2")
X, Y = Pointer(Name("p0", outer=True), "f32", "input"), Pointer(Name("w0", outer=True), "f32", "workspace")
REGISTER = Name("v3", outer=True)
AT_L = variable(L)


def loop(*body, name=L, pragma=""):
    return Loop("i64", name, "0", "8", body, pragma=pragma)


def copy(value, place=AT_L, into=Y):
    return Store(Load(into, place), value)


# -- the printer ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "node, line",
    [
        (Declaration("f32", T1, Load(X, AT_L * 4 + 2)), "const f32 t1 = p0[4 * i + 2];"),
        (Declaration("f32", T1, const=False), "f32 t1;"),
        (Assign(REGISTER, call("ck_max", T1, "0.0f")), "v3 = ck_max(t1, 0.0f);"),
        (Assign(REGISTER, T1, code("{} > 0", K)), "if (k > 0) v3 = t1;"),
        (Store(Load(Y, Index()), T1, "ck_lane() == 0"), "if (ck_lane() == 0) w0[0] = t1;"),
        (copy(T1, into=Y + "16"), "(w0 + 16)[i] = t1;"),
        (Barrier("ck_block_barrier();"), "ck_block_barrier();"),
        (Comment("model.py:7 step"), "// model.py:7 step"),
        (code("{size} of {} {{{}}}", X, K, size=3), "3 of p0 {k}"),
        (joined(" + ", (T1, T2, "1")), "t1 + t2 + 1"),
    ],
)
def test_lines(node, line):
    assert text(printed([node]), {}) == f"  {line}"


def test_nested_statements():
    inner = Loop("", K, "", "4", (copy(T1, variable(K)),), step="2")
    nest = loop(Compound(code("if ({})", REGISTER), (inner,)), pragma="#pragma x")
    expected = [
        "  #pragma x",
        "  for (i64 i = 0; i < 8; ++i) {",
        "    if (v3) {",
        "      for (; k < 4; k += 2) {",
        "        w0[k] = t1;",
        "      }",
        "    }",
        "  }",
    ]
    assert text(printed([nest]), {}).splitlines() == expected
    assert length(nest) == len(expected)


def test_writer_makes_the_same():
    writer = Writer()
    with writer.loop(L, 8), writer.block():
        t = writer.let("f32", writer.fresh("t"), Load(X, AT_L))
        writer.store(Load(Y, AT_L), t)
    body = (Declaration("f32", T1, Load(X, AT_L)), copy(T1))
    assert writer.nodes == [loop(Compound("", body))]


def test_other_names_in_the_place_of_some():
    node = copy(joined(" * ", (Load(X, AT_L), REGISTER)))
    names = {X.base: "((const f32*)(operands[0]))", REGISTER: "x1"}
    assert text(printed([node], 0), names) == "w0[i] = ((const f32*)(operands[0]))[i] * x1;"


def test_nodes_are_no_text():
    with pytest.raises(TypeError, match="printer"):
        f"{T1} + 1"


def test_16_bit_floats():
    assert (
        text(printed([code("{}", up(down(T1, "bfloat16"), "bfloat16"))], 0), {}) == "ck_up(ck_down<bf16>(t1))"
    )
    assert up(down(T1, "float32"), "float32") is T1


# -- facts ---------------------------------------------------------------------------------------------------
def test_names_come_in_the_order_of_print():
    nest = loop(
        copy(joined(" - ", (Load(X, variable(K)), REGISTER)), AT_L + variable(K)), pragma=code("{}", T2)
    )
    assert names_in(nest) == [T2, L, L, L, Y.base, L, K, X.base, K, REGISTER]


def test_loads_know_where_they_read():
    nest = loop(copy(call("ck_exp", Load(X, AT_L * 2))))
    (load,) = (node for node in nodes_in(nest) if isinstance(node, Load))
    assert (load.pointer.space, load.pointer.type, load.place) == ("input", "f32", Index(0, ((L, 2),)))


def test_merged_axes_leave_an_index():
    assert (AT_L * 8 + variable(K) + 3).without(frozenset({L})) == variable(K) + 3


# -- hoisting ------------------------------------------------------------------------------------------------
def test_what_does_not_depend_on_the_loop_comes_before_it():
    free = Declaration("f32", T1, Load(X, variable(K)))
    bound = Declaration("f32", T2, code("{} * {}", T1, Load(X, AT_L)))
    assert hoisted(loop(free, bound, copy(T2))) == [free, loop(bound, copy(T2))]


def test_what_depends_on_it_by_another_name_stays():
    first = Declaration("i64", T1, call("ck_clamp_index", L, "7"))
    second = Declaration("f32", T2, Load(X, variable(T1)))
    whole = loop(first, second, copy(T2))
    assert hoisted(whole) == [whole]


@pytest.mark.parametrize(
    "other", [Barrier("ck_block_barrier();"), code("ck_step();")], ids=lambda node: type(node).__name__
)
def test_nothing_is_hoisted_past_what_may_write(other):
    whole = loop(Declaration("f32", T1, Load(X, variable(K))), other, copy(T1))
    assert hoisted(whole) == [whole]


@pytest.mark.parametrize(
    "other", [Declaration("f32", T2, "0", const=False), loop(name=K)], ids=lambda node: type(node).__name__
)
def test_invariants_leave_a_loop_with_totals_or_loops(other):
    free = Declaration("f32", T1, Load(X, variable(K)))
    assert hoisted(loop(free, other, copy(T1))) == [free, loop(other, copy(T1))]


def test_what_reads_a_variable_of_the_loop_stays():
    total = Declaration("f32", T1, "0", const=False)
    whole = loop(total, Declaration("f32", T2, code("{} + 1", T1)), copy(T2))
    assert hoisted(whole) == [whole]


# -- early loads ---------------------------------------------------------------------------------------------
EARLY = Name("e")


def resident(*nodes):
    """What only the resident kernel does."""
    return Compound("if constexpr (RESIDENT)", nodes)


def early_or(load):
    return Select("RESIDENT", EARLY, load)


def divide(*nodes, before=(), changed=()):
    return divided(Compound("", (*before, loop(*nodes))), {X}, changed, lambda: EARLY)


def test_loads_are_taken_out_with_what_their_places_take():
    place = Declaration("i64", K, call("ck_clamp_index", REGISTER, "7"))
    loaded, near = Declaration("f32", T1, Load(X, variable(K))), Declaration("f32", T2, Load(Y, AT_L))
    found = divide(loaded, near, copy(T1), before=(place,))
    assert found.results == (Declaration("f32", EARLY, const=False),)
    assert found.early == Compound("", (resident(loop(place, Assign(EARLY, loaded.value))),))
    late = replace(loaded, value=early_or(loaded.value))
    assert found.late == Compound("", (place, loop(late, near, copy(T1))))


def test_loads_of_one_unit_stay_with_it():
    inner = Compound("", (loop(Declaration("f32", T1, Load(X, AT_L)), copy(T1)),))
    found = divided(Compound("if (unit->index == 0)", (inner,)), {X}, (), lambda: EARLY)
    early = Compound("", (resident(loop(Assign(EARLY, Load(X, AT_L)))),))
    assert found.early == Compound("if (unit->index == 0)", (early,))


@pytest.mark.parametrize("changed", [(X.base,), (REGISTER,)], ids=["pointer", "place"])
def test_what_changes_is_not_loaded_early(changed):
    assert divide(Declaration("f32", T1, Load(X, variable(REGISTER))), copy(T1), changed=changed) is None


def test_no_early_load_waits_for_another():
    first = Declaration("f32", T1, Load(X, AT_L))
    second = Declaration("f32", T2, Load(X, variable(T1)))
    found = divide(first, second, copy(T2))
    assert found.late == Compound("", (loop(replace(first, value=early_or(first.value)), second, copy(T2)),))


def test_nothing_is_taken_out_behind_what_may_write():
    load = loop(Declaration("f32", T1, Load(X, AT_L)), copy(T1))
    assert divided(Compound("", (Barrier("ck_block_barrier();"), load)), {X}, (), lambda: EARLY) is None


# -- batching and unrolling ----------------------------------------------------------------------------------
def body(calls, others):
    called = [Declaration("f32", T1, call("ck_exp", Load(X, AT_L)))] * calls
    return [*called, *[Declaration("f32", T2, Load(X, AT_L))] * others]


@pytest.mark.parametrize(
    "calls, others, trips, together",
    [
        (0, 2, 100, 8),
        (0, 2, 7, 4),
        (0, 2, 1, 1),
        (3, 0, 100, 8),
        (4, 0, 100, 4),
        (0, BLOCK.batch_lines, 100, 1),
    ],
)
def test_batches_hold_loads_as_long_as_there_is_room(calls, others, trips, together):
    assert batch(body(calls, others), trips, 8) == together


def test_there_is_no_batch_without_loads():
    assert batch([copy("0.0f")], 100, 8) == 1


@pytest.mark.parametrize(
    "lines_inside, together", [(1, 8), (10, 8), (11, 4), (46, 2), (BLOCK.batch_lines, 1)]
)
def test_long_trips_are_unrolled_less(lines_inside, together):
    whole = loop(*[copy(T1)] * lines_inside)
    assert unrolled(whole, 100, 8) == [loop(*whole.body, pragma=f"#pragma unroll {together}")]


@pytest.mark.parametrize("trips, most", [(8, 8), (100, 0)])
def test_compilers_unroll_short_loops_as_they_like(trips, most):
    assert unrolled(loop(copy(T1)), trips, most) == [loop(copy(T1))]


# -- outlining -----------------------------------------------------------------------------------------------
def about(name):
    return Outer("f32*" if name.text[0] in "pw" else "f32")


def scaled(source, register, target):
    return [loop(copy(joined(" * ", (Load(source, AT_L), register)), into=target))]


def test_statements_that_differ_in_names_are_one_function():
    table = OutlineTable(CPU)
    other, last = Name("v9", outer=True), Pointer(Name("w64_f32", outer=True), "f32", "workspace")
    calls = [
        table.call(scaled(X, REGISTER, Y), about, None),
        table.call(scaled(Y, other, last), about, None),
    ]
    assert text(printed(calls), {}).splitlines() == [
        "  outlined0(w0, p0, v3);",
        "  outlined0(w64_f32, w0, v9);",
    ]
    (function,) = table.functions()
    assert function.head == "CK_NOINLINE void outlined0(f32* x0, f32* x1, f32 x2) {"
    assert function.body.splitlines() == ["  for (i64 i = 0; i < 8; ++i) {", "    x0[i] = x1[i] * x2;", "  }"]


def test_a_function_may_return_a_register():
    table = OutlineTable(CPU)
    call_ = table.call([Assign(REGISTER, Load(X, "0"))], about, REGISTER)
    assert call_ == Assign(REGISTER, code("{}({})", "outlined0", code("{}", X.base)))
    (function,) = table.functions()
    assert "f32 outlined0(f32* x1) {" in function.head
    assert function.body == "  f32 x0;\n  x0 = x1[0];\n  return x0;"


def test_parts_get_what_is_known_and_declare_the_rest():
    table = OutlineTable(cuda())
    nodes = [Declaration("f32* const", Y.base, "workspace", const=False), *scaled(X, REGISTER, Y)]
    known = {X.base: Outer("f32*", "far({name});"), REGISTER: Outer("f32")}
    lines, names = body_of(nodes, known.__getitem__)
    called = text(printed([table.part(lines, names, {})], 0), {})
    assert called == "part0<RESIDENT>(workspace, unit->error, p0, v3);"
    again = text(printed([table.part(lines, names, {REGISTER: "7"})], 0), {})
    assert again == "part0<RESIDENT>(workspace, unit->error, p0, 7);"
    assert "  far(x0);\n  f32* const x1 = workspace;\n" in table.functions()[0].body
    assert "u32* error, f32* x0, f32 x2)" in table.functions()[0].head


def test_a_register_is_touched_unless_it_is_only_set():
    assert not touches([Assign(REGISTER, T1), loop(Assign(REGISTER, T2))], REGISTER)
    assert touches([Assign(REGISTER, code("{} + {}", REGISTER, T1))], REGISTER)
    assert touches([code("{} += 1;", REGISTER)], REGISTER)


# -- copies --------------------------------------------------------------------------------------------------
def padded(value, *before):
    """Stores `value`, or zero where the position is too large."""
    select = Declaration("f32", T2, Select("l < 5", value, "0.0f"))
    return [*before, select, Store(Load(Y, AT_L), T2)]


def test_a_copy_is_found_with_its_places_and_its_condition():
    place = Declaration("i64", K, call("ck_clamp_index", REGISTER, "7"))
    element = Load(X, variable(K))
    found = copy_in(padded(T1, place, Declaration("f32", T1, element)), "0.0f")
    assert found == Copy((place,), Load(Y, AT_L), element, "l < 5")
    assert copy_in([copy(element)], "0.0f") == Copy((), Load(Y, AT_L), element, "true")


@pytest.mark.parametrize(
    "nodes",
    [
        padded(T1, Declaration("f32", T1, code("{} + {}", Load(X, AT_L), Load(X, AT_L)))),
        padded(T1, Declaration("f32", T1, Load(X, AT_L)), Declaration("i64", K, code("i64({})", T1))),
        padded(T1, Declaration("i64", K, Load(X, AT_L)), Declaration("f32", T1, Load(X, variable(K)))),
        [Declaration("f32", T2, Select("l < 5", Load(X, AT_L), "1.0f")), Store(Load(Y, AT_L), T2)],
        [replace(copy(Load(X, AT_L)), condition="l < 5")],
    ],
    ids=["arithmetic", "read twice", "place from memory", "not zero", "condition"],
)
def test_what_does_more_than_copy_is_none(nodes):
    assert copy_in(nodes, "0.0f") is None
