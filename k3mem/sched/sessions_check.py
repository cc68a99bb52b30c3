"""Every invariant of session admission. Raises Corrupted. O(jobs + sessions in)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NoReturn

from k3mem.errors import Corrupted
from k3mem.sched.family import STATES
from k3mem.sched.job import Job
from k3mem.sched.sessions import Sessions


def check_sessions(s: Sessions, jobs: Mapping[Hashable, Job]) -> None:
    """Every invariant, beside all jobs by request id. Raises Corrupted. O(jobs + sessions in)."""
    if set(s.held) != s._arrived.keys() or list(s.held) != sorted(s.held, key=lambda job: job.rank):
        _fail("held jobs", [job.request.id for job in s.held], "those that arrived, by rank")
    if not s._over <= {job.request.session for job in s._arrived}:
        _fail("ended sessions", s._over, "those of held jobs")
    inside = {job for job in jobs.values() if job.request.session is not None and job not in s._arrived}
    if inside != s._inside.keys() or not s._back <= s._inside.keys():
        _fail("jobs inside", sorted(str(j.request.id) for j in s._inside), "the jobs of sessions, not held")
    late = next(iter(s._arrived.values()), math.inf) + s.policy.bound
    if s._planned > late:
        _fail("time of the last plan", s._planned, f"{late}, when a request that is held had to go in")
    if not s._joined and any(s._key(job) in s._in for job in s.held):
        _fail("held jobs of families that are in", s.held, "none")
    _check_families(s)


def _check_families(s: Sessions) -> None:
    counts = Counter((family.key, job.request.session) for job, family in s._inside.items())
    lines = [(family, session, line) for family in s._in.values() for session, line in family.lines.items()]
    for family, session, line in lines:
        if line.jobs != counts.pop((family.key, session), 0) or s._roots.get(session) != family.key:
            _fail(f"session {session!r} of family {family.key!r}", line, "one with its own jobs")
    if counts or len(s._roots) != len(lines):
        _fail("sessions of families", [*counts, *s._roots], "lines of families that are in")
    sums = (sum(line.pages for *_, line in lines), STATES * len(lines))
    if (s.pages, s.states) != sums:
        _fail("sum of working sets", (s.pages, s.states), sums)
    settling = {id(family) for family, _ in s._settling}
    for key, family in s._in.items():
        if family.jobs != sum(line.jobs for line in family.lines.values()) or not family.lines:
            _fail(f"family {key!r}: jobs", family.jobs, "those of its sessions, of which there is one at least")
        if (key in s._quiet) != (not family.jobs) and id(family) not in settling:
            _fail(f"family {key!r}: quiet", key in s._quiet, not family.jobs)
        if family.suspended and not family.jobs and id(family) not in settling:
            _fail(f"family {key!r}: suspended and quiet", True, "out")
    if not s._quiet.keys() <= s._in.keys() or s._gone.keys() & s._in.keys():
        _fail("families", [*s._quiet, *s._gone], "quiet ones in, gone ones out")
    if list(s._quiet.values()) != sorted(s._quiet.values()):
        _fail("quiet since", list(s._quiet.values()), "ascending")


def _fail(what: str, value: object, expected: object) -> NoReturn:
    raise Corrupted(f"sessions: {what} = {value}, but it should be {expected}")
