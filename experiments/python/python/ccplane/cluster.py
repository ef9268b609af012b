"""Ray: the processors of this machine, or a cluster that runs already."""

from __future__ import annotations

import os


def connect(processors: int) -> None:
    """Makes Ray ready, where it is not yet.

    `RAY_ADDRESS` names a cluster to connect to, and Ray sets it for jobs that were submitted to one. Without it Ray starts on this machine.

    Args:
        processors: those that Ray may use on this machine; a cluster has its own number.
    """
    import ray

    if ray.is_initialized():
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init(num_cpus=processors, include_dashboard=False)
