"""Products of float32 on a device without matrix instructions for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from jax_cocktail.schedule.products.exact_products import exact_products
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UProgram, operators_in

AXES = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}


def product(dtype: str, **attributes: str) -> UProgram:
    builder, shape = Builder(), (64, 64)
    x, w = (builder.value(dtype, shape) for _ in range(2))
    y = builder.emit("dot", (x, w), "float32", shape, **AXES, **attributes)
    return UProgram("product", builder.finish((x, w), (y,)))


def test_products_of_float32_no_longer_round() -> None:
    program = product("float32", precision="default")
    exact = exact_products(program)
    assert [o.may_round for o in operators_in(program.entry)] == [True]
    assert [o.may_round for o in operators_in(exact.entry)] == [False]
    assert exact_products(exact) is exact


@pytest.mark.parametrize("program", [product("bfloat16", precision="default"), product("float32")])
def test_others_stay(program: UProgram) -> None:
    assert exact_products(program) is program


def test_only_devices_without_the_instructions_ask_for_it() -> None:
    program = product("float32", precision="default")
    texts = {spec.arch: emit(program, machine_of(spec)).source for spec in (MI300X, RX_7900_XTX)}
    assert "CK_TF32" in texts["gfx942"] and "CK_TF32" not in texts["gfx1100"]
    told = replace(RX_7900_XTX, matrix_float32="exact")
    assert "CK_TF32" in emit(program, machine_of(told)).source
