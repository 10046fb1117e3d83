"""racecheck in machine code: two warps, one shared word, one barrier epoch, at least one write."""

from __future__ import annotations

from . import llvm_layout as at
from .llvm_runtime import Function
from .llvm_text import Module, Value, const


def race_run(module: Module) -> None:
    """void race_run(ctx, warp, instruction, kind, offset, words, shift, lane): races of consecutive words.

    Word k from the byte offset on is accessed by lane + (k >> shift). Two warps, one epoch of the block, at
    least one write: the engine's report function is called, once for each instruction and kind of hazard.
    """
    f = Function(
        module,
        "race_run",
        "void",
        [
            ("ptr", "ctx"),
            ("ptr", "warp"),
            ("i32", "instruction"),
            ("i32", "kind"),
            ("i64", "offset"),
            ("i64", "words"),
            ("i32", "shift"),
            ("i32", "lane"),
        ],
        internal=False,
        noinline=True,
    )
    f.begin()
    warp = f.field("i64", "%warp", at.WARP_INDEX)
    words, kind, instruction = Value("%words", "i64"), Value("%kind", "i32"), Value("%instruction", "i32")
    epoch = f.resize(f.ctx("epoch"), "i32")
    tag = f.bin("or", f.bin("shl", epoch, f.i32(5)), f.resize(warp, "i32"))
    word0 = f.bin("lshr", Value("%offset", "i64"), f.i64(2))
    bytes_of_array = f.bin("mul", f.ctx("race_words"), f.i64(4))
    base = f.pointer(f.ctx_pointer("race"), f.bin("mul", word0, f.i64(4)))
    step = f.variable("i64", f.i64(0))
    atomic = f.icmp("eq", kind, f.i32(2))
    loop, body, done = f.new_label("loop"), f.new_label("body"), f.new_label("done")
    f.br(loop)
    f.label(loop)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, words), body, done)
    f.label(body)
    lanes = f.lane_numbers("i64")
    number = f.bin("add", f.spread(k), lanes)
    active = f.icmp("ult", number, f.spread(words))
    lane = f.bin("add", f.resize(number, "i32"), f.i32(0))
    lane = f.bin("add", f.bin("lshr", lane, Value("%shift", "i32")), Value("%lane", "i32"))
    info = f.bin("or", f.bin("shl", instruction, f.i32(5)), lane)
    info = f.select(atomic, f.bin("or", info, const("i32", at.RACE_ATOMIC)), info)
    here = f.pointer(base, f.bin("mul", k, f.i64(4)))

    def array(index: int) -> str:
        return f.pointer(here, f.bin("mul", bytes_of_array, f.i64(index)))

    places = [array(index) for index in range(6)]
    tags = f.spread(tag)

    def elsewhere(value: Value) -> Value:
        """Tags of this epoch and of another warp: they differ in the low five bits only."""
        difference = f.bin("sub", f.bin("xor", value, tags), const("i32", 1))
        return f.bin("and", f.icmp("ult", difference, const("i32", 31)), active)

    writer = f.load("i32", places[at.RACE_WRITER], 32, align=4)
    writer_info = f.load("i32", places[at.RACE_WRITER_INFO], 32, align=4)
    clash = elsewhere(writer)
    both_atomic = f.bin("and", f.spread(atomic), f.icmp("slt", writer_info, const("i32", 0)))
    clash = f.bin("and", clash, f.bin("xor", both_atomic, const("i1", 1)))

    def report(condition: Value, hazard: Value) -> None:
        bits = f.mask_bits(condition)
        after = f.start_if(f.icmp("ne", bits, f.i32(0)), "unlikely")
        row = f.bin("mul", f.resize(instruction, "i64"), f.i64(at.HAZARDS))
        at_seen = f.bin("add", row, f.resize(hazard, "i64"))
        seen = f.pointer(f.ctx_pointer("race_seen"), at_seen)
        inner = f.start_if(f.icmp("eq", f.load("i8", seen), Value("0", "i8")))
        f.store(Value("1", "i8"), seen)
        f.line(
            f"call void {f.ctx_pointer('report')}({f.ctx('host')}, {instruction}, {warp}, {hazard}, "
            f"i64 %offset, {words}, i32 %shift, i32 %lane)"
        )
        f.end_if(inner)
        f.end_if(after)

    reading = f.icmp("eq", kind, f.i32(0))
    report(clash, f.select(reading, f.i32(at.READ_AFTER_WRITE), f.i32(at.WRITE_AFTER_WRITE)))
    reader = f.load("i32", places[at.RACE_READER], 32, align=4)
    reader_info = f.load("i32", places[at.RACE_READER_INFO], 32, align=4)
    second = f.load("i32", places[at.RACE_SECOND], 32, align=4)
    second_info = f.load("i32", places[at.RACE_SECOND_INFO], 32, align=4)
    reads, writes, following = f.new_label("reads"), f.new_label("writes"), f.new_label("following")
    f.cond(reading, reads, writes)
    f.label(reads)
    now = f.icmp("eq", f.bin("lshr", reader, f.i32(5)), f.spread(epoch))
    fresh = f.bin("and", f.bin("xor", now, const("i1", 1)), active)
    other = elsewhere(reader)
    f.store(f.select(fresh, tags, reader), places[at.RACE_READER], align=4)
    f.store(f.select(fresh, info, reader_info), places[at.RACE_READER_INFO], align=4)
    f.store(f.select(other, tags, second), places[at.RACE_SECOND], align=4)
    f.store(f.select(other, info, second_info), places[at.RACE_SECOND_INFO], align=4)
    f.br(following)
    f.label(writes)
    report(elsewhere(reader), f.i32(at.WRITE_AFTER_READ))
    report(elsewhere(second), f.i32(at.WRITE_AFTER_SECOND_READ))
    f.store(f.select(active, tags, writer), places[at.RACE_WRITER], align=4)
    f.store(f.select(active, info, writer_info), places[at.RACE_WRITER_INFO], align=4)
    f.br(following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(32)), step)
    f.br(loop)
    f.label(done)
    f.ret()
    f.finish()


def race_lanes(module: Module) -> None:
    """void race_lanes(...): race_run for each active lane's shared words, at the scratch addresses."""
    f = Function(
        module,
        "race_lanes",
        "void",
        [
            ("ptr", "ctx"),
            ("ptr", "warp"),
            ("i32", "instruction"),
            ("i32", "kind"),
            ("i32", "mask"),
            ("i64", "span"),
            ("i32", "space"),
        ],
        noinline=True,
    )
    f.begin()
    rest = f.variable("i32", Value("%mask", "i32"))
    generic = f.icmp("eq", Value("%space", "i32"), f.i32(at.SPACE_GENERIC))
    window = f.select(generic, f.ctx("shared_window"), f.i64(0))
    words = f.intrinsic("umax", f.bin("lshr", Value("%span", "i64"), f.i64(2)), f.i64(1))
    loop, body, mine, done = (f.new_label(s) for s in ("loop", "body", "mine", "done"))
    f.br(loop)
    f.label(loop)
    m = f.load("i32", rest)
    f.cond(f.icmp("ne", m, f.i32(0)), body, done)
    f.label(body)
    lane = f.intrinsic("cttz", m, flags=", i1 true")
    f.store(f.bin("and", m, f.bin("sub", m, f.i32(1))), rest)
    place_ = f.bin("add", f.bin("mul", f.resize(lane, "i64"), f.i64(8)), f.i64(at.SCRATCH_ADDRESSES))
    offset = f.bin("sub", f.load("i64", f.pointer("%ctx", place_)), window)
    f.cond(f.icmp("ult", offset, f.ctx("shared_size")), mine, loop)
    f.label(mine)
    f.call(
        "void", "race_run", "ptr %ctx", "ptr %warp", "i32 %instruction", "i32 %kind", str(offset), str(words),
        "i32 31", str(lane),
    )  # fmt: skip
    f.br(loop)
    f.label(done)
    f.ret()
    f.finish()
