/* The mock device's shadow memory, id tables, lanes and phases, and the oracle. What each does and reports is defined by
 * the reference device, executors/mock/{memory,tables,device,fresh}.py: same results, same findings in the same order,
 * same free choices. Texts are made in Python, from the notes here. */
#ifndef K3_MOCK_H
#define K3_MOCK_H
#include "k3.h"

/* cffi: begin */
enum { K3_MOCK_MAX_GROUPS = 16, K3_NOTE_ARGS = 6 };
enum { K3_NOWHERE = -1, K3_NOBODY = -1, K3_NO_LABEL = -1 };
enum { K3_MATRIX_ALIVE = 1, K3_WINDOW_ALIVE = 2 };

/* Who names an id: a lane's number, or one of these. */
enum {
  K3_BY_ZEROING = -1,
  K3_BY_COPY = -2,
  K3_BY_RESTORE = -3,
  K3_BY_WORKING = -4,
  K3_BY_TARGET = -5,
  K3_BY_SNAPSHOT = -6,
  K3_BY_FOLD = -7,
};

/* What a read of a state is for. */
enum { K3_TO_READ = 0, K3_TO_RESTORE = 1, K3_TO_FOLD = 2 };

/* Findings, with their arguments. */
enum {
  K3_NOTE_SINK,          /* by, kind, id */
  K3_NOTE_RANGE,         /* by, kind, id */
  K3_NOTE_NO_ENTRY,      /* by, kind, id */
  K3_NOTE_STALE,         /* by, kind, id, place, owner */
  K3_NOTE_MAP_RANGE,     /* kind, id, place */
  K3_NOTE_MAP_SINK,      /* kind, id, place */
  K3_NOTE_MAP_TWICE,     /* kind, id, other id, place */
  K3_NOTE_SEAT_RANGE,    /* lane */
  K3_NOTE_SEAT_AGAIN,    /* lane, generation */
  K3_NOTE_SEAT_DEEP,     /* lane, depth, limit */
  K3_NOTE_LIST_UNSEATED, /* lane */
  K3_NOTE_LIST_INDEX,    /* lane, index */
  K3_NOTE_ROW_UNSEATED,  /* lane */
  K3_NOTE_ROW_STALE,     /* lane, generation, tenant's */
  K3_NOTE_OVER,          /* lane, low, high, place, has writer, writer's lane; its generation follows in K3_NOTE_MORE */
  K3_NOTE_MORE,          /* a seventh argument of the note before */
  K3_NOTE_REST,          /* place, row */
  K3_NOTE_POISON_ROW,    /* row, place */
  K3_NOTE_UNWRITTEN,     /* row, place */
  K3_NOTE_COPY_POISON,   /* place */
  K3_NOTE_COPY_PART,     /* rows, place */
  K3_NOTE_POISON_STATE,  /* purpose, place */
  K3_NOTE_MOVE_UNOWNED,  /* kind, place */
  K3_NOTE_SHARED_STATE,  /* target, lane, other's target, other's lane, place */
  K3_NOTE_PREFILL_AT,    /* lane, start, depth */
  K3_NOTE_PREFILL_TOKEN, /* lane */
  K3_NOTE_DEEPER,        /* lane, depth, start */
  K3_NOTE_NO_TOKEN,      /* lane */
  K3_NOTE_PAGES_MISSING, /* lane, end, first, last */
  K3_NOTE_NO_PAGE,       /* lane, index */
  K3_NOTE_OTHER_STATE,   /* lane, depth */
  K3_NOTE_POISON_PAGE,   /* lane, place */
  K3_NOTE_BREAK,         /* lane, index */
  K3_NOTE_SAME_STEP,     /* lane, place, has writer, writer's lane, generation */
  K3_NOTE_HANDED_OUT,    /* id, place */
};

typedef struct {
  int64_t code;
  int64_t args[6];
} k3_mock_note;

/* A page that is alive. */
typedef struct {
  int64_t *rows;   /* [kv_groups][span] written value, 0 where zeroed, >= 2^62 where neither */
  int64_t *prefix; /* [span + 1][kv_groups] digest of rows 0 .. n - 1, valid for n <= known */
  int64_t *labels; /* [span] chain label of the prefix that ends with this row */
  int64_t known;
  int64_t head;       /* chain label of the prefix before row 0 */
  int64_t write_step; /* last step that wrote rows by a forward pass, and the lowest row it wrote */
  int64_t write_low;
  int64_t writer_lane, writer_generation; /* who last wrote a row by a forward pass, if has_writer */
  int64_t high;                           /* rows from here on are zero */
  int64_t covered; /* the epoch when a lane last remembered a digest of all rows, -1: never */
  bool has_writer;
} k3_mock_page;

/* A lane's new tenant; `script` and `stops` are copied. */
typedef struct {
  int64_t lane, generation, seed, state, depth, prompt, limit, last_token, done, draw;
  const int32_t *script;
  int64_t n_script;
  const int64_t *stops;
  int64_t n_stops;
} k3_mock_seat;

/* A lane as the device sees it. */
typedef struct {
  k3_mock_seat seat; /* depth, last_token and done are kept up to date; arrays are owned */
  bool seated;
  int32_t *pages; /* [n_pages] ids, -1 where no entry arrived */
  int64_t n_pages, pages_cap;
  int64_t cache_epoch; /* digest of the first cache_pages pages, valid while the memory's epoch is this */
  int64_t cache_pages, cache_label;
  int64_t cache_context[16];
} k3_mock_lane;

typedef struct {
  int64_t page_bytes, state_bytes, state_top, span, vocab_size;
  int64_t page_ids, state_ids, lanes;
  int32_t groups, kv_groups;
  bool read_all, strict_handout;
  uint64_t seed; /* of all free choices */
} k3_mock_config;

typedef struct {
  k3_mock_config config;
  int64_t places[2];    /* number of page and state places */
  k3_mock_page **pages; /* [places[0]] NULL: dead */
  int64_t *state;       /* [places[1]][4 * groups] matrix, then windows */
  int64_t *label;       /* [places[1]] chain label of the state's prefix, 0: zero state */
  uint8_t *alive;       /* [places[1]] K3_*_ALIVE */
  int32_t *owner[2];    /* [kind][place] id or K3_NOBODY */
  int32_t *place[2];    /* [kind][id] place or K3_NOWHERE */
  k3_mock_lane *lane;
  int64_t epoch; /* lanes' digests are valid while this stays: grows when a page changes that one covers */
  k3_mock_note *notes;
  int64_t n_notes, notes_cap; /* found since the last phase began */
  bool out_of_memory;
  uint64_t dice; /* state of the generator of free choices */

  /* inside */
  int64_t *power;                 /* [span + 1] of the digests' base */
  k3_mock_page *junk, **spare;    /* what stands for a page that cannot be had; dead pages' storage */
  int64_t n_spare, spare_cap;
  int32_t *handed_out;            /* page ids whose place changed hands in the running plan */
  int64_t n_handed_out, handed_out_cap;
  int64_t serial;                 /* of stamps */
  int64_t *place_stamp[2];        /* [kind][place] serial of the pass that saw it ... */
  int64_t *place_note[2];         /* ... and what it saw there */
  int64_t *lane_stamp;
} k3_mock;

/* A plan's arrays, as k3mem.plan.Plan has them; they must outlive the run. */
typedef struct {
  int64_t step, repeat;
  bool resync;
  const int32_t *moves, *page_table, *state_table, *lane_pages, *zero_pages, *zero_states, *page_copies, *restores;
  int64_t n_moves, n_page_table, n_state_table, n_lane_pages, n_zero_pages, n_zero_states, n_page_copies, n_restores;
  const k3_mock_seat *seats;
  int64_t n_seats;
  const uint8_t *kind, *sample;
  const int32_t *lane, *generation, *start, *length, *offset, *tokens, *snapshots;
  int64_t n_rows, n_offset, n_tokens, n_snapshots;
} k3_mock_plan;

typedef struct k3_mock_run k3_mock_run;

enum {
  K3_PHASE_MOVES,
  K3_PHASE_TABLES,
  K3_PHASE_ZEROING,
  K3_PHASE_COPIES,
  K3_PHASE_RESTORES,
  K3_PHASE_ROWS,
  K3_PHASE_FORWARD,
  K3_PHASE_SAMPLE,
  K3_PHASE_FOLD,
  K3_PHASE_END,
};

/* What an executor can do: see k3mem.executor.Capabilities. capture: 0 any, 1 grid, 2 final. */
typedef struct {
  int64_t capture, max_window, state_chunk;
  bool verify, fast_forward;
} k3_mock_can;

/* A device on which all is poison; NULL when out of memory. O(ids + places). */
k3_mock *k3_mock_new(const k3_mock_config *config);
void k3_mock_delete(k3_mock *m);
/* A run of a plan on the device; NULL when out of memory. O(rows + snapshots). */
k3_mock_run *k3_mock_run_new(const k3_mock *m, const k3_mock_plan *plan);
void k3_mock_run_delete(k3_mock_run *r);
/* One phase of a run: how many notes it left, or K3_E_MEMORY. O(entries of the phase; forward: tokens + pages). */
int64_t k3_mock_phase(k3_mock *m, k3_mock_run *r, int phase);
/* Whether the plan by itself may be wrong; 0: it is not. O(plan), O(n^2) in n <= 64 moves, copies, restores. */
int k3_mock_suspect(k3_mock *m, const k3_mock_run *r, const k3_mock_can *can);
/* Number of committed tokens so far. O(1). */
int64_t k3_mock_run_tokens(const k3_mock_run *r);
/* Whether a row verifies. O(rows). */
int k3_mock_run_verifies(const k3_mock_run *r);
/* The result: accepted[n_rows], tokens[as many], done[n_rows], written[n_snapshots]. O(its size). */
void k3_mock_run_result(const k3_mock_run *r, int32_t *accepted, int32_t *tokens, uint8_t *done, uint8_t *written);

/* Poison; the places exist. O(1), rows O(rows), all O(places). */
void k3_mock_poison_page(k3_mock *m, int64_t place);
void k3_mock_poison_rows(k3_mock *m, int64_t place, int64_t low, int64_t high);
void k3_mock_poison_state(k3_mock *m, int64_t place);
void k3_mock_poison_all(k3_mock *m);

/* -- the oracle: what a sequence is with no cache at all -- */

/* A sequence computed token by token, every depth kept. */
typedef struct {
  int64_t seed, count, cap;
  int32_t groups, kv_groups;
  int32_t *tokens;  /* [count] */
  int64_t *state;   /* [count + 1][4 * groups] */
  int64_t *context; /* [count + 1][kv_groups] */
  int64_t *rows;    /* [count][kv_groups] */
} k3_walk;

k3_walk *k3_walk_new(int64_t seed, int groups, int kv_groups);
void k3_walk_delete(k3_walk *w);
/* Stand at exactly tokens[n], keeping the common prefix. K3_E_MEMORY: it stands where it stood. O(n), hashes O(new). */
int k3_walk_become(k3_walk *w, const int32_t *tokens, int64_t n);
/* Whether the device holds the walk's prefix: state id `state` (-1: none) at its end, its rows in pages[n_pages] (what
 * lies beyond the prefix is not looked at). O(count). */
int k3_walk_audit(const k3_walk *w, const k3_mock *m, int64_t state, const int32_t *pages, int64_t n_pages);
/* Output of a request into out[max_new]: how many tokens, or K3_E_ARG without a prompt. O(prompt + output). */
int64_t k3_fresh_output(int64_t seed, int groups, int kv_groups, int64_t vocab_size, const int32_t *prompt, int64_t n,
                        int64_t draw, const int32_t *script, int64_t n_script, const int64_t *stops, int64_t n_stops,
                        int64_t max_new, int32_t *out);
/* cffi: end */

#endif
