"""racecheck in machine code; what it looks for is told in `races`."""

from __future__ import annotations

from . import llvm_layout as at
from .llvm_runtime import Function
from .llvm_text import Module, Value, const


def race_run(module: Module) -> None:
    """void race_run(ctx, warp, instruction, kind, offset, bytes, shift, lane, mask): races of some bytes.

    Byte b from the offset on is accessed by lane + (b >> shift); with a mask, by its lanes together (a read).
    The engine's report function is called once for each instruction and kind of hazard.
    """
    f = Function(
        module,
        "race_run",
        "void",
        [("ptr", "ctx"), ("ptr", "warp"), ("i32", "instruction"), ("i32", "kind"), ("i64", "offset"),
         ("i64", "bytes"), ("i32", "shift"), ("i32", "lane"), ("i32", "mask")],
        internal=False,
        noinline=True,
    )  # fmt: skip
    f.begin()
    warp = f.field("i64", "%warp", at.WARP_INDEX)
    kind, instruction = Value("%kind", "i32"), Value("%instruction", "i32")
    unit = f.ctx("race_shift")
    units = f.bin("lshr", Value("%bytes", "i64"), unit)
    epoch = f.resize(f.ctx("epoch"), "i32")
    tag = f.bin("or", f.bin("shl", epoch, f.i32(5)), f.resize(warp, "i32"))
    sync = f.spread(f.field("i32", "%warp", at.WARP_SYNC))
    unit0 = f.bin("lshr", Value("%offset", "i64"), unit)
    bytes_of_array = f.bin("mul", f.ctx("race_words"), f.i64(4))
    base = f.pointer(f.ctx_pointer("race"), f.bin("mul", unit0, f.i64(4)))
    step = f.variable("i64", f.i64(0))
    atomic = f.icmp("eq", kind, f.i32(2))
    loop, body, done = f.new_label("loop"), f.new_label("body"), f.new_label("done")
    f.br(loop)
    f.label(loop)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, units), body, done)
    f.label(body)
    number = f.bin("add", f.spread(k), f.lane_numbers("i64"))
    active = f.icmp("ult", number, f.spread(units))
    lane = f.bin("shl", f.resize(number, "i32"), f.spread(f.resize(unit, "i32")))
    lane = f.bin("add", f.bin("lshr", lane, Value("%shift", "i32")), Value("%lane", "i32"))
    info = f.bin("or", f.bin("shl", instruction, f.i32(5)), lane)
    info = f.select(atomic, f.bin("or", info, const("i32", at.RACE_ATOMIC)), info)
    together = f.icmp("ne", Value("%mask", "i32"), f.i32(0))
    own = f.bin("shl", const("i32", 1), f.bin("and", lane, const("i32", 31)))
    bits = f.select(together, f.spread(Value("%mask", "i32")), own)
    here = f.pointer(base, f.bin("mul", k, f.i64(4)))
    places = [f.pointer(here, f.bin("mul", bytes_of_array, f.i64(n))) for n in range(at.RACE_ARRAYS)]
    tags = f.spread(tag)

    def state(index: int) -> Value:
        return f.load("i32", places[index], 32, align=4)

    def keep(index: int, condition: Value, new: Value, old: Value) -> None:
        f.store(f.select(condition, new, old), places[index], align=4)

    def elsewhere(value: Value) -> Value:
        """Tags of this epoch and of another warp: they differ in the low five bits only."""
        difference = f.bin("sub", f.bin("xor", value, tags), const("i32", 1))
        return f.bin("and", f.icmp("ult", difference, const("i32", 31)), active)

    def report(condition: Value, hazard: Value) -> None:
        found = f.mask_bits(condition)
        after = f.start_if(f.icmp("ne", found, f.i32(0)), "unlikely")
        tell(f, instruction, warp, hazard, ("i64 %offset", "i64 %bytes", "i32 %shift", "i32 %lane"))
        f.end_if(after)

    writer, writer_info = state(at.RACE_WRITER), state(at.RACE_WRITER_INFO)
    both_atomic = f.bin("and", f.spread(atomic), f.icmp("slt", writer_info, const("i32", 0)))
    clashes = f.bin("xor", both_atomic, const("i1", 1))
    reading = f.icmp("eq", kind, f.i32(0))
    hazard = f.select(reading, f.i32(at.READ_AFTER_WRITE), f.i32(at.WRITE_AFTER_WRITE))
    report(f.bin("and", elsewhere(writer), clashes), hazard)
    # written by another lane of this warp, with no sync since
    writing_lane = f.bin("and", writer_info, const("i32", 31))
    writing_bit = f.bin("shl", const("i32", 1), writing_lane)
    foreign = f.icmp("ne", f.bin("and", bits, f.bin("xor", writing_bit, const("i32", -1))), const("i32", 0))
    since = f.bin("and", f.icmp("eq", writer, tags), f.icmp("eq", state(at.RACE_WRITE_SYNC), sync))
    near = f.bin("and", f.bin("and", since, foreign), f.bin("and", active, clashes))
    reader, reader_info = state(at.RACE_READER), state(at.RACE_READER_INFO)
    second, second_info = state(at.RACE_SECOND), state(at.RACE_SECOND_INFO)
    read_sync, read_lanes = state(at.RACE_READ_SYNC), state(at.RACE_READ_LANES)
    reads, writes, following = f.new_label("reads"), f.new_label("writes"), f.new_label("following")
    f.cond(reading, reads, writes)
    f.label(reads)
    report(near, f.i32(at.OWN_READ_AFTER_WRITE))
    now = f.icmp("eq", f.bin("lshr", reader, f.i32(5)), f.spread(epoch))
    fresh = f.bin("and", f.bin("xor", now, const("i1", 1)), active)
    other = elsewhere(reader)
    mine = f.bin("and", f.bin("or", fresh, f.icmp("eq", reader, tags)), active)
    known = f.bin("and", f.icmp("eq", reader, tags), f.icmp("eq", read_sync, sync))
    lanes_now = f.bin("or", f.select(known, read_lanes, const("i32", 0)), bits)
    keep(at.RACE_READER, fresh, tags, reader)
    keep(at.RACE_READER_INFO, fresh, info, reader_info)
    keep(at.RACE_SECOND, other, tags, second)
    keep(at.RACE_SECOND_INFO, other, info, second_info)
    keep(at.RACE_READ_SYNC, mine, sync, read_sync)
    keep(at.RACE_READ_LANES, mine, lanes_now, read_lanes)
    keep(at.RACE_READ_AT, mine, f.spread(instruction), state(at.RACE_READ_AT))
    f.br(following)
    f.label(writes)
    report(elsewhere(reader), f.i32(at.WRITE_AFTER_READ))
    report(elsewhere(second), f.i32(at.WRITE_AFTER_SECOND_READ))
    written_at = f.bin("lshr", f.bin("and", writer_info, const("i32", ~at.RACE_ATOMIC)), const("i32", 5))
    earlier = f.icmp("ne", written_at, f.spread(instruction))
    report(f.bin("and", near, earlier), f.i32(at.OWN_WRITE_AFTER_WRITE))
    others = f.bin("and", read_lanes, f.bin("xor", bits, const("i32", -1)))
    had_read = f.bin("and", f.icmp("eq", reader, tags), f.icmp("eq", read_sync, sync))
    had_read = f.bin("and", f.bin("and", had_read, active), f.icmp("ne", others, const("i32", 0)))
    report(had_read, f.i32(at.OWN_WRITE_AFTER_READ))
    keep(at.RACE_WRITER, active, tags, writer)
    keep(at.RACE_WRITER_INFO, active, info, writer_info)
    keep(at.RACE_WRITE_SYNC, active, sync, state(at.RACE_WRITE_SYNC))
    f.br(following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(32)), step)
    f.br(loop)
    f.label(done)
    f.ret()
    f.finish()


def tell(f: Function, instruction: Value, warp: Value, hazard: Value, what: tuple[str, ...]) -> None:
    """Call the engine's report function, once for each instruction and hazard."""
    row = f.bin("mul", f.resize(instruction, "i64"), f.i64(at.HAZARDS))
    seen = f.pointer(f.ctx_pointer("race_seen"), f.bin("add", row, f.resize(hazard, "i64")))
    after = f.start_if(f.icmp("eq", f.load("i8", seen), Value("0", "i8")))
    f.store(Value("1", "i8"), seen)
    listed = ", ".join(what)
    function = f.ctx_pointer("report")
    f.line(f"call void {function}({f.ctx('host')}, {instruction}, {warp}, {hazard}, {listed})")
    f.end_if(after)


def race_lanes(module: Module) -> None:
    """void race_lanes(...): race_run for each active lane's shared bytes, at the scratch addresses.

    Of a store besides: whether two lanes have one address and different data.
    """
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
    mask, span = Value("%mask", "i32"), Value("%span", "i64")
    rest = f.variable("i32", mask)
    generic = f.icmp("eq", Value("%space", "i32"), f.i32(at.SPACE_GENERIC))
    window = f.select(generic, f.ctx("shared_window"), f.i64(0))
    storing = f.icmp("eq", Value("%kind", "i32"), f.i32(1))
    every = f.load("i64", f.pointer("%ctx", at.SCRATCH_ADDRESSES), 32, align=64)
    loop, body, mine, done = (f.new_label(s) for s in ("loop", "body", "mine", "done"))
    f.br(loop)
    f.label(loop)
    m = f.load("i32", rest)
    f.cond(f.icmp("ne", m, f.i32(0)), body, done)
    f.label(body)
    lane = f.intrinsic("cttz", m, flags=", i1 true")
    f.store(f.bin("and", m, f.bin("sub", m, f.i32(1))), rest)
    place_ = f.bin("add", f.bin("mul", f.resize(lane, "i64"), f.i64(8)), f.i64(at.SCRATCH_ADDRESSES))
    address = f.load("i64", f.pointer("%ctx", place_))
    offset = f.bin("sub", address, window)
    f.cond(f.icmp("ult", offset, f.ctx("shared_size")), mine, loop)
    f.label(mine)
    f.call(
        "void", "race_run", "ptr %ctx", "ptr %warp", "i32 %instruction", "i32 %kind", str(offset), str(span),
        "i32 31", str(lane), "i32 0",
    )  # fmt: skip
    below = f.bin("sub", f.bin("shl", f.i32(1), lane), f.i32(1))
    same = f.mask_bits(f.icmp("eq", every, f.spread(address)))
    same = f.bin("and", f.bin("and", same, below), mask)
    after = f.start_if(f.bin("and", storing, f.icmp("ne", same, f.i32(0))), "unlikely")
    nearest = f.bin("sub", f.i32(31), f.intrinsic("ctlz", same, flags=", i1 true"))
    data = f.pointer("%ctx", at.SCRATCH_DATA)
    one, two = (f.pointer(data, f.bin("mul", f.resize(n, "i64"), span)) for n in (lane, nearest))
    step = f.variable("i64")
    f.store(f.i64(0), step)
    compare, look, further, unlike, equal = (
        f.new_label(s) for s in ("compare", "look", "further", "unlike", "equal")
    )
    f.br(compare)
    f.label(compare)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, span), look, equal)
    f.label(look)
    agree = f.icmp("eq", f.load("i8", f.pointer(one, k)), f.load("i8", f.pointer(two, k)))
    f.cond(agree, further, unlike)
    f.label(further)
    f.store(f.bin("add", k, f.i64(1)), step)
    f.br(compare)
    f.label(unlike)
    warp = f.field("i64", "%warp", at.WARP_INDEX)
    what = (str(offset), str(f.resize(nearest, "i64")), "i32 0", str(lane))
    tell(f, Value("%instruction", "i32"), warp, f.i32(at.SAME_STORE), what)
    f.br(equal)
    f.label(equal)
    f.end_if(after)
    f.br(loop)
    f.label(done)
    f.ret()
    f.finish()
