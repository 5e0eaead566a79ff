/*
 * nfs41-loader is an asynchronous NFSv4.1 client, written for the benches from RFC 8881 and RFC 5531 alone, because no libnfs
 * speaks more than version 4.0: it keeps a READ or a WRITE outstanding in each slot of a session for a while and prints what it
 * did. It measures nothing of the server; nfs.py does. With one request at a time it polls the socket without a pause, so that
 * its own wake-ups are not in the latency.
 */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SLOTS = 64, HEADERS = 4096, ROOM = 1 << 20 };
enum { GETFH = 10, LOOKUP = 15, OPEN = 18, PUTFH = 22, PUTROOTFH = 24, READ = 25, WRITE = 38, EXCHANGE_ID = 42, CREATE_SESSION = 43,
       SEQUENCE = 53, RECLAIM_COMPLETE = 58 };

/* What is sent, or the beginning of a reply: of a READ's payload no more than fits. */
struct words {
	char bytes[HEADERS];
	size_t used, size;
};

struct slot {
	uint32_t sequence;
	bool is_busy;
};

static int server;
static uint64_t size, span, depth, operations, outstanding;
static bool writes;
static struct slot slots[MOST_SLOTS];
static char session[16], stateid[16], handle[128];
static uint32_t handle_size;
static char *payload;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

_Noreturn static void fail(const char *what, const char *why)
{
	fprintf(stderr, "nfs41-loader: %s: %s\n", what, why);
	exit(1);
}

static void put(struct words *to, uint32_t word)
{
	word = htonl(word);
	memcpy(to->bytes + to->used, &word, 4);
	to->used += 4;
}

static void put_words(struct words *to, const uint32_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++)
		put(to, words[i]);
}

#define PUT(to, ...) put_words(to, (uint32_t[]){ __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / 4)

static void put_bytes(struct words *to, const void *from, uint32_t count)
{
	memcpy(to->bytes + to->used, from, count);
	memset(to->bytes + to->used + count, 0, -count & 3);
	to->used += count + (-count & 3);
}

static void put_opaque(struct words *to, const void *from, uint32_t count)
{
	put(to, count);
	put_bytes(to, from, count);
}

static const char *take_bytes(struct words *from, size_t count)
{
	if (from->size - from->used < count)
		fail("reply", "it ends too early");
	from->used += count;
	return from->bytes + from->used - count;
}

static uint32_t take(struct words *from)
{
	uint32_t word;
	memcpy(&word, take_bytes(from, 4), 4);
	return ntohl(word);
}

static void expect(struct words *reply, uint32_t operation)
{
	uint32_t found = take(reply), status = take(reply);
	char why[64];
	snprintf(why, sizeof why, "operation %u answers with status %u", found, status);
	if (found != operation || status)
		fail("reply", why);
}

/* The head of a COMPOUND (RFC 5531 9, RFC 8881 16.2), whose record mark is set when it is sent. */
static void begin(struct words *to, uint32_t xid, uint32_t count)
{
	static const char machine[] = "loader";
	to->used = 4;
	PUT(to, xid, 0, 2, 100003, 4, 1, /* AUTH_SYS */ 1, 28, 0);
	put_opaque(to, machine, strlen(machine));
	/* uid, gid, no more groups; no verifier; no tag, minor version 1. */
	PUT(to, 0, 0, 0, 0, 0, 0, 1, count);
}

/* The same behind a SEQUENCE, of which `count` operations follow. */
static void begin_in_slot(struct words *to, uint32_t slot, uint32_t count)
{
	struct slot *s = slots + slot;
	s->sequence++;
	begin(to, s->sequence * MOST_SLOTS + slot, count + 1);
	put(to, SEQUENCE);
	put_bytes(to, session, sizeof session);
	PUT(to, s->sequence, slot, depth - 1, 0);
}

static void mark(struct words *request, size_t payload_bytes)
{
	uint32_t length = htonl(1u << 31 | (request->used - 4 + payload_bytes));
	memcpy(request->bytes, &length, 4);
}

static void send_vector(struct iovec *vector, int count)
{
	while (count) {
		struct msghdr message = { .msg_iov = vector, .msg_iovlen = count };
		ssize_t sent = sendmsg(server, &message, MSG_NOSIGNAL);
		if (sent < 0)
			fail("send", strerror(errno));
		for (; count && (size_t)sent >= vector->iov_len; vector++, count--)
			sent -= vector->iov_len;
		if (count) {
			vector->iov_base = (char *)vector->iov_base + sent;
			vector->iov_len -= sent;
		}
	}
}

/* Takes the results up to the first that is not SEQUENCE's; returns the call's number. */
static uint32_t open_reply(struct words *reply, bool has_sequence)
{
	uint32_t xid = take(reply);
	/* A reply that is accepted, whatever its verifier, and executed. */
	if (take(reply) != 1 || take(reply) != 0)
		fail("reply", "the call is denied");
	take(reply);
	take_bytes(reply, (take(reply) + 3) & ~3u);
	if (take(reply) != 0)
		fail("reply", "the call is not accepted");
	take(reply);
	take_bytes(reply, (take(reply) + 3) & ~3u);
	take(reply);
	if (has_sequence) {
		expect(reply, SEQUENCE);
		take_bytes(reply, sizeof session + 20);
	}
	return xid;
}

/* The answer to a READ or WRITE: its slot is free. */
static void done(struct words *reply)
{
	uint32_t slot = open_reply(reply, true) % MOST_SLOTS;
	if (!slots[slot].is_busy)
		fail("reply", "nobody has asked for it");
	expect(reply, PUTFH);
	expect(reply, writes ? WRITE : READ);
	if (!writes)
		take(reply);
	if (take(reply) != size)
		fail("reply", "fewer bytes than asked for");
	slots[slot].is_busy = false;
	outstanding--;
	operations++;
}

/* Receives once, and gives each record that is complete to `handle_record`, in whatever fragments it comes. */
static void receive(void (*handle_record)(struct words *))
{
	static char *buffer;
	static struct words record;
	static uint32_t left, have; /* of this fragment, of its mark */
	static unsigned char head[4];
	if (!buffer)
		buffer = malloc(ROOM);
	ssize_t got;
	do
		got = recv(server, buffer, ROOM, depth == 1 ? MSG_DONTWAIT : 0);
	while (got < 0 && errno == EAGAIN);
	if (got <= 0)
		fail("receive", got ? strerror(errno) : "the server has closed the connection");
	for (char *at = buffer, *end = buffer + got; at < end;) {
		if (have < 4) {
			head[have++] = *at++;
			left = (head[0] & 0x7fu) << 24 | head[1] << 16 | head[2] << 8 | head[3];
			continue;
		}
		size_t some = (size_t)(end - at) < left ? (size_t)(end - at) : left;
		size_t kept = HEADERS - record.size < some ? HEADERS - record.size : some;
		memcpy(record.bytes + record.size, at, kept);
		record.size += kept;
		left -= some;
		at += some;
		if (left)
			break;
		have = 0;
		if (head[0] & 0x80) {
			record.used = 0;
			handle_record(&record);
			record.size = 0;
		}
	}
}

/* Fills the free slots in one send. */
static void request(void)
{
	static uint64_t chance = 88172645463325252u;
	static struct words requests[MOST_SLOTS];
	struct iovec parts[2 * MOST_SLOTS];
	int count = 0;
	for (uint32_t slot = 0; slot < depth; slot++) {
		if (slots[slot].is_busy)
			continue;
		struct words *words = requests + slot;
		chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
		uint64_t offset = chance % (span / size) * size;
		begin_in_slot(words, slot, 2);
		put(words, PUTFH);
		put_opaque(words, handle, handle_size);
		put(words, writes ? WRITE : READ);
		put_bytes(words, stateid, sizeof stateid);
		PUT(words, offset >> 32, offset);
		if (writes)
			put(words, 0); /* UNSTABLE4 */
		put(words, size);
		mark(words, writes ? size : 0);
		parts[count++] = (struct iovec){ words->bytes, words->used };
		if (writes)
			parts[count++] = (struct iovec){ payload, size };
		slots[slot].is_busy = true;
		outstanding++;
	}
	if (count)
		send_vector(parts, count);
}

/* Keeps all slots busy for a while, and waits for the last of them. */
static void run(double seconds)
{
	double end = now() + seconds;
	request();
	while (outstanding) {
		receive(done);
		if (now() < end)
			request();
	}
}

static struct words answer;
static bool is_answered;

static void keep(struct words *reply)
{
	answer = *reply;
	is_answered = true;
}

/* One call, and its answer in `answer`. */
static void call(struct words *request, bool has_sequence)
{
	mark(request, 0);
	send_vector(&(struct iovec){ request->bytes, request->used }, 1);
	for (is_answered = false; !is_answered;)
		receive(keep);
	open_reply(&answer, has_sequence);
}

/* RFC 8881 18.35, 18.36, 18.51. */
static void make_session(void)
{
	static struct words words;
	char client[8], owner[64];
	uint64_t verifier = getpid();
	begin(&words, 1, 1);
	put(&words, EXCHANGE_ID);
	put_bytes(&words, &verifier, sizeof verifier);
	put_opaque(&words, owner, snprintf(owner, sizeof owner, "nfs41-loader %d", getpid()));
	PUT(&words, 0, 0, 0); /* flags, SP4_NONE, no implementation */
	call(&words, false);
	expect(&answer, EXCHANGE_ID);
	memcpy(client, take_bytes(&answer, sizeof client), sizeof client);
	uint32_t sequence = take(&answer);

	begin(&words, 2, 1);
	put(&words, CREATE_SESSION);
	put_bytes(&words, client, sizeof client);
	PUT(&words, sequence, 0);
	PUT(&words, 0, size + HEADERS, size + HEADERS, HEADERS, 8, depth, 0); /* the fore channel */
	PUT(&words, 0, HEADERS, HEADERS, HEADERS, 8, 1, 0);
	PUT(&words, 0x40000000, 1, 0); /* callbacks: a program, AUTH_NONE */
	call(&words, false);
	expect(&answer, CREATE_SESSION);
	memcpy(session, take_bytes(&answer, sizeof session), sizeof session);
	take_bytes(&answer, 12); /* sequence, flags, padding */
	uint32_t request_bytes = take(&answer), reply_bytes = take(&answer);
	take_bytes(&answer, 8);
	if (request_bytes < size + 512 || reply_bytes < size + 512)
		fail("session", "the server does not take requests of this size");
	if (take(&answer) < depth)
		fail("session", "the server has fewer slots than requests are to be outstanding");

	begin_in_slot(&words, 0, 1);
	PUT(&words, RECLAIM_COMPLETE, 0);
	call(&words, true);
	expect(&answer, RECLAIM_COMPLETE);
}

/* Opens /EXPORT/FILE for READs and WRITEs, without a delegation. */
static void open_file(char *path)
{
	static struct words words;
	char *file = strrchr(path, '/'), *rest = NULL;
	uint32_t names = 0;
	if (!file || file == path)
		fail(path, "this is no /EXPORT/FILE");
	*file++ = 0;
	for (char *c = path; *c; c++)
		names += *c == '/';
	begin_in_slot(&words, 0, names + 3);
	put(&words, PUTROOTFH);
	for (char *name = strtok_r(path, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
		put(&words, LOOKUP);
		put_opaque(&words, name, strlen(name));
	}
	PUT(&words, OPEN, 0, 3 | 0x400, 0, 0, 0); /* READ and WRITE, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, nothing denied */
	put_opaque(&words, "loader", 6);
	PUT(&words, 0, 0); /* not created, CLAIM_NULL */
	put_opaque(&words, file, strlen(file));
	put(&words, GETFH);
	call(&words, true);
	expect(&answer, PUTROOTFH);
	for (uint32_t i = 0; i < names; i++)
		expect(&answer, LOOKUP);
	expect(&answer, OPEN);
	memcpy(stateid, take_bytes(&answer, sizeof stateid), sizeof stateid);
	take_bytes(&answer, 24); /* change, flags */
	take_bytes(&answer, 4 * take(&answer));
	/* OPEN_DELEGATE_NONE_EXT says why there is none; contention and resources say one word more. */
	uint32_t delegation = take(&answer), why = delegation == 3 ? take(&answer) : 0;
	if (delegation == 1 || delegation == 2)
		fail("open", "the server gives a delegation that nobody wants");
	if (why == 1 || why == 2)
		take(&answer);
	expect(&answer, GETFH);
	handle_size = take(&answer);
	if (handle_size > sizeof handle)
		fail("open", "the file handle is too long");
	memcpy(handle, take_bytes(&answer, handle_size), handle_size);
}

int main(int argc, char **argv)
{
	if (argc != 8) {
		fprintf(stderr, "usage: nfs41-loader PORT /EXPORT/FILE read|write SIZE DEPTH SPAN SECONDS\n");
		return 2;
	}
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	address.sin_port = htons(atoi(argv[1]));
	int one = 1;
	writes = !strcmp(argv[3], "write");
	size = strtoull(argv[4], NULL, 10);
	depth = strtoull(argv[5], NULL, 10);
	span = strtoull(argv[6], NULL, 10);
	double seconds = atof(argv[7]);
	if (!size || size % 4 || !depth || depth > MOST_SLOTS || span < size)
		fail("options", "SIZE is a multiple of 4, DEPTH 1 to 64, SPAN at least SIZE");
	payload = calloc(1, size);
	server = socket(AF_INET, SOCK_STREAM, 0);
	/* Servers believe a user id that comes from a reserved port. */
	if (server < 0 || bindresvport(server, NULL) || connect(server, (void *)&address, sizeof address))
		fail("connect", strerror(errno));
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	make_session();
	open_file(argv[2]);
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
