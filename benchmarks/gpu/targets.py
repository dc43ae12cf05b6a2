"""Targets for the figures of `gpu_check.py` on an H200, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.kernels import spec_of
from benchmarks.gpu.roofline import limit_seconds
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import DeviceSpec

Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Found:
    """A value, and whether the model says it rather than a clock."""

    value: float
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """`measured(sections)` is the figure, None if there is none. least: the limit is a lower one."""

    name: str
    limit: float
    unit: str
    measured: Callable[[Sections], Found | None]
    least: bool = True

    def judge(self, sections: Sections) -> dict[str, Any]:
        """As plain data: `state` is met or missed, said of a prediction if it is one, or not measured."""
        row: dict[str, Any] = {
            "target": self.name,
            "limit": self.limit,
            "unit": self.unit,
            "least": self.least,
        }
        found = self.measured(sections)
        if found is None:
            return {**row, "state": "not measured"}
        met = found.value >= self.limit if self.least else found.value <= self.limit
        state = ("predicted: " if found.predicted else "") + ("met" if met else "missed")
        return {**row, "value": found.value, "predicted": found.predicted, "state": state}


def seconds(sections: Sections, row: str, form: str) -> float | None:
    """Measured seconds of a call."""
    value = sections.get("times", {}).get(row, {}).get("seconds", {}).get(form)
    return float(value) if value else None


def predicted(sections: Sections, row: str) -> Mapping[str, Any]:
    """The model's figures of a row on an H200, or nothing."""
    found = sections.get("plan", {}).get(f"{row}@sm_90", {})
    return found if "seconds" in found else {}


def ratio(row: str, limit: float, over: str = "stock") -> Target:
    """The time of another form over ours; without a card that of stock XLA by the model."""

    def measured(sections: Sections) -> Found | None:
        mine, other = seconds(sections, row, "ours"), seconds(sections, row, over)
        if mine and other:
            return Found(other / mine)
        model = predicted(sections, row)
        return Found(model["stock_seconds"] / model["seconds"], True) if model and over == "stock" else None

    words = {"stock": "stock", "graphs": "stock with graphs", "cudnn": "cuDNN"}
    return Target(f"{row}: {words[over]} / ours", limit, "x", measured)


def _figure(name: str | Callable[[Sections], str]) -> Callable[[Sections], Found | None]:
    def measured(sections: Sections) -> Found | None:
        figures = sections.get("measure", {}).get("card", {}).get("figures", {})
        value = figures.get(name(sections) if callable(name) else name, {}).get("seconds")
        return Found(value * 1e6) if value else None

    return measured


def _all_units(sections: Sections) -> str:
    spec = sections.get("measure", {}).get("card", {}).get("spec", {})
    return f"barrier, {spec.get('units')} blocks"


def measured_card(sections: Sections) -> DeviceSpec | None:
    """The card as it was measured in a run, None if it was not. AMD's cards are not measured."""
    spec = sections.get("measure", {}).get("card", {}).get("spec", {})
    return spec_of({"sections": sections}) if spec.get("platform") == "cuda" else None


def kernel(sections: Sections, row: str) -> Mapping[str, Any]:
    """Our kernels of a row alone: those of the best plan of a pack, or those of a call; or nothing."""
    for record in sections.get("kernels", {}).get(row, {}).values():
        if record.get("phase") == "best" and "seconds" in record:
            return dict(record)
    return dict(sections.get("times", {}).get(row, {}).get("kernel", {}))


def _of_limit(sections: Sections) -> Found | None:
    """The worst row of those that have a limit."""
    card = measured_card(sections)
    rows = dict.fromkeys((*sections.get("kernels", {}), *sections.get("times", {}))) if card else ()
    timed = {row: kernel(sections, row) for row in rows}
    planned = {key.partition("@")[0]: row for key, row in sections.get("plan", {}).items() if "@sm_90" in key}
    for records, spec in ((timed, card), (planned, H200)):
        limits = {row: limit_seconds(row, spec) for row in records if spec and "seconds" in records[row]}
        shares = [records[row]["seconds"] / limit for row, limit in limits.items() if limit]
        if shares:
            return Found(max(shares), records is planned)
    return None


def _nasrnn(sections: Sections) -> Found | None:
    value = seconds(sections, "nasrnn/1", "ours")
    model = predicted(sections, "nasrnn/1")
    return Found(value * 1e3) if value else Found(model["seconds"] * 1e3, True) if model else None


TARGETS: Sequence[Target] = (
    ratio("lstm/1", 35),
    ratio("lstm/1", 3, "cudnn"),
    ratio("lstm/64", 10),
    ratio("nasrnn/1", 8),
    ratio("nasrnn/64", 5),
    ratio("attention/1", 10),
    ratio("attention/64", 6),
    ratio("seq2seq/1", 12),
    ratio("seq2seq/1", 5, "graphs"),
    ratio("seq2seq/64", 7),
    ratio("blockdrop/1", 4),
    ratio("blockdrop/64", 2),
    ratio("skipnet/1", 4),
    ratio("rae/1", 10),
    ratio("lstm_gradient", 5),
    ratio("gru_gradient", 5),
    ratio("scalar_scan", 50),
    ratio("vmapped_while", 10),
    ratio("conjugate_gradient", 8),
    ratio("runge_kutta", 8),
    ratio("hidden_markov", 8),
    Target("device barrier, all units", 1.1, "us", _figure(_all_units), least=False),
    Target("tagged hop", 0.75, "us", _figure("hop, tagged, 1 word"), least=False),
    Target("nasrnn/1: a call of ours", 1.0, "ms", _nasrnn, least=False),
    Target("kernel time over its limit, worst model", 2.0, "x", _of_limit, least=False),
)


def judge_all(sections: Sections) -> list[dict[str, Any]]:
    """One row per target."""
    return [target.judge(sections) for target in TARGETS]


def judged(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every target with what a results file has of it; they are for full sizes."""
    return judge_all({} if results.get("small") else results["sections"])
