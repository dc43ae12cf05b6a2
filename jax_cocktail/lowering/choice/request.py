"""A request: one marked call that is to be lowered, and what is known of it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.config import CHECKED, FRESH, MEMORY_BOUND
from jax_cocktail.device import processor
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.lowering.choice import decisions, leaving, plan_cache
from jax_cocktail.lowering.choice.checked import check_survey
from jax_cocktail.lowering.choice.decisions import Decision, machine_facts, versions
from jax_cocktail.lowering.choice.host import host_of
from jax_cocktail.lowering.choice.plan_cache import Survey
from jax_cocktail.lowering.choice.variants import (
    Prepared,
    Translated,
    device_of,
    has_text,
    possible,
    prepare,
    program_keys,
    spec_of,
    units_of,
    varying_in,
    whole_identity,
)
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.lowering.edge.adapter import control_flow_in, hidden_control_flow_in
from jax_cocktail.lowering.edge.arguments import compiler_options, concrete_arguments, donated
from jax_cocktail.lowering.edge.branches import element_branch_in
from jax_cocktail.lowering.edge.meshes import ALONE, Place, sealed, with_parts
from jax_cocktail.lowering.run import background, stopwatch
from jax_cocktail.lowering.state import STATE, Mark
from jax_cocktail.memory import MEMORY
from jax_cocktail.portable import name_of


@dataclass(frozen=True, eq=False)
class Mapped:
    """A part of a function: the jaxpr of the function, the key of the part (`meshes.Part`), and what is
    chosen for the parts inside of it. `repeats`: XLA runs it in a loop."""

    closed: Any
    key: int
    chosen: Mapping[int, Any]
    repeats: bool = False

    def around(self, part: Any, name: str) -> Any:
        """The function with another jaxpr for the part, for `jax.jit`, which does not trace it again."""
        return sealed(with_parts(self.closed, {**self.chosen, self.key: part}), name)


@dataclass(frozen=True, eq=False)
class Request:
    """A marked call that is to be lowered. The rest follows from it, and is found once, when it is asked for.

    Attributes:
      closed: the jaxpr of the call.
      mark: its function name and options.
      platform: jax's name, one of `custom_call.PLATFORMS`.
      place: where it runs.
      mapped: the function around it, if it is a part of one and no call.
    """

    closed: Any
    mark: Mark
    platform: str
    place: Place = ALONE
    mapped: Mapped | None = None

    @property
    def force(self) -> str:
        return self.mark.options.force

    @property
    def memory_bound(self) -> bool:
        """True if subgraphs without control flow become custom calls as well: the option ``scope`` says so,
        or they are in a loop, all of which would be ours if it did not communicate."""
        return self.mark.options.scope == MEMORY_BOUND or (self.mapped is not None and self.mapped.repeats)

    def has_work(self, closed: Any) -> bool:
        """True if a jaxpr, that of the call or a part of it, has something for us to compile."""
        return self.memory_bound or self.has_control_flow(closed)

    def has_control_flow(self, closed: Any) -> bool:
        branches = control_flow_in(closed) or element_branch_in(closed)
        return branches or hidden_control_flow_in(closed, self.platform)

    # ---- where it runs -------------------------------------------------------------------------------------

    @cached_property
    def offered(self) -> bool:
        """True if stock XLA may run the call until the background has our program. Several processes would
        not change over at the same call."""
        alone = self.mapped is None and self.place.processes == 1
        return alone and background.offered(self.mark)

    @property
    def needs_measured_card(self) -> bool:
        """True if the background has to measure the card before anything can be planned."""
        if self.platform not in gpu_call.PLATFORMS or self.mark.ticket or not self.offered:
            return False
        return not gpu_call.is_measured(self.mark.options.gpu_arch, self.platform)

    @cached_property
    def machine(self) -> Machine:
        spec = spec_of(self.mark, self.platform)
        return machine_of(spec, host=host_of(self.mark, spec is None))

    @cached_property
    def units(self) -> int:
        """The number of units to plan for."""
        return units_of(self.mark, self.machine)

    # ---- what is stored of it ------------------------------------------------------------------------------

    @cached_property
    def key(self) -> str:
        """The key of its decision; "" if there is none, since stock XLA is to run the call."""
        return self._key_of() if self.force != "stock" else ""

    @cached_property
    def near_key(self) -> str:
        """The key of the decision for sizes near those of this call; "" if none of its sizes varies."""
        from jax_cocktail.lowering.choice import families  # what is built already need not ask

        near = families.near(self.prepared.programs, varying_in(self.prepared))
        return self._key_of(near) if near and self.key else ""

    def _key_of(self, near: str = "") -> str:
        device, card = device_of(self.mark, self.machine), custom_call.device(self.platform, self._arch)
        options = compiler_options(self.mark)
        devices = "" if self.place.devices == 1 else f"each of {self.place.devices} devices, {device}"
        devices += "" if self.place.spread is None else f", {self.place.spread}"
        card += "".join(f" {name}={taken}" for name, taken in self.mark.options.pinned)
        where = self.units, devices or device, options, self.memory_bound, card
        return decisions.key_of(self.closed, *where, near)

    @property
    def _arch(self) -> str:
        return self.mark.options.gpu_arch

    @cached_property
    def _found(self) -> tuple[Decision | None, bool]:
        """The stored decision, and True if this process has used one before."""
        if self.mark.options.reproducible:
            return None, False
        here = decisions.used_here(self.key)
        leaving.remember(self.key)
        return decisions.load(self.key) if self.key else None, here

    @property
    def is_decided(self) -> bool:
        """True if nothing has to be measured: a decision is stored, or the option ``force`` is one."""
        return self.force != "auto" or self._found[0] is not None

    @cached_property
    def is_stale(self) -> bool:
        """True if the stored decision is to be measured again.

        The user wants all candidates, and only the best few were timed; or the machine was busy then and is
        idle now, which the background finds out for itself. A process that ran the function stays with what
        it ran.
        """
        (stored, here), profile = self._found, self.mark.options.profile
        if stored is None:
            return False
        if profile == "full" and not stored.thorough:
            return True
        if not stored.provisional or (here and not STATE.again) or profile == "off":
            return False
        return self.offered or stopwatch.idle()

    @property
    def is_settled(self) -> bool:
        """True if stock XLA is known to win, and nobody asks for more."""
        stored, _ = self._found
        wins = stored is not None and stored.choice == "stock" and not self.is_stale
        return self.force == "auto" and wins and STATE.reports is None and not self.mark.options.strict

    @cached_property
    def pays_anew(self) -> bool:
        """True if our program runs a call that stock XLA runs faster: the function is jitted anew, and XLA
        compiles our calls faster by more than they are likely to lose. Asked once for each lowering."""
        if STATE.beside or STATE.reports is not None or self.force != "auto" or self.mapped is not None:
            return False
        dispatch = background.dispatch_of(self.mark)  # none inside of another function: it may call it twice
        if self.mark.options.plans == FRESH or dispatch is None:
            return False
        now, (before, other) = time.monotonic(), MEMORY.lowered.get(self.key, (None, None))
        MEMORY.lowered.keep(self.key, (now, weakref.ref(dispatch)))
        stored, _ = self._found
        if before is None or other() is dispatch or stored is None:
            return False
        if not (self.is_settled and stored.pays_anew(now - before)):
            return False
        return self.known is not None and plan_cache.are_built(program_keys(self.prepared, stored.plan))

    @cached_property
    def known(self) -> Decision | None:
        """The stored decision, if its plan is one of this call: somebody may have changed the file."""
        stored, _ = self._found
        fits = stored is not None and possible(self.prepared, stored.plan, self.units)
        return stored if fits else None

    def call_key(self, known: Decision | None) -> str:
        """The key of what was built for the call by a decision, in the plan cache."""
        what, _, machine = self.key.partition("-")
        return name_of((what, self.force, "" if known is None else str(known.plan)), (machine,))

    @property
    def stored_call_key(self) -> str:
        """`call_key` for the stored decision."""
        return self.call_key(self._found[0])

    # ---- how it is measured --------------------------------------------------------------------------------

    @property
    def arguments(self) -> list[Any] | None:
        """The arguments of the call, or of the function around it, if they are concrete."""
        return concrete_arguments(self.whole, self.mark)

    @property
    def whole(self) -> Any:
        """The jaxpr that is timed: that of the call, or of the function around it."""
        return self.closed if self.mapped is None else self.mapped.closed

    def timed(self, jaxpr: Any) -> Any:
        """The jaxpr to time for one that computes what the call does."""
        return jaxpr if self.mapped is None else self.mapped.around(jaxpr, self.mark.function)

    # ---- what it computes ----------------------------------------------------------------------------------

    @cached_property
    def _captured(self) -> tuple[Prepared, float]:
        start = time.thread_time()
        own = self.memory_bound and self.mapped is None
        given_away = donated(self.closed, self.mark) if own else frozenset()
        name = self.mark.function
        insists, fixed = self.force == "cocktail", self.mark.options.reproducible
        pinned = self.mark.options.pinned
        how = self.machine, self.memory_bound, given_away, self.place.spread, insists, fixed, pinned
        prepared = prepare(self.closed, name, *how)
        return prepared, time.thread_time() - start

    @property
    def prepared(self) -> Prepared:
        """The call, captured and translated."""
        return self._captured[0]

    @property
    def seconds(self) -> float:
        """The time that its capture took."""
        return self._captured[1]


def _survey(prepared: Translated, units: int, thorough: bool, available: int, insists: bool) -> Survey:
    from jax_cocktail.lowering.choice import survey  # and the models of machines

    return survey.survey(prepared, units, thorough, available, insists)


def known_survey(
    prepared: Translated, units: int, mark: Mark, thorough: bool = False, insists: bool = False
) -> Survey:
    """The survey from the plan cache, else a new one. Raises UnsupportedError as `survey` does."""
    found = _known_survey(prepared, units, mark, thorough, insists)
    return found if thorough or insists or mark.options.reproducible else _familiar(prepared, found)


def _familiar(prepared: Translated, found: Survey) -> Survey:
    """The survey with one plan, if its programs were built for other sizes or for any, and no other way is
    surely better: each size would build its own."""
    if plan_cache.are_built(program_keys(prepared, found.best)) or not any(varying_in(prepared)):
        return found
    from jax_cocktail.lowering.choice import families

    known = families.candidates(prepared.programs[0], prepared.machine)
    for plan, seconds in zip(found.plans, found.seconds, strict=True):
        alike = plan.candidate in known and seconds <= MODEL.alike * min(found.seconds)
        if alike and has_text(prepared, plan):
            return replace(found, plans=(plan,), seconds=(seconds,))
    return found


def _known_survey(
    prepared: Translated, units: int, mark: Mark, thorough: bool, insists: bool
) -> Survey:
    """The survey of all candidates."""
    available = units if mark.options.reproducible else max(processor.cores() // STATE.devices, 1)
    make = partial(_survey, prepared, units, thorough, available, insists)
    if mark.options.plans == FRESH:
        return make()
    what = [*map(whole_identity, prepared.programs), *versions(), str(prepared.machine.spec), str(thorough)]
    what += [str(list(prepared.memory_bound)), *(["insists"] if insists else []), str(prepared.pinned)]
    host = "" if prepared.machine.is_gpu else repr(prepared.machine.host)  # of the prices in it
    key = name_of(what, [*machine_facts(), str(units), str(available), host])
    found = plan_cache.survey(key, make)
    fits = len(found.dispatched) == len(prepared.programs)
    if fits and all(possible(prepared, plan, units) for plan in found.plans):
        if mark.options.plans == CHECKED:
            check_survey(found, make(), mark)
        return found
    return make()  # somebody has changed the file


def insisted(prepared: Translated, units: int, mark: Mark, found: Survey) -> Survey:
    """The survey for the option `force`: `found` has ended early if ours cannot win, but who insists on it
    wants all cores of a host."""
    ended = found.comparison.hopeless() and units > 1 and not prepared.machine.is_gpu
    if mark.options.force != "cocktail" or not ended:
        return found
    return known_survey(prepared, units, mark, insists=True)
