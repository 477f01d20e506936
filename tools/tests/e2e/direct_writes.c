// Writes a file past the page cache while others read it through the page cache, and compares after each turn.
//
//   direct_writes FILE HOW SECONDS
//
// HOW chooses the writes of one process, repeated: "aio" writes the whole file by asynchronous direct writes (as
// virtual machines do with cache=none,aio=native), "sync" by ordinary ones. Meanwhile other processes read the file
// through the page cache, each time with a new open, and through a shared mapping that stays. When the writes of a turn
// have been answered, the file must have the written bytes: through a descriptor that was open all the time, through a
// new one, and in a mapping.
//
// Exit code: 0, 1 for wrong bytes, 2 if a step fails.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 << 10, PIECES = 10, FILE_BYTES = PIECE_BYTES * PIECES, READERS = 3, MAPPERS = 1, PAGE_BYTES = 4096 };

static void check(int is_good, const char *what) {
    if (!is_good) {
        perror(what);
        exit(2);
    }
}

static void read_on(const char *path) {
    static char buffer[FILE_BYTES];
    for (;;) {
        int file = open(path, O_RDONLY);
        check(file >= 0, "open to read");
        check(pread(file, buffer, FILE_BYTES, 0) >= 0, "read");
        close(file);
    }
}

static void map_on(const char *path) {
    int file = open(path, O_RDONLY);
    check(file >= 0, "open to map");
    volatile const char *mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, file, 0);
    check(mapped != MAP_FAILED, "map");
    for (;;) {
        for (int at = 0; at < FILE_BYTES; at += PAGE_BYTES) (void)mapped[at];
        usleep(100);
    }
}

static void start(void (*what)(const char *), const char *path, pid_t *child) {
    *child = fork();
    check(*child >= 0, "fork");
    if (*child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        what(path);
    }
}

static void write_asynchronously(aio_context_t context, int file, char *buffer) {
    struct iocb blocks[PIECES], *list[PIECES];
    struct io_event events[PIECES];
    memset(blocks, 0, sizeof blocks);
    for (int piece = 0; piece < PIECES; piece++) {
        blocks[piece].aio_lio_opcode = IOCB_CMD_PWRITE;
        blocks[piece].aio_fildes = (unsigned)file;
        blocks[piece].aio_buf = (uint64_t)(uintptr_t)(buffer + piece * PIECE_BYTES);
        blocks[piece].aio_nbytes = PIECE_BYTES;
        blocks[piece].aio_offset = (long long)piece * PIECE_BYTES;
        list[piece] = &blocks[piece];
    }
    check(syscall(SYS_io_submit, context, (long)PIECES, list) == PIECES, "io_submit");
    check(syscall(SYS_io_getevents, context, (long)PIECES, (long)PIECES, events, NULL) == PIECES, "io_getevents");
    for (int piece = 0; piece < PIECES; piece++) {
        errno = events[piece].res < 0 ? (int)-events[piece].res : 0;
        check(events[piece].res == PIECE_BYTES, "an asynchronous write");
    }
}

static int differs(const char *found, char expected, const char *through, long turn) {
    for (int at = 0; at < FILE_BYTES; at++) {
        if (found[at] != expected) {
            printf("turn %ld: byte %d is %d instead of %d through %s\n", turn, at, found[at], expected, through);
            return 1;
        }
    }
    return 0;
}

static int differs_in(int file, char expected, const char *through, long turn) {
    static char buffer[FILE_BYTES];
    check(pread(file, buffer, FILE_BYTES, 0) == FILE_BYTES, "read to compare");
    return differs(buffer, expected, through, turn);
}

static int differs_anew(const char *path, char expected, const char *through, long turn) {
    int file = open(path, O_RDONLY);
    check(file >= 0, "open to compare");
    int is_wrong = differs_in(file, expected, through, turn);
    close(file);
    return is_wrong;
}

int main(int count, char **arguments) {
    check(count == 4, "arguments");
    const char *path = arguments[1];
    int is_asynchronous = strcmp(arguments[2], "aio") == 0;
    int file = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644);
    check(file >= 0, "open to write");
    check(ftruncate(file, FILE_BYTES) == 0, "ftruncate");
    int cached = open(path, O_RDONLY);
    check(cached >= 0, "open to compare");
    const char *mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, cached, 0);
    check(mapped != MAP_FAILED, "map to compare");
    char *buffer = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(buffer != MAP_FAILED, "memory");
    aio_context_t context = 0;
    check(syscall(SYS_io_setup, (unsigned)PIECES, &context) == 0, "io_setup");
    pid_t children[READERS + MAPPERS];
    for (int child = 0; child < READERS; child++) start(read_on, path, &children[child]);
    for (int child = READERS; child < READERS + MAPPERS; child++) start(map_on, path, &children[child]);

    int is_wrong = 0;
    long turn = 0;
    char byte = 1;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        byte = (char)(turn % 100 + 1);
        memset(buffer, byte, FILE_BYTES);
        if (is_asynchronous) {
            write_asynchronously(context, file, buffer);
        } else {
            check(pwrite(file, buffer, FILE_BYTES, 0) == FILE_BYTES, "write");
        }
        is_wrong = differs_in(cached, byte, "an open descriptor", turn) || differs_anew(path, byte, "a new descriptor", turn)
                   || differs(mapped, byte, "a mapping", turn);
        turn++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (!is_wrong && now.tv_sec - begun.tv_sec < atol(arguments[3]));
    for (int child = 0; child < READERS + MAPPERS; child++) {
        kill(children[child], SIGKILL);
        waitpid(children[child], NULL, 0);
    }
    usleep(200000);
    int stays = differs_anew(path, byte, "a new descriptor, with nobody else", turn);
    printf("%ld turns, %s\n", turn, stays ? "and the old bytes stay" : "right in the end");
    return is_wrong || stays;
}
