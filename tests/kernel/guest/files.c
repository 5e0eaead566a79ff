/* Tests of files that two mounts see, after the plan of xfstests and of its fsx, written anew, with the rules that hold on SMB:
 * what is open is not replaced, locks are mandatory.
 *
 *     files DIR OTHER SUITE...        DIR and OTHER are one folder, by two clients; SUITE is rename, mapped, random, lock or
 *                                     shared; runs in a folder of its own below DIR
 *
 * Every check that fails says file, line and errno, and ends the program with 1. Statically linked: the guest needs nothing.
 */
#include "check.h"

/* The suite's folder by the other mount. */
static char beside[PATH_MAX];

static char *there(const char *file) {
    static char at[PATH_MAX + 64];
    snprintf(at, sizeof at, "%s/%s", beside, file);
    return at;
}

static void put(const char *file, const char *text) {
    int fd = open(file, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static int holds(const char *file, const char *text) {
    char back[64];
    int fd = open(file, O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t len = read(fd, back, sizeof back);
    CHECK(close(fd) == 0);
    return len == (ssize_t)strlen(text) && memcmp(back, text, len) == 0;
}

static int absent(const char *file) {
    return stat(file, &st) == -1 && errno == ENOENT;
}

static int move(const char *from, const char *to, unsigned flags) {
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
}

static void names(void) {
    /* Every pair of nothing, a file, an empty folder, a full folder: what may take whose place. */
    FAILS(rename("none", "new"), ENOENT);
    put("one", "1");
    CHECK(rename("one", "two") == 0 && absent("one") && holds("two", "1"));
    put("one", "longer");
    CHECK(rename("one", "two") == 0 && absent("one") && holds("two", "longer"));
    CHECK(rename("two", "two") == 0 && holds("two", "longer"));
    CHECK(mkdir("empty", 0777) == 0 && mkdir("full", 0777) == 0 && mkdir("other", 0777) == 0);
    put("full/inside", "in");
    FAILS(rename("two", "empty"), EISDIR);
    FAILS(rename("empty", "two"), ENOTDIR);
    CHECK(rename("full", "empty") == 0 && absent("full") && holds("empty/inside", "in"));
    /* SMB's word for it is that access is denied. */
    CHECK(move("other", "empty", 0) == -1 && (errno == ENOTEMPTY || errno == EEXIST || errno == EACCES));
    CHECK(holds("empty/inside", "in") && stat("other", &st) == 0);
    FAILS(rename("empty", "empty/below"), EINVAL);
    /* Not over what is there, if that is what is asked for. */
    put("one", "1");
    FAILS(move("one", "two", RENAME_NOREPLACE), EEXIST);
    CHECK(holds("one", "1") && holds("two", "longer"));
    CHECK(move("one", "three", RENAME_NOREPLACE) == 0 && absent("one") && holds("three", "1"));
    /* Across folders, there and back, by the other mount too. */
    CHECK(rename("three", "other/three") == 0 && absent("three") && holds("other/three", "1"));
    char from[PATH_MAX + 64];
    snprintf(from, sizeof from, "%s", there("other/three"));
    CHECK(rename(from, there("three")) == 0);
    /* A client believes for a second that a name is not there. */
    for (int tries = 0; !holds("three", "1"); tries++) {
        CHECK(tries < 300);
        usleep(100000);
    }
    /* A file that is open goes on under its new name. */
    int fd = open("three", O_RDWR);
    CHECK(fd >= 0 && rename("three", "moved") == 0 && pwrite(fd, "23", 2, 1) == 2 && fsync(fd) == 0);
    CHECK(close(fd) == 0 && absent("three") && holds("moved", "123"));
    /* Its length, not what it holds: docs/interop.md has what Linux 6.12 reads of a file that somebody else made longer. */
    CHECK(stat(there("moved"), &st) == 0 && st.st_size == 3);
    /* Two names of one file: renaming one to the other does nothing. */
    CHECK(link("moved", "also") == 0 && stat("also", &st) == 0 && st.st_nlink == 2);
    CHECK(rename("moved", "also") == 0 && holds("moved", "123") && holds("also", "123"));
    CHECK(unlink("also") == 0 && unlink("moved") == 0 && unlink("two") == 0 && unlink("empty/inside") == 0);
    CHECK(rmdir("empty") == 0 && rmdir("other") == 0);
    /* Many at a time, each its own file from folder to folder; each is seen once, whole. */
    CHECK(mkdir("a", 0777) == 0 && mkdir("b", 0777) == 0);
    for (int c = 0; c < 4; c++)
        if (fork() == 0) {
            char in_a[64], in_b[64], text[16];
            snprintf(text, sizeof text, "of child %d", c);
            put(name(in_a, "a/file", c), text);
            for (int i = 0; i < 15; i++)
                CHECK(i % 2 ? rename(in_b, in_a) == 0 : rename(in_a, name(in_b, "b/file", c)) == 0);
            _exit(0);
        }
    for (int c = 0, status; c < 4; c++)
        CHECK(wait(&status) > 0 && status == 0);
    for (int c = 0; c < 4; c++) {
        char text[16];
        snprintf(text, sizeof text, "of child %d", c);
        CHECK(absent(name(path, "a/file", c)) && holds(name(path, "b/file", c), text) && unlink(path) == 0);
    }
    CHECK(rmdir("a") == 0 && rmdir("b") == 0);
    /* Editors save so: a new file over the old one, again and again, while another reads. */
    put("saved", "version 00");
    pid_t reader = fork();
    if (reader == 0) {
        for (int i = 0; i < 60; i++) {
            char back[16] = {0};
            int n, opened;
            for (int tries = 0; (opened = open("saved", O_RDONLY)) < 0 && errno == ENOENT; tries++) {
                CHECK(tries < 300);
                usleep(20000);
            }
            CHECK(opened >= 0 && read(opened, back, sizeof back) == 10 && sscanf(back, "version %d", &n) == 1);
            CHECK(close(opened) == 0);
        }
        _exit(0);
    }
    for (int i = 1; i <= 20; i++) {
        char text[16];
        snprintf(text, sizeof text, "version %02d", i);
        put("saving", text);
        /* The reader has it open now and then: then Linux removes the old file first, which goes when the reader closes it and is
           ENOENT to everybody until then. Who saves tries again. */
        for (int tries = 0; rename("saving", "saved") != 0; tries++) {
            int why = errno;
            CHECK((why == EACCES || why == EBUSY || why == ETXTBSY || why == ENOENT) && tries < 300);
            usleep(20000);
        }
    }
    int status;
    CHECK(waitpid(reader, &status, 0) == reader && status == 0);
    CHECK(holds("saved", "version 20") && unlink("saved") == 0);
}

enum { MAP = 1 << 17 };

static void mapped(void) {
    char block[5000], back[5000];
    fill(block, sizeof block, 9);
    int fd = open("mapped", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0 && ftruncate(fd, MAP) == 0);
    /* What is written by memory is read by the file, and the other way round. */
    char *map = mmap(NULL, MAP, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int i = 0; i < MAP; i++)
        CHECK(map[i] == 0);
    memcpy(map + 60001, block, sizeof block);
    CHECK(pread(fd, back, sizeof back, 60001) == sizeof back && memcmp(block, back, sizeof back) == 0);
    CHECK(pwrite(fd, block, sizeof block, 99) == sizeof block && memcmp(map + 99, block, sizeof block) == 0);
    /* Two processes share a mapping. */
    pid_t child = fork();
    if (child == 0) {
        memcpy(map + 30000, "child", 5);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && memcmp(map + 30000, "child", 5) == 0);
    /* What was synced, the other mount reads. */
    CHECK(msync(map, MAP, MS_SYNC) == 0);
    int second = open(there("mapped"), O_RDONLY);
    CHECK(second >= 0 && pread(second, back, sizeof back, 60001) == sizeof back && memcmp(block, back, sizeof back) == 0);
    CHECK(pread(second, back, 5, 30000) == 5 && memcmp(back, "child", 5) == 0 && close(second) == 0);
    /* A private mapping keeps to itself. */
    char *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED && memcmp(own + 99, block, 3000) == 0);
    memset(own, 'p', 4096);
    CHECK(pread(fd, back, 1, 0) == 1 && back[0] == 0 && map[0] == 0 && munmap(own, 4096) == 0);
    /* A mapping outlives the descriptor, and what it wrote outlives the mapping. */
    CHECK(close(fd) == 0);
    memcpy(map + MAP - 6, "at end", 6);
    CHECK(munmap(map, MAP) == 0);
    fd = open("mapped", O_RDWR);
    CHECK(fd >= 0 && fsync(fd) == 0 && pread(fd, back, 7, MAP - 6) == 6 && memcmp(back, "at end", 6) == 0);
    /* What lies past a new, shorter end is gone when the file grows again; there is no memory past the end. */
    CHECK(ftruncate(fd, 60003) == 0 && ftruncate(fd, MAP) == 0);
    CHECK(pread(fd, back, 10, 60001) == 10 && memcmp(back, block, 2) == 0);
    for (int i = 2; i < 10; i++)
        CHECK(back[i] == 0);
    CHECK(ftruncate(fd, 4096) == 0);
    child = fork();
    if (child == 0) {
        volatile char *past = mmap(NULL, MAP, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(past != MAP_FAILED && past[4095] == block[4095 - 99]);
        _exit(past[8192]);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(close(fd) == 0 && unlink("mapped") == 0);
}

/* fsx: anything at any place, beside a copy in memory. */
static void chance(void) {
    enum { ROOM = 200000, STEPS = 1200 };
    static char is[ROOM], should[ROOM];
    int size = 0, fd = open("random", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0);
    srandom(11);
    for (int step = 0; step < STEPS; step++) {
        int what = random() % 10, at = random() % ROOM, len = 1 + random() % 20000;
        if (at + len > ROOM)
            len = ROOM - at;
        switch (what) {
        case 0: case 1: case 2:
            for (int i = 0; i < len; i++)
                should[at + i] = (char)(step * 17 + i * 3 + (i >> 8));
            CHECK(pwrite(fd, should + at, len, at) == len);
            size = at + len > size ? at + len : size;
            break;
        case 3:
            /* Memory that reaches to the end of the file at most. */
            if (at + len <= size) {
                char *map = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                CHECK(map != MAP_FAILED);
                memset(map + at, step, len);
                memset(should + at, step, len);
                CHECK(munmap(map, ROOM) == 0);
            }
            break;
        case 4:
            if (at + len <= size) {
                char *map = mmap(NULL, ROOM, PROT_READ, MAP_SHARED, fd, 0);
                CHECK(map != MAP_FAILED && memcmp(map + at, should + at, len) == 0 && munmap(map, ROOM) == 0);
            }
            break;
        case 5:
            if (step % 3 == 0) {
                if (at < size)
                    memset(should + at, 0, size - at);
                size = at;
                CHECK(ftruncate(fd, size) == 0);
            }
            break;
        case 6:
            CHECK(fsync(fd) == 0);
            break;
        case 7:
            CHECK(close(fd) == 0 && (fd = open("random", O_RDWR)) >= 0);
            break;
        default:
            CHECK(pread(fd, is, len, at) == (at >= size ? 0 : at + len > size ? size - at : len));
            if (at < size)
                CHECK(memcmp(is, should + at, at + len > size ? size - at : len) == 0);
        }
        if (step % 20 == 0)
            CHECK(fstat(fd, &st) == 0 && st.st_size == size);
    }
    CHECK(close(fd) == 0);
    fd = open(there("random"), O_RDONLY);
    CHECK(fd >= 0 && read(fd, is, ROOM) == size && memcmp(is, should, size) == 0 && close(fd) == 0);
    CHECK(unlink("random") == 0);
}

static int refused(int result) {
    return result == -1 && (errno == EACCES || errno == EAGAIN);
}

static void locks(void) {
    char byte, block[100];
    int fd = open("locked", O_CREAT | O_RDWR, 0666), to[2];
    fill(block, sizeof block, 3);
    CHECK(fd >= 0 && pipe(to) == 0 && write(fd, block, 100) == 100 && fsync(fd) == 0);
    int second = open(there("locked"), O_RDWR);
    CHECK(second >= 0);
    /* What one has, the other has not; reads share. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 50) == 0);
    ELSEWHERE(CHECK(refused(set(second, F_SETLK, F_WRLCK, 49, 1)) && refused(set(second, F_SETLK, F_RDLCK, 0, 1))));
    ELSEWHERE(CHECK(probe(second, F_WRLCK, 10, 1) != F_UNLCK && set(second, F_SETLK, F_WRLCK, 50, 50) == 0));
    /* A lock is mandatory: what it covers is not read or written by others. Beside it all is free. */
    ELSEWHERE(CHECK(refused(pread(second, block, 10, 45)) && pread(second, block, 10, 50) == 10));
    ELSEWHERE(CHECK(refused(pwrite(second, block, 10, 45)) || refused(fsync(second))));
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 50) == 0);
    ELSEWHERE(CHECK(pread(second, block, 10, 45) == 10 && set(second, F_SETLK, F_WRLCK, 0, 50) == 0));
    CHECK(set(fd, F_SETLK, F_RDLCK, 0, 50) == 0);
    ELSEWHERE(CHECK(set(second, F_SETLK, F_RDLCK, 0, 50) == 0 && pread(second, block, 10, 0) == 10));
    ELSEWHERE(CHECK(refused(set(second, F_SETLK, F_WRLCK, 0, 50))));
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 50) == 0);
    /* Large offsets. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 1L << 40, 10) == 0);
    ELSEWHERE(CHECK(refused(set(second, F_SETLK, F_WRLCK, (1L << 40) + 9, 1))));
    ELSEWHERE(CHECK(set(second, F_SETLK, F_WRLCK, (1L << 40) + 10, 1) == 0));
    CHECK(set(fd, F_SETLK, F_UNLCK, 1L << 40, 10) == 0);
    /* Who waits gets it when it is given back, also when its holder is killed. */
    for (int how = 0; how < 2; how++) {
        pid_t holder = fork();
        if (holder == 0) {
            int mine = open("locked", O_RDWR);
            CHECK(mine >= 0 && set(mine, F_SETLKW, F_WRLCK, 0, 0) == 0 && write(to[1], "h", 1) == 1);
            sleep(1);
            if (how == 0)
                _exit(0);
            pause();
        }
        CHECK(read(to[0], &byte, 1) == 1);
        pid_t waiter = fork();
        if (waiter == 0) {
            CHECK(set(second, F_SETLKW, F_WRLCK, 0, 10) == 0 && set(second, F_SETLK, F_UNLCK, 0, 10) == 0);
            _exit(0);
        }
        int status;
        if (how == 1)
            CHECK(kill(holder, SIGKILL) == 0);
        CHECK(waitpid(holder, &status, 0) == holder && (how == 1 || status == 0));
        CHECK(waitpid(waiter, &status, 0) == waiter && status == 0);
    }
    /* flock(2). */
    CHECK(flock(fd, LOCK_EX) == 0 && refused(flock(second, LOCK_EX | LOCK_NB)) && flock(fd, LOCK_UN) == 0);
    CHECK(flock(second, LOCK_SH | LOCK_NB) == 0 && flock(fd, LOCK_SH | LOCK_NB) == 0);
    CHECK(flock(fd, LOCK_UN) == 0 && flock(second, LOCK_UN) == 0 && close(fd) == 0 && close(second) == 0);
    /* What is written under a lock is read under the next one: two processes count to 50, one by either mount. Not
     * more of them: see docs/interop.md for what Linux 6.12 makes of several of one mount. */
    for (int c = 0; c < 2; c++)
        if (fork() == 0) {
            for (int i = 0; i < 25; i++) {
                char text[16] = {0};
                int counter = open(c ? there("counter") : "counter", O_CREAT | O_RDWR, 0666);
                CHECK(counter >= 0 && set(counter, F_SETLKW, F_WRLCK, 0, 0) == 0);
                CHECK(pread(counter, text, 15, 0) >= 0);
                snprintf(text, sizeof text, "%d", atoi(text) + 1);
                CHECK(pwrite(counter, text, strlen(text), 0) == (ssize_t)strlen(text) && fsync(counter) == 0);
                CHECK(set(counter, F_SETLK, F_UNLCK, 0, 0) == 0 && close(counter) == 0);
            }
            _exit(0);
        }
    for (int c = 0, status; c < 2; c++)
        CHECK(wait(&status) > 0 && status == 0);
    CHECK(holds("counter", "50") && unlink("counter") == 0 && unlink("locked") == 0);
}

/* Two clients on one file: each sees what the other one has closed, whatever it keeps in memory. */
static void shared(void) {
    enum { SIZE = 70001 };
    static char wrote[SIZE], back[SIZE];
    touch("both");
    for (int round = 0; round < 20; round++) {
        fill(wrote, SIZE, round);
        int len = SIZE - round * 1000;
        int fd = open(round % 2 ? there("both") : "both", O_WRONLY | O_TRUNC);
        CHECK(fd >= 0 && write(fd, wrote, len) == len && close(fd) == 0);
        fd = open(round % 2 ? "both" : there("both"), O_RDONLY);
        CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_size == len);
        CHECK(read(fd, back, SIZE) == len && memcmp(wrote, back, len) == 0 && close(fd) == 0);
    }
    /* Also while both have it open, where neither may keep to itself what it wrote. */
    int fd = open("both", O_RDWR), second = open(there("both"), O_RDWR);
    CHECK(fd >= 0 && second >= 0);
    for (int round = 0; round < 20; round++) {
        fill(wrote, 3000, round + 100);
        CHECK(pwrite(round % 2 ? fd : second, wrote, 3000, round * 3333) == 3000);
        CHECK(fsync(round % 2 ? fd : second) == 0);
        CHECK(pread(round % 2 ? second : fd, back, 3000, round * 3333) == 3000 && memcmp(wrote, back, 3000) == 0);
    }
    CHECK(close(fd) == 0 && close(second) == 0 && unlink(there("both")) == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } suites[] = {{"rename", names}, {"mapped", mapped}, {"random", chance}, {"lock", locks}, {"shared", shared}};
    if (argc < 4) {
        fprintf(stderr, "write: files DIR OTHER rename|mapped|random|lock|shared ...\n");
        return 2;
    }
    umask(0);
    CHECK(chdir(argv[1]) == 0);
    for (int i = 3; i < argc; i++) {
        unsigned s = 0;
        while (s < sizeof suites / sizeof *suites && strcmp(argv[i], suites[s].name))
            s++;
        CHECK(s < sizeof suites / sizeof *suites);
        snprintf(path, sizeof path, "files-%s", argv[i]);
        snprintf(beside, sizeof beside, "%s/%s", argv[2], path);
        CHECK(mkdir(path, 0777) == 0 && chdir(path) == 0);
        suites[s].run();
        CHECK(chdir("..") == 0);
        snprintf(path, sizeof path, "files-%s", argv[i]);
        /* What the other client had open it may keep open a little longer than its program: the name is there until then. */
        for (int tries = 0; rmdir(path) != 0; tries++) {
            int why = errno;
            CHECK(why == ENOTEMPTY && tries < 300);
            usleep(100000);
        }
        printf("passed %s\n", argv[i]);
        fflush(stdout);
    }
    return 0;
}
