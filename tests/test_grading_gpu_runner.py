"""What a child does on a GPU, with the simulator and CuPy's limits in the GPU's place."""

import dataclasses
import types

import pytest
from grading_in_process import InProcess

from labs_common import engines
from labs_common.engines import GpuEngine, SimulatorEngine
from labs_common.grading import gpu_execution, speed
from labs_common.grading.cases import Case
from labs_common.grading.gpu_execution import GpuRunner
from labs_common.grading.isolation import Limits
from labs_common.grading.marking import Hidden, StageNotGradable, case_request, judge
from labs_common.grading.rubric import load_rubric
from labs_common.grading.speed import SpeedMarker, judge_timing, speed_problem
from labs_common.grading.submissions import Kernel
from labs_common.inputs import make_inputs
from labs_common.plans import Device
from labs_common.problem import FP8, Problem
from labs_common.reference import reference
from labs_common.simt import cupy_like
from labs_common.stages import ALL_STAGES, find_stage

# Every dtype of an output, and with fp8 a cache of another one than the query's.
PROBLEMS = [
    ("02", Problem(4, 2, 64, 16, (20, 0, 33))),
    ("05", Problem(4, 2, 64, 16, (20, 0, 33), "float16", "packed")),
    ("06", Problem(4, 2, 64, 16, (20, 0, 33), "bfloat16")),
    ("08", Problem(4, 2, 64, 16, (20, 0, 33), "bfloat16")),
    ("09", Problem(4, 2, 64, 16, (20, 0, 33), FP8, key_scale=0.5, value_scale=1.5)),
]
SIGNS = [[1, -1], [-1, -1], [-1, 1], [1, 1]]


class Recorder:
    """A stream that while it captures notes launches and runs none, as CUDA's do."""

    def __init__(self):
        self.captures = None

    def __call__(self, non_blocking):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass

    def begin_capture(self):
        self.captures = []

    def end_capture(self):
        launches, self.captures = self.captures, None
        return types.SimpleNamespace(launch=lambda stream: [launch() for launch in launches])

    def launch(self, kernel, *args, **options):
        if self.captures is None:
            return kernel(*args, **options)
        return self.captures.append(lambda: kernel(*args, **options))


class OnStream:
    """A kernel that is launched on a recorder."""

    def __init__(self, kernel, stream):
        self.kernel, self.stream = kernel, stream

    def __call__(self, *args, **options):
        self.stream.launch(self.kernel, *args, **options)

    @property
    def max_dynamic_shared_size_bytes(self):
        return self.kernel.max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.kernel.max_dynamic_shared_size_bytes = size


def only_cupys(function):
    def checked(*args, **options):
        array = function(*args, **options)
        assert array.dtype.kind in "fiu", f"CuPy has no {array.dtype}"
        return array

    return checked


class CpuAsGpu(GpuEngine):
    """The GPU's engine, with the simulator below: its own code makes, poisons and reads the arrays."""

    most_blocks = 65535  # in y

    def __init__(self):
        stream = Recorder()
        self.stream, self.timeout_s = stream, 1.0
        self.device = Device(max_grid=(2**31 - 1, self.most_blocks, 65535))
        error = type("CudaError", (Exception,), {})
        event = types.SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
        cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(CUDARuntimeError=error, deviceSynchronize=lambda: None),
            driver=types.SimpleNamespace(CUDADriverError=error),
            Stream=stream,
            Event=lambda: event,
            get_elapsed_time=lambda start, end: 1.0,
        )
        made = {name: only_cupys(getattr(cupy_like, name)) for name in ("asarray", "full", "zeros")}
        self.xp = types.SimpleNamespace(cuda=cuda, asnumpy=cupy_like.asnumpy, **made)

    def module(self, source, defines=None):
        module = SimulatorEngine(self.device, core="numpy").module(source, defines)
        return types.SimpleNamespace(
            get_function=lambda name: OnStream(module.get_function(name), self.stream)
        )


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu_execution, "GpuEngine", CpuAsGpu)
    monkeypatch.setattr(engines, "DependentKernel", lambda kernel, xp: kernel)  # none begins early here
    monkeypatch.setattr(gpu_execution, "read_ceiling", lambda engine, nbytes, rounds: 4e12)
    monkeypatch.setattr(gpu_execution, "ceiling_bytes", lambda engine: 1 << 20)
    monkeypatch.setattr(gpu_execution, "refill_l2", lambda engine: lambda: None)
    monkeypatch.setattr(speed, "_gpu_sandbox", lambda limits: InProcess(GpuRunner))


def runner_of(stage, text=None):
    return GpuRunner({"stage": stage.id, "name": stage.path.name, "text": text or stage.source().text})


def timed(stage, problem, text=None):
    """What ``judge_timing`` makes of a kernel's timing over two sets."""
    sets = tuple(make_inputs(problem, seed) for seed in (1, 2))
    expected = [
        {
            sign: reference(problem, dataclasses.replace(inputs, query=(sign * inputs.query)))
            for sign in (1, -1)
        }
        for inputs in sets
    ]
    request = case_request(Case("speed", "timed", problem, sets))
    answer = runner_of(stage, text).answer({**request, "rounds": len(SIGNS), "signs": SIGNS})
    assert "error" not in answer
    return judge_timing(problem, answer, SIGNS, expected, stage.weights(problem))


@pytest.mark.parametrize(("name", "problem"), PROBLEMS, ids=lambda p: getattr(p, "dtype", p))
def test_an_output_of_every_dtype(name, problem):
    stage = find_stage(name)
    case = Case("plain", "", problem, (make_inputs(problem),), weights=stage.weights(problem))
    expected = tuple(reference(problem, inputs) for inputs in case.calls)

    result = judge(case, expected, runner_of(stage).answer(case_request(case)))

    assert result.ok, result.detail


@pytest.mark.parametrize(("name", "problem"), PROBLEMS, ids=lambda p: getattr(p, "dtype", p))
def test_a_timed_output_of_every_dtype(name, problem):
    found = timed(find_stage(name), problem)

    assert found["ratio"] == 1


STARTS = {"02": "const int query_head = blockIdx.x;", "06": "const int kv_head = blockIdx.x;"}


@pytest.mark.parametrize(("name", "problem"), [PROBLEMS[0], PROBLEMS[2]], ids=STARTS)
def test_work_that_is_left_out_once_it_was_done_is_seen(name, problem):
    """In 02 the output is poisoned; in 06 the merge gives the answer to an earlier round's query again."""
    stage = find_stage(name)
    text = stage.source().text.replace('extern "C"', '__device__ unsigned blocks;\nextern "C"', 1)
    assert STARTS[name] in text
    lazy = """
    const bool done = blocks >= 4 * gridDim.x * gridDim.y * gridDim.z;  // both sets, twice
    __syncthreads();
    if (done) return;
    if (threadIdx.x == 0) atomicAdd(&blocks, 1);
    """

    found = timed(stage, problem, text.replace(STARTS[name], lazy + STARTS[name]))

    assert "does not do its work every time" in found["error"]


# ---- the grader's side -----------------------------------------------------------------------------------

STAGE = find_stage("02")
WRONG = STAGE.source().text.replace("warp_sum(partial) *", "partial *")


def secret_of(*problems):
    cases = tuple(
        Case("plain" if number == 0 else "long", "a problem", problem, (make_inputs(problem),))
        for number, problem in enumerate(problems)
    )
    expected = tuple(tuple(reference(case.problem, one) for one in case.calls) for case in cases)
    return Hidden(cases, expected, cases[0], expected[0][0], {})


def cases_of(secret, text=None):
    kernel = Kernel(STAGE.id, text or STAGE.source().text, STAGE.path.name)
    return SpeedMarker(load_rubric(), "seed", Limits()).cases(kernel, STAGE, secret, Device())


def test_right_and_wrong_kernels():
    secret = secret_of(PROBLEMS[0][1])

    assert cases_of(secret) == []
    (found,) = cases_of(secret, WRONG)
    assert (found.title, found.reason) == ("on the GPU, a problem", "wrong output")


def test_a_problem_for_which_the_gpu_is_too_small_costs_nobody_anything(monkeypatch):
    monkeypatch.setattr(CpuAsGpu, "most_blocks", 3)
    small, large = PROBLEMS[0][1], Problem(4, 2, 64, 16, (20,) * 4)

    assert cases_of(secret_of(small, large)) == []
    assert len(cases_of(secret_of(small, large), WRONG)) == 1
    with pytest.raises(StageNotGradable, match=r"does not run on this GPU: .* allows 3"):
        cases_of(secret_of(large, small))


def test_a_gpu_on_which_the_labs_own_kernel_is_wrong_marks_nobody():
    secret = secret_of(PROBLEMS[0][1])
    wrong = dataclasses.replace(
        secret,
        expected=((dataclasses.replace(secret.expected[0][0], output=-secret.expected[0][0].output),),),
    )

    with pytest.raises(StageNotGradable, match="the lab's own kernel fails on the GPU"):
        cases_of(wrong)


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_every_stage_is_timed_on_the_same_bytes(stage):
    """134 MB of keys and values: two sets of them are more than an L2 cache holds."""
    problem = speed_problem(stage)

    assert stage.supports(problem) is None
    assert problem.kv_bytes == 2 * 16384 * 8 * 128 * 4
