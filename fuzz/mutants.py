"""The planted bugs: a name, where it sits, and the rule that it breaks (a key of `k3mem.fuzz.rules`).

Those here replace a function of our own while their context is open; those of the C core live in
`k3mem.fuzz.mutants_native` and need the build with planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3mem.fuzz import plants as p
from k3mem.fuzz import plants_corners as c
from k3mem.fuzz import plants_failure as f
from k3mem.fuzz import plants_order as o
from k3mem.fuzz import plants_plans as l
from k3mem.fuzz import plants_queue as q
from k3mem.fuzz import plants_rules as r
from k3mem.fuzz import plants_sched as s
from k3mem.fuzz import plants_sessions as d
from k3mem.fuzz import plants_speculation as v
from k3mem.fuzz import plants_tree as t
from k3mem.fuzz.patching import Plant
from k3mem.radix import Kind


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    where: str
    breaks: str
    """Key of the rule that forbids it."""
    plant: Callable[[], Plant]


def _of(where: str, breaks: str, *factories: Callable[[], Plant]) -> list[Mutant]:
    return [Mutant(factory.__name__, where, breaks, factory) for factory in factories]


def _named(name: str, where: str, breaks: str, plant: Callable[[], Plant]) -> Mutant:
    return Mutant(name, where, breaks, plant)


MUTANTS: tuple[Mutant, ...] = (
    # arena
    *_of("sched/close", "arena.owner", p.donated_and_freed, l.freed_twice_on_abort),
    *_of("pool/arena", "arena.owner", p.handles_are_views),
    *_of("sched/builder", "arena.owner", o.page_of_two_ids),
    *_of("sched/builder", "arena.tables", l.tables_miss_moves, o.one_id_at_two_places),
    *_of("sched/decode", "arena.tables", p.half_translated),
    *_of("pool/arena", "arena.ends", r.pages_grow_down),
    *_of("sched/moves", "arena.moves", l.moves_through_the_new_table, l.moves_are_dropped),
    *_of("sched/builder", "arena.disjoint", l.batches_are_one, o.overlapping_moves, o.chain_in_one_batch),
    *_of("pool/arena", "arena.bounded", r.moves_know_no_bound),
    *_of("sched/admit", "arena.head", r.small_ones_overtake),
    *_of("sched/scheduler", "arena.moves_alone", r.moves_alone_are_nothing),
    *_of("pool/arena", "arena.eager", r.compaction_is_silent),
    *_of("pool/arena", "arena.lease", f.leases_do_not_hold, p.capacity_remembered),
    *_of("sched/spare", "arena.lease", f.spare_drops_what_is_held),
    *_of("pool/arena", "arena.lease_one", r.a_lease_stops_all_moves),
    *_of("sched/cache", "arena.joint", p.only_states_are_evicted),
    *_of("sched/room", "arena.all_or_nothing", f.cancel_keeps_its_bytes, p.one_spare_for_two),
    *_of("sched/admit", "arena.all_or_nothing", p.fork_before_admission, t.refused_keeps_its_lock),
    *_of("sched/builder", "arena.clean", p.pages_are_not_zeroed, r.zeroed_a_plan_later),
    *_of("sched/admit", "arena.next_phase", r.output_is_reserved, r.first_decode_page_is_forgotten),
    *_of("sched/close", "arena.pass", r.writer_unlocks_what_it_published),
    # tree
    *_of("sched/prefill", "tree.depth", p.snapshot_is_a_reference, l.snapshot_one_off, t.packed_grid),
    *_of("executors/mock", "tree.depth", p.interior_never_filled),
    _named("published_at_most", "sched/cache", "tree.depth", lambda: t.published_at_most(32)),
    *_of("sched/close", "tree.lock", t.unlocks_to_the_root),
    *_of("sched/admit", "tree.source", r.source_stays_locked),
    *_of("sched/admit", "tree.writer", l.tail_page_is_shared),
    *_of("sched/scheduler", "tree.writer", l.deltas_are_forgotten),
    *_of("sched/cache", "tree.takes_over", r.deeper_owner_does_not_take_over),
    *_of("sched/admit", "tree.tail_copy", l.tails_are_not_copied, o.tail_copied_back),
    *_of("sched/admit", "tree.pure", t.resume_deletes_deeper),
    *_of("sched/admit", "tree.admission", r.matched_a_plan_ago),
    *_of("sched/cache", "tree.tokens", t.loose_match),
    *_of("sched/cache", "tree.scope", s.salt_is_ignored, s.adapter_is_ignored),
    *_of("sched/builder", "tree.scope", r.scope_is_left_out),
    *_of("engine", "tree.media", s.media_are_one),
    *_of("sched/scheduler", "tree.life", p.published_when_planned),
    *_of("sched/cache", "tree.life", f.emptied_tree_remembers),
    *_of("sched/admit", "tree.life", r.hits_are_not_touched),
    *_of("sched/cache", "tree.life", s.evicts_one_more),
    # scheduling
    *_of("sched/cache", "sched.resume", t.hit_reduced_for_kv_only, t.kv_hit_without_state),
    *_of("sched/builder", "sched.resume", l.restore_is_forgotten, o.chunk_begins_early),
    *_of("sched/cache", "sched.one_token", t.whole_prompt_hits),
    *_of("sched/builder", "sched.zero", p.states_are_not_zeroed, p.single_tokens_are_decodes),
    *_of("sched/decode", "sched.states", l.targets_begin_anew),
    *_of("sched/room", "sched.optional", p.a_target_is_a_must),
    *_of("sched/prefill", "sched.order", r.chunk_ends_first),
    *_of("sched/admit", "sched.queue_first", r.targets_before_the_queue),
    *_of("sched/admit", "sched.takeover", f.takeover_stays_in_the_tree, r.takes_over_what_others_use),
    *_of("pool/pingpong", "sched.donated", r.snapshot_shares_the_donation),
    *_of("sched/close", "sched.donated", r.donated_while_written),
    *_of("sched/cache", "sched.superseded", r.superseded_is_freed),
    *_of("sched/follow", "sched.followed", q.slots_are_chunk_ends),
    *_of("sched/prefill", "sched.budget", s.budget_per_request),
    *_of("sched/decode", "sched.decode_first", q.decodes_wait_for_prompts),
    *_of("sched/prefill", "sched.chunk", q.chunks_stop_short),
    *_of("sched/prefill", "sched.off_grid", p.chunks_end_anywhere),
    *_of("sched/anchors", "sched.off_grid", r.checkpoint_off_the_grid),
    _named("clamp_of_its_own", "sched/admit", "sched.pressure", lambda: p.clamp_of_its_own(4)),
    *_of("sched/scheduler", "sched.impossible", f.anything_is_admitted, f.ids_may_repeat),
    *_of("engine", "sched.latch", q.latch_is_forgotten),
    *_of("sched/pins", "sched.progress", s.pins_never_give_way),
    *_of("sched/job", "sched.rank", s.priority_is_ignored),
    *_of("sched/decode", "sched.highest", s.first_is_retracted),
    *_of("sched/close", "sched.keeps_rank", s.retracted_loses_its_rank),
    *_of("sched/decode", "sched.victim", q.victim_keeps_its_row),
    *_of("sched/admit", "sched.victim", q.preempted_too_late),
    *_of("sched/close", "sched.victim_state", l.donated_at_the_cut),
    *_of("sched/close", "sched.victim_bytes", l.freed_before_the_last_reader),
    *_of("sched/follow", "sched.follower", s.follower_waits_for_anyone, q.followers_wait_without_a_slot),
    *_of("sched/follow", "sched.holds_nothing", q.followers_hold_a_state),
    *_of("sched/follow", "sched.judged", q.followers_are_judged_once),
    *_of("sched/follow", "sched.patience", q.followers_wait_for_ever),
    *_of("sched/follow", "sched.lends", q.followers_lend_nothing),
    *_of("sched/commit", "sched.same", s.tokens_twice),
    *_of("sched/sessions", "sched.session_bound", d.held_for_ever, d.bound_from_the_last),
    *_of("sched/sessions", "sched.session_idle", d.idle_and_held),
    *_of("sched/sessions", "sched.session_family", d.children_wait_outside, d.parents_come_too_late),
    *_of("sched/sessions", "sched.session_over", d.ends_are_ignored, d.ends_while_running_are_ignored,
         d.ends_while_held_are_ignored),
    *_of("sched/speculate", "sched.window", v.window_of_another_lane, v.window_past_the_drafts, v.planner_is_ignored,
         v.last_drafts_are_kept, v.drafts_of_another_lane),
    *_of("sched/speculate", "sched.learned", v.told_of_stops, v.told_with_the_bonus, v.told_of_another_row),
    *_of("sched/core", "sched.drafter", v.drafter_is_not_told, v.drafter_is_told_of_the_retracted),
    # plans: order, overlap, speculation
    *_of("executors/mock", "plan.order", o.moves_come_last, o.snapshots_come_late),
    *_of("sched/builder", "plan.order", o.page_in_use_is_zeroed, o.state_in_use_is_zeroed, o.restores_overlap),
    *_of("executors/mock", "plan.events", o.event_of_the_step_before),
    *_of("sched/builder", "plan.rows", o.target_is_the_working_state, o.target_is_anothers_state, o.rows_share_a_page,
         o.rows_share_a_state, o.row_planned_twice),
    *_of("sched/prefill", "plan.visible", o.restored_before_the_write, o.restore_of_a_target),
    *_of("events", "plan.told", q.events_before_their_step, q.events_come_backwards, q.failed_checkpoints_are_events),
    *_of("executors/mock", "plan.fold", p.fold_stops_short, p.no_fold, l.fold_runs_twice, l.fold_counts_by_row),
    *_of("sched/builder", "plan.fold", p.window_is_drafts),
    *_of("executors/mock", "plan.scratch", p.records_survive_their_tenant),
    *_of("executors/mock", "plan.done", l.done_is_ignored),
    *_of("executors/mock", "plan.conditional", p.snapshot_over_drafts),
    *_of("sched/commit", "plan.conditional", p.unwritten_is_published),
    *_of("sched/anchors", "plan.capture", p.capture_ignored),
    *_of("sched/commit", "plan.by_lane", p.counts_by_row),
    *_of("sched/builder", "plan.by_lane", p.shared_plan_buffers),
    *_of("sched/lanes", "plan.by_lane", l.generation_stays),
    *_of("executors/mock", "plan.by_lane", o.generation_is_ignored),
    # plans: failure
    *_of("sched/builder", "plan.resync", f.resync_is_skipped, f.resync_forgets_pages),
    *_of("sched/failure", "plan.damage", f.damage_is_ignored, f.stamps_survive_a_failure),
    *_of("sched/failure", "plan.lost", f.lost_is_unknown),
    *_of("sched/scheduler", "plan.lost", f.no_effect_is_a_launch),
    *_of("sched/commit", "plan.three", f.failures_never_forgotten),
    # accounts, reuse, time
    *_of("sched/cache", "better.causes", t.only_the_joint_hit),
    *_of("sched/admit", "better.causes", s.counted_at_every_admission),
    _named("no_prompt_ends", "sched/anchors", "better.prompt_end", lambda: t.no_anchor(Kind.PROMPT_END)),
    *_of("sched/prefill", "better.prompt_end", s.targets_are_skipped),
    *_of("sched/cache", "better.prompt_end", s.nothing_is_reused),
    *_of("sched/close", "better.answer_end", s.answers_are_not_kept),
    *_of("sched/cache", "better.answer_end", s.tails_are_not_matched),
    *_of("sched/anchors", "better.anchors", t.anchors_from_the_resume_depth),
    *_of("sched/pins", "api.pin", s.pins_never_end, q.pins_by_the_wall),
    *_of("sched/scheduler", "api.deadline", s.deadlines_by_the_wall, s.deadlines_never_come),
    *_of("sched/scheduler", "api.abort", s.abort_is_silent),
    # corner cases, by somebody who had not read the fuzzer
    *_of("sched/launch", "better.causes", c.counted_after_publishing),
    *_of("sched/failure", "plan.damage", c.seated_without_a_row),
    *_of("sched/scheduler", "api.deadline", c.timed_by_the_last),
    *_of("sched/anchors", "plan.capture", c.cut_on_pages),
    *_of("sched/follow", "sched.follower", c.followers_of_strangers),
    *_of("engine", "tree.media", c.pictures_share_a_number),
    *_of("engine", "sched.pressure", c.refused_sleep_sleeps),
    *_of("sched/decode", "plan.conditional", c.pending_is_named_once),
    *_of("sched/scheduler", "plan.resync", c.offset_of_the_seat),
    # the fuzzer itself
    *_of("sched/launch", "fuzz.steps", s.canary),
)
"""All planted bugs of the Python side."""

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
assert len(BY_NAME) == len(MUTANTS), "two mutants have one name"
