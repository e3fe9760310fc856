/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of the operating system, preloaded into a program.
 *
 * Calls of the program and of libuckpt are counted by class; those of the other libraries
 * that it uses are left alone, since their defects are not ours, and so is what comes before
 * main: the CUDA runtime, part of the program, cannot do without memory there.  FAULTS
 * says which of them fail, in words:
 *
 *	seed=N		decides which call, and how it fails
 *	rate=N		one in N calls of each class
 *	open=N ...	without a rate: one call in all, of a class drawn from those
 *			that are named, and among the first N of its class
 *
 * FAULTS_ONLY names the program, so that those that start it are spared.
 * FAULTS_LOG is a file that gets a line for each fault, and in the end the number of
 * calls of each class, as FAULTS takes them.
 *
 * Reads and writes fail for regular files alone.  Nothing fails that a program
 * needs to clean up: close, unlink, rmdir, free.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum class { OPEN, READ, WRITE, SYNC, NAME, ALLOC, MAP, THREAD, CLASSES };

static const char *const class_names[CLASSES] = {
	[OPEN] = "open", [READ] = "read",     [WRITE] = "write",
	[SYNC] = "sync", [NAME] = "name",     [ALLOC] = "alloc",
	[MAP] = "map",   [THREAD] = "thread",
};

/* How a call may fail: an errno, or one of these. */
#define SHORT (-1)
#define SLOW (-2)

#define KINDS 5
static const int kinds[CLASSES][KINDS] = {
	[OPEN] = { EIO, ENOMEM, EMFILE, EINTR, SLOW },
	[READ] = { EIO, EINTR, SHORT, SLOW },
	[WRITE] = { ENOSPC, EIO, EINTR, SHORT, SLOW },
	[SYNC] = { EIO, ENOSPC },
	[NAME] = { EIO, ENOSPC },
	[ALLOC] = { ENOMEM },
	[MAP] = { ENOMEM },
	[THREAD] = { EAGAIN },
};

/* Set before main runs. */
static bool on;
static uint64_t seed, rate;
static uint64_t within[CLASSES];
static enum class the_class = CLASSES;
static uint64_t the_call;
static struct {
	uintptr_t begin, end;
} texts[2]; /* code ranges: one of the program, one of its library */

static _Atomic uint64_t calls[CLASSES];

/* SplitMix64. */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static void faults_log(const char *line, int len)
{
	const char *const path = getenv("FAULTS_LOG");
	const int fd =
		path ? (int)syscall(SYS_openat, AT_FDCWD, path,
				    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
				    0666)
		     : -1;

	if (fd < 0)
		return;
	syscall(SYS_write, fd, line, len);
	syscall(SYS_close, fd);
}

static const char *name_of(int kind)
{
	return kind == SHORT    ? "short"
	       : kind == SLOW   ? "slow"
	       : kind == EIO    ? "EIO"
	       : kind == EINTR  ? "EINTR"
	       : kind == ENOMEM ? "ENOMEM"
	       : kind == ENOSPC ? "ENOSPC"
	       : kind == EMFILE ? "EMFILE"
				: "EAGAIN";
}

static void log_fault(enum class c, uint64_t n, int kind)
{
	const char *const how = name_of(kind);
	char line[96];
	const int len = snprintf(line, sizeof(line), "%s %llu %s\n",
				 class_names[c], (unsigned long long)n, how);

	faults_log(line, len);
}

static bool is_ours(const void *caller)
{
	const uintptr_t at = (uintptr_t)caller;

	return (at >= texts[0].begin && at < texts[0].end) ||
	       (at >= texts[1].begin && at < texts[1].end);
}

/* Return how this call fails: an errno, SHORT, or 0. */
static int fault(enum class c, const void *caller)
{
	const struct timespec a_while = { 0, 5000000 };
	uint64_t n, h;
	int kind, many = 0;

	if (!on || !is_ours(caller))
		return 0;
	n = atomic_fetch_add(&calls[c], 1) + 1;
	h = mix(seed ^ mix(n * CLASSES + c));
	if (rate ? h % rate != 0 : c != the_class || n != the_call)
		return 0;
	while (many < KINDS && kinds[c][many])
		many++;
	kind = kinds[c][(h >> 32) % (unsigned)many];
	log_fault(c, n, kind);
	if (kind != SLOW)
		return kind;
	syscall(SYS_nanosleep, &a_while, NULL);
	return 0;
}

#define HERE __builtin_return_address(0)

static int fault_of_fd(enum class c, int fd, const void *caller)
{
	struct stat st;

	return on && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
		       ? fault(c, caller)
		       : 0;
}

/* Return the result of a call that fails with -1; 1 if it may continue with `*len` bytes. */
static bool fails(int kind, size_t *len)
{
	if (kind == SHORT && *len > 1)
		*len = 1 + mix(*len) % (*len - 1);
	if (kind > 0)
		errno = kind;
	return kind > 0;
}

/* The libc function that is replaced here. */
#define REAL(name)                     \
	static __typeof__(name) *real; \
	if (!real)                     \
	real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static mode_t mode_of(int flags, va_list ap)
{
	return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

static int open_unless(int kind, int dir, const char *path, int flags,
		       mode_t mode)
{
	REAL(openat);
	if (kind) {
		errno = kind;
		return -1;
	}
	return real(dir, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
	const int kind = fault(OPEN, HERE);
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = mode_of(flags, ap);
	va_end(ap);
	return open_unless(kind, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
	const int kind = fault(OPEN, HERE);
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = mode_of(flags, ap);
	va_end(ap);
	return open_unless(kind, dir, path, flags, mode);
}

DIR *opendir(const char *path)
{
	const int kind = fault(OPEN, HERE);

	REAL(opendir);
	errno = kind;
	return kind ? NULL : real(path);
}

FILE *fopen(const char *path, const char *mode)
{
	const int kind = fault(OPEN, HERE);

	REAL(fopen);
	errno = kind;
	return kind ? NULL : real(path, mode);
}

ssize_t read(int fd, void *buf, size_t len)
{
	const int kind = fault_of_fd(READ, fd, HERE);

	REAL(read);
	return fails(kind, &len) ? -1 : real(fd, buf, len);
}

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
	const int kind = fault_of_fd(READ, fd, HERE);

	REAL(pread);
	return fails(kind, &len) ? -1 : real(fd, buf, len, off);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	const int kind = fault_of_fd(WRITE, fd, HERE);

	REAL(write);
	return fails(kind, &len) ? -1 : real(fd, buf, len);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	const int kind = fault_of_fd(WRITE, fd, HERE);

	REAL(pwrite);
	return fails(kind, &len) ? -1 : real(fd, buf, len, off);
}

/* A short writev writes only the first piece. */
ssize_t writev(int fd, const struct iovec *iov, int n)
{
	const int kind = fault_of_fd(WRITE, fd, HERE);
	size_t none = 0;

	REAL(writev);
	return fails(kind, &none) ? -1 : real(fd, iov, kind == SHORT ? 1 : n);
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t off)
{
	const int kind = fault_of_fd(WRITE, fd, HERE);
	size_t none = 0;

	REAL(pwritev);
	return fails(kind, &none) ? -1
				  : real(fd, iov, kind == SHORT ? 1 : n, off);
}

#define FAILING(class)                       \
	const int kind = fault(class, HERE); \
	if (kind) {                          \
		errno = kind;                \
		return -1;                   \
	}

int fsync(int fd)
{
	FAILING(SYNC)
	REAL(fsync);
	return real(fd);
}

int fdatasync(int fd)
{
	FAILING(SYNC)
	REAL(fdatasync);
	return real(fd);
}

int ftruncate(int fd, off_t len)
{
	FAILING(SYNC)
	REAL(ftruncate);
	return real(fd, len);
}

int rename(const char *from, const char *to)
{
	FAILING(NAME)
	REAL(rename);
	return real(from, to);
}

int renameat(int a, const char *from, int b, const char *to)
{
	FAILING(NAME)
	REAL(renameat);
	return real(a, from, b, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	FAILING(NAME)
	REAL(renameat2);
	return real(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
	FAILING(NAME)
	REAL(mkdir);
	return real(path, mode);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
	FAILING(NAME)
	REAL(mkdirat);
	return real(dir, path, mode);
}

/* openat2 has no function in the C library. */
long syscall(long number, ...)
{
	static long (*real)(long, ...);
	long a[6];
	va_list ap;

	if (!real)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
#ifdef SYS_openat2
	if (number == SYS_openat2) {
		FAILING(OPEN)
	}
#endif
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t n, size_t len);
void *__libc_realloc(void *p, size_t len);

#define NO_MEMORY(what)           \
	if (fault(ALLOC, HERE)) { \
		errno = ENOMEM;   \
		return what;      \
	}

void *malloc(size_t len)
{
	NO_MEMORY(NULL)
	return __libc_malloc(len);
}

void *calloc(size_t n, size_t len)
{
	NO_MEMORY(NULL)
	return __libc_calloc(n, len);
}

void *realloc(void *p, size_t len)
{
	NO_MEMORY(NULL)
	return __libc_realloc(p, len);
}

char *strdup(const char *s)
{
	const size_t len = strlen(s) + 1;
	char *copy;

	NO_MEMORY(NULL)
	copy = __libc_malloc(len);
	return copy ? memcpy(copy, s, len) : NULL;
}

int asprintf(char **out, const char *fmt, ...)
{
	va_list ap;
	int n;

	NO_MEMORY(-1)
	va_start(ap, fmt);
	n = vasprintf(out, fmt, ap);
	va_end(ap);
	return n;
}

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	REAL(mmap);
	if (fault(MAP, HERE)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return real(at, len, prot, flags, fd, off);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
		   void *(*start)(void *), void *arg)
{
	const int kind = fault(THREAD, HERE);

	REAL(pthread_create);
	return kind ? kind : real(thread, attr, start, arg);
}

/* The first object is the program itself. */
static int find_text(struct dl_phdr_info *info, size_t size, void *ctx)
{
	const bool library = strstr(info->dlpi_name, "/libuckpt.so");

	(void)size;
	(void)ctx;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *const p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X && (library || !texts[0].end)) {
			texts[library].begin = info->dlpi_addr + p->p_vaddr;
			texts[library].end = texts[library].begin + p->p_memsz;
		}
	}
	return library;
}

static uint64_t word(const char *words, const char *name)
{
	const size_t len = strlen(name);

	for (const char *p = words; (p = strstr(p, name)); p += len)
		if ((p == words || p[-1] == ' ') && p[len] == '=')
			return strtoull(p + len + 1, NULL, 10);
	return 0;
}

static void choose_call(void)
{
	const uint64_t h = mix(seed);
	unsigned n = 0;

	for (int c = 0; c < CLASSES; c++)
		n += within[c] > 0;
	n = n ? (unsigned)(h % n) + 1 : 0;
	for (int c = 0; c < CLASSES; c++)
		if (within[c] && --n == 0) {
			the_class = (enum class)c;
			the_call = 1 + mix(h) % within[c];
		}
}

static void begin(void)
{
	const char *const words = getenv("FAULTS");
	const char *const only = getenv("FAULTS_ONLY");

	if (!words || (only && strcmp(only, program_invocation_short_name) != 0))
		return;
	dl_iterate_phdr(find_text, NULL);
	seed = word(words, "seed");
	rate = word(words, "rate");
	for (int c = 0; c < CLASSES; c++)
		within[c] = word(words, class_names[c]);
	if (!rate)
		choose_call();
	on = true;
}

typedef int main_fn(int argc, char **argv, char **env);

static main_fn *program_main;

static int begin_main(int argc, char **argv, char **env)
{
	begin();
	return program_main(argc, argv, env);
}

int __libc_start_main(main_fn *main_of, int argc, char **argv,
		      void (*init)(void), void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end);

/* Every program starts with this function of the C library. */
int __libc_start_main(main_fn *main_of, int argc, char **argv,
		      void (*init)(void), void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end)
{
	__typeof__(__libc_start_main) *const start =
		(__typeof__(start))dlsym(RTLD_NEXT, "__libc_start_main");

	program_main = main_of;
	return start(begin_main, argc, argv, init, fini, rtld_fini, stack_end);
}

static void __attribute__((destructor)) end(void)
{
	char line[256] = "calls";
	int len = 5;

	if (!on)
		return;
	on = false;
	for (int c = 0; c < CLASSES; c++)
		len += snprintf(line + len, sizeof(line) - (size_t)len,
				" %s=%llu", class_names[c],
				(unsigned long long)atomic_load(&calls[c]));
	line[len++] = '\n';
	faults_log(line, len);
}
