/* The server of the floor: one thread that blocks (or polls, at depth 1), and the fewest system calls for each pattern. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "floor.h"

/* Payload starts on a page, because a copy to a few bytes above its source modulo 4096 is several times slower; a header
 * ends where its payload starts, so that both are one piece. */
enum { PAGE = 4096 };
/* Answers that leave together, and requests that are received together. */
enum { MOST = 64, BATCH = 2 * PIECE };
/* WRITEs smaller than this are received many at a time. */
enum { LARGE = 32 << 10 };
/* Answers to large WRITEs wait for each other while requests are waiting, and no longer: the client would run dry. */
enum { HELD = 8 };

struct connection {
	int socket;
	struct work work;
	struct guard *guard; /* NULL: plain */
	int file;	     /* a memfd if the storage is memory and the pattern needs a file */
	char *memory;	     /* NULL: the storage is the file */
	uint64_t span;
	int pipe[2];
};

/* Where a request's payload is in the storage. */
static off_t offset_of(const struct connection *c, const char *request)
{
	uint32_t block;
	memcpy(&block, request, sizeof block);
	if (block >= c->span / c->work.size) {
		errno = 0;
		fail("a request is for a block behind the end");
	}
	return (off_t)block * c->work.size;
}

static void check(bool holds)
{
	if (!holds) {
		errno = 0;
		fail("the MAC of a request is wrong");
	}
}

static void read_file(const struct connection *c, char *to, size_t size, off_t offset)
{
	if (pread(c->file, to, size, offset) != (ssize_t)size)
		fail("read");
}

/* Puts payload into the storage. */
static void store(const struct connection *c, const char *from, size_t size, off_t offset)
{
	if (c->memory)
		memcpy(c->memory + offset, from, size);
	else if (pwrite(c->file, from, size, offset) != (ssize_t)size)
		fail("write");
}

static bool answer_by_sendfile(const struct connection *c, const char *header, off_t offset)
{
	if (!send_all(c->socket, header, c->work.reply_bytes, MSG_MORE))
		return false;
	for (off_t end = offset + c->work.size; offset < end;)
		if (sendfile(c->socket, c->file, &offset, end - offset) <= 0)
			return false;
	return true;
}

/* A large answer: what is sent has just been read. */
static bool answer_in_pieces(const struct connection *c, const char *header, char *piece, off_t offset)
{
	if (!send_all(c->socket, header, c->work.reply_bytes, MSG_MORE))
		return false;
	for (size_t left = c->work.size; left;) {
		size_t size = left < PIECE ? left : PIECE;
		read_file(c, piece, size, offset);
		left -= size;
		offset += size;
		if (!send_all(c->socket, piece, size, left ? MSG_MORE : 0))
			return false;
	}
	return true;
}

/* Makes an answer whose payload is at `payload` or in the memory; the parts of it that are to be sent, and their number. */
static int make_answer(const struct connection *c, char *payload, off_t offset, struct iovec *parts)
{
	const struct work *work = &c->work;
	char *header = payload - work->reply_bytes;
	bool is_copied = !c->memory || work->protection == GCM;
	memset(header, 0, work->reply_bytes);
	if (c->guard)
		guard_begin(c->guard, header, work->reply_bytes, false);
	for (size_t at = 0; at < work->size && (is_copied || c->guard); at += PIECE) {
		size_t size = work->size - at < PIECE ? work->size - at : PIECE;
		char *from = c->memory ? c->memory + offset + at : payload + at;
		if (!c->memory)
			read_file(c, from, size, offset + at);
		if (c->guard)
			guard_add(c->guard, payload + at, from, size);
	}
	if (c->guard)
		guard_seal(c->guard, header);
	parts[0] = (struct iovec){ header, work->reply_bytes + (is_copied ? work->size : 0) };
	parts[1] = (struct iovec){ c->memory + offset, work->size };
	return is_copied ? 1 : 2;
}

static void serve_reads(const struct connection *c)
{
	const struct work *work = &c->work;
	size_t slot = PAGE + (work->size + PAGE - 1) / PAGE * PAGE;
	size_t slots = slot < BATCH ? BATCH / slot : 1;
	slots = slots < MOST ? slots : MOST;
	bool in_pieces = !c->memory && !c->guard && work->size > PIECE;
	char *answers = page_aligned(slots * slot), *requests = page_aligned(BATCH);
	struct iovec parts[2 * MOST];
	char header[256] = { 0 };
	for (size_t have = 0, done; (done = receive(c->socket, requests + have, BATCH - have, work->is_busy));) {
		char *request = requests;
		int count = 0;
		size_t used = 0;
		for (have += done; have >= work->request_bytes; have -= work->request_bytes, request += work->request_bytes) {
			off_t offset = offset_of(c, request);
			if (c->guard) {
				guard_begin(c->guard, request, work->request_bytes, true);
				check(guard_holds(c->guard, request));
			}
			if (work->pattern == SENDFILE) {
				if (!answer_by_sendfile(c, header, offset))
					goto end;
			} else if (in_pieces) {
				if (!answer_in_pieces(c, header, answers, offset))
					goto end;
			} else {
				count += make_answer(c, answers + used * slot + PAGE, offset, parts + count);
				if (++used == slots) {
					if (!send_vector(c->socket, parts, count))
						goto end;
					count = used = 0;
				}
			}
		}
		if (count && !send_vector(c->socket, parts, count))
			break;
		memmove(requests, request, have);
	}
end:
	free(requests);
	free(answers);
}

static void serve_small_writes(const struct connection *c)
{
	const struct work *work = &c->work;
	size_t unit = work->request_bytes + work->size, room = BATCH / unit * unit;
	char *requests = page_aligned(room), *answers = calloc(room / unit, work->reply_bytes);
	/* The room is a number of whole requests, so that none has to be moved to have its end received. */
	for (size_t begin = 0, end = 0, done; (done = receive(c->socket, requests + end, room - end, work->is_busy));) {
		int count = 0;
		for (end += done; end - begin >= unit; begin += unit) {
			char *request = requests + begin, *payload = request + work->request_bytes;
			off_t offset = offset_of(c, request);
			if (c->guard) {
				guard_begin(c->guard, request, work->request_bytes, true);
				guard_add(c->guard, payload, payload, work->size);
				check(guard_holds(c->guard, request));
			}
			store(c, payload, work->size, offset);
			char *answer = answers + count++ * work->reply_bytes;
			if (c->guard) {
				memset(answer, 0, work->reply_bytes);
				guard_begin(c->guard, answer, work->reply_bytes, false);
				guard_seal(c->guard, answer);
			}
		}
		if (begin == end)
			begin = end = 0;
		if (count && !send_all(c->socket, answers, count * work->reply_bytes, 0))
			break;
	}
	free(answers);
	free(requests);
}

static bool splice_payload(const struct connection *c, loff_t offset)
{
	for (size_t left = c->work.size; left;) {
		ssize_t got = splice(c->socket, NULL, c->pipe[1], NULL, left, SPLICE_F_MOVE | SPLICE_F_MORE);
		if (got <= 0)
			return false;
		left -= got;
		for (ssize_t done; got; got -= done)
			if ((done = splice(c->pipe[0], NULL, c->file, &offset, got, SPLICE_F_MOVE)) <= 0)
				fail("splice");
	}
	return true;
}

/* Receives payload in pieces of `most` bytes, of which the first has `have` bytes at `payload` already, and stores it. */
static bool take_payload(const struct connection *c, char *request, char *payload, size_t most, size_t have, off_t offset)
{
	const struct work *work = &c->work;
	if (c->guard)
		guard_begin(c->guard, request, work->request_bytes, true);
	for (size_t at = 0, size; at < work->size; at += size, have = 0) {
		size = work->size - at < most ? work->size - at : most;
		/* Straight to its place in memory, or each piece to the same buffer, unless it is to be checked as a whole. */
		char *to = c->guard ? payload + at : c->memory ? c->memory + offset + at : payload;
		if (!receive_all(c->socket, to + have, size - have, work->is_busy))
			return false;
		if (c->guard)
			guard_add(c->guard, to, to, size);
		else if (!c->memory)
			store(c, to, size, offset + at);
	}
	if (c->guard) {
		check(guard_holds(c->guard, request));
		store(c, payload, work->size, offset);
	}
	return true;
}

static void serve_large_writes(const struct connection *c)
{
	const struct work *work = &c->work;
	char *payload = (char *)page_aligned(PAGE + work->size) + PAGE, *request = payload - work->request_bytes;
	char answers[HELD][256] = { { 0 } };
	struct iovec parts[HELD];
	int held = 0;
	size_t most = (c->guard || work->pattern == PIECES) && work->size > PIECE ? PIECE : work->size;
	/* With the header comes what goes to the same buffer, in one call. */
	bool has_buffer = c->guard || (!c->memory && work->pattern != SPLICE);
	size_t first = work->request_bytes + (has_buffer ? most : 0);
	for (;;) {
		ssize_t have = recv(c->socket, request, first, MSG_DONTWAIT);
		if (have == 0)
			break;
		if (have < 0)
			have = 0;
		if (held == HELD || (held && !have)) {
			if (!send_vector(c->socket, parts, held))
				break;
			held = 0;
		}
		if (!receive_all(c->socket, request + have, first - have, work->is_busy))
			break;
		off_t offset = offset_of(c, request);
		if (!(work->pattern == SPLICE ? splice_payload(c, offset)
					      : take_payload(c, request, payload, most, first - work->request_bytes, offset)))
			break;
		char *answer = answers[held];
		if (c->guard) {
			memset(answer, 0, work->reply_bytes);
			guard_begin(c->guard, answer, work->reply_bytes, false);
			guard_seal(c->guard, answer);
		}
		parts[held++] = (struct iovec){ answer, work->reply_bytes };
	}
	free(payload - PAGE);
}

/* As much memory as the file has bytes, in large pages where the machine has them: each word is its own offset. */
static char *make_memory(uint64_t span)
{
	char *memory = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("memory");
	madvise(memory, span, MADV_HUGEPAGE);
	for (uint64_t at = 0; at + sizeof at <= span; at += sizeof at)
		memcpy(memory + at, &at, sizeof at);
	return memory;
}

/* The same in a file without a disk, which sendfile and splice need. */
static int make_memfd(const char *memory, uint64_t span)
{
	int file = memfd_create("floor", MFD_CLOEXEC);
	if (file < 0)
		fail("memfd");
	for (uint64_t at = 0; at < span;) {
		ssize_t done = pwrite(file, memory + at, span - at < PIECE ? span - at : PIECE, at);
		if (done <= 0)
			fail("memfd");
		at += done;
	}
	return file;
}

void serve(const char *path, uint64_t span)
{
	static char *memory, *mapped;
	static int memfd = -1;
	int one = 1;
	struct connection c = { .span = span };
	int file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0 || lseek(file, 0, SEEK_END) < (off_t)span)
		fail(path);
	if (pipe2(c.pipe, O_CLOEXEC) || fcntl(c.pipe[1], F_SETPIPE_SZ, 1 << 20) < 0)
		fail("pipe");
	int listener = listen_somewhere();
	for (;;) {
		c.socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (c.socket < 0)
			fail("accept");
		setsockopt(c.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		/* Whoever looks whether the port answers has no work. */
		if (receive_all(c.socket, &c.work, sizeof c.work, false)) {
			const struct work *work = &c.work;
			if (work->storage == MEMORY && !memory)
				memory = make_memory(span);
			if (work->storage == MEMORY && work->pattern == SENDFILE && memfd < 0)
				memfd = make_memfd(memory, span);
			if (work->storage == MAPPED && !mapped) {
				mapped = mmap(NULL, span, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
				if (mapped == MAP_FAILED)
					fail("map");
			}
			c.memory = work->storage == MEMORY ? memory : work->storage == MAPPED ? mapped : NULL;
			c.file = work->storage == MEMORY ? memfd : file;
			c.guard = work->protection == PLAIN ? NULL : guard_new(work->protection);
			if (!work->is_write)
				serve_reads(&c);
			else if (work->size < LARGE)
				serve_small_writes(&c);
			else
				serve_large_writes(&c);
			if (c.guard)
				guard_free(c.guard);
		}
		close(c.socket);
	}
}
