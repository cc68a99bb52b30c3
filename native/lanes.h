/* Lanes: what every step does with all running requests at once. The tables are the caller's (numpy arrays of
 * k3mem.sched.lanes), one entry a lane; this only reads and writes them, in one pass a call. No call allocates.
 *
 *   plan:   ready -> survey -> give (pages that the caller took) -> touch (pages written for the first time)
 *   launch: launch        commit: judge, then commit        cancel: untouch, take (backwards)
 */
#ifndef K3_LANES_H
#define K3_LANES_H
#include "k3.h"

/* Planted bugs of a step's passes (see k3.h). */
enum {
  K3_MUTANT_COVERED = 70,    /* a row may begin a page that its lane has, but that nobody handed to the device yet */
  K3_MUTANT_STILL_NEW = 71,  /* of what a plan writes only the first entry counts as written: moves leave the rest */
  K3_MUTANT_ALL_DEAD = 72,   /* with one entry that went meanwhile, its whole batch of moves is dropped */
};

/* cffi: begin */
enum { K3_LANE_FREE = 0, K3_LANE_PREFILL = 1, K3_LANE_DECODE = 2, K3_LANE_DRAIN = 3 };

/* An int32 list in memory of the caller's. */
typedef struct {
  int32_t *items;
  int64_t capacity, count;
} k3_list;

/* Where a lane stands in the order of who goes first: the lexicographically smallest does. */
typedef struct {
  int64_t word[3];
} k3_rank;

typedef struct {
  int64_t n, span; /* lanes; positions of a page */
  int8_t *phase;   /* K3_LANE_* */
  uint8_t *watched;
  int32_t *generation, *launched, *inflight, *covered, *touched, *limit;
  int64_t *last_step;
  k3_rank *rank;
  k3_list *text; /* tokens of the request, prompt and committed output */
  k3_list *held; /* its page list */
} k3_lanes;

/* Rows of a plan. Decode and verify rows, n: window[i] tokens in each of `steps` steps, from the lane's launched depth
 * on; window NULL: one token. Once the plan is launched, all rows, n_all, of which these are the first. */
typedef struct {
  const int32_t *lane, *window, *all;
  const uint8_t *sample;
  int64_t n, steps, n_all;
} k3_lane_rows;

/* All rows of a plan as its arrays have them: n decode and verify rows (lane, start, window NULL: one token), and behind
 * them n_chunks of chunks[][4] = lane, start, end, whether it samples. */
typedef struct {
  int64_t n, n_chunks;
  const int32_t *lane, *start, *window, *chunks;
} k3_plan_rows;

/* What those rows lack. */
typedef struct {
  int64_t n_short; /* rows whose pages do not reach their end */
  int64_t pages;   /* pages that these need in all */
  int64_t n_fresh; /* pages that rows are the first to write to */
} k3_lane_needs;

/* What a commit did and what is left to the caller. */
typedef struct {
  int64_t n_loud;   /* rows with tokens that were not booked: the lane ends, drains, or has no room for them */
  int64_t quiet;    /* tokens of the rows that were */
  int64_t overruns; /* rows that sample, and committed nothing */
} k3_lane_booked;

/* Lanes that decode and may go on, in order, into out[n], and where their rows start into start[n]; how many. idle:
 * only those without a row in flight. covered: whether a row of one token each stays within pages that its lane has
 * and writes to already. O(lanes). */
int64_t k3_lanes_ready(const k3_lanes *l, int idle, int32_t *out, int32_t *start, int *covered);
/* How many steps these rows of one token may go on for, up to where the first of them ends, if they are those of all
 * lanes that decode, only such lanes run (`running` in all), and none of them is watched; else 0. O(lanes). */
int64_t k3_lanes_uniform(const k3_lanes *l, const k3_lane_rows *r, int64_t running);
/* Write them: words[4][n + n_chunks] (lane, start, length, generation), kind and sample [n + n_chunks] (kinds as given;
 * verify: rows of more than one token). O(rows). */
void k3_lanes_rows(const k3_lanes *l, const k3_plan_rows *r, int prefill, int decode, int verify, int32_t *words,
                   uint8_t *kind, uint8_t *sample);
/* Which rows lack pages: into row[n] and need[n] (pages), best ranks first. O(rows + lacking x log^2). */
void k3_lanes_survey(const k3_lanes *l, const k3_lane_rows *r, int32_t *row, int32_t *need, k3_lane_needs *out);
/* need[i] of the pages, in order, go to lane r->lane[row[i]], for each of n. K3_E_CORRUPT, nothing changed: a list is
 * full. O(pages). */
int k3_lanes_give(k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n,
                  const int32_t *pages);
/* Put the pages that rows of several steps lack, as surveyed, in order for `give`: page after page goes to the row that
 * first needs one when steps run one by one, of equals to the better rank. key: scratch[2 n]. O(n log^2 n + rows x
 * pages of one row). */
void k3_lanes_deal(const k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n,
                   const int32_t *pages, int64_t *key, int32_t *dealt);
/* The way back from `give`. O(n). */
void k3_lanes_take(k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n);
/* Rows write to pages for the first time: (lane, index, page) of each into fresh[n_fresh][3], and those that the row
 * does not overwrite whole into zero[n_fresh]; returns how many of these. Rows of one step write all of their window
 * (those of a lane that has ended write nothing, but nobody reads that lane's pages any more), rows of several steps
 * may end early. O(rows + fresh). */
int64_t k3_lanes_touch(k3_lanes *l, const k3_lane_rows *r, int32_t *fresh, int32_t *zero);
/* The way back. O(n). */
void k3_lanes_untouch(k3_lanes *l, const int32_t *fresh, int64_t n);
/* The plan of these rows is launched as steps up to `step`. Returns whether the commit of a decode or verify row may
 * end its lane: at its limit, or where the lane is watched. O(rows). */
int k3_lanes_launch(k3_lanes *l, const k3_lane_rows *r, int64_t step);
/* Whether a result is what all rows may bring: 0 <= accepted <= window x steps, or sample[i] beyond them, in all
 * n_tokens; done <= last_done. O(rows). */
int k3_lanes_judge(const k3_lane_rows *r, const int32_t *accepted, const uint8_t *done, int64_t n_tokens,
                   int last_done);
/* Book a launched plan's result, row after row: the lane stands where it has really absorbed to, and gets its tokens.
 * Rows whose lane is done or drains, or whose text is full, get none: for the caller, loud[n_all][2] holds their
 * numbers and where in `tokens` theirs end. 0, nothing changed: it does not pass k3_lanes_judge. O(rows + tokens). */
int k3_lanes_commit(k3_lanes *l, const k3_lane_rows *r, const int32_t *accepted, const uint8_t *done,
                    const int32_t *tokens, int64_t n_tokens, int last_done, int32_t *loud, k3_lane_booked *out);
/* cffi: end */

#endif
