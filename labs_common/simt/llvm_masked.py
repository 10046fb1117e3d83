"""Control flow of masked code: lanes of a warp at several basic blocks, the lowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import llvm_layout as at
from . import llvm_runtime as runtime
from .llvm_code import FALSE, TRUE, register_type
from .llvm_meet import MEMBERS
from .llvm_text import WARP, Value, const
from .llvm_warp import Code
from .parse import Register
from .program import Block

if TYPE_CHECKING:
    from .llvm_emit import Kernel


class Masked(Code):
    """Lanes at several blocks, the lowest first."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "masked", "i32", [("ptr", "ctx"), ("ptr", "warp")])
        self.block: Block | None = None
        self.dirty: dict[int, tuple[Register, Value]] = {}

    def load_register(self, register: Register) -> Value:
        """From its slot in the warp state."""
        f = self.f
        offset = self.layout.vector_slots.get(register.index)
        type_ = register_type(register)
        if offset is None:  # never written before it is read, in this block only
            return const(type_, 0)
        slot = f.pointer("%warp", offset)
        if type_ == "i1":
            return f.mask_lanes(f.load("i32", slot))
        return f.load(type_, slot, WARP, align=64)

    def write(self, register: Register, value: Value) -> None:
        """Noted, and stored at the end of the block for its lanes."""
        index = register.index
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            self.dirty[index] = (register, value)

    def flush(self) -> None:
        """Store what the block wrote, for its lanes only."""
        f = self.f
        for register, value in self.dirty.values():
            slot = f.pointer("%warp", self.layout.vector_slots[register.index])
            if value.type == "i1":
                before = f.load("i32", slot)
                kept = f.bin("and", before, f.bin("xor", self.mask, const("i32", -1)))
                f.store(f.bin("or", kept, f.bin("and", f.mask_bits(value), self.mask)), slot)
            else:
                before = f.load(value.type, slot, WARP, align=64)
                f.store(f.select(self.mask_vector, f.spread(value), before), slot, align=64)
        self.dirty = {}

    def function(self) -> None:
        """Write the whole function."""
        f, program, analysis = self.f, self.program, self.analysis
        self.begin_function()
        self.fault_label = f.new_label("fault")
        schedule, look, pick = f.new_label("schedule"), f.new_label("look"), f.new_label("pick")
        stuck, parked, dead = f.new_label("stuck"), f.new_label("parked"), f.new_label("dead")
        done, met, run = f.new_label("done"), f.new_label("met"), f.new_label("run")
        self.schedule = self.after_block = schedule
        if self.kernel.stepped:
            self.after_block = f.new_label("after_block")
        mask_place, pc_place = f.variable("i32"), f.variable("i32")
        self.labels = [f.new_label(f"block{b.index}") for b in program.blocks]
        f.br(schedule)
        f.label(self.fault_label)
        f.ret(const("i32", at.FAULT))
        if self.kernel.stepped:
            self.give_turn()
        f.label(schedule)
        self.spend(0, look, -1)
        f.label(look)
        alive = f.field("i32", "%warp", at.WARP_ALIVE)
        pcs = f.select(
            f.mask_lanes(alive),
            f.load("i32", f.pointer("%warp", at.WARP_PCS), WARP, align=64),
            const("i32", at.NEVER),
        )
        lowest = f.reduce("umin", pcs)
        if self.kernel.spins:
            self.spun(pcs, lowest, look)
        f.cond(f.icmp("ult", lowest, const("i32", at.WAIT)), pick, stuck)
        f.label(stuck)
        f.cond(f.icmp("eq", lowest, const("i32", at.NEVER)), done, parked)
        f.label(done)
        f.ret(const("i32", at.DONE))
        f.label(parked)
        waiting = f.new_label("waiting")
        f.cond(f.icmp("ult", lowest, const("i32", at.PARK)), dead, waiting)
        f.label(waiting)
        f.ret(const("i32", at.BARRIER))
        f.label(dead)
        self.deadlock(pcs, alive)
        f.label(pick)
        same = f.bin("and", f.mask_bits(f.icmp("eq", pcs, f.spread(lowest))), alive)
        f.store(same, mask_place)
        f.store(lowest, pc_place)
        number = f.bin("lshr", lowest, const("i32", 1))
        f.cond(f.icmp("eq", same, alive), met, run)
        f.label(met)
        entered, may = f.field("i32", "%warp", at.WARP_ENTERED), f.new_label("may")
        f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
        f.cond(f.icmp("eq", entered, const("i32", 0)), may, run)
        f.label(may)
        entries = {n: f.new_label(f"meet{n}") for n in analysis.enterable}
        f.switch(number, run, list(entries.items()))
        f.label(run)
        none = f.new_label("none")
        f.switch(number, none, [(b.index, self.labels[b.index]) for b in program.blocks])
        f.label(none)
        f.ret(const("i32", at.FAULT))
        for n, label in entries.items():
            f.label(label)
            self.fresh_block()
            self.meet(n, alive, f.load("i32", pc_place), run)
        for block in program.blocks:
            self.block = block
            f.label(self.labels[block.index])
            self.fresh_block()
            self.mask = f.load("i32", mask_place)
            self.emit_block(block, f.load("i32", pc_place))
        f.finish()

    def spun(self, pcs: Value, lowest: Value, look: str) -> None:
        """Where the lanes that could run all spin: they look again, after the block's other warps."""
        f = self.f
        resting, others = f.new_label("resting"), f.new_label("others")
        spinning = f.bin(
            "and",
            f.icmp("uge", lowest, const("i32", at.SPIN)),
            f.icmp("ult", lowest, const("i32", at.WAIT)),
        )
        f.cond(spinning, resting, others, "unlikely")
        f.label(resting)
        runnable = f.icmp("ult", pcs, f.spread(const("i32", at.WAIT)))
        place = f.pointer("%warp", at.WARP_PCS)
        before = f.load("i32", place, WARP, align=64)
        awake = f.bin("and", before, f.spread(const("i32", ~at.SPIN)))
        f.store(f.select(runnable, awake, before), place, align=64)
        if self.kernel.stepped:  # the driver has let the others go first
            f.br(look)
        else:
            f.ret(const("i32", at.YIELD))
        f.label(others)

    def give_turn(self) -> None:
        """Stepped: after each block the driver decides which warp goes on."""
        f = self.f
        f.label(self.after_block)
        alive = f.field("i32", "%warp", at.WARP_ALIVE)
        pcs = f.load("i32", f.pointer("%warp", at.WARP_PCS), WARP, align=64)
        lowest = f.reduce("umin", f.select(f.mask_lanes(alive), pcs, const("i32", at.NEVER)))
        f.store(f.bin("lshr", lowest, const("i32", 1)), f.pointer("%warp", at.WARP_NEXT))
        runnable = f.new_label("runnable")
        f.cond(f.icmp("ult", lowest, const("i32", at.WAIT)), runnable, self.schedule)
        f.label(runnable)
        f.ret(const("i32", at.YIELD))

    def meet(self, n: int, alive: Value, pc: Value, run: str) -> None:
        """All living lanes are at block n: go back to uniform code if its scalars are equal in all lanes."""
        f = self.f
        table = self.scalar_table(self.live_in[n])
        if table is not None:
            go = f.new_label("go")
            f.cond(f.call("i1", "to_scalars", "ptr %warp", *table, str(alive)), go, run)
            f.label(go)
        f.store(const("i32", n), f.pointer("%warp", at.WARP_BLOCK))
        f.store(f.bin("and", pc, const("i32", 1)), f.pointer("%warp", at.WARP_ENTERED))
        f.ret(const("i32", at.SWITCH))

    def deadlock(self, pcs: Value, alive: Value) -> None:
        """No lane can run and some wait for lanes of their warp.

        bar.warp.sync meets at any of its places, so lanes at several of them may be complete. Otherwise lanes
        at a block barrier may be let go by other warps; if there are none, the named lanes never come.
        """
        f = self.f
        waits = f.bin(
            "and", f.icmp("uge", pcs, const("i32", at.WAIT)), f.icmp("ult", pcs, const("i32", at.PARK))
        )
        bare = f.bin("and", pcs, const("i32", at.WAIT - 1))
        at_barrier = FALSE
        for block in self.program.blocks:
            if block.waits == "warp" and self.program.instructions[block.start].opcode == "bar":
                at_barrier = f.bin("or", at_barrier, f.icmp("eq", bare, const("i32", 2 * block.index)))
        here_vector = f.bin("and", waits, at_barrier)
        here = f.bin("and", f.mask_bits(here_vector), alive)
        members = f.load("i32", f.pointer("%warp", at.WARP_COUNT), WARP, align=64)
        absent = f.bin("and", members, f.spread(f.bin("and", alive, f.bin("xor", here, const("i32", -1)))))
        ready = f.bin("and", f.mask_bits(f.icmp("eq", absent, const("i32", 0))), here)
        free, none, stay, faulty = (f.new_label(s) for s in ("free", "none", "stay", "faulty"))
        f.cond(f.icmp("ne", ready, const("i32", 0)), free, none)
        f.label(free)
        self.set_pcs(f.bin("or", bare, const("i32", 1)), f.mask_lanes(ready))
        f.br(self.after_block)
        f.label(none)
        parked = f.bin("and", f.mask_bits(f.icmp("uge", pcs, const("i32", at.PARK))), alive)
        f.cond(f.icmp("ne", parked, const("i32", 0)), stay, faulty)
        f.label(stay)
        f.ret(const("i32", at.BARRIER))
        f.label(faulty)
        # the lowest block counts, and of its lanes the first (one that names a lane that has exited, if any)
        lowest = f.reduce("umin", f.select(f.mask_lanes(alive), pcs, const("i32", at.NEVER)))
        at_lowest = f.bin("and", f.mask_bits(f.icmp("eq", pcs, f.spread(lowest))), alive)
        block = f.bin("lshr", f.bin("and", lowest, const("i32", at.WAIT - 1)), const("i32", 1))
        gone = f.bin("and", members, f.spread(f.bin("xor", alive, const("i32", -1))))
        names_exited = f.bin("and", f.icmp("ne", gone, const("i32", 0)), f.bin("xor", at_barrier, TRUE))
        exited = f.bin("and", f.mask_bits(names_exited), at_lowest)
        some = f.icmp("ne", exited, const("i32", 0))
        lane = f.intrinsic("cttz", f.select(some, exited, at_lowest), flags=", i1 true")
        # the engine knows the block's first instruction
        here = f.select(some, const("i32", 0), at_lowest)
        block = f.resize(block, "i64")
        runtime.fault(f, at.MASK_ABSENT, const("i32", -1), lane, f.resize(here, "i64"), block)
        f.ret(const("i32", at.FAULT))

    def set_pcs(self, value: Value, mask_vector: Value) -> None:
        """Give some lanes a new pc."""
        f = self.f
        place = f.pointer("%warp", at.WARP_PCS)
        f.store(f.select(mask_vector, f.spread(value), f.load("i32", place, WARP, align=64)), place, align=64)

    def emit_block(self, block: Block, pc: Value) -> None:
        """One basic block for the lanes of the mask."""
        f, n = self.f, block.index
        if block.waits == "block":
            self.index = block.start
            run, park = f.new_label("run"), f.new_label("park")
            f.cond(f.icmp("ne", f.bin("and", pc, const("i32", 1)), const("i32", 0)), run, park)
            f.label(park)
            self.fresh_block()
            self.arrive()
            self.set_pcs(f.bin("or", pc, const("i32", at.PARK)), self.mask_vector)
            f.br(self.after_block)
            f.label(run)
            self.fresh_block()
        elif block.waits == "warp":
            self.gather(block, pc)
        self.count(self.layout.masked_warps, n, const("i64", 1))
        self.count(self.layout.masked_lanes, n, f.resize(f.popcount(self.mask), "i64"))
        place = f.pointer("%warp", at.WARP_CHUNK)
        f.store(f.bin("sub", f.load("i64", place), const("i64", max(1, block.stop - block.start))), place)
        self.body(block)
        self.flush()
        mask_vector = self.mask_vector
        if block.kind == "exit":
            alive = f.field("i32", "%warp", at.WARP_ALIVE)
            left = f.bin("and", alive, f.bin("xor", self.mask, const("i32", -1)))
            f.store(left, f.pointer("%warp", at.WARP_ALIVE))
        elif block.kind == "trap":
            self.trap(block)
            return
        elif block.kind == "fall":
            self.set_pcs(self.pc_of(n, block.targets[0]), mask_vector)
        elif block.kind == "branch":
            condition = self.read(block.predicate)
            if block.negated:
                condition = f.bin("xor", condition, const("i1", 1))
            taken = f.bin("and", f.mask_bits(condition), self.mask)
            split = f.bin("and", f.icmp("ne", taken, const("i32", 0)), f.icmp("ne", taken, self.mask))
            self.count(self.layout.divergent, n, f.resize(split, "i64"))
            yes, no = block.targets
            pcs = f.select(f.spread(condition), self.pc_of(n, yes), self.pc_of(n, no))
            self.set_pcs(pcs, mask_vector)
        else:
            self.indexed(block, mask_vector)
        f.br(self.after_block)

    def indexed(self, block: Block, mask_vector: Value) -> None:
        """brx.idx: each lane goes to its own target."""
        f = self.f
        value = f.spread(f.resize(self.read(block.predicate), "i32"))
        pcs = const("i32", 0)
        for k, target in enumerate(block.targets):
            pcs = f.select(f.icmp("eq", value, const("i32", k)), const("i32", 2 * target), pcs)
        beyond = f.icmp("uge", value, const("i32", len(block.targets)))
        bad = f.bin("and", f.mask_bits(beyond), self.mask)
        fine, wrong = f.new_label("fine"), f.new_label("wrong")
        f.cond(f.icmp("eq", bad, const("i32", 0)), fine, wrong, "likely")
        f.label(wrong)
        lane = f.intrinsic("cttz", bad, flags=", i1 true")
        extra = f.resize(f.extract(value, lane), "i64")
        runtime.fault(f, at.BAD_INDEX, const("i32", block.stop - 1), lane, extra, const("i64", 0))
        f.br(self.fault_label)
        f.label(fine)
        first = f.intrinsic("cttz", self.mask, flags=", i1 true")
        differs = f.mask_bits(f.icmp("ne", f.spread(pcs), f.spread(f.extract(f.spread(pcs), first))))
        split = f.icmp("ne", f.bin("and", differs, self.mask), const("i32", 0))
        self.count(self.layout.divergent, block.index, f.resize(split, "i64"))
        self.set_pcs(pcs, mask_vector)

    def gather(self, block: Block, pc: Value) -> None:
        """Run for the lanes whose members have all come; the others wait."""
        f, n = self.f, block.index
        check, go = f.new_label("check"), f.new_label("go")
        place = f.variable("i32")
        f.store(self.mask, place)
        f.cond(f.icmp("ne", f.bin("and", pc, const("i32", 1)), const("i32", 0)), go, check)
        f.label(check)
        self.index = block.start
        f.store(f.spread(self.participants()), f.pointer("%ctx", MEMBERS), align=64)
        ready = f.call(
            "i64", "gather", "ptr %ctx", "ptr %warp", f"i32 {self.index}", f"i32 {2 * n | at.WAIT}",
            str(self.mask), "i1 true" if self.instruction.opcode == "bar" else "i1 false",
        )  # fmt: skip
        f.store(f.resize(ready, "i32"), place)
        f.switch(ready, go, [(0, self.after_block), (-1, self.fault_label)])
        f.label(go)
        self.fresh_block()
        self.mask = f.load("i32", place)
