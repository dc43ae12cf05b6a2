"""Programs that can fail: the operator, its interpreter, the passes around it, the emitted text."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.errors import VerificationError
from jax_cocktail.primitives import translate
from jax_cocktail.primitives.equation import Equation, Program, Variable
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.candidate import SINGLE
from jax_cocktail.utask.failure import first_codes, line_of, lines_of
from jax_cocktail.utask.ir import LoopUTask, Region, operators_in
from jax_cocktail.utask.printer import fingerprint
from tests.null.programs import build, elementwise, fresh, matmul, unverified, while_loop
from tests.oracle.interpreter.common import ProgramFailure
from tests.oracle.interpreter.run import run

TEXT = "too deep\ntoo many"


def fail(builder, status, text=TEXT):
    return builder.emit("fail", (status,), "int32", (), text=text)


def checked(text=TEXT):
    return build(["int32[]", "float32[3]"], lambda b, status, x: (fail(b, status, text), x))


def kinds(region):
    return [o.kind for o in operators_in(region)]


# ---- the operator ------------------------------------------------------------------------------------------
def test_says_the_line_of_the_status():
    program = checked()
    assert int(run(program, [np.int32(0), np.ones(3, np.float32)])[0]) == 0
    for status, words in ((1, "^too deep$"), (2, "^too many$"), (3, "status 3"), (-1, "status -1")):
        with pytest.raises(ProgramFailure, match=words):
            run(program, [np.int32(status), np.ones(3, np.float32)])


@pytest.mark.parametrize(
    "status, result, text",
    [
        ("int32[2]", "int32[2]", TEXT),
        ("int64[]", "int64[]", TEXT),
        ("int32[]", "float32[]", TEXT),
        ("int32[]", "int32[]", " \n"),
        ("int32[]", "int32[]", 3),
    ],
)
def test_what_is_no_failure(status, result, text):
    dtype, shape = result.split("[")[0], tuple(int(n) for n in result[:-1].split("[")[1].split(",") if n)
    program = unverified([status], lambda b, x: (b.emit("fail", (x,), dtype, shape, text=text),))
    with pytest.raises(VerificationError, match="fail"):
        verify(program)


def _translated(*shape):
    status, out = Variable("int32", shape), Variable("int32", shape)
    return translate(
        Program((status,), (Equation("failure", (status,), (out,), {"text": TEXT}),), (out,)), "p"
    )


def test_of_one_status():
    program = _translated()
    assert kinds(program.entry) == ["fail"]


def test_of_many_statuses():
    program = _translated(2, 3)
    verify(program)
    assert kinds(program.entry).count("fail") == 1
    np.testing.assert_array_equal(run(program, [np.zeros((2, 3), np.int32)])[0], np.zeros((2, 3)))
    with pytest.raises(ProgramFailure, match="too many"):
        run(program, [np.array([[0, 0, 1], [0, 2, 0]], np.int32)])
    assert kinds(_translated(2, 0).entry) == []


# ---- codes -------------------------------------------------------------------------------------------------
def test_codes_of_several_texts():
    other = "wrong\nworse\nworst"

    def body(b, x, y):
        return fail(b, x), fail(b, y, other), fail(b, y)

    program = build(["int32[]", "int32[]"], body)
    assert first_codes(operators_in(program.entry)) == {TEXT: 0, other: 2}
    lines = lines_of(operators_in(program.entry))
    assert lines == ("too deep", "too many", "wrong", "worse", "worst")
    assert line_of(other, 2) == lines[first_codes(operators_in(program.entry))[other] + 2 - 1]
    assert first_codes([]) == {} and lines_of([]) == ()


def test_the_text_is_part_of_the_program():
    assert fingerprint(checked()) != fingerprint(checked("other"))
    assert fingerprint(checked()) == fingerprint(checked("other words\nfor the same"))


# ---- passes ------------------------------------------------------------------------------------------------
def test_stays_while_it_is_used():
    program = checked()
    assert kinds(remove_dead_code(program).entry) == ["fail"]
    unused = build(["int32[]"], lambda b, status: (fail(b, status), status)[1:])
    assert kinds(remove_dead_code(unused).entry) == []


def test_a_known_status_is_not_folded():
    program = build([], lambda b: (fail(b, b.constant(1, "int32")),))
    with pytest.raises(ProgramFailure):
        run(simplify(program), [])


def test_does_not_leave_a_loop_that_may_not_run():
    """A while loop over (n) whose body checks a status from outside."""

    def body(b, n, status):
        before, tested, after = (b.value("int32") for _ in range(3))
        with b.region() as condition:
            going = b.emit("gt", (tested, b.constant(0, "int32")), "bool", ())
        with b.region() as inner:
            less = b.emit("sub", (before, b.constant(1, "int32")), "int32", ())
            following = b.emit("add", (less, fail(b, status)), "int32", ())
        b.out.append(
            LoopUTask(
                initial=(n,),
                outputs=(after,),
                condition=Region((tested,), tuple(condition), (going,)),
                body=Region((before,), tuple(inner), (following,)),
            )
        )
        return (after,)

    program = build(["int32[]", "int32[]"], body)
    for after in (program, hoist(program), simplify(hoist(program))):
        (loop,) = (s for s in after.entry.body if isinstance(s, LoopUTask))
        assert kinds(loop.body).count("fail") == 1
        assert int(run(after, [np.int32(0), np.int32(1)])[0]) == 0
        with pytest.raises(ProgramFailure, match="too deep"):
            run(after, [np.int32(2), np.int32(1)])


def _until_small(may_fail_too):
    """while |h| > tolerance: h = tanh(xs[i] @ w + h / 2); what row i is worth is checked by status[i]."""

    def body(b, xs, w, statuses):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")

        def condition(i, h):
            norm = b.emit("reduce", (h,), "float32", (), axes=(0,), op="max")
            return b.emit("gt", (norm, b.constant(0.3, "float32")), "bool", ())

        def trip(i, h):
            row = b.reshape(b.emit("dynamic_slice", (xs, i, zero), "float32", (1, 4)), (4,))
            if may_fail_too:
                status = b.reshape(b.emit("dynamic_slice", (statuses, i), "int32", (1,)), ())
                row = elementwise(b, "add", row, _spread(b, status))
            half = elementwise(b, "mul", h, b.full(0.5, "float32", (4,)))
            z = elementwise(b, "add", matmul(b, row, w), half)
            return b.emit("add", (i, one), "int32", ()), elementwise(b, "tanh", z)

        return while_loop(b, (zero, b.full(1.0, "float32", (4,))), condition, trip)

    return build(["float32[9,4]", "float32[4,4]", "int32[9]"], body)


def _spread(b, status):
    return b.broadcast(b.convert(fail(b, status), "float32"), (4,), ())


def test_nothing_that_may_fail_runs_ahead():
    """Trips after the last one have statuses of their own."""
    xs, w = np.zeros((9, 4), np.float32), np.eye(4, dtype=np.float32)
    statuses = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1], np.int32)
    limits = LoopTuning(flops=0, trips=2, chunk=4)
    plain = hoist(simplify(_until_small(False)))
    assert distribute(plain, limits) is not plain
    checked_too = distribute(hoist(simplify(_until_small(True))), limits)
    number, _ = run(checked_too, [xs, w, statuses])
    assert int(number) == 2
    with pytest.raises(ProgramFailure, match="too deep"):
        run(checked_too, [xs, w, statuses[::-1]])


# ---- text --------------------------------------------------------------------------------------------------
def test_text_for_the_host():
    text = emit(checked(), HOST).source
    assert text == emit(checked("other words\nfor the same"), HOST).source
    assert "int failed = 0;" in text and "return failed;" in text and "return 0;" not in text


def test_text_of_a_program_that_cannot_fail():
    program = build(["float32[3]"], lambda b, x: (b.emit("neg", (x,), "float32", (3,)),))
    text = emit(program, HOST).source
    assert "fail" not in text and "return 0;" in text
    other = emit(program, machine_of(H200, 64), candidate=SINGLE)
    assert "fail" not in other.source
    assert not launch_plan(other.program, other.plan, other.machine).can_fail


def test_text_for_a_gpu():
    """The other text's statuses count on from the first one's; one thread tells."""

    def body(b, x, y):
        return fail(b, x), fail(b, y, "third")

    emitted = emit(build(["int32[]", "int32[]"], body), machine_of(H200, 64), candidate=SINGLE)
    assert emitted.source.count("ck_lane() == 0) ck_fail(unit, u32(") == 2
    assert "ck_fail(unit, u32(2 + " in emitted.source and "third" not in emitted.source
    assert launch_plan(emitted.program, emitted.plan, emitted.machine).can_fail


@pytest.mark.parametrize("enabled", [True, False])
def test_a_compiler_error_leaves_the_garbage_collector_as_it_was(enabled):
    wrong = unverified(["float32[2]"], lambda b, x: (fresh(b, x.type),))
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(VerificationError, match="before its definition"):
            emit(wrong)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
