"""Asynchronous copies in machine code; what they mean is told in numpy_copies.

Every warp of a block has a ring of the copies that it has started and that have not landed. An entry has the
warp's lanes side by side: which of them still wait, the group of each, where its data go, and the data.
"""

from __future__ import annotations

from . import llvm_layout as at
from .llvm_access import Accesses
from .llvm_layout import CTX
from .llvm_runtime import (
    ACCESS_COUNTERS,
    COPY_SECTORS,
    SECTORS,
    SHARED_REQUESTS,
    WAVEFRONTS,
    Function,
    fault,
    tell_copy,
)
from .llvm_text import WARP, Module, Value, const
from .numpy_copies import CAPACITY
from .ops import Operation, copy_limit, past_l1
from .program import Access

ALL = -1  # in place of how many groups wait_group keeps

# ---- a warp's ring: how many copies have landed from its beginning on, how many were started
RING_HEAD, RING_TAIL = 0, 8
RING_COMMITTED = 64  # 32 x i32: groups that each lane has committed
RING_ENTRIES = 192
ENTRY_MASK, ENTRY_INSTRUCTION, ENTRY_SPAN = 0, 4, 8
ENTRY_GROUP, ENTRY_OFFSETS, ENTRY_DATA = 64, 192, 448  # 32 x i32, 32 x i64, 32 x span bytes
ENTRY_BYTES = 960
RING_BYTES = RING_ENTRIES + CAPACITY * ENTRY_BYTES

# ---- scratch area of a copy that starts: the sources are the addresses of an access
SCRATCH_OFFSETS = at.SCRATCH_MORE  # 32 x i64: shared byte offsets
SCRATCH_LIMITS = at.SCRATCH_MORE + 256  # 32 x i32: bytes to read

DECLARATIONS = (
    "declare i1 @copy_start(ptr, ptr, i32, i64, i64, i32, i1)",
    "declare void @copy_commit(ptr, ptr, i32)",
    "declare void @copy_wait(ptr, ptr, i32, i32)",
)


class Copies(Accesses):
    """Adds cp.async and its groups to a function of the kernel."""

    def copy(self, access: Access) -> None:
        """cp.async: the runtime checks, counts and reads, and puts the data into the warp's ring."""
        f = self.f
        span = access.width * access.count
        limit = copy_limit(self.instruction)
        if limit is None:
            size = const("i32", span)
        elif limit[1] == "pred":
            size = f.select(self.source(*limit), const("i32", 0), const("i32", span))
        else:
            size = self.source(*limit)
        source, target = self.address_of(access.address), self.address_of(access.destination)
        f.store(f.spread(source), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        f.store(f.spread(target), f.pointer("%ctx", SCRATCH_OFFSETS), align=64)
        f.store(f.spread(size), f.pointer("%ctx", SCRATCH_LIMITS), align=64)
        number = self.layout.access_number[self.index]
        ok = f.call(
            "i1", "copy_start", "ptr %ctx", "ptr %warp", f"i32 {self.index}", f"i64 {number}",
            f"i64 {span}", str(self.mask), f"i1 {int(past_l1(self.instruction))}",
        )  # fmt: skip
        went = f.new_label("went")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)

    def copy_group(self, row: Operation) -> None:
        """commit_group, wait_group and wait_all; in a kernel without copies there are no rings."""
        if not self.kernel.copying:
            return
        if self.instruction.modifiers[-1] == "commit_group":
            self.f.call("void", "copy_commit", "ptr %ctx", "ptr %warp", str(self.mask))
            return
        keep = row.constants[0] if row.constants else ALL
        keep = min(keep, 1 << 30)
        self.f.call("void", "copy_wait", "ptr %ctx", "ptr %warp", str(self.mask), f"i32 {keep}")


def _ring(f: Function) -> str:
    """The ring of the warp."""
    offset = f.bin("mul", f.field("i64", "%warp", at.WARP_INDEX), f.i64(RING_BYTES))
    return f.pointer(f.ctx_pointer("copies"), offset)


def _entry(f: Function, ring: str, number: Value) -> str:
    """The entry of the number-th copy since the block began."""
    offset = f.bin("mul", f.bin("and", number, f.i64(CAPACITY - 1)), f.i64(ENTRY_BYTES))
    return f.pointer(f.pointer(ring, RING_ENTRIES), offset)


def copy_start(module: Module) -> None:
    """i1 copy_start(ctx, warp, instruction, number, span, mask, past_l1)

    Check, count, read and enter a cp.async; past_l1: whether it is a .cg.
    """
    f = Function(
        module,
        "copy_start",
        "i1",
        [("ptr", "ctx"), ("ptr", "warp"), ("i32", "instruction"), ("i64", "number"), ("i64", "span"),
         ("i32", "mask"), ("i1", "past_l1")],
        internal=False,
        noinline=True,
    )  # fmt: skip
    f.begin()
    mask, span, instruction = Value("%mask", "i32"), Value("%span", "i64"), Value("%instruction", "i32")
    data = f.pointer("%ctx", at.SCRATCH_DATA)
    offsets = f.pointer("%ctx", SCRATCH_OFFSETS)
    limits = f.load("i32", f.pointer("%ctx", SCRATCH_LIMITS), WARP, align=64)
    span32 = f.resize(span, "i32")
    whole = f.bin("and", f.mask_bits(f.icmp("uge", limits, f.spread(span32))), mask)
    some = f.bin("and", f.mask_bits(f.icmp("ne", limits, f.i32(0))), mask)
    none = f.bin("xor", some, mask)
    failed = f.new_label("failed")
    number_offset = f.bin("mul", Value("%number", "i64"), f.i64(8 * ACCESS_COUNTERS))
    counters = f.pointer(f.ctx_pointer("access_counters"), number_offset)
    sectors_before = f.field("i64", counters, SECTORS * 8)
    _read(f, whole, some, span, instruction, counters, failed)
    _each_lane(f, none, lambda lane: _clear(f, data, lane, span))
    _check_offsets(f, offsets, mask, span, instruction)
    past, through, counted = f.new_label("past_l1"), f.new_label("through_l1"), f.new_label("counted")
    f.cond(Value("%past_l1", "i1"), past, through, "likely")
    f.label(past)
    f.store(sectors_before, f.pointer(counters, 8 * SECTORS))  # in place of the sectors as of a load
    f.call("void", "copy_cost", "ptr %ctx", f"ptr {counters}", str(some), str(none))
    f.br(counted)
    f.label(through)
    waves = f.call("i64", "wavefronts", f"ptr {offsets}", str(mask), str(span))
    f.add_to(counters, 8 * WAVEFRONTS, waves)
    f.br(counted)
    f.label(counted)
    f.add_to(counters, 8 * SHARED_REQUESTS, f.i64(1))
    _look_for_hazards(f, offsets, mask, span, instruction)
    # into the ring
    ring = _ring(f)
    tail = f.field("i64", ring, RING_TAIL)
    entry = _entry(f, ring, tail)
    f.store(mask, f.pointer(entry, ENTRY_MASK))
    f.store(instruction, f.pointer(entry, ENTRY_INSTRUCTION))
    f.store(span, f.pointer(entry, ENTRY_SPAN))
    committed = f.load("i32", f.pointer(ring, RING_COMMITTED), WARP, align=64)
    f.store(committed, f.pointer(entry, ENTRY_GROUP), align=64)
    f.store(f.load("i64", offsets, WARP, align=64), f.pointer(entry, ENTRY_OFFSETS), align=64)
    length = f.bin("mul", span, f.i64(WARP))
    into = f.pointer(entry, ENTRY_DATA)
    f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {data}, {length}, i1 false)")
    f.store(f.bin("add", tail, f.i64(1)), f.pointer(ring, RING_TAIL))
    f.ret(Value("true", "i1"))
    f.label(failed)
    f.ret(Value("false", "i1"))
    module.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    module.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.finish()


def copy_cost(module: Module) -> None:
    """void copy_cost(ctx, counters, reading, zeros): count a copy past L1 by what `Counters` says of it.

    The masks: lanes that read any bytes, and lanes that only write zeros.
    """
    f = Function(
        module,
        "copy_cost",
        "void",
        [("ptr", "ctx"), ("ptr", "counters"), ("i32", "reading"), ("i32", "zeros")],
        noinline=True,
    )
    f.begin()
    reading, zeros = Value("%reading", "i32"), Value("%zeros", "i32")
    sources, targets = f.pointer("%ctx", at.SCRATCH_ADDRESSES), f.pointer("%ctx", SCRATCH_OFFSETS)
    sector = f.bin("lshr", f.load("i64", sources, WARP, align=64), f.spread(f.i64(5)))
    box = f.bin("lshr", f.load("i64", targets, WARP, align=64), f.spread(f.i64(5)))
    line, row = (f.bin("lshr", a, f.spread(f.i64(2))) for a in (sector, box))

    def add(sectors: Value, pairs: Value, passes: Value) -> None:
        for place, count in ((SECTORS, sectors), (COPY_SECTORS, pairs), (WAVEFRONTS, passes)):
            f.add_to("%counters", 8 * place, f.resize(count, "i64"))

    # All lanes, and what is the same in two of them is the same in all between: neighbours tell. It is so
    # where sectors ascend, and within one so do the places, and within a line the lines of shared memory.
    neighbour = [0, *range(WARP - 1)]

    def steps(a: Value) -> tuple[Value, Value]:
        """The lanes with another value than the lane before (not lane 0), and those with a smaller one."""
        before = f.shuffle(a, neighbour)
        return f.mask_bits(f.icmp("ne", a, before)), f.mask_bits(f.icmp("ult", a, before))

    new_sector, back_sector = steps(sector)
    new_box, back_box = steps(box)
    new_row, back_row = steps(row)
    new_line, _ = steps(line)
    back = f.bin("or", back_sector, f.bin("and", back_row, f.bin("xor", new_line, f.i32(-1))))
    back = f.bin("or", back, f.bin("and", back_box, f.bin("xor", new_sector, f.i32(-1))))
    in_order = f.bin("and", f.icmp("eq", back, f.i32(0)), f.icmp("eq", reading, f.i32(-1)))
    pairs, sectors = f.bin("or", new_sector, new_box), f.bin("or", new_sector, new_row)
    lines = f.bin("or", new_line, new_row)
    in_order = f.bin("and", in_order, f.icmp("eq", pairs, sectors))  # each sector to one place in a line
    quick, search = f.new_label("quick"), f.new_label("search")
    f.cond(in_order, quick, search, "likely")
    f.label(quick)
    add(*(f.bin("add", f.popcount(m), f.i32(1)) for m in (sectors, pairs, lines)))
    f.ret()

    f.label(search)
    totals = [f.variable("i32", f.i32(0)) for _ in range(3)]  # sectors, pairs, passes

    def like(values: Value, lane: Value, among: Value) -> Value:
        """The lanes of a mask that have one lane's value."""
        same = f.icmp("eq", values, f.spread(f.extract(values, lane)))
        return f.bin("and", f.mask_bits(same), among)

    def groups(mask: Value, split, body) -> None:
        """body(lanes) for each group that split(lane, mask) finds, until no lane of a mask is left."""
        rest = f.variable("i32")
        f.store(mask, rest)
        loop, one, leave = f.new_label("groups"), f.new_label("group"), f.new_label("groups_done")
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, f.i32(0)), one, leave)
        f.label(one)
        found = split(f.intrinsic("cttz", m, flags=", i1 true"), m)
        f.store(f.bin("and", m, f.bin("xor", found, f.i32(-1))), rest)
        body(found)
        f.br(loop)
        f.label(leave)

    def grow(total: str, by: Value) -> None:
        f.store(f.bin("add", f.load("i32", total), by), total)

    most, places = f.variable("i32"), f.variable("i32")

    def of_lines(lanes: Value) -> None:
        f.store(f.i32(0), most)
        groups(lanes, lambda lane, mask: like(sector, lane, mask), of_sector)
        grow(totals[2], f.load("i32", most))

    def of_sector(lanes: Value) -> None:
        f.store(f.i32(0), places)
        groups(lanes, lambda lane, mask: like(box, lane, mask), lambda _: grow(places, f.i32(1)))
        count = f.load("i32", places)
        f.store(f.intrinsic("umax", f.load("i32", most), count), most)
        grow(totals[0], f.i32(1))
        grow(totals[1], count)

    groups(reading, lambda lane, mask: like(row, lane, like(line, lane, mask)), of_lines)

    def of_zeros(lanes: Value) -> None:
        lane = f.intrinsic("cttz", lanes, flags=", i1 true")
        alone = f.icmp("eq", like(row, lane, reading), f.i32(0))
        grow(totals[2], f.resize(alone, "i32"))

    groups(zeros, lambda lane, mask: like(row, lane, mask), of_zeros)
    add(*(f.load("i32", total) for total in totals))
    f.ret()
    f.finish()


def _each_lane(f: Function, mask: Value, body) -> None:
    """body(lane as i64) for each lane of a mask, ascending."""
    rest = f.variable("i32")
    f.store(mask, rest)
    loop, one, leave = f.new_label("lanes"), f.new_label("lane"), f.new_label("lanes_done")
    f.br(loop)
    f.label(loop)
    m = f.load("i32", rest)
    f.cond(f.icmp("ne", m, f.i32(0)), one, leave)
    f.label(one)
    f.store(f.bin("and", m, f.bin("sub", m, f.i32(1))), rest)
    body(f.resize(f.intrinsic("cttz", m, flags=", i1 true"), "i64"))
    f.br(loop)
    f.label(leave)


def _clear(f: Function, data: str, lane: Value, span: Value) -> None:
    place = f.pointer(data, f.bin("mul", lane, span))
    f.line(f"call void @llvm.memset.p0.i64(ptr {place}, i8 0, {span}, i1 false)")


def _read(
    f: Function, whole: Value, some: Value, span: Value, instruction: Value, counters: str, failed: str
) -> None:
    """Data of the lanes of `some`, of those beyond `whole` only the first bytes, into the scratch area."""
    simple, mixed, ready, together = (f.new_label(s) for s in ("simple", "mixed", "read", "together"))
    f.cond(f.icmp("eq", whole, some), simple, mixed, "likely")
    f.label(simple)
    f.cond(f.icmp("ne", whole, f.i32(0)), together, ready)
    f.label(together)
    ok = f.call(
        "i1", "access", "ptr %ctx", "ptr %warp", str(instruction), "i64 %number", f"i32 {at.SPACE_GLOBAL}",
        "i32 0", str(span), str(whole),
    )  # fmt: skip
    f.cond(ok, ready, failed, "likely")
    f.label(mixed)
    data, sources = f.pointer("%ctx", at.SCRATCH_DATA), f.pointer("%ctx", at.SCRATCH_ADDRESSES)
    host, seen = f.variable("ptr"), f.variable("i32")
    f.store(f.i32(0), seen)
    cache_offset = f.bin("mul", Value("%number", "i64"), f.i64(at.CACHE_BYTES))
    entry = f.pointer(f.ctx_pointer("cache"), cache_offset)

    def place(address: Value, size: Value, lane: Value) -> None:
        """The host pointer of some bytes; misaligned or out of bounds is a fault of this lane alone."""
        f.store(address, f.pointer(sources, f.bin("mul", lane, f.i64(8))))
        bit = f.bin("shl", f.i64(1), lane)
        f.store(bit, f.pointer("%ctx", CTX["fault_mask"]))
        ok = f.call(
            "i1", "place", "ptr %ctx", "ptr %warp", f"ptr {entry}", "i64 %number", str(instruction),
            f"i32 {at.SPACE_GLOBAL}", "i32 0", str(size), str(f.resize(lane, "i32")), str(address),
            f"ptr {host}", f"ptr {seen}",
        )  # fmt: skip
        went = f.new_label("placed")
        f.cond(ok, went, failed, "likely")
        f.label(went)

    def one(lane: Value) -> None:
        target = f.pointer(data, f.bin("mul", lane, span))
        f.line(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, {span}, i1 false)")
        address = f.load("i64", f.pointer(sources, f.bin("mul", lane, f.i64(8))))
        limit = f.load("i32", f.pointer(f.pointer("%ctx", SCRATCH_LIMITS), f.bin("mul", lane, f.i64(4))))
        limit = f.resize(limit, "i64")
        full, part, leave = f.new_label("full"), f.new_label("part"), f.new_label("lane_read")
        crooked, step_loop, step_body = f.new_label("crooked"), f.new_label("bytes"), f.new_label("byte")
        odd = f.icmp("ne", f.bin("and", address, f.bin("sub", span, f.i64(1))), f.i64(0))
        # a misaligned source is the whole access's fault, however few bytes are read
        f.cond(f.bin("or", f.icmp("uge", limit, span), odd), full, part)
        f.label(full)
        place(address, span, lane)
        memory = f.load("ptr", host).name
        f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {memory}, {span}, i1 false)")
        f.br(leave)
        f.label(part)
        step = f.variable("i64")
        f.store(f.i64(0), step)
        f.br(step_loop)
        f.label(step_loop)
        k = f.load("i64", step)
        f.cond(f.icmp("ult", k, limit), step_body, crooked)
        f.label(step_body)
        place(f.bin("add", address, k), f.i64(1), lane)
        byte = f.load("i8", f.load("ptr", host).name)
        f.store(byte, f.pointer(target, k))
        f.store(f.bin("add", k, f.i64(1)), step)
        f.br(step_loop)
        f.label(crooked)
        f.store(address, f.pointer(sources, f.bin("mul", lane, f.i64(8))))
        f.br(leave)
        f.label(leave)

    _each_lane(f, some, one)
    count = f.call("i64", "sectors", f"ptr {sources}", str(some))
    f.add_to(counters, 8 * SECTORS, count)
    f.br(ready)
    f.label(ready)


def _check_offsets(f: Function, offsets: str, mask: Value, span: Value, instruction: Value) -> None:
    """Every lane's shared bytes lie in the block's memory and are aligned, or the fault is noted."""
    where = f.load("i64", offsets, WARP, align=64)
    size = f.ctx("shared_size")
    room = f.bin("sub", size, span)
    fits = f.bin(
        "and",
        f.icmp("ule", where, f.spread(room)),
        f.spread(f.icmp("uge", size, span)),
    )
    low = f.bin("and", where, f.spread(f.bin("sub", span, f.i64(1))))
    good = f.bin("and", fits, f.icmp("eq", low, f.i64(0)))
    wrong = f.bin("and", f.bin("xor", f.mask_bits(good), f.i32(-1)), mask)
    after = f.start_if(f.icmp("ne", wrong, f.i32(0)), "unlikely")
    lane = f.intrinsic("cttz", wrong, flags=", i1 true")
    f.store(f.resize(mask, "i64"), f.pointer("%ctx", CTX["fault_mask"]))
    fault(f, at.COPY_TARGET, instruction, lane, f.extract(where, lane), span)
    f.ret(Value("false", "i1"))
    f.label(after)


def _look_for_hazards(f: Function, offsets: str, mask: Value, span: Value, instruction: Value) -> None:
    """Before a copy is in the ring: who else uses where it goes. Its words are marked.

    Where the ring is full, the oldest copy lands.
    """
    ring = _ring(f)
    head, tail = f.field("i64", ring, RING_HEAD), f.field("i64", ring, RING_TAIL)
    after = f.start_if(f.icmp("uge", f.bin("sub", tail, head), f.i64(CAPACITY)), "unlikely")
    oldest = _entry(f, ring, head)
    waiting = f.field("i32", oldest, ENTRY_MASK)
    f.call("void", "copy_land", "ptr %ctx", "ptr %warp", f"ptr {oldest}", str(waiting))
    f.store(f.bin("add", head, f.i64(1)), f.pointer(ring, RING_HEAD))
    f.end_if(after)
    marking = f.bin("and", f.ctx("track_shared"), f.i64(at.TRACK_COPIES))
    after = f.start_if(f.icmp("ne", marking, f.i64(0)))
    flags = f.ctx_pointer("shared_flags")
    for size in (4, 8, 16):
        inner = f.start_if(f.icmp("eq", span, f.i64(size)))
        type_ = f"i{2 * size}"
        pattern = const(type_, int.from_bytes(bytes([at.FLAG_COPY]) * (size // 4), "little"))

        def place_of(lane: Value) -> tuple[Value, str]:
            offset = f.load("i64", f.pointer(offsets, f.bin("mul", lane, f.i64(8))))
            return offset, f.pointer(flags, f.bin("lshr", offset, f.i64(2)))

        def check(lane: Value, type_: str = type_, pattern: Value = pattern) -> None:
            offset, place = place_of(lane)
            there = f.bin("and", f.load(type_, place, align=1), pattern)
            found = f.start_if(f.icmp("ne", there, const(type_, 0)), "unlikely")
            byte = f.bin("lshr", f.intrinsic("cttz", there, flags=", i1 true"), const(type_, 3))
            word = f.bin("add", offset, f.bin("mul", f.resize(byte, "i64"), f.i64(4)))
            tell_copy(f, instruction, f.i32(at.COPY_OVERWRITTEN), word, f.resize(lane, "i32"))
            f.end_if(found)

        def mark(lane: Value, type_: str = type_, pattern: Value = pattern) -> None:
            _, place = place_of(lane)
            f.store(f.bin("or", f.load(type_, place, align=1), pattern), place, align=1)

        _each_lane(f, mask, check)  # all of them first: no lane is told of its neighbour's copy
        _each_lane(f, mask, mark)
        f.end_if(inner)
    f.end_if(after)
    racing = f.start_if(f.icmp("ne", f.ctx("race"), f.i64(0)))
    first, lowest, at_once = _in_a_row(f, offsets, mask, span)
    together, apart, looked = (f.new_label(s) for s in ("together", "apart", "looked"))
    f.cond(at_once, together, apart, "likely")
    f.label(together)
    length = f.bin("mul", f.resize(f.popcount(mask), "i64"), span)
    shift = f.resize(f.intrinsic("cttz", span, flags=", i1 true"), "i32")
    f.call(
        "void", "race_run", "ptr %ctx", "ptr %warp", str(instruction), "i32 1", str(lowest), str(length),
        str(shift), str(first), "i32 0",
    )  # fmt: skip
    f.br(looked)
    f.label(apart)
    f.store(f.load("i64", offsets, WARP, align=64), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
    f.call(
        "void", "race_lanes", "ptr %ctx", "ptr %warp", str(instruction), "i32 1", str(mask), str(span),
        f"i32 {at.SPACE_SHARED}",
    )  # fmt: skip
    f.br(looked)
    f.label(looked)
    f.end_if(racing)


def _in_a_row(f: Function, offsets: str, mask: Value, span: Value) -> tuple[Value, Value, Value]:
    """The lowest lane of a mask, its offset, and whether its lanes are neighbours and so are their bytes."""
    first = f.intrinsic("cttz", mask, flags=", i1 true")
    wide = f.resize(first, "i64")
    lowest = f.load("i64", f.pointer(offsets, f.bin("mul", wide, f.i64(8))))
    run = f.bin("lshr", mask, first)
    together = f.icmp("eq", f.bin("and", run, f.bin("add", run, f.i32(1))), f.i32(0))
    steps = f.bin("mul", f.bin("sub", f.lane_numbers("i64"), f.spread(wide)), f.spread(span))
    every = f.load("i64", offsets, WARP, align=64)
    in_step = f.mask_bits(f.icmp("eq", every, f.bin("add", f.spread(lowest), steps)))
    in_step = f.icmp("eq", f.bin("and", in_step, mask), mask)
    return first, lowest, f.bin("and", together, in_step)


def copy_land(module: Module) -> None:
    """void copy_land(ctx, warp, entry, mask): write the data of some lanes of an entry to shared memory."""
    f = Function(
        module,
        "copy_land",
        "void",
        [("ptr", "ctx"), ("ptr", "warp"), ("ptr", "entry"), ("i32", "mask")],
        noinline=True,
    )
    f.begin()
    mask = Value("%mask", "i32")
    before = f.field("i32", "%entry", ENTRY_MASK)
    f.store(f.bin("and", before, f.bin("xor", mask, f.i32(-1))), f.pointer("%entry", ENTRY_MASK))
    span, instruction = f.field("i64", "%entry", ENTRY_SPAN), f.field("i32", "%entry", ENTRY_INSTRUCTION)
    offsets, data = f.pointer("%entry", ENTRY_OFFSETS), f.pointer("%entry", ENTRY_DATA)
    racing = f.icmp("ne", f.ctx("race"), f.i64(0))

    def write(lane: Value, offset: Value, length: Value, shift: Value) -> None:
        """length bytes, of one lane or of consecutive ones."""
        target = f.pointer(f.ctx_pointer("shared"), offset)
        source = f.pointer(data, f.bin("mul", lane, span))
        f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, {length}, i1 false)")
        count = f.bin("lshr", length, f.i64(2))
        flags = f.pointer(f.ctx_pointer("shared_flags"), f.bin("lshr", offset, f.i64(2)))
        f.line(f"call void @llvm.memset.p0.i64(ptr {flags}, i8 15, {count}, i1 false)")
        after = f.start_if(racing)
        f.call(
            "void", "race_run", "ptr %ctx", "ptr %warp", str(instruction), "i32 1", str(offset), str(length),
            str(shift), str(f.resize(lane, "i32")), "i32 0",
        )  # fmt: skip
        f.end_if(after)

    after = f.start_if(f.icmp("ne", mask, f.i32(0)))
    first, lowest, in_a_row = _in_a_row(f, offsets, mask, span)
    at_once, one_by_one, done = f.new_label("at_once"), f.new_label("one_by_one"), f.new_label("landed")
    f.cond(in_a_row, at_once, one_by_one, "likely")
    f.label(at_once)
    length = f.bin("mul", f.resize(f.popcount(mask), "i64"), span)
    shift = f.resize(f.intrinsic("cttz", span, flags=", i1 true"), "i32")
    write(f.resize(first, "i64"), lowest, length, shift)
    f.br(done)
    f.label(one_by_one)

    def one(lane: Value) -> None:
        write(lane, f.load("i64", f.pointer(offsets, f.bin("mul", lane, f.i64(8)))), span, f.i32(31))

    _each_lane(f, mask, one)
    f.br(done)
    f.label(done)
    f.end_if(after)
    f.ret()
    f.finish()


def copy_commit(module: Module) -> None:
    """void copy_commit(ctx, warp, mask): the lanes' open groups are closed."""
    f = Function(
        module,
        "copy_commit",
        "void",
        [("ptr", "ctx"), ("ptr", "warp"), ("i32", "mask")],
        internal=False,
        noinline=True,
    )
    f.begin()
    place = f.pointer(_ring(f), RING_COMMITTED)
    committed = f.load("i32", place, WARP, align=64)
    more = f.bin("add", committed, f.i32(1))
    f.store(f.select(f.mask_lanes(Value("%mask", "i32")), more, committed), place, align=64)
    f.ret()
    f.finish()


def copy_wait(module: Module) -> None:
    """void copy_wait(ctx, warp, mask, keep): land all but the newest `keep` groups of each lane, or ALL."""
    f = Function(
        module,
        "copy_wait",
        "void",
        [("ptr", "ctx"), ("ptr", "warp"), ("i32", "mask"), ("i32", "keep")],
        internal=False,
        noinline=True,
    )
    f.begin()
    mask, keep = Value("%mask", "i32"), Value("%keep", "i32")
    ring = _ring(f)
    everything = f.icmp("eq", keep, f.i32(ALL))
    after = f.start_if(everything)
    f.call("void", "copy_commit", "ptr %ctx", "ptr %warp", str(mask))
    f.end_if(after)
    kept = f.select(everything, f.i32(0), keep)
    committed = f.load("i32", f.pointer(ring, RING_COMMITTED), WARP, align=64)
    done = f.bin("sub", committed, f.spread(kept))
    tail = f.field("i64", ring, RING_TAIL)
    number = f.variable("i64")
    f.store(f.field("i64", ring, RING_HEAD), number)
    loop, body, following, leave = (f.new_label(s) for s in ("copies", "copy", "next", "waited"))
    f.br(loop)
    f.label(loop)
    n = f.load("i64", number)
    f.cond(f.icmp("ult", n, tail), body, leave)
    f.label(body)
    entry = _entry(f, ring, n)
    group = f.load("i32", f.pointer(entry, ENTRY_GROUP), WARP, align=64)
    over = f.bin("and", f.mask_bits(f.icmp("slt", group, done)), mask)
    now = f.bin("and", over, f.field("i32", entry, ENTRY_MASK))
    inner = f.start_if(f.icmp("ne", now, f.i32(0)))
    f.call("void", "copy_land", "ptr %ctx", "ptr %warp", f"ptr {entry}", str(now))
    f.end_if(inner)
    f.br(following)
    f.label(following)
    # the ring begins with the oldest copy that waits
    empty = f.icmp("eq", f.field("i32", entry, ENTRY_MASK), f.i32(0))
    at_head = f.icmp("eq", f.field("i64", ring, RING_HEAD), n)
    inner = f.start_if(f.bin("and", empty, at_head))
    f.store(f.bin("add", n, f.i64(1)), f.pointer(ring, RING_HEAD))
    f.end_if(inner)
    f.store(f.bin("add", n, f.i64(1)), number)
    f.br(loop)
    f.label(leave)
    f.ret()
    f.finish()


def forget(f: Function, warp_number: Value) -> None:
    """A block begins: nothing is on its way in this warp's ring."""
    after = f.start_if(f.icmp("ne", f.ctx("copies"), f.i64(0)))
    ring = f.pointer(f.ctx_pointer("copies"), f.bin("mul", warp_number, f.i64(RING_BYTES)))
    f.line(f"call void @llvm.memset.p0.i64(ptr {ring}, i8 0, i64 {RING_ENTRIES}, i1 false)")
    f.end_if(after)


FUNCTIONS = (copy_cost, copy_land, copy_commit, copy_wait, copy_start)
