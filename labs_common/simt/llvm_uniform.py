"""Control flow of uniform code: all living lanes of a warp at one basic block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import llvm_layout as at
from . import llvm_runtime as runtime
from .llvm_code import Misjudged, register_type
from .llvm_text import WARP, Value, const
from .llvm_warp import Code
from .parse import Register
from .program import Block

if TYPE_CHECKING:
    from .llvm_analysis import Region
    from .llvm_emit import Kernel


class Uniform(Code):
    """All living lanes together."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "uniform", "i32", [("ptr", "ctx"), ("ptr", "warp")])
        self.block: Block | None = None
        self.places: dict[int, str] = {}
        self.predicated = False

    def load_register(self, register: Register) -> Value:
        """From its stack slot, which LLVM makes an SSA value."""
        lanes = WARP if register.index in self.analysis.vectors else 1
        return self.f.load(register_type(register), self.place(register), lanes)

    def place(self, register: Register) -> str:
        """A register's stack slot."""
        known = self.places.get(register.index)
        if known is None:
            type_ = register_type(register)
            ir = f"<{WARP} x {type_}>" if register.index in self.analysis.vectors else type_
            known = self.places[register.index] = self.f.alloca(ir)
            # an SSA form for every path: a register never written holds 0
            self.f.allocas.append(f"  store {ir} zeroinitializer, ptr {known}")
        return known

    def write(self, register: Register, value: Value) -> None:
        """Into its stack slot if later blocks read it; under a mask only for its lanes."""
        index = register.index
        if index not in self.analysis.vectors and value.lanes == WARP:
            raise Misjudged(index)
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            if index in self.analysis.vectors:
                value = self.f.spread(value)
                if self.predicated:
                    before = self.f.load(value.type, self.place(register), WARP)
                    value = self.f.select(self.mask_vector, value, before)
            self.f.store(value, self.place(register))

    def function(self) -> None:
        """Write the whole function."""
        f, program, analysis = self.f, self.program, self.analysis
        self.begin_function()
        self.mask = self.alive = f.field("i32", "%warp", at.WARP_ALIVE)
        self.full = True
        self.alive_count = f.resize(f.popcount(self.alive), "i64")
        self.fault_label = f.new_label("fault")
        wrong = f.new_label("wrong")
        form = f.field("i32", "%warp", at.WARP_BLOCK)
        entries = {n: f.new_label(f"enter{n}") for n in analysis.enterable}
        self.labels = [f.new_label(f"block{b.index}") for b in program.blocks]
        self.bodies = [f.new_label(f"body{b.index}") for b in program.blocks]
        f.switch(form, wrong, list(entries.items()))
        f.label(wrong)
        f.ret(const("i32", at.FAULT))
        f.label(self.fault_label)
        f.ret(const("i32", at.FAULT))
        for n, label in entries.items():
            f.label(label)
            self.fresh_block()
            self.restore(self.live_in[n])
            block = program.blocks[n]
            if block.waits == "block":
                entered = f.field("i32", "%warp", at.WARP_ENTERED)
                f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
                f.cond(f.icmp("ne", entered, const("i32", 0)), self.bodies[n], self.labels[n])
            else:
                if analysis.chain[n] != n:
                    self.tally(n, 1)
                f.br(self.labels[n])
        for block in program.blocks:
            self.block = block
            self.region_start = None
            self.emit_block(block)
            region = analysis.regions.get(block.index)
            # No start where the predicate, which may vary elsewhere, has one value for the warp here.
            if region is not None and self.region_start is not None:
                self.emit_region(block, region)
        f.finish()

    def tally(self, block: int, sign: int) -> None:
        """Count a block (and the rest of its chain) as executed, or take that back."""
        self.count(self.layout.uniform_warps, block, const("i64", sign))
        lanes = self.alive_count
        if sign < 0:
            lanes = self.f.bin("sub", const("i64", 0), lanes)
        self.count(self.layout.uniform_lanes, block, lanes)

    def registers(self, bits: int) -> Iterator[Register]:
        """The registers of a set of bits that live across blocks."""
        bits &= self.analysis.saved
        for register in self.program.registers:
            if bits >> register.index & 1:
                yield register

    def restore(self, bits: int) -> None:
        """Registers from the warp state, as uniform code left them."""
        f = self.f
        for register in self.registers(bits):
            type_ = register_type(register)
            if register.index in self.analysis.vectors:
                slot = f.pointer("%warp", self.layout.vector_slots[register.index])
                if type_ == "i1":
                    value = f.mask_lanes(f.load("i32", slot))
                else:
                    value = f.load(type_, slot, WARP, align=64)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                value = f.load("i8" if type_ == "i1" else type_, slot)
                value = f.cast("trunc", value, "i1") if type_ == "i1" else value
            f.store(value, self.place(register))

    def save(self, bits: int) -> None:
        """Registers to the warp state for uniform code to take up again."""
        f = self.f
        for register in self.registers(bits):
            value = self.read(register)
            if register.index in self.analysis.vectors:
                self.save_lanes(register, value)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                f.store(f.resize(value, "i8") if value.type == "i1" else value, slot)

    def save_lanes(self, register: Register, value: Value) -> None:
        """A register's value in every lane, to its slot in the warp state."""
        f = self.f
        slot = f.pointer("%warp", self.layout.vector_slots[register.index])
        if value.type == "i1":
            f.store(f.mask_bits(value), slot)
        else:
            f.store(f.spread(value), slot, align=64)

    def leave(self, bits: int, pcs: Value) -> None:
        """Hand the warp to masked code: registers and one pc per lane."""
        f = self.f
        for register in self.registers(bits):
            self.save_lanes(register, self.read(register))
        f.store(f.spread(pcs), f.pointer("%warp", at.WARP_PCS), align=64)
        f.store(const("i32", -1), f.pointer("%warp", at.WARP_BLOCK))
        f.ret(const("i32", at.SWITCH))

    def emit_block(self, block: Block) -> None:
        """One basic block: waiting, body, branch."""
        f, n = self.f, block.index
        f.label(self.labels[n])
        self.fresh_block()
        if block.waits == "block":
            self.index = block.start
            self.arrive()
            self.save(self.live_in[n])
            f.store(const("i32", n), f.pointer("%warp", at.WARP_BLOCK))
            f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
            f.ret(const("i32", at.BARRIER))
        elif block.waits == "warp":
            self.index = block.start
            members = self.participants()
            together = f.icmp("eq", members, self.alive)
            if together.lanes == WARP:
                wrong = f.bin("and", f.mask_bits(f.bin("xor", together, const("i1", 1))), self.alive)
                together = f.icmp("eq", wrong, const("i32", 0))
            apart = f.new_label("apart")
            f.cond(together, self.bodies[n], apart, "likely")
            f.label(apart)
            if self.analysis.chain[n] != n:
                self.tally(n, -1)
            # masked code decides who may go on; it must not hand the warp straight back
            f.store(const("i32", 1), f.pointer("%warp", at.WARP_ENTERED))
            self.leave(self.live_in[n], const("i32", 2 * n))
        else:
            f.br(self.bodies[n])
        f.label(self.bodies[n])
        self.fresh_block()
        if self.analysis.chain[n] == n:
            self.tally(n, 1)
        self.body(block)
        self.terminate(block)

    def terminate(self, block: Block) -> None:
        """The end of a basic block."""
        f, n = self.f, block.index
        if block.kind == "exit":
            f.store(const("i32", 0), f.pointer("%warp", at.WARP_ALIVE))
            f.ret(const("i32", at.DONE))
        elif block.kind == "trap":
            self.trap(block)
        elif block.kind == "fall":
            self.jump(n, block.targets[0])
        elif block.kind == "indexed":
            self.indexed(block)
        else:
            condition = self.condition(block)
            yes, no = block.targets
            if condition.lanes == 1:
                yes_label, no_label = f.new_label("yes"), f.new_label("no")
                f.cond(condition, yes_label, no_label)
                f.label(yes_label)
                self.jump(n, yes)
                f.label(no_label)
                self.jump(n, no)
                return
            taken = f.bin("and", f.mask_bits(condition), self.alive)
            none, mixed, some, all_ = (f.new_label(s) for s in ("none", "mixed", "some", "all"))
            f.cond(f.icmp("eq", taken, const("i32", 0)), none, some)
            f.label(none)
            self.jump(n, no)
            f.label(some)
            f.cond(f.icmp("eq", taken, self.alive), all_, mixed)
            f.label(all_)
            self.jump(n, yes)
            f.label(mixed)
            self.count(self.layout.divergent, n, const("i64", 1))
            if n in self.analysis.regions:
                self.taken = taken
                self.region_start = f.new_label(f"region{n}")
                f.br(self.region_start)
            else:
                pcs = f.select(condition, self.pc_of(n, yes), self.pc_of(n, no))
                self.leave(self.live_in[yes] | self.live_in[no], pcs)

    def condition(self, block: Block) -> Value:
        """Whether the first target is taken."""
        value = self.read(block.predicate)
        return self.f.bin("xor", value, const("i1", 1)) if block.negated else value

    def jump(self, source: int, target: int) -> None:
        """A branch inside uniform code; backwards it costs budget."""
        f = self.f
        if target > source:
            f.br(self.labels[target])
            return
        blocks = self.program.blocks[target : source + 1]
        instructions = max(1, sum(b.stop - b.start for b in blocks))
        if (source, target) not in self.kernel.spins or target not in self.analysis.enterable:
            self.spend(instructions, self.labels[target], target)
            return
        rest = f.new_label("rest")  # the block's other warps go first
        self.spend(instructions, rest, target)
        f.label(rest)
        self.fresh_block()
        self.save(self.live_in[target])
        f.store(const("i32", target), f.pointer("%warp", at.WARP_BLOCK))
        f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
        f.ret(const("i32", at.YIELD))
        self.fresh_block()

    def indexed(self, block: Block) -> None:
        """brx.idx."""
        f, n = self.f, block.index
        value = f.resize(self.read(block.predicate), "i32")
        if value.lanes == WARP:
            bits = 0
            pcs = const("i32", 0)
            good = f.icmp("ult", value, const("i32", len(block.targets)))
            for k, target in enumerate(block.targets):
                bits |= self.live_in[target]
                pcs = f.select(f.icmp("eq", value, const("i32", k)), const("i32", 2 * target), pcs)
            bad = f.bin("and", f.mask_bits(f.bin("xor", good, const("i1", 1))), self.alive)
            fine, wrong = f.new_label("fine"), f.new_label("wrong")
            f.cond(f.icmp("eq", bad, const("i32", 0)), fine, wrong, "likely")
            f.label(wrong)
            lane = f.intrinsic("cttz", bad, flags=", i1 true")
            extra = f.resize(f.extract(value, lane), "i64")
            runtime.fault(f, at.BAD_INDEX, const("i32", block.stop - 1), lane, extra, const("i64", 0))
            f.br(self.fault_label)
            f.label(fine)
            first = f.intrinsic("cttz", self.alive, flags=", i1 true")
            differs = f.mask_bits(f.icmp("ne", pcs, f.spread(f.extract(f.spread(pcs), first))))
            split = f.icmp("ne", f.bin("and", differs, self.alive), const("i32", 0))
            self.count(self.layout.divergent, n, f.resize(split, "i64"))
            self.leave(bits, pcs)
            return
        wrong = f.new_label("wrong")
        labels = [(k, f.new_label("case")) for k in range(len(block.targets))]
        f.switch(value, wrong, labels)
        f.label(wrong)
        lane = f.intrinsic("cttz", self.alive, flags=", i1 true")
        runtime.fault(
            f, at.BAD_INDEX, const("i32", block.stop - 1), lane, f.resize(value, "i64"), const("i64", 0)
        )
        f.br(self.fault_label)
        for k, label in labels:
            f.label(label)
            self.jump(n, block.targets[k])

    def emit_region(self, branch: Block, region: Region) -> None:
        """The arm of a divergent branch under a mask, in place; all lanes meet at its join."""
        f, blocks = self.f, self.program.blocks
        f.label(self.region_start)
        yes, no = branch.targets
        other = f.bin("xor", self.taken, self.alive)
        masks: dict[int, str] = {n: f.variable("i32") for n in (*region.blocks, region.join)}
        for place in masks.values():
            f.store(const("i32", 0), place)
        f.store(self.taken, masks[yes])
        f.store(f.bin("or", f.load("i32", masks[no]), other), masks[no])
        self.predicated, self.full = True, False
        for n in region.blocks:
            block = blocks[n]
            self.block = block
            here = f.load("i32", masks[n])
            run, skip = f.new_label("run"), f.new_label("skip")
            f.cond(f.icmp("ne", here, const("i32", 0)), run, skip)
            f.label(run)
            self.fresh_block()
            self.mask = here
            self.count(self.layout.masked_warps, n, const("i64", 1))
            self.count(self.layout.masked_lanes, n, f.resize(f.popcount(here), "i64"))
            self.body(block)

            def send(target: int, lanes: Value) -> None:
                f.store(f.bin("or", f.load("i32", masks[target]), lanes), masks[target])

            if block.kind == "fall":
                send(block.targets[0], here)
            else:
                condition = f.bin("and", f.mask_bits(self.condition(block)), here)
                rest = f.bin("xor", condition, here)
                split = f.bin(
                    "and", f.icmp("ne", condition, const("i32", 0)), f.icmp("ne", rest, const("i32", 0))
                )
                self.count(self.layout.divergent, n, f.resize(split, "i64"))
                send(block.targets[0], condition)
                send(block.targets[1], rest)
            f.br(skip)
            f.label(skip)
        self.predicated, self.full = False, True
        self.mask = self.alive
        self.block = branch
        f.br(self.labels[region.join])


class Stepped(Uniform):
    """All living lanes together, one basic block a call: registers are in the warp state in between."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.dirty: dict[int, tuple[Register, Value]] = {}

    def load_register(self, register: Register) -> Value:
        """From its slot in the warp state."""
        f = self.f
        index, type_ = register.index, register_type(register)
        if index not in self.layout.vector_slots:
            return const(type_, 0)  # never written before it is read, in this block only
        if index in self.analysis.vectors:
            slot = f.pointer("%warp", self.layout.vector_slots[index])
            return f.mask_lanes(f.load("i32", slot)) if type_ == "i1" else f.load(type_, slot, WARP, align=64)
        slot = f.pointer("%warp", self.layout.scalar_slots[index])
        return f.cast("trunc", f.load("i8", slot), "i1") if type_ == "i1" else f.load(type_, slot)

    def write(self, register: Register, value: Value) -> None:
        """Noted, and stored at the end of the block."""
        index = register.index
        if index not in self.analysis.vectors and value.lanes == WARP:
            raise Misjudged(index)
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            self.dirty[index] = (register, value)

    def flush(self) -> None:
        """Store what the block wrote."""
        f = self.f
        for register, value in self.dirty.values():
            if register.index in self.analysis.vectors:
                self.save_lanes(register, value)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                f.store(f.resize(value, "i8") if value.type == "i1" else value, slot)
        self.dirty = {}

    def restore(self, bits: int) -> None:
        """Registers stay where they are."""

    def save(self, bits: int) -> None:
        """Registers stay where they are."""

    def leave(self, bits: int, pcs: Value) -> None:
        """Vectors are in their slots; scalars get theirs for every lane."""
        f = self.f
        table = self.scalar_table(bits)
        if table is not None:
            f.call("void", "to_lanes", "ptr %warp", *table)
        f.store(f.spread(pcs), f.pointer("%warp", at.WARP_PCS), align=64)
        f.store(const("i32", -1), f.pointer("%warp", at.WARP_BLOCK))
        if pcs.lanes == 1:
            f.ret(const("i32", at.SWITCH))  # at the same block still
            return
        alive = f.select(f.mask_lanes(self.alive), pcs, const("i32", at.NEVER))
        f.store(f.bin("lshr", f.reduce("umin", alive), const("i32", 1)), f.pointer("%warp", at.WARP_NEXT))
        f.ret(const("i32", at.YIELD))

    def terminate(self, block: Block) -> None:
        """Registers first: the function may return."""
        self.flush()
        super().terminate(block)

    def jump(self, source: int, target: int) -> None:
        """Back to the driver, unless no other warp can notice that its turn comes later."""
        f = self.f
        if target <= source:
            go = f.new_label("go")
            blocks = self.program.blocks[target : source + 1]
            self.spend(max(1, sum(b.stop - b.start for b in blocks)), go, target)
            f.label(go)
        elif self.kernel.follows[target]:
            f.br(self.labels[target])  # no other warp can notice that its turn comes later
            return
        f.store(const("i32", target), f.pointer("%warp", at.WARP_BLOCK))
        following = f.bin(
            "lshr", self.pc_of(source, target), const("i32", 1)
        )  # later than all that do not spin
        f.store(following, f.pointer("%warp", at.WARP_NEXT))
        f.ret(const("i32", at.YIELD))
