"""How `make interop` runs the tests: they mostly wait, so several run at a time, each worker in a network namespace
of its own.

So no test takes another one's port, and a restarted server finds its port free. The tests themselves are plain
unittest: `/usr/bin/python3 -m unittest -v test_nbd` runs them one by one and needs no pytest."""

import os

import pytest

import weft

# The longest tests start first, so that no worker is left with one of them at the end.
FIRST = ("test_blocking.py", "test_replica", "test_reach.py", "test_clients.py::Large", "test_nfs.py::Deaths", "test_deadlines.py", "test_manners.py::Waits",
         "test_tshark.py", "test_lasting.py")


def rank(item):
    """Its position in FIRST, or after all of them."""
    return next((at for at, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))


def pytest_xdist_auto_num_workers(config):
    """`-n auto`. A network namespace needs root: without it the ports are shared, and one test runs at a time."""
    return int(os.environ.get("JOBS", 6)) if os.geteuid() == 0 else 1


def pytest_configure(config):
    if os.environ.get("PYTEST_XDIST_WORKER") and os.geteuid() == 0:
        # Lasts as long as this worker.
        network = weft.own_network()
        network.__enter__()
        config.add_cleanup(lambda: network.__exit__(None, None, None))


def pytest_collection_modifyitems(items):
    items.sort(key=rank)
    for item in items:
        if weft.is_alone(item.cls):
            item.add_marker(pytest.mark.alone)
