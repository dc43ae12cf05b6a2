"""What XLA dumps of the steps of executables."""

from __future__ import annotations

from benchmarks.gpu import thunks


def test_thunks_are_read_as_they_are_nested():
    text = """000: kCommandBuffer [source       | next=002 (1)]
    001: kCopy [source | sink] kCopy
002: kWhile         [prev=000 (1) | sink        ]
condition:
    003: kCustomKernel [source       | next=004 (1)] first grid: [1, 1, 1]
    004: kCustomKernel [prev=003 (1) | sink        ] second
  body:
    000: kCommandBuffer [source | sink]
        005: kConditional [source | sink]
          false_branch:
            006: kCopy [source | sink] kCopy
          true_branch:
            007: kGemm [source | sink]
008: kCopy [source | sink] last
"""
    buffer, loop, last = thunks.thunks(text)
    assert (buffer.kind, [t.kind for t in buffer.inner]) == ("kCommandBuffer", ["kCopy"])
    assert [(t.kind, t.part) for t in loop.inner] == [
        ("kCustomKernel", "condition"),
        ("kCustomKernel", "condition"),
        ("kCommandBuffer", "body"),
    ]
    assert loop.inner[0].name == "first grid: [1, 1, 1]" and last.name == "last"
    (branch,) = loop.inner[2].inner
    assert [(t.kind, t.part) for t in branch.inner] == [("kCopy", "false_branch"), ("kGemm", "true_branch")]
    assert [t.kind for t in loop.walk()].count("kCopy") == 1


def test_loops_outside_of_command_buffers(tmp_path):
    """Of the executable that was compiled last, after XLA's passes."""
    inside = "000: kCommandBuffer [source]\n    001: kWhile [source]\n    body:\n      002: kGemm [x]\n"
    (tmp_path / "module_0001.jit_f.thunk_sequence.txt").write_text("000: kWhile [source]\n")
    assert thunks.captured(thunks.dumps(str(tmp_path))) == thunks.Captured(False, 0, 1)
    assert thunks.captured_of({}, thunks.dumps(str(tmp_path))).get("error") is None
    (tmp_path / "module_0001.jit_f.thunk_sequence_after_thunk_passes.txt").write_text(inside)
    assert thunks.captured(thunks.dumps(str(tmp_path))) == thunks.Captured(True, 1, 1)
    (tmp_path / "module_0002.jit_g.thunk_sequence.txt").write_text(f"{inside}003: kWhile [sink]\n")
    found = thunks.captured_of({"an": "option"}, thunks.dumps(str(tmp_path)))
    assert (found["loops_captured"], found["loops"]) == (1, 2)
    assert found["error"] == "1 of 2 loops are outside of command buffers"
    assert thunks.captured(thunks.dumps("")) == thunks.Captured(False, 0, 0)
