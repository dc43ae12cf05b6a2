"""The tuning constants of the compiler and its programs, and the times of stock XLA on GPUs.

The numbers of cards are in `device.spec`, those of the host in `device.host`, and a number that defines one
algorithm is in its module. Each number here is [M] measured, by others in public microbenchmarks of H100
unless marked otherwise, or [E] estimated, until somebody fits it to a machine. If a header of `gpu_src` has
the same number, a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.device.block import Block


@dataclass(frozen=True, slots=True)
class ProgramTuning:
    """Generated programs on every machine [E]."""

    # Length of the text. Compilers take long for large functions, and spill the registers of large loops.
    lane_loop: int = 48  # operators of a lane loop, and the depth up to which they are nested
    streams: int = 8  # arrays of a lane loop whose roots share none: roots that share some may still join
    scalar_group: int = 256  # operators of a group of scalars, which is straight-line code
    outlined_loops: int = 32  # lane loops above which each becomes a function
    unrolled_layers: int = 32  # stacked layers that become separate statements, or rows of stacked state
    unrolled_operators: int = 800  # of all unrolled layers; scalars do not count because they fold
    doubled_statements: int = 600  # of a loop that is unrolled by two; in longer ones a barrier hardly counts
    parameter_trips: int = 9  # the fewest of a loop that are a launch parameter; compilers unroll fewer
    parameter_lanes: int = 64  # the fewest iterations of a lane loop that may be a launch parameter
    some_rows: int = 32  # the fewest of a product that may be a launch parameter
    many_rows: int = 132  # from here on a product divides its rows as any larger number of them
    unchecked: int = 1 << 16  # flops of a loop that need not look whether its call is stopped: less than 1 ms
    doubled_trips: int = 4  # the fewest of a loop that is worth two buffers

    # Flops of one element.
    recomputed_flops: int = 4  # recomputing more costs more than a store and a load
    hoisted_flops: int = 8  # an invariant element operator with fewer is not worth a buffer

    # Bytes.
    replicated_bytes: int = 32 << 10  # up to this size every unit computes its own copy of a mesh array
    updated_bytes: int = 512 << 10  # the same of an array that loops update by pieces of `replicated_bytes`
    overlap_bytes: int = 1 << 20  # smaller shared buffers never overlap: reusing memory costs a barrier
    copied_bytes: int = 4 << 10  # least part of an array that a unit copies: the loop around it takes less

    gathered_share: float = 1 / 4  # of an array's elements: up to here those gathered are computed in place
    select_share: float = 1 / 8  # of a row's elements: up to here selection is cheaper than sorting
    sum_block: int = 1024  # elements that are added in f32 before their sum goes to an f64, for accuracy


@dataclass(frozen=True, slots=True)
class ModelTuning:
    """The cost model on every machine, and how far choices rely on it [E]."""

    unknown_trips: int = 16  # of a loop whose trip count is known only at run time
    likely_trips: int = 256  # at most, of one that the program bounds: many bounds are never reached
    unrolled_trips: int = 32  # of an innermost loop of one thread on a GPU, which compilers unroll
    settling_trips: int = 2  # of one that runs until flags of batch elements have settled
    flops_per_byte: int = 8  # a core does so many while it moves a byte

    many_statements: int = 1000  # a longer program takes long to plan, so it gets only the usual candidates
    most_timed: int = 3  # candidates of a call
    unsure: float = 1.5  # the model cannot rank candidates whose prices differ by a smaller factor
    alike: float = 1.1  # prices that differ by a smaller factor are not worth another program

    # Bytes that the operators of a region without control flow touch, at least, each for itself. A core moves
    # them in the time of a call.
    stitched_bytes: int = 16 << 10
    # [M] On two AVX-512 cores the model overestimates the speedup of such a region by up to 6.4 times
    # (`benchmarks.census`, quantise). Where nothing can be measured, it has to promise more.
    stitched_gain: float = 8.0

    # The model knows little about convolutions.
    convolution_seconds: float = 0.5e-3  # of a call under stock XLA from which convolutions decide; ...
    convolution_gain: float = 1.5  # ... then the model has to promise at least this speedup


@dataclass(frozen=True, slots=True)
class LoopTuning:
    """Loop distribution and pipelining on every machine [E]."""

    flops: int = 8192  # of one step's product; a smaller one stays in its loop
    trips: int = 4  # the fewest of a loop or strip that is divided
    chunk: int = 16  # steps that a while loop takes at once
    stages: int = 64  # of a wavefront; each is code of its own

    # Bytes.
    strip_bytes: int = 8 << 20  # that a strip keeps for later loops, to stay in cache
    batched_bytes: int = 64 << 20  # that all steps keep for the products before and after a wavefront
    handed_bytes: int = 4 << 20  # that one stage passes to the next per step


@dataclass(frozen=True, slots=True)
class FactorTuning:
    """Right factors of products that a core packs before a loop [E]."""

    reads: int = 32  # least reads of the copy by blocks of rows: it takes as long as two or three of few rows
    # [M] The same where lines share sets of the caches: a core fetches the lines behind in vain, and reads at
    # half the rate of panels.
    alike_reads: int = 12
    block_rows: int = 6  # most rows of a block (kCkBlockRows)
    copied_depth: int = 128  # products of an element from which on a copy of it takes next to no time

    # Bytes.
    bytes: int = 64 << 10  # of a matrix; a smaller one stays in the nearest cache wherever its lines lie
    most_bytes: int = 64 << 20  # of all copies of a unit
    alike_bytes: int = 2 << 10  # multiples of which lines are apart that share sets
    panel_bytes: int = 64  # of a line of a panel: a cache line (kCkPanelBytes)


@dataclass(frozen=True, slots=True)
class BatchTuning:
    """The thresholds of `recover` [M], on two AVX-512 cores."""

    most: int = (1 << 31) - (1 << 15)  # batch elements: slots, and lists of elements, count them in 32 bits
    slots: int = 32  # batch elements computed together if each is small
    few_slots: int = 16  # the same of a batch that has no more than that
    rows: int = 8  # batch elements computed together if they share the read of weights
    element_bytes: int = 256  # from this size one batch element fills vector registers by itself
    slot_bytes: int = 16 << 10  # of the carries in all slots together
    rounds: int = 8  # least batch elements per slot of a part, so that few slots are idle at its end
    parts: int = 16  # most for each unit: the durations of so many differ little from unit to unit
    most_repeated: float = 2.0  # of the flops of a side, in the work for its batch elements in turn
    branch_flops: float = 4096.0  # of a side per batch element, from which only those that take it compute it
    parallel_flops: float = 1 << 20  # of a side for the whole batch, from which it is divided over the units

    def width(self, elements: int, most: int = 1 << 20) -> int:
        """The number of small batch elements to compute together, at most `most`; 0: they are too few."""
        widths = (min(slots, most) for slots in (self.slots, self.few_slots))
        return next((width for width in widths if elements > width), 0)

    def parts_of(self, elements: int, width: int, units: int) -> int:
        """The number of parts, each with its own slots, that so many units take in turn; none is empty."""
        few = min(elements // (2 * width), units)
        parts = max(min(-(-elements // (width * self.rounds)), units * self.parts), few) if units > 1 else 1
        return -(-elements // -(-elements // max(parts, 1)))


@dataclass(frozen=True, slots=True)
class ElementTuning:
    """Batch elements that have a thread of a GPU each [E]."""

    fewest: int = 64  # elements: fewer leave most lanes of a few warps idle
    most: int = 1 << 30  # elements: positions are counted in 32 bits, a step of all threads at a time
    enough: int = 1 << 17  # elements, which fill a card: then further axes of a batch stay arrays
    numbers: int = 64  # of an array of one element, each of which is a register
    local: int = 1024  # of an array in a thread's own memory: 128 KiB of a warp stay in the nearest cache
    carried: int = 256  # numbers of all arrays that a loop carries for one element
    statements: int = 20000  # of the code for one element
    warp_numbers: int = 32  # of an array of one element from which a warp may run it
    block_numbers: int = 4096  # of an array of one element, at most, if a block runs it
    most_blocks: int = 1 << 16  # elements that blocks run; each may have memory of its own
    branch_flops: float = 64.0  # of a side of a select, from which only elements that take it compute it
    side_flops: float = 256.0  # the same outside of their loops, of a side without a loop
    # [M] The latency of threads: from four rows in the laboratory, with one warp and with 32.
    issue_clocks: float = 0.8  # of an operation of a warp: multiplications and additions become one
    lone: float = 1.9  # such times that a scheduler needs with one warp alone, which waits for itself
    chain: float = 0.72  # of an operation in a chain, by one that all threads of a block repeat
    voted: float = 256.0  # operations of a lane of a warp, for which one vote of all lanes is cheap
    most_turns: int = 8  # of a loop between two votes: lanes that are done wait for the next one
    beside: float = 6.0  # of the operations of an innermost loop, before and behind it, that few lanes run
    sided: float = 2.0  # batch elements of a thread from which a block gathers those that take one side
    sided_flops: float = 4096.0  # of the dearest side of a branch from which it does, with all iterations
    slots: int = 128  # elements computed together if they share weights: rows that fill matrix instructions
    pieces: int = 16  # of a slot's large array that blocks fill side by side
    uneven: int = 4  # the trips of the longest element, by the mean: half that of 400 exponential lengths

    def rounds(self, operations: float) -> int:
        """The batch elements of a thread from which it pays that lanes do not wait for each other. To take
        one takes as long as a load from memory, which many operations hide."""
        return 4 if operations >= self.voted / 8 else 16

    def turns(self, operations: float) -> int:
        """The iterations of a loop between two votes."""
        return int(min(max(self.voted / max(operations, 1.0), 1.0), self.most_turns))

    def width(self, elements: int) -> int:
        """The number of slots of a batch that shares weights; 0: it has too few elements to refill them, or
        too many to count."""
        widths = (self.slots, self.slots // 2) if elements <= self.most else ()
        return next((n for n in widths if elements >= 2 * n), 0)


@dataclass(frozen=True, slots=True)
class DivisionTuning:
    """The division of work over units [E]; GPUs differ where `BlockTuning` says so."""

    # So much of either in one execution of a tile group pays for its barrier (about 0.25 us on two cores).
    flops: float = 20_000
    bytes: float = 64 << 10

    # Most bytes of a part in each row of an array that leaves the cache for the part to be a short piece.
    # [M] On two AVX-512 cores, parts of 128 bytes of each row take 1.4 times as long as rows (batch norm of
    # `benchmarks.census`).
    piece_bytes: int = 512

    again: float = 0.1  # largest share of a nested uTask's work that every part may recompute
    balance: float = 0.7  # least share of busy units
    most: int = 4  # parts per unit
    kept: float = 1 / 3  # of a core's cache: the part of a value that it computes and reads again
    least_part: int = 16  # least length of parts that need not divide the axis
    longer: float = 1.1  # most of the longest part, in the mean one, for parts of whole vectors
    light: float = 4096  # most flops of a value that is recomputed, not stored

    # Most seconds of products with divided loop bodies, in those of independent parts.
    together: float = 0.8
    thin_rate: float = 100e9  # [M] flops per second of products of a few rows, on one core of a Zen 4


@dataclass(frozen=True, slots=True)
class PartialTuning:
    """Reductions that are split into parts [E]. None of these numbers depends on the number of units, so that
    the parts are the same for all of them."""

    parts: int  # of a result element; as many result elements occupy all units by themselves
    bytes: int = 128 << 10  # of the operand, at least: every unit reduces less sooner than a barrier takes
    row_elements: int = 128  # of a part along the fastest axis, at least
    column_elements: int = 64  # of a part along another axis, at least: each part stores a whole row
    column_most: int = 256  # the same at most: a lane adds them one after the other in f32
    spread: int = 4  # up to so many times the parts, if they are then equal
    even: int = 128  # equal parts whose number has a larger common divisor with this suit more units


@dataclass(frozen=True, slots=True)
class CollapseTuning:
    """Groups along an axis whose elements a core computes side by side [E]."""

    group: int = 24  # [M] most elements of a group: longer ones fill vector registers by themselves
    rows: int = 16  # fewest elements of each column: combining the columns of a group takes as long as some
    width: int = 16  # fewest columns
    table: int = 8  # times as many elements are computed from a table, at least


@dataclass(frozen=True, slots=True)
class BlockTuning:
    """Thread blocks of generated programs: their shape, their memory, and the rates that they reach."""

    threads: int = 256  # [E] of a block: eight warps of 32 hide most latency, and their barrier stays cheap
    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024)  # other numbers of threads that may be worth it
    size_gain: float = 1.05  # [E] what the model must promise of one: it knows no registers
    most_together: int = 8  # [E] iterations whose loads are in flight; more cost registers and length
    usual_registers: int = 128  # [E] of a thread, before the compiler says
    rows_together: tuple[int, ...] = (128, 32)  # [E] of a product whose rows are a launch parameter
    few_rows: int = 8  # [E] rows of a product that streams its matrix and keeps no tiles

    # Products whose matrix stays in registers while a loop runs [E].
    beside_held: int = 95  # registers of a thread for everything but held matrices, ...
    beside_held_and_tiles: int = 223  # ... and in a loop with products by tiles, which fill registers
    held_rows: int = 8  # of the other operand, at most
    held_row_elements: int = 2048  # of all these rows: a warp holds them while it multiplies
    held_rows_together: int = 24  # of all products that one call makes: a thread holds their sums at once
    held_trips: int = 4  # least trips of the loop

    # Lane loops [E].
    batch_lines: int = 96  # lines of the iterations that a thread takes together; more fill all registers
    call_lines: int = 4  # lines as which a call counts
    early_loads: int = 16  # of an element that are done before the statements in front of it, at most
    early_beside_tiles: int = 8  # the same before a product that copies both operands, which fills registers
    early_barriers: int = 8  # back to so many block barriers: what lies between takes longer than a load
    whole_rows: int = 4  # up to so many rows are reduced by the whole block, one after the other, ...
    whole_length: int = 8  # ... if a row has so many elements per thread
    warp_length: int = 64  # elements of a single row that each warp reduces for itself, without a barrier
    stored_row: int = (
        32  # threads per row from which a reduction also stores elements: then accesses coalesce
    )
    scan_threads: int = 8  # threads per row above which running sums are made by whole blocks, inverted

    # 2-D tilings and other divisions [E].
    most_turns: int = 8  # blocks that a unit takes one after the other
    grid_share: float = 0.9  # one pays if it takes less than this share of the time of parts along one axis
    close: float = 1.05  # fewer parts win if they are slower by less than this factor
    most_groups: int = 8  # of blocks along the second axis, if parts leave a remainder; ...
    small_rest: int = 4  # ... so many remainders are no more than a part
    light: float = 32 << 10  # most flops of a value that is recomputed, not stored
    pack_trips: int = 2  # least trips of a loop that packs its weights, which then stay in shared memory
    load_bytes: int = 16  # of a thread, at most; if the axis is a multiple of this, so are the parts

    # Bytes.
    least_bytes: int = 1 << 10  # scratch of a block of one warp, if its program has no tiles
    small_bytes: int = 8 << 10  # [E] scratch: sums of products of few rows, exchange between warps
    dot_bytes: int = 36 << 10  # [E] scratch: stages of the tiles of two matrices; more gains little
    tensor_bytes: int = 34 << 10  # [E] the same for tensor cores: two stages of 64 rows, or sums of 64 x 128
    conv_bytes: int = 48 << 10  # [E] the same of a convolution
    portable_bytes: int = 4 << 20  # [E] of the workspace, for buffers otherwise in shared memory
    # [E] Of a value that crosses as tagged words. A barrier with the read after it takes 1 us, an exchange
    # 0.6 us, and each of its words 1/5000 us (8 bytes for each of 130 units at 5.5 TB/s): at most 0.8 us.
    exchange_bytes: int = 4096
    tagged_bytes: int = 8  # of a 32-bit word that crosses units with the number of its step

    # Shares of the data sheet's rates that blocks reach at the sizes of loop bodies [E].
    product_share: float = 0.5
    convolution_share: float = 0.3
    tensor_share: float = 0.3  # of tensor cores, by warps that load their own operands
    element_share: float = 0.6  # one operation waits for the previous one; other warps hide part of that
    near_share: float = 0.85  # of shared memory; the rest is scratch and other data of a part
    l2_share: float = 4.0  # [E] speed of shared memory relative to L2, for plans that need more of it

    # Seconds.
    statement_seconds: float = 40e-9  # [M] a barrier of the block (29 clocks), the latency of shared memory
    far_seconds: float = 250e-9  # [M] until the first bytes of another unit arrive: a round trip to L2
    reduce_seconds: float = 80e-9  # [E] shuffles, one exchange through shared memory
    ramp_seconds: float = 1.6e-6  # [E] from the first block's start to the last one's end, beside the launch
    arrival_seconds: float = 1e-9  # [E] of a block at a barrier: atomic additions to one word
    cooperative_seconds: float = 0.5e-6  # [E] delay of the launch of blocks with barriers

    def held_bytes(self, block: Block, beside_tiles: bool = False) -> int:
        """Bytes of matrices that the registers of a block keep while a loop runs.

        `beside_tiles`: the loop has products by tiles.
        """
        others = self.beside_held_and_tiles if beside_tiles else self.beside_held
        return 4 * block.threads * max(block.registers - others, 0)


@dataclass(frozen=True, slots=True)
class StockTuning:
    """Stock XLA on a GPU. Seconds [M] unless marked otherwise."""

    stream_kernel: float = 2.5e-6  # the host enqueues one kernel
    graph_launch: float = 7e-6  # of a small graph: 6 to 8
    # A kernel of a long graph, which XLA lets begin before the previous one ends (programmatic dependent
    # launch). Not measured, estimate: the 1.1 us of a launch in a graph of an H100, less what overlaps.
    early_kernel: float = 0.7e-6
    host_round_trip: float = 9e-6  # of an unknown trip count, per trip: 8 to 10
    conditional: float = 2.5e-6  # [E] a conditional node of a graph
    small_product: float = 2.5e-6  # the shortest call of cuBLAS: 2 to 4
    small_convolution: float = 8e-6  # the shortest call of cuDNN, layout changes included: 5 to 15
    heavy: float = 30e-6  # [E] from this time on a tuned library is worth more than a fused kernel

    fewest_in_graph: int = 5  # kernels: XLA's default; fewer in a row are not captured
    tile: int = 64 * 64  # [E] elements of a result that fill a unit
    # Shares of the tensor cores' and of memory's peak that libraries reach [E].
    product_share: float = 0.7
    convolution_share: float = 0.3
    memory_share: float = 0.7


@dataclass(frozen=True, slots=True)
class TraceTuning:
    """Timelines [E]."""

    stamps: int = 4096  # that a unit keeps, of 16 bytes each
    # A statement is worth a stamp from this weight of its work on (`cost.work`): it then takes ten times as
    # long as a stamp, which takes about 10 ns on a core and 30 cycles of a block.
    host_weight: float = 50_000
    block_weight: float = 2_000


PROGRAM = ProgramTuning()
MODEL = ModelTuning()
LOOPS = LoopTuning()
FACTORS = FactorTuning()
BATCH = BatchTuning()
ELEMENTS = ElementTuning()
CORE_PARTIALS = PartialTuning(parts=64)
BLOCK_PARTIALS = PartialTuning(parts=256)
COLLAPSE = CollapseTuning()
BLOCK = BlockTuning()
STOCK = StockTuning()
TRACE = TraceTuning()
