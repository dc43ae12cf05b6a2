"""The price of programs on a GPU, ours and stock XLA's, and predictions with their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.roofline import predict
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.cost.gpu import Spent, kernel_spent
from jax_cocktail.cost.kernel import Kernel, Sync, co_resident, kernel_of
from jax_cocktail.cost.price import Comparison, our_price, stock_price
from jax_cocktail.cost.xla import unrolled_seconds
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.templates import TEMPLATES
from jax_cocktail.device.tuning import BLOCK, MODEL, STOCK
from jax_cocktail.device.unit import unit_of
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Stage, UOperator, UProgram, operators_in
from jax_cocktail.utask.plan import MemoryPlan
from tests.null.gpus import iterated_product, plan_for, recurrence, rowwise, scalars
from tests.null.meshes import block, empty, put
from tests.null.meshes import parts as parallel
from tests.null.programs import branch, build, counted, elementwise, matmul

UNITS = H200.units
CARD = machine_of(H200)


def seconds(program: UProgram, units: int = UNITS) -> float:
    return our_price(program, units, CARD).seconds


def stock_seconds(program: UProgram) -> float:
    return stock_price(program, 1, CARD).seconds


def run_of(
    program: UProgram, units: int = UNITS, plan: MemoryPlan | None = None, spec: DeviceSpec = H200
) -> Spent:
    return kernel_spent(kernel_of(program, units, spec, plan), spec)


# ---- ours --------------------------------------------------------------------------------------------------


def with_barriers(number):
    def body(b, x):
        def step(_, x):
            for _ in range(number):
                for kind in ("arrive", "wait"):
                    b.out.append(UOperator(kind, (), ()))
            return (elementwise(b, "sin", x),)

        return counted(b, 100, (x,), step)

    return build(["float32[8]"], body)


def test_barriers_cost_what_the_device_says():
    none, two = run_of(with_barriers(0)), run_of(with_barriers(2))
    each = H200.barrier_seconds + TEMPLATES.publish / H200.clock_rate
    assert two.seconds - none.seconds == pytest.approx(200 * each, rel=0.15)  # what was near is far
    assert (none.barriers, two.barriers) == (0, 200)
    slower = run_of(with_barriers(2), spec=replace(H200, barrier_seconds=2e-6))
    assert slower.seconds - two.seconds == pytest.approx(200 * (2e-6 - H200.barrier_seconds))


def test_a_cluster_meets_sooner():
    """Two barriers a trip, and no cooperative launch but one meeting before the first words are sent."""
    program, apart = with_barriers(2), MemoryPlan({}, {}, (), 0)
    near = replace(apart, cluster=True)
    saved = H200.barrier_seconds - H200.cluster_barrier_seconds
    run, met = run_of(program, 8, apart), run_of(program, 8, near)
    assert run.seconds - met.seconds == pytest.approx(200 * saved)
    prices = [our_price(program, 8, CARD, plan).seconds for plan in (apart, near)]
    first = BLOCK.cooperative_seconds - H200.cluster_barrier_seconds
    assert prices[0] - prices[1] == pytest.approx(200 * saved + first)


def test_one_unit_meets_nobody():
    assert seconds(with_barriers(2), 1) == pytest.approx(seconds(with_barriers(0), 1))


def stages(first):
    """Two parallel loops of 8 parts, the second from unit `first` on."""

    def body(b, x):
        for _ in range(2):

            def part(i, out, x=x):
                piece = block(b, x, i, 0, 8)
                for _ in range(20):
                    piece = elementwise(b, "sin", piece)
                return (put(b, out, piece, i, 0, 8),)

            made = parallel(b, 8, (empty(b, x),), part)
        return made

    program = build(["float32[64,64]"], body)
    loops = [s for s in program.entry.body if isinstance(s, LoopUTask)]
    moved = tuple(replace(s, first=first) if s is loops[1] else s for s in program.entry.body)
    return replace(program, entry=replace(program.entry, body=moved))


def test_loops_on_other_units_run_side_by_side():
    same, apart = run_of(stages(0)), run_of(stages(8))
    loading = run_of(build(["float32[64,64]"], lambda b, x: (x,))).seconds
    assert apart.seconds - loading < 0.6 * (same.seconds - loading)
    assert apart.flops == same.flops


def test_a_second_round_of_parts_costs_as_much_as_the_first():
    found = [run_of(stages(8), units).clock.max() for units in (16, 8, 4)]
    assert found[0] < found[1] < found[2]


def test_a_stage_of_a_pipeline_is_not_halved():
    def program(stage):
        def body(b, selector, x):
            (y,) = branch(b, selector, lambda: (x,), lambda: (elementwise(b, "sin", x),))
            return (y,)

        found = build(["int32[]", "float32[65536]"], body)
        marked = tuple(replace(s, stage=stage) if isinstance(s, BranchUTask) else s for s in found.entry.body)
        return replace(found, entry=replace(found.entry, body=marked))

    assert run_of(program(Stage(0, 2)), 1).seconds > 1.5 * run_of(program(None), 1).seconds - 1e-6


def test_weights_that_fit_stay_on_chip():
    small, large = (run_of(plan_for(recurrence(1, size, 100)).program).bytes for size in (512, 8192))
    weights, state = 512 * 512 * 4, 512 * 4
    assert (small.shared, small.l2) == (100 * weights + 100 * 128 * state, 0)  # each unit receives the state
    assert large.l2 > 2 * large.shared


def test_a_plan_tells_what_stays():
    planned = plan_for(recurrence(1, 512, 100))
    nothing = replace(planned.plan, parts={}, own_bytes=0)
    with_it, without = (run_of(planned.program, plan=plan) for plan in (planned.plan, nothing))
    assert with_it.bytes == run_of(planned.program).bytes
    assert without.bytes.shared == 0.0 and without.seconds > with_it.seconds
    together = way(H200.units, elements=False)
    rows = plan_for(rowwise(4096, 64, 50), together)  # nobody waits: the first-level cache will do
    assert run_of(rows.program, plan=nothing).bytes == run_of(rows.program).bytes


def test_blocks_of_one_warp_share_a_multiprocessor():
    """Sixteen of them reach its rates, each with a part of its memory."""
    assert co_resident(4096, 32, 8 << 10, H200) == 16 and co_resident(4096, 256, 8 << 10, H200) == 2
    assert co_resident(264, 32, 0, H200) == 2 and co_resident(1, 32, 0, H200) == 1
    alone, many, usual = unit_of(H200, 32), unit_of(H200, 32, 16), unit_of(H200)
    assert alone.elements < many.elements == usual.elements and many.lanes == 32
    assert many.near == usual.near / 16


def test_more_blocks_arrive_later():
    """At a barrier, one after the other."""
    kernels = (Kernel((Sync(),), units, threads=32) for units in (132, 1320))
    few, many = (kernel_spent(kernel, H200).seconds for kernel in kernels)
    assert many - few == pytest.approx((1320 - 132) * BLOCK.arrival_seconds)


def test_what_was_received_is_near():
    """What an exchange brought is in own memory, what a barrier shows is not."""
    received, shown = (plan_for(recurrence(rows, 256, 100)) for rows in (1, 5))
    kinds = [{o.kind for o in operators_in(each.program.entry)} for each in (received, shown)]
    assert "exchange" in kinds[0] and "exchange" not in kinds[1]
    near, far = (run_of(each.program, plan=each.plan).bytes.l2 for each in (received, shown))
    assert (near, far) == (0, 100 * 128 * 4 * 5 * 256)  # 128 units read five rows in each of 100 steps


def test_what_other_units_wrote_comes_from_l2():
    found = run_of(plan_for(recurrence(64, 512, 100)).program)
    assert found.bytes.l2 >= 100 * 128 * 4 * 512 * 4  # every unit reads four rows at least


def test_scalar_loops_run_in_registers():
    found = seconds(plan_for(scalars(10**6)).program, 1)
    assert found == pytest.approx(10**6 * 4 * 2.5e-9, rel=0.05)


def test_operands_are_read_once():
    one, two = (build([f"float32[{n},1048576]"], lambda b, x: (x,)) for n in (1, 2))
    assert run_of(two, 1).bytes.memory == 2 * run_of(one, 1).bytes.memory
    assert seconds(two, 1) > seconds(one, 1)


def test_a_slower_device_is_slower():
    program = plan_for(recurrence(64, 512, 100), spec=A100).program
    assert (
        our_price(program, A100.units, machine_of(A100)).seconds
        > our_price(program, A100.units, CARD).seconds
    )


# ---- stock XLA ---------------------------------------------------------------------------------------------


def test_an_unknown_trip_count_asks_the_host():
    while_, counted_ = recurrence(1, 256, None), recurrence(1, 256, MODEL.unknown_trips)
    assert stock_seconds(while_) - stock_seconds(counted_) > MODEL.unknown_trips * STOCK.host_round_trip


def chain(number):
    def body(b, x, w):
        for _ in range(number):
            x = matmul(b, x, w)
        return (x,)

    return build(["float32[1,256]", "float32[256,256]"], body)


def test_kernels_are_launched_one_by_one_or_as_a_graph():
    few, many = stock_seconds(chain(4)), stock_seconds(chain(40))
    assert few == pytest.approx(4 * STOCK.stream_kernel)
    assert many == pytest.approx(STOCK.graph_launch + 40 * STOCK.small_product)


def test_one_graph_with_unrolled_loops():
    """Known trips need neither launches of graphs nor the host; a convolution is in no graph."""
    loop, work = recurrence(4, 256, 100), unrolled_seconds(chain(1), H200) - STOCK.graph_launch
    trips = unrolled_seconds(recurrence(4, 256, 200), H200) - unrolled_seconds(loop, H200)
    assert 100 * work < trips < 100 * (work + 4 * STOCK.early_kernel)
    assert unrolled_seconds(loop, H200) < stock_seconds(loop)
    unknown = recurrence(4, 256, None)
    assert unrolled_seconds(unknown, H200) > unrolled_seconds(recurrence(4, 256, MODEL.unknown_trips), H200)
    assert unrolled_seconds(convolution(32, 16), H200) is None


def test_element_operators_are_one_kernel():
    def body(b, x):
        for _ in range(20):
            x = elementwise(b, "sin", x)
        return (x,)

    assert stock_seconds(build(["float32[256]"], body)) == STOCK.stream_kernel


def convolution(size, features):
    """A 3 x 3 convolution."""

    def body(b, x, w):
        return (
            b.emit(
                "conv",
                (x, w),
                "float32",
                (1, features, size, size),
                batch_group_count=1,
                feature_group_count=1,
                lhs_dilation=(1, 1),
                rhs_dilation=(1, 1),
                lhs_spec=(0, 1, 2, 3),
                rhs_spec=(0, 1, 2, 3),
                out_spec=(0, 1, 2, 3),
                padding=((1, 1), (1, 1)),
                window_strides=(1, 1),
            ),
        )

    return build([f"float32[1,{features},{size},{size}]", f"float32[{features},{features},3,3]"], body)


def test_only_long_operators_are_heavy():
    small, large = (stock_price(convolution(*s), 1, CARD) for s in ((32, 16), (512, 256)))
    assert small.convolutions == 0.0
    assert large.heavy == large.convolutions == large.least_convolutions > STOCK.heavy


def test_a_convolution_keeps_a_branch_out_of_graphs():
    """The host then asks which side to launch."""

    def body(b, selector, x, w):
        (inner,) = convolution(32, 16).entry.body

        def one():
            b.out.append(replace(inner, inputs=(x, w), outputs=(b.value("float32", x.type.shape),)))
            return b.out[-1].outputs

        return branch(b, selector, one, one)

    program = build(["int32[]", "float32[1,16,32,32]", "float32[16,16,3,3]"], body)
    assert stock_seconds(program) == pytest.approx(STOCK.small_convolution + STOCK.host_round_trip)


def test_large_operators_are_left_to_the_library():
    program = convolution(1024, 256)
    comparison = Comparison(our_price(plan_for(program).program, UNITS, CARD), stock_price(program, 1, CARD))
    assert comparison.favours_stock() and comparison.stock.heavy > STOCK.heavy


def test_the_least_of_a_branch_counts_as_certain():
    def body(b, selector, x, w):
        (inner,) = convolution(512, 256).entry.body
        made = replace(inner, inputs=(x, w), outputs=(b.value("float32", x.type.shape),))

        def heavy():
            b.out.append(made)
            return made.outputs

        return branch(b, selector, lambda: (x,), heavy)

    program = build(["int32[]", "float32[1,256,512,512]", "float32[256,256,3,3]"], body)
    found = stock_price(program, 1, CARD)
    assert found.least_convolutions == 0.0 < found.convolutions


# ---- predictions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [recurrence(1, 512, 100), recurrence(64, 512, 100), rowwise(4096, 64, 50), iterated_product(1024, 50)],
    ids=["one row", "64 rows", "rows alone", "matrix left"],
)
def test_a_prediction_is_above_hops_and_work(program):
    found = predict(plan_for(program), H200)
    rates = {"shared": H200.shared_rate, "l2": H200.l2_rate, "memory": H200.memory_rate}
    work = max(size / rates[level] for level, size in found.bytes_by_level.items())
    assert found.seconds > found.barriers * H200.hop_seconds + work > 0 < found.flops
    assert found.kernels == 1


def test_what_a_prediction_counts():
    planned = plan_for(recurrence(1, 512, 100))
    found = predict(planned, H200)
    assert found.barriers == 100
    assert found.bytes_by_level["memory"] == sum(v.type.nbytes for v in planned.program.entry.parameters)


def test_a_program_alone_is_predicted_like_a_planned_one():
    planned = plan_for(recurrence(1, 512, 100))
    alone, found = predict(planned.program, H200), predict(planned, H200)
    assert alone.seconds == pytest.approx(found.seconds, rel=0.05)
    assert replace(alone, seconds=found.seconds) == found


def test_one_unit_has_no_hops():
    found = predict(plan_for(recurrence(1, 64, 1000), Candidate(1)), H200)
    assert found.barriers == 0


def test_the_loops_that_users_complain_about():
    """One block, plain launch, no barrier, against launches and fusions one by one."""
    million, forward = scalars(10**6), recurrence(1, 64, 1000)
    for program, least in ((million, 50), (forward, 8), (rowwise(4096, 64, 50), 6)):
        plan = plan_for(program, way(H200.units, elements=False))
        assert stock_seconds(program) > least * predict(plan, H200).seconds


def test_short_rows_are_for_threads_and_long_ones_for_blocks():
    """The price knows when a batch has too few elements to fill the lanes of a card."""
    for program, better in ((rowwise(4096, 2, 50), True), (rowwise(4096, 64, 50), False)):
        plans = [plan_for(program, way(H200.units, elements=flag)) for flag in (True, False)]
        alone, together = (predict(plan, H200).seconds for plan in plans)
        assert (alone < together) == better


def test_words_cross_a_cluster_faster():
    """The plan for one cluster sends tagged words through shared memory."""
    program = recurrence(1, 256, 100)
    apart, near = (plan_for(program, way(8, cluster=flag)) for flag in (False, True))
    found = [predict(plan, H200) for plan in (apart, near)]
    assert near.plan.cluster and not apart.plan.cluster and found[0].barriers == found[1].barriers
    hops = found[1].barriers * (H200.hop_seconds - H200.cluster_hop_seconds)
    assert found[0].seconds - found[1].seconds > 0.9 * hops
