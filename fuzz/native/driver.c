/* Runs the target where neither libFuzzer nor AFL++ is at hand: any C compiler will do, and gcc's
 * -fsanitize-coverage=trace-pc makes it coverage-guided. Deterministic for a seed.
 *
 *   driver [-runs=N] [-seconds=T] [-seed=S] [-max_len=L] [-mutant=ID] [-save=DIR] [FILE or DIR]...
 *
 * First runs the inputs given; then N more (none by default; until T seconds have passed), made from those that
 * reached something new. What breaks is written to crash-input; inputs worth keeping go to DIR. Compiled without
 * coverage itself. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "k3.h"

enum { MAP = 1 << 16, CORPUS = 1 << 14, INPUT = 4096, STUCK_SECONDS = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "abort_on_error=1:handle_abort=0:detect_leaks=0"; }

static uint8_t map[MAP], seen[MAP];
static uintptr_t before;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  /* Relative to the program, which may lie anywhere. */
  uintptr_t pc = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&LLVMFuzzerTestOneInput;
  pc = pc * 0x9e3779b1u >> 8;
  map[(pc ^ before) % MAP]++;
  before = pc >> 1;
}

typedef struct {
  uint8_t *data;
  int size;
} input;

static input corpus[CORPUS];
static int n_corpus, features;
static uint8_t now[INPUT];
static int now_size;
static const char crash_path[] = "crash-input";

/* splitmix64 */
static uint64_t rng_state;
static uint64_t rng(void) {
  uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static int below(int n) { return (int)(rng() % (uint64_t)n); }

static void on_crash(int sig) {
  signal(sig, SIG_DFL);
  int fd = open(crash_path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  static const char text[] = "k3 fuzz: the input is in ";
  if (fd >= 0 && write(fd, now, (size_t)now_size) == now_size && write(2, text, sizeof text - 1) > 0 &&
      write(2, crash_path, strlen(crash_path)) > 0 && write(2, "\n", 1) > 0)
    close(fd);
  raise(sig);
}

/* The next runs may take so much processor time; then SIGPROF ends them. */
static void limit_time(void) {
  const struct itimerval t = {.it_value = {STUCK_SECONDS, 0}};
  setitimer(ITIMER_PROF, &t, NULL);
}

/* Eight classes of how often a place was passed, as AFL has them. */
static uint8_t class_of(uint8_t count) {
  static const uint8_t limits[] = {1, 2, 3, 7, 15, 31, 127};
  int bit = 0;
  while (bit < 7 && count > limits[bit]) bit++;
  return (uint8_t)(1 << bit);
}

/* Runs `now`; how many features are new. */
static int run(void) {
  int fresh = 0;
  memset(map, 0, sizeof map);
  before = 0;
  LLVMFuzzerTestOneInput(now, (size_t)now_size);
  for (int i = 0; i < MAP; i++) {
    if (!map[i]) continue;
    uint8_t bit = class_of(map[i]);
    fresh += !(seen[i] & bit);
    seen[i] |= bit;
  }
  features += fresh;
  return fresh;
}

static void keep(const char *folder) {
  if (n_corpus == CORPUS) return;
  input *it = &corpus[n_corpus++];
  it->size = now_size;
  it->data = malloc((size_t)now_size + 1);
  if (!it->data) abort();
  memcpy(it->data, now, (size_t)now_size);
  if (!folder) return;
  char path[512];
  snprintf(path, sizeof path, "%s/%05d", folder, n_corpus);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(now, 1, (size_t)now_size, f) != (size_t)now_size || fclose(f)) abort();
}

static void run_path(const char *path, const char *folder) {
  DIR *d = opendir(path);
  if (d) {
    char names[1024][64];
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) && n < 1024;)
      if (e->d_name[0] != '.' && strlen(e->d_name) < 64) strcpy(names[n++], e->d_name);
    closedir(d);
    qsort(names, (size_t)n, sizeof *names, (int (*)(const void *, const void *))strcmp);
    for (int i = 0; i < n; i++) {
      char inner[512];
      snprintf(inner, sizeof inner, "%.440s/%.63s", path, names[i]);
      run_path(inner, folder);
    }
    return;
  }
  FILE *f = fopen(path, "rb");
  if (!f) {
    fprintf(stderr, "k3 fuzz: cannot read %s\n", path);
    exit(2);
  }
  now_size = (int)fread(now, 1, sizeof now, f);
  fclose(f);
  if (run()) keep(folder);
}

/* -- making inputs */

static void insert(int at, const uint8_t *bytes, int n, int max_len) {
  if (n > max_len - now_size) n = max_len - now_size;
  memmove(now + at + n, now + at, (size_t)(now_size - at));
  memcpy(now + at, bytes, (size_t)n);
  now_size += n;
}

static void mutate(int max_len) {
  uint8_t noise[64];
  for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)rng();
  int at = below(now_size + 1);
  switch (now_size ? below(7) : 0) {
    case 0: insert(at, noise, 1 + below(64), max_len); break;
    case 1: insert(now_size, noise, 64, max_len); break;
    case 2: now[at % now_size] = noise[0]; break;
    case 3: now[at % now_size] ^= (uint8_t)(1 << below(8)); break;
    case 4: now[at % now_size] = (uint8_t)(now[at % now_size] + below(9) - 4); break;
    case 5: { /* cut */
      int n = below(now_size - at + 1);
      memmove(now + at, now + at + n, (size_t)(now_size - at - n));
      now_size -= n;
      break;
    }
    default: { /* a piece of another */
      const input *other = &corpus[below(n_corpus)];
      int from = below(other->size + 1);
      insert(at, other->data + from, below(other->size - from + 1), max_len);
    }
  }
}

static void make_input(int max_len) {
  if (!n_corpus || below(16) == 0) {
    now_size = 1 + below(max_len);
    for (int i = 0; i < now_size; i++) now[i] = (uint8_t)rng();
    return;
  }
  const input *base = &corpus[below(2) ? n_corpus - 1 - below(n_corpus / 4 + 1) : below(n_corpus)];
  now_size = base->size < max_len ? base->size : max_len;
  memcpy(now, base->data, (size_t)now_size);
  for (int times = 1 << below(4); times--;) mutate(max_len);
}

static long number(const char *arg, const char *name, long otherwise) {
  size_t n = strlen(name);
  return strncmp(arg, name, n) ? otherwise : atol(arg + n);
}

int main(int argc, char **argv) {
  long runs = 0, seconds = 0, max_len = 512, mutant = 0, seed = 1;
  const char *folder = NULL;
  for (int i = 1; i < argc; i++) {
    runs = number(argv[i], "-runs=", runs);
    seconds = number(argv[i], "-seconds=", seconds);
    seed = number(argv[i], "-seed=", seed);
    max_len = number(argv[i], "-max_len=", max_len);
    mutant = number(argv[i], "-mutant=", mutant);
    if (!strncmp(argv[i], "-save=", 6)) folder = argv[i] + 6;
  }
  if (max_len < 1 || max_len > INPUT) max_len = INPUT;
#ifdef K3_MUTANTS
  k3_mutant = (int)mutant;
#else
  if (mutant) {
    fprintf(stderr, "k3 fuzz: built without planted bugs\n");
    return 2;
  }
#endif
  rng_state = (uint64_t)seed;
  const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF};
  for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) signal(fatal[i], on_crash);
  limit_time();
  for (int i = 1; i < argc; i++)
    if (argv[i][0] != '-') run_path(argv[i], folder);
  long given = n_corpus;
  long i = 0;
  for (time_t start = time(NULL); i < runs && (!seconds || time(NULL) - start < seconds); i++) {
    if (i % 64 == 0) limit_time();
    make_input((int)max_len);
    if (run()) keep(folder);
  }
  printf("%ld runs, %d features, corpus of %d (%ld given)\n", i, features, n_corpus, given);
  return 0;
}
