"""Which equations become regions, on small graphs worked out by hand.

A letter is an equation: its kind and what it reads are in the table of the test, its region in the wanted
result. The rules are those of AStitch (Zheng et al., ASPLOS'22, section 4.1).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from jax_cocktail.device.tuning import MODEL
from jax_cocktail.stitch.partition import Node, Partition, partition

BIG = MODEL.stitched_bytes
KINDS: Mapping[str, Mapping[str, object]] = {
    "element": {"reads": BIG, "writes": BIG},
    "reduce": {"reads": BIG, "writes": 64, "stops_fusion": True},
    "move": {"reads": BIG, "writes": BIG, "computes": False},
    "spread": {"reads": 64, "writes": BIG, "computes": False},
    "scalar": {},
    "product": {"reads": BIG, "writes": BIG, "stops_fusion": True, "expensive": True},
    "callback": {"reads": BIG, "writes": BIG, "stops_fusion": True, "supported": False},
    "loop": {"reads": BIG, "writes": BIG, "stops_fusion": True, "control_flow": True},
}


def graph(text: str, returned: str = "") -> tuple[str, list[Node]]:
    """Nodes from "a reduce, b element a": a name, a kind and what it reads. Those that nothing reads are
    returned, and those in `returned`."""
    rows = [row.split() for row in text.split(",")]
    names = "".join(row[0] for row in rows)
    read = {name for row in rows for name in row[2:]}
    nodes = [
        Node(
            tuple(names.index(p) for p in producers),
            **{
                "supported": True,
                "control_flow": False,
                "expensive": False,
                "returned": name not in read or name in returned,
                **KINDS[kind],
            },
        )
        for name, kind, *producers in rows
    ]
    return names, nodes


def regions(text: str, returned: str = "", memory_bound: bool = True) -> list[str]:
    names, nodes = graph(text, returned)
    found = partition(nodes, memory_bound)
    valid(nodes, found)
    return ["".join(names[p] for p in region) for region in found.regions]


def valid(nodes: Sequence[Node], found: Partition) -> None:
    """Every equation runs once, after what it reads: so no two regions wait for each other."""
    done: set[int] = set()
    for step in found.order:
        members = {step} if isinstance(step, int) else set(found.regions[step[0]])
        for position in sorted(members):
            assert set(nodes[position].producers) <= done | members
        assert not members & done
        done |= members
    assert done == set(range(len(nodes)))
    assert sorted(step[0] for step in found.order if not isinstance(step, int)) == list(
        range(len(found.regions))
    )


SOFTMAX = "m reduce, s element m, e element s, t reduce e, q element e t"


def test_nothing_is_taken_unless_asked_for():
    assert regions(SOFTMAX, memory_bound=False) == []


def test_all_that_is_connected_is_one_region():
    assert regions(SOFTMAX) == ["msetq"]


def test_a_product_is_a_wall():
    # m, s and e feed the product; t and q follow it. e reaches t beside the product, too.
    assert regions("m reduce, s element m, e element s, p product e, t reduce p, q element e t") == [
        "mse",
        "tq",
    ]


def test_what_cannot_be_compiled_is_a_wall():
    assert regions("m reduce, s element m, c callback s, t reduce c, q element t") == ["ms", "tq"]


def test_independent_subgraphs_merge():
    # remote stitching: two softmaxes without a common value
    assert regions("m reduce, s element m, n reduce, t element n") == ["msnt"]
    # the second one follows a product that no region has to end before
    assert regions("m reduce, s element m, p product, n reduce p, t element n") == ["msnt"]
    # the first one leads to the product
    assert regions("m reduce, s element m, p product s, n reduce p, t element n") == ["ms", "nt"]


def test_no_merge_closes_a_cycle():
    # (a b) -> p -> (c d) and b -> d: one region of all four would wait for itself
    assert regions("a reduce, b element a, p product b, c reduce p, d element b c") == ["ab", "cd"]
    # two products: the middle subgraph can join neither side
    text = (
        "a reduce, b element a, p product b, c reduce p, d element c, q product d, e reduce q b, f element e"
    )
    assert regions(text) == ["ab", "cd", "ef"]


def test_regions_with_control_flow_are_the_same_and_are_walls():
    text = "a reduce, b element a, p product b, c element p, l loop c, d reduce l, e element d"
    assert regions(text, memory_bound=False) == ["clde"]
    assert regions(text) == ["ab", "clde"]
    # (c d) neither feeds nor follows the loop
    text = "l loop, c reduce, d element c"
    assert regions(text, memory_bound=False) == ["l"]
    assert sorted(regions(text)) == ["cd", "l"]


def test_products_inside_control_flow_stay():
    text = "k loop, p product k, l loop p, m reduce, s element m"
    assert sorted(regions(text)) == ["kpl", "ms"]


def test_a_value_is_made_where_it_is_read():
    # z is read by the second region only, and costs it nothing
    text = "a reduce, b element a, z spread, p product b, c reduce p, d element c z"
    assert regions(text) == ["ab", "zcd"]
    # a sum is made beside the first region, which reads the same array
    text = "a reduce, b element a, z reduce, p product b, c reduce p, d element c z"
    assert regions(text) == ["abz", "cd"]
    # what the program returns stays
    text = "a reduce, b element a, z spread, p product b, c reduce p, d element c z"
    assert regions(text, returned="z") == ["abz", "cd"]


def test_what_only_moves_the_operand_of_a_product_stays_beside_it():
    assert regions("a reduce, b element a, v move b, w move v, p product w") == ["ab"]
    assert regions("a reduce, b element a, v move b, p product v", returned="v") == ["abv"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a reduce", "fewer than two"),
        ("a move, b reduce a, c spread b", "fewer than two"),
        ("a scalar, b scalar a, c scalar a b", "fewer than two"),
        ("a element, b element a, c move b", "one kernel"),
        ("a scalar, b reduce, c element b", ""),
        ("a element, b element a, c element a", ""),  # two results
        ("a element, b element a, c reduce b", ""),
    ],
)
def test_something_must_be_gained(text, reason):
    names, nodes = graph(text)
    found = partition(nodes, memory_bound=True)
    valid(nodes, found)
    if reason:
        ((members, why),) = found.declined
        assert not found.regions and members == tuple(range(len(names))) and reason in why
    else:
        assert found.regions == (tuple(range(len(names))),) and found.memory_bound == {0}


def test_small_arrays_gain_nothing():
    small = [Node((), True, False, False, reads=64, writes=64), Node((0,), True, False, False, 64, 64)]
    ((_, why),) = partition(small, memory_bound=True).declined
    assert "256 bytes" in why


def test_what_nobody_needs_is_no_reason():
    nodes = [Node((), True, False, False, BIG, 64, stops_fusion=True), Node((0,), True, False, False)]
    assert not partition(nodes, memory_bound=True).regions


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_run_in_order(seed):
    rng = random.Random(seed)
    names = "abcdefghijklmnopqrstuvwxyz"[: rng.randint(2, 26)]
    rows = []
    for number, name in enumerate(names):
        producers = rng.sample(names[:number], min(number, rng.randint(0, 3)))
        rows.append(" ".join([name, rng.choice(list(KINDS)), *producers]))
    text = ",".join(rows)
    before, after = regions(text, memory_bound=False), regions(text)
    assert [region for region in after if region in before] == before
    _, nodes = graph(text)
    found = partition(nodes, memory_bound=True)
    for number in found.memory_bound:
        assert not any(
            nodes[p].expensive or nodes[p].control_flow or not nodes[p].supported
            for p in found.regions[number]
        )
