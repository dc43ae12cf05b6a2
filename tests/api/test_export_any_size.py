"""Exports with symbolic sizes: one module serves all sizes, and our programs run in it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

import jax_cocktail
from jax_cocktail.memory import MEMORY
from tests.api.one_binary import HIDDEN, agree, lstm
from tests.api.sized_programs import (
    PROGRAMS,
    array,
    attending,
    image,
    lstm_arguments,
    per_element_branch,
)
from tests.process import python

TARGET = 'custom_call_target="jax_cocktail_cpu"'
FORCED = {"force": "cocktail", "strict": True}


@pytest.fixture(autouse=True)
def fresh():
    MEMORY.warned.clear()


def spec(arguments, others, *names, **scope):
    """The types of arguments, with names for the sizes in which two examples differ."""
    sizes = dict(zip(names, export.symbolic_shape(", ".join(names), **scope), strict=True))
    known: dict[tuple[int, int], str] = {}

    def size(mine, other):
        if mine == other:
            return mine
        return sizes[known.setdefault((mine, other), names[min(len(known), len(names) - 1)])]

    def of(mine, other):
        return jax.ShapeDtypeStruct(tuple(map(size, mine.shape, other.shape)), mine.dtype)

    return jax.tree.map(of, arguments, others)


def checked(exported, function, arguments):
    """True if our program runs, and no other side is left."""
    compiled = jax.jit(exported.call).lower(*arguments).compile()
    agree(compiled(*arguments), jax.jit(function)(*arguments))
    text = compiled.as_text()
    assert "conditional" not in text, "XLA knows the size"
    return TARGET in text


def weights_and(n):
    return array(n, HIDDEN), array(HIDDEN, HIDDEN)


USUAL, LONG = ("lstm", "branch"), ("collatz", "cache", "loss", "decoder")
SIZES = (1, 2, 20, 31, 33, 40, 500)


@pytest.mark.parametrize("name", [*USUAL, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_any_size(name):
    function, make = PROGRAMS[name]
    compiled = jax_cocktail.jit(function, options=FORCED)
    exported = jax_cocktail.export(compiled)(*spec(make(5), make(7), "n"))
    found = {n for n in SIZES if checked(exported, function, make(n))}
    assert found >= {*SIZES} - {2, 31}, "what a few decide may not suit the fewest and the most of them"


def test_two_sizes():
    make = lambda t, q: (array(t, HIDDEN), array(q, HIDDEN))  # noqa: E731
    compiled = jax_cocktail.jit(attending, options=FORCED)
    exported = jax_cocktail.export(compiled)(*spec(make(5, 6), make(7, 9), "t", "q"))
    sizes = ((130, 120), (1, 1), (140, 1), (1, 40), (25, 20), (7, 200), (99, 99))
    found = [checked(exported, attending, make(*each)) for each in sizes]
    assert found[:3] == [True] * 3


def test_another_process(tmp_path):
    pytest.importorskip("flatbuffers")
    file = tmp_path / "module"
    compiled = jax_cocktail.jit(per_element_branch, options=FORCED)
    exported = jax_cocktail.export(compiled)(*spec(weights_and(5), weights_and(7), "n"))
    file.write_bytes(exported.serialize())
    program = f"""
        import jax, jax_cocktail
        from jax import export
        from tests.api.test_export_any_size import checked, per_element_branch, weights_and
        {{trust}}
        exported = export.deserialize(bytearray(open({str(file)!r}, "rb").read()))
        print(*(checked(exported, per_element_branch, weights_and(n)) for n in (1, 5, 70)))
    """
    elsewhere = {"JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache")}
    trusts = program.format(trust=f"jax_cocktail.load(trust={str(file)!r})")
    assert python(trusts, **elsewhere).split() == ["True"] * 3
    with pytest.raises(AssertionError, match="is not trusted"):
        python(program.format(trust="jax_cocktail.load()"), **elsewhere)


def test_within_bounds():
    """Constraints exclude the numbers that would stand for many."""

    def pads(x):
        long = lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c) * 0.5, x)
        return jnp.pad(long, ((0, 64 - x.shape[0]), (0, 0)))

    sizes = spec((array(5, 4),), (array(7, 4),), "n", constraints=("n <= 64", "n >= 4"))
    exported = jax_cocktail.export(jax_cocktail.jit(pads, options=FORCED))(*sizes)
    found = [checked(exported, pads, (array(n, 4),)) for n in (20, 40, 64)]
    assert found == [True] * 3


def test_keys_and_64_bits():
    def walk(key, x):
        def step(c, k):
            return c + jax.random.normal(k, c.shape, c.dtype), c.sum()

        return lax.scan(step, x, jax.random.split(key, 5))

    with jax.enable_x64(True):
        make = lambda n: (jax.random.key(3), jnp.linspace(0.0, 1.0, n))  # noqa: E731
        exported = jax_cocktail.export(jax_cocktail.jit(walk, options=FORCED))(*spec(make(5), make(7), "n"))
        assert checked(exported, walk, make(40))


def test_inside_of_another_function():
    """Its operands are intermediate values, of sizes that are products and sums of those of the arguments."""
    inner = jax_cocktail.jit(lambda x: lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c) * 0.5, x), options=FORCED)

    def outer(x):
        return inner(jnp.concatenate([x, x[:1]]).reshape(-1)) * 2

    allowed = [export.DisabledSafetyCheck.custom_call("jax_cocktail_cpu")]
    sizes = spec((array(5, 3),), (array(7, 3),), "n")
    exported = export.export(jax.jit(outer), disabled_checks=allowed)(*sizes)
    found = [checked(exported, outer, (array(n, 3),)) for n in (3, 50, 200)]
    assert found[1:] == [True] * 2


W = array(8, 8)
NUMBERS = {
    "closed over": (lambda x: lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c @ W) + x, x * 2), ("n, 8",)),
    "a number": (lambda x: lax.fori_loop(0, 4, lambda _, c: (c + x.shape[0]) / 2, x), ("n",)),
    "two axes": (lambda x: lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c @ c.T), x), ("n, n",)),
    "beside": (lambda x, s: lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c), s) + x.sum(), ("n", "8")),
}
FEW = {
    "a polynomial": (lambda n: (n - 119) * (n - 142) + n, "n"),
    "random": (lambda n: jax.random.normal(jax.random.PRNGKey(3), (n, n)), "n, n"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_as_numbers(name):
    """A size may be that of a constant, or a number that stands for others."""
    function, shapes = NUMBERS[name]
    of = [jax.ShapeDtypeStruct(export.symbolic_shape(each), jnp.float32) for each in shapes]
    exported = jax_cocktail.export(jax_cocktail.jit(function, options=FORCED))(*of)
    for n in (1, 8, 33, 119, 142):
        given = (array(*(n if d == "n" else int(d) for d in each.split(", "))) * 0.1 for each in shapes)
        assert checked(exported, function, (*given,))


@pytest.mark.parametrize("name", FEW)
def test_what_samples_do_not_tell(name):
    """Stock XLA runs what is the same for two numbers only, or made in another way for each."""
    make, shape = FEW[name]
    function = lambda x: lax.fori_loop(0, 4, lambda _, c: (c + make(x.shape[0])) / 2, x)  # noqa: E731
    compiled = jax_cocktail.jit(function, options={"force": "cocktail"})
    sizes = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32)
    with pytest.warns(jax_cocktail.CocktailWarning, match="only a few have programs of ours; export each"):
        exported = jax_cocktail.export(compiled)(sizes)
    for n in (1, 5, 40, 119, 142):
        checked(exported, function, (array(*[n] * len(shape.split(","))),))


def halves(x):
    return lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c) * 0.5, x[: x.shape[0] // 2])


def counts_halves(x):
    return lax.fori_loop(0, 4, lambda _, c: (c + x.shape[0] // 2) * 0.5, x)


@pytest.mark.parametrize("function", [halves, counts_halves])
@pytest.mark.parametrize("make", [export.export, jax_cocktail.export])
def test_quotients_are_stock(make, function):
    compiled = jax_cocktail.jit(function, options={"force": "cocktail"})
    reason = "symbolic sizes.*floordiv.*is neither a sum nor a product.*export each size"
    with pytest.warns(jax_cocktail.CocktailWarning, match=reason) as told:
        exported = make(compiled)(*spec((array(5),), (array(7),), "n"))
    assert __file__ in str(told[0].message), "it names the loop"
    for n in (4, 5):
        assert not checked(exported, function, (array(n),))


def test_geometry_is_in_the_text():
    """A convolution has a program for one image, and stock XLA runs others."""
    compiled = jax_cocktail.jit(image, options={"force": "cocktail"})
    make = lambda n: (array(3, 3, 2, 2), array(n, 6, 5, 2))  # noqa: E731
    with pytest.warns(jax_cocktail.CocktailWarning, match="only a few have programs of ours"):
        exported = jax_cocktail.export(compiled)(*spec(make(5), make(7), "n"))
    assert [checked(exported, image, make(n)) for n in (1, 5)] == [True, False]


def test_gpus_have_fixed_sizes():
    compiled = jax_cocktail.jit(halves, options={"force": "cocktail"})
    sizes = spec((array(5),), (array(7),), "n")
    with pytest.warns(jax_cocktail.CocktailWarning, match="programs for GPUs have fixed ones"):
        exported = jax_cocktail.export(compiled, platforms=["cuda"])(*sizes)
    assert "jax_cocktail_gpu" not in exported.mlir_module()


def test_several_devices_have_fixed_sizes():
    program = """
        import jax, jax.numpy as jnp, numpy as np, pytest, jax_cocktail
        from jax.sharding import NamedSharding, PartitionSpec
        from tests.api.test_export_any_size import export, lax

        (n,) = export.symbolic_shape("n")
        mesh = jax.make_mesh((2,), ("d",))
        divided = NamedSharding(mesh, PartitionSpec("d"))
        function = lambda x: lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c) * 0.5, x)
        mapped = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        shape = jax.ShapeDtypeStruct((2 * n, 4), jnp.float32, sharding=divided)
        for each in (function, mapped):
            jax_cocktail.memory.MEMORY.warned.clear()
            compiled = jax_cocktail.jit(each, options={"force": "cocktail"})
            with pytest.warns(jax_cocktail.CocktailWarning, match="for several devices have fixed ones"):
                exported = jax_cocktail.export(compiled)(shape)
            assert "jax_cocktail_cpu" not in exported.mlir_module()
            if each is function:  # jax cannot call the other one
                x = jax.device_put(jnp.ones((8, 4)), divided)
                print(np.array_equal(jax.jit(exported.call)(x), jax.jit(function)(x)))
    """
    assert python(program, XLA_FLAGS="--xla_force_host_platform_device_count=2").split() == ["True"]


def test_what_wins_is_a_decision_of_the_model():
    """Nothing is measured without arguments."""
    compiled = jax_cocktail.jit(lstm)
    exported = jax_cocktail.export(compiled)(*spec(lstm_arguments(5), lstm_arguments(7), "n"))
    checked(exported, lstm, lstm_arguments(40))
    with jax_cocktail.options(force="stock"):
        exported = jax_cocktail.export(lstm)(*spec(lstm_arguments(5), lstm_arguments(7), "n"))
    assert not checked(exported, lstm, lstm_arguments(40))
