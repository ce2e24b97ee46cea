"""Simulators on the host, stepped by callbacks from inside the compiled program."""

__all__ = [
    "ale_pool",
    "callback",
    "conversions",
    "errors",
    "pools",
    "shared_memory",
    "step_checks",
    "supervisor",
    "vector_pool",
    "worker",
    "worker_pool",
    "worker_processes",
]
