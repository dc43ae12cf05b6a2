"""Ratios to stock XLA with required and desired values, and the fraction of the machine's limit.

Stock XLA counts at its best: the fastest of its defaults, any while loop as one kernel, the input projection
hoisted by hand, and a loop in place of recursion. Ours is `jit` without options. For information, one column
has the ratio to a program that was distributed by hand for stock XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jax_cocktail.models import ceilings
from jax_cocktail.models.ceilings import Ceilings

LAYER = 4 * 256 * 1024  # bytes of a 256 x 1024 matrix, input or recurrent, of an LSTM layer
HEADS = 4 * 12 * 64 * 64  # bytes of a 64 x 64 matrix for each of 12 heads


@dataclass(frozen=True, slots=True)
class Row:
    """The targets and the minimum work of a row. `must`, `aim`: ratios of stock XLA's time to ours; `flops`:
    of large products; bytes read from the memory that holds them (`level`: "l2", "l3" or "memory")."""

    must: float
    aim: float
    flops: float = 0.0
    bytes: float = 0.0
    level: str = "l2"

    def limit(self, machine: Ceilings) -> float:
        """The seconds that the work takes at the machine's peak rates; 0 if the work is unknown."""
        return self.flops / machine.flops + self.bytes / getattr(machine, self.level)


def _lstm(batch: int) -> dict[str, float]:
    """Ten layers, 64 steps. Projections are products; at batch 1 recurrent weights are read in every step."""
    projection = 2.0 * 640 * batch * 256 * 1024
    return {"flops": projection, "bytes": 640 * LAYER} if batch == 1 else {"flops": 2 * projection}


def _nasrnn(batch: int) -> dict[str, float]:
    projection = 2.0 * 1000 * batch * 256 * 2048
    return {"flops": projection, "bytes": 1000 * 2 * LAYER} if batch == 1 else {"flops": 2 * projection}


ROWS: Mapping[str, Row] = {
    "lstm/1": Row(5, 8, **_lstm(1)),
    "lstm_stacked": Row(11, 16, **_lstm(1)),
    "lstm/64": Row(1.5, 1.9, **_lstm(64)),
    "nasrnn/1": Row(2.5, 3.5, **_nasrnn(1)),
    "nasrnn/64": Row(1.15, 1.4, **_nasrnn(64)),
    # four matrices per head, and the keys and values of every row
    "attention/1": Row(3, 5, bytes=32 * 6 * HEADS),
    "attention/64": Row(2, 3, flops=32 * 64 * 2 * HEADS, bytes=32 * 64 * 2 * HEADS, level="l3"),
    # an LSTM cell and 256 x 3797 logits, ten and fifty steps
    "seq2seq/1": Row(2, 3, bytes=10 * (2 * LAYER + 4 * 256 * 3797), level="l3"),
    "seq2seq/64": Row(1.5, 2.2, flops=50 * 64 * 2.0 * 256 * (2 * 1024 + 3797)),
    "rae/1": Row(1.6, 2.2, bytes=32 * 4 * 1024 * 512, level="l3"),
    "blockdrop/1": Row(1, 1.2),
    "blockdrop/64": Row(1, 1.2),
    "skipnet/1": Row(1, 1.2),
    "vmapped_while": Row(2.5, 6),
    "vmapped_cond": Row(5, 10),
    "rae_recursive/1": Row(3.5, 5, bytes=32 * 4 * 1024 * 512, level="l3"),
    "tree_lstm/64": Row(5, 8),
    "child_sum_tree_lstm/64": Row(5, 8),
    "fibonacci/1": Row(8, 15),
}
SAME = 0.97  # if both names run stock XLA, a ratio from here upwards counts as 1


@dataclass(frozen=True, slots=True)
class Rates:
    """The results of one process: seconds of `ours`, of each variant of stock XLA, and of the program
    `distributed` by hand; and the choice of `jit`."""

    ours: float
    stock: Mapping[str, float]
    distributed: float | None
    choice: str
    plan: str


@dataclass(frozen=True, slots=True)
class Found:
    """One line of the table. `how`: stock XLA's best variant; `share`: fraction of the machine's limit."""

    program: str
    stock: float
    how: str
    ours: float
    plan: str
    ratio: float
    must: float
    aim: float
    state: str
    share: float | None
    to_distributed: float | None


def judge(name: str, raced: Sequence[Rates], machine: Ceilings, full_size: bool) -> Found:
    """Compares ours with the best of stock XLA, always within the process that ran both.

    full_size: the program ran at full size, so the row's work applies.
    """
    row = ROWS[name]
    pairs = [(seconds / rates.ours, how, rates) for rates in raced for how, seconds in rates.stock.items()]
    ratio, how, rates = min(pairs, key=lambda pair: pair[0])
    if rates.choice == "stock" and how.startswith("stock") and ratio >= SAME:
        ratio = max(ratio, 1.0)
    state = "aim" if ratio >= row.aim else "met" if ratio >= row.must else "missed"
    limit = row.limit(machine) if full_size else 0.0
    share = limit / rates.ours if limit else None
    to_distributed = min((r.distributed / r.ours for r in raced if r.distributed is not None), default=None)
    return Found(
        name,
        rates.stock[how],
        how,
        rates.ours,
        rates.plan,
        ratio,
        row.must,
        row.aim,
        state,
        share,
        to_distributed,
    )


def table(
    names: Sequence[str], raced: Callable[[str], Sequence[Rates]], full_size: bool = True
) -> dict[str, Any]:
    """Measures and prints every row with the machine's peak rates, and returns the same as plain data."""
    machine = ceilings.measure()
    print(f"\n{machine}")
    print(
        f"{'ratio to stock at its best':28}{'stock us':>11}{'ours us':>11}{'ratio':>7}{'must':>6}{'aim':>6}"
        f"{'limit':>7}{'by hand':>9}  state   plan; stock's best"
    )
    rows = []
    for name in names:
        found = judge(name, raced(name), machine, full_size)
        share = f"{found.share:.0%}" if found.share is not None else "-"
        by_hand = f"{found.to_distributed:.2f}" if found.to_distributed is not None else "-"
        print(
            f"{name:28}{found.stock * 1e6:11.1f}{found.ours * 1e6:11.1f}{found.ratio:7.2f}{found.must:6g}"
            f"{found.aim:6g}{share:>7}{by_hand:>9}  {found.state:6}  {found.plan}; {found.how}",
            flush=True,
        )
        rows.append(asdict(found))
    return {"ceilings": asdict(machine), "rows": rows}
