"""The GPU target: a unit is a thread block. Spellings, memory and launch, common to all GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from jax_cocktail.cost.unit_time import arithmetic
from jax_cocktail.cost.work import rows
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.exchange import anything_crosses, tagged_words
from jax_cocktail.utask.failure import KIND as FAIL
from jax_cocktail.utask.ir import UOperator, UProgram, operators_in
from jax_cocktail.utask.plan import LaunchPlan, MemoryPlan
from jax_cocktail.utask.sizes import Parameter

LINE_BYTES = 128  # of the header: the counter of the units' barrier, as long as a line of the cache; and
TAGGED_PAIR_BYTES = 2 * BLOCK.tagged_bytes  # a tagged word in each of two buffers
HEADER_STEP = 256  # bytes, of which a header is a multiple
_HEADERS: tuple[str, ...] = ("base", "units", "refill", "index", "arith", "block", "math", "random")
_HEADERS += ("dot", "conv", "linalg", "sort")

# Templates take smaller tiles where there is less.
TILE_BYTES = {"dot": BLOCK.dot_bytes, "conv": BLOCK.conv_bytes}


def template_bytes(program: UProgram, one_warp: bool = False) -> int:
    """Bytes of shared memory that the templates of a program use while they run. Those of a block of one
    warp exchange nothing between warps, and their tiles are small, so that many blocks have room."""
    tiled = (_tile_bytes(o, one_warp) for o in operators_in(program.entry) if is_tiled(o))
    return max(tiled, default=BLOCK.least_bytes if one_warp else BLOCK.small_bytes)


def _tile_bytes(operator: UOperator, one_warp: bool) -> int:
    if one_warp and operator.kind == "dot":
        return BLOCK.small_bytes
    on_tensor_cores = operator.kind == "dot" and arithmetic(operator) in ("halves", "tensors")
    return BLOCK.tensor_bytes if on_tensor_cores else TILE_BYTES[operator.kind]


def is_tiled(operator: UOperator) -> bool:
    """False for a product with few rows or columns, which streams its matrix and keeps no tiles."""
    return operator.kind == "conv" or operator.kind == "dot" and min(rows(operator)) > BLOCK.few_rows


def launch_plan(
    program: UProgram,
    plan: MemoryPlan,
    machine: Machine,
    sizes: tuple[int, ...] = (),
    given: Mapping[Parameter, int] = MappingProxyType({}),
) -> LaunchPlan:
    """The launch plan of a planned program for a GPU. `sizes`: the launch parameters; `given`: the numbers of
    the call for general ones."""
    assert machine.spec is not None
    operators = tuple(operators_in(program.entry))
    crossing, words = anything_crosses(operators), tagged_words(operators, plan.most_units)
    plan = plan.in_call(given)  # the text has room for the words of as many units as there may be
    front = header_bytes(words, 1 + die_lines(machine.spec))  # free where nothing crosses
    near_bytes = near_words_bytes(words) if plan.cluster else 0
    portable_units = min(plan.most_units, max(BLOCK.portable_bytes // plan.own_bytes, 1))
    return LaunchPlan(
        header_bytes=front if crossing else 0,
        most_units=plan.most_units,
        threads=machine.target.threads,
        resident_shared_bytes=plan.template_bytes + plan.own_bytes + near_bytes + plan.resident_bytes,
        portable_shared_bytes=plan.template_bytes,
        workspace_bytes=front + _rounded(portable_units * plan.own_bytes) + plan.shared_bytes,
        cooperative=crossing,
        resident_units=plan.resident_units,
        portable_units=portable_units,
        cluster=plan.cluster,
        sizes=sizes,
        can_fail=any(o.kind == FAIL for o in operators),
    )


def die_lines(spec: DeviceSpec) -> int:
    """CK_DIE_LINES: lines of the header for the dies of a device."""
    return 2 * spec.dies if spec.dies > 1 else 0


def header_bytes(words: int, lines: int = 1) -> int:
    """CK_FRONT_BYTES of a program with this many tagged words, and lines for counters and signals: the size
    of its header, if anything crosses."""
    return _rounded(LINE_BYTES * lines + TAGGED_PAIR_BYTES * words)


def near_words_bytes(words: int) -> int:
    """CK_NEAR_WORDS_BYTES: bytes of this many tagged words in the shared memory of each cluster block."""
    return _rounded(TAGGED_PAIR_BYTES * words)


def _rounded(size: int) -> int:
    return (size + HEADER_STEP - 1) // HEADER_STEP * HEADER_STEP


def gpu_target(name: str, threads: int, warp: int = 32) -> Target:
    """The spellings for blocks of this many threads, in warps; `gpu_src` says what they mean."""
    return Target(
        name=name,
        headers=(*_HEADERS, "program", "exchange", "trace"),
        threads=threads,
        index="i32",
        copy="ck_copy({target}, {source}, {size});",
        table="CK_TABLE",
        block_barrier="ck_block_barrier();",
        prologue=(
            f"#define CK_THREADS {threads}",
            "#define CK_SCRATCH_BYTES {scratch_bytes}",
            "#define CK_OPERANDS {operands}",
            "#define CK_RESULTS {results}",
            "#define CK_MOST_UNITS {most_units}",
            "#define CK_RESIDENT_UNITS {resident_units}",
            "#define CK_SHARED_BYTES {shared_bytes}",
            "#define CK_OWN_BYTES {own_bytes}",
            "#define CK_RESIDENT_BYTES {resident_bytes}",
        ),
        assume="CK_ASSUME({});",
        sized=("#define CK_SIZES {sizes}",),
        own_sized=("#define CK_OWN_SIZE {own_size}",),
        sized_spaces=frozenset(("workspace", "private")),  # constant places in shared memory cost nothing
        apart=("#define CK_NOTHING_CROSSES 1",),
        tagged=("#define CK_TAGGED_WORDS {tagged_words}",),
        cluster=("#define CK_ONE_CLUSTER 1",),
        entry=(
            "template <bool RESIDENT>\n"
            "CK_INLINE void ck_body(const void* const* operands, void* const* results,\n"
            "                       u8* workspace, CkUnit* unit)"
        ),
        footer=("CK_ENTRIES",),
        outline=(
            "template <bool RESIDENT>\nCK_NOINLINE {result} {name}({parameters}) {{",
            "{name}<RESIDENT>({parameters})",
        ),
        part=(
            "template <bool RESIDENT>\n"
            "CK_NOINLINE void {name}(u8* workspace, u32* error{parameters}) {{\n  CK_PART",
            "{name}<RESIDENT>(workspace, unit->error{parameters})",
        ),
        role=(
            "template <bool RESIDENT>\n"
            "CK_NOINLINE {result} {name}(u8* workspace, u32* error, u32 epoch{parameters}) {{\n  CK_ROLE",
            "unit->epoch = {name}<RESIDENT>(workspace, unit->error, unit->epoch{parameters})",
        ),
        fail="ck_fail(unit, u32({code}));",
        far="{name} = ck_far({name});",
        near="{name} = ck_near<RESIDENT>({name});",
        most_together=BLOCK.most_together,
        holds=True,
        template_bytes=partial(template_bytes, one_warp=threads == warp),
    )
