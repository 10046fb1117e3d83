"""Names of metrics: Nsight Compute's own, how reports print them, and how charts say them.

Reports name a metric by section, display name and unit: "Memory Throughput" is a percentage in one section
and a rate in another. Names also differ by architecture and version. The tables here bring all of them to
one name.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs_common.units import base_unit

TIME = "gpu__time_duration.sum"
DRAM_PCT = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY_PCT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
COMPUTE_PCT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
L1_PCT = "l1tex__throughput.avg.pct_of_peak_sustained_active"
L2_PCT = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
THEORETICAL_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
ACHIEVED_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
WAVES = "launch__waves_per_multiprocessor"
DRAM_ACTIVE_CYCLES = "dram__cycles_active.avg"
ISSUE_PCT = "sm__issue_active.avg.pct_of_peak_sustained_elapsed"
LSU_PCT = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed"
DRAM_READ_BYTES = "dram__bytes_read.sum"
DRAM_WRITE_BYTES = "dram__bytes_write.sum"
GLOBAL_LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
GLOBAL_LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
ASYNC_COPIES = "smsp__inst_executed_op_ldgsts.sum"
ASYNC_COPY_SECTORS = "smsp__sass_l1tex_m_xbar2l1tex_read_sectors_mem_global_op_ldgsts_cache_bypass.sum"
ASYNC_COPY_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"
FLOPS = "lab__fp32_flops.sum"
FLOP_RATE = "lab__fp32_flops.per_second"
INTENSITY = "lab__fp32_flops_per_dram_byte.ratio"
PEAK_BANDWIDTH = "lab__read_ceiling.per_second"
PEAK_FLOP_RATE = "lab__fp32_peak.per_second"
STALL_SHARE = "lab__stall_share."
STALL_SAMPLES = "smsp__pcsamp_warps_issue_stalled_"


@dataclass(frozen=True)
class Name:
    """One metric: canonical name, base unit, human label, and where a report prints it."""

    metric: str
    unit: str
    label: str
    section: str = ""
    shown: tuple[str, ...] = ()


_SOL = "GPU Speed Of Light Throughput"
_LAUNCH = "Launch Statistics"
_OCCUPANCY = "Occupancy"
_SPREAD = "GPU and Memory Workload Distribution"
_MEMORY = "Memory Workload Analysis"
_COMPUTE = "Compute Workload Analysis"
_SCHEDULER = "Scheduler Statistics"
_WARPS = "Warp State Statistics"
_INSTRUCTIONS = "Instruction Statistics"
_SOURCE = "Source Counters"

NAMES: tuple[Name, ...] = (
    Name(TIME, "nsecond", "Time", _SOL, ("Duration",)),
    Name(
        "dram__cycles_elapsed.avg.per_second",
        "hz",
        "DRAM frequency",
        _SOL,
        ("DRAM Frequency", "Memory Frequency"),
    ),
    Name("smsp__cycles_elapsed.avg.per_second", "hz", "SM frequency", _SOL, ("SM Frequency",)),
    Name("gpc__cycles_elapsed.max", "cycle", "Elapsed cycles", _SOL, ("Elapsed Cycles",)),
    Name(MEMORY_PCT, "%", "Memory throughput", _SOL, ("Memory Throughput", "SOL Memory", "Memory [%]")),
    Name(DRAM_PCT, "%", "DRAM throughput", _SOL, ("DRAM Throughput", "SOL DRAM")),
    Name(L1_PCT, "%", "L1/TEX throughput", _SOL, ("L1/TEX Cache Throughput", "SOL L1/TEX Cache")),
    Name(L2_PCT, "%", "L2 throughput", _SOL, ("L2 Cache Throughput", "SOL L2 Cache")),
    Name("sm__cycles_active.avg", "cycle", "SM active cycles", _SOL, ("SM Active Cycles",)),
    Name(COMPUTE_PCT, "%", "Compute (SM) throughput", _SOL, ("Compute (SM) Throughput", "SOL SM", "SM [%]")),
    Name(ISSUE_PCT, "%", "Issue active", _SOL, ("SM: Issue Active", "Issue Active")),
    Name(LSU_PCT, "%", "LSU instructions", _SOL, ("SM: Inst Executed Pipe Lsu",)),
    Name("launch__block_size", "", "Block size", _LAUNCH, ("Block Size",)),
    Name("launch__grid_size", "", "Grid size", _LAUNCH, ("Grid Size",)),
    Name("launch__cluster_size", "", "Cluster size", _LAUNCH, ("Cluster Size",)),
    Name(
        "launch__preferred_cluster_size", "", "Preferred cluster size", _LAUNCH, ("Preferred Cluster Size",)
    ),
    Name(
        "launch__cluster_scheduling_policy", "", "Cluster scheduling", _LAUNCH, ("Cluster Scheduling Policy",)
    ),
    Name("launch__func_cache_config", "", "Cache preference", _LAUNCH, ("Function Cache Configuration",)),
    Name(REGISTERS, "register/thread", "Registers per thread", _LAUNCH, ("Registers Per Thread",)),
    Name(
        "launch__shared_mem_config_size",
        "byte",
        "Shared memory configuration",
        _LAUNCH,
        ("Shared Memory Configuration Size",),
    ),
    Name(
        "launch__shared_mem_per_block_driver",
        "byte/block",
        "Driver shared memory per block",
        _LAUNCH,
        ("Driver Shared Memory Per Block",),
    ),
    Name(
        "launch__shared_mem_per_block_dynamic",
        "byte/block",
        "Dynamic shared memory per block",
        _LAUNCH,
        ("Dynamic Shared Memory Per Block",),
    ),
    Name(
        "launch__shared_mem_per_block_static",
        "byte/block",
        "Static shared memory per block",
        _LAUNCH,
        ("Static Shared Memory Per Block",),
    ),
    Name("launch__sm_count", "SM", "SMs", _LAUNCH, ("# SMs",)),
    Name("launch__tpc_count", "", "TPCs", _LAUNCH, ("# TPCs",)),
    Name("launch__enabled_tpc_ids", "", "Enabled TPCs", _LAUNCH, ("Enabled TPC IDs",)),
    Name("launch__stack_size", "", "Stack size", _LAUNCH, ("Stack Size",)),
    Name("launch__thread_count", "thread", "Threads", _LAUNCH, ("Threads",)),
    Name("launch__uses_green_context", "", "Green context", _LAUNCH, ("Uses Green Context",)),
    Name(WAVES, "", "Waves per SM", _LAUNCH, ("Waves Per SM",)),
    Name("launch__occupancy_limit_blocks", "block", "Block limit: SM", _OCCUPANCY, ("Block Limit SM",)),
    Name(
        "launch__occupancy_limit_registers",
        "block",
        "Block limit: registers",
        _OCCUPANCY,
        ("Block Limit Registers",),
    ),
    Name(
        "launch__occupancy_limit_shared_mem",
        "block",
        "Block limit: shared memory",
        _OCCUPANCY,
        ("Block Limit Shared Mem",),
    ),
    Name("launch__occupancy_limit_warps", "block", "Block limit: warps", _OCCUPANCY, ("Block Limit Warps",)),
    Name(
        "launch__occupancy_limit_barriers",
        "block",
        "Block limit: barriers",
        _OCCUPANCY,
        ("Block Limit Barriers",),
    ),
    Name(
        "sm__maximum_warps_avg_per_active_cycle",
        "warp",
        "Theoretical active warps per SM",
        _OCCUPANCY,
        ("Theoretical Active Warps per SM",),
    ),
    Name(THEORETICAL_OCCUPANCY, "%", "Theoretical occupancy", _OCCUPANCY, ("Theoretical Occupancy",)),
    Name(ACHIEVED_OCCUPANCY, "%", "Achieved occupancy", _OCCUPANCY, ("Achieved Occupancy",)),
    Name(
        "sm__warps_active.avg.per_cycle_active",
        "warp",
        "Achieved active warps per SM",
        _OCCUPANCY,
        ("Achieved Active Warps Per SM",),
    ),
    Name(
        "launch__cluster_max_active", "cluster", "Max active clusters", _OCCUPANCY, ("Max Active Clusters",)
    ),
    Name(
        "launch__cluster_max_potential_size", "block", "Max cluster size", _OCCUPANCY, ("Max Cluster Size",)
    ),
    Name(DRAM_ACTIVE_CYCLES, "cycle", "DRAM-active cycles", _SPREAD, ("Average DRAM Active Cycles",)),
    Name("dram__cycles_elapsed.sum", "cycle", "DRAM elapsed cycles", _SPREAD, ("Total DRAM Elapsed Cycles",)),
    Name("l1tex__cycles_active.avg", "cycle", "L1 active cycles", _SPREAD, ("Average L1 Active Cycles",)),
    Name("l1tex__cycles_elapsed.sum", "cycle", "L1 elapsed cycles", _SPREAD, ("Total L1 Elapsed Cycles",)),
    Name("lts__cycles_active.avg", "cycle", "L2 active cycles", _SPREAD, ("Average L2 Active Cycles",)),
    Name("lts__cycles_elapsed.sum", "cycle", "L2 elapsed cycles", _SPREAD, ("Total L2 Elapsed Cycles",)),
    Name("sm__cycles_active.avg", "cycle", "SM active cycles", _SPREAD, ("Average SM Active Cycles",)),
    Name("sm__cycles_elapsed.sum", "cycle", "SM elapsed cycles", _SPREAD, ("Total SM Elapsed Cycles",)),
    Name("smsp__cycles_active.avg", "cycle", "SMSP active cycles", _SPREAD, ("Average SMSP Active Cycles",)),
    Name("smsp__cycles_elapsed.sum", "cycle", "SMSP elapsed cycles", _SPREAD, ("Total SMSP Elapsed Cycles",)),
    Name("dram__bytes.sum.per_second", "byte/second", "DRAM bandwidth", _MEMORY, ("Memory Throughput",)),
    Name(
        "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "Memory units busy",
        _MEMORY,
        ("Mem Busy",),
    ),
    Name(
        "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "Memory interconnect",
        _MEMORY,
        ("Max Bandwidth",),
    ),
    Name(
        "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "Memory pipes busy",
        _MEMORY,
        ("Mem Pipes Busy",),
    ),
    Name("l1tex__t_sector_hit_rate.pct", "%", "L1/TEX hit rate", _MEMORY, ("L1/TEX Hit Rate",)),
    Name("lts__t_sector_hit_rate.pct", "%", "L2 hit rate", _MEMORY, ("L2 Hit Rate",)),
    Name(
        "sm__inst_executed.avg.per_cycle_active",
        "inst/cycle",
        "IPC active",
        _COMPUTE,
        ("Executed Ipc Active",),
    ),
    Name(
        "sm__inst_executed.avg.per_cycle_elapsed",
        "inst/cycle",
        "IPC elapsed",
        _COMPUTE,
        ("Executed Ipc Elapsed",),
    ),
    Name(
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "%",
        "Issue slots busy",
        _COMPUTE,
        ("Issue Slots Busy",),
    ),
    Name(
        "sm__inst_issued.avg.per_cycle_active", "inst/cycle", "Issued IPC", _COMPUTE, ("Issued Ipc Active",)
    ),
    Name(
        "sm__instruction_throughput.avg.pct_of_peak_sustained_active", "%", "SM busy", _COMPUTE, ("SM Busy",)
    ),
    Name(
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "%",
        "Cycles with an eligible warp",
        _SCHEDULER,
        ("One or More Eligible",),
    ),
    Name(
        "smsp__issue_active.avg.per_cycle_active",
        "",
        "Issued warps per scheduler",
        _SCHEDULER,
        ("Issued Warp Per Scheduler",),
    ),
    Name(
        "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "%",
        "Cycles without an eligible warp",
        _SCHEDULER,
        ("No Eligible",),
    ),
    Name(
        "smsp__warps_active.avg.per_cycle_active",
        "warp",
        "Active warps per scheduler",
        _SCHEDULER,
        ("Active Warps Per Scheduler",),
    ),
    Name(
        "smsp__warps_eligible.avg.per_cycle_active",
        "warp",
        "Eligible warps per scheduler",
        _SCHEDULER,
        ("Eligible Warps Per Scheduler",),
    ),
    Name(
        "smsp__average_warp_latency_per_inst_issued.ratio",
        "cycle",
        "Warp cycles per issued instruction",
        _WARPS,
        ("Warp Cycles Per Issued Instruction",),
    ),
    Name(
        "smsp__average_warps_active_per_inst_executed.ratio",
        "cycle",
        "Warp cycles per executed instruction",
        _WARPS,
        ("Warp Cycles Per Executed Instruction",),
    ),
    Name(
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "",
        "Active threads per warp",
        _WARPS,
        ("Avg. Active Threads Per Warp",),
    ),
    Name(
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "",
        "Threads per warp not predicated off",
        _WARPS,
        ("Avg. Not Predicated Off Threads Per Warp",),
    ),
    Name(
        INSTRUCTIONS,
        "inst",
        "Warp instructions",
        _INSTRUCTIONS,
        ("Executed Instructions",),
    ),
    Name(
        "smsp__inst_executed.avg",
        "inst",
        "Warp instructions per scheduler",
        _INSTRUCTIONS,
        ("Avg. Executed Instructions Per Scheduler",),
    ),
    Name("smsp__inst_issued.sum", "inst", "Issued instructions", _INSTRUCTIONS, ("Issued Instructions",)),
    Name(
        "smsp__inst_issued.avg",
        "inst",
        "Issued instructions per scheduler",
        _INSTRUCTIONS,
        ("Avg. Issued Instructions Per Scheduler",),
    ),
    Name(
        "derived__smsp__inst_executed_op_branch_pct",
        "%",
        "Branch share",
        _SOURCE,
        ("Branch Instructions Ratio",),
    ),
    Name(
        "smsp__inst_executed_op_branch.sum", "inst", "Branch instructions", _SOURCE, ("Branch Instructions",)
    ),
    Name(
        "smsp__sass_average_branch_targets_threads_uniform.pct",
        "%",
        "Branch efficiency",
        _SOURCE,
        ("Branch Efficiency",),
    ),
    Name(
        "smsp__sass_branch_targets_threads_divergent.avg",
        "",
        "Divergent branches",
        _SOURCE,
        ("Avg. Divergent Branches",),
    ),
    Name(
        "smsp__sass_branch_targets_threads_divergent.avg",
        "branch",  # as newer versions print it
        "Divergent branches",
        _SOURCE,
        ("Avg. Divergent Branches",),
    ),
    Name(DRAM_READ_BYTES, "byte", "DRAM bytes read"),
    Name(DRAM_WRITE_BYTES, "byte", "DRAM bytes written"),
    Name("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request", "Global load requests"),
    Name("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "Global load sectors"),
    Name("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "request", "Global store requests"),
    Name("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", "Global store sectors"),
    Name("smsp__inst_executed_op_shared_ld.sum", "inst", "Shared loads"),
    Name("smsp__inst_executed_op_shared_st.sum", "inst", "Shared stores"),
    Name(SHARED_WAVEFRONTS, "", "Shared memory wavefronts"),
    Name("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "", "Shared load wavefronts"),
    Name("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "", "Shared store wavefronts"),
    Name(ASYNC_COPIES, "inst", "Asynchronous copies"),
    Name(ASYNC_COPY_SECTORS, "sector", "Sectors that asynchronous copies fetch"),
    Name(ASYNC_COPY_WAVEFRONTS, "", "Asynchronous copy wavefronts"),
    Name("smsp__inst_executed_op_barrier.sum", "inst", "Barriers"),
    Name("smsp__inst_executed_op_shuffle.sum", "inst", "Shuffles"),
    Name("smsp__sass_branch_targets.sum", "branch", "Branches"),
    Name("smsp__sass_branch_targets_threads_divergent.sum", "branch", "Divergent branches"),
    Name("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "", "Shared bank conflicts"),
    Name("smsp__thread_inst_executed.sum", "inst", "Thread instructions"),
    Name("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "FFMA thread instructions"),
    Name("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", "FMUL thread instructions"),
    Name("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "FADD thread instructions"),
    Name("inst_executed", "inst", "Warp instructions, by line"),
    Name("thread_inst_executed", "inst", "Thread instructions, by line"),
    Name("memory_l1_wavefronts_shared", "wavefront", "Shared memory wavefronts, by line"),
    Name("memory_l1_wavefronts_shared_ideal", "wavefront", "Shared wavefronts without conflicts, by line"),
    Name("memory_l1_tag_requests_global", "request", "L1 tag requests, by line"),
    Name("memory_l2_theoretical_sectors_global", "sector", "L2 sectors, by line"),
    Name("memory_l2_theoretical_sectors_global_ideal", "sector", "L2 sectors if coalesced, by line"),
    Name("smsp__pcsamp_sample_count", "sample", "Stall samples"),
    Name("lab__sectors_per_global_load_request.ratio", "sector/request", "Sectors per load request"),
    Name(FLOPS, "flop", "fp32 operations"),
    Name(FLOP_RATE, "flop/second", "fp32 rate"),
    Name(INTENSITY, "flop/byte", "Arithmetic intensity"),
    Name(PEAK_BANDWIDTH, "byte/second", "Measured read ceiling"),
    Name(PEAK_FLOP_RATE, "flop/second", "fp32 peak"),
)

# Names of one quantity in other versions and on other architectures. The first of a pair is found only where
# the canonical one is not collected: the full set of an H200, for one, lacks dram__throughput.
ALIASES: dict[str, str] = {
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": DRAM_PCT,
    "gpu__time_duration.avg": TIME,
    "gpc__cycles_elapsed.avg.per_second": "smsp__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.avg.per_second": "smsp__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.max": "gpc__cycles_elapsed.max",
    "smsp__issue_active.avg.pct_of_peak_sustained_elapsed": ISSUE_PCT,
    "fbpa__dram_read_bytes.sum": DRAM_READ_BYTES,
    "fbpa__dram_write_bytes.sum": DRAM_WRITE_BYTES,
    "dram__bytes_op_read.sum": DRAM_READ_BYTES,
    "dram__bytes_op_write.sum": DRAM_WRITE_BYTES,
}

_LABELS = {name.metric: name.label for name in reversed(NAMES)}
_UNITS = {name.metric: name.unit for name in NAMES}
_BY_DISPLAY = {(n.section, shown.lower(), n.unit): n.metric for n in NAMES for shown in n.shown}
_KNOWN_SHOWN: dict[tuple[str, str], set[str]] = {}
for (_section, _shown, _unit), _metric in _BY_DISPLAY.items():
    _KNOWN_SHOWN.setdefault((_shown, _unit), set()).add(_metric)

# Section names that changed between versions, and the section identifiers that rules carry.
SECTIONS: dict[str, str] = {
    "GPU Speed Of Light": _SOL,
    "SpeedOfLight": _SOL,
    "LaunchStats": _LAUNCH,
    "MemoryWorkloadAnalysis": _MEMORY,
    "ComputeWorkloadAnalysis": _COMPUTE,
    "SchedulerStats": _SCHEDULER,
    "WarpStateStats": _WARPS,
    "InstructionStats": _INSTRUCTIONS,
    "SourceCounters": _SOURCE,
    "WorkloadDistribution": _SPREAD,
}


def canonical(metric: str) -> str:
    """The canonical name of a metric, whatever version or architecture named it; unknown names stay."""
    return ALIASES.get(metric, metric)


def unit_of(metric: str) -> str | None:
    """The base unit of a canonical metric; None for one that the table lacks."""
    return _UNITS.get(metric)


def other_name(metric: str) -> str:
    """Another version's or architecture's name of a canonical metric; itself where there is none."""
    return next((other for other, own in ALIASES.items() if own == metric), metric)


def label(metric: str) -> str:
    """What a chart calls a metric; an unknown one by its own name."""
    for prefix in (STALL_SHARE, STALL_SAMPLES):
        if metric.startswith(prefix):
            return f"Warp samples in {metric.removeprefix(prefix).replace('_', ' ')}"
    return _LABELS.get(canonical(metric), metric)


def from_display(section: str, shown: str, unit: str | None) -> str:
    """Canonical name of a metric as a report prints it; the printed name itself when the table lacks it.

    A text that lost its sections is resolved by name and unit where that names one metric only.

    Args:
        section: as printed, "" when unknown.
        shown: the display name, such as "Memory Throughput".
        unit: as printed; with the section it tells apart the two metrics of that name. None for a value that
            is absent, which reports print without its unit.
    """
    name = " ".join(shown.split()).lower()
    if unit is None:
        of_section = {
            m for (s, n, _), m in _BY_DISPLAY.items() if n == name and s == SECTIONS.get(section, section)
        }
        return next(iter(of_section)) if len(of_section) == 1 else canonical(shown)
    _, base = base_unit(unit)
    found = _BY_DISPLAY.get((SECTIONS.get(section, section), name, base))
    if found is None:
        candidates = _KNOWN_SHOWN.get((name, base), set())
        found = next(iter(candidates)) if len(candidates) == 1 else None
    return found or canonical(shown)
