/* Disks whose content is made when it is read, as a plugin of nbdkit.
 *
 * The export `template` is one of them. Any other is like it, until the file of that name in the directory of parts tells of units that are
 * not: the begin of such a unit is that of another unit of the template, the rest is found nowhere else. With `.alone` behind its name, an
 * export is these units in a row.
 *
 * Parameters: size= is a number of bytes, parts= a directory. A file of parts holds native numbers of 64 bits: a seed, the bytes of a unit, the
 * bytes of its begin that the template has, and then the number of each unit that differs and that of the unit which it begins with.
 * All lengths are multiples of BLOCK. */
#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
#include <nbdkit-plugin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096u
#define NOISE 512u /* the rest of a block is one byte, which compresses to nothing */

struct part { uint64_t unit, like; };
struct disk { uint64_t size, seed, unit_bytes, known_bytes; struct part *parts; size_t len; int is_alone; };

static const char *directory;
static uint64_t size_bytes;

static int set(const char *key, const char *value) {
  if (strcmp(key, "size") == 0) size_bytes = (uint64_t)nbdkit_parse_size(value);
  else if (strcmp(key, "parts") == 0) directory = nbdkit_absolute_path(value);
  else { nbdkit_error("unknown parameter %s", key); return -1; }
  return 0;
}

static int get_ready(void) {
  if (!directory || !size_bytes) { nbdkit_error("size= and parts= are needed"); return -1; }
  return 0;
}

static void close_disk(void *handle) {
  struct disk *disk = handle;
  free(disk->parts);
  free(disk);
}

static int read_parts(struct disk *disk, FILE *file) {
  uint64_t head[3];
  if (fread(head, sizeof head, 1, file) != 1 || head[1] == 0) return -1;
  disk->seed = head[0], disk->unit_bytes = head[1], disk->known_bytes = head[2];
  for (size_t room = 0;; disk->len++) {
    if (disk->len == room) {
      room = 2 * room + 1024;
      struct part *grown = realloc(disk->parts, room * sizeof *grown);
      if (!grown) return -1;
      disk->parts = grown;
    }
    if (fread(disk->parts + disk->len, sizeof *disk->parts, 1, file) != 1) return ferror(file) ? -1 : 0;
  }
}

static void *open_disk(int is_readonly) {
  (void)is_readonly;
  char name[256], path[4096];
  const char *asked = nbdkit_export_name();
  if (!asked || strchr(asked, '/') || strlen(asked) >= sizeof name) { nbdkit_error("no such disk"); return NULL; }
  strcpy(name, asked);
  struct disk *disk = calloc(1, sizeof *disk);
  if (!disk) return NULL;
  char *dot = strstr(name, ".alone");
  if (dot) *dot = 0;
  disk->is_alone = dot != NULL;
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "r");
  int is_read = !file || read_parts(disk, file) == 0;
  if (file) fclose(file);
  if (!is_read) { nbdkit_error("cannot read %s", path); close_disk(disk); return NULL; }
  disk->size = disk->is_alone ? disk->len * disk->unit_bytes : size_bytes;
  return disk;
}

static int64_t get_size(void *handle) { return (int64_t)((struct disk *)handle)->size; }
static int many_connections(void *handle) { (void)handle; return 1; }

/* SplitMix64. */
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static void make_block(uint64_t seed, uint64_t number, unsigned char *out) {
  uint64_t state = mix(seed * 0xd1b54a32d192ed03u + number);
  for (unsigned at = 0; at < NOISE; at += 8) {
    uint64_t word = mix(state += 0x9e3779b97f4a7c15u);
    memcpy(out + at, &word, 8);
  }
  memset(out + NOISE, out[0], BLOCK - NOISE);
}

static const struct part *find(const struct disk *disk, uint64_t unit) {
  size_t low = 0, high = disk->len;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (disk->parts[middle].unit < unit) low = middle + 1; else high = middle;
  }
  return low < disk->len && disk->parts[low].unit == unit ? disk->parts + low : NULL;
}

static void make_block_of(const struct disk *disk, uint64_t at, unsigned char *out) {
  if (!disk->len) { make_block(0, at / BLOCK, out); return; }
  uint64_t unit = at / disk->unit_bytes, within = at % disk->unit_bytes;
  const struct part *part = disk->is_alone ? disk->parts + unit : find(disk, unit);
  if (!part) { make_block(0, at / BLOCK, out); return; }
  if (within < disk->known_bytes) { make_block(0, (part->like * disk->unit_bytes + within) / BLOCK, out); return; }
  make_block(disk->seed, (part->unit * disk->unit_bytes + within) / BLOCK, out);
}

static int read_disk(void *handle, void *buffer, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)flags;
  unsigned char *to = buffer;
  while (count) {
    uint32_t skip = (uint32_t)(offset % BLOCK), len = BLOCK - skip < count ? BLOCK - skip : count;
    if (len == BLOCK) make_block_of(handle, offset, to);
    else {
      unsigned char block[BLOCK];
      make_block_of(handle, offset - skip, block);
      memcpy(to, block + skip, len);
    }
    to += len, offset += len, count -= len;
  }
  return 0;
}

static struct nbdkit_plugin plugin = {
  .name = "disks", .config = set, .get_ready = get_ready, .open = open_disk, .close = close_disk, .get_size = get_size,
  .can_multi_conn = many_connections, .pread = read_disk,
};
NBDKIT_REGISTER_PLUGIN(plugin)
