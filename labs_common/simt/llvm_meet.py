"""Registers on their way between uniform and masked code: one value for the warp, or one in each lane.

A table lists them, three numbers each: the bytes of the register (0: a predicate), its vector slot and its
scalar slot. Out of line, since lanes may meet or part at any block of a kernel: in place it is half the IR.
"""

from __future__ import annotations

from collections.abc import Callable

from .llvm_runtime import Function
from .llvm_text import WARP, Module, Value

WIDTHS = (1, 2, 4, 8, 16)
DECLARATIONS = (
    "declare i1 @to_scalars(ptr, ptr, i64, i32)",
    "declare void @to_lanes(ptr, ptr, i64)",
)


def to_scalars(module: Module) -> None:
    """i1 to_scalars(warp, table, count, alive): each register's value, if it is the same in all living lanes.

    False where one is not; scalar slots may have been written.
    """
    arguments = [("ptr", "warp"), ("ptr", "table"), ("i64", "count"), ("i32", "alive")]
    f = Function(module, "to_scalars", "i1", arguments, internal=False, noinline=True)
    f.begin()
    alive = Value("%alive", "i32")
    lane = f.resize(f.intrinsic("cttz", alive, flags=", i1 true"), "i64")
    apart = f.new_label("apart")

    def predicate(lanes: str, scalar: str, following: str) -> None:
        bits = f.bin("and", f.load("i32", lanes), alive)
        none = f.icmp("eq", bits, f.i32(0))
        f.store(f.resize(f.bin("xor", none, Value("true", "i1")), "i8"), scalar)
        f.cond(f.bin("or", none, f.icmp("eq", bits, alive)), following, apart)

    def number(width: int, lanes: str, scalar: str, following: str) -> None:
        type_ = f"i{8 * width}"
        first = f.load(type_, f.pointer(lanes, f.bin("mul", lane, f.i64(width))))
        differs = f.icmp("ne", f.load(type_, lanes, WARP, align=64), f.spread(first))
        f.store(first, scalar, align=8)
        none = f.icmp("eq", f.bin("and", f.mask_bits(differs), alive), f.i32(0))
        f.cond(none, following, apart)

    _each(f, predicate, number)
    f.ret(Value("true", "i1"))
    f.label(apart)
    f.ret(Value("false", "i1"))
    f.finish()


def to_lanes(module: Module) -> None:
    """void to_lanes(warp, table, count): each register's one value, into every lane."""
    arguments = [("ptr", "warp"), ("ptr", "table"), ("i64", "count")]
    f = Function(module, "to_lanes", "void", arguments, internal=False, noinline=True)
    f.begin()

    def predicate(lanes: str, scalar: str, following: str) -> None:
        is_set = f.icmp("ne", f.load("i8", scalar), Value("0", "i8"))
        f.store(f.select(is_set, f.i32(-1), f.i32(0)), lanes)
        f.br(following)

    def number(width: int, lanes: str, scalar: str, following: str) -> None:
        f.store(f.spread(f.load(f"i{8 * width}", scalar, align=8)), lanes, align=64)
        f.br(following)

    _each(f, predicate, number)
    f.ret()
    f.finish()


def _each(
    f: Function,
    predicate: Callable[[str, str, str], None],
    number: Callable[[int, str, str, str], None],
) -> None:
    """A loop over the table; both go on at a label that they are given."""
    step = f.variable("i64", f.i64(0))
    loop, body, following, done = (f.new_label(s) for s in ("registers", "register", "next", "all"))
    kinds = [(width, f.new_label(f"bytes{width}")) for width in (0, *WIDTHS)]
    f.br(loop)
    f.label(loop)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, Value("%count", "i64")), body, done)
    f.label(body)
    row = f.pointer("%table", f.bin("mul", k, f.i64(12)))
    width = f.load("i32", row)
    lanes, scalar = (f.pointer("%warp", f.resize(f.field("i32", row, n), "i64")) for n in (4, 8))
    f.switch(width, following, kinds)
    for width_of, label in kinds:
        f.label(label)
        if width_of:
            number(width_of, lanes, scalar, following)
        else:
            predicate(lanes, scalar, following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(1)), step)
    f.br(loop)
    f.label(done)
