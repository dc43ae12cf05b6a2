"""The items of every phase: each runs in a process of its own and returns plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_cocktail
from benchmarks.gpu import clock, here, host, peer, peers, plans, stock_micro, thunks, timing
from benchmarks.gpu import versions as packages
from benchmarks.gpu.packed import Pack, difference, digest, file_name, references
from benchmarks.gpu.pool import tell
from benchmarks.gpu.recorded import Recording, recording
from benchmarks.gpu.rows import OF_STOCK, ROWS, TF32_TOLERANCE, widened
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.cost.hlo import Module
from jax_cocktail.device import store as device_store
from jax_cocktail.device.cards import DEFAULT, spec_for
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import measure as gpu_measure
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail_tools.models import largest_difference

CARD = "card"  # in the place of an architecture: the card that is here
SPIN = "#define CK_SPIN_LIMIT (1 << 24)\n"  # a wait that never ends fails the launch, some seconds later
SYNC = {"force": "cocktail", "strict": True, "errors": "sync"}
BUILT = ("ours", *peers.MODES)
COMPILED = ", compiled"  # ends the name of an item of `torch` that waits for torch's compiler
MOST_TOLERANCES = 20.0  # that a difference may reach where stock XLA is further from float64 than one


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an item. work: folder that the items of a run share; small: sizes of the tests;
    seconds: for timing a row; dump: folder that XLA dumps to, or ""; pack: the folder of the pack, if any;
    ours: whether our programs may run."""

    work: Path
    small: bool = False
    seconds: float = 4.0
    dump: str = ""
    pack: Path | None = None
    ours: bool = True


# ---- what is here ------------------------------------------------------------------------------------------


def versions(_: str, settings: Settings) -> dict[str, Any]:
    """Of everything that has one, and what the card says of itself."""
    found: dict[str, Any] = {**packages.found(), **_backend()}
    card, why = here.description()
    found |= {"card": card} if card else {"no_card": why}
    try:
        found["compiler"] = str(device_toolchain(card.get("arch", DEFAULT.arch)))
    except BuildError as error:
        found["compiler"] = f"none: {error}"
    return found


def _backend() -> dict[str, str]:
    try:
        return {"backend": jax.default_backend(), "device_kind": str(jax.devices()[0].device_kind)}
    except RuntimeError as error:
        return {"backend": "none", "why": str(error)}


def started(_: str, settings: Settings) -> dict[str, Any]:
    """The backend of jax, and why nothing handles our calls, if so."""
    found = _backend()
    if found["backend"] == "gpu":
        try:
            custom_call.register(gpu_call.CUDA)
        except BuildError as error:
            found["no_handlers"] = str(error)
    return found


# ---- on a card ---------------------------------------------------------------------------------------------


def build(name: str, settings: Settings) -> dict[str, Any]:
    """Compiles every form, into the caches; says what the compiler says of ours, and what XLA captured."""
    function, arguments = ROWS[name].make(settings.small)
    found: dict[str, Any] = {}
    with recording(operands=False) as seen:
        for form in BUILT if settings.pack is None else BUILT[1:]:
            start = time.perf_counter()
            found[form] = _attempt(lambda form=form: _build_one(form, name, function, arguments, settings))
            found[form]["seconds"] = round(time.perf_counter() - start, 2)
            tell(found)
    found["kernels"] = _kernels(seen)
    return found


def unroll(name: str, settings: Settings) -> dict[str, Any]:
    """Compiles the row without loops, into XLA's cache; `times` runs what was compiled here in time."""
    function, arguments = ROWS[name].make(settings.small)
    found = _attempt(lambda: {"compiled": bool(peers.full_unroll(name, function, arguments))})
    if "compiled" in found:
        timing.unrolled_mark(settings.work, name).touch()
    return found


def _build_one(
    form: str, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], settings: Settings
) -> dict[str, Any]:
    if form == "ours":
        jitted = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
        jitted.lower(*arguments).compile()
        return {}
    before = thunks.dumps(settings.dump)
    peers.FORMS[form](name, function, arguments)
    if not settings.dump:
        return {}
    return thunks.captured_of(peers.MODES[form], thunks.dumps(settings.dump) - before)


def _attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except peers.NoPeer as error:
        return {"none": str(error)}
    except Exception as error:  # one form less
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def _kernels(seen: Recording) -> list[dict[str, Any]]:
    found = []
    for artifact in seen.artifacts.values():
        if artifact.launch is None:
            continue
        arch = spec_for(here.arch()).arch
        built = build_device_program(artifact.source, device_toolchain(arch), arch)
        facts = {kernel: asdict(value) for kernel, value in built.kernels.items()}
        found.append({"launch": asdict(artifact.launch), "kernels": facts, "digest": artifact.digest})
    return found


def reference(name: str, settings: Settings) -> dict[str, Any]:
    """The row in float64 on the host, kept for `correct`. The environment has jax_enable_x64."""
    function, arguments = ROWS[name].make(settings.small)
    wide = jax.tree.map(widened, arguments)
    leaves = jax.tree.leaves(jax.jit(function)(*wide))
    narrow = [np.asarray(leaf).dtype.name for leaf in leaves if np.asarray(leaf).dtype == np.float32]
    np.savez(settings.work / f"{file_name(name)}.npz", *map(np.asarray, leaves))
    return {"leaves": len(leaves), "ok": not narrow}


def correct(name: str, settings: Settings) -> dict[str, Any]:
    """Ours and stock against float64, with exact products and with those of JAX's default precision."""
    row = ROWS[name]
    function, arguments = row.make(settings.small)
    with np.load(settings.work / f"{file_name(name)}.npz") as file:
        expected = [file[key] for key in file.files]
    found: dict[str, Any] = {"ok": True}
    for precision, tolerance in (("highest", row.tolerance), ("default", TF32_TOLERANCE)):
        with jax.default_matmul_precision(precision), recording(SPIN, operands=False) as seen:
            stock = row.difference(jax.jit(function)(*arguments), expected)
            result = jax_cocktail.jit(function, options=SYNC)(*arguments)
            mine = row.difference(result, expected)
        limit = _limit(stock, tolerance)
        found[precision] = {"ours": mine, "stock": stock, "limit": limit, "programs": len(seen.artifacts)}
        found["ok"] &= mine <= limit and bool(seen.artifacts)
    return found


def answers(name: str, settings: Settings) -> dict[str, Any]:
    """Ours and stock against the float64 results of a pack, as `correct` does it. `compiled`: how many of our
    programs the pack did not bring; `ok` is None if this machine makes other arguments."""
    assert settings.pack is not None
    row, pack = ROWS[name], Pack(settings.pack)
    described = pack.row(name)
    assert described is not None
    expected = references(pack.arrays(name), "answer", len(described.answers))
    function, arguments = row.make(settings.small)
    leaves = [digest(np.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
    same = all(leaves[o.argument] == o.digest for o in described.operands if o.argument >= 0)

    def gap(call: Callable[..., Any]) -> float:
        return difference(
            list(map(np.asarray, jax.tree.leaves(call(*arguments)))), described.answers, expected
        )

    found: dict[str, Any] = {"same_inputs": same, "ok": True if same else None}
    for precision, tolerance in (("highest", row.tolerance), ("default", TF32_TOLERANCE)):

        def fresh(*given: Any) -> Any:  # what is traced depends on the precision
            return function(*given)

        with jax.default_matmul_precision(None if precision == "default" else precision):
            stock, mine = gap(jax.jit(fresh)), gap(jax_cocktail.jit(fresh, options=SYNC))
        limit = _limit(stock, tolerance)
        found[precision] = {"ours": _finite(mine), "stock": _finite(stock), "limit": limit}
        found["ok"] = found["ok"] and mine <= limit
    return {**found, "compiled": jax_cocktail.cache_info().compiled}


def _finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if np.isfinite(value) else None


def _limit(stock: float, tolerance: float) -> float:
    return max(tolerance, min(OF_STOCK * stock, MOST_TOLERANCES * tolerance))


def host_calls(name: str, settings: Settings) -> dict[str, Any]:
    """Costs of a call on the host."""
    return host.CASES[name](settings.small, settings.seconds)


def torch(name: str, settings: Settings) -> dict[str, Any]:
    """The forms of a row in torch, beside ours and stock XLA; that which torch compiles has an item of its
    own."""
    row, compiled = name.removesuffix(COMPILED), name.endswith(COMPILED)
    beside = ("ours", "stock") if settings.ours else ("stock",)
    wanted = [form for form in peers.FORMS if "torch" in form and compiled == form.endswith("compiled")]
    forms = {form: peers.FORMS[form] for form in (*beside, *wanted)}
    return timing.row(ROWS[row], settings.work, settings.small, settings.seconds, forms, kernel=False)


def captured(name: str, settings: Settings) -> dict[str, Any]:
    """Our call in a branch of a command buffer: does it give the same, and was it captured?"""
    function, arguments = ROWS[name].make(settings.small)
    jitted = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})

    branch = host.in_a_branch(function, jitted)
    run = jax.jit(branch).lower(True, *arguments).compile(compiler_options=peers.COMMAND_BUFFERS)
    expected = jitted(*arguments)
    differences = [largest_difference(run(True, *arguments), expected) for _ in range(4)]
    nothing = host.magnitude(run(False, *arguments))
    seen = thunks.captured(thunks.dumps(settings.dump)).captured if settings.dump else None
    ok = max(differences) == 0 and nothing == 0
    why = "none" if here.is_amd() else "error"  # XLA captures no conditionals on AMD's cards
    missing = {why: thunks.NOT_CAPTURED} if seen is False else {}
    return {"differences": differences, "captured": seen, "ok": ok and "error" not in missing, **missing}


def measure(name: str, settings: Settings) -> dict[str, Any]:
    """The microbenchmarks of the card; what was measured is kept for the policy."""
    if here.is_amd():
        return {"none": here.UNMEASURED, "spec": asdict(here.keep_spec(settings.work))}
    with gpu_card.Card() as card, gpu_card.Card() as beside:
        gpu_card.spec_of(card.facts)  # raises if the card is too old
        binary = clock.program(card.facts.arch)
        measured = clock.awake(beside, binary, lambda: {"figures": gpu_micro.measure(card)})
        found = gpu_measure.judged(card.facts, measured["figures"])
    path = device_store.store_measured(found)
    spec, left = asdict(found.spec), dict(found.left)
    return {**measured, "spec": spec, "kept_from_table": left, "stored": path is not None}


def stock_loops(name: str, settings: Settings) -> dict[str, Any]:
    """Seconds of one trip of a loop under stock XLA, in each mode."""
    return stock_micro.measure(name, settings.dump, settings.small)


def times(name: str, settings: Settings) -> dict[str, Any]:
    """Every form of a row, alone on the card, and the time of our kernels without XLA, which a pack knows."""
    left = (
        set() if settings.pack is None else {form for form in peers.FORMS if "torch" in form} | {"unrolled"}
    )
    left |= set() if settings.ours else {"ours"}
    forms = {form: make for form, make in peers.FORMS.items() if form not in left}
    kernel = settings.pack is None
    return timing.row(ROWS[name], settings.work, settings.small, settings.seconds, forms, kernel)


def auto(name: str, settings: Settings) -> dict[str, Any]:
    """The decision of `jax_cocktail.jit` when nobody forces it, beside stock XLA."""
    return timing.unforced(ROWS[name], settings.small, settings.seconds)


def profile(name: str, settings: Settings) -> dict[str, Any]:
    """A few calls of ours, for tools that look at a process."""
    function, arguments = ROWS[name].make(settings.small)
    for _ in range(3):
        jax.block_until_ready(jax_cocktail.jit(function, options=SYNC)(*arguments))
    return {}


# ---- without a card ----------------------------------------------------------------------------------------


def plan(name: str, settings: Settings) -> dict[str, Any]:
    """`name`: row@arch, or row@card for the one that is here. What the model says of it."""
    found, spec = _planned(name, settings)
    return {"card": spec.name, **plans.prediction(found, spec)}


def code(name: str, settings: Settings) -> dict[str, Any]:
    """`name`: row@arch. What the compiler says of it, too."""
    found, spec = _planned(name, settings)
    result = {"card": spec.name, **plans.prediction(found, spec)}
    tell(result)  # compiling takes longest
    return result | _attempt(lambda: plans.facts(found, spec))


def _planned(name: str, settings: Settings) -> tuple[plans.Planned, DeviceSpec]:
    row, _, arch = name.partition("@")
    function, arguments = ROWS[row].make(settings.small)
    spec = here.spec(settings.work) if arch == CARD else spec_for(arch)
    return plans.planned(row, function, arguments, spec), spec


def emulate(name: str, settings: Settings) -> dict[str, Any]:
    """The row at its small size, or the microbenchmarks."""
    from benchmarks.gpu import emulated  # needs what the tests need

    return emulated.micro() if name == "microbenchmarks" else emulated.row(ROWS[name])


def stock_for_card(name: str, settings: Settings) -> dict[str, Any]:
    """Kernels and bytes of stock XLA, compiled for an H200."""
    function, arguments = ROWS[name].make(settings.small)
    try:
        text = peer.compile_for(DEFAULT, function, arguments)
    except peers.NoPeer as error:
        return {"none": str(error)}
    return asdict(Module(text, peer.UNKNOWN_TRIPS).cost)


ITEMS: dict[str, Callable[[str, Settings], dict[str, Any]]] = {
    "jax": started,
    "host": host_calls,
} | {
    function.__name__: function
    for function in (
        versions,
        build,
        unroll,
        reference,
        correct,
        answers,
        torch,
        captured,
        measure,
        stock_loops,
        times,
        auto,
        profile,
        plan,
        code,
        emulate,
        stock_for_card,
    )
}
