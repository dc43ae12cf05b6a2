"""Two programs at once on two streams, and one on several devices: no call knows of another."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.cpu.fake_gpu.calls import PLAN, Doubling, run
from tests.cpu.fake_gpu.driver import EXECUTE, Fake, Handlers, Xla


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("same", [True, False], ids=["one-program", "two-programs"])
def test_two_streams(handlers: Handlers, fake: Fake, same: bool, order: tuple[int, int]) -> None:
    """Both are enqueued before either runs; whichever is first, each has barrier words of its own."""
    fake.set(pointers=4)
    context = fake.context()
    streams = [Xla(fake.stream(context)) for _ in range(2)]
    calls = [Doubling(), Doubling(PLAN if same else replace(PLAN, threads=128))]
    for xla, call, x in zip(streams, calls, (3.0, 4.0), strict=True):
        call.x[0] = x
        fake.capture(xla.stream, True)
        assert call.call.invoke(handlers.execute, xla, EXECUTE) is None
        fake.capture(xla.stream, False)
    for which in order:
        assert fake.replay(streams[which].stream) == 2
    assert [call.y[0] for call in calls] == [6, 8]
    launches = fake.log("launch")
    assert [entry["stream"] for entry in launches] == [f"{xla.stream:#x}" for xla in streams]
    workspaces = {entry["pointers"].split(",")[2] for entry in launches}
    assert len(workspaces) == 2 and handlers.load_count() == (1 if same else 2)


def test_two_threads(handlers: Handlers, fake: Fake) -> None:
    """The same, call after call, from two threads, on two devices and on one."""
    fake.set(pointers=4)
    contexts = [fake.context(0), fake.context(1)]
    wrong: list[object] = []

    def work(seed: int) -> None:
        xla, call = Xla(fake.stream(contexts[seed // 2])), Doubling()
        for k in range(30):
            call.x[0] = seed * 100 + k
            call.workspace[256] = 7
            problem = run(handlers, xla, call.call)
            if problem is not None or call.y[0] != 2 * call.x[0]:
                wrong.append((seed, k, problem, call.y[0]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and handlers.load_count() == 2 and fake.depth() == 0


def test_eight_devices(handlers: Handlers, fake: Fake) -> None:
    """One program of blocks that wait for each other, on eight devices at once. Each has a module, barrier
    words and a grid of its own, and is launched cooperatively on the stream that XLA gives: all blocks or
    none. A device without room says so, and no other one waits for it."""
    fake.set(pointers=4, sms_5=66, sms_6=0)
    contexts = [fake.context(device) for device in range(8)]
    places = [Xla(fake.stream(context)) for context in contexts]
    calls = [Doubling() for _ in places]
    problems: list[object] = [None] * 8
    barrier = threading.Barrier(8)

    def work(device: int) -> None:
        calls[device].x[0] = device
        barrier.wait()
        problems[device] = run(handlers, places[device], calls[device].call)

    threads = [threading.Thread(target=work, args=(device,)) for device in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = problems.pop(6)
    assert problems == [None] * 7 and told is not None and "multiprocessors" in str(told)
    assert [call.y[0] for call in calls] == [0, 2, 4, 6, 8, 10, 0, 14]
    launches = {entry["stream"]: entry for entry in fake.log("launch")}
    assert set(launches) == {f"{xla.stream:#x}" for k, xla in enumerate(places) if k != 6}
    assert {entry["cooperative"] for entry in launches.values()} == {"1"}
    assert len({entry["pointers"].split(",")[2] for entry in launches.values()}) == 7
    grids = [int(launches[f"{xla.stream:#x}"]["grid"]) for k, xla in enumerate(places) if k != 6]
    assert len(set(grids[:5] + grids[6:])) == 1 and grids[5] <= grids[0], grids
    assert handlers.load_count() == 7
