"""A child that fails, crashes, hangs or floods leaves its parent able to go on."""

import math
import os
import time

import pytest

from labs_common.worker import Worker, WorkerDied


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.discard()


def unpicklable():
    return lambda: None


def test_answers_come_from_one_child_that_is_kept(worker):
    first, second = worker.call(os.getpid), worker.call(os.getpid)

    assert first == second != os.getpid()


def test_an_exception_of_the_child_is_raised_here_with_its_traceback(worker):
    with pytest.raises(ValueError, match=r"math domain error|nonnegative") as error:
        worker.call(math.sqrt, -1)

    assert "in the child process" in error.value.__notes__[0]
    assert worker.call(math.sqrt, 4) == 2


def test_a_crash_is_told_and_the_next_call_works(worker):
    with pytest.raises(WorkerDied, match="exit status 7"):
        worker.call(os._exit, 7)

    assert worker.call(math.sqrt, 4) == 2


def test_a_hanging_child_is_stopped(worker):
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=r"no answer within 0\.5 s"):
        worker.call(time.sleep, 60, timeout_s=0.5)

    assert time.monotonic() - started < 30
    assert worker.call(math.sqrt, 4) == 2


def test_an_answer_that_cannot_be_sent_is_an_error_not_a_hang(worker):
    with pytest.raises(RuntimeError, match="while answering"):
        worker.call(unpicklable)
