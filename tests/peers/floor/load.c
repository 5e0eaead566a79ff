/* The client of the floor: the least that keeps the server at work. It puts nothing of an answer anywhere, and checks only
 * the MAC of the first one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "floor.h"

enum { ROOM = 1 << 20, WARM_UP_MS = 200 };

struct client {
	int socket;
	const struct load *load;
	struct guard *guard;
	char *request;	  /* a whole one, with its payload; the prefix is not the MAC's */
	uint32_t *blocks; /* a prefix for each request of a send */
	struct iovec *parts;
	char *answers;
	size_t room;
	uint64_t chance, operations;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static size_t answer_bytes(const struct work *work)
{
	return work->reply_bytes + (work->is_write ? 0 : work->size);
}

static void lost(void)
{
	errno = 0;
	fail("the server has closed the connection");
}

/* Asks for `count` blocks in one send. */
static void request(struct client *client, unsigned count)
{
	const struct work *work = &client->load->work;
	size_t rest = work->request_bytes - PREFIX + (work->is_write ? work->size : 0);
	for (unsigned i = 0; i < count; i++) {
		client->chance ^= client->chance << 13, client->chance ^= client->chance >> 7, client->chance ^= client->chance << 17;
		client->blocks[i] = client->chance % (client->load->span / work->size);
		client->parts[2 * i] = (struct iovec){ client->blocks + i, PREFIX };
		client->parts[2 * i + 1] = (struct iovec){ client->request + PREFIX, rest };
	}
	if (!send_vector(client->socket, client->parts, 2 * count))
		lost();
}

/* The first exchange, whose answer is checked. */
static void prove(struct client *client)
{
	const struct work *work = &client->load->work;
	size_t payload = work->is_write ? 0 : work->size;
	char *answer = client->answers;
	request(client, 1);
	if (!receive_all(client->socket, answer, work->reply_bytes + payload, work->is_busy))
		lost();
	if (client->guard) {
		guard_begin(client->guard, answer, work->reply_bytes, true);
		guard_add(client->guard, answer + work->reply_bytes, answer + work->reply_bytes, payload);
		errno = 0;
		if (!guard_holds(client->guard, answer))
			fail("the MAC of an answer is wrong");
	}
}

/* Keeps the requests outstanding for a while, and waits for the last answers. */
static void run(struct client *client, double seconds)
{
	const struct work *work = &client->load->work;
	size_t unit = answer_bytes(work), part = 0;
	unsigned outstanding = client->load->depth;
	double end = now() + seconds;
	request(client, outstanding);
	while (outstanding) {
		size_t done = receive(client->socket, client->answers, client->room, work->is_busy);
		if (!done)
			lost();
		unsigned count = (part + done) / unit;
		part = (part + done) % unit;
		if (!count)
			continue;
		client->operations += count;
		outstanding -= count;
		if (now() < end) {
			request(client, count);
			outstanding += count;
		}
	}
}

void load(int port, const struct load *load)
{
	const struct work *work = &load->work;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
	struct client client = { .load = load, .chance = 88172645463325252u };
	size_t bytes = work->request_bytes + (work->is_write ? work->size : 0);
	int one = 1;
	client.socket = stream_socket();
	if (connect(client.socket, (void *)&address, sizeof address))
		fail("connect");
	setsockopt(client.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	client.room = answer_bytes(work) > ROOM ? answer_bytes(work) : ROOM;
	client.answers = page_aligned(client.room);
	client.request = page_aligned(bytes);
	client.blocks = calloc(load->depth, sizeof *client.blocks);
	client.parts = calloc(2 * load->depth, sizeof *client.parts);
	memset(client.request, 0, work->request_bytes);
	memset(client.request + work->request_bytes, 'w', bytes - work->request_bytes);
	if (work->protection != PLAIN) {
		client.guard = guard_new(work->protection);
		char *payload = client.request + work->request_bytes;
		guard_begin(client.guard, client.request, work->request_bytes, false);
		guard_add(client.guard, payload, payload, bytes - work->request_bytes);
		guard_seal(client.guard, client.request);
	}
	if (!send_all(client.socket, work, sizeof *work, 0))
		lost();
	prove(&client);
	run(&client, WARM_UP_MS / 1e3);
	client.operations = 0;
	printf("begin\n");
	fflush(stdout);
	double start = now();
	run(&client, load->seconds);
	double seconds = now() - start;
	printf("{\"operations\": %lu, \"bytes\": %lu, \"seconds\": %f}\n", client.operations, client.operations * work->size, seconds);
	fflush(stdout);
	/* Connected until standard input ends, as the other loaders are. */
	char rest;
	while (read(0, &rest, 1) > 0)
		;
}
