"""Reports how a function of a file is compiled, and traces a call of it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cocktail import api, config
from jax_cocktail.errors import CocktailError
from jax_cocktail_tools.commands.problem import Problem

ARGUMENTS = "example_arguments"
_MODULE = "explained"  # the name under which a file is imported
_SHOWN = 12  # names that an error lists
_SUFFIXES = (".html", ".json", ".svg", ".txt")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument(
        "function",
        metavar="FILE:FUNCTION",
        help="a Python file, and a function in it, which may be jitted; FILE:OBJECT.FUNCTION works as well",
    )
    command.add_argument(
        "--args",
        metavar="EXPRESSION",
        help="the arguments, an expression with jax, jnp, np and the names of the file: one argument, or a"
        " tuple of all, or a dictionary of keywords. Without it, FUNCTION_arguments or example_arguments of"
        " the file: the same, or a function that returns it",
    )
    command.add_argument(
        "--save", type=Path, metavar="FILE", help=f"write the report to a file ({', '.join(_SUFFIXES)})"
    )
    command.add_argument(
        "--force",
        choices=("cocktail", "stock"),
        help="report and trace this program, whichever is faster",
    )
    command.add_argument(
        "--stock", action="store_true", help="count what stock XLA makes of each region, too"
    )
    command.add_argument("--trace", action="store_true", help="make the call, and print where its time goes")
    command.add_argument(
        "--perfetto",
        type=Path,
        metavar="FILE",
        help="write the timeline of the call for https://ui.perfetto.dev; implies --trace",
    )


def main(options: argparse.Namespace) -> int:
    """Prints the report. Raises Problem."""
    if options.save is not None and options.save.suffix not in _SUFFIXES:
        raise Problem(f"{options.save} has an unknown suffix", f"one of {', '.join(_SUFFIXES)}")
    module, name = load(options.function)
    function = found(module, name)
    args, kwargs = arguments(module, name, options.args)
    _fits(function, name, args, kwargs)
    with config.options(force=options.force) if options.force else contextlib.nullcontext():
        _report(function, name, args, kwargs, options)
    return 0


def _report(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: argparse.Namespace,
) -> None:
    """Prints what is asked for. Raises Problem."""
    report = _run(name, lambda: api.explain(function, stock=options.stock)(*args, **kwargs))
    print(report)
    if options.save is not None:
        _written(options.save, lambda: report.save(options.save))
    if options.trace or options.perfetto:
        traced = _run(name, lambda: api.trace(function)(*args, **kwargs))
        print(f"\n{traced}")
        if options.perfetto:
            _written(options.perfetto, lambda: traced.perfetto(options.perfetto))


def load(place: str) -> tuple[ModuleType, str]:
    """The module of ``FILE:FUNCTION``, imported, and the name. Raises Problem."""
    file, colon, name = place.rpartition(":")
    if not colon or not file or not name:
        raise Problem(f"{place} does not name a function", "FILE:FUNCTION, such as model.py:step")
    path = Path(file)
    if not path.is_file():
        raise Problem(f"there is no file {file}", "a path from the current folder")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise Problem(f"{file} is no Python file", "a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as Python does for a script
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Problem(
            f"{file} cannot be imported: {_said(error, path)}", "run it with python first"
        ) from error
    except SystemExit as error:
        remedy = 'put what the script does under if __name__ == "__main__":'
        raise Problem(f"{file} exits when it is imported", remedy) from error
    return module, name


def found(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of a module; a dotted name goes through objects. Raises Problem."""
    place: Any = module
    for part in name.split("."):
        if not hasattr(place, part):
            raise Problem(f"there is no {part} in {_named(place)}", _functions(place))
        place = getattr(place, part)
    if not callable(place):
        raise Problem(f"{name} is no function, but {type(place).__name__}", _functions(module))
    function: Callable[..., Any] = place
    return function


def arguments(module: ModuleType, name: str, text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keywords of a call. Raises Problem."""
    if text is not None:
        names = {"jax": jax, "jnp": jnp, "np": np, "lax": jax.lax, **vars(module)}
        try:
            return _call(eval(text, names))
        except (Exception, SystemExit) as error:
            remedy = 'an expression such as --args "jnp.ones((8, 4)), 3"'
            raise Problem(f"--args {text!r} has no value: {_said(error)}", remedy) from error
    own = f"{name.rpartition('.')[2]}_arguments"
    for known in (own, ARGUMENTS):
        if hasattr(module, known):
            value = getattr(module, known)
            try:
                return _call(value() if callable(value) else value)
            except (Exception, SystemExit) as error:
                raise Problem(f"{known} fails: {_said(error)}", "pass --args instead") from error
    if _needed(found(module, name)):
        remedy = f"--args 'EXPRESSION', or define {own} or {ARGUMENTS} in the file"
        raise Problem(f"no arguments are given for {name}", remedy)
    return (), {}


def _call(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return (), value
    return (tuple(value) if isinstance(value, tuple | list) else (value,)), {}


def _needed(function: Callable[..., Any]) -> bool:
    """True if a function has parameters without defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(each.default is each.empty and each.kind not in variable for each in parameters)


def _fits(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Problem if the arguments do not fit the parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} by position", *kwargs])
        remedy = "--args with a tuple of all arguments, or a dictionary of keywords"
        raise Problem(
            f"{name}{signature} does not take these arguments ({given}): {error}", remedy
        ) from error


def _run(name: str, call: Callable[[], Any]) -> Any:
    """The result of a call into JAX. Raises Problem if it fails."""
    try:
        return call()
    except CocktailError as error:
        raise Problem(str(error)) from error
    except (Exception, SystemExit) as error:
        file = Path(getattr(sys.modules[_MODULE], "__file__", "") or "")
        remedy = "call it with jax.jit and these arguments; if that works, report this"
        raise Problem(f"{name} fails: {_said(error, file)}", remedy) from error


def _written(path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise Problem(f"{path} cannot be written ({error.strerror})", "another file") from error
    print(f"wrote {path}")


def _said(error: BaseException, path: Path | None = None) -> str:
    """The first lines of an error, and its line of the user's file."""
    text = " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())
    where = ""
    if path is not None:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
        if isinstance(error, SyntaxError):
            lines, text = [error.lineno] if error.lineno else [], error.msg
        where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _named(place: Any) -> str:
    file = getattr(place, "__file__", None)
    return Path(file).name if file else getattr(place, "__name__", type(place).__name__)


def _functions(place: Any) -> str:
    """Names what there is instead."""
    own = getattr(place, "__name__", "")
    names = [
        name
        for name, value in vars(place).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", own) == own
    ]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"one of {shown}" if names else "a file that defines functions"
