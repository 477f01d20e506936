/* A disk that seeks, as a plugin of nbdkit. It keeps its content in a sparse file and sleeps as long as one arm would take.
 *
 * A request that begins where the arm stands costs its transfer. A gap ahead is passed over if that is faster than a
 * seek, and stays in the memory of the disk with everything since the last seek, up to REMEMBERED_BYTES: reading it costs
 * nothing. Any other request costs a seek (from SEEK_MIN_NS to SEEK_MAX_NS over the length of the disk, as the square root
 * of the distance) and half a turn. The disk takes writes into its memory, up to CACHE_BYTES; it writes them in the order of
 * their places at a flush, or when there are more. Reading them costs nothing. Between requests in a row the disk reads on
 * for READ_ON_NS, which also makes up for sleeps that last too long.
 *
 * Parameters: file= and counters= are paths, size= is a number of bytes. The file of counters holds six native numbers of
 * 64 bits: seeks, bytes read, bytes written, bytes passed over, requests that read, and nanoseconds of the arm. */
#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_SERIALIZE_ALL_REQUESTS
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <nbdkit-plugin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SEEK_MIN_NS 0.8e6
#define SEEK_MAX_NS 16e6
#define HALF_TURN_NS 4.17e6 /* of 7,200 turns a minute */
#define NS_PER_BYTE (1e9 / 180e6)
#define READ_ON_NS 20000000
#define REMEMBERED_BYTES (16u << 20)
#define CACHE_BYTES (32u << 20)

struct counters { volatile uint64_t seeks, read_bytes, written_bytes, passed_bytes, reads, arm_ns; };
struct range { uint64_t begin, end; };

static const char *file_path, *counters_path;
static uint64_t size_bytes;
static int file = -1;
static struct counters *counters;
/* Where the arm stands, and the begin of the bytes behind it that the disk remembers. */
static uint64_t arm, remembered_from;
static int64_t busy_until_ns;
/* Writes in the memory of the disk: disjoint, sorted, not adjacent. */
static struct range *cached;
static size_t cached_len, cached_room;
static uint64_t cached_bytes;

static int set(const char *key, const char *value) {
  if (strcmp(key, "file") == 0) file_path = nbdkit_absolute_path(value);
  else if (strcmp(key, "counters") == 0) counters_path = nbdkit_absolute_path(value);
  else if (strcmp(key, "size") == 0) size_bytes = (uint64_t)nbdkit_parse_size(value);
  else { nbdkit_error("unknown parameter %s", key); return -1; }
  return 0;
}

static int get_ready(void) {
  if (!file_path || !counters_path || !size_bytes) { nbdkit_error("file=, counters= and size= are needed"); return -1; }
  int fd = open(counters_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  file = open(file_path, O_RDWR | O_CLOEXEC);
  if (file < 0 || fd < 0 || ftruncate(fd, sizeof *counters) < 0) { nbdkit_error("cannot open the files: %m"); return -1; }
  counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (counters == MAP_FAILED) { nbdkit_error("cannot map the counters: %m"); return -1; }
  return 0;
}

static void *open_disk(int is_readonly) { (void)is_readonly; return NBDKIT_HANDLE_NOT_NEEDED; }
static int64_t get_size(void *handle) { (void)handle; return (int64_t)size_bytes; }

/* Moves the arm; returns the nanoseconds, and whether it was a seek. */
static double move_to(uint64_t place, int *is_seek) {
  uint64_t distance = place > arm ? place - arm : arm - place;
  double pass_ns = (double)distance * NS_PER_BYTE;
  double seek_ns = SEEK_MIN_NS + (SEEK_MAX_NS - SEEK_MIN_NS) * sqrt((double)distance / (double)size_bytes) + HALF_TURN_NS;
  int is_passed = place >= arm && pass_ns <= seek_ns;
  arm = place;
  if (is_passed) { counters->passed_bytes += distance; return pass_ns; }
  *is_seek = 1;
  counters->seeks++;
  remembered_from = place;
  return seek_ns;
}

static void spend(double cost_ns, int is_seek) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  int64_t now_ns = time.tv_sec * 1000000000LL + time.tv_nsec, begin_ns = is_seek ? now_ns : now_ns - READ_ON_NS;
  if (begin_ns < busy_until_ns) begin_ns = busy_until_ns;
  busy_until_ns = begin_ns + (int64_t)cost_ns;
  counters->arm_ns += (uint64_t)cost_ns;
  time.tv_sec = busy_until_ns / 1000000000LL;
  time.tv_nsec = busy_until_ns % 1000000000LL;
  if (busy_until_ns > now_ns) while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {}
}

/* The first cached range that ends at or behind a place. */
static size_t find(uint64_t place) {
  size_t low = 0, high = cached_len;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (cached[middle].end < place) low = middle + 1; else high = middle;
  }
  return low;
}

static int cache(uint64_t begin, uint64_t end) {
  size_t first = find(begin), last = first;
  for (; last < cached_len && cached[last].begin <= end; last++) {
    if (cached[last].begin < begin) begin = cached[last].begin;
    if (cached[last].end > end) end = cached[last].end;
    cached_bytes -= cached[last].end - cached[last].begin;
  }
  if (cached_len == cached_room) {
    size_t room = 2 * cached_room + 64;
    struct range *grown = realloc(cached, room * sizeof *cached);
    if (!grown) { nbdkit_error("no memory"); return -1; }
    cached = grown;
    cached_room = room;
  }
  memmove(cached + first + 1, cached + last, (cached_len - last) * sizeof *cached);
  cached[first] = (struct range){begin, end};
  cached_len = cached_len - (last - first) + 1;
  cached_bytes += end - begin;
  return 0;
}

static void write_out(void) {
  double cost_ns = 0;
  int is_seek = 0;
  for (size_t i = 0; i < cached_len; i++) {
    uint64_t len = cached[i].end - cached[i].begin;
    cost_ns += move_to(cached[i].begin, &is_seek) + (double)len * NS_PER_BYTE;
    arm += len;
    counters->written_bytes += len;
  }
  if (cached_len) { remembered_from = arm; spend(cost_ns, is_seek); }
  cached_len = 0;
  cached_bytes = 0;
}

static int read_disk(void *handle, void *buffer, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle; (void)flags;
  uint64_t begin = offset, end = offset + count;
  counters->reads++;
  counters->read_bytes += count;
  size_t at = find(end);
  int is_cached = at < cached_len && cached[at].begin <= begin;
  if (begin >= remembered_from && begin < arm) begin = end < arm ? end : arm;
  if (!is_cached && begin < end) {
    int is_seek = 0;
    double cost_ns = move_to(begin, &is_seek) + (double)(end - begin) * NS_PER_BYTE;
    arm = end;
    if (arm - remembered_from > REMEMBERED_BYTES) remembered_from = arm - REMEMBERED_BYTES;
    spend(cost_ns, is_seek);
  }
  for (uint32_t done = 0; done < count;) {
    ssize_t got = pread(file, (char *)buffer + done, count - done, (off_t)(offset + done));
    if (got <= 0) { nbdkit_error("cannot read: %m"); return -1; }
    done += (uint32_t)got;
  }
  return 0;
}

static int write_disk(void *handle, const void *buffer, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle; (void)flags;
  for (uint32_t done = 0; done < count;) {
    ssize_t put = pwrite(file, (const char *)buffer + done, count - done, (off_t)(offset + done));
    if (put < 0) { nbdkit_error("cannot write: %m"); return -1; }
    done += (uint32_t)put;
  }
  if (cache(offset, offset + count) < 0) return -1;
  if (cached_bytes > CACHE_BYTES) write_out();
  return 0;
}

static int flush_disk(void *handle, uint32_t flags) { (void)handle; (void)flags; write_out(); return 0; }

static struct nbdkit_plugin plugin = {
  .name = "seeking", .config = set, .get_ready = get_ready, .open = open_disk, .get_size = get_size,
  .pread = read_disk, .pwrite = write_disk, .flush = flush_disk,
};
NBDKIT_REGISTER_PLUGIN(plugin)
