"""Bundles: one file with what this process knows of its programs, for machines without a compiler.

A bundle has the decisions, surveys and plan records that the process has used, the binaries that they refer
to, the runtime library, and the handlers for GPUs. A process that loads it carries them beside its cache
folder (`portable`), so nothing else has to know of bundles. Nothing is written to the cache folder.

A bundle is a line with the digest of the rest, a line of JSON, and the binaries that it lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax_cocktail import cache, files, portable
from jax_cocktail.device import store
from jax_cocktail.errors import BuildError, BundleError
from jax_cocktail.lowering.choice import decisions, plan_cache
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.lowering.run import background
from jax_cocktail.plain import from_plain, to_plain

_FORMAT = 3
_HEAD = re.compile(rb"jax_cocktail bundle ([0-9]{1,9}) ([0-9a-f]{64})\n")
FOLDER = "bundles"  # of the records of those that this user has made
_CARRIED = (decisions.FOLDER, plan_cache.FOLDER, store.FOLDER)
_AGAIN = "make it again with this version"
_COMPILE = "make a bundle on such a machine; without one, stock XLA runs the functions"
_VERSIONS = ("jax", "jaxlib", "jax_cocktail", "its sources")


Records = Mapping[tuple[str, str], Mapping[str, Any]]  # by folder and name


@dataclass(frozen=True, slots=True)
class _Header:
    """The line of JSON. The sizes are those of the binaries, which follow in this order: that of the runtime
    library, those of programs by key, and those of handlers by platform."""

    versions: tuple[str, ...]
    processor: tuple[str, ...]
    records: tuple[tuple[str, str, dict[str, Any]], ...]
    runtime: int
    programs: tuple[tuple[str, int], ...]
    handlers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The contents. `records`: by folder and name; `programs`: by key; `runtime`: the library for the CPU;
    `handlers`: those for GPUs, by platform; `versions` and `processor`: of the machine that has made it."""

    records: Records
    programs: Mapping[str, cache.Entry]
    runtime: bytes
    handlers: Mapping[str, bytes]
    versions: tuple[str, ...]
    processor: tuple[str, ...]


def save_bundle(path: str | os.PathLike[str]) -> str:
    """Writes a file with everything that this process has compiled or found in the cache.

    It has the programs, what was decided about them, the runtime library, and the handlers for GPUs. A
    machine without a compiler can load it (`load_bundle`).

    Call all functions that should be in it first, with arguments of all shapes that they will have there. It
    waits for what is built in the background. What runs with ``plans="fresh"`` is not stored and thus not in
    a bundle.

    Args:
      path: the file. An old one is replaced.

    Returns:
      The digest of the bundle, 64 hexadecimal digits, which `load_bundle` takes.

    Raises:
      BundleError: there is nothing to save, or the cache folder has lost some of it.
      OSError: the file cannot be written.

    Examples:
      >>> @jax_cocktail.jit(options={"force": "cocktail"})
      ... def eighth(x):
      ...     return lax.fori_loop(0, 3, lambda _, c: c / 2, x)
      >>> print(eighth(8.0))
      1.0
      >>> digest = jax_cocktail.save_bundle("eighth.bundle")
      >>> len(digest)
      64
    """
    background.wait()
    records = dict(_records())
    if not records:
        raise BundleError(
            "there is nothing to save: this process has used nothing that the cache folder holds",
            "call the functions first, and see that the cache folder is writable",
        )
    programs = {each.key: _program(each.key) for each in _programs(records)}
    body = _body(records, programs)
    digest = hashlib.sha256(body).hexdigest()
    _write(Path(path), f"jax_cocktail bundle {_FORMAT} {digest}\n".encode() + body)
    # What came from another bundle was trusted for this process alone.
    if not any(portable.carries(entry.digest) for entry in programs.values()):
        with suppress(OSError):  # then `load_bundle` has to be told to trust it
            cache.write_record(FOLDER, digest, {})
    return digest


def load_bundle(path: str | os.PathLike[str], *, trust: bool | str = False) -> None:
    """Lets this process run the programs of a bundle, as if it had compiled them. It needs no compiler.

    Call it before the first call of the functions. What the cache folder has of them comes first. Programs
    that are neither there nor in the bundle are compiled, or run on stock XLA if there is no compiler.
    Handlers for GPUs that this process has registered before stay, since XLA takes no others.

    A bundle contains machine code: trust it only if you would also run a script from the same source.

    Args:
      path: the file.
      trust: a text of 64 hexadecimal digits: the file may be loaded if this is its digest. ``True``: it may
        be loaded if no other user can have written it. ``False``: only if this user has made it, on this
        machine.

    Raises:
      BundleError: the bundle is not trusted, it is damaged, or it was made by another version or for another
        processor. Nothing runs then, and the process goes on as without it.
      OSError: the file cannot be read.
      TypeError: `trust` is none of these.

    Examples:
      >>> eighth = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))
      >>> with jax_cocktail.options(force="cocktail"):
      ...     print(eighth(8.0))
      1.0
      >>> digest = jax_cocktail.save_bundle("eighth.bundle")
      >>> jax_cocktail.load_bundle("eighth.bundle", trust=digest)  # in another process, before the first call
    """
    place = Path(path)
    problem = files.distrust_way(place) if trust is True else ""
    data = place.read_bytes()
    if problem:
        raise BundleError(
            f"{place} is not trusted: {problem}", "pass trust= the digest that save_bundle has returned"
        )
    head = _HEAD.match(data)
    if head is None:
        raise BundleError(f"{place} is no bundle", "pass a file that save_bundle has written")
    body, expected = memoryview(data)[head.end() :], head[2].decode()
    if hashlib.sha256(body).hexdigest() != expected:
        raise BundleError(f"{place} is damaged: its SHA-256 is not {expected:.16}...", "copy it again")
    _require_trust(place, expected, trust)
    if int(head[1]) != _FORMAT:
        raise BundleError(f"{place} has format {int(head[1])}, and this version reads {_FORMAT}", _AGAIN)
    try:
        bundle = _parsed(body, place)
        _require_fit(bundle, place)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{place} is not what this version writes", _AGAIN) from error
    decisions.plan_for(_units(bundle.records))
    gpu_call.carry(bundle.handlers)
    portable.carry(bundle.records, bundle.programs)


# ---- saving ------------------------------------------------------------------------------------------------


def _records() -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """The records that this process has used, of those that bundles contain."""
    root = cache.cache_dir()
    for folder, name in portable.used(str(root)):
        if folder in _CARRIED:
            facts = cache.peek_record(root, folder, name)
            if facts is None:
                raise _lost(f"the record {folder}/{name:.16}...")
            yield (folder, name), _final(facts) if folder == decisions.FOLDER else facts
    yield from portable.carried_records().items()


def _final(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record of a decision that is not to be measured again: the machine that will read it may have no
    compiler."""
    with suppress(ValueError):
        return decisions.STORE.record(replace(decisions.STORE.parsed(record), others=0.0))
    return record


def _programs(records: Records) -> Iterator[plan_cache.Program]:
    """The programs among records."""
    for (folder, name), record in records.items():
        with suppress(ValueError):
            if folder == plan_cache.FOLDER and (found := plan_cache.stored_program(name, record)):
                yield found


def _body(records: Records, programs: Mapping[str, cache.Entry]) -> bytes:
    """Everything behind the first line of the file."""
    runtime, handlers = custom_call.runtime_binary(), gpu_call.handler_binaries()
    header = _Header(
        decisions.versions(),
        decisions.machine_facts()[:2],
        tuple((*place, dict(record)) for place, record in records.items()),
        len(runtime),
        tuple((key, len(entry.binary)) for key, entry in programs.items()),
        tuple((platform, len(binary)) for platform, binary in handlers.items()),
    )
    binaries = (runtime, *(entry.binary for entry in programs.values()), *handlers.values())
    return b"".join((json.dumps(to_plain(header)).encode(), b"\n", *binaries))


def _program(key: str) -> cache.Entry:
    entry = cache.peek(cache.entry_folder(cache.cache_dir(), key), key) or portable.carried_program(key)
    if entry is None:
        raise _lost(f"the program {key:.16}...")
    return entry


def _lost(what: str) -> BundleError:
    return BundleError(
        f"the cache folder no longer has {what}, which this process has used",
        "raise cache_limit_bytes, call the functions in a new process, and save them there",
    )


def _write(path: Path, data: bytes) -> None:
    """Writes the file in one step. Raises OSError."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.absolute().parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


# ---- loading -----------------------------------------------------------------------------------------------


def _require_trust(path: Path, digest: str, trust: bool | str) -> None:
    """Raises BundleError unless the bundle with this digest may be loaded."""
    if not isinstance(trust, bool | str):
        raise TypeError(f"trust is True, False or a digest as text, not {trust!r}")
    if isinstance(trust, str):
        if trust != digest:
            raise BundleError(
                f"{path} is not the trusted bundle: its digest is {digest}, not {trust!r}",
                "pass the digest that save_bundle has returned",
            )
    elif not trust and cache.read_record(FOLDER, digest) is None:
        raise BundleError(
            f"{path} is not trusted: it contains machine code, and this user's cache folder does not know it",
            f'pass trust="{digest}" if you trust where it comes from',
        )


def _parsed(body: memoryview, path: Path) -> _Bundle:
    """The contents. Raises ValueError or RecursionError."""
    data = bytes(body)
    end = data.index(b"\n")
    header: _Header = from_plain(_Header, json.loads(data[:end]), "bundle", least=0)
    binaries, start = list[bytes](), end + 1
    for size in (header.runtime, *(size for _, size in (*header.programs, *header.handlers))):
        binaries.append(data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError("the sizes are wrong")
    runtime, *others = binaries
    programs, handlers = others[: len(header.programs)], others[len(header.programs) :]
    records = {(folder, name): record for folder, name, record in header.records}
    if not {folder for folder, _ in records} <= set(_CARRIED):
        raise ValueError("records of another kind")
    return _Bundle(
        records,
        {
            key: cache.Entry(binary, hashlib.sha256(binary).hexdigest(), str(path), 0.0, {})
            for (key, _), binary in zip(header.programs, programs, strict=True)
        },
        runtime,
        {name: binary for (name, _), binary in zip(header.handlers, handlers, strict=True)},
        header.versions,
        header.processor,
    )


def _require_fit(bundle: _Bundle, path: Path) -> None:
    """Raises BundleError if this version, or this processor, cannot run the programs."""
    here = decisions.versions()
    pairs = zip(_VERSIONS, bundle.versions, here, strict=True)
    other = [f"{name} {theirs:.12}, here {ours:.12}" for name, theirs, ours in pairs if theirs != ours]
    if other:
        raise BundleError(f"{path} was made by another version: {'; '.join(other)}", _AGAIN)
    processor = decisions.machine_facts()[:2]
    checked = processor[0] in ("x86_64", "AMD64")  # elsewhere the runtime knows no features
    if bundle.processor[:1] != processor[:1] or not (checked or bundle.processor == processor):
        theirs, ours = (" ".join(each) for each in (bundle.processor, processor))
        raise BundleError(f"{path} was made for another processor: {theirs}; this is {ours}", _COMPILE)
    try:
        custom_call.register_cpu(bundle.runtime)
    except BuildError as error:
        raise BundleError(f"{path} cannot be used: {error.reason}", _COMPILE) from error
    for entry in _for_cpu(bundle):
        if problem := custom_call.problem_with(entry.digest, entry.binary):
            raise BundleError(f"{path} cannot be used: {problem}", _COMPILE)


def _for_cpu(bundle: _Bundle) -> Sequence[cache.Entry]:
    """The programs that the CPU runs."""
    keys = {each.key for each in _programs(bundle.records) if each.launch is None}
    return [entry for key, entry in bundle.programs.items() if key in keys]


def _units(records: Records) -> frozenset[int]:
    """The numbers of units that the plans are for."""
    found: list[decisions.Plan] = []
    for (folder, name), record in records.items():
        with suppress(ValueError):
            if folder == decisions.FOLDER:
                found.append(decisions.STORE.parsed(record).plan)
            elif folder == plan_cache.FOLDER and (survey := plan_cache.stored_survey(name, record)):
                found += survey.plans
    return frozenset(plan.candidate.units for plan in found)
