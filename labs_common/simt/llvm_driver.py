"""The driver in machine code: takes blocks, runs their warps from barrier to barrier, and keeps budgets.

`text` is the IR of everything that is the same for all kernels; it is compiled once.
"""

from __future__ import annotations

from . import llvm_copies
from . import llvm_layout as at
from .llvm_layout import CTX
from .llvm_meet import DECLARATIONS as MEETING
from .llvm_meet import gather, to_lanes, to_scalars
from .llvm_races import race_lanes, race_run
from .llvm_runtime import Function, access, count_atomic, place, resolve, sectors, wavefronts
from .llvm_text import Module, Value


def refill(module: Module) -> None:
    """i32 refill(ctx, warp): 0 go on with another chunk of the warp's budget, else STOP or BUDGET."""
    f = Function(module, "refill", "i32", [("ptr", "ctx"), ("ptr", "warp")], internal=False, noinline=True)
    f.begin()
    stop = f.load("i32", f.ctx_pointer("stop"), volatile=True)
    after = f.start_if(f.icmp("ne", stop, f.i32(0)))
    f.ret(f.i32(at.STOP))
    f.label(after)
    left = f.field("i64", "%warp", at.WARP_BUDGET)
    after = f.start_if(f.icmp("sle", left, f.i64(0)))
    f.ret(f.i32(at.BUDGET))
    f.label(after)
    chunk = f.intrinsic("smin", left, f.i64(at.CHUNK))
    f.store(f.bin("sub", left, chunk), f.pointer("%warp", at.WARP_BUDGET))
    f.add_to("%warp", at.WARP_CHUNK, chunk)
    f.ret(f.i32(0))
    f.finish()


def driver(module: Module, stepped: bool) -> None:
    """i32 run(ctx, resume): takes blocks until none is left; 0, or FAULT, STOP, BUDGET, STALL, SWAP.

    run_stepped is for stepped code, which comes back after each basic block: the warps at the lowest block go
    first, so that the block's lanes run in the order of the NumPy engine.

    A stalled block (a barrier that not simply every thread of the block reached, all warps converged) is left
    to the caller, who may change warp states and call again with resume = 1.
    """
    name = "run_stepped" if stepped else "run"
    f = Function(module, name, "i32", [("ptr", "ctx"), ("i32", "resume")], internal=False)
    f.begin()
    warps = f.ctx("warps_per_block")
    stride = f.ctx("warp_stride")
    base = f.ctx_pointer("warps")
    w = f.variable("i64")
    take, claimed, begin_block, init_loop, init, sweep = (
        f.new_label(s) for s in ("take", "claimed", "begin", "init_loop", "init", "sweep")
    )
    finished, step, run_warp, settled, next_warp, decide, release = (
        f.new_label(s) for s in ("finished", "step", "run_warp", "settled", "next_warp", "decide", "release")
    )
    waiting = f.variable("i64", f.i64(0))  # converged warps at a plain barrier
    ended = f.variable("i64", f.i64(0))
    number, place_variable = f.variable("i32"), f.variable("i32")
    mixed = f.variable("i32", f.i32(0))
    resting = f.variable("i32", f.i32(0))  # whether a warp that spins let the others go first
    f.cond(f.icmp("ne", Value("%resume", "i32"), f.i32(0)), sweep, take)

    f.label(take)
    swap, claim = f.new_label("swap"), f.new_label("claim")
    wanted = f.load("i64", f.pointer("%ctx", CTX["swap"]), volatile=True)
    f.cond(f.icmp("ne", wanted, f.i64(0)), swap, claim, "unlikely")
    f.label(swap)
    f.ret(f.i32(at.SWAP))
    f.label(claim)
    mine = f.emit(f"atomicrmw add ptr {f.ctx_pointer('next_block')}, i64 1 seq_cst", "i64")
    total = f.ctx("block_count")
    out = f.new_label("out")
    f.cond(f.icmp("ult", mine, total), claimed, out)
    f.label(out)
    f.ret(f.i32(0))
    f.label(claimed)
    lowest = f.load("i64", f.ctx_pointer("fault_block"), volatile=True)
    stop = f.load("i32", f.ctx_pointer("stop"), volatile=True)
    f.cond(f.bin("or", f.icmp("ult", lowest, mine), f.icmp("ne", stop, f.i32(0))), out, begin_block)
    f.label(begin_block)
    listed = f.ctx_pointer("block_list")
    block_label, list_label, id_label = f.new_label("id"), f.new_label("list"), f.label_name
    f.cond(f.icmp("eq", Value(listed, "ptr"), Value("null", "ptr")), block_label, list_label)
    f.label(list_label)
    from_list = f.load("i64", f.pointer(listed, f.bin("mul", mine, f.i64(8))))
    f.br(block_label)
    f.label(block_label)
    block = f.phi([(mine, id_label), (from_list, list_label)])
    f.store(block, f.pointer("%ctx", CTX["block"]))
    f.store(mine, f.pointer("%ctx", CTX["order"]))
    gx, gy = f.ctx("nctaid_x"), f.ctx("nctaid_y")
    f.store(f.bin("urem", block, gx), f.pointer("%ctx", CTX["ctaid_x"]))
    rest = f.bin("udiv", block, gx)
    f.store(f.bin("urem", rest, gy), f.pointer("%ctx", CTX["ctaid_y"]))
    f.store(f.bin("udiv", rest, gy), f.pointer("%ctx", CTX["ctaid_z"]))
    shared_size = f.ctx("shared_size")
    words = f.bin("lshr", f.bin("add", shared_size, f.i64(3)), f.i64(2))
    module.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.line(f"call void @llvm.memset.p0.i64(ptr {f.ctx_pointer('shared_flags')}, i8 0, {words}, i1 false)")
    # what a kernel reads without having written it must not depend on the block that ran before
    f.line(f"call void @llvm.memset.p0.i64(ptr {f.ctx_pointer('shared')}, i8 0, {shared_size}, i1 false)")
    f.line(
        f"call void @llvm.memset.p0.i64(ptr {f.ctx_pointer('local')}, i8 0, {f.ctx('local_total')}, i1 false)"
    )
    if stepped:
        new_epoch(f)
    f.store(f.i64(0), w)
    f.br(init_loop)
    f.label(init_loop)
    k = f.load("i64", w)
    f.cond(f.icmp("ult", k, warps), init, sweep)
    f.label(init)
    warp = f.pointer(base, f.bin("mul", k, stride))
    f.store(f.i32(0), f.pointer(warp, at.WARP_BLOCK))
    f.store(f.field("i32", warp, at.WARP_FIRST), f.pointer(warp, at.WARP_ALIVE))
    f.store(f.i32(at.STATUS_READY), f.pointer(warp, at.WARP_STATUS))
    f.store(f.i32(0), f.pointer(warp, at.WARP_ENTERED))
    f.store(f.i32(0), f.pointer(warp, at.WARP_NEXT))
    f.store(f.ctx("budget"), f.pointer(warp, at.WARP_BUDGET))
    f.store(f.i64(0), f.pointer(warp, at.WARP_CHUNK))
    llvm_copies.forget(f, k)
    slots = f.pointer(warp, at.WARP_SLOTS)
    f.line(f"call void @llvm.memset.p0.i64(ptr {slots}, i8 0, {f.ctx('slots_bytes')}, i1 false)")
    f.store(f.bin("add", k, f.i64(1)), w)
    f.br(init_loop)

    def run_one(warp: str, yielded: str, over: str) -> None:
        """Run a warp until it yields, ends or waits."""
        again, after_run = f.new_label("again"), f.new_label("after_run")
        uniform, masked = f.new_label("uniform"), f.new_label("masked")
        f.br(again)
        f.label(again)
        form = f.field("i32", warp, at.WARP_BLOCK)
        f.cond(f.icmp("sge", form, f.i32(0)), uniform, masked)
        f.label(uniform)
        code_u = f.emit(f"call i32 {f.ctx_pointer('uniform')}(ptr %ctx, ptr {warp})", "i32")
        f.br(after_run)
        f.label(masked)
        code_m = f.emit(f"call i32 {f.ctx_pointer('masked')}(ptr %ctx, ptr {warp})", "i32")
        f.br(after_run)
        f.label(after_run)
        code = f.phi([(code_u, uniform), (code_m, masked)])
        ended_label, parked_label, leave = f.new_label("ended"), f.new_label("parked"), f.new_label("leave")
        cases = [(at.SWITCH, again), (at.DONE, ended_label), (at.BARRIER, parked_label), (at.YIELD, yielded)]
        f.switch(code, leave, cases)
        f.label(leave)
        f.ret(code)
        f.label(ended_label)
        f.store(f.i32(at.STATUS_DONE), f.pointer(warp, at.WARP_STATUS))
        f.br(over)
        f.label(parked_label)
        f.store(f.i32(at.STATUS_BARRIER), f.pointer(warp, at.WARP_STATUS))
        f.br(over)

    f.label(sweep)
    if stepped:
        lowest_first(f, base, warps, stride, w, run_one, sweep)
    f.store(f.i64(0), w)
    f.store(f.i64(0), waiting)
    f.store(f.i64(0), ended)
    f.store(f.i32(0), mixed)
    f.store(f.i32(0), resting)
    f.br(step)
    f.label(step)
    k = f.load("i64", w)
    f.cond(f.icmp("ult", k, warps), run_warp, decide)
    f.label(run_warp)
    warp = f.pointer(base, f.bin("mul", k, stride))
    if stepped:
        f.br(settled)
    else:
        go = f.new_label("go")
        status = f.field("i32", warp, at.WARP_STATUS)
        f.cond(f.icmp("eq", status, f.i32(at.STATUS_READY)), go, settled)
        f.label(go)
        run_one(warp, settled, settled)

    f.label(settled)
    status = f.field("i32", warp, at.WARP_STATUS)
    is_done, is_waiting = f.new_label("is_done"), f.new_label("is_waiting")
    parked, ready = f.new_label("parked"), f.new_label("ready")
    f.cond(f.icmp("eq", status, f.i32(at.STATUS_DONE)), is_done, parked)
    f.label(parked)
    f.cond(f.icmp("eq", status, f.i32(at.STATUS_READY)), ready, is_waiting)
    f.label(ready)
    f.store(f.i32(1), resting)
    f.br(next_warp)
    f.label(is_done)
    f.store(f.bin("add", f.load("i64", ended), f.i64(1)), ended)
    f.br(next_warp)
    f.label(is_waiting)
    # lane 0 speaks for a converged warp that has all its threads
    plain = f.bin(
        "and",
        f.icmp("sge", f.field("i32", warp, at.WARP_BLOCK), f.i32(0)),
        f.icmp("eq", f.field("i32", warp, at.WARP_ALIVE), f.field("i32", warp, at.WARP_FIRST)),
    )
    plain = f.bin("and", plain, f.icmp("eq", f.field("i32", warp, at.WARP_COUNT), f.i32(0)))
    mine_number = f.field("i32", warp, at.WARP_BARRIER)
    first = f.icmp("eq", f.load("i64", waiting), f.i64(0))
    number_before = f.select(first, mine_number, f.load("i32", number))
    plain = f.bin("and", plain, f.icmp("eq", number_before, mine_number))
    f.store(mine_number, number)
    mine_place = f.field("i32", warp, at.WARP_BLOCK)
    place_before = f.select(first, mine_place, f.load("i32", place_variable))
    plain = f.bin("and", plain, f.icmp("eq", place_before, mine_place))
    f.store(mine_place, place_variable)
    odd = f.select(plain, f.i32(0), f.i32(1))
    f.store(f.bin("or", f.load("i32", mixed), odd), mixed)
    f.store(f.bin("add", f.load("i64", waiting), f.i64(1)), waiting)
    f.br(next_warp)
    f.label(next_warp)
    f.store(f.bin("add", k, f.i64(1)), w)
    f.br(step)

    f.label(decide)
    settle = f.new_label("settle")
    f.cond(f.icmp("ne", f.load("i32", resting), f.i32(0)), sweep, settle)
    f.label(settle)
    f.cond(f.icmp("eq", f.load("i64", ended), warps), finished, release)
    f.label(finished)
    f.line(f"{f.fresh()} = atomicrmw add ptr {f.ctx_pointer('done')}, i64 1 seq_cst")
    f.br(take)
    f.label(release)
    simple = f.bin(
        "and",
        f.icmp("eq", f.load("i64", waiting), warps),
        f.icmp("eq", f.load("i32", mixed), f.i32(0)),
    )
    open_label, stall = f.new_label("open"), f.new_label("stall")
    f.cond(simple, open_label, stall)
    f.label(stall)
    f.ret(f.i32(at.STALL))
    f.label(open_label)
    if stepped:
        new_epoch(f)
    f.store(f.i64(0), w)
    open_loop, open_one = f.new_label("open_loop"), f.new_label("open_one")
    f.br(open_loop)
    f.label(open_loop)
    k = f.load("i64", w)
    f.cond(f.icmp("ult", k, warps), open_one, sweep)
    f.label(open_one)
    warp = f.pointer(base, f.bin("mul", k, stride))
    f.store(f.i32(at.STATUS_READY), f.pointer(warp, at.WARP_STATUS))
    f.store(f.i32(1), f.pointer(warp, at.WARP_ENTERED))
    f.store(f.bin("add", k, f.i64(1)), w)
    f.br(open_loop)
    f.finish()


def lowest_first(f: Function, base: str, warps: Value, stride: Value, w: str, run_one, sweep: str) -> None:
    """One step of every ready warp that is at the lowest basic block; falls through where none is ready."""
    lowest = f.variable("i32")
    f.store(f.i32(at.NEVER), lowest)
    f.store(f.i64(0), w)
    look, look_at, looked = f.new_label("look"), f.new_label("look_at"), f.new_label("looked")
    f.br(look)
    f.label(look)
    k = f.load("i64", w)
    f.cond(f.icmp("ult", k, warps), look_at, looked)
    f.label(look_at)
    warp = f.pointer(base, f.bin("mul", k, stride))
    ready = f.icmp("eq", f.field("i32", warp, at.WARP_STATUS), f.i32(at.STATUS_READY))
    following = f.select(ready, f.field("i32", warp, at.WARP_NEXT), f.i32(at.NEVER))
    f.store(f.intrinsic("smin", following, f.load("i32", lowest)), lowest)
    f.store(f.bin("add", k, f.i64(1)), w)
    f.br(look)
    f.label(looked)
    here = f.load("i32", lowest)
    turn, turn_at, take, passed, settle = (
        f.new_label(s) for s in ("turn", "turn_at", "take", "passed", "settle")
    )
    f.store(f.i64(0), w)
    f.cond(f.icmp("eq", here, f.i32(at.NEVER)), settle, turn)
    f.label(turn)
    k = f.load("i64", w)
    f.cond(f.icmp("ult", k, warps), turn_at, sweep)
    f.label(turn_at)
    warp = f.pointer(base, f.bin("mul", k, stride))
    ready = f.icmp("eq", f.field("i32", warp, at.WARP_STATUS), f.i32(at.STATUS_READY))
    f.cond(f.bin("and", ready, f.icmp("eq", f.field("i32", warp, at.WARP_NEXT), here)), take, passed)
    f.label(take)
    run_one(warp, passed, passed)
    f.label(passed)
    f.store(f.bin("add", k, f.i64(1)), w)
    f.br(turn)
    f.label(settle)


def new_epoch(f: Function) -> None:
    """The time between two barriers of a block; tags are cleared before their numbers run out."""
    following = f.bin("add", f.ctx("epoch"), f.i64(1))
    f.store(following, f.pointer("%ctx", CTX["epoch"]))
    full = f.bin(
        "and", f.icmp("uge", following, f.i64(at.RACE_EPOCHS)), f.icmp("ne", f.ctx("race"), f.i64(0))
    )
    after = f.start_if(full, "unlikely")
    size = f.bin("mul", f.ctx("race_words"), f.i64(4 * at.RACE_ARRAYS))
    f.line(f"call void @llvm.memset.p0.i64(ptr {f.ctx_pointer('race')}, i8 0, {size}, i1 false)")
    f.store(f.i64(1), f.pointer("%ctx", CTX["epoch"]))
    f.end_if(after)


DECLARATIONS = (
    "declare i1 @place(ptr, ptr, ptr, i64, i32, i32, i32, i64, i32, i64, ptr, ptr)",
    "declare i1 @access(ptr, ptr, i32, i64, i32, i32, i64, i32)",
    "declare void @count_atomic(ptr, ptr, i32, i64, i32, i32, i32, i64)",
    "declare void @race_run(ptr, ptr, i32, i32, i64, i64, i32, i32, i32)",
    "declare i32 @refill(ptr, ptr)",
    *llvm_copies.DECLARATIONS,
    *MEETING,
)


def text(triple: str, attributes: str) -> str:
    """The IR of everything in this module."""
    module = Module()
    for part in (resolve, wavefronts, sectors, race_run, race_lanes, place, access, count_atomic, refill):
        part(module)
    for part in (to_scalars, to_lanes, gather, *llvm_copies.FUNCTIONS):
        part(module)
    for stepped in (False, True):
        driver(module, stepped)
    return module.text(triple, attributes)
