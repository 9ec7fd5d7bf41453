/* Preloaded into a process: writes down, in order, what it does to files under POWER_CUTS_FOLDER.
 *
 * Each entry of the trace: kind (1 byte), length of the path (2), offset (8), length of the data (4), path, data.
 * Kinds: c create, w write, t truncate (offset is the size), s sync, f failed sync, u unlink, r rename (data is the new
 * path), m mkdir.
 *
 * The process may call `fail_files(which, first, count, error)`: of the operations that `which` names (any of "wts") on
 * these files, `count` fail with `error`, from the `first` one after this call on. A write that fails has written half.
 * `files_failed()` is how many have failed since.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST 65536
static char *paths[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static const char *folder;
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *to = getenv("POWER_CUTS_TRACE");
    folder = getenv("POWER_CUTS_FOLDER");
    if (to && folder) trace = REAL(open)(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int watched(const char *path) { return trace >= 0 && path && !strncmp(path, folder, strlen(folder)); }

static void note(char kind, const char *path, int64_t offset, const void *data, uint32_t size) {
    uint16_t length = strlen(path);
    char head[15];
    head[0] = kind;
    memcpy(head + 1, &length, 2);
    memcpy(head + 3, &offset, 8);
    memcpy(head + 11, &size, 4);
    ssize_t (*put)(int, const void *, size_t) = REAL(write);
    if (put(trace, head, 15) < 0 || put(trace, path, length) < 0 || (size && put(trace, data, size) < 0)) abort();
}

static const char *failing = "";
static int before_first, still_to_fail, fails_with, failed;

void fail_files(const char *which, int first, int count, int error) {
    pthread_mutex_lock(&lock);
    failing = strdup(which), before_first = first - 1, still_to_fail = count, fails_with = error, failed = 0;
    pthread_mutex_unlock(&lock);
}
int files_failed(void) { return failed; }

static int fails(int fd, char kind) {
    if (fd < 0 || fd >= MOST || !paths[fd] || !strchr(failing, kind)) return 0;
    int now = 0;
    pthread_mutex_lock(&lock);
    if (before_first > 0) before_first--;
    else if (still_to_fail > 0) still_to_fail--, failed++, now = 1;
    pthread_mutex_unlock(&lock);
    return now;
}

static int opened(int fd, const char *path, int existed) {
    if (fd >= 0 && fd < MOST) {
        pthread_mutex_lock(&lock);
        free(paths[fd]);
        paths[fd] = watched(path) ? strdup(path) : NULL;
        if (paths[fd] && !existed) note('c', path, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return fd;
}

static int open_any(const char *path, int flags, mode_t mode) {
    int existed = access(path, F_OK) == 0;
    int fd = opened(REAL(open)(path, flags, mode), path, existed);
    if (fd >= 0 && fd < MOST && paths[fd] && existed && (flags & O_TRUNC)) note('t', path, 0, NULL, 0);
    return fd;
}

#define MODE(flags) mode_t mode = 0; if (flags & O_CREAT) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return at == AT_FDCWD || path[0] == '/' ? open_any(path, flags, mode) : REAL(openat)(at, path, flags, mode);
}
int close(int fd) {
    if (fd >= 0 && fd < MOST && paths[fd]) {
        pthread_mutex_lock(&lock);
        free(paths[fd]);
        paths[fd] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return REAL(close)(fd);
}

#define DONE(fd, kind, offset, data, size)                                \
    if (fd >= 0 && fd < MOST && paths[fd]) {                              \
        pthread_mutex_lock(&lock);                                        \
        if (paths[fd]) note(kind, paths[fd], offset, data, size);         \
        pthread_mutex_unlock(&lock);                                      \
    }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    int fault = fails(fd, 'w');
    ssize_t done = REAL(pwrite64)(fd, data, fault ? size / 2 : size, offset);
    if (done > 0) DONE(fd, 'w', offset, data, done)
    if (fault) errno = fails_with;
    return fault ? -1 : done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }
ssize_t write(int fd, const void *data, size_t size) {
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0 && fd >= 0 && fd < MOST && paths[fd]) DONE(fd, 'w', lseek(fd, 0, SEEK_CUR) - done, data, done)
    return done;
}
int ftruncate64(int fd, off64_t size) {
    if (fails(fd, 't')) return errno = fails_with, -1;
    int done = REAL(ftruncate64)(fd, size);
    if (!done) DONE(fd, 't', size, NULL, 0)
    return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int fsync(int fd) {
    if (fails(fd, 's')) {
        DONE(fd, 'f', 0, NULL, 0)
        return errno = fails_with, -1;
    }
    int done = REAL(fsync)(fd);
    if (!done) DONE(fd, 's', 0, NULL, 0)
    return done;
}
int fdatasync(int fd) {
    if (fails(fd, 's')) {
        DONE(fd, 'f', 0, NULL, 0)
        return errno = fails_with, -1;
    }
    int done = REAL(fdatasync)(fd);
    if (!done) DONE(fd, 's', 0, NULL, 0)
    return done;
}
int unlink(const char *path) {
    int done = REAL(unlink)(path);
    if (!done && watched(path)) { pthread_mutex_lock(&lock); note('u', path, 0, NULL, 0); pthread_mutex_unlock(&lock); }
    return done;
}
int rename(const char *from, const char *to) {
    int done = REAL(rename)(from, to);
    if (!done && watched(from)) {
        pthread_mutex_lock(&lock);
        note('r', from, 0, to, strlen(to));
        pthread_mutex_unlock(&lock);
    }
    return done;
}
int mkdir(const char *path, mode_t mode) {
    int done = REAL(mkdir)(path, mode);
    if (!done && watched(path)) { pthread_mutex_lock(&lock); note('m', path, 0, NULL, 0); pthread_mutex_unlock(&lock); }
    return done;
}
