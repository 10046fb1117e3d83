"""What was counted in a launch: raw counts as the engines keep them, and Nsight Compute's metrics from them.

Both engines fill the same arrays and must agree on every number. All that follows from how often each basic
block ran (instruction mix, threads, barriers, shuffles, requests of a known space) is derived here; only what
depends on addresses and branch conditions is counted while running.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .ops import operation
from .parse import Location
from .program import Program

# our name -> Nsight Compute's metric. All are sums over the launch.
NCU_METRICS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_loads": "smsp__inst_executed_op_shared_ld.sum",
    "shared_stores": "smsp__inst_executed_op_shared_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "async_copies": "smsp__inst_executed_op_ldgsts.sum",
    "async_copy_sectors": "smsp__sass_l1tex_m_xbar2l1tex_read_sectors_mem_global_op_ldgsts_cache_bypass.sum",
    "async_copy_wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "ffma_lanes": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "fmul_lanes": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "fadd_lanes": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "warp_instructions": "smsp__inst_executed.sum",
    "thread_instructions": "smsp__thread_inst_executed.sum",
    "barriers": "smsp__inst_executed_op_barrier.sum",
    "shuffles": "smsp__inst_executed_op_shuffle.sum",
    "branches": "smsp__sass_branch_targets.sum",
    "divergent_branches": "smsp__sass_branch_targets_threads_divergent.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
PER_LINE = tuple(name for name in NCU_METRICS if not name.startswith("dram"))


@dataclass
class Counters:
    """The counts of one launch. Arrays are int64, per block or per instruction of `program`.

    block_warps, block_lanes: how many warps and lanes entered each basic block.
    global_requests, sectors; shared_requests, wavefronts; local_requests: per memory instruction, of the
    space that each of its accesses turned out to have. divergent: warps that a branch split.
    copy_sectors: what arrives from L2 for cp.async.cg; 0 of other instructions.
    sectors_read, sectors_written: distinct 32-byte sectors of global memory touched, all together.
    blocks_run of blocks_total: how much of the grid was simulated.

    A cp.async.cg fetches a 32-byte sector for every 32 bytes of shared memory that want some of it, and one
    pass (wavefront) writes what comes from one line of 128 bytes into one line. Where source and target lie
    differently in their lines, that is more than the bytes need. For a request of a warp:

    * copy_sectors: pairs of a sector and 32 bytes of shared memory that it goes to;
    * sectors: pairs of a sector and a line of shared memory that it goes to;
    * wavefronts: summed over the pairs of a line and a line of shared memory, the most places in the latter
      that a sector of the former goes to.

    512 bytes in a row are 16, 16 and 4 where they lie alike. With the target 64 bytes further they are 16, 16
    and 8, 16 bytes further 32, 20 and 12, as an H200 counts (tests/test_simt_copies.py). What a copy through
    L1 (.ca) costs was not measured: it counts as a load and as a store would.
    """

    program: Program
    blocks_total: int
    blocks_run: int = 0
    block_warps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    block_lanes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    global_requests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sectors: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    shared_requests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    wavefronts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    local_requests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    copy_sectors: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    divergent: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sectors_read: int = 0
    sectors_written: int = 0

    def __post_init__(self) -> None:
        for name in ("block_warps", "block_lanes"):
            setattr(self, name, np.zeros(len(self.program.blocks), np.int64))
        for name in (
            "global_requests",
            "sectors",
            "shared_requests",
            "wavefronts",
            "local_requests",
            "copy_sectors",
            "divergent",
        ):
            setattr(self, name, np.zeros(len(self.program.instructions), np.int64))

    @property
    def sampled(self) -> bool:
        """Whether only a part of the grid was run."""
        return self.blocks_run < self.blocks_total

    def warp_executions(self) -> np.ndarray:
        """Per instruction: how many warps issued it, predicated-off ones included."""
        return self._per_instruction(self.program.charged, self.block_warps)

    def lane_executions(self) -> np.ndarray:
        """Per instruction: how many active lanes it was issued for; their sum is the lane-instructions."""
        return self._per_instruction(self.program.charged, self.block_lanes)

    def predicated_lanes(self) -> np.ndarray:
        """Per instruction: the lanes whose predicate let it happen."""
        return self._per_instruction(self.program.executed_in, self.block_lanes)

    @staticmethod
    def _per_instruction(places: list[int], counts: np.ndarray) -> np.ndarray:
        where = np.asarray(places, np.int64)
        return np.where(where >= 0, counts[where], 0) if len(where) else np.zeros(0, np.int64)

    @property
    def lane_instructions(self) -> int:
        """Executed PTX instructions times their active lanes."""
        return int(self.lane_executions().sum())

    def _rows(self) -> dict[str, np.ndarray]:
        """Every metric of PER_LINE, per instruction."""
        program = self.program
        warps, lanes, on = self.warp_executions(), self.lane_executions(), self.predicated_lanes()
        reached = [
            operation(i) if place >= 0 else None
            for i, place in zip(program.instructions, program.charged, strict=True)
        ]
        groups = [row.group if row else "" for row in reached]
        is_barrier = np.array([bool(row) and row.kind == "barrier" for row in reached])
        group = np.array(groups, dtype=object)
        opcode = np.array([i.opcode for i in program.instructions], dtype=object)
        copy = opcode == "cp"  # counts with the loads of global memory, and on its own in shared memory
        load = (opcode == "ld") | (opcode == "ldu") | (opcode == "ldmatrix")
        store = (opcode == "st") | (opcode == "stmatrix")
        branch = (opcode == "bra") | (opcode == "brx")
        issued = np.asarray(self._per_instruction(program.executed_in, self.block_warps))
        return {
            "global_load_requests": np.where(load | copy, self.global_requests, 0),
            "global_store_requests": np.where(store, self.global_requests, 0),
            "global_load_sectors": np.where(load | copy, self.sectors, 0),
            "global_store_sectors": np.where(store, self.sectors, 0),
            "shared_loads": np.where(load, self.shared_requests, 0),
            "shared_stores": np.where(store, self.shared_requests, 0),
            "shared_load_wavefronts": np.where(load, self.wavefronts, 0),
            "shared_store_wavefronts": np.where(store, self.wavefronts, 0),
            "async_copies": np.where(copy, self.shared_requests, 0),
            "async_copy_sectors": np.where(copy, self.copy_sectors, 0),
            "async_copy_wavefronts": np.where(copy, self.wavefronts, 0),
            "ffma_lanes": np.where(group == "ffma", on, 0),
            "fmul_lanes": np.where(group == "fmul", on, 0),
            "fadd_lanes": np.where(group == "fadd", on, 0),
            "warp_instructions": warps,
            "thread_instructions": lanes,
            "barriers": np.where(is_barrier, issued, 0),
            "shuffles": np.where(opcode == "shfl", issued, 0),
            "branches": np.where(branch, warps, 0),
            "divergent_branches": self.divergent,
        }

    def totals(self) -> dict[str, int]:
        """Metric name (the keys of NCU_METRICS) -> count over the launch."""
        result = {name: int(values.sum()) for name, values in self._rows().items()}
        result["dram_read_bytes"] = 32 * self.sectors_read
        result["dram_write_bytes"] = 32 * self.sectors_written
        return result

    def mix(self) -> dict[str, int]:
        """Class of instruction -> lanes it was issued for."""
        lanes = self.lane_executions()
        result: dict[str, int] = {}
        for i, count in enumerate(lanes):
            if count:
                group = operation(self.program.instructions[i]).group
                result[group] = result.get(group, 0) + int(count)
        return dict(sorted(result.items(), key=lambda item: -item[1]))

    def ideal_sectors(self) -> int:
        """Sectors that the global loads and stores would need if every byte asked for were distinct."""
        total = 0
        lanes = self.predicated_lanes()
        for i, access in self.program.access.items():
            if access.space == "global" and access.operation in ("ld", "st", "cp"):
                total += int(lanes[i]) * access.width * access.count
        return -(-total // 32)

    def by_line(self) -> list[tuple[Location, dict[str, int]]]:
        """(location with its inlined-at chain, metrics) for every source line that was reached.

        Instructions of one line and chain are summed: PTX unrolls loops.
        """
        lines: dict[Location, dict[str, int]] = {}
        rows = self._rows()
        reached = np.flatnonzero(rows["warp_instructions"])
        for i in reached:
            location = _lines_only(self.program.instructions[i].location)
            into = lines.setdefault(location, dict.fromkeys(PER_LINE, 0))
            for name in PER_LINE:
                into[name] += int(rows[name][i])
        return sorted(lines.items(), key=lambda item: [(f.file, f.line) for f in reversed(item[0])])

    def scaled(self) -> float:
        """The factor from the blocks that were run to the whole grid."""
        return self.blocks_total / self.blocks_run if self.blocks_run else 0.0

    def differences(self, other: Counters) -> list[str]:
        """Where two counts of the same program disagree; empty when they are equal."""
        found = []
        for name in (
            "block_warps",
            "block_lanes",
            "global_requests",
            "sectors",
            "shared_requests",
            "wavefronts",
            "local_requests",
            "copy_sectors",
            "divergent",
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            for i in np.flatnonzero(mine != theirs):
                found.append(f"{name}[{i}]: {mine[i]} and {theirs[i]}")
        for name in ("sectors_read", "sectors_written", "blocks_run", "blocks_total"):
            if getattr(self, name) != getattr(other, name):
                found.append(f"{name}: {getattr(self, name)} and {getattr(other, name)}")
        return found


def _lines_only(location: Location) -> Location:
    """A location without columns, so that all instructions of a line meet."""
    return tuple(type(f)(f.file, f.line, 0, f.function) for f in location)
