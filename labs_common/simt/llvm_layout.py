"""Where compiled code finds its state: byte offsets shared by the code generator and the engine.

A worker thread owns one *context*, its counters, its access cache, its sector maps, one block's shared and
local memory, and one *warp state* for each warp of a block. Workers share the block counter, the stop word
and the lowest faulty block, reached through pointers in the context.
"""

from __future__ import annotations

# ---- context: 8-byte fields
_FIELDS = (
    "params", "counters", "cache", "table", "table_count", "warps", "warp_stride", "shared",
    "shared_size", "shared_flags", "local", "local_bytes", "local_total", "stop", "budget", "constants",
    "symbols", "ntid_x", "ntid_y", "ntid_z", "nctaid_x", "nctaid_y", "nctaid_z", "ctaid_x", "ctaid_y",
    "ctaid_z", "block", "threads", "warps_per_block", "next_block", "block_count", "block_list",
    "fault_block", "done", "fault", "fault_instruction", "fault_lane", "fault_address", "fault_warp",
    "fault_extra", "clock", "shared_window", "local_window", "param_window", "param_bytes", "host",
    "call", "track_shared", "track_global", "notes", "order", "fault_mask", "swap", "access_counters",
    "slots_bytes", "uniform", "masked", "epoch", "race", "race_words", "race_seen", "race_shift", "report",
    "copies",
)  # fmt: skip
CTX = {name: 8 * k for k, name in enumerate(_FIELDS)}
SCRATCH_ADDRESSES = 1024  # 32 x i64
SCRATCH_DATA = 2048  # 32 lanes x 32 bytes
SCRATCH_MORE = 4096  # 32 lanes x 32 bytes, second operand of atomics
CTX_BYTES = 8192

# ---- access cache: one entry for each memory instruction
CACHE_BASE, CACHE_ONE, CACHE_FULL, CACHE_DELTA, CACHE_SECTORS, CACHE_TRACK, CACHE_SIMPLE, CACHE_READ = range(
    0, 64, 8
)
CACHE_BYTES = 64

# ---- allocation table, sorted by base
TABLE_BASE, TABLE_SIZE, TABLE_HOST, TABLE_READ, TABLE_WRITTEN, TABLE_TRACK, TABLE_READONLY = range(0, 56, 8)
TABLE_BYTES = 64

# ---- warp state
WARP_BLOCK = 0  # i32: uniform form: the block every lane enters next; -1: masked form, see WARP_PCS
WARP_ALIVE = 4  # i32: lanes that have not exited
WARP_STATUS = 8  # i32: see STATUS_*
WARP_ENTERED = 12  # i32: 1 where the barrier or shuffle at the head of WARP_BLOCK has been passed
WARP_INDEX = 16  # i64: number of the warp in its block
WARP_FIRST = 24  # i32: lanes that exist
WARP_BUDGET = 32  # i64: instructions that the warp may still take
WARP_CHUNK = 40  # i64: of those it has taken and not yet used
WARP_VOTES = 48  # i32: predicates that its lanes brought to a barrier with reduction
WARP_RESULT = 52  # i32: what that barrier gives
WARP_NEXT = 56  # i32: in stepped code, the block that the warp's lowest lane enters next
WARP_SYNC = 60  # i32: bar.warp.sync executed, counted in stepped code
WARP_BARRIER = 64  # 32 x i32: barrier number that each lane waits at
WARP_COUNT = 192  # 32 x i32: thread count that the barrier was given, 0: all threads of the block
WARP_PCS = 320  # 32 x i32: 2 * block + (1: its barrier has been passed) + SPIN, WAIT or PARK
WARP_TID = 448  # 3 x 32 x i32: tid.x, tid.y, tid.z
WARP_SLOTS = 896  # registers that live across blocks

STATUS_READY, STATUS_DONE, STATUS_BARRIER = 0, 1, 2
PARK = 1 << 30  # waits at a block barrier
WAIT = 1 << 29  # waits for lanes of its warp
SPIN = 1 << 28  # lets all others go first: see spins.py
NEVER = 0x7FFFFFFF  # the pc of a lane that has exited

# ---- what a warp function returns
DONE, BARRIER, SWITCH, FAULT, STOP, BUDGET, STALL, SWAP, YIELD = range(9)

# ---- fault kinds
(
    OUT_OF_BOUNDS,
    MISALIGNED,
    UNWRITTEN_SHARED,
    UNWRITTEN_GLOBAL,
    MASK_EXITED,
    MASK_ABSENT,
    TRAPPED,
    BAD_INDEX,
    NOT_IN_MASK,
    COPY_TARGET,
) = range(1, 11)

SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_GENERIC, SPACE_PARAM, SPACE_CONST = range(6)
# ---- race state of shared memory: arrays of i32, one element for each piece that racecheck tells apart
# A tag is epoch << 5 | warp, an info instruction << 5 | lane (of a writer: with RACE_ATOMIC). The last four:
# how many syncs the warp had behind it at the write, and at the reads of the reader's warp; which lanes of it
# have read since, and where the last did.
RACE_WRITER, RACE_WRITER_INFO, RACE_READER, RACE_READER_INFO, RACE_SECOND, RACE_SECOND_INFO = range(6)
RACE_WRITE_SYNC, RACE_READ_SYNC, RACE_READ_LANES, RACE_READ_AT = range(6, 10)
RACE_ARRAYS = 10
RACE_ATOMIC = 1 << 31
RACE_EPOCHS = 1 << 26  # then the tags are cleared
READ_AFTER_WRITE, WRITE_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_SECOND_READ, COPY_IN_FLIGHT = range(5)
OWN_READ_AFTER_WRITE, OWN_WRITE_AFTER_WRITE, OWN_WRITE_AFTER_READ, SAME_STORE, COPY_OVERWRITTEN = range(5, 10)
HAZARDS = 16  # bytes of race_seen for each instruction

# ---- shared_flags: a byte for each word, bits 0 to 3 for its written bytes
FLAG_COPY = 16  # an asynchronous copy is on its way there
TRACK_WRITES, TRACK_COPIES = 1, 2  # bits of track_shared: which flags are looked at

# ---- notes: the first global read of unwritten memory at each access: seen, block, warp, lane, address
NOTE_BYTES = 40
CHUNK = 1 << 20  # warp instructions between two looks at the stop word
REDUCTION = -1  # in WARP_COUNT: a barrier with reduction, left to the engine
