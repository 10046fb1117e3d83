"""The helpers that compiled kernels call where an access is not of the simple kind.

It is the same for every kernel, so it is compiled once into an object file of its own.
Addresses come in the context's scratch area (32 x i64), data in lane order, `span` bytes a lane.
"""

from __future__ import annotations

from . import llvm_layout as at
from .llvm_layout import CTX
from .llvm_text import Builder, Module, Value, const
from .memory import WINDOW_BYTES

SPANS = (1, 2, 4, 8, 16, 32)
ACCESS_COUNTERS = 6  # i64 for each access
SECTORS, WAVEFRONTS, GLOBAL_REQUESTS, SHARED_REQUESTS, LOCAL_REQUESTS, COPY_SECTORS = range(ACCESS_COUNTERS)


class Function(Builder):
    """A builder whose variables are allocas and which can write loops and conditions."""

    def variable(self, type_: str, value: Value | None = None) -> str:
        """A stack slot of a scalar type."""
        name = self.alloca(type_, 8)
        if value is not None:
            self.store(value, name)
        return name

    def i32(self, number: int) -> Value:
        """A literal."""
        return const("i32", number)

    def i64(self, number: int) -> Value:
        """A literal."""
        return const("i64", number)

    def ctx(self, name: str, type_: str = "i64") -> Value:
        """A field of the context."""
        return self.field(type_, "%ctx", CTX[name])

    def ctx_pointer(self, name: str) -> str:
        """A field of the context that is a pointer."""
        return self.field("ptr", "%ctx", CTX[name]).name

    def begin(self) -> None:
        """Open the first block."""
        self.label("start")

    def start_if(self, condition: Value, weights: str = "") -> str:
        """Opens the block where the condition holds; `end_if(result)` closes it."""
        yes, after = self.new_label("yes"), self.new_label("after")
        self.cond(condition, yes, after, weights)
        self.label(yes)
        return after

    def end_if(self, after: str) -> None:
        """Closes what `start_if` opened; code goes on for both cases."""
        self.br(after)
        self.label(after)


def fault(f: Function, kind: int, instruction: Value, lane: Value, address: Value, extra: Value) -> None:
    """Note a fault in the context; the caller returns."""
    f.store(f.i64(kind), f.pointer("%ctx", CTX["fault"]))
    for name, value in (
        ("fault_instruction", instruction),
        ("fault_lane", lane),
        ("fault_address", address),
        ("fault_extra", extra),
    ):
        f.store(f.resize(value, "i64"), f.pointer("%ctx", CTX[name]))
    f.store(f.field("i64", "%warp", at.WARP_INDEX), f.pointer("%ctx", CTX["fault_warp"]))


def resolve(module: Module) -> None:
    """ptr resolve(ctx, entry, address, span, store): host pointer of a global address, or null.

    Refills the access's cache entry with the allocation it found.
    """
    f = Function(
        module,
        "resolve",
        "ptr",
        [("ptr", "ctx"), ("ptr", "entry"), ("i64", "address"), ("i64", "span"), ("i1", "store")],
        noinline=True,
    )
    f.begin()
    address, span, store = Value("%address", "i64"), Value("%span", "i64"), Value("%store", "i1")
    offset = f.bin("sub", address, f.field("i64", "%entry", at.CACHE_BASE))
    hit = f.icmp("ult", offset, f.field("i64", "%entry", at.CACHE_ONE))
    after = f.start_if(hit)
    f.ret(
        f.emit(
            f"inttoptr i64 {f.bin('add', address, f.field('i64', '%entry', at.CACHE_DELTA)).name} to ptr",
            "ptr",
        )
    )
    f.label(after)
    count = f.ctx("table_count")
    index = f.variable("i64", f.i64(0))
    loop, body, found, following, none = (f.new_label(s) for s in ("loop", "body", "found", "next", "none"))
    f.br(loop)
    f.label(loop)
    k = f.load("i64", index)
    f.cond(f.icmp("ult", k, count), body, none)
    f.label(body)
    row = f.pointer(f.ctx_pointer("table"), f.bin("mul", k, f.i64(at.TABLE_BYTES)))
    base, size = f.field("i64", row, at.TABLE_BASE), f.field("i64", row, at.TABLE_SIZE)
    offset = f.bin("sub", address, base)
    inside = f.bin("and", f.icmp("ult", offset, size), f.icmp("uge", f.bin("sub", size, offset), span))
    f.cond(inside, found, following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(1)), index)
    f.br(loop)
    f.label(found)
    fixed = f.icmp("ne", f.field("i64", row, at.TABLE_READONLY), f.i64(0))
    writable = f.new_label("writable")
    f.cond(f.bin("and", store, fixed), none, writable)
    f.label(writable)
    f.store(base, f.pointer("%entry", at.CACHE_BASE))
    # sizes are below 2^62, so that signed comparison of the differences is safe
    f.store(f.bin("add", f.bin("sub", size, span), f.i64(1)), f.pointer("%entry", at.CACHE_ONE))
    whole = f.bin("add", f.bin("sub", size, f.bin("mul", span, f.i64(32))), f.i64(1))
    track = f.field("i64", row, at.TABLE_TRACK)
    usable = f.bin("and", f.icmp("sgt", whole, f.i64(0)), f.icmp("eq", track, f.i64(0)))
    f.store(f.select(usable, whole, f.i64(0)), f.pointer("%entry", at.CACHE_FULL))
    single = f.bin("add", f.bin("sub", size, span), f.i64(1))
    simple = f.select(f.icmp("eq", track, f.i64(0)), single, f.i64(0))
    f.store(simple, f.pointer("%entry", at.CACHE_SIMPLE))
    delta = f.bin("sub", f.field("i64", row, at.TABLE_HOST), base)
    f.store(delta, f.pointer("%entry", at.CACHE_DELTA))
    sectors = f.select(store, f.field("i64", row, at.TABLE_WRITTEN), f.field("i64", row, at.TABLE_READ))
    f.store(sectors, f.pointer("%entry", at.CACHE_SECTORS))
    f.store(track, f.pointer("%entry", at.CACHE_TRACK))
    f.store(f.field("i64", row, at.TABLE_READ), f.pointer("%entry", at.CACHE_READ))
    f.ret(f.emit(f"inttoptr {f.bin('add', address, delta)} to ptr", "ptr"))
    f.label(none)
    f.ret(Value("null", "ptr"))
    f.finish()


def wavefronts(module: Module) -> None:
    """i64 wavefronts(addresses, mask, span): shared-memory passes of one warp instruction.

    Up to 4 bytes a lane the warp is one group, 8 bytes: half warps, 16 bytes: quarter warps. A group takes as
    many passes as the most distinct 4-byte words in any of the 32 banks.
    """
    f = Function(
        module,
        "wavefronts",
        "i64",
        [("ptr", "addresses"), ("i32", "mask"), ("i64", "span")],
        noinline=True,
    )
    f.begin()
    mask, span = Value("%mask", "i32"), Value("%span", "i64")
    small = f.icmp("ule", span, f.i64(4))
    size = f.select(small, f.i64(32), f.bin("udiv", f.i64(128), span))
    words = f.select(small, f.i64(1), f.bin("lshr", span, f.i64(2)))
    counts = f.alloca("[32 x i32]")
    table = f.alloca("[32 x [32 x i64]]")
    first = f.variable("i64", f.i64(0))
    total = f.variable("i64", f.i64(0))
    group, inner, leave = f.new_label("group"), f.new_label("inner"), f.new_label("leave")
    f.br(group)
    f.label(group)
    lane0 = f.load("i64", first)
    f.cond(f.icmp("ult", lane0, f.i64(32)), inner, leave)
    f.label(inner)
    f.store(Value("zeroinitializer", "[32 x i32]"), counts)
    most = f.variable("i32")
    f.store(f.i32(0), most)
    lane_variable, word_variable, search = f.variable("i64"), f.variable("i64"), f.variable("i32")
    f.store(lane0, lane_variable)
    lanes, lane_body, lane_next, group_end = (
        f.new_label(s) for s in ("lanes", "lane", "lane_next", "group_end")
    )
    f.br(lanes)
    f.label(lanes)
    lane = f.load("i64", lane_variable)
    f.cond(f.icmp("ult", lane, f.bin("add", lane0, size)), lane_body, group_end)
    f.label(lane_body)
    active = f.bin("and", f.bin("lshr", mask, f.resize(lane, "i32")), f.i32(1))
    word_loop, word_body, new_word, compare, same, word_next = (
        f.new_label(s) for s in ("words", "word", "new", "compare", "same", "word_next")
    )
    f.store(f.i64(0), word_variable)
    f.cond(f.icmp("ne", active, f.i32(0)), word_loop, lane_next)
    f.label(word_loop)
    k = f.load("i64", word_variable)
    f.cond(f.icmp("ult", k, words), word_body, lane_next)
    f.label(word_body)
    address = f.load("i64", f.pointer("%addresses", f.bin("mul", lane, f.i64(8))))
    word = f.bin("add", f.bin("lshr", address, f.i64(2)), k)
    bank = f.bin("and", word, f.i64(31))
    counter = f.pointer(counts, f.bin("mul", bank, f.i64(4)))
    have = f.load("i32", counter)
    row = f.pointer(table, f.bin("mul", bank, f.i64(256)))
    f.store(f.i32(0), search)
    f.br(compare)
    f.label(compare)
    s = f.load("i32", search)
    f.cond(f.icmp("ult", s, have), same, new_word)
    f.label(same)
    known = f.load("i64", f.pointer(row, f.bin("mul", f.resize(s, "i64"), f.i64(8))))
    f.store(f.bin("add", s, f.i32(1)), search)
    f.cond(f.icmp("eq", known, word), word_next, compare)
    f.label(new_word)
    f.store(word, f.pointer(row, f.bin("mul", f.resize(have, "i64"), f.i64(8))))
    more = f.bin("add", have, f.i32(1))
    f.store(more, counter)
    f.store(f.intrinsic("umax", f.load("i32", most), more), most)
    f.br(word_next)
    f.label(word_next)
    f.store(f.bin("add", k, f.i64(1)), word_variable)
    f.br(word_loop)
    f.label(lane_next)
    f.store(f.bin("add", lane, f.i64(1)), lane_variable)
    f.br(lanes)
    f.label(group_end)
    f.store(f.bin("add", f.load("i64", total), f.resize(f.load("i32", most), "i64")), total)
    f.store(f.bin("add", lane0, size), first)
    f.br(group)
    f.label(leave)
    f.ret(f.load("i64", total))
    f.finish()


def place(module: Module) -> None:
    """i1 place(ctx, warp, entry, number, instruction, space, kind, span, lane, address, host*, seen*)

    Finds the host pointer of one lane's access, or notes a fault and returns false. seen gets bit 0 for
    global, bit 1 for shared, bit 2 for local memory. Marks what was written; refuses shared words never
    written.
    """
    f = Function(
        module,
        "place",
        "i1",
        [
            ("ptr", "ctx"),
            ("ptr", "warp"),
            ("ptr", "entry"),
            ("i64", "number"),
            ("i32", "instruction"),
            ("i32", "space"),
            ("i32", "kind"),
            ("i64", "span"),
            ("i32", "lane"),
            ("i64", "address"),
            ("ptr", "host"),
            ("ptr", "seen"),
        ],
        internal=False,
        noinline=True,
    )
    f.begin()
    address, span = Value("%address", "i64"), Value("%span", "i64")
    lane, instruction = Value("%lane", "i32"), Value("%instruction", "i32")
    space, kind = Value("%space", "i32"), Value("%kind", "i32")  # kind: 0 load, 1 store, 2 both
    writes = f.icmp("ne", kind, f.i32(0))
    reads = f.icmp("ne", kind, f.i32(1))

    def fails(number: int) -> None:
        fault(f, number, instruction, lane, address, span)
        f.ret(Value("false", "i1"))

    wrong = f.icmp("ne", f.bin("and", address, f.bin("sub", span, f.i64(1))), f.i64(0))
    after = f.start_if(wrong, "unlikely")
    fails(at.MISALIGNED)
    f.label(after)

    shared, local, global_, param = (f.new_label(s) for s in ("shared", "local", "global", "param"))
    generic, not_shared, beyond, apart = (
        f.new_label(s) for s in ("generic", "not_shared", "beyond", "apart")
    )
    not_local, param_in = f.new_label("not_local"), f.new_label("param_in")
    f.br(apart)
    f.label(apart)
    f.switch(
        space,
        global_,
        [
            (at.SPACE_SHARED, shared),
            (at.SPACE_LOCAL, local),
            (at.SPACE_GENERIC, generic),
            (at.SPACE_PARAM, param_in),
        ],
    )
    f.label(generic)
    in_shared = f.bin("sub", address, f.ctx("shared_window"))
    window = f.i64(WINDOW_BYTES)
    f.cond(f.icmp("ult", in_shared, window), shared, not_shared)
    f.label(not_shared)
    in_local = f.bin("sub", address, f.ctx("local_window"))
    f.cond(f.icmp("ult", in_local, window), local, not_local)
    f.label(not_local)
    in_param = f.icmp("ult", f.bin("sub", address, f.ctx("param_window")), window)
    f.cond(in_param, param_in, global_)
    f.label(param_in)
    f.br(param)

    f.label(shared)
    offset = f.phi([(address, apart), (in_shared, generic)])
    size = f.ctx("shared_size")
    inside = f.bin("and", f.icmp("ult", offset, size), f.icmp("ule", span, f.bin("sub", size, offset)))
    shared_ok = f.new_label("shared_ok")
    f.cond(inside, shared_ok, beyond)
    f.label(shared_ok)
    # one flag byte for each word, a bit for each of its bytes
    flags = f.pointer(f.ctx_pointer("shared_flags"), f.bin("lshr", offset, f.i64(2)))
    within = f.bin("and", offset, f.i64(3))
    narrow = f.icmp("ult", span, f.i64(4))
    bits = f.bin("sub", f.bin("shl", f.i64(1), f.select(narrow, span, f.i64(4))), f.i64(1))
    bits = f.resize(f.bin("shl", bits, within), "i8")
    words = f.select(narrow, f.i64(1), f.bin("lshr", span, f.i64(2)))
    step = f.variable("i64", f.i64(0))
    loop, body, check, mark, following, leave, unwritten = (
        f.new_label(s) for s in ("flags", "flag", "check", "mark", "flag_next", "leave", "unwritten")
    )
    f.br(loop)
    f.label(loop)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, words), body, leave)
    f.label(body)
    here = f.pointer(flags, k)
    have = f.load("i8", here)
    copying = f.icmp("ne", f.bin("and", have, Value(str(at.FLAG_COPY), "i8")), Value("0", "i8"))
    in_flight, settled = f.new_label("in_flight"), f.new_label("settled")
    f.cond(copying, in_flight, settled, "unlikely")
    f.label(in_flight)  # reported, and the copy counts as the word's write
    word = f.bin("add", f.bin("and", offset, f.i64(-4)), f.bin("mul", k, f.i64(4)))
    hazard = f.select(writes, f.i32(at.COPY_OVERWRITTEN), f.i32(at.COPY_IN_FLIGHT))
    tell_copy(f, instruction, hazard, word, lane)
    f.store(f.bin("or", have, Value("15", "i8")), here)
    f.br(mark)
    f.label(settled)
    f.cond(f.bin("and", reads, f.icmp("ne", f.ctx("track_shared"), f.i64(0))), check, mark)
    f.label(check)
    complete = f.icmp("eq", f.bin("and", have, bits), bits)
    off = f.icmp("eq", f.bin("and", f.ctx("track_shared"), f.i64(at.TRACK_WRITES)), f.i64(0))
    f.cond(f.bin("or", complete, off), mark, unwritten)
    f.label(mark)
    have = f.load("i8", here)
    marked = f.bin("and", f.bin("or", have, bits), Value("15", "i8"))
    f.store(f.select(writes, marked, have), here)
    f.br(following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(1)), step)
    f.br(loop)
    f.label(unwritten)
    fails(at.UNWRITTEN_SHARED)
    f.label(leave)
    f.store(Value(f.pointer(f.ctx_pointer("shared"), offset), "ptr"), "%host")
    f.store(f.bin("or", f.load("i32", "%seen"), f.i32(2)), "%seen")
    f.ret(Value("true", "i1"))

    f.label(local)
    offset = f.phi([(address, apart), (in_local, not_shared)])
    size = f.ctx("local_bytes")
    inside = f.bin("and", f.icmp("ult", offset, size), f.icmp("ule", span, f.bin("sub", size, offset)))
    local_ok = f.new_label("local_ok")
    f.cond(inside, local_ok, beyond)
    f.label(local_ok)
    thread = f.bin("mul", f.field("i64", "%warp", at.WARP_INDEX), f.i64(32))
    thread = f.bin("add", thread, f.resize(lane, "i64"))
    position = f.bin("add", f.bin("mul", thread, size), offset)
    f.store(Value(f.pointer(f.ctx_pointer("local"), position), "ptr"), "%host")
    f.store(f.bin("or", f.load("i32", "%seen"), f.i32(4)), "%seen")
    f.ret(Value("true", "i1"))

    f.label(param)
    offset, size = f.bin("sub", address, f.ctx("param_window")), f.ctx("param_bytes")
    inside = f.bin("and", f.icmp("ult", offset, size), f.icmp("ule", span, f.bin("sub", size, offset)))
    param_ok = f.new_label("param_ok")
    f.cond(f.bin("and", inside, f.bin("xor", writes, Value("true", "i1"))), param_ok, beyond)
    f.label(param_ok)
    f.store(Value(f.pointer(f.ctx_pointer("params"), offset), "ptr"), "%host")
    f.ret(Value("true", "i1"))

    f.label(global_)
    pointer = f.call("ptr", "resolve", "ptr %ctx", "ptr %entry", str(address), str(span), str(writes))
    global_ok = f.new_label("global_ok")
    f.cond(f.icmp("ne", pointer, Value("null", "ptr")), global_ok, beyond)
    f.label(global_ok)
    offset = f.bin("sub", address, f.field("i64", "%entry", at.CACHE_BASE))
    bit = f.resize(f.bin("and", f.bin("lshr", offset, f.i64(5)), f.i64(7)), "i8")
    bit = f.bin("shl", Value("1", "i8"), bit)
    constant = f.icmp("eq", space, f.i32(at.SPACE_CONST))
    bit = f.select(constant, Value("0", "i8"), bit)
    for marks in (at.CACHE_SECTORS, at.CACHE_READ):
        # an atomic reads as well; a store has its own map only
        sectors = f.pointer(f.field("ptr", "%entry", marks).name, f.bin("lshr", offset, f.i64(8)))
        mine = f.select(reads, bit, Value("0", "i8")) if marks == at.CACHE_READ else bit
        f.store(f.bin("or", f.load("i8", sectors), mine), sectors)
    track = f.field("ptr", "%entry", at.CACHE_TRACK)
    tracked, done = f.new_label("tracked"), f.new_label("done")
    f.cond(f.icmp("ne", track, Value("null", "ptr")), tracked, done)
    f.label(tracked)
    written = f.pointer(track.name, offset)
    step = f.variable("i64", f.i64(0))
    loop, body, check, mark, following, unwritten = (
        f.new_label(s) for s in ("bytes", "byte", "check", "mark", "byte_next", "unwritten")
    )
    f.br(loop)
    f.label(loop)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, span), body, done)
    f.label(body)
    here = f.pointer(written, k)
    have = f.load("i8", here)
    f.cond(reads, check, mark)
    f.label(check)
    f.cond(f.icmp("ne", have, Value("0", "i8")), mark, unwritten)
    f.label(mark)
    f.store(f.select(writes, Value("-1", "i8"), have), here)
    f.br(following)
    f.label(following)
    f.store(f.bin("add", k, f.i64(1)), step)
    f.br(loop)
    f.label(unwritten)
    # no fault: noted once for each access, and the value that is there is read
    note = f.pointer(f.ctx_pointer("notes"), f.bin("mul", Value("%number", "i64"), f.i64(at.NOTE_BYTES)))
    wanted = f.bin(
        "and", f.icmp("eq", f.load("i64", note), f.i64(0)), f.icmp("ne", f.ctx("track_global"), f.i64(0))
    )
    after = f.start_if(wanted)
    block_number = f.ctx("block")
    warp_number = f.field("i64", "%warp", at.WARP_INDEX)
    where = f.bin("add", address, k)
    for position, value in enumerate((f.i64(1), block_number, warp_number, f.resize(lane, "i64"), where)):
        f.store(value, f.pointer(note, 8 * position))
    f.end_if(after)
    f.br(mark)
    f.label(done)
    f.store(pointer, "%host")
    global_bit = f.select(constant, f.i32(0), f.i32(1))
    f.store(f.bin("or", f.load("i32", "%seen"), global_bit), "%seen")
    f.ret(Value("true", "i1"))

    f.label(beyond)
    fails(at.OUT_OF_BOUNDS)
    f.finish()


def tell_copy(f: Function, instruction: Value, hazard: Value, offset: Value, lane: Value) -> None:
    """Tell the engine, once for each instruction, of an access to where a copy is on its way to."""
    at_seen = f.bin("mul", f.resize(instruction, "i64"), f.i64(at.HAZARDS))
    seen = f.pointer(f.ctx_pointer("race_seen"), f.bin("add", at_seen, f.resize(hazard, "i64")))
    after = f.start_if(f.icmp("eq", f.load("i8", seen), Value("0", "i8")))
    f.store(Value("1", "i8"), seen)
    warp = f.field("i64", "%warp", at.WARP_INDEX)
    f.line(
        f"call void {f.ctx_pointer('report')}({f.ctx('host')}, {instruction}, {warp}, "
        f"{hazard}, {offset}, i64 1, i32 31, {lane})"
    )
    f.end_if(after)


def access(module: Module) -> None:
    """i1 access(ctx, warp, instruction, number, space, kind, span, mask): a ld or st of any address pattern.

    Neighbouring lanes at consecutive addresses, and all lanes at one address, are done at once; everything
    else, and whatever may be at fault, lane by lane.
    """
    f = Function(
        module,
        "access",
        "i1",
        [
            ("ptr", "ctx"),
            ("ptr", "warp"),
            ("i32", "instruction"),
            ("i64", "number"),
            ("i32", "space"),
            ("i32", "kind"),
            ("i64", "span"),
            ("i32", "mask"),
        ],
        internal=False,
        noinline=True,
    )
    f.begin()
    module.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    span, mask, kind = Value("%span", "i64"), Value("%mask", "i32"), Value("%kind", "i32")
    space = Value("%space", "i32")
    host, seen, rest = f.variable("ptr"), f.variable("i32", f.i32(0)), f.variable("i32", mask)
    addresses, data = f.pointer("%ctx", at.SCRATCH_ADDRESSES), f.pointer("%ctx", at.SCRATCH_DATA)
    entry = f.pointer(f.ctx_pointer("cache"), f.bin("mul", Value("%number", "i64"), f.i64(at.CACHE_BYTES)))
    f.store(f.resize(mask, "i64"), f.pointer("%ctx", CTX["fault_mask"]))
    place_ = f.bin("mul", Value("%number", "i64"), f.i64(8 * ACCESS_COUNTERS))
    counters = f.pointer(f.ctx_pointer("access_counters"), place_)
    storing = f.icmp("eq", kind, f.i32(1))
    every = f.load("i64", addresses, 32, align=64)
    first = f.resize(f.intrinsic("cttz", mask, flags=", i1 true"), "i64")
    last = f.bin("sub", f.i64(31), f.resize(f.intrinsic("ctlz", mask, flags=", i1 true"), "i64"))
    lowest = f.load("i64", f.pointer(addresses, f.bin("mul", first, f.i64(8))))

    def all_lanes(condition: Value) -> Value:
        return f.icmp("eq", f.bin("and", f.mask_bits(condition), mask), mask)

    one, consecutive, near, near_global, not_global, near_shared = (
        f.new_label(s) for s in ("one", "consecutive", "near", "near_global", "not_global", "near_shared")
    )
    check, move, to_memory, from_memory, moved = (
        f.new_label(s) for s in ("check", "move", "to_memory", "from_memory", "moved")
    )
    loop = f.new_label("loop")
    f.cond(all_lanes(f.icmp("eq", every, lowest)), one, consecutive)

    # every lane at one address: the last lane's value is stored, one value is loaded for all
    f.label(one)
    local_or_param = f.bin(
        "or", f.icmp("eq", space, f.i32(at.SPACE_LOCAL)), f.icmp("eq", space, f.i32(at.SPACE_GENERIC))
    )
    alone = f.new_label("alone")
    f.cond(local_or_param, loop, alone)
    f.label(alone)
    lane = f.resize(f.select(storing, last, first), "i32")
    ok = f.call(
        "i1", "place", "ptr %ctx", "ptr %warp", f"ptr {entry}", "i64 %number", "i32 %instruction",
        "i32 %space", "i32 %kind", "i64 %span", str(f.resize(first, "i32")), str(lowest),
        f"ptr {host}", f"ptr {seen}",
    )  # fmt: skip
    single, bad_one = f.new_label("single"), f.new_label("bad_one")
    f.cond(ok, single, bad_one)
    f.label(bad_one)
    f.ret(Value("false", "i1"))
    f.label(single)
    memory = f.load("ptr", host).name
    single_store, single_load, repeat, counted = (
        f.new_label(s) for s in ("single_store", "single_load", "repeat", "counted")
    )
    f.cond(storing, single_store, single_load)
    f.label(single_store)
    source = f.pointer(data, f.bin("mul", f.resize(lane, "i64"), span))
    f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {memory}, ptr {source}, {span}, i1 false)")
    f.br(counted)
    f.label(single_load)
    step = f.variable("i64")
    f.store(f.i64(0), step)
    f.br(repeat)
    f.label(repeat)
    k = f.load("i64", step)
    target = f.pointer(data, f.bin("mul", k, span))
    f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {memory}, {span}, i1 false)")
    more = f.bin("add", k, f.i64(1))
    f.store(more, step)
    f.cond(f.icmp("ult", more, f.i64(32)), repeat, counted)
    f.label(counted)
    count_access(f, addresses, f.load("i32", seen), mask, span, kind)
    f.ret(Value("true", "i1"))

    # neighbouring lanes, consecutive addresses
    f.label(consecutive)
    count = f.resize(f.popcount(mask), "i64")
    run = f.bin("lshr", mask, f.resize(first, "i32"))
    together = f.icmp("eq", f.bin("and", run, f.bin("add", run, f.i32(1))), f.i32(0))
    lanes = f.vector_literal("i64", range(32))
    expected = f.bin(
        "add", f.spread(lowest), f.bin("mul", f.bin("sub", lanes, f.spread(first)), f.spread(span))
    )
    in_step = all_lanes(f.icmp("eq", every, expected))
    aligned = f.icmp("eq", f.bin("and", lowest, f.bin("sub", span, f.i64(1))), f.i64(0))
    f.cond(f.bin("and", f.bin("and", together, in_step), aligned), near, loop)
    f.label(near)
    length = f.bin("mul", count, span)
    reach = f.bin("sub", length, span)
    is_global = f.icmp("eq", space, f.i32(at.SPACE_GLOBAL))
    f.cond(f.bin("or", is_global, f.icmp("eq", space, f.i32(at.SPACE_CONST))), near_global, not_global)
    f.label(not_global)
    f.cond(f.icmp("eq", space, f.i32(at.SPACE_SHARED)), near_shared, loop)
    f.label(near_global)
    offset = f.bin("sub", lowest, f.field("i64", entry, at.CACHE_BASE))
    limit = f.field("i64", entry, at.CACHE_SIMPLE)
    # neither sum can wrap: reach is at most 31 * 32
    inside = f.bin("and", f.icmp("ult", offset, limit), f.icmp("ult", f.bin("add", offset, reach), limit))
    global_go = f.new_label("global_go")
    f.cond(inside, global_go, loop)
    f.label(global_go)
    global_memory = f.pointer_of(f.bin("add", lowest, f.field("i64", entry, at.CACHE_DELTA)))
    counting, global_end = f.new_label("counting"), f.new_label("global_end")
    f.cond(is_global, counting, global_end)
    f.label(counting)
    low_sector = f.bin("lshr", offset, f.i64(5))
    high_sector = f.bin("lshr", f.bin("sub", f.bin("add", offset, length), f.i64(1)), f.i64(5))
    touched = f.bin("add", f.bin("sub", high_sector, low_sector), f.i64(1))
    f.add_to(counters, 8 * SECTORS, touched)
    f.add_to(counters, 8 * GLOBAL_REQUESTS, f.i64(1))
    bits = f.bin("sub", f.bin("shl", f.i64(1), touched), f.i64(1))
    bits = f.bin("shl", bits, f.bin("and", low_sector, f.i64(7)))
    marks = f.pointer(f.field("ptr", entry, at.CACHE_SECTORS).name, f.bin("lshr", offset, f.i64(8)))
    f.store(f.bin("or", f.load("i64", marks, align=1), bits), marks, align=1)
    f.br(global_end)
    f.label(global_end)
    f.br(move)
    f.label(near_shared)
    size = f.ctx("shared_size")
    fits = f.bin("and", f.icmp("ult", lowest, size), f.icmp("ule", f.bin("add", lowest, length), size))
    words_only = f.icmp("uge", span, f.i64(4))
    f.cond(f.bin("and", fits, words_only), check, loop)
    f.label(check)
    flags = f.pointer(f.ctx_pointer("shared_flags"), f.bin("lshr", lowest, f.i64(2)))
    words = f.bin("lshr", length, f.i64(2))
    look, look_body, look_next, looked = (
        f.new_label(s) for s in ("look", "look_body", "look_next", "looked")
    )
    set_flags, shared_ok = f.new_label("set_flags"), f.new_label("shared_ok")
    f.store(f.i64(0), step)
    # a load wants words that are written, a store words that no copy is on its way to
    looking = f.select(storing, f.ctx("copies"), f.ctx("track_shared"))
    care = f.select(storing, Value(str(at.FLAG_COPY), "i8"), Value("-1", "i8"))
    wanted = f.select(storing, Value("0", "i8"), Value("15", "i8"))
    f.cond(f.icmp("ne", looking, f.i64(0)), look, looked)
    f.label(look)
    k = f.load("i64", step)
    f.cond(f.icmp("ult", k, words), look_body, looked)
    f.label(look_body)
    flag = f.bin("and", f.load("i8", f.pointer(flags, k)), care)
    f.cond(f.icmp("eq", flag, wanted), look_next, loop)
    f.label(look_next)
    f.store(f.bin("add", k, f.i64(1)), step)
    f.br(look)
    f.label(looked)
    f.cond(storing, set_flags, shared_ok)
    f.label(set_flags)
    module.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.line(f"call void @llvm.memset.p0.i64(ptr {flags}, i8 15, {words}, i1 false)")
    f.br(shared_ok)
    f.label(shared_ok)
    shared_memory = f.pointer(f.ctx_pointer("shared"), lowest)
    group = f.bin("udiv", f.i64(128), span)
    waves = f.bin("sub", f.bin("udiv", last, group), f.bin("udiv", first, group))
    f.add_to(counters, 8 * WAVEFRONTS, f.bin("add", waves, f.i64(1)))
    f.add_to(counters, 8 * SHARED_REQUESTS, f.i64(1))
    race_after = f.start_if(f.icmp("ne", f.ctx("race"), f.i64(0)))
    shift = f.resize(f.intrinsic("cttz", span, flags=", i1 true"), "i32")
    f.call(
        "void", "race_run", "ptr %ctx", "ptr %warp", "i32 %instruction", str(kind), str(lowest), str(length),
        str(shift), str(f.resize(first, "i32")), "i32 0",
    )  # fmt: skip
    f.end_if(race_after)
    shared_end = f.label_name
    f.br(move)
    f.label(move)
    place_ = f.phi(
        [(Value(global_memory, "ptr"), global_end), (Value(shared_memory, "ptr"), shared_end)]
    ).name
    scratch = f.pointer(data, f.bin("mul", first, span))
    f.cond(storing, to_memory, from_memory)
    f.label(to_memory)
    f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {place_}, ptr {scratch}, {length}, i1 false)")
    f.br(moved)
    f.label(from_memory)
    f.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {scratch}, ptr {place_}, {length}, i1 false)")
    f.br(moved)
    f.label(moved)
    f.ret(Value("true", "i1"))

    # lane by lane
    body, copy, bad, copied, leave = (f.new_label(s) for s in ("body", "copy", "bad", "copied", "leave"))
    f.label(loop)
    m = f.load("i32", rest)
    f.cond(f.icmp("ne", m, f.i32(0)), body, leave)
    f.label(body)
    lane = f.intrinsic("cttz", m, flags=", i1 true")
    f.store(f.bin("and", m, f.bin("sub", m, f.i32(1))), rest)
    wide = f.resize(lane, "i64")
    address = f.load("i64", f.pointer(addresses, f.bin("mul", wide, f.i64(8))))
    ok = f.call(
        "i1", "place", "ptr %ctx", "ptr %warp", f"ptr {entry}", "i64 %number", "i32 %instruction",
        "i32 %space", "i32 %kind", "i64 %span", str(lane), str(address), f"ptr {host}", f"ptr {seen}",
    )  # fmt: skip
    f.cond(ok, copy, bad)
    f.label(bad)
    f.ret(Value("false", "i1"))
    f.label(copy)
    memory_value = f.load("ptr", host)
    in_data = Value(f.pointer(data, f.bin("mul", wide, span)), "ptr")
    source = f.select(storing, in_data, memory_value)
    target = f.select(storing, memory_value, in_data)
    labels = [(size, f.new_label(f"bytes{size}")) for size in SPANS]
    wrong = f.new_label("impossible")
    f.switch(span, wrong, labels)
    for size, label in labels:
        f.label(label)
        f.store(f.load(f"i{8 * size}", source.name, align=1), target.name, align=1)
        f.br(copied)
    f.label(wrong)
    f.ret(Value("false", "i1"))
    f.label(copied)
    f.br(loop)
    f.label(leave)
    count_access(f, addresses, f.load("i32", seen), mask, span, kind)
    f.ret(Value("true", "i1"))
    f.finish()


def count_access(f: Function, addresses: str, seen: Value, mask: Value, span: Value, kind: Value) -> None:
    """Add one warp instruction to its access's counters: %number; see ACCESS_COUNTERS. Look for races.

    Generic addresses may lie in several spaces: each space counts its own lanes.
    """
    place_ = f.bin("mul", Value("%number", "i64"), f.i64(8 * ACCESS_COUNTERS))
    counters = f.pointer(f.ctx_pointer("access_counters"), place_)
    generic = f.icmp("eq", Value("%space", "i32"), f.i32(at.SPACE_GENERIC))
    every = f.load("i64", addresses, 32, align=64)

    def within(window: str) -> Value:
        offset = f.bin("sub", every, f.spread(f.ctx(window)))
        return f.mask_bits(f.icmp("ult", offset, f.spread(f.i64(WINDOW_BYTES))))

    in_shared = within("shared_window")
    elsewhere = f.bin("or", in_shared, f.bin("or", within("local_window"), within("param_window")))
    in_global = f.bin("and", mask, f.bin("xor", elsewhere, f.i32(-1)))
    global_mask = f.select(generic, in_global, mask)
    shared_mask = f.select(generic, f.bin("and", mask, in_shared), mask)
    after = f.start_if(f.icmp("ne", f.bin("and", seen, f.i32(1)), f.i32(0)))
    count = f.call("i64", "sectors", f"ptr {addresses}", str(global_mask))
    f.add_to(counters, 8 * SECTORS, count)
    f.add_to(counters, 8 * GLOBAL_REQUESTS, f.i64(1))
    f.end_if(after)
    after = f.start_if(f.icmp("ne", f.bin("and", seen, f.i32(2)), f.i32(0)))
    count = f.call("i64", "wavefronts", f"ptr {addresses}", str(shared_mask), str(span))
    f.add_to(counters, 8 * WAVEFRONTS, count)
    f.add_to(counters, 8 * SHARED_REQUESTS, f.i64(1))
    race_after = f.start_if(f.icmp("ne", f.ctx("race"), f.i64(0)))
    f.call(
        "void", "race_lanes", "ptr %ctx", "ptr %warp", "i32 %instruction", str(kind), str(shared_mask),
        str(span), "i32 %space",
    )  # fmt: skip
    f.end_if(race_after)
    f.end_if(after)
    after = f.start_if(f.icmp("ne", f.bin("and", seen, f.i32(4)), f.i32(0)))
    f.add_to(counters, 8 * LOCAL_REQUESTS, f.i64(1))
    f.end_if(after)


def count_atomic(module: Module) -> None:
    """The counters of one atom or red."""
    f = Function(
        module,
        "count_atomic",
        "void",
        [
            ("ptr", "ctx"),
            ("ptr", "warp"),
            ("i32", "instruction"),
            ("i64", "number"),
            ("i32", "space"),
            ("i32", "seen"),
            ("i32", "mask"),
            ("i64", "span"),
        ],
        internal=False,
        noinline=True,
    )
    f.begin()
    addresses = f.pointer("%ctx", at.SCRATCH_ADDRESSES)
    mask, span = Value("%mask", "i32"), Value("%span", "i64")
    count_access(f, addresses, Value("%seen", "i32"), mask, span, f.i32(2))
    f.ret()
    f.finish()


def sectors(module: Module) -> None:
    """i64 sectors(addresses, mask): distinct 32-byte sectors of the active lanes' (aligned) accesses."""
    f = Function(module, "sectors", "i64", [("ptr", "addresses"), ("i32", "mask")], noinline=True)
    f.begin()
    known = f.alloca("[32 x i64]")
    count, rest, search = (
        f.variable("i64", f.i64(0)),
        f.variable("i32", Value("%mask", "i32")),
        f.variable("i64"),
    )
    loop, body, compare, same, new, leave = (
        f.new_label(s) for s in ("loop", "body", "compare", "same", "new", "leave")
    )
    f.br(loop)
    f.label(loop)
    m = f.load("i32", rest)
    f.cond(f.icmp("ne", m, f.i32(0)), body, leave)
    f.label(body)
    lane = f.resize(f.intrinsic("cttz", m, flags=", i1 true"), "i64")
    f.store(f.bin("and", m, f.bin("sub", m, f.i32(1))), rest)
    sector = f.bin("lshr", f.load("i64", f.pointer("%addresses", f.bin("mul", lane, f.i64(8)))), f.i64(5))
    have = f.load("i64", count)
    f.store(have, search)  # the newest is the likeliest
    f.br(compare)
    f.label(compare)
    k = f.load("i64", search)
    f.cond(f.icmp("ne", k, f.i64(0)), same, new)
    f.label(same)
    previous = f.bin("sub", k, f.i64(1))
    f.store(previous, search)
    there = f.load("i64", f.pointer(known, f.bin("mul", previous, f.i64(8))))
    f.cond(f.icmp("eq", there, sector), loop, compare)
    f.label(new)
    f.store(sector, f.pointer(known, f.bin("mul", have, f.i64(8))))
    f.store(f.bin("add", have, f.i64(1)), count)
    f.br(loop)
    f.label(leave)
    f.ret(f.load("i64", count))
    f.finish()
