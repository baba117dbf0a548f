import asyncio

import benchflow as bf


async def main() -> None:
    result = await bf.run(
        "benchmarks/clawsbench/tasks/book-the-review-room",
        agent="oracle",
        branch="ask-user",
        jobs_dir="jobs",
    )
    print("V(root) =", result.reward)
    for trajectory in result.trajectories:
        print(trajectory.branch, "->", trajectory.reward)
    print("for the trainer:", result.directory / "trainer" / "verifiers.jsonl")


asyncio.run(main())
