"""Grading on a Dask cluster: the marks of the local run, also when a worker is killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from labs_common.grading.class_run import grade_class
from labs_common.grading.schedulers import DaskScheduler, LocalScheduler, run_all
from labs_common.grading.store import Store, differing_marks
from labs_common.stages import find_stage

pytest.importorskip("distributed", reason="not installed: pip install '.[cluster]'")

RIGHT = find_stage("02").source().text


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A scheduler and two workers in processes of their own, started as on a real cluster."""
    file = tmp_path_factory.mktemp("cluster") / "scheduler.json"
    # this module's own functions are work for the cluster too
    folders = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}

    def start(module, *arguments):
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", *arguments]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    processes = [start("dask_scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", str(file))]
    try:
        wait_for(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        found = json.loads(file.read_text())["address"]
        processes += [
            start("dask_worker", found, "--nthreads", "1", "--nworkers", "1", "--host", "127.0.0.1")
            for _ in range(2)
        ]
        scheduler = DaskScheduler(found)
        wait_for(lambda: len(scheduler.client.nthreads()) == 2)
        scheduler.close()
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_marks_are_those_of_the_local_run_though_a_worker_is_killed(address, tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    texts = [RIGHT, RIGHT.replace("* problem.scale", ""), "nonsense", RIGHT]
    for number in range(8):
        (folder / f"s{number}.cu").write_text(f"{texts[number % 4]}\n__device__ int number{number};\n")
    local = grade_class(folder, tmp_path / "local", stages=("02",), scheduler=LocalScheduler(1))
    scheduler = DaskScheduler(address)
    killed = []

    def kill_one(record):
        if not killed:
            killed.append(next(iter(scheduler.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    try:
        spread = grade_class(
            tmp_path / "local", tmp_path / "dask", scheduler=scheduler, again=True, on_done=kill_one
        )
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


def test_a_task_that_kills_workers_costs_only_itself(address):
    scheduler = DaskScheduler(address)
    try:
        results = sorted(run_all(scheduler, deadly, range(8), alone=lambda item, error: -item))
    finally:
        scheduler.close()

    assert results == [-3, 0, 1, 2, 4, 5, 6, 7]


def test_no_scheduler_is_one_sentence():
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        DaskScheduler("tcp://127.0.0.1:9", timeout_s=0.5)
