"""Who waits, by rank; and who of them begin alike."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from sortedcontainers import SortedKeyList

from k3mem.sched.job import Job, Rank
from k3mem.types import ScopeId

Opening = tuple[ScopeId, bytes]


class Queue:
    """Waiting jobs in order of rank. Those with the same scope and the same first grid of tokens can be listed alone:
    only they can have a checkpoint in common. O(log n) a change, and a move of those behind among those alike.

    A job's rank and its tokens stay while it is in here.
    """

    def __init__(self, grid: int) -> None:
        self.grid = grid
        self._jobs = SortedKeyList(key=_rank)
        self._alike: dict[Opening, list[Job]] = {}
        """Each in order of rank."""

    def add(self, job: Job) -> None:
        """A job waits."""
        job.opening = job.tokens[: self.grid].tobytes() if job.count > self.grid else None
        job.shared.clear()
        self._jobs.add(job)
        if job.opening is not None:
            insort(self._alike.setdefault((job.scope, job.opening), []), job, key=_rank)

    def remove(self, job: Job) -> None:
        """A job waits no more. Raises ValueError where it does not."""
        self._jobs.remove(job)
        if job.opening is not None:
            alike = self._alike[job.scope, job.opening]
            del alike[bisect_left(alike, job.rank, key=_rank)]
            if not alike:
                del self._alike[job.scope, job.opening]

    def pop(self, index: int = 0) -> Job:
        """The job at an index, which leaves."""
        job: Job = self._jobs[index]
        self.remove(job)
        return job

    def clear(self) -> None:
        """Nobody waits."""
        self._jobs.clear()
        self._alike.clear()

    def alike(self, scope: ScopeId, opening: bytes, first: Rank, last: Rank) -> Iterator[Job]:
        """Jobs of ranks first .. last that begin with this, in order."""
        jobs = self._alike.get((scope, opening), [])
        return iter(jobs[bisect_left(jobs, first, key=_rank) : bisect_right(jobs, last, key=_rank)])

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __getitem__(self, index: int) -> Job:
        job: Job = self._jobs[index]
        return job

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    def check(self) -> list[str]:
        """What is wrong with the lists of those who begin alike, one sentence each. O(waiting)."""
        wrong: list[str] = []
        alike: dict[Opening, list[int]] = {}
        for job in self._jobs:
            opening = job.tokens[: self.grid].tobytes() if job.count > self.grid else None
            if job.opening != opening:
                wrong.append(f"the opening of job {job.request.id!r} is not that of its tokens")
            if opening is not None:
                alike.setdefault((job.scope, opening), []).append(id(job))
        if alike != {key: [id(job) for job in jobs] for key, jobs in self._alike.items()}:
            wrong.append("those who begin alike are not those who wait")
        return wrong


def _rank(job: Job) -> Rank:
    return job.rank
