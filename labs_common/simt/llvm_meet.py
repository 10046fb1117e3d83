"""Lanes that meet: for a warp operation in masked code, and where code changes between uniform and masked.

Registers then change between one value for the warp and one in each lane. A table lists them, three numbers
each: the bytes of the register (0: a predicate), its vector slot and its scalar slot. All of it is out of
line, since any block may be such a place: in place it is more than half of masked code, and what a new
kernel's first result waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from . import llvm_layout as at
from .llvm_runtime import Function, fault
from .llvm_text import WARP, Module, Value

WIDTHS = (1, 2, 4, 8, 16)
DECLARATIONS = (
    "declare i1 @to_scalars(ptr, ptr, i64, i32)",
    "declare void @to_lanes(ptr, ptr, i64)",
    "declare i64 @gather(ptr, ptr, i32, i32, i32, i1)",
)
MEMBERS = at.SCRATCH_MORE  # 32 x i32: which lanes each lane of an operation names


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


def gather(module: Module) -> None:
    """i64 gather(ctx, warp, instruction, waiting, mask, barrier): which lanes may execute a warp operation.

    Of the lanes of the mask, which have come now, and those whose pc is `waiting`: those whose members have
    all come. The others wait. -1 after a fault. barrier: bar.warp.sync, which may name lanes that exited.
    """
    f = Function(
        module,
        "gather",
        "i64",
        [("ptr", "ctx"), ("ptr", "warp"), ("i32", "instruction"), ("i32", "waiting"), ("i32", "mask"),
         ("i1", "barrier")],
        internal=False,
        noinline=True,
    )  # fmt: skip
    f.begin()
    members = f.load("i32", f.pointer("%ctx", MEMBERS), WARP, align=64)
    alive, pc = f.field("i32", "%warp", at.WARP_ALIVE), Value("%waiting", "i32")
    place = f.pointer("%warp", at.WARP_PCS)
    pcs = f.load("i32", place, WARP, align=64)
    waiting = f.mask_bits(f.icmp("eq", pcs, f.spread(pc)))
    here = f.bin("or", Value("%mask", "i32"), f.bin("and", waiting, alive))
    here_vector = f.mask_lanes(here)

    def faulty(lanes: Value, kind: int) -> None:
        after = f.start_if(f.icmp("ne", lanes, f.i32(0)), "unlikely")
        lane = f.intrinsic("cttz", lanes, flags=", i1 true")
        extra = f.resize(f.extract(members, lane), "i64")
        fault(f, kind, Value("%instruction", "i32"), lane, f.i64(0), extra)
        f.ret(f.i64(-1))
        f.label(after)

    own = f.bin("and", f.bin("lshr", members, f.lane_numbers()), f.i32(1))
    faulty(f.bin("and", f.mask_bits(f.icmp("eq", own, f.i32(0))), here), at.NOT_IN_MASK)
    exited = f.bin("and", members, f.spread(f.bin("xor", alive, f.i32(-1))))
    exited = f.bin("and", f.mask_bits(f.icmp("ne", exited, f.i32(0))), here)
    faulty(f.select(Value("%barrier", "i1"), f.i32(0), exited), at.MASK_EXITED)
    absent = f.bin("and", members, f.spread(f.bin("and", alive, f.bin("xor", here, f.i32(-1)))))
    ready = f.bin("and", f.mask_bits(f.icmp("eq", absent, f.i32(0))), here)
    # those left over wait, so that they do not look runnable
    rest = f.mask_lanes(f.bin("and", here, f.bin("xor", ready, f.i32(-1))))
    f.store(f.select(rest, pc, pcs), place, align=64)
    named = f.pointer("%warp", at.WARP_COUNT)
    f.store(f.select(here_vector, members, f.load("i32", named, WARP, align=64)), named, align=64)
    f.ret(f.resize(ready, "i64"))
    f.finish()
