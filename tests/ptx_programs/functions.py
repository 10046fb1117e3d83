"""Device functions, printf, assert and trap."""

from __future__ import annotations

import math

import numpy as np

from .program import each, lanes, words

A, B = words(121), words(122)
T = np.arange(32, dtype=np.uint32)
PRINTF = ".extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);\n"
ASSERT = (
    ".extern .func __assertfail(.param .b64 message, .param .b64 file, .param .b32 line, "
    ".param .b64 function,"
    " .param .b64 size);\n"
)


def text(name: str, value: str) -> str:
    """A string in global memory."""
    codes = [*value.encode(), 0]
    return f".global .align 1 .b8 {name}[{len(codes)}] = {{{', '.join(map(str, codes))}}};\n"


def call(function: str, *arguments: tuple[str, str], result: str = "", type_: str = "b32") -> str:
    """A call: arguments are (type, register or literal); the result goes to a register."""
    lines = ["{"]
    for k, (kind, value) in enumerate(arguments):
        lines.append(f".param .{kind} x{k};\nst.param.{kind} [x{k}], {value};")
    names = ", ".join(f"x{k}" for k in range(len(arguments)))
    target = f"(z0), {function}, ({names})" if result else f"{function}, ({names})"
    if result:
        lines.append(f".param .{type_} z0;")
    lines.append(f"call.uni {target};")
    if result and result != "_":
        lines.append(f"ld.param.{type_} {result}, [z0];")
    return "\n".join([*lines, "}\n"])


def fails(condition: str) -> str:
    """assert(x < 32) at line 12, where the predicate is false."""
    arguments = (("b64", "%d5"), ("b64", "%d6"), ("b32", "12"), ("b64", "%d7"), ("b64", "1"))
    return (
        f"{condition} @%p1 bra FINE;\nmov.u64 %d5, message; mov.u64 %d6, file; mov.u64 %d7, function;\n"
        + "cvta.global.u64 %d5, %d5; cvta.global.u64 %d6, %d6; cvta.global.u64 %d7, %d7;\n"
        + call("__assertfail", *arguments)
        + "FINE: mov.u32 y, 4;"
    )


ASSERTS = ASSERT + text("message", "x < 32") + text("file", "program.cu") + text("function", "k")
SQUARE = (
    ".func (.param .b32 r) square(.param .b32 x)\n{\n.reg .b32 a;\nld.param.b32 a, [x];\n"
    "mul.lo.u32 a, a, a;\n"
    "st.param.b32 [r], a;\nret;\n}\n"
)
CUBE = (
    ".func (.param .b32 r) cube(.param .b32 x)\n{\n.reg .b32 a, b;\nld.param.b32 a, [x];\n"
    + call("square", ("b32", "a"), result="b")
    + "mul.lo.u32 a, a, b;\nst.param.b32 [r], a;\nret;\n}\n"
)
MAGNITUDE = (
    ".func (.param .b32 r) magnitude(.param .b32 x)\n{\n.reg .b32 a;\n.reg .pred p;\nld.param.b32 a, [x];\n"
    "setp.ge.s32 p, a, 0;\n@p bra DONE;\nneg.s32 a, a;\nDONE:\nst.param.b32 [r], a;\nret;\n}\n"
)
BUMP = (
    ".func bump(.param .b64 where, .param .b32 much)\n{\n.reg .b64 p;\n.reg .b32 a, v;\n"
    "ld.param.b64 p, [where];\n"
    "ld.param.b32 a, [much];\nld.u32 v, [p];\nadd.u32 v, v, a;\nst.u32 [p], v;\nret;\n}\n"
)
AVERAGE = (
    ".func (.param .b64 r) average(.param .b64 x, .param .b64 y)\n{\n.reg .f64 a, b;\nld.param.f64 a, [x];\n"
    "ld.param.f64 b, [y];\nadd.f64 a, a, b;\nmul.f64 a, a, 0d3FE0000000000000;\nst.param.f64 [r], a;\n"
    "ret;\n}\n"
)
LOOPED = (
    ".func (.param .b32 r) factorial(.param .b32 x)\n{\n.reg .b32 n, f;\n.reg .pred p;\n"
    "ld.param.b32 n, [x];\n"
    "mov.b32 f, 1;\nLOOP:\nsetp.le.u32 p, n, 1;\n@p bra DONE;\nmul.lo.u32 f, f, n;\nsub.u32 n, n, 1;\n"
    "bra LOOP;\n"
    "DONE:\nst.param.b32 [r], f;\nret;\n}\n"
)

PROGRAMS = [
    lanes(
        "a device function is called twice",
        call("square", ("b32", "a"), result="y")
        + "add.u32 %r5, a, 1;\n"
        + call("square", ("b32", "%r5"), result="%r6")
        + "sub.u32 z, %r6, y;",
        {"a": A},
        {"y": A * A, "z": 2 * A + 1},
        before=SQUARE,
    ),
    lanes(
        "a function calls a function",
        call("cube", ("b32", "t"), result="y") + "add.u32 y, y, t; mov.u32 z, y;",
        {"t": T},
        {"y": T**3 + T, "z": T**3 + T},
        before=SQUARE + CUBE,
    ),
    lanes(
        "a branch in a function and divergent callers",
        "setp.lt.u32 %p1, %r0, 16; mov.u32 y, 5; @%p1 bra OVER;\n"
        + call("magnitude", ("b32", "a"), result="y")
        + "OVER: add.u32 y, y, 1;",
        {"a": A},
        {
            "y": np.where(T < 16, 5, np.abs(A.view(np.int32).astype(np.int64))).astype(np.uint32)
            + np.uint32(1)
        },
        before=MAGNITUDE,
    ),
    lanes(
        "a function writes through a pointer to local memory",
        ".local .align 4 .b8 cell[8];\nmov.u64 %d5, cell; cvta.local.u64 %d5, %d5;\n"
        "st.local.u32 [cell], a; st.local.u32 [cell+4], 1;\n"
        + call("bump", ("b64", "%d5"), ("b32", "%r0"))
        + "add.u64 %d6, %d5, 4;\n"
        + call("bump", ("b64", "%d6"), ("b32", "a"))
        + "ld.local.u32 y, [cell]; ld.local.u32 z, [cell+4];",
        {"a": A},
        {"y": A + T, "z": A + 1},
        before=BUMP,
    ),
    lanes(
        "f64 parameters and results",
        call("average", ("f64", "a"), ("f64", "b"), result="%g1", type_="f64").replace(
            ".param .f64 z0", ".param .b64 z0"
        )
        + "add.f64 y, %g1, %g1; sub.f64 z, y, a;",
        {"a": T * 1.0, "b": T * 2.0},
        {"y": T * 3.0, "z": T * 2.0},
        before=AVERAGE,
    ),
    lanes(
        "a loop in a function runs as often as each lane says",
        "rem.u32 %r5, t, 9;\n" + call("factorial", ("b32", "%r5"), result="y") + "mad.lo.u32 z, y, 2, 1;",
        {"t": T},
        {
            "y": each(lambda t: math.factorial(t % 9), T),
            "z": each(lambda t: 2 * math.factorial(t % 9) + 1, T),
        },
        before=LOOPED,
    ),
    lanes(
        "printf of integers, text and floats",
        ".local .align 8 .b8 pack[24];\nsetp.ge.u32 %p1, %r0, 2; @%p1 bra QUIET;\nmov.u64 %d5, pack;\n"
        "cvta.local.u64 %d6, %d5;\n"
        "st.local.u32 [pack], %r0; mov.u64 %d8, word; cvta.global.u64 %d8, %d8;\n"
        "st.local.u64 [pack+8], %d8; cvt.rn.f64.u32 %g1, %r0;\n"
        "add.f64 %g1, %g1, 0d3FE0000000000000; st.local.f64 [pack+16], %g1; mov.u64 %d7, format;\n"
        "cvta.global.u64 %d7, %d7;\n"
        + call("vprintf", ("b64", "%d7"), ("b64", "%d6"), result="%r5")
        + "QUIET: add.u32 y, %r0, 3;",
        outputs={"y": T + 3},
        before=PRINTF + text("format", "lane %d says %s %.3f\n") + text("word", "so"),
        printed="lane 0 says so 0.500\nlane 1 says so 1.500\n",
    ),
    lanes(
        "printf in a loop, without arguments too",
        ".local .align 8 .b8 pack[16];\nsetp.ne.u32 %p1, %r0, 0; @%p1 bra QUIET;\nmov.u64 %d5, pack;\n"
        "cvta.local.u64 %d6, %d5;\n"
        "mov.u64 %d7, format; cvta.global.u64 %d7, %d7; mov.u64 %d8, ending; cvta.global.u64 %d8, %d8;\n"
        "mov.u32 %r5, 0;\n"
        "LOOP: mul.lo.u32 %r6, %r5, -3; st.local.u32 [pack], %r6; mul.wide.u32 %d9, %r5, 0x40000000;\n"
        "st.local.u64 [pack+8], %d9;\n"
        + call("vprintf", ("b64", "%d7"), ("b64", "%d6"), result="%r7")
        + "add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra LOOP;\n"
        + call("vprintf", ("b64", "%d8"), ("b64", "0"), result="%r7")
        + "QUIET: mov.u32 y, 1;",
        outputs={"y": np.ones(32, np.uint32)},
        before=PRINTF + text("format", "%3i|%08llx;") + text("ending", "100%%\n"),
        printed="  0|00000000; -3|40000000; -6|80000000;100%\n",
    ),
    lanes(
        "an assertion that holds",
        fails("setp.lt.u32 %p1, %r0, 32;"),
        outputs={"y": np.full(32, 4, np.uint32)},
        before=ASSERTS,
    ),
    lanes(
        "an assertion that fails names its text and thread",
        fails("setp.ne.u32 %p1, %r0, 9;"),
        outputs={"y": np.full(32, 4, np.uint32)},
        before=ASSERTS,
        error=r"x < 32",
    ),
    lanes(
        "trap ends the launch at its line",
        "setp.ne.u32 %p1, %r0, 5; mov.u32 y, 1;\n.loc 1 21 3\n@%p1 bra FINE; trap;\nFINE: mov.u32 y, 2;",
        outputs={"y": np.full(32, 2, np.uint32)},
        error=r"program\.cu:21",
    ),
    lanes(
        "a predicated trap of no lane does nothing",
        "setp.gt.u32 %p1, %r0, 31; mov.u32 y, 1; @%p1 trap; add.u32 y, y, 1;",
        outputs={"y": np.full(32, 2, np.uint32)},
    ),
]
