/*
 * smb2-loader is an independent asynchronous SMB client (libsmb2): it keeps a number of READs or WRITEs outstanding on
 * one connection for a while and prints what it did. It measures nothing of the server; smb.py does. With one request
 * at a time it polls the socket without a pause, so that its own wake-ups are not in the latency.
 */
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <smb2/smb2.h>
#include <smb2/libsmb2.h>

static struct smb2_context *smb2;
static struct smb2fh *file;
static uint32_t size;
static uint64_t span, depth, operations, outstanding;
static bool writes, stopping;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "smb2-loader: %s: %s\n", what, why);
	exit(1);
}

static void done(struct smb2_context *context, int status, void *data, void *buffer);

static void request(uint8_t *buffer)
{
	static uint64_t chance = 88172645463325252u;
	chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
	uint64_t offset = chance % (span / size) * size;
	int failed = writes ? smb2_pwrite_async(smb2, file, buffer, size, offset, done, buffer)
			    : smb2_pread_async(smb2, file, buffer, size, offset, done, buffer);
	if (failed)
		fail("request", smb2_get_error(smb2));
	outstanding++;
}

static void done(struct smb2_context *context, int status, void *data, void *buffer)
{
	(void)context, (void)data;
	outstanding--;
	if (status < 0)
		fail("reply", strerror(-status));
	if ((uint32_t)status != size)
		fail("reply", "fewer bytes than asked for");
	operations++;
	if (!stopping)
		request(buffer);
}

/* Keeps `depth` requests outstanding for a while, and waits for the last of them. */
static void run(uint8_t *buffers, double seconds)
{
	double end = now() + seconds, given_up = end + 30;
	stopping = false;
	while (outstanding < depth)
		request(buffers + outstanding * size);
	while (outstanding) {
		struct pollfd p = { .fd = smb2_get_fd(smb2), .events = smb2_which_events(smb2) };
		if (poll(&p, 1, depth == 1 ? 0 : 1000) < 0)
			fail("poll", "failed");
		if ((p.revents || depth > 1) && smb2_service(smb2, p.revents) < 0)
			fail("connection", smb2_get_error(smb2));
		stopping = now() >= end;
		if (stopping && now() >= given_up)
			fail("reply", "none came for 30 s");
	}
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
		{ "address", required_argument, NULL, 'a' }, { "share", required_argument, NULL, 's' },
		{ "file", required_argument, NULL, 'f' },    { "size", required_argument, NULL, 'z' },
		{ "depth", required_argument, NULL, 'd' },   { "span", required_argument, NULL, 'p' },
		{ "seconds", required_argument, NULL, 't' }, { "write", no_argument, NULL, 'w' },
		{ 0 },
	};
	const char *address = NULL, *share = NULL, *name = NULL;
	double seconds = 0;
	for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (option) {
		case 'a': address = optarg; break;
		case 's': share = optarg; break;
		case 'f': name = optarg; break;
		case 'z': size = strtoul(optarg, NULL, 10); break;
		case 'd': depth = strtoull(optarg, NULL, 10); break;
		case 'p': span = strtoull(optarg, NULL, 10); break;
		case 't': seconds = atof(optarg); break;
		case 'w': writes = true; break;
		default: return 2;
		}
	}
	/* The password comes by the environment: command lines are visible to everybody. */
	const char *user = getenv("LOADER_USER"), *password = getenv("LOADER_PASSWORD");
	if (!address || !share || !name || !size || !depth || span < size || !seconds || !user || !password) {
		fprintf(stderr, "usage: smb2-loader --address HOST:PORT --share SHARE --file FILE --size BYTES --depth N --span BYTES "
				"--seconds N [--write], with LOADER_USER and LOADER_PASSWORD\n");
		return 2;
	}
	uint8_t *buffers = calloc(depth, size);
	smb2 = smb2_init_context();
	if (!smb2 || !buffers)
		fail("memory", "none");
	smb2_set_user(smb2, user);
	smb2_set_password(smb2, password);
	smb2_set_authentication(smb2, 1 /* SMB2_SEC_NTLMSSP, which not every version names */);
	if (smb2_connect_share(smb2, address, share, user))
		fail("connect", smb2_get_error(smb2));
	if ((writes ? smb2_get_max_write_size(smb2) : smb2_get_max_read_size(smb2)) < size)
		fail("connect", "the server does not take requests of this size");
	file = smb2_open(smb2, name, O_RDWR);
	if (!file)
		fail("open", smb2_get_error(smb2));
	run(buffers, 0.3); /* warm up */
	operations = 0;
	printf("begin\n");
	fflush(stdout);
	double start = now();
	run(buffers, seconds);
	seconds = now() - start;
	printf("{\"operations\": %lu, \"bytes\": %lu, \"seconds\": %f}\n", operations, operations * size, seconds);
	fflush(stdout);
	/* Connected until standard input ends: a server may account for a connection only as long as it lasts. */
	char rest;
	while (read(0, &rest, 1) > 0)
		;
	return 0;
}
