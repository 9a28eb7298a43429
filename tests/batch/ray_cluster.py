"""A Ray cluster of some nodes on loopback, for tests: run as a script, it lives until standard input ends.

Prints one JSON line: the cluster's address and the process ids of the nodes' raylets. Each node has a
HERMES_HOME of its own, as nodes on two machines would have; Ray's folder, the cores of a node and the homes
are the arguments.
"""

from __future__ import annotations

import json
import os
import sys


def main(ray_folder: str, cores: str, *homes: str) -> None:
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as on one machine: everything on loopback
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = [
        cluster.add_node(
            num_cpus=int(cores),
            include_dashboard=False,
            temp_dir=ray_folder,
            env_vars={"HERMES_HOME": home},
        )
        for home in homes
    ]
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    report = {"address": cluster.address, "second_raylet": raylets[-1], "raylets": raylets}
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    for node in (*cluster.worker_nodes, cluster.head_node):
        node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
