/* What the programs of this folder share: a check that names its place when it fails, blocks that can be told apart, and locks
 * of fcntl(2) with one line each. Every check that fails says file, line and errno, and ends the program with 1. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(holds)                                                                              \
    do {                                                                                          \
        errno = 0;                                                                                \
        if (!(holds)) {                                                                           \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #holds, strerror(errno));               \
            fflush(stdout);                                                                       \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)
#define FAILS(call, with) CHECK((call) == -1 && errno == (with))

static struct stat st;
static char path[64];

static char *name(char *at, const char *kind, int n) {
    snprintf(at, 64, "%s.%d", kind, n);
    return at;
}

static void touch(const char *file) {
    int fd = open(file, O_CREAT | O_EXCL | O_WRONLY, 0666);
    CHECK(fd >= 0);
    CHECK(close(fd) == 0);
}

static void fill(char *block, int size, int seed) {
    for (int i = 0; i < size; i++)
        block[i] = (char)(seed * 31 + i * 7 + (i >> 8));
}

static int set(int fd, int command, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return fcntl(fd, command, &lock);
}

/* What a test by another process finds: F_UNLCK, or the lock in the way. */
static short probe(int fd, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    CHECK(fcntl(fd, F_GETLK, &lock) == 0);
    return lock.l_type;
}

/* Runs `what` in another process, which must end with 0 before `seconds` are over. */
#define ELSEWHERE(what)                                                                           \
    do {                                                                                          \
        int status;                                                                               \
        pid_t pid = fork();                                                                       \
        if (pid == 0) {                                                                           \
            what;                                                                                 \
            _exit(0);                                                                             \
        }                                                                                         \
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);                                    \
    } while (0)
