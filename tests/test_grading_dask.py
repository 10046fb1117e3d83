"""Grading on a Dask cluster: the marks of the local run, also when a worker is killed in the middle."""

import os
import signal

import pytest

from labs_common.grading.class_run import grade_class
from labs_common.grading.schedulers import DaskScheduler, LocalScheduler, run_all
from labs_common.grading.store import Store, differing_marks
from labs_common.stages import find_stage

distributed = pytest.importorskip("distributed", reason="not installed: pip install '.[cluster]'")

RIGHT = find_stage("02").source().text


@pytest.fixture(scope="module")
def cluster():
    """Two workers in processes of their own, as `dask worker --nthreads 1` starts them."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as one:
        yield one


def worker_pids(cluster):
    return [worker.pid for worker in cluster.workers.values() if worker.pid]


def test_marks_are_those_of_the_local_run_though_a_worker_is_killed(cluster, tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    texts = [RIGHT, RIGHT.replace("* problem.scale", ""), "nonsense", RIGHT]
    for number in range(8):
        (folder / f"s{number}.cu").write_text(f"{texts[number % 4]}\n__device__ int number{number};\n")
    local = grade_class(folder, tmp_path / "local", stages=("02",), scheduler=LocalScheduler(1))
    scheduler = DaskScheduler(cluster.scheduler_address)
    killed = []

    def kill_one(record):
        if not killed:
            killed.append(worker_pids(cluster)[0])
            os.kill(killed[0], signal.SIGKILL)

    try:
        spread = grade_class(tmp_path / "local", tmp_path / "dask", scheduler=scheduler, on_done=kill_one)
    finally:
        scheduler.close()

    assert killed
    assert spread.failed == () == spread.differing
    assert differing_marks(local.records, spread.records) == []
    assert [r["total"] for r in spread.records] == [85, 0, 0, 85] * 2
    assert os.getpid() not in {record["worker"] for record in spread.records}
    assert Store(tmp_path / "dask").head()["seed"] == Store(tmp_path / "local").head()["seed"]


def deadly(number):
    """Work whose number 3 ends every worker that takes it."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_task_that_kills_workers_costs_only_itself(cluster):
    scheduler = DaskScheduler(cluster.scheduler_address)
    try:
        results = sorted(run_all(scheduler, deadly, range(8), alone=lambda item, error: -item))
    finally:
        scheduler.close()

    assert results == [-3, 0, 1, 2, 4, 5, 6, 7]


def test_no_scheduler_is_one_sentence():
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        DaskScheduler("tcp://127.0.0.1:9", timeout_s=0.5)
