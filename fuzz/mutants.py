"""The planted bugs: a name, where it sits, and the line of architecture.md, section 5, that it breaks.

Those here replace a function of our own while their context is open; those of the C core live in
`k3mem.fuzz.mutants_native` and need the build with planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3mem.fuzz import plants, plants_more, plants_tree
from k3mem.fuzz.patching import Plant
from k3mem.radix import Kind


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    where: str
    breaks: str
    """The line that forbids it."""
    plant: Callable[[], Plant]


ACCOUNT = "Arena: fixed + live + holes + pending + gap + pad = capacity; no id has two owners"
MOVES = "Arena: moves carry explicit source and destination; within one batch byte ranges are disjoint"
LEASED = "Arena: a leased entry neither moves nor is reused"
JOINT = "Arena: capacity is joint; reserve all that the next phase needs, or nothing; every exit gives all back"
CLEAN = "Arena: a handed-out page or state never shows an earlier tenant's bytes"
OWNER = "Tree: a page belongs to the writer while the request runs; a tail references rows below its end"
END = "Tree: checkpoint depth == node end depth"
LOCK = "Tree: a lock is one count on the deepest node used"
PURE = "Tree: match is a pure read; touch, split and lock happen at admission"
SCOPE = "Tree: key scope = tenant salt, adapter, draft; media digests at their placeholders; scopes share nothing"
TOKENS = "Tree: lookups compare tokens"
LIFE = "Tree: life of a checkpoint: target -> launched -> committed -> evictable -> ghost"
RESUME = "Scheduling: resume depth == depth of the state, and at least one token is computed; depth 0 means zero state"
BOUND = "Scheduling: a running request owns a bounded number of states; targets are optional; no room is never a stall"
BUDGET = "Scheduling: the token budget is per step over all rows; chunks end on the grid"
PRESSURE = "Scheduling: pressure is a return value, impossibility an exception at submit"
PROGRESS = "Scheduling: every step makes progress or says what it waits for"
RETRACT = "Scheduling: retraction ranks by (priority, first admission); the highest is never retracted"
VICTIM = "Scheduling: a victim gets no row from this plan on; its bytes count when its last launched step commits"
FOLLOW = "Scheduling: a follower waits only for a running leader, and never longer than its own cold prefill"
SAME = "Scheduling: the same prompts give the same tokens with everything on or off"
MISSES = "Better 6: every input token is a hit or has one cause; the sum is exact"
FLOOR = "Better 2: the prompt's end and the answer's end can be resumed from"
VISIBLE = "Plan: a checkpoint may be restored from by plans after the one that writes it"
FAILURE = "Plan: if step N fails, damage and all that stands on it goes; the next plan is a resync"
EXACT = "Plan: after every step the working state is exact; the fold replays just the accepted records"
BY_LANE = "Plan: results are keyed by (lane, generation); commit judges a step by its own plan"


def _of(where: str, breaks: str, *factories: Callable[[], Plant]) -> list[Mutant]:
    return [Mutant(factory.__name__, where, breaks, factory) for factory in factories]


def _named(name: str, where: str, breaks: str, plant: Callable[[], Plant]) -> Mutant:
    return Mutant(name, where, breaks, plant)


p, t, m = plants, plants_tree, plants_more

MUTANTS: tuple[Mutant, ...] = (
    # arena
    *_of("sched/close", ACCOUNT, p.donated_and_freed, m.freed_twice_on_abort),
    *_of("pool/arena", ACCOUNT, p.handles_are_views),
    *_of("sched/moves", MOVES, m.moves_through_the_new_table, m.moves_are_dropped, m.tables_miss_moves),
    *_of("sched/decode", "Arena: ids are virtual; a table maps them to places", p.half_translated),
    *_of("pool/arena", LEASED, m.leases_do_not_hold),
    *_of("sched/spare", LEASED, m.spare_drops_what_is_held),
    *_of("sched/cache", JOINT, p.only_states_are_evicted),
    *_of("sched/room", JOINT, m.cancel_keeps_its_bytes, p.one_spare_for_two),
    *_of("sched/admit", JOINT, p.fork_before_admission, t.refused_keeps_its_lock),
    *_of("sched/builder", CLEAN, p.pages_are_not_zeroed, p.states_are_not_zeroed, p.single_tokens_are_decodes),
    # snapshots, donation, tree
    *_of("sched/prefill", END, p.snapshot_is_a_reference, m.snapshot_one_off, t.packed_grid),
    *_of("sched/anchors", END, p.capture_ignored),
    *_of("executors/mock", END, p.interior_never_filled),
    _named("published_at_most", "sched/cache", END, lambda: t.published_at_most(32)),
    *_of("sched/close", END, m.donated_at_the_cut),
    *_of("sched/admit", OWNER, m.tails_are_not_copied, m.tail_page_is_shared, m.takeover_stays_in_the_tree),
    *_of("sched/scheduler", OWNER, m.deltas_are_forgotten),
    *_of("sched/close", LOCK, t.unlocks_to_the_root),
    *_of("sched/admit", PURE, t.resume_deletes_deeper),
    *_of("sched/cache", TOKENS, t.loose_match),
    *_of("sched/cache", SCOPE, m.salt_is_ignored, m.adapter_is_ignored),
    *_of("engine", SCOPE, m.media_are_one),
    *_of("sched/scheduler", LIFE, p.published_when_planned),
    *_of("sched/cache", LIFE, m.emptied_tree_remembers),
    # speculation, overlap
    *_of("executors/mock", EXACT, p.fold_stops_short, p.no_fold, p.records_survive_their_tenant,
         p.snapshot_over_drafts, m.fold_runs_twice, m.fold_counts_by_row, m.done_is_ignored),
    *_of("sched/commit", EXACT, p.unwritten_is_published),
    *_of("sched/builder", EXACT, p.window_is_drafts),
    *_of("sched/commit", BY_LANE, p.counts_by_row),
    *_of("sched/builder", BY_LANE, p.shared_plan_buffers),
    *_of("sched/lanes", BY_LANE, m.generation_stays),
    *_of("sched/close", VICTIM, m.freed_before_the_last_reader),
    # failure
    *_of("sched/builder", FAILURE, m.resync_is_skipped, m.resync_forgets_pages),
    *_of("sched/failure", FAILURE, m.damage_is_ignored, m.stamps_survive_a_failure, m.lost_is_unknown),
    *_of("sched/scheduler", FAILURE, m.no_effect_is_a_launch),
    *_of("sched/commit", FAILURE, m.failures_never_forgotten),
    # scheduling
    *_of("sched/cache", RESUME, t.whole_prompt_hits, t.hit_reduced_for_kv_only, t.kv_hit_without_state),
    *_of("sched/builder", RESUME, m.restore_is_forgotten),
    *_of("sched/decode", BOUND, m.targets_begin_anew),
    *_of("sched/room", BOUND, p.a_target_is_a_must),
    *_of("sched/prefill", BUDGET, m.budget_per_request, p.chunks_end_anywhere),
    *_of("sched/anchors", BUDGET, t.anchors_from_the_resume_depth),
    *_of("sched/scheduler", PRESSURE, m.anything_is_admitted, m.ids_may_repeat),
    _named("clamp_of_its_own", "sched/admit", PROGRESS, lambda: p.clamp_of_its_own(4)),
    *_of("sched/pins", PROGRESS, m.pins_never_give_way),
    *_of("sched/pins", "API: a pin ends at its ttl", m.pins_never_end),
    *_of("sched/scheduler", "API: time is injected; abort takes effect at the next plan", m.deadlines_by_the_wall,
         m.deadlines_never_come, m.abort_is_silent),
    *_of("sched/decode", RETRACT, m.first_is_retracted),
    *_of("sched/close", RETRACT, m.retracted_loses_its_rank),
    *_of("sched/job", RETRACT, m.priority_is_ignored),
    *_of("sched/follow", FOLLOW, m.follower_waits_for_anyone),
    *_of("sched/commit", SAME, m.tokens_twice),
    # accounts, reuse
    *_of("sched/cache", MISSES, t.only_the_joint_hit),
    *_of("sched/admit", MISSES, m.counted_at_every_admission),
    *_of("sched/cache", FLOOR, m.nothing_is_reused, m.tails_are_not_matched, m.evicts_one_more),
    *_of("sched/close", FLOOR, m.answers_are_not_kept),
    *_of("sched/prefill", FLOOR, m.targets_are_skipped),
    _named("no_prompt_ends", "sched/anchors", FLOOR, lambda: t.no_anchor(Kind.PROMPT_END)),
    # the fuzzer itself
    *_of("sched/launch", "The fuzzer goes on for more than 1,000 steps", m.canary),
)
"""All planted bugs of the Python side."""

UNKILLED: tuple[Mutant, ...] = (
    *_of("sched/builder", MOVES, m.batches_are_one),
    *_of("pool/arena", LEASED, p.capacity_remembered),
)
"""Planted bugs that worlds do not show within their time: a chain of moves inside one plan is rare, and what a stale
answer about room costs is an eviction too many. The mock's check of plans holds the first, a scenario of its own
(tests/cases/test_pool_5.py) the second."""

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
assert len(BY_NAME) == len(MUTANTS), "two mutants have one name"
