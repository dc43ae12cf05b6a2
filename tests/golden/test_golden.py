"""IR after the last pass, memory plan and source text of a few programs, pinned."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.compiler import emit
from jax_cocktail.utask.ir import LoopUTask, by_threads, is_a, is_parallel, operators_in, walk
from tests.golden.programs import DIVIDED, PROGRAMS
from tests.golden.texts import digests, divided, texts
from tests.null.programs import build


@pytest.mark.parametrize("name", [*PROGRAMS, *DIVIDED])
def test_texts(name, golden):
    for file, text in texts(name).items():
        golden(file, text)


def test_same_texts_whatever_the_order_of_hashes():
    """Sets of strings have another order in a process with another seed."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-m", "tests.golden.texts"]
    found = subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": other})
    assert json.loads(found) == digests()


@pytest.mark.parametrize("name", ["lstm_cell", "skipped_branch", "updated_row"])
def test_carries_move_no_byte(name):
    emitted = emit(PROGRAMS[name]())
    assert "memcpy" not in emitted.source
    assert {slot.space for slot in emitted.plan.slots.values()} <= {"input", "output", "workspace"}


def test_swap_takes_no_temporary():
    assert emit(PROGRAMS["swapped_carries"]()).plan.workspace_bytes == 0


def test_no_variable_has_the_name_of_a_type():
    """A letter and a number could be f32: a flag of a pooling gradient once was."""

    pool = {"padding": ((0, 0),), "select": "ge", "strides": (1,), "window": (2,)}

    def body(b, x, source):
        for _ in range(16):
            x = b.emit("cumulative", (x,), "float32", (4,), axis=0, op="max", reverse=False)
            x = b.emit("select_and_scatter_add", (source, x), "float32", (4,), **pool)
        return [x]

    source = emit(build(["float32[4]", "float32[3]"], body)).source
    declared = set(re.findall(r"\b\w+ (\w+) = ", source))
    assert len(declared) >= 64 and not declared & set(STORAGE.values())


# -- the point of each divided program -----------------------------------------------------------------------
def parallel_loops(region):
    return [s for s in walk(region) if is_parallel(s)]


def serial_loops(name):
    """The loops over time or diagonals: not parallel, and in no parallel loop."""
    body = divided(name).program.entry.body
    return [s for s in body if isinstance(s, LoopUTask) and not s.parallel]


def count(region, kind):
    return sum(o.kind == kind for o in operators_in(region))


@pytest.mark.parametrize("name", DIVIDED)
def test_the_work_is_divided(name):
    emitted = divided(name)
    assert emitted.plan.most_units == emitted.candidate.units > 1
    assert parallel_loops(emitted.program.entry)


@pytest.mark.parametrize("name", ["batch_2_cores", "batch_4_blocks"])
def test_a_batch_needs_no_barrier(name):
    entry = divided(name).program.entry
    (outer,) = (s for s in entry.body if isinstance(s, LoopUTask))
    assert outer.parallel and any(isinstance(s, LoopUTask) for s in walk(outer.body))
    assert not any(count(entry, kind) for kind in ("arrive", "wait", "exchange"))


@pytest.mark.parametrize("name", ["collatz_132_blocks", "lorenz_132_blocks"])
def test_elements_have_threads(name):
    """Nothing of a loop is in memory, and nobody waits for anybody."""
    emitted = divided(name)
    (loop,) = filter(by_threads, walk(emitted.program.entry))
    assert not any(
        count(emitted.program.entry, kind) for kind in ("block_barrier", "arrive", "wait", "exchange")
    )
    assert emitted.plan.workspace_bytes == 0 and "ck_block_barrier" not in emitted.source
    (inner,) = (s for s in walk(loop.body) if isinstance(s, LoopUTask))
    assert all(value.type.is_scalar for value in inner.carried)
    assert not any(o.kind in ("slice", "dynamic_slice", "concatenate") for o in operators_in(inner.body))


def test_elements_have_arrays():
    """The matrix of an element is in the memory of its thread, and overwritten in place: there is no copy."""
    emitted = divided("factors_132_blocks")
    (loop,) = filter(by_threads, walk(emitted.program.entry))
    own = [s for s in walk(loop.body) if is_a(s, "empty")]
    assert sorted(s.output.type.size for s in own) == [12, 12, 144]
    assert emitted.plan.thread_bytes == 576 + 64 and emitted.plan.workspace_bytes == 0


def test_one_barrier_per_step():
    (loop,) = serial_loops("lstm_2_cores")
    steps = len(parallel_loops(loop.body))
    assert steps == count(loop.body, "arrive") == count(loop.body, "wait") > 0


def test_work_between_arrive_and_wait():
    """The first statements of a step need nothing of the other units."""
    (loop,) = serial_loops("lstm_2_cores")
    kinds = [getattr(s, "kind", "") for s in loop.body.body]
    assert kinds.index("wait") > kinds.index("arrive") + 1


def test_an_exchange_replaces_the_barrier():
    (loop,) = serial_loops("exchange_4_blocks")
    assert count(loop.body, "exchange") == 1 and not count(loop.body, "wait")


def test_one_barrier_per_diagonal():
    """Three layers of four steps take six diagonals, which the plan runs in pairs."""
    (loop,) = serial_loops("wavefront_2_cores")
    assert loop.trip_count == (4 + 2) // 2
    assert count(loop.body, "wait") == 2 and len(parallel_loops(loop.body)) == 2 * 3


def test_layers_run_on_blocks_of_their_own():
    (loop,) = serial_loops("wavefront_4_blocks")
    assert {(s.first, s.trip_count) for s in parallel_loops(loop.body)} == {(0, 2), (2, 2)}
    assert count(loop.body, "exchange") == 1 and not count(loop.body, "wait")


def test_blocks_are_one_cluster():
    emitted = divided("cluster_4_blocks")
    assert emitted.plan.cluster and "#define CK_ONE_CLUSTER 1" in emitted.source
    assert any(count(loop.body, "wait") for loop in serial_loops("cluster_4_blocks"))
