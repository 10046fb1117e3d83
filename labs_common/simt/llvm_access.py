"""Loads, stores and atomics in machine code: fast ways in place, everything else through the runtime.

An access of consecutive lanes, or of one address for all, is checked and counted by a few instructions
against the allocation that the instruction met last; see llvm_layout's access cache.
"""

from __future__ import annotations

from . import llvm_layout as at
from . import llvm_runtime as runtime
from . import vector_math as vm
from .llvm_code import FALSE, Base
from .llvm_layout import CTX
from .llvm_runtime import ACCESS_COUNTERS
from .llvm_text import WARP, Value, const
from .memory import WINDOW
from .ops import Operation, operands
from .parse import Address, Symbol
from .program import Access

_SPACES = {
    "global": at.SPACE_GLOBAL,
    "const": at.SPACE_CONST,
    "shared": at.SPACE_SHARED,
    "local": at.SPACE_LOCAL,
    "generic": at.SPACE_GENERIC,
    "param": at.SPACE_PARAM,
}


_ATOMIC = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")


class Accesses(Base):
    """Adds memory instructions."""

    def address_of(self, address: Address) -> Value:
        """An address operand, 64 bits: one value, or one for each lane."""
        f = self.f
        if isinstance(address.base, Symbol):
            base = self.symbol(address.base)
        elif address.base is None:
            base = const("i64", 0)
        else:
            base = f.resize(self.read(address.base), "i64")
        if not address.offset:
            return base
        if base.literal:
            return const("i64", int(base.name) + address.offset)
        return f.bin("add", base, const("i64", address.offset))

    def memory(self, row: Operation, access: Access) -> None:
        """A ld or st; atomics go to `atomic`."""
        if access.operation in ("atom", "red"):
            self.atomic(row, access)
            return
        address = self.address_of(access.address)
        span = access.width * access.count
        store = access.operation == "st"
        space = access.space
        scalar = address.lanes == 1 and space in ("global", "const", "shared") and not store
        if space == "param":
            scalar = address.lanes == 1
            if access.static is not None and access.static + span <= self.program.param_bytes:
                self.parameter(row, access)
                return
            if access.static is not None:
                address = const("i64", WINDOW["param"] + access.static)
        targets, sources = operands(self.instruction)
        data = None
        if store:
            values = self.values_of(sources)
            parts = [
                self.f.spread(self.bits_of_source(o, t)) for o, t in zip(values, row.sources, strict=True)
            ]
            data = self.interleave(parts)
        loaded = self.load_or_store(access, address, span, data, scalar)
        if store:
            return
        type_ = row.results[0]
        for target, value in zip(targets, self.split(loaded, access), strict=True):
            self.result(target, value, type_)

    def values_of(self, sources: list) -> list:
        """The operands of a store or atomic that are data."""
        values = [s for s in sources if not isinstance(s, Address)]
        hint = any("cache_hint" in m for m in self.instruction.modifiers)
        return values[:-1] if hint else values

    def bits_of_source(self, operand, type_: str) -> Value:
        """A source operand as integer bits."""
        value = self.source(operand, type_)
        return self.f.bits(value) if value.type in ("float", "double") else value

    def parameter(self, row: Operation, access: Access) -> None:
        """A load from a fixed place in the parameters, the same for every lane."""
        base = self.f.field("ptr", "%ctx", CTX["params"], invariant=True).name
        targets, _ = operands(self.instruction)
        for k, target in enumerate(targets):
            pointer = self.f.pointer(base, access.static + k * access.width)
            value = self.f.load(f"i{8 * access.width}", pointer, align=1, invariant=True)
            self.result(target, value, row.results[0])

    def interleave(self, parts: list[Value]) -> Value:
        """Vectors of 32 -> one vector in memory order, element k of lane i at i * n + k."""
        f = self.f
        if len(parts) == 1:
            return parts[0]
        type_, count = parts[0].type, len(parts)

        def pair(a: Value, b: Value, pattern: list[int]) -> Value:
            listed = ", ".join(f"i32 {n}" for n in pattern)
            return f.emit(f"shufflevector {a}, {b}, <{len(pattern)} x i32> <{listed}>", type_, len(pattern))

        if count == 2:
            return pair(*parts, [i + 32 * k for i in range(WARP) for k in range(2)])
        low = pair(*parts[:2], list(range(64)))
        high = pair(*parts[2:], list(range(64)))
        return pair(low, high, [i + 32 * k for i in range(WARP) for k in range(4)])

    def split(self, loaded: Value, access: Access) -> list[Value]:
        """The elements of a loaded vector, each one scalar or 32 lanes."""
        f = self.f
        count = access.count
        if count == 1:
            return [loaded]
        if loaded.lanes == count:
            return [f.extract(loaded, k) for k in range(count)]
        return [f.shuffle(loaded, [i * count + k for i in range(WARP)]) for k in range(count)]

    def load_or_store(
        self, access: Access, address: Value, span: int, data: Value | None, scalar: bool
    ) -> Value | None:
        """The access with its checks and counters: the loaded vector in memory order (scalar: one lane's)."""
        f = self.f
        element, count = f"i{8 * access.width}", access.count
        space = _SPACES[access.space]
        number = self.layout.access_number[self.index]
        fast, slow, after = f.new_label("fast"), f.new_label("slow"), f.new_label("after")
        counters = self.layout.accesses + 8 * ACCESS_COUNTERS * number
        store = data is not None
        parts: list[tuple[Value, str]] = []
        is_global = space in (at.SPACE_GLOBAL, at.SPACE_GENERIC, at.SPACE_CONST)
        has_fast = is_global or space == at.SPACE_SHARED
        one_lane = address.lanes == 1
        if (one_lane and store) or not (one_lane or self.full):
            has_fast = False  # the helper has fast ways of its own for these
        if has_fast:
            entry = f.pointer(f.field("ptr", "%ctx", CTX["cache"], True).name, at.CACHE_BYTES * number)
            first = f.extract(address, 0)
            reach = span if one_lane else WARP * span
            if is_global:
                offset = f.bin("sub", first, f.field("i64", entry, at.CACHE_BASE))
                limit = f.field("i64", entry, at.CACHE_SIMPLE if one_lane else at.CACHE_FULL)
                ok = f.icmp("ult", offset, limit)
            else:
                offset = first
                size = f.field("i64", "%ctx", CTX["shared_size"], True)
                limit = f.bin("sub", size, const("i64", reach - 1))
                ok = f.bin("and", f.icmp("slt", first, limit), f.icmp("sge", first, const("i64", 0)))
            if span > 1:
                low = f.bin("and", first, const("i64", span - 1))
                ok = f.bin("and", ok, f.icmp("eq", low, const("i64", 0)))
            if not one_lane:
                steps = f.vector_literal("i64", range(0, WARP * span, span))
                same = f.icmp("eq", address, f.bin("add", f.spread(first), steps))
                every = f.icmp("eq", f.mask_bits(same), const("i32", -1))
                ok = f.bin("and", ok, f.bin("and", every, f.icmp("eq", self.mask, const("i32", -1))))
            if not is_global:
                ok = self.shared_flags_ok(ok, offset, span, reach, one_lane, store, slow)
            f.cond(ok, fast, slow, "likely")
            f.label(fast)
            if is_global:
                delta = f.field("i64", entry, at.CACHE_DELTA)
                pointer = f.pointer_of(f.bin("add", first, delta))
                if space != at.SPACE_CONST:
                    self.mark_sectors(
                        entry, first, offset, span, one_lane, counters, space == at.SPACE_GENERIC
                    )
            else:
                pointer = f.pointer(f.field("ptr", "%ctx", CTX["shared"], True).name, offset)
                waves = const("i64", 1 if span <= 4 else span // 4)
                if one_lane and span > 4:
                    waves = self.occupied_groups(span // 4)
                f.add_to(self.counters, counters + 8 * runtime.WAVEFRONTS, waves)
                if store:
                    f.store(Value("splat (i8 15)", "i8", reach // 4), self.flags_pointer(offset), align=1)
                self.look_for_races(offset, span, one_lane, store)
            if store:
                f.store(data, pointer, align=access.width)
            else:
                lanes = count if one_lane else WARP * count
                value = f.load(element, pointer, lanes, align=access.width)
                if one_lane and not scalar:
                    value = self.repeat(value)
                parts.append((value, f.label_name))
            f.br(after)
            f.label(slow)
        # the slow path
        f.store(f.spread(address), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        if store:
            f.store(data, f.pointer("%ctx", at.SCRATCH_DATA), align=64)
        kind = 1 if store else 0
        ok = f.call(
            "i1",
            "access",
            "ptr %ctx",
            "ptr %warp",
            f"i32 {self.index}",
            f"i64 {number}",
            f"i32 {space}",
            f"i32 {kind}",
            f"i64 {span}",
            str(self.mask),
        )
        went = f.new_label("went")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)
        if not store:
            base = f.pointer("%ctx", at.SCRATCH_DATA)
            if scalar:
                lane = f.intrinsic("cttz", self.mask, flags=", i1 true")
                place = f.pointer(base, f.bin("mul", f.resize(lane, "i64"), const("i64", span)))
                parts.append((f.load(element, place, count, align=1), went))
            else:
                parts.append((f.load(element, base, WARP * count, align=64), went))
        f.br(after)
        f.label(after)
        if store:
            return None
        return parts[0][0] if len(parts) == 1 else f.phi(parts)

    def look_for_races(self, offset: Value, span: int, one_lane: bool, store: bool) -> None:
        """Stepped code only: tell the race check of a fast shared access."""
        if not self.kernel.stepped:
            return
        f = self.f
        first, lanes = const("i32", 0), const("i32", 0)
        if one_lane:  # of lanes with one address the last counts
            first = f.bin("sub", const("i32", 31), f.intrinsic("ctlz", self.mask, flags=", i1 true"))
            lanes = self.mask
        length = span if one_lane else WARP * span
        shift = 31 if one_lane else span.bit_length() - 1
        after = f.start_if(f.icmp("ne", f.field("i64", "%ctx", CTX["race"], True), const("i64", 0)))
        f.call(
            "void", "race_run", "ptr %ctx", "ptr %warp", f"i32 {self.index}", f"i32 {int(store)}",
            str(offset), f"i64 {length}", f"i32 {shift}", str(first), str(lanes),
        )  # fmt: skip
        f.end_if(after)

    def occupied_groups(self, parts: int) -> Value:
        """How many of the warp's `parts` equal parts have an active lane."""
        f = self.f
        total = const("i64", 0)
        width = WARP // parts
        for k in range(parts):
            part = f.bin("and", self.mask, const("i32", ((1 << width) - 1) << (k * width)))
            total = f.bin("add", total, f.resize(f.icmp("ne", part, const("i32", 0)), "i64"))
        return total

    def repeat(self, value: Value) -> Value:
        """A vector of one lane's elements -> the same for all 32 lanes, in memory order."""
        if value.lanes == 1:
            return self.f.spread(value)
        return self.f.shuffle(value, list(range(value.lanes)) * WARP)

    def flags_pointer(self, offset: Value) -> str:
        """Where the written-flags of a shared offset begin."""
        base = self.f.field("ptr", "%ctx", CTX["shared_flags"], True).name
        return self.f.pointer(base, self.f.bin("lshr", offset, const("i64", 2)))

    def shared_flags_ok(
        self, ok: Value, offset: Value, span: int, reach: int, one_lane: bool, store: bool, slow: str
    ) -> Value:
        """Whether every word was written (if checked), or no copy is on its way to where a store goes.

        Sub-word accesses take the slow path.
        """
        f = self.f
        if span < 4:
            return FALSE
        if store and not self.kernel.copying:
            return ok
        look, done = f.new_label("look"), f.new_label("looked")
        f.cond(ok, look, slow, "likely")
        f.label(look)
        words = reach // 4
        flags = f.load("i8", self.flags_pointer(offset), words, align=1)
        wanted = 15
        if store:
            splat = f"splat (i8 {at.FLAG_COPY})" if words > 1 else str(at.FLAG_COPY)
            flags = f.emit(f"and {flags}, {splat}", "i8", words)
            wanted = 0
        if words == 1:
            complete = f.icmp("eq", flags, const("i8", wanted))
        else:
            same = f.emit(f"icmp eq {flags}, splat (i8 {wanted})", "i1", words)
            bits = f.emit(f"bitcast {same} to i{words}", f"i{words}")
            complete = f.icmp("eq", bits, Value("-1", f"i{words}"))
        if store:
            f.br(done)
            f.label(done)
            return complete
        off = f.icmp("eq", f.field("i64", "%ctx", CTX["track_shared"], True), const("i64", 0))
        f.br(done)
        f.label(done)
        return f.bin("or", complete, off)

    def mark_sectors(
        self, entry: str, first: Value, offset: Value, span: int, one_lane: bool, counters: int, generic: bool
    ) -> None:
        """Count the distinct sectors of consecutive lanes (or of one address) and mark them as touched."""
        f = self.f
        if one_lane:
            number = const("i64", 1)
            bits = const("i32", 1)
        else:
            over = f.icmp("ne", f.bin("and", first, const("i64", 31)), const("i64", 0))
            number = f.bin("add", const("i64", span), f.resize(over, "i64"))
            bits = f.select(over, const("i32", (2 << span) - 1), const("i32", (1 << span) - 1))
        f.add_to(self.counters, counters + 8 * runtime.SECTORS, number)
        if generic:
            f.add_to(self.counters, counters + 8 * runtime.GLOBAL_REQUESTS, const("i64", 1))
        marks = f.pointer(
            f.field("ptr", entry, at.CACHE_SECTORS).name, f.bin("lshr", offset, const("i64", 8))
        )
        within = f.resize(f.bin("and", f.bin("lshr", offset, const("i64", 5)), const("i64", 7)), "i32")
        bits = f.bin("shl", bits, within)
        f.store(f.bin("or", f.load("i32", marks, align=1), bits), marks, align=1)

    def atomic(self, row: Operation, access: Access) -> None:
        """atom and red: lane after lane, each a compare-and-swap loop on host memory."""
        f = self.f
        targets, sources = operands(self.instruction)
        type_ = row.sources[0]
        values = [
            f.spread(self.bits_of_source(o, t))
            for o, t in zip(self.values_of(sources), row.sources, strict=True)
        ]
        address = self.address_of(access.address)
        width = access.width
        element = f"i{8 * width}"
        number = self.layout.access_number[self.index]
        f.store(f.spread(address), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        places = (at.SCRATCH_DATA, at.SCRATCH_MORE)
        for value, place in zip(values, places, strict=False):
            f.store(value, f.pointer("%ctx", place), align=64)
        old_values = f.alloca(f"<{WARP} x {element}>")
        rest, seen, host = f.variable("i32"), f.variable("i32"), f.variable("ptr")
        f.store(self.mask, rest)
        f.store(f.resize(self.mask, "i64"), f.pointer("%ctx", CTX["fault_mask"]))
        f.store(const("i32", 0), seen)
        entry = f.pointer(f.field("ptr", "%ctx", CTX["cache"], True).name, at.CACHE_BYTES * number)
        loop, one, go, again, next_, leave = (
            f.new_label(s) for s in ("atoms", "atom", "go", "again", "next", "leave")
        )
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        f.store(f.bin("and", m, f.bin("sub", m, const("i32", 1))), rest)
        wide = f.resize(lane, "i64")
        where = f.load(
            "i64", f.pointer(f.pointer("%ctx", at.SCRATCH_ADDRESSES), f.bin("mul", wide, const("i64", 8)))
        )
        ok = f.call(
            "i1", "place", "ptr %ctx", "ptr %warp", f"ptr {entry}", f"i64 {number}", f"i32 {self.index}",
            f"i32 {_SPACES[access.space]}", "i32 2", f"i64 {width}", str(lane), str(where),
            f"ptr {host}", f"ptr {seen}",
        )  # fmt: skip
        f.cond(ok, go, self.fault_label)
        f.label(go)
        memory = f.load("ptr", host).name
        mine = [
            f.load(element, f.pointer(f.pointer("%ctx", place), f.bin("mul", wide, const("i64", width))))
            for _, place in zip(values, places, strict=False)
        ]
        initial = f.emit(f"load atomic {element}, ptr {memory} seq_cst, align {width}", element)
        before = f.label_name
        f.br(again)
        f.label(again)
        old_name = f.fresh()
        at_phi = len(f.lines)
        old = Value(old_name, element)
        new = self.combine(row, type_, old, mine)
        pair = f.fresh()
        f.line(f"{pair} = cmpxchg ptr {memory}, {old}, {new} seq_cst seq_cst, align {width}")
        found = f.emit(f"extractvalue {{ {element}, i1 }} {pair}, 0", element)
        swapped = f.emit(f"extractvalue {{ {element}, i1 }} {pair}, 1", "i1")
        f.lines.insert(
            at_phi,
            f"  {old_name} = phi {element} [ {initial.name}, %{before} ], [ {found.name}, %{f.label_name} ]",
        )
        f.cond(swapped, next_, again, "likely")
        f.label(next_)
        f.store(old, f.pointer(old_values, f.bin("mul", wide, const("i64", width))))
        f.br(loop)
        f.label(leave)
        counted = f.new_label("counted")
        f.call(
            "void",
            "count_atomic",
            "ptr %ctx",
            "ptr %warp",
            f"i32 {self.index}",
            f"i64 {number}",
            f"i32 {_SPACES[access.space]}",
            str(f.load("i32", seen)),
            str(self.mask),
            f"i64 {width}",
        )
        f.br(counted)
        f.label(counted)
        if targets:
            self.result(targets[0], f.load(element, old_values, WARP, align=64), type_)

    def combine(self, row: Operation, type_: str, old: Value, mine: list[Value]) -> Value:
        """The new value of an atomic operation, scalars."""
        f = self.f
        name = next(m for m in self.instruction.modifiers if m in _ATOMIC)
        if name == "exch":
            return mine[0]
        if name == "cas":
            return f.select(f.icmp("eq", old, mine[0]), mine[1], old)
        if name == "inc":
            return f.select(
                f.icmp("uge", old, mine[0]), const(old.type, 0), f.bin("add", old, const(old.type, 1))
            )
        if name == "dec":
            wraps = f.bin("or", f.icmp("eq", old, const(old.type, 0)), f.icmp("ugt", old, mine[0]))
            return f.select(wraps, mine[0], f.bin("sub", old, const(old.type, 1)))
        if name in ("and", "or", "xor"):
            return f.bin(name, old, mine[0])
        if name in ("min", "max"):
            return f.intrinsic(("s" if type_[0] == "s" else "u") + name, old, mine[0])
        if type_[0] in "us":
            return f.bin("add", old, mine[0])
        function = vm.arithmetic("add", type_.removesuffix("x2"), ftz=type_ == "f32")
        if type_.endswith("x2"):
            function = vm.packed(function)
        if type_ in ("f32", "f64"):
            return f.bits(function(self.e, f.floats(old), f.floats(mine[0])))
        return function(self.e, old, mine[0])
