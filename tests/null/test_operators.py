"""The table of operator kinds: each kind has all that it needs, and no other module lists kinds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import isfinite
from pathlib import Path

import numpy as np
import pytest

from jax_cocktail.analysis import axes
from jax_cocktail.codegen import anchors, element
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.cost.work import work
from jax_cocktail.device.nvidia import H200
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.infer import infer
from jax_cocktail.utask.lapack import calls_lapack
from jax_cocktail.utask.layout import dense, view
from jax_cocktail.utask.operators import COPIES, FREE, KINDS, NO_RESULTS, UPDATES, VIEWS, OperatorKind
from jax_cocktail.utask.plan import scratch_bytes
from tests.null.operators import SAMPLES, Sample
from tests.null.programs import arguments
from tests.oracle.interpreter.run import EVALUATE, run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jax_cocktail"
MACHINES = {"cpu": HOST, "cuda": machine_of(H200)}
HEADERS = {"cpu": ("common_src", "cpu_src"), "cuda": ("common_src", "gpu_src", "cuda_src")}
NAMES = re.compile(r"\b(?:ck_|Ck)\w+")

# Whose text is not a template's: `codegen.program` writes barriers, `codegen.lanes` reductions; the number of
# units is a constant by then.
NO_TEMPLATE = NO_RESULTS | {"reduce", "units"}
# No program of one operator holds these: they come with several units, or end a call.
NO_SAMPLE = NO_RESULTS | {"exchange", "fail", "units"}

EACH_SAMPLE = pytest.mark.parametrize("case", SAMPLES, ids=str)
ON_CARDS = [case for case in SAMPLES if not calls_lapack(case.operator())]


# -- completeness --------------------------------------------------------------------------------------------
def missing(kind: OperatorKind) -> list[str]:
    """Where a kind ought to be, and is not."""
    form, _, attribute = kind.ties.rpartition(" ")
    there = {
        "utask.infer: no type rule": kind.name in infer.RULES,
        "tests.oracle.interpreter: no evaluator": kind.name in EVALUATE,
        "analysis.axes.OWN: no rule": kind.ties != "own" or kind.name in axes.OWN,
        "utask.operators: `ties` names no attribute": not form or attribute in kind.attributes,
        "utask.operators: `orders` names no attribute": kind.orders in ("", *kind.attributes),
        "codegen.element.MOVEMENT: no element": kind.sort != "movement" or kind.name in element.MOVEMENT,
        "codegen.anchors.ANCHORS: no template": (
            kind.sort != "anchor" or kind.name in {*anchors.ANCHORS, *NO_TEMPLATE}
        ),
        "tests.null.operators.SAMPLES: no sample": kind.name in {s.kind for s in SAMPLES} | NO_SAMPLE,
    }
    return [f"{kind.name}: {what}" for what, found in there.items() if not found]


def test_nothing_is_missing():
    assert [line for kind in KINDS.values() for line in missing(kind)] == []


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            OperatorKind("median", "anchor", 1, ("axis",), ties="reduced axes", orders="order"),
            [
                "median: utask.infer: no type rule",
                "median: tests.oracle.interpreter: no evaluator",
                "median: utask.operators: `ties` names no attribute",
                "median: utask.operators: `orders` names no attribute",
                "median: codegen.anchors.ANCHORS: no template",
                "median: tests.null.operators.SAMPLES: no sample",
            ],
        ),
        (
            OperatorKind("roll", "movement", 1, ties="own"),
            [
                "roll: utask.infer: no type rule",
                "roll: tests.oracle.interpreter: no evaluator",
                "roll: analysis.axes.OWN: no rule",
                "roll: codegen.element.MOVEMENT: no element",
                "roll: tests.null.operators.SAMPLES: no sample",
            ],
        ),
    ],
    ids=lambda x: x.name if isinstance(x, OperatorKind) else "",
)
def test_what_a_new_kind_lacks_is_named(kind, lines):
    assert missing(kind) == lines


def test_nothing_is_left_over():
    assert {*infer.RULES, *EVALUATE} == set(KINDS)
    assert {*axes.OWN} == {name for name, kind in KINDS.items() if kind.ties == "own"}
    assert {*element.MOVEMENT, *anchors.ANCHORS} <= set(KINDS)
    assert {s.kind for s in SAMPLES} | NO_SAMPLE == set(KINDS)


# -- targets -------------------------------------------------------------------------------------------------
def text_of(case: Sample, target: str) -> str:
    """The body of the program of one operator."""
    source = emit(case.program(), MACHINES[target]).source
    return source.partition("ck_program(" if target == "cpu" else "ck_body(")[2]


DEFINITION = re.compile(
    r"[^({]*?\b(ck_\w+)\(|(?:template[^{]*)?struct (Ck\w+)|#define (ck_\w+)|CK_\w+\((ck_\w+|Ck\w+),"
)


@cache
def definitions(target: str) -> dict[str, str]:
    """Functions and structures of a target's headers, with their text."""
    folders = [ROOT / folder for folder in HEADERS[target]]
    text = "\n".join(path.read_text() for folder in folders for path in sorted(folder.glob("cocktail_*.h")))
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text):
        head = DEFINITION.match(block)
        if head is not None and not block.startswith("//"):
            name = head[head.lastindex or 0]
            found[name] = found.get(name, "") + block
    return found


def reached(text: str, target: str) -> set[str]:
    """Names that a text uses, itself or by what it calls."""
    found: set[str] = set()
    names = set(NAMES.findall(text))
    while names:
        found |= names
        names = {n for name in names for n in NAMES.findall(definitions(target).get(name, ""))} - found
    return found


@pytest.mark.parametrize(
    ("case", "target"), [*product(SAMPLES, ["cpu"]), *product(ON_CARDS, ["cuda"])], ids=str
)
def test_headers_define_what_its_text_calls(case: Sample, target):
    assert set(NAMES.findall(text_of(case, target))) <= {*definitions(target), "ck_body"}, case.kind


@pytest.mark.parametrize("case", sorted({*SAMPLES} - {*ON_CARDS}, key=str), ids=str)
def test_lapack_is_for_a_cpu(case: Sample):
    with pytest.raises(UnsupportedError, match="a GPU program has no template for it"):
        text_of(case, "cuda")


@pytest.mark.parametrize("case", ON_CARDS, ids=str)
def test_block_scratch_is_declared(case: Sample):
    """A template that uses the scratch memory of a block, undeclared, races with the one before it."""
    used = "ck_scratch" in reached(text_of(case, "cuda"), "cuda") or scratch_bytes(case.operator()) > 0
    assert used == KINDS[case.kind].block_scratch, case.kind


# -- facts ---------------------------------------------------------------------------------------------------
@EACH_SAMPLE
def test_views_are_what_has_a_layout(case: Sample):
    operator = case.operator()
    if case.kind == "reshape" or not operator.inputs or len(operator.outputs) > 1:  # or strides may not fit
        return
    assert (view(operator, dense(operator.inputs[0])) is not None) == (case.kind in VIEWS)


@EACH_SAMPLE
def test_copies_compute_nothing(case: Sample):
    """Every element of the result is an element of an operand, or what a gather or pad fills in."""
    if case.kind not in COPIES or dict(case.attributes).get("op", "set") != "set":
        return
    program = case.program()
    values = [x + 1 if x.dtype.kind == "f" else x for x in arguments(program)]
    (result,) = run(program, values)
    given = np.concatenate([np.ravel(x) for x in values if x.dtype == result.dtype])
    filler = np.frombuffer(dict(case.attributes).get("fill_value", b""), result.dtype)
    assert np.isin(result, np.concatenate([given, filler])).all()


@EACH_SAMPLE
def test_updates_have_the_type_of_what_they_update(case: Sample):
    operator = case.operator()
    if operator.kind in UPDATES:
        assert operator.output.type == operator.inputs[0].type
        assert operator.inputs[KINDS[operator.kind].updates].type.dtype == operator.output.type.dtype


@EACH_SAMPLE
def test_only_free_operators_have_no_work(case: Sample):
    found = work(case.operator())
    assert (found.weight == 0) == (case.kind in FREE)
    assert isfinite(found.weight)


# -- one table -----------------------------------------------------------------------------------------------
# Dispatch by kind, one dictionary per concern: `missing` sees that they are complete.
REGISTRIES = {
    "analysis/axes.py OWN",
    "codegen/anchors.py ANCHORS",
    "codegen/contraction.py EMITTERS",
    "codegen/element.py MOVEMENT",
    "codegen/gpu.py TILE_BYTES",
    "codegen/linalg.py _PARAMETERS",
    "codegen/ordering.py EMITTERS",
    "codegen/scans.py EMITTERS",
    "codegen/windows.py EMITTERS",
    "schedule/vmap/local_forms.py LOOPS",
    "schedule/vmap/local_linalg.py LINALG_LOOPS",
    "schedule/vmap/register_forms.py _FEW",
    "schedule/vmap/register_linalg.py LINALG",
    "schedule/vmap/register_places.py PLACES",
    "utask/fold.py _COMPUTE",
    "utask/infer/anchors.py ANCHORS",
}
# Sets of kinds that one pass alone has a use for.
OWN_BUSINESS = {
    "analysis/parallel.py _Walker": "the digits of an index",
    "analysis/verifier.py _OF_ONE_THREAD": "arrays without a loop over their elements",
    "utask/fold.py _LINEAR": "what makes sizes of sizes",
    "codegen/anchors.py _scatter_one": "values of the attribute `op`",
    "codegen/element.py ARITHMETIC": "how C spells them",
    "codegen/element.py INFIX": "how C spells them",
    "codegen/element.py BITWISE": "how C spells them",
    "codegen/element.py ElementWriter": "they round, so their result is read as a narrow float",
    "codegen/element.py NO_HEADER": "how C spells them",
    "codegen/outline.py gives_register": "the threads work on one scalar together",
    "cost/footprint.py NO_TIME": "free in a runtime without views",
    "placement/push_slices.py _Pusher": "a body without both has no slice of a product",
    "placement/push_slices.py _SPLIT": "kinds whose attributes it can adapt",
    "recursion/sums.py _MOVES": "primitives of JAX",
    "schedule/loops/layers.py _THROUGH": "between a stacked array and the product that reads a layer of it",
    "schedule/simplify/peephole.py _REWRITES": "kinds that have a local rewrite",
    "schedule/simplify/peephole.py splat": "they repeat the one element of a constant",
    "schedule/simplify/trip_counts.py _MIRRORED": "comparisons with their operands exchanged",
    "schedule/simplify/trip_counts.py _counter": "comparisons of a counter that goes up",
    "schedule/simplify/trip_counts.py trips_of": "comparisons that count the bound, too",
    "stitch/edges.py _moved": "their results have elements of all operands",
    "stitch/residence.py Residences": "always memory: nothing computes them where they are read",
    "stitch/split_scans.py split_scans": "each kind of machine gains from others",
    "utask/arrays.py identity_element": "values of the attribute `op`",
    "utask/infer/anchors.py _arg_reduce": "values of the attribute `op`",
    "utask/infer/anchors.py _reduce": "values of the attribute `op`",
    "utask/infer/anchors.py _SELECTS": "values of the attribute `select`",
}


def literals(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """The strings of every literal collection, with the definition of the module that it stands in."""
    for definition in tree.body:
        nodes = list(ast.walk(definition))
        stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        owner = getattr(definition, "name", stored[0] if stored else "")
        for node in nodes:
            if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
                entries = node.keys if isinstance(node, ast.Dict) else node.elts
                constants = [entry.value for entry in entries if isinstance(entry, ast.Constant)]
                yield owner, [value for value in constants if isinstance(value, str)]


def sets_of_kinds(path: Path) -> set[str]:
    """Definitions with a literal set, tuple, list or dictionary of two or more operator kinds."""
    found = literals(ast.parse(path.read_text()))
    name = str(path.relative_to(PACKAGE))
    return {f"{name} {owner}" for owner, words in found if len(words) > 1 and set(words) <= set(KINDS)}


def test_no_other_module_lists_kinds():
    """The table does, and `primitives` lists the names of JAX's primitives."""
    own = {PACKAGE / "utask" / "operators.py", *PACKAGE.glob("primitives/*.py")}
    modules = [path for path in PACKAGE.rglob("*.py") if path not in own]
    found = set().union(*(sets_of_kinds(path) for path in modules))
    assert found - REGISTRIES - set(OWN_BUSINESS) == set(), "a fact of the table, or one pass's own business"
    assert (REGISTRIES | set(OWN_BUSINESS)) - found == set()


@pytest.mark.parametrize("kind", ["top_k", "arg_reduce", "select_and_scatter_add"])
def test_an_anchor_is_known_to_few_modules(kind):
    """Translation, table, type rule, template; an axis rule, a division, or forms for one thread."""
    spelled = re.compile(rf"\b_?(emit_)?{kind}\b")
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if spelled.search(path.read_text())]
    most = {"arg_reduce": 7}.get(kind, 5 if KINDS[kind].ties == "own" else 4)
    assert len(found) <= most, sorted(map(str, found))
