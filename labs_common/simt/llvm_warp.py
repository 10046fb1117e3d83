"""What the lanes of a warp do together, barriers, and calls out of the kernel."""

from __future__ import annotations

from collections.abc import Callable

from . import llvm_layout as at
from .errors import UnsupportedError
from .llvm_code import TRUE
from .llvm_layout import CTX
from .llvm_matrix import Matrices
from .llvm_text import WARP, Value, const
from .ops import Operation, operands
from .parse import Sink
from .program import needs_whole_warp


class Code(Matrices):
    """Adds shuffles, votes and the like, barriers and builtin calls: everything but control flow."""

    def warp(self, row: Operation) -> None:
        """A shuffle, vote or the like; the lanes of its mask are all here."""
        f = self.f
        opcode, mods = self.instruction.opcode, self.instruction.modifiers
        targets, sources = operands(self.instruction)
        if needs_whole_warp(self.instruction):
            self.matrix(row)
        elif opcode == "shfl":
            self.shuffle(mods[1], targets, sources)
        elif opcode == "bar" and self.kernel.stepped:
            f.add_to("%warp", at.WARP_SYNC, const("i32", 1))
        elif opcode == "activemask":
            self.result(targets[0], self.mask, "b32")
        elif opcode == "vote":
            self.vote(mods[1], targets[0], sources)
        elif opcode == "redux":
            self.redux(mods[1], mods[2], targets[0], sources)
        elif opcode == "match":
            self.match(mods[0], targets, sources, row)
        elif opcode == "elect":
            members = self.members(sources[0])
            leader = self.for_each_group(members, lambda group: f.intrinsic("cttz", group, flags=", i1 true"))
            self.result(targets[0], leader, "b32")
            self.result(targets[1], f.icmp("eq", f.spread(leader), f.lane_numbers()), "pred")

    def pc_of(self, source: int, target: int) -> Value:
        """The pc of a lane that goes to the start of a block."""
        return const("i32", 2 * target + (at.SPIN if (source, target) in self.kernel.spins else 0))

    def participants(self) -> Value:
        """The lanes that the instruction, which is about to be emitted, waits for."""
        if needs_whole_warp(self.instruction):
            return const("i32", -1)
        return self.members(operands(self.instruction)[1][-1])

    def members(self, operand) -> Value:
        """The member mask."""
        return self.source(operand, "b32")

    def for_each_group(self, members: Value, function: Callable[[Value], Value]) -> Value:
        """function(mask) -> i32 for the lanes that name each other; one group in nearly every program."""
        f = self.f
        if members.lanes == 1:
            return function(f.bin("and", members, self.mask))
        vector = f.alloca(f"<{WARP} x i32>")
        f.store(Value("zeroinitializer", "i32", WARP), vector, align=64)
        rest = f.variable("i32")
        f.store(self.mask, rest)
        loop, one, leave = f.new_label("groups"), f.new_label("group"), f.new_label("grouped")
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        named = f.extract(members, lane)
        same = f.bin("and", f.mask_bits(f.icmp("eq", members, f.spread(named))), m)
        value = function(same)
        before = f.load("i32", vector, WARP, align=64)
        f.store(f.select(f.mask_lanes(same), f.spread(value), before), vector, align=64)
        f.store(f.bin("and", m, f.bin("xor", same, const("i32", -1))), rest)
        f.br(loop)
        f.label(leave)
        return f.load("i32", vector, WARP, align=64)

    def shuffle(self, mode: str, targets: list, sources: list) -> None:
        """shfl.sync, by the rule of the PTX ISA."""
        f = self.f
        value, lane_operand, clamp = (self.source(o, "b32") for o in sources[:3])
        need_predicate = len(targets) > 1 and not isinstance(targets[1], Sink) and self.is_read(targets[1])
        lanes = f.lane_numbers()
        members = self.members(sources[3])
        whole = members.literal and members.lanes == 1 and int(members.name) == -1
        if whole and lane_operand.literal and clamp.literal and lane_operand.lanes == clamp.lanes == 1:
            source, inside = _shuffle_pattern(mode, int(lane_operand.name), int(clamp.name))
            moved = f.shuffle(f.spread(value), source)
            self.result(targets[0], moved, "b32")
            if need_predicate:
                self.result(targets[1], f.vector_literal("i1", [int(i) for i in inside]), "pred")
            return
        # the PTX ISA's rule: c = segment mask << 8 | clamp
        b = f.spread(f.bin("and", lane_operand, const("i32", 31)))
        segment = f.bin("and", f.bin("lshr", clamp, const("i32", 8)), const("i32", 31))
        limit = f.bin("and", clamp, const("i32", 31))
        inverse = f.bin("xor", segment, const("i32", -1))
        highest = f.bin("or", f.bin("and", lanes, segment), f.bin("and", limit, inverse))
        if mode == "idx":
            lowest = f.bin("and", lanes, segment)
            j = f.bin("or", lowest, f.bin("and", b, inverse))
            inside = f.icmp("sle", j, highest)
        elif mode == "up":
            j = f.bin("sub", lanes, b)
            inside = f.icmp("sge", j, highest)
        elif mode == "down":
            j = f.bin("add", lanes, b)
            inside = f.icmp("sle", j, highest)
        else:
            j = f.bin("xor", lanes, b)
            inside = f.icmp("sle", j, highest)
        j = f.bin("and", f.select(inside, j, lanes), const("i32", 31))
        if not whole:
            named = f.bin("and", f.bin("lshr", members, j), const("i32", 1))
            j = f.select(f.icmp("eq", named, const("i32", 1)), j, lanes)
        # through memory: a gather of 32 words
        buffer = f.alloca(f"<{WARP} x i32>")
        f.store(f.spread(value), buffer, align=64)
        j_buffer = f.alloca(f"<{WARP} x i32>")
        f.store(j, j_buffer, align=64)
        moved = Value("poison", "i32", WARP)
        for k in range(WARP):
            index = f.load("i32", f.pointer(j_buffer, 4 * k))
            item = f.load("i32", f.pointer(buffer, f.bin("mul", f.resize(index, "i64"), const("i64", 4))))
            moved = f.emit(f"insertelement {moved}, {item}, i32 {k}", "i32", WARP)
        self.result(targets[0], moved, "b32")
        if need_predicate:
            self.result(targets[1], inside, "pred")

    def is_read(self, register) -> bool:
        """Whether any instruction reads a register."""
        return register.index in self.kernel.read_registers

    def vote(self, mode: str, target, sources: list) -> None:
        """vote.sync.ballot, any, all and uni."""
        f = self.f
        predicate = f.mask_bits(self.source(sources[0], "pred"))

        def ballot(group: Value) -> Value:
            return f.bin("and", predicate, group)

        members = self.members(sources[1])
        if mode == "ballot":
            self.result(target, self.for_each_group(members, ballot), "b32")
            return

        def decide(group: Value) -> Value:
            bits = ballot(group)
            none = f.icmp("eq", bits, const("i32", 0))
            every = f.icmp("eq", bits, group)
            truth = {"any": f.bin("xor", none, TRUE), "all": every, "uni": f.bin("or", none, every)}[mode]
            return f.resize(truth, "i32")

        value = self.for_each_group(members, decide)
        self.result(target, f.icmp("ne", value, const("i32", 0)), "pred")

    def redux(self, mode: str, type_: str, target, sources: list) -> None:
        """redux.sync."""
        f = self.f
        value = f.spread(self.source(sources[0], type_))
        signed = type_ == "s32"
        neutral = {
            "add": 0, "or": 0, "xor": 0, "and": -1,
            "min": 0x7FFFFFFF if signed else -1, "max": -0x80000000 if signed else 0,
        }[mode]  # fmt: skip
        name = ("s" if signed else "u") + mode if mode in ("min", "max") else mode

        def reduce(group: Value) -> Value:
            chosen = f.select(f.mask_lanes(group), value, const("i32", neutral))
            return f.reduce(name, chosen)

        self.result(target, self.for_each_group(self.members(sources[1]), reduce), type_)

    def match(self, mode: str, targets: list, sources: list, row: Operation) -> None:
        """match.any.sync and match.all.sync."""
        f = self.f
        value = f.spread(self.source(sources[0], row.sources[0]))
        members = self.members(sources[1])
        if mode == "all":

            def same(group: Value) -> Value:
                first = f.extract(value, f.intrinsic("cttz", group, flags=", i1 true"))
                equal = f.bin("and", f.mask_bits(f.icmp("eq", value, f.spread(first))), group)
                return f.select(f.icmp("eq", equal, group), group, const("i32", 0))

            result = self.for_each_group(members, same)
            self.result(targets[0], result, "b32")
            if len(targets) > 1:
                self.result(targets[1], f.icmp("ne", result, const("i32", 0)), "pred")
            return
        buffer = f.alloca(f"<{WARP} x i32>")
        f.store(Value("zeroinitializer", "i32", WARP), buffer, align=64)
        rest = f.variable("i32")
        f.store(self.mask, rest)
        loop, one, leave = f.new_label("matches"), f.new_label("match"), f.new_label("matched")
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        same_members = f.icmp("eq", f.spread(members), f.spread(f.extract(members, lane)))
        equal = f.icmp("eq", value, f.spread(f.extract(value, lane)))
        group = f.bin("and", f.mask_bits(f.bin("and", same_members, equal)), m)
        before = f.load("i32", buffer, WARP, align=64)
        f.store(f.select(f.mask_lanes(group), f.spread(group), before), buffer, align=64)
        f.store(f.bin("and", m, f.bin("xor", group, const("i32", -1))), rest)
        f.br(loop)
        f.label(leave)
        self.result(targets[0], f.load("i32", buffer, WARP, align=64), "b32")

    # ---- barriers and calls

    def arrive(self) -> None:
        """Note which barrier the lanes came to (the instruction at self.index)."""
        f = self.f
        mods = self.instruction.modifiers
        _, sources = operands(self.instruction)
        if "arrive" in mods:
            raise UnsupportedError(f"{self.instruction.name} is not simulated by this engine", self.line)
        reduction = "red" in mods
        numbers = sources[:-1] if reduction else sources
        number = self.source(numbers[0], "u32") if numbers else const("i32", 0)
        count = self.source(numbers[1], "u32") if len(numbers) > 1 else const("i32", 0)
        if reduction:
            bits = f.mask_bits(self.source(sources[-1], "pred"))
            before = f.field("i32", "%warp", at.WARP_VOTES)
            kept = f.bin("and", before, f.bin("xor", self.mask, const("i32", -1)))
            f.store(f.bin("or", kept, f.bin("and", bits, self.mask)), f.pointer("%warp", at.WARP_VOTES))
            count = const("i32", at.REDUCTION)
        for value, offset in ((number, at.WARP_BARRIER), (count, at.WARP_COUNT)):
            place = f.pointer("%warp", offset)
            if not self.full:
                value = f.select(self.mask_vector, f.spread(value), f.load("i32", place, WARP, align=64))
            f.store(f.spread(value), place, align=64)

    def after_barrier(self, row: Operation) -> None:
        """The result of a barrier with reduction."""
        if row.results:
            targets, _ = operands(self.instruction)
            value = self.f.field("i32", "%warp", at.WARP_RESULT)
            if row.results[0] == "pred":
                value = self.f.icmp("ne", value, const("i32", 0))
            self.result(targets[0], value, row.results[0])

    def call(self) -> None:
        """A builtin: the engine's function gets (worker, instruction, warp, mask)."""
        f = self.f
        if not self.program.instructions[self.index].operands[-1].elements:
            return  # an inlined device function
        function = f.field("ptr", "%ctx", CTX["call"]).name
        worker = f.field("i64", "%ctx", CTX["host"])
        code = f.fresh()
        index = f.field("i64", "%warp", at.WARP_INDEX)
        f.line(f"{code} = call i32 {function}({worker}, i32 {self.index}, {index}, {self.mask})")
        ok = f.icmp("eq", Value(code, "i32"), const("i32", 0))
        went = f.new_label("called")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)


def _shuffle_pattern(mode: str, b: int, c: int) -> tuple[list[int], list[bool]]:
    """(source lane, whether it was in range) for each lane, by the PTX ISA's rule for shfl."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    sources, inside = [], []
    for lane in range(WARP):
        highest = (lane & segment) | (clamp & ~segment & 31)
        lowest = lane & segment
        if mode == "up":
            j = lane - b
            good = j >= highest
        elif mode == "down":
            j = lane + b
            good = j <= highest
        elif mode == "bfly":
            j = lane ^ b
            good = j <= highest
        else:
            j = lowest | (b & ~segment & 31)
            good = j <= highest
        sources.append(j if good else lane)
        inside.append(good)
    return sources, inside
