/*
 * nfs-loader is an independent asynchronous client of NFSv3 and NFSv4.0 (libnfs): it keeps a number of READs or WRITEs
 * outstanding on one connection for a while and prints what it did. It measures nothing of the server; nfs.py does. With one
 * request at a time it polls the socket without a pause, so that its own wake-ups are not in the latency.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <nfsc/libnfs.h>

static struct nfs_context *nfs;
static struct nfsfh *file;
static uint64_t size, span, depth, operations, outstanding;
static bool writes, stopping;
static char *buffer;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "nfs-loader: %s: %s\n", what, why);
	exit(1);
}

static void done(int status, struct nfs_context *context, void *data, void *private);

static void request(void)
{
	static uint64_t chance = 88172645463325252u;
	chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
	uint64_t offset = chance % (span / size) * size;
	int failed = writes ? nfs_pwrite_async(nfs, file, offset, size, buffer, done, NULL)
			    : nfs_pread_async(nfs, file, offset, size, done, NULL);
	if (failed)
		fail("request", nfs_get_error(nfs));
	outstanding++;
}

static void done(int status, struct nfs_context *context, void *data, void *private)
{
	(void)context, (void)private;
	outstanding--;
	if (status < 0)
		fail("reply", data ? data : "no reason");
	if ((uint64_t)status != size)
		fail("reply", "fewer bytes than asked for");
	operations++;
	if (!stopping)
		request();
}

/* Keeps `depth` requests outstanding for a while, and waits for the last of them. */
static void run(double seconds)
{
	double end = now() + seconds;
	stopping = false;
	while (outstanding < depth)
		request();
	while (outstanding) {
		struct pollfd p = { .fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs) };
		if (poll(&p, 1, depth == 1 ? 0 : 1000) < 0)
			fail("poll", "failed");
		if ((p.revents || depth > 1) && nfs_service(nfs, p.revents) < 0)
			fail("connection", nfs_get_error(nfs));
		stopping = now() >= end;
	}
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: nfs-loader nfs://HOST:PORT/EXPORT/FILE?... read|write SIZE DEPTH SPAN SECONDS\n");
		return 2;
	}
	writes = !strcmp(argv[2], "write");
	size = strtoull(argv[3], NULL, 10);
	depth = strtoull(argv[4], NULL, 10);
	span = strtoull(argv[5], NULL, 10);
	double seconds = atof(argv[6]);
	buffer = calloc(1, size);
	nfs = nfs_init_context();
	struct nfs_url *url = nfs_parse_url_full(nfs, argv[1]);
	if (!url)
		fail("URL", nfs_get_error(nfs));
	if (nfs_mount(nfs, url->server, url->path))
		fail("mount", nfs_get_error(nfs));
	/* Over NFSv4 libnfs does not ask. */
	if (nfs_get_readmax(nfs) && nfs_get_readmax(nfs) < size)
		fail("READ", "the server does not take requests of this size");
	if (nfs_open(nfs, url->file, O_RDWR, &file))
		fail("open", nfs_get_error(nfs));
	run(0.3); /* warm up */
	operations = 0;
	printf("begin\n");
	fflush(stdout);
	double start = now();
	run(seconds);
	seconds = now() - start;
	printf("{\"operations\": %lu, \"bytes\": %lu, \"seconds\": %f}\n", operations, operations * size, seconds);
	fflush(stdout);
	/* Connected until standard input ends: a server may account for a connection only as long as it lasts. */
	char rest;
	while (read(0, &rest, 1) > 0)
		;
	return 0;
}
