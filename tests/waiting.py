"""Waiting for what other processes do."""

import time


def wait_until(condition, seconds, interval=0.01):
    """Wait until `condition()` is true, and return its value; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "took too long"
        time.sleep(interval)
    return value
