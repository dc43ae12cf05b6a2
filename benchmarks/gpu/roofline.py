"""Seconds that a planned program will take on a device, and those that no program for a row can go below.

A prediction belongs to a plan. A limit belongs to a row, whatever the plan: the longest of its bytes, its
flops and a chain of latencies, which is

    steps x (hops + clocks / clock_rate + flops of a step / rate of the units that share them)

Hops, clock and rates are those of the device, measured where it was measured; the rate of tensor cores is the
data sheet's. A hop is one by a word that carries its own tag. The device's figures are of hops by a flag; the
record of an H100 has both. The hop between the blocks of a cluster was never measured: it is an estimate.

The clocks of a step are those of Hopper: [M] of our record of an H100, [P] published of the H100 (Luo et al.,
arXiv 2402.13499), [E] estimates from the instructions' latencies. What lies between a limit and a time is
work that is not on the chain, and waits that are longer than they need be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from jax_cocktail.cost.gpu import call_seconds, kernel_spent
from jax_cocktail.cost.kernel import kernel_of
from jax_cocktail.cost.xla import xla_price
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.schedule.unit_count import fix_unit_count
from jax_cocktail.utask.ir import LoopUTask, Statement, UProgram, by_threads, is_parallel, walk
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import rewrite


class Planned(Protocol):
    """A program that is planned for a mesh, such as `compiler.Emitted`."""

    @property
    def program(self) -> UProgram: ...

    @property
    def plan(self) -> MemoryPlan: ...

    @property
    def mesh(self) -> UnitMesh: ...

    @property
    def target(self) -> Target: ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one call.

    Attributes:
      seconds: with the launch.
      kernels: launches.
      barriers: on the critical path, and exchanges; each is at least one hop.
      flops: of all units together, what several of them compute again included.
      bytes_by_level: read by all units together from "shared" memory, "l2" and "memory".
    """

    seconds: float
    kernels: int
    barriers: float
    flops: float
    bytes_by_level: Mapping[str, float]


def predict(planned: Planned | UProgram, spec: DeviceSpec, unknown_trips: int | None = None) -> Prediction:
    """The prediction for a planned program; without a plan, on as many units as find work. `unknown_trips`:
    of loops whose trip count depends on data; None: as many as prices assume."""
    units = _units(planned, spec)
    if isinstance(planned, UProgram):
        kernel = kernel_of(planned, units, spec)
    else:
        kernel = kernel_of(planned.program, units, spec, planned.plan, planned.target.threads)
    found = kernel_spent(kernel, spec, unknown_trips=unknown_trips)
    return Prediction(
        seconds=call_seconds(found, kernel, spec),
        kernels=1,
        barriers=found.barriers if units > 1 else 0.0,
        flops=found.flops,
        bytes_by_level={"shared": found.bytes.shared, "l2": found.bytes.l2, "memory": found.bytes.memory},
    )


def predict_stock(program: UProgram, spec: DeviceSpec, unknown_trips: int | None = None) -> float:
    """Seconds of a call of a translated program under stock XLA's default."""

    def known(statement: Statement) -> Statement:
        if isinstance(statement, LoopUTask) and statement.trip_count is None:
            return replace(statement, likely_trips=unknown_trips)
        return statement

    alone = fix_unit_count(program, 1)
    return xla_price(alone if unknown_trips is None else rewrite(alone, known), spec).seconds


def _units(planned: Planned | UProgram, spec: DeviceSpec) -> int:
    if not isinstance(planned, UProgram):
        return min(planned.mesh.units, spec.units)
    loops = (s for s in walk(planned.entry) if is_parallel(s))
    trips = ((loop, loop.trip_count or 0) for loop in loops)
    parts = (loop.first + -(-n // (spec.warp if by_threads(loop) else 1)) for loop, n in trips)
    return min(max(parts, default=1), spec.units)


# ---- limits ------------------------------------------------------------------------------------------------

TAGGED = 0.63  # [M] of a hop by a flag: 0.428 of 0.677 us
WORD = 0.29  # [M] clocks, for each tagged word that a block receives: 1024 take 0.149 us more than one
# Clocks of what a step waits for.
MULTIPLY_ADD = 4  # [P]
MEET = 30  # [M] a barrier of a block's threads
SHARED = 29  # [P] a load from shared memory
MEMORY = 480  # [P] a load that finds nothing in the second-level cache
LINK = 27  # [E] a shuffle and an addition
MATRIX = 33  # [E] an instruction of a tensor core
ACTIVATION = 60  # [E] an exponential, a reciprocal, and what stands around them
PRODUCT = MEET + SHARED + 3 * LINK  # behind the multiply-adds of a product; its terms are in eight lanes
TENSORS = MEET + SHARED + MATRIX  # the same of a product on tensor cores
LSTM_GATES = 2 * ACTIVATION + 5 * MULTIPLY_ADD
NASRNN_GATES = 4 * ACTIVATION + 6 * MULTIPLY_ADD
LARGEST = 5 * LINK + MEET  # of a block, which holds one candidate in each lane


@dataclass(frozen=True, slots=True)
class Limit:
    """The chain of a row, and its work.

    Attributes:
      steps: of the chain, one after the other.
      clocks: of the latencies of a step.
      step_flops: those of a step that are on the chain.
      flops: all of them.
      bytes: of all operands that are read and all results.
      first_bytes: those of them without which the first step cannot end.
      shared_bytes: read from shared memory, if that may take longest.
      far, near: hops of a step, by the second-level cache or inside a cluster.
      units: those that share the flops of a step; 0: all of the device.
      tensors: the flops are those of tensor cores, in TF32.
    """

    steps: int
    clocks: float
    step_flops: float
    flops: float
    bytes: float
    first_bytes: float = 0.0
    shared_bytes: float = 0.0
    far: int = 0
    near: int = 0
    units: int = 0
    tensors: bool = False

    def seconds(self, spec: DeviceSpec) -> float:
        """On a device, without the launch."""
        rate = spec.tensor_flops if self.tensors else spec.flops
        shared_by = min(self.units or spec.units, spec.units) / spec.units
        hops = TAGGED * (self.far * spec.hop_seconds + self.near * spec.cluster_hop_seconds)
        step = hops + self.clocks / spec.clock_rate + self.step_flops / (rate * shared_by)
        others = (
            self.flops / rate,
            self.shared_bytes / spec.shared_rate,
            (self.bytes - self.first_bytes) / spec.memory_rate,
        )
        return self.first_bytes / spec.memory_rate + max(self.steps * step, *others)


def limit_seconds(row: str, spec: DeviceSpec) -> float | None:
    """Least seconds of any program for a row, without the launch; None if nobody has worked them out."""
    found = LIMITS.get(row)
    return None if found is None or spec.platform != "cuda" else found.seconds(spec)


def _lstm(batch: int) -> Limit:
    """Ten layers as a wavefront of 64 + 9 diagonals: a diagonal is a step of each layer, and a hop.

    One row: a layer's weights stay where they are, so a short diagonal takes as long as a full one, and a
    unit receives the states of its layer and of the one below. 64 rows: all units share the work of all.
    """
    cell, weights = 2 * 512 * 1024, 4 * (512 * 1024 + 2 * 1024)
    flops = batch * 64 * 10 * cell
    size = 10 * weights + 4 * batch * (64 + 1) * 256
    if batch == 1:
        return Limit(73, PRODUCT + LSTM_GATES + 512 * WORD, 10 * cell, flops, size, weights, far=1)
    return Limit(73, TENSORS + LSTM_GATES, flops / 73, flops, size, weights, far=1, tensors=True)


def _nasrnn(batch: int) -> Limit:
    """1000 steps of one product and four activations in a row, in clusters of 16 units.

    64 rows: eight clusters, each for eight rows. The half of the flops that does not wait for the state is
    done while the hop is under way. 13 activations of 128 elements a unit take two of the special units'
    operations each, of which 16 begin in a clock.
    """
    half, weights = 2 * batch * 256 * 2048, 2 * 4 * 256 * 2048
    size = weights + 4 * batch * (1000 + 1) * 256
    if batch == 1:
        clocks = PRODUCT + NASRNN_GATES
        return Limit(1000, clocks, half, 2000 * half, size, weights, near=1, units=16)
    clocks = TENSORS + NASRNN_GATES + 13 * 128 * 2 / 16
    return Limit(1000, clocks, half, 2000 * half, size, weights, near=1, units=128, tensors=True)


def _attention(batch: int) -> Limit:
    """32 tokens of four products in a row (query, scores, values, output) and a softmax; a unit for each head
    of a row, which crosses to no other.

    A product of 64 terms is in four lanes. 64 rows: every step reads all keys and values of its head from
    shared memory, and half of the heads are there before the first step.
    """
    head, caches = 2 * 6 * 64 * 64, 2 * 64 * 64 * 4  # flops of a step; bytes of keys and values
    clocks = 4 * (PRODUCT - LINK) + 5 * LINK + ACTIVATION
    heads, weights = 12 * batch, 4 * 4 * 12 * 64 * 64
    size = weights + 2 * heads * (caches + 4 * 64)
    if batch == 1:
        return Limit(32, clocks, heads * head, 32 * heads * head, size, 0, units=12)
    first, shared = heads * caches / 2, 32 * heads * caches
    return Limit(32, clocks, 0, 32 * heads * head, size, first, shared)


def _seq2seq(batch: int) -> Limit:
    """10 tokens, or 50 in the longest of 64 rows: a row of the embedding, a cell and its hop, logits and
    their largest, the hop of the candidates and the largest of those. All weights are read before the first
    token is known; the mask comes meanwhile."""
    tokens = 10 if batch == 1 else 50
    step = 2 * batch * (512 * 1024 + 256 * 3797)
    weights = 4 * (512 * 1024 + 2 * 1024 + 256 * 3797 + 3797)
    size = weights + 4 * batch * (tokens * 3797 + 2 * 256 + tokens * 256 + 50) + 4
    found = LARGEST + LARGEST + 5 * MULTIPLY_ADD  # of the logits, of four or five candidates a lane
    if batch == 1:
        clocks = MEMORY + 2 * PRODUCT + LSTM_GATES + found + (256 + 2 * 132) * WORD
        return Limit(tokens, clocks, step, tokens * step, size, weights, far=2)
    clocks = MEMORY + 2 * TENSORS + LSTM_GATES + found + 8 * 7  # seven logits a thread, eight clocks each
    return Limit(tokens, clocks, step, tokens * step, size, weights, far=2, tensors=True)


def _blockdrop() -> Limit:
    """15 convolutions: the stem and two in each of the seven blocks that run. Units share the positions and
    receive their neighbours' borders, 435 words on average: 384 of 2 x 4 positions of 16 features or 2 of 32,
    576 of half a position of 64 in the last four. The image comes from memory, and a product follows."""
    wide = 2 * 9 * 32 * 32 * 16 * 16  # flops of a convolution, the same in all three groups but
    flops = 2 * 9 * 32 * 32 * 3 * 16 + 13 * wide + wide / 2  # in the first one of the second, of stride 2
    flops += 2 * 64 * 10
    kernels = 9 * (3 * 16 + 4 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 4 * 64 * 64)
    features = 16 + 4 * 16 + 6 * 32 + 4 * 64  # a scale and a shift for each
    image, head = 32 * 32 * 3 + 15, 64 * 10 + 2 * 10
    size, first = 4 * (image + kernels + 2 * features + head), 4 * (image + 9 * 3 * 16)
    clocks = PRODUCT + 6 * MULTIPLY_ADD + 435 * WORD + (MEMORY + PRODUCT) / 15
    return Limit(15, clocks, flops / 15, flops, size, first, far=1)


LIMITS: Mapping[str, Limit] = {
    "lstm/1": _lstm(1),
    "lstm/64": _lstm(64),
    "nasrnn/1": _nasrnn(1),
    "nasrnn/64": _nasrnn(64),
    "attention/1": _attention(1),
    "attention/64": _attention(64),
    "seq2seq/1": _seq2seq(1),
    "seq2seq/64": _seq2seq(64),
    "blockdrop/1": _blockdrop(),
}
