"""Start a Ray of its own on this machine, run tasks and an actor that fails once, and print what happened.

It shows retries, a bounded number of tasks in flight, and resources. Exit code 1: a result is wrong.
"""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=options.cpus, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_cpus=0.5, max_retries=2)
    def square(number: int) -> int:
        return number * number

    @ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        def add(self, amount: int) -> int:
            self.total += amount
            return self.total

    pending: list[object] = []
    results = []
    for number in range(options.tasks):
        if len(pending) >= options.in_flight:
            done, pending = ray.wait(pending, num_returns=1)
            results += ray.get(done)
        pending.append(square.remote(number))
    results += ray.get(pending)
    counter = Counter.remote()
    total = ray.get([counter.add.remote(value) for value in results])[-1]
    expected = sum(number * number for number in range(options.tasks))
    print(f"{len(results)} tasks, sum {total}, expected {expected}")
    print(f"resources: {ray.cluster_resources().get('CPU')} CPUs")
    ray.shutdown()
    return 0 if total == expected else 1


if __name__ == "__main__":
    sys.exit(main())
