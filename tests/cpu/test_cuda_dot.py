"""Products of gpu_src: every path against float64 NumPy on the emulator, and what nvcc makes of them."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import site
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from jax_cocktail.analysis.contraction import NONE, Axis, Contraction
from jax_cocktail.codegen.contraction import dot_text
from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.cost.dot_plan import DotPlan, dot_form, dot_plan
from jax_cocktail.utask.tensor_order import PACKED
from tests.cpu import cuda_text
from tests.cpu.arrays import DTYPES, FLOATS
from tests.cpu.emulation import emulator

F32 = ("f32", "f32", "f32")
F64 = ("f64", "f64", "f64")
BF16 = ("bf16", "bf16", "bf16")
F16 = ("f16", "f16", "f32")
INTEGERS = (("i8", "i8", "i32"), ("u16", "i16", "u16"), ("i32", "u8", "i64"), ("bool", "bool", "bool"))
MIXED = (("bf16", "f32", "f32"), ("f32", "f64", "f32"), ("bf16", "bf16", "f64"), ("i32", "i32", "f32"))


@dataclass(frozen=True)
class Product:
    """o = a @ b for each of a batch. `order`: axes of a, b and o in memory, outermost first.

    pad: spare elements of every line. shift: elements between an allocation and the array. own: the right
    operand lies in shared memory. packed: it is packed for tensor cores. threads, scratch: of the block.
    """

    path: str
    m: int
    n: int
    k: int
    order: str = "mk kn mn"
    types: tuple[str, str, str] = F32
    batch: int = 1
    pad: int = 0
    shift: int = 0
    own: bool = False
    packed: bool = False
    tf32: bool = False
    threads: int = 128
    scratch: int = 32768

    @property
    def orders(self) -> list[str]:
        return self.order.split()

    def lines(self, side: int) -> tuple[int, int]:
        """Shape of one matrix in memory."""
        outer, inner = self.orders[side]
        return getattr(self, outer), getattr(self, inner) + self.pad

    def size(self, side: int) -> int:
        return self.shift + self.batch * self.step(side)

    def step(self, side: int) -> int:
        rows, columns = self.lines(side)
        return rows * columns

    def strides(self, side: int, axes: str) -> tuple[int, int]:
        outer, inner = self.orders[side]
        steps = {outer: self.lines(side)[1], inner: 1}
        return steps[axes[0]], steps[axes[1]]

    def view(self, side: int, data: np.ndarray) -> np.ndarray:
        """[batch, m, k], [batch, k, n] or [batch, m, n] of the operand `data`."""
        if side == 1 and self.packed:
            return self._unpacked(data[self.shift :])
        order = self.orders[side]
        whole = data[self.shift :].reshape(self.batch, *self.lines(side))
        inner = whole[:, :, : whole.shape[2] - self.pad]
        return inner if order == ("mk", "kn", "mn")[side] else inner.swapaxes(1, 2)

    def _unpacked(self, data: np.ndarray) -> np.ndarray:
        """[batch, k, n] of blocks of 8 columns and 16 words of k, as kCkDotPacked describes them."""
        pair = 4 // data.itemsize
        blocks = data.reshape(self.batch, self.n // 8, self.k // (16 * pair), 8, 16 * pair)
        return blocks.transpose(0, 2, 4, 1, 3).reshape(self.batch, self.k, self.n)

    @property
    def contraction(self) -> Contraction:
        (a_m, a_k), (b_k, b_n), (o_m, o_n) = map(self.strides, range(3), ("mk", "kn", "mn"))
        b_k, b_n = (PACKED, 0) if self.packed else (b_k, b_n)
        rows, columns = Axis(self.m, (a_m, 0, o_m)), Axis(self.n, (0, b_n, o_n))
        return Contraction(NONE, rows, columns, Axis(self.k, (a_k, b_k, 0)), ())

    def plan(self, gpu: emulator.Gpu) -> DotPlan:
        a, b, o = (next(name for name in STORAGE if STORAGE[name] == t) for t in self.types)
        form = dot_form(self.contraction, (a, b, o), self.tf32)
        return dot_plan(form, cuda_text.block(self.threads, gpu), self.scratch)

    @property
    def numbers(self) -> tuple[str, str]:
        """Arguments of a template: types, sizes and strides of the operands; strides of the result."""
        read = ("kCkDotPacked" if n == PACKED else str(n) for n in self.contraction.read)
        return ", ".join([*self.types, *read]), ", ".join(map(str, self.contraction.written))

    @property
    def name(self) -> str:
        flags = [name for name in ("own", "packed", "tf32") if getattr(self, name)]
        sizes = f"{self.batch}x{self.m}x{self.n}x{self.k}+{self.pad}+{self.shift}"
        orders = self.order.replace(" ", "-")
        return "_".join([self.path, *self.types, sizes, orders, str(self.threads), str(self.scratch), *flags])


def _slim() -> list[Product]:
    """One to eight rows, or columns; whole, ragged and badly aligned."""
    found = [Product("COLUMNS", m, n, 256) for m, n in ((1, 64), (1, 8), (3, 40), (8, 24), (1, 700), (1, 4))]
    found += [Product("COLUMNS", 1, n, k) for n, k in ((33, 129), (250, 61), (12, 9))]
    found += [Product("LANES", m, n, 256, "mk nk mn") for m, n in ((1, 64), (1, 9), (3, 40), (8, 24), (1, 1))]
    found += [Product("LANES", 1, n, k, "mk nk mn") for n, k in ((33, 129), (3, 1000), (2, 4096), (20, 40))]
    found += [
        Product("LANES", 2, 3, 500),
        Product("LANES", 1, 1, 4096),
        Product("LANES", 1, 2, 512, "km nk mn"),
    ]
    # A right matrix that runs along neither: as columns, or along k.
    found += [
        Product("COLUMNS", 5, 40, 70, "km kn nm", pad=3),
        Product("COLUMNS", 40, 5, 70, "km kn nm", pad=1),
    ]
    found += [Product("COLUMNS", 100, 4, 64, "km nk mn"), Product("LANES", 100, 4, 64, "mk kn mn")]
    found += [Product("COLUMNS", 1, 64, 256, shift=1), Product("LANES", 1, 64, 256, "mk nk mn", shift=1)]
    found += [Product("COLUMNS", 1, 64, 96, own=True), Product("COLUMNS", 1, 64, 256, scratch=1024)]
    for batch in (2, 20):
        found += [
            Product("COLUMNS", 1, 32, 64, batch=batch),
            Product("LANES", 1, 5, 512, "mk nk mn", batch=batch),
        ]
    # A team makes several chunks of such a batch at once.
    found += [Product("LANES", m, 30, 64, "mk nk mn", batch=n) for m, n in ((1, 6), (1, 7), (3, 12))]
    for types in (F64, BF16, F16, *INTEGERS, *MIXED):
        found += [
            Product("COLUMNS", 2, 48, 100, types=types),
            Product("LANES", 2, 30, 104, "mk nk mn", types=types),
        ]
    return found


def _tiles() -> list[Product]:
    """Every order of the operands; slices of k; one to four stages; tensor cores; what no pack fits."""
    orders = [f"{a} {b} " for a in ("mk", "km") for b in ("kn", "nk")]
    found = [Product("FMA", 48, 40, 70, order + o) for order in orders for o in ("mn", "nm")]
    found += [
        Product("FMA", m, n, k) for m, n, k in ((16, 16, 256), (64, 32, 256), (65, 9, 33), (130, 70, 40))
    ]
    found += [Product("FMA", 37, 29, 41, pad=pad, shift=shift) for pad, shift in ((0, 1), (2, 0))]
    found += [Product("FMA", 20, 20, 200, batch=3), Product("FMA", 32, 32, 64, own=True)]
    found += [Product("FMA", 64, 64, 100, scratch=scratch) for scratch in (40000, 20000, 6016)]
    for types in (F64, *INTEGERS, *MIXED):
        found += [
            Product("FMA", 33, 18, 50, types=types),
            Product("FMA", 18, 33, 50, "km nk nm", types=types),
        ]
    for types in (F32, BF16, F16):
        tf32 = types == F32
        found += [Product("MMA", 40, 30, 100, order + "mn", types, tf32=tf32, pad=2) for order in orders]
        found += [Product("MMA", m, n, 256, types=types, tf32=tf32) for m, n in ((64, 8), (8, 64), (64, 96))]
        found += [Product("MMA", 33, 17, 65, types=types, tf32=tf32, batch=2, shift=1)]
        packed = functools.partial(Product, "MMA", types=types, tf32=tf32, packed=True)
        found += [packed(m, 40, 128, own=own) for m in (1, 20) for own in (False, True)]
        found += [packed(70, 88, 96, order, batch=2) for order in ("mk kn mn", "km kn nm")]
        found += [packed(64, 16, 256, scratch=6016), packed(16, 8, 32)]
    return found


def _serial() -> list[Product]:
    found = [Product("SERIAL", 30, 50, k, types=types) for k in (1, 8) for types in (F32, BF16, *INTEGERS)]
    found += [Product("SERIAL", 64, 64, 70, order, scratch=1024) for order in ("mk kn mn", "km nk nm")]
    return [
        *found,
        Product("SERIAL", 4, 4, 4, batch=50),
        Product("FMA", 16, 16, 16),
        Product("FMA", 16, 16, 16, batch=3),  # enough elements: made one by one after all
    ]


def _held() -> list[Product]:
    """A matrix in registers, on either side; a batch has several matrices, one after the other."""
    shapes = [(1, 16, 256), (1, 80, 256), (1, 33, 129), (4, 64, 64), (3, 9, 41), (2, 1, 300), (1, 300, 8)]
    shapes.append((6, 64, 64))
    orders = ("mk kn mn", "mk nk mn", "km kn nm")
    found = [Product("HELD", m, n, k, order) for m, n, k in shapes for order in orders]
    found += [Product("HELD", n, m, k, "mk kn mn", pad=1) for m, n, k in shapes]
    found += [Product("HELD", 1, 64, 64, shift=1), Product("HELD", 2, 24, 64, batch=3)]
    found += [Product("HELD", 2, 48, 100, types=types) for types in (F64, BF16, F16, *INTEGERS, *MIXED)]
    found += [Product("HELD", 1, 40, 90, threads=threads) for threads in (32, 96, 512)]
    return found


PRODUCTS = list(dict.fromkeys([*_slim(), *_tiles(), *_serial(), *_held()]))
# Blocks that are not of 128 threads.
OTHERS = [
    Product(path, m, n, k, order, types, threads=threads, tf32=path == "MMA")
    for threads in (32, 96, 512)
    for path, m, n, k, order, types in (
        ("COLUMNS", 2, 40, 90, "mk kn mn", F32),
        ("LANES", 1, 20, 264, "mk nk mn", F32),
        ("FMA", 40, 24, 50, "mk kn mn", F32),
        ("MMA", 40, 24, 50, "mk kn mn", F32),
        ("MMA", 64, 8, 100, "mk kn mn", F32),
        ("FMA", 40, 24, 50, "km nk nm", F64),
    )
]


def _body(products: Sequence[Product], gpu: emulator.Gpu) -> str:
    """One product after the other."""
    lines = []
    for i, p in enumerate(products):
        a, b, o = p.types
        if p.path == "HELD":
            lines.append(_held_body(i, p))
            continue
        right = f"(const {b}*)operands[{2 * i + 1}] + {p.shift}"
        plan = p.plan(gpu)
        if gpu == emulator.CUDA or p.path == "MMA":
            assert plan.path == p.path.lower(), p
        arguments = ", ".join([*p.numbers, dot_text(plan), "CK_TF32" if p.tf32 else "CK_EXACT"])
        lines.append("{")
        if p.own:
            lines.append(
                f"{b}* held = ({b}*)unit->own; for (i32 i = ck_lane(); i < {p.size(1)}; i += CK_THREADS)"
            )
            lines.append(f"held[i] = ((const {b}*)operands[{2 * i + 1}])[i]; ck_block_barrier();")
            right = f"held + {p.shift}"
        lines.append(
            f"ck_dot_fixed<{arguments}>({p.batch}, (const {a}*)operands[{2 * i}] + {p.shift}, {p.step(0)},"
            f" {right}, {p.step(1)}, ({o}*)results[{i}] + {p.shift}, {p.step(2)}); ck_block_barrier(); }}"
        )
    return "\n".join(lines)


def _held_body(i: int, p: Product) -> str:
    """Each product of the batch twice. In between the matrix is cleared: it is not read again."""
    side = 0 if p.n < p.m else 1
    pointers = [f"({p.types[s]}*)operands[{2 * i + s}] + {p.shift} + j * {p.step(s)}" for s in (0, 1)]
    matrix = f"({p.types[side]}*)unit->own"
    copied = f"{{ {p.types[side]}* to = {matrix}; const auto from = {pointers[side]};"
    each = f"for (i32 l = ck_lane(); l < {p.step(side)}; l += CK_THREADS) to[l] ="
    result = f"({p.types[2]}*)results[{i}] + {p.shift} + j * {p.step(2)}"
    product = f"ck_held<{p.numbers[1]}>(kept, {pointers[1 - side]}, {matrix}, {result})"
    call = f"ck_dot_held({product}); ck_block_barrier();"
    return (
        f"for (i32 j = 0; j < {p.batch}; ++j) {{ CkDotHeld<{p.numbers[0]}> kept;\n"
        f"{copied} {each} from[l]; ck_block_barrier(); }}\n{call}\n"
        f"{{ {p.types[side]}* to = {matrix}; {each} {p.types[side]}{{}}; ck_block_barrier(); }}\n{call}\n}}"
    )


def _program(products: Sequence[Product], gpu: emulator.Gpu = emulator.CUDA) -> str:
    first = products[0]
    return cuda_text.program(
        f"if constexpr (RESIDENT) {{\n{_body(products, gpu)}\n}}",  # one kernel compiles in half the time
        threads=first.threads,
        scratch=first.scratch,
        operands=2 * len(products),
        results=len(products),
        own=max(16, *(_own_bytes(p) for p in products)),
        headers=("cocktail_dot.h",),
    )


def _own_bytes(p: Product) -> int:
    """Bytes of own memory for an operand that lies there."""
    return -(-max(p.size(0), p.size(1)) // 2) * 16 if p.own or p.path == "HELD" else 0


def _operand(generator: np.random.Generator, dtype: str, size: int) -> np.ndarray:
    if dtype == "bool":
        return generator.random(size) < 0.1
    if dtype in FLOATS:
        return generator.standard_normal(size).astype(DTYPES[dtype])
    info = np.iinfo(DTYPES[dtype])
    return generator.integers(info.min, info.max, size, DTYPES[dtype], endpoint=True)


def _rounded(x: np.ndarray) -> np.ndarray:
    """To TF32, which has 10 bits of mantissa."""
    return ((x.view(np.uint32) + 0x1000) & ~np.uint32(0x1FFF)).view(np.float32)


@dataclass(frozen=True)
class Outcome:
    """a: [batch, m, k], b: [batch, k, n], o: [batch, m, n]; spare: elements between o's lines."""

    a: np.ndarray
    b: np.ndarray
    o: np.ndarray
    spare: np.ndarray


def _launch(
    products: Sequence[Product],
    sanitizer: emulator.Sanitizer | None = None,
    gpu: emulator.Gpu = emulator.CUDA,
    words: Mapping[tuple[int, int], int] = MappingProxyType({}),
) -> dict[Product, Outcome]:
    """`words`: bits of elements of each left operand, by row and position in it."""
    generator = np.random.default_rng(7)
    operands = [_operand(generator, p.types[side], p.size(side)) for p in products for side in (0, 1)]
    for i, p in enumerate(products):
        if p.packed and p.tf32:
            operands[2 * i + 1] = _rounded(operands[2 * i + 1])
        for (row, k), bits in words.items():
            p.view(0, operands[2 * i])[:, row, k] = np.uint32(bits).view(np.float32)
    results = [np.ones(p.size(2), DTYPES[p.types[2]]) for p in products]
    built = emulator.build(_program(products, gpu), sanitizer=sanitizer, gpu=gpu)
    built.launch(operands, results, units=1, kernel="ck_resident")
    found = {}
    for i, p in enumerate(products):
        touched = np.zeros(p.size(2), np.bool_)
        p.view(2, touched)[...] = True
        a, b = (p.view(side, operands[2 * i + side]) for side in (0, 1))
        found[p] = Outcome(a, b, p.view(2, results[i]), results[i][~touched])
    return found


@functools.cache
def _outcomes(threads: int, scratch: int) -> dict[Product, Outcome]:
    """Of all products of one kind of block: one program."""
    return _launch([p for p in PRODUCTS + OTHERS if (p.threads, p.scratch) == (threads, scratch)])


def _check(p: Product, outcome: Outcome, gpu: emulator.Gpu = emulator.CUDA) -> None:
    rounded = p.tf32 and gpu == emulator.CUDA  # AMD's matrix instructions take float32 as it is
    a, b, o = outcome.a, outcome.b, outcome.o
    assert (outcome.spare == 1).all()
    result = p.types[2]
    if result == "bool":
        np.testing.assert_array_equal(o, (a[..., None] & b[:, None]).any(axis=2))
        return
    if result not in FLOATS:
        wide = DTYPES[result]
        np.testing.assert_array_equal(o, np.einsum("bmk,bkn->bmn", a.astype(wide), b.astype(wide)))
        return
    a, b = a.astype("d"), b.astype("d")
    expected, size = a @ b, abs(a) @ abs(b)
    sums = 2.0**-53 if "f64" in p.types else 2.0**-24
    factors = 2.0**-10 if rounded else 0  # two factors, each rounded to 11 bits
    stored = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 0}[result]
    error = abs(o.astype("d") - expected)
    assert (error <= size * (factors + 4 * np.sqrt(p.k) * sums) + abs(expected) * stored).all()
    if rounded:
        assert np.sqrt((error**2).mean()) > 2e-5 * np.sqrt((expected**2).mean())  # on tensor cores, then


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
def test_product(product: Product) -> None:
    _check(product, _outcomes(product.threads, product.scratch)[product])


@pytest.mark.parametrize("product", OTHERS, ids=lambda p: p.name)
def test_product_of_another_block(product: Product) -> None:
    _check(product, _outcomes(product.threads, product.scratch)[product])


@pytest.mark.parametrize("gpu", emulator.EVERY_GPU[1:], ids=str)
def test_products_of_waves(gpu: emulator.Gpu) -> None:
    """All of them on AMD's cards; matrix instructions take tiles of another shape there."""
    usual = [p for p in PRODUCTS if p.threads == 128]
    products = [p for number, p in enumerate(usual) if p.path == "MMA" or number % 6 == 0]
    if gpu == emulator.WAVES_OF_32:  # RDNA: there the compiler asks for no such product
        products = [p for p in products if not (p.path == "MMA" and p.tf32)]
    for scratch in sorted({p.scratch for p in products}):
        group = [p for p in products if p.scratch == scratch]
        for product, outcome in _launch(group, gpu=gpu).items():
            _check(product, outcome, gpu)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_accesses(sanitizer: emulator.Sanitizer) -> None:
    """Nothing outside the arrays, and a barrier between threads that pass each other sums."""
    products = [
        Product("COLUMNS", 2, 33, 65, scratch=16384),
        Product("COLUMNS", 1, 32, 128, batch=2, scratch=16384),
        Product("LANES", 1, 3, 1000, "mk nk mn", scratch=16384),
        Product("FMA", 37, 29, 41, scratch=16384),
        Product("FMA", 16, 9, 100, "km nk nm", pad=1, batch=2, scratch=16384),
        Product("MMA", 20, 9, 70, "mk nk mn", BF16, scratch=16384),
        Product("MMA", 20, 24, 96, tf32=True, scratch=16384),
        Product("MMA", 20, 24, 96, tf32=True, packed=True, scratch=16384),
        Product("HELD", 2, 33, 65, scratch=16384),
        Product("HELD", 30, 1, 260, pad=1, batch=2, scratch=16384),
    ]
    for product, outcome in _launch(products, sanitizer).items():
        _check(product, outcome)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_number_spreads_over_its_row(packed: bool) -> None:
    """Rounding to TF32 adds to the bits, which could carry beyond the exponent."""
    product = Product("MMA", 32, 24, 96, tf32=True, packed=packed, scratch=16384)
    nan, inf = (0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000), 0x7F800000
    words = {(2 * i + 9 * j, 7 * i + 24 * j): bits for i, bits in enumerate(nan) for j in range(3)}
    outcome = _launch([product], words=words | {(31, 50): inf})[product]
    rows = {row for row, _ in words}
    for row in range(32):
        found = outcome.o[0, row]
        assert np.isnan(found).all() if row in rows else np.isfinite(found).all() or row == 31
    np.testing.assert_array_equal(outcome.o[0, 31], np.inf * np.sign(outcome.b[0, 50]))


@pytest.mark.parametrize("order", ["mk kn mn", "mk nk mn"])
@pytest.mark.parametrize("m", [1, 32])
def test_error_of_exact_sums(order: str, m: int) -> None:
    """At most twice what adding the products one by one in f32 brings."""
    path = "FMA" if m > 8 else "COLUMNS" if "kn" in order else "LANES"
    product = Product(path, m, 48, 2000, order, threads=64, scratch=16384)
    outcome = _launch([product])[product]
    expected = outcome.a.astype("d") @ outcome.b.astype("d")
    terms = outcome.a[..., None] * outcome.b[:, None]
    plain = np.cumsum(terms, axis=2, dtype=np.float32)[:, :, -1]
    errors = [np.sqrt(((x - expected) ** 2).mean()) for x in (outcome.o, plain)]
    assert errors[0] <= 2 * errors[1]


def test_sums_are_the_same_for_every_order_of_threads() -> None:
    products = [Product("COLUMNS", 1, 40, 300), Product("LANES", 1, 3, 999), Product("FMA", 16, 16, 300)]
    built = emulator.build(_program(products))
    generator = np.random.default_rng(1)
    operands = [_operand(generator, "f32", p.size(side)) for p in products for side in (0, 1)]
    found = []
    for seed in range(3):
        results = [np.zeros(p.size(2), np.float32) for p in products]
        built.launch(operands, results, units=1, kernel="ck_resident", seed=seed)
        found.append(np.concatenate(results).tobytes())
    assert len(set(found)) == 1


# What a step of a recurrent network on many units is made of, slim and tall, in each precision.
COMPILED = [
    Product("COLUMNS", 1, 64, 256),
    Product("COLUMNS", 8, 64, 256),
    Product("LANES", 1, 64, 512, "mk nk mn"),
    Product("LANES", 8, 40, 512, "mk nk mn"),
    Product("FMA", 64, 64, 256),
    Product("FMA", 64, 64, 256, "km nk nm"),
    Product("FMA", 64, 64, 256, types=F64),
    Product("MMA", 64, 64, 256, tf32=True),
    Product("MMA", 64, 32, 256, "mk nk mn", BF16),
    Product("MMA", 64, 80, 256, tf32=True, packed=True),
    Product("HELD", 1, 80, 256),
]


@pytest.mark.skipif(cuda_text.NVCC is None, reason=cuda_text.NO_NVCC)
@pytest.mark.parametrize(
    ("threads", "arch"),
    # the fewest registers on every card, more of them on one
    [(512, "sm_80"), (512, "sm_90"), (512, "sm_100"), (256, "sm_90"), (128, "sm_90")],
)
def test_nothing_spills(threads: int, arch: str, tmp_path: Path) -> None:
    kinds = COMPILED if arch == "sm_90" else COMPILED[1::2]
    products = [dataclasses.replace(p, threads=threads, scratch=65536) for p in kinds]
    for name, facts in cuda_text.nvcc_facts(_program(products), tmp_path, arch).items():
        assert facts.spilled == 0 and facts.stack == 0, name


def _cuobjdump() -> str | None:
    found = shutil.which("cuobjdump")
    folders = [Path(p) / "nvidia" for p in site.getsitepackages()]
    wheels = (tool for folder in folders for tool in folder.glob("*/bin/cuobjdump"))
    return found or next((str(tool) for tool in wheels), None)


@pytest.mark.skipif(cuda_text.NVCC is None, reason=cuda_text.NO_NVCC)
@pytest.mark.skipif(_cuobjdump() is None, reason="needs cuobjdump on PATH or from its wheel")
@pytest.mark.parametrize("product", COMPILED[:4:2], ids=lambda p: p.path)
def test_loads_of_slim_products(product: Product, tmp_path: Path) -> None:
    """All left factors are under way before the first is used; weights are read 128 bits at a time."""
    product = dataclasses.replace(product, own=True, threads=256)
    cuda_text.nvcc_facts(_program([product]), tmp_path)
    tool = _cuobjdump()
    assert tool
    command = [tool, "-sass", "-fun", "ck_resident", str(tmp_path / "program_sm_90.cubin")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wide = len(re.findall(r"\bLDS\.128\b", text))
    per_thread = product.n * product.k // 4 // product.threads
    assert wide >= per_thread, text
    assert not re.findall(r"\b(LDL|STL)\b", text)
    fast = re.search(r"LDG\.E\.128\b.*LDG\.E\.128\b", text, re.DOTALL)
    loads = {"COLUMNS": 4, "LANES": 8}[product.path]  # of a thread: 4 of k's elements each
    assert fast and len(re.findall(r"LDG\.E\.128\b", fast[0])) == loads
    assert "FFMA" not in fast[0] and "BRA" not in fast[0]
