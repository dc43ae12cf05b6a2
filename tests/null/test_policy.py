"""Candidates, their prices, which of them are timed, and how far a program grows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit, identity
from jax_cocktail.cost.price import (
    Comparison,
    Price,
    barriers_per_iteration,
    dispatch_seconds,
    launch_seconds,
    our_price,
    stock_price,
)
from jax_cocktail.device.host import SERVER
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.device.tuning import BLOCK, MODEL
from jax_cocktail.passes import passes
from jax_cocktail.schedule import policy
from jax_cocktail.schedule.policy import (
    candidates,
    model_profiler,
    schedule_control_flow,
    shortlist,
    worth_taking,
)
from jax_cocktail.utask.candidate import SINGLE, Candidate, way
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram, walk
from tests.null.programs import branch, build, counted, elementwise, while_loop


def dot(b, x, w):
    shape = (x.type.shape[0], w.type.shape[1])
    return b.emit(
        "dot", (x, w), "float32", shape, lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(0,)
    )


def recurrence(rows, size, trips):
    """x = tanh(x @ w), again and again."""

    def body(b, x, w):
        return counted(b, trips, (x,), lambda _, x: (elementwise(b, "tanh", dot(b, x, w)),))

    return build([f"float32[{rows},{size}]", f"float32[{size},{size}]"], body)


def parts(number):
    """A loop of 100 trips in which `number` parts each multiply their own rows, which the units share."""

    def body(b, x, w):
        def part(i, x):
            zero = b.constant(0, "int64")
            own = b.emit("dynamic_slice", (x, i, zero, zero), "float32", (1, 64, 256))
            y = b.reshape(dot(b, b.reshape(own, (64, 256)), w), (1, 64, 256))
            return (b.emit("dynamic_update_slice", (x, y, i, zero, zero), "float32", x.type.shape),)

        return counted(b, 100, (x,), lambda _, x: counted(b, number, (x,), part))

    return shared(build([f"float32[{number},64,256]", "float32[256,256]"], body))


def shared(program: UProgram) -> UProgram:
    """The same with its innermost loops marked as parallel."""

    def mark(region):
        body = tuple(
            replace(s, parallel=not inner(s), body=mark(s.body)) if isinstance(s, LoopUTask) else s
            for s in region.body
        )
        return replace(region, body=body)

    def inner(loop):
        return any(isinstance(s, LoopUTask) for s in walk(loop.body))

    return replace(program, entry=mark(program.entry))


def seconds(program, units):
    return our_price(program, units, HOST).seconds


# ---- candidates --------------------------------------------------------------------------------------------


def test_one_unit_is_one_candidate():
    assert way(1, pipeline=True) == way(1, cluster=True) == SINGLE
    assert candidates([recurrence(1, 8, 3)], 1) == (Candidate(1), way(1, distribute=False))


def test_the_simplest_comes_first():
    found = candidates([recurrence(1, 8, 3)], 2)
    assert found == tuple(way(u, distribute=d) for u in (1, 2) for d in (True, False))
    assert len({c.text for c in found}) == len({c.name for c in found}) == 4


def test_a_gpu_has_units_for_pipelines():
    usual = candidates([recurrence(1, 8, 3)], 132)
    found = candidates([recurrence(1, 8, 3)], 132, machine_of(A100))
    assert found == (*usual, way(132, pipeline=True))
    assert candidates([recurrence(1, 8, 3)], 1, machine_of(H200)) == candidates([recurrence(1, 8, 3)], 1)
    straight = build(["float32[4]"], lambda b, x: (elementwise(b, "sin", x),))
    assert candidates([straight], 132, machine_of(A100)) == (Candidate(1), Candidate(132))


def test_clusters_where_there_are_some():
    """The size that every card has room for, and the largest; never more than there are units."""
    straight = build(["float32[4]"], lambda b, x: (elementwise(b, "sin", x),))
    for units, sizes in ((132, (8, 16)), (12, (8, 12)), (4, (4,)), (1, ())):
        found = candidates([straight], units, machine_of(H200))
        assert tuple(c.units for c in found if c.cluster) == sizes
        assert all("in a cluster" in c.name for c in found if c.cluster)
    assert not any(c.cluster for c in candidates([straight], 132))
    assert way(1, cluster=True) == SINGLE
    with pytest.raises(ValueError, match="at most 16 units, not 17"):
        way(17, cluster=True)


def test_block_sizes_are_candidates():
    """Keys and names of candidates of the usual size stay as they were."""
    assert "threads" not in Candidate(4).text and "threads" not in Candidate(4).name
    sized = way(4, threads=128)
    assert sized.text == f"{Candidate(4).text} threads=128"
    assert sized.name == "4 units of 128 threads"
    assert way(16, cluster=True, threads=64).name == "16 units of 64 threads in a cluster"
    assert policy.block_sizes(HOST) == ()
    assert policy.block_sizes(machine_of(H200)) == (64, 128, 256, 512, 1024)
    small = replace(H200, threads_per_block=512)
    assert policy.block_sizes(machine_of(small)) == (64, 128, 256, 512)
    with pytest.raises(ValueError, match="a block has no -1 threads"):
        way(4, threads=-1)


@pytest.mark.parametrize(
    ("prices", "best", "asked"),
    [
        ({64: 9, 128: 2, 256: 4, 512: 5}, 128, [256, 128, 64, 512]),  # downhill, until it rises
        ({128: 5, 256: 4, 512: 3, 1024: 2}, 1024, [256, 128, 512, 1024]),
        ({128: 5, 256: 4, 512: 5}, 256, [256, 128, 512]),
        ({64: 5, 128: 3.9, 256: 4, 512: 5}, 256, [256, 128, 64, 512]),  # too little to be sure
    ],
)
def test_another_block_size_must_promise_something(prices, best, asked):
    seen = []

    def seconds(threads):
        seen.append(threads)
        return prices[threads]

    assert policy.better_size(seconds, machine_of(H200)) == best
    assert seen == asked


def test_a_program_is_emitted_for_the_threads_of_its_candidate():
    program, machine = recurrence(1, 64, 16), machine_of(H200)
    usual, sized = (emit(program, machine, candidate=way(1, threads=n)) for n in (0, 64))
    assert (usual.target.threads, sized.target.threads) == (256, 64)
    assert "#define CK_THREADS 64\n" in sized.source
    assert usual.fingerprint != sized.fingerprint
    assert emit(program, machine, candidate=Candidate(1)).fingerprint == usual.fingerprint
    assert emit(program, HOST, candidate=way(1, threads=64)).machine is HOST


def test_a_cluster_too_small_is_not_planned():
    """Sixteen units are at best so many times as fast as one, and their shared memory is faster than L2."""
    near, prices = way(16, cluster=True), {Candidate(1): 1.0, Candidate(132): 0.01}
    assert policy.worth_planning(near, {}) and not policy.worth_planning(near, prices)
    assert policy.worth_planning(near, prices | {Candidate(132): 1 / (16 * BLOCK.l2_share)})
    assert not policy.worth_planning(way(8, cluster=True), prices | {Candidate(132): 0.03})


def test_without_loops_nothing_can_be_divided():
    program = build(["float32[4]"], lambda b, x: (elementwise(b, "sin", x),))
    assert candidates([program], 2) == (Candidate(1), Candidate(2))


@pytest.mark.parametrize(("whole", "expected"), [(1.2, True), (1.0, False), (0.5, True), (4.0, False)])
def test_what_division_does_shows_with_one_unit(whole, expected):
    prices = {Candidate(1): 1.0, way(1, distribute=False): whole}
    assert policy.worth_planning(Candidate(2), prices)
    assert policy.worth_planning(way(2, distribute=False), prices) == expected
    assert policy.worth_planning(way(2, distribute=False), {})


def test_the_runtime_has_a_limit():
    assert candidates([recurrence(1, 8, 3)], 10**6)[-1].units == policy.MOST_UNITS


def test_large_programs_are_planned_in_the_usual_ways(monkeypatch):
    monkeypatch.setattr(policy, "MODEL", replace(MODEL, many_statements=2))
    assert candidates([recurrence(1, 8, 3)], 2) == (Candidate(1), Candidate(2))


@pytest.mark.parametrize("fields", [{"units": 0}, {"units": 17, "cluster": True}])
def test_a_candidate_makes_sense(fields):
    with pytest.raises(ValueError, match="unit"):
        way(**fields)


def test_a_candidate_is_part_of_the_identity():
    program = recurrence(1, 64, 16)
    keys = {identity(program, c) for c in candidates([program], 2)}
    assert len(keys) == 4
    assert emit(program, candidate=Candidate(2)).fingerprint in keys


def test_a_candidate_decides_which_passes_run():
    names = {d: {name for name, _ in passes(way(1, distribute=d))} for d in (True, False)}
    assert "distribute" in names[True] - names[False]


def test_what_fired_is_told():
    emitted = emit(recurrence(1, 64, 16))
    assert "fuse" in emitted.fired
    assert "distribute" not in emit(recurrence(1, 64, 16), candidate=way(1, distribute=False)).fired


@pytest.mark.parametrize(
    ("prices", "thorough", "expected"),
    [
        ([3.0, 1.0, 2.0], True, (1, 2, 0)),
        ([3.0, 1.0, 1.4], False, (1, 2)),
        ([1.0, 1.0, 1.0, 1.0], False, (0, 1, 2)),  # the simplest wins a tie
        ([1.0, 1.0, 1.0, 1.0], True, (0, 1, 2, 3)),
        ([1.0], False, (0,)),
        ([], False, ()),
    ],
)
def test_the_best_few_are_timed(prices, thorough, expected):
    assert shortlist(prices, thorough) == expected


# ---- prices ------------------------------------------------------------------------------------------------


def test_units_divide_parallel_loops():
    program = parts(2)
    assert seconds(program, 2) < 0.6 * seconds(program, 1)


def test_imbalance_costs():
    three, four = (seconds(parts(n), 2) for n in (3, 4))
    assert three == pytest.approx(four, rel=0.01)  # the third part has a unit to itself
    assert seconds(parts(4), 4) < 0.6 * seconds(parts(4), 3)


def test_what_is_not_parallel_gains_nothing():
    program = recurrence(64, 256, 100)
    assert seconds(program, 2) >= seconds(program, 1)


def test_waking_units_costs_a_tiny_program():
    program = shared(build(["float32[2]"], lambda b, x: counted(b, 2, (x,), lambda i, x: (x,))))
    assert seconds(program, 2) > seconds(program, 1)


def with_barriers(number):
    def body(b, x):
        def step(_, x):
            for _ in range(number):
                for kind in ("arrive", "wait"):
                    b.out.append(UOperator(kind, (), ()))
            return (elementwise(b, "sin", x),)

        return counted(b, 100, (x,), step)

    return build(["float32[8]"], body)


def test_barriers_cost_and_are_counted():
    none, two = with_barriers(0), with_barriers(2)
    assert seconds(two, 2) - seconds(none, 2) == pytest.approx(200 * SERVER.barrier_seconds)
    ((loop, waits),) = barriers_per_iteration(two)
    assert (loop.trip_count, waits) == (100, 2)
    assert barriers_per_iteration(none) == ()


def test_memory_is_as_fast_as_the_level_that_holds_an_iteration():
    rates = [SERVER.bandwidth(size) for size in (1 << 10, 1 << 19, 1 << 22, 1 << 30)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4
    fits, spills = (seconds(recurrence(1, n, 1000), 1) / n**2 for n in (256, 1024))
    assert spills > 1.2 * fits


def test_stock_pays_for_small_operators_and_we_do_not():
    def body(b, x):
        def step(_, x):
            for _ in range(20):
                x = elementwise(b, "add", x, x)
            return (x,)

        return counted(b, 100, (x,), step)

    program = build(["float32[4]"], body)
    comparison = Comparison(our_price(emit(program).program, 1, HOST), stock_price(program, 2, HOST))
    assert comparison.stock.seconds > 5 * comparison.ours.seconds
    assert not comparison.favours_stock() and not comparison.heavy()


def test_a_loop_in_a_kernel_dispatches_nothing_inside():
    program = build(
        ["float32[4]"],
        lambda b, x: counted(b, 100, (x,), lambda _, x: (elementwise(b, "sin", elementwise(b, "exp", x)),)),
    )
    stepped = stock_price(program, 2, HOST)
    spared = dispatch_seconds(program, 2, HOST, stepped)
    assert spared == pytest.approx(100 * (2 + SERVER.stock.loop_dispatches) * SERVER.stock.dispatch)
    assert 0 < spared < stepped.seconds


def test_stock_wins_heavy_products_with_more_cores():
    program = recurrence(512, 512, 10)
    ours = our_price(emit(program).program, 1, HOST)
    many = Comparison(ours, stock_price(program, 16, HOST))
    assert many.favours_stock() and many.heavy()
    assert not Comparison(ours, stock_price(program, 1, HOST)).favours_stock()


def test_the_mean_of_branches_and_the_least_of_their_convolutions():
    def body(b, selector, x):
        return branch(b, selector, lambda: (x,), lambda: (elementwise(b, "sin", x),))

    program = build(["int32[]", "float32[1000000]"], body)
    straight = build(["float32[1000000]"], lambda b, x: (elementwise(b, "sin", x),))
    assert stock_price(program, 1, HOST).seconds == pytest.approx(
        stock_price(straight, 1, HOST).seconds / 2, rel=0.01
    )
    assert stock_price(program, 1, HOST).least_convolutions == 0.0


@pytest.mark.parametrize(
    ("ours", "least", "expected"), [(2.0, 0.9, True), (0.8, 0.9, True), (0.5, 0.9, False)]
)
def test_convolutions_need_a_clear_promise(ours, least, expected):
    assert Comparison(Price(ours), Price(1.0, 1.0, 1.0, least)).hopeless() == expected
    assert not Comparison(Price(ours), Price(1.0, 1.0, 1.0, 0.0)).hopeless()


# ---- Algorithm 1 -------------------------------------------------------------------------------------------


def nested():
    """A while loop in a counted loop, and a branch behind them."""

    def body(b, selector, x):
        def inner(x):
            limit = b.full(1.0, "float32", ())
            return while_loop(
                b,
                (x,),
                lambda x: elementwise(b, "lt", x, limit, dtype="bool"),
                lambda x: (elementwise(b, "add", x, x),),
            )

        (x,) = counted(b, 10, (x,), lambda _, x: inner(x))
        return branch(b, selector, lambda: (x,), lambda: (elementwise(b, "sin", x),))

    return build(["int32[]", "float32[]"], body)


def profiler(times, asked):
    """(ours, stock) by kind: "for", "while" or "branch"."""

    def profile(statement):
        kind = "branch"
        if isinstance(statement, LoopUTask):
            kind = "for" if statement.trip_count is not None else "while"
        asked.append(kind)
        return times[kind]

    return profile


def test_growth_is_bottom_up():
    asked = []
    times = {"for": (1.0, 2.0), "while": (0.1, 0.2), "branch": (2.0, 1.0)}
    loop, choice = schedule_control_flow(nested().entry.body, profiler(times, asked))
    assert asked == ["while", "for", "branch"]
    assert (loop.taken, loop.inner[0].taken, choice.taken) == (True, True, False)
    assert loop.cut == pytest.approx(1.0, rel=1e-3)  # ten launches of what is inside instead
    assert "grows around it" in str(loop) and "stops at it" in str(choice)


def test_growth_stops_where_only_the_inside_gains():
    times = {"for": (1.5, 2.0), "while": (0.01, 0.2), "branch": (1.0, 1.0)}
    loop, _ = schedule_control_flow(nested().entry.body, profiler(times, []))
    assert not loop.taken and loop.inner[0].taken
    assert worth_taking(nested(), profiler(times, []))[0]  # whole is still better than nothing


def test_a_region_that_loses_is_left():
    times = {"for": (3.0, 2.0), "while": (0.3, 0.2), "branch": (1.0, 1.0)}
    assert not worth_taking(nested(), profiler(times, []))[0]


def test_growth_pays_the_launch_of_its_target():
    times = {"for": (1.5, 2.0), "while": (0.1, 0.2), "branch": (1.0, 1.0)}
    slow = launch_seconds(machine_of(H200))
    assert slow > 10 * launch_seconds(HOST)
    cheap, dear = (schedule_control_flow(nested().entry.body, profiler(times, []), s)[0] for s in (0.0, 0.05))
    assert dear.cut - cheap.cut == pytest.approx(10 * 0.05)
    times["branch"] = (1.0, 1.0 + slow / 2)
    times["for"] = times["while"] = (0.0, 0.0)
    assert worth_taking(nested(), profiler(times, []))[0]
    assert not worth_taking(nested(), profiler(times, []), slow)[0]


def test_the_model_is_a_profiler():
    taken, grown = worth_taking(nested(), model_profiler(cores=2, units=2))
    assert taken and len(grown) == 2
    assert all(g.ours > 0 and g.stock > 0 for g in grown)


def test_a_gpu_takes_what_its_host_would_be_asked_about():
    taken, grown = worth_taking(nested(), model_profiler(cores=2, units=132, machine=machine_of(H200)))
    assert taken and all(g.stock > 5 * g.ours > 0 for g in grown)


def test_a_gpu_leaves_large_products_to_the_library():
    program = recurrence(4096, 4096, 10)
    assert not worth_taking(program, model_profiler(cores=2, units=132, machine=machine_of(H200)))[0]
    assert worth_taking(recurrence(1, 256, 10), model_profiler(cores=2, units=132, machine=machine_of(H200)))[
        0
    ]
