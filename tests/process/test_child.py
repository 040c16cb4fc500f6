"""How a process that was forked for us is ended."""

from __future__ import annotations

import fcntl
import os
import resource
import signal

import pytest

from cloister.process.child import Child


def test_it_is_ended_also_where_its_descriptor_is_beyond_what_select_takes() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("this user may not have so many descriptors")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    pid = os.fork()
    if not pid:
        signal.pause()
    pidfd = os.pidfd_open(pid)
    child = Child()
    child.born(fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, 2000))
    os.close(pidfd)
    child.kill(wait_s=10)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
