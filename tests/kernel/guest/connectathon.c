/* Tests of a file system as programs see it, after the plan of Sun's Connectathon suite (basic, general, special, lock) and
 * written anew: the names of the tests are its, the code is not. `append` is ours.
 *
 *     connectathon DIR SUITE...       SUITE is basic, general, append, special or lock; runs in a folder of its own below DIR
 *
 * Every check that fails says file, line and errno, and ends the program with 1. Statically linked: the guest needs nothing.
 */
#include "check.h"

static char other[64];

/* Trees of files and folders, made and removed: basic tests 1 and 2. */
static void tree(int depth) {
    for (int i = 0; i < 5; i++)
        touch(name(path, "file", i));
    if (depth > 0)
        for (int i = 0; i < 2; i++) {
            CHECK(mkdir(name(path, "dir", i), 0777) == 0);
            CHECK(chdir(path) == 0);
            tree(depth - 1);
            CHECK(chdir("..") == 0);
        }
}

static void fell(int depth) {
    for (int i = 0; i < 5; i++)
        CHECK(unlink(name(path, "file", i)) == 0);
    if (depth > 0)
        for (int i = 0; i < 2; i++) {
            CHECK(chdir(name(path, "dir", i)) == 0);
            fell(depth - 1);
            CHECK(chdir("..") == 0);
            CHECK(rmdir(name(path, "dir", i)) == 0);
        }
}

static void basic(void) {
    char block[8192], back[8192], target[256], was[PATH_MAX], is[PATH_MAX];
    /* 1, 2: creation and removal. */
    tree(3);
    FAILS(rmdir("dir.0"), ENOTEMPTY);
    fell(3);
    /* 3: lookups across a mount point. */
    CHECK(getcwd(was, sizeof was) != NULL);
    for (int i = 0; i < 50; i++) {
        CHECK(stat(".", &st) == 0 && S_ISDIR(st.st_mode));
        CHECK(getcwd(is, sizeof is) != NULL && strcmp(was, is) == 0);
    }
    /* 4: setattr and getattr. */
    for (int i = 0; i < 10; i++) {
        touch(name(path, "file", i));
        for (int k = 0; k < 5; k++) {
            CHECK(chmod(path, 0) == 0 && stat(path, &st) == 0 && (st.st_mode & 07777) == 0);
            CHECK(chmod(path, 0666) == 0 && stat(path, &st) == 0 && (st.st_mode & 07777) == 0666);
        }
    }
    CHECK(truncate(path, 123) == 0 && stat(path, &st) == 0 && st.st_size == 123);
    struct timespec times[2] = {{1000000000, 0}, {1100000000, 500000000}};
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0 && stat(path, &st) == 0);
    CHECK(st.st_atim.tv_sec == 1000000000 && st.st_mtim.tv_sec == 1100000000 && st.st_mtim.tv_nsec == 500000000);
    for (int i = 0; i < 10; i++)
        CHECK(unlink(name(path, "file", i)) == 0);
    /* 5: write and read a megabyte, also at odd places. */
    int fd = open("big", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0);
    for (int i = 0; i < 128; i++) {
        fill(block, sizeof block, i);
        CHECK(write(fd, block, sizeof block) == sizeof block);
    }
    CHECK(fsync(fd) == 0 && fstat(fd, &st) == 0 && st.st_size == 1 << 20);
    CHECK(close(fd) == 0);
    fd = open("big", O_RDONLY);
    for (int i = 0; i < 128; i++) {
        fill(block, sizeof block, i);
        CHECK(read(fd, back, sizeof back) == sizeof back && memcmp(block, back, sizeof back) == 0);
    }
    CHECK(read(fd, back, 1) == 0);
    fill(block, sizeof block, 77);
    CHECK(pread(fd, back, 4001, 77 * 8192 + 1234) == 4001 && memcmp(block + 1234, back, 4001) == 0);
    CHECK(close(fd) == 0 && unlink("big") == 0);
    /* 6: readdir while the folder shrinks. */
    for (int i = 0; i < 200; i++)
        touch(name(path, "file", i));
    for (int i = 0; i < 200; i += 2)
        CHECK(unlink(name(path, "file", i)) == 0);
    DIR *dir = opendir(".");
    struct dirent *entry;
    int seen[200] = {0}, dots = 0;
    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        int n;
        if (sscanf(entry->d_name, "file.%d", &n) == 1)
            CHECK(n >= 0 && n < 200 && seen[n]++ == 0);
        else
            dots += entry->d_name[0] == '.';
    }
    CHECK(closedir(dir) == 0 && dots == 2);
    for (int i = 0; i < 200; i++)
        CHECK(seen[i] == i % 2);
    for (int i = 1; i < 200; i += 2)
        CHECK(unlink(name(path, "file", i)) == 0);
    /* 7: link and rename. */
    for (int i = 0; i < 10; i++) {
        touch(name(path, "file", i));
        CHECK(rename(path, name(other, "new", i)) == 0);
        FAILS(stat(path, &st), ENOENT);
        CHECK(stat(other, &st) == 0 && st.st_nlink == 1);
        CHECK(link(other, path) == 0 && stat(other, &st) == 0 && st.st_nlink == 2);
        FAILS(link(other, path), EEXIST);
        CHECK(unlink(other) == 0 && stat(path, &st) == 0 && st.st_nlink == 1);
        CHECK(unlink(path) == 0);
    }
    /* 8: symlink and readlink. */
    for (int i = 0; i < 10; i++) {
        CHECK(symlink(name(other, "target", i), name(path, "link", i)) == 0);
        CHECK(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
        ssize_t len = readlink(path, target, sizeof target);
        CHECK(len == (ssize_t)strlen(other) && memcmp(target, other, len) == 0);
        CHECK(unlink(path) == 0);
    }
    /* 9: statfs. */
    struct statvfs vfs;
    CHECK(statvfs(".", &vfs) == 0 && vfs.f_blocks > 0 && vfs.f_bavail <= vfs.f_blocks && vfs.f_namemax >= 255);
}

/* What programs do all day: sort, copy, search, many at a time. */
static void general(void) {
    enum { CHILDREN = 4, LINES = 2000 };
    for (int c = 0; c < CHILDREN; c++)
        if (fork() == 0) {
            FILE *f = fopen(name(path, "lines", c), "w");
            CHECK(f != NULL);
            for (int i = 0; i < LINES; i++)
                CHECK(fprintf(f, "%08u line of child %d\n", (i * 2654435761u) % 100000000u, c) > 0);
            CHECK(fclose(f) == 0);
            snprintf(other, sizeof other, "sort lines.%d > sorted.%d", c, c);
            CHECK(system(other) == 0);
            _exit(0);
        }
    for (int c = 0, status; c < CHILDREN; c++)
        CHECK(wait(&status) > 0 && status == 0);
    CHECK(system("mkdir copies && cp sorted.* copies && for n in 0 1 2 3; do sort -c copies/sorted.$n || exit 1; "
                 "[ $(wc -l < copies/sorted.$n) = 2000 ] || exit 1; done") == 0);
    CHECK(system("tar cf all.tar lines.* copies && mkdir out && tar xf all.tar -C out && diff -r copies out/copies && "
                 "for n in 0 1 2 3; do cmp lines.$n out/lines.$n || exit 1; done") == 0);
    CHECK(system("rm -r lines.* sorted.* copies all.tar out && [ -z \"$(ls -A)\" ]") == 0);
}

/* All append to one file, under a lock: every line is there, whole. */
static void append(void) {
    enum { CHILDREN = 4 };
    for (int c = 0; c < CHILDREN; c++)
        if (fork() == 0) {
            for (int i = 0; i < 50; i++) {
                int fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0666);
                CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
                snprintf(other, sizeof other, "child %d line %02d\n", c, i);
                CHECK(write(fd, other, strlen(other)) == (ssize_t)strlen(other));
                CHECK(close(fd) == 0);
            }
            _exit(0);
        }
    for (int c = 0, status; c < CHILDREN; c++)
        CHECK(wait(&status) > 0 && status == 0);
    CHECK(system("[ $(grep -c '^child [0-3] line [0-9][0-9]$' log) = 200 ] && [ $(sort -u log | wc -l) = 200 ]") == 0);
    CHECK(unlink("log") == 0);
}

static void special(void) {
    char block[4096], back[4096];
    fill(block, sizeof block, 5);
    /* op_unlk: open, unlink, go on. */
    int fd = open("gone", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0 && unlink("gone") == 0);
    FAILS(open("gone", O_RDONLY), ENOENT);
    CHECK(write(fd, block, sizeof block) == sizeof block && fsync(fd) == 0);
    CHECK(pread(fd, back, sizeof back, 0) == sizeof back && memcmp(block, back, sizeof back) == 0);
    CHECK(close(fd) == 0);
    /* op_ren: rename over a file that is open. */
    touch("one");
    touch("two");
    fd = open("two", O_RDWR);
    CHECK(fd >= 0 && write(fd, "two", 3) == 3 && fsync(fd) == 0 && rename("one", "two") == 0);
    CHECK(pread(fd, back, 3, 0) == 3 && memcmp(back, "two", 3) == 0);
    CHECK(stat("two", &st) == 0 && st.st_size == 0);
    CHECK(close(fd) == 0 && unlink("two") == 0);
    /* op_chmod: rights that were had at the open stay. */
    fd = open("kept", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0 && chmod("kept", 0) == 0);
    CHECK(write(fd, block, 100) == 100 && fsync(fd) == 0 && pread(fd, back, 100, 0) == 100);
    CHECK(close(fd) == 0 && unlink("kept") == 0);
    /* A file that is made without rights is written by who makes it. */
    fd = open("sealed", O_CREAT | O_EXCL | O_RDWR, 0);
    CHECK(fd >= 0 && write(fd, block, 100) == 100 && close(fd) == 0 && unlink("sealed") == 0);
    /* excl: one of many makes it. */
    int winners = 0;
    for (int c = 0; c < 6; c++)
        if (fork() == 0)
            _exit(open("exclusive", O_CREAT | O_EXCL | O_WRONLY, 0666) >= 0 ? 7 : errno == EEXIST ? 0 : 1);
    for (int c = 0, status; c < 6; c++) {
        CHECK(wait(&status) > 0 && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 7));
        winners += WEXITSTATUS(status) == 7;
    }
    CHECK(winners == 1 && unlink("exclusive") == 0);
    /* holey: what was never written is zeros. */
    fd = open("holey", O_CREAT | O_RDWR, 0666);
    for (int i = 0; i < 10; i++)
        CHECK(pwrite(fd, block, sizeof block, i * 100000L) == sizeof block);
    CHECK(fsync(fd) == 0 && fstat(fd, &st) == 0 && st.st_size == 900000 + 4096);
    CHECK(close(fd) == 0);
    fd = open("holey", O_RDONLY);
    for (int i = 0; i < 10; i++) {
        CHECK(pread(fd, back, sizeof back, i * 100000L) == sizeof back && memcmp(block, back, sizeof back) == 0);
        if (i < 9) {
            CHECK(pread(fd, back, sizeof back, i * 100000L + 50000) == sizeof back);
            for (unsigned k = 0; k < sizeof back; k++)
                CHECK(back[k] == 0);
        }
    }
    CHECK(close(fd) == 0);
    /* truncate: shorter, longer, and beyond what 32 bits count. */
    CHECK(truncate("holey", 10) == 0 && truncate("holey", 3000) == 0);
    fd = open("holey", O_RDWR);
    CHECK(read(fd, back, sizeof back) == 3000 && memcmp(back, block, 10) == 0);
    for (int k = 10; k < 3000; k++)
        CHECK(back[k] == 0);
    CHECK(pwrite(fd, "end", 3, 5L << 30) == 3 && fsync(fd) == 0);
    CHECK(fstat(fd, &st) == 0 && st.st_size == (5L << 30) + 3);
    CHECK(pread(fd, back, 8, 5L << 30) == 3 && memcmp(back, "end", 3) == 0);
    CHECK(close(fd) == 0 && unlink("holey") == 0);
    /* telldir: places in a listing can be gone back to. */
    for (int i = 0; i < 100; i++)
        touch(name(path, "entry", i));
    DIR *dir = opendir(".");
    long places[110];
    char names[110][64];
    int count = 0;
    struct dirent *entry;
    CHECK(dir != NULL);
    for (places[0] = telldir(dir); (entry = readdir(dir)) != NULL; places[++count] = telldir(dir))
        snprintf(names[count], 64, "%.63s", entry->d_name);
    CHECK(count == 102);
    for (int i = count - 1; i >= 0; i -= 7) {
        seekdir(dir, places[i]);
        CHECK((entry = readdir(dir)) != NULL && strcmp(entry->d_name, names[i]) == 0);
    }
    CHECK(closedir(dir) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(unlink(name(path, "entry", i)) == 0);
    /* Mapped memory reaches the file, and the other way round. */
    fd = open("mapped", O_CREAT | O_RDWR, 0666);
    CHECK(fd >= 0 && ftruncate(fd, 65536) == 0);
    char *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    memcpy(map + 40000, block, sizeof block);
    CHECK(msync(map, 65536, MS_SYNC) == 0);
    CHECK(pread(fd, back, sizeof back, 40000) == sizeof back && memcmp(block, back, sizeof back) == 0);
    CHECK(pwrite(fd, "seen", 4, 100) == 4 && memcmp(map + 100, "seen", 4) == 0);
    CHECK(munmap(map, 65536) == 0 && close(fd) == 0 && unlink("mapped") == 0);
    /* Names of 255 bytes, and not one more. */
    char longest[257];
    memset(longest, 'n', 256);
    longest[256] = 0;
    FAILS(open(longest, O_CREAT | O_WRONLY, 0666), ENAMETOOLONG);
    longest[255] = 0;
    touch(longest);
    CHECK(stat(longest, &st) == 0 && unlink(longest) == 0);
}

static void locks(void) {
    int fd = open("locked", O_CREAT | O_RDWR, 0666), to[2], from[2];
    CHECK(fd >= 0 && pipe(to) == 0 && pipe(from) == 0);
    CHECK(write(fd, "0123456789", 10) == 10);
    /* 1: every way to lock what nobody has. */
    for (int i = 0; i < 2; i++) {
        short type = i ? F_RDLCK : F_WRLCK;
        CHECK(set(fd, F_SETLK, type, 0, 1) == 0 && set(fd, F_SETLK, type, 5, 0) == 0);
        CHECK(set(fd, F_SETLK, type, 0, 0) == 0 && set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    }
    /* 2: what the owner has, others have not; reads share. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 100) == 0);
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 99, 1) == -1 && (errno == EAGAIN || errno == EACCES)));
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_RDLCK, 0, 1) == -1));
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 100, 1) == 0));
    ELSEWHERE(CHECK(probe(fd, F_RDLCK, 50, 1) == F_WRLCK && probe(fd, F_WRLCK, 100, 10) == F_UNLCK));
    CHECK(set(fd, F_SETLK, F_RDLCK, 0, 100) == 0);
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_RDLCK, 0, 100) == 0 && set(fd, F_SETLK, F_WRLCK, 0, 1) == -1));
    /* 3: an unlock in the middle splits, a lock over all joins. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 30) == 0 && set(fd, F_SETLK, F_UNLCK, 10, 10) == 0);
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 10, 10) == 0 && set(fd, F_SETLK, F_WRLCK, 9, 1) == -1 &&
                    set(fd, F_SETLK, F_WRLCK, 20, 1) == -1));
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0));
    /* 4: large offsets. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0x7ffffffffffff000, 0x1000) == 0 && set(fd, F_SETLK, F_WRLCK, 1L << 33, 10) == 0);
    ELSEWHERE(CHECK(probe(fd, F_RDLCK, (1L << 33) + 9, 1) == F_WRLCK && probe(fd, F_RDLCK, (1L << 33) + 10, 1) == F_UNLCK));
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    /* 5: a lock goes with its process. */
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0));
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
    /* 6: who waits gets it when it is given back, also when its holder is killed. */
    for (int how = 0; how < 2; how++) {
        CHECK(set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
        char byte;
        pid_t holder = fork();
        if (holder == 0) {
            CHECK(set(fd, F_SETLKW, F_WRLCK, 0, 0) == 0 && write(to[1], "h", 1) == 1);
            if (how == 0) {
                CHECK(read(from[0], &byte, 1) == 1 && set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
                _exit(0);
            }
            pause();
        }
        CHECK(read(to[0], &byte, 1) == 1);
        FAILS(set(fd, F_SETLK, F_RDLCK, 0, 1), EAGAIN);
        pid_t waiter = fork();
        if (waiter == 0) {
            CHECK(write(to[1], "w", 1) == 1 && set(fd, F_SETLKW, F_RDLCK, 0, 1) == 0);
            _exit(0);
        }
        CHECK(read(to[0], &byte, 1) == 1);
        usleep(300000); /* Most likely it waits by now; nothing fails if not. */
        CHECK(how == 0 ? write(from[1], "g", 1) == 1 : kill(holder, SIGKILL) == 0);
        int status;
        CHECK(waitpid(holder, &status, 0) == holder && (how == 1 || status == 0));
        CHECK(waitpid(waiter, &status, 0) == waiter && status == 0);
    }
    /* 7: a wait that is given up leaves nothing behind. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
    pid_t waiter = fork();
    if (waiter == 0) {
        set(fd, F_SETLKW, F_WRLCK, 0, 10);
        _exit(0);
    }
    usleep(300000);
    CHECK(kill(waiter, SIGKILL) == 0 && waitpid(waiter, NULL, 0) == waiter);
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    ELSEWHERE(CHECK(set(fd, F_SETLK, F_WRLCK, 0, 10) == 0));
    /* 8: flock(2). */
    int second = open("locked", O_RDWR);
    CHECK(flock(fd, LOCK_EX) == 0 && flock(second, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    CHECK(flock(fd, LOCK_UN) == 0 && flock(second, LOCK_SH | LOCK_NB) == 0 && flock(fd, LOCK_SH | LOCK_NB) == 0);
    /* 9: what is written under a lock is read under the next one: 4 processes count to 100. */
    CHECK(close(second) == 0 && close(fd) == 0);
    for (int c = 0; c < 4; c++)
        if (fork() == 0) {
            for (int i = 0; i < 25; i++) {
                char text[16] = {0};
                int counter = open("counter", O_CREAT | O_RDWR, 0666);
                CHECK(counter >= 0 && set(counter, F_SETLKW, F_WRLCK, 0, 0) == 0);
                CHECK(pread(counter, text, 15, 0) >= 0);
                snprintf(text, sizeof text, "%d", atoi(text) + 1);
                CHECK(pwrite(counter, text, strlen(text), 0) == (ssize_t)strlen(text) && close(counter) == 0);
            }
            _exit(0);
        }
    for (int c = 0, status; c < 4; c++)
        CHECK(wait(&status) > 0 && status == 0);
    char text[16] = {0};
    fd = open("counter", O_RDONLY);
    CHECK(read(fd, text, 15) > 0 && atoi(text) == 100 && close(fd) == 0);
    CHECK(unlink("counter") == 0 && unlink("locked") == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } suites[] = {{"basic", basic}, {"general", general}, {"append", append}, {"special", special}, {"lock", locks}};
    if (argc < 3) {
        fprintf(stderr, "write: connectathon DIR basic|general|append|special|lock ...\n");
        return 2;
    }
    umask(0);
    CHECK(chdir(argv[1]) == 0);
    for (int i = 2; i < argc; i++) {
        unsigned s = 0;
        while (s < sizeof suites / sizeof *suites && strcmp(argv[i], suites[s].name))
            s++;
        CHECK(s < sizeof suites / sizeof *suites);
        snprintf(path, sizeof path, "suite-%s", argv[i]);
        CHECK(mkdir(path, 0777) == 0 && chdir(path) == 0);
        suites[s].run();
        CHECK(chdir("..") == 0);
        snprintf(path, sizeof path, "suite-%s", argv[i]);
        CHECK(rmdir(path) == 0);
        printf("passed %s\n", argv[i]);
        fflush(stdout);
    }
    return 0;
}
