/*
 * floor: what a READ or a WRITE over TCP asks of a machine, whoever serves it. Two ends exchange frames as long as those
 * of SMB or NFS, payload included, and do nothing else: no session, no decoding, no locks, no tasks. The client chooses
 * blocks at random and keeps a number of requests outstanding, as the loaders of the benches do. Beside the processor time
 * of this server, which nobody can save, stands what a real one adds.
 *
 *     floor serve FILE SPAN
 *         Prints its port, serves one connection after the other. FILE is in the page cache and has SPAN bytes; WRITEs
 *         go into it. As much memory is the other storage.
 *     floor load PORT smb|nfs3|nfs4.0|nfs4.1 read|write STORAGE PATTERN PROTECTION SIZE DEPTH SPAN MILLISECONDS
 *         Prints "begin" and afterwards what it did, as the loaders do. Depth 1 polls at both ends: a round trip, not a wake-up.
 *     floor store FILE SPAN SIZE [PORT]
 *         Prints its port, and stores the messages of one connection durably in FILE, of which SPAN bytes were written before; with
 *         PORT also by another such program, at the same time (store.c).
 *     floor engine
 *         The cryptographic library.
 *
 * Which system calls are the cheapest depends on the size and on the machine. So there are several patterns, and the floor is
 * the best of them:
 *     copy      READ: pread and one send for many answers. WRITE: one receive for many small requests, a whole large one, pwrite
 *     sendfile  READ: the payload leaves the page cache, or a memfd, by sendfile
 *     pieces    WRITE: a large payload goes from the socket to the storage in pieces that stay in the L2 cache
 *     splice    WRITE: from the socket to a pipe, from there to the file: one copy fewer
 * STORAGE is file, memory, or mapped: the file, mapped, so that a READ is a send from memory. Mapped and splice are no floors
 * of a file server, because it cannot keep all files mapped, nor take back what it has spliced when the rest
 * of a WRITE does not come. They tell what else there is to gain.
 *
 * PROTECTION is plain, or gmac, cmac (signed), gcm (encrypted). Payload is then checked as a whole before it goes to the storage.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "floor.h"

void fail(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, errno ? strerror(errno) : "failed");
	exit(1);
}

void *page_aligned(size_t size)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 4096, size))
		fail("memory");
	return memory;
}

/* Whether the connection has ended, which is how the bench ends it; other errors end the program. */
static bool has_ended(ssize_t done, const char *what)
{
	if (done > 0)
		return false;
	if (done < 0 && errno != ECONNRESET && errno != EPIPE)
		fail(what);
	return true;
}

ssize_t receive(int from, void *to, size_t size, bool is_busy)
{
	ssize_t done;
	do
		done = recv(from, to, size, is_busy ? MSG_DONTWAIT : 0);
	while (is_busy && done < 0 && errno == EAGAIN);
	return has_ended(done, "receive") ? 0 : done;
}

bool receive_all(int from, void *to, size_t size, bool is_busy)
{
	for (size_t have = 0; have < size;) {
		ssize_t done;
		do
			done = recv(from, (char *)to + have, size - have, is_busy ? MSG_DONTWAIT : MSG_WAITALL);
		while (is_busy && done < 0 && errno == EAGAIN);
		if (has_ended(done, "receive"))
			return false;
		have += done;
	}
	return true;
}

bool send_all(int to, const void *from, size_t size, int flags)
{
	while (size) {
		ssize_t done = send(to, from, size, flags | MSG_NOSIGNAL);
		if (has_ended(done, "send"))
			return false;
		from = (const char *)from + done;
		size -= done;
	}
	return true;
}

bool send_vector(int to, struct iovec *vector, int count)
{
	while (count) {
		struct msghdr message = { .msg_iov = vector, .msg_iovlen = count };
		ssize_t done = sendmsg(to, &message, MSG_NOSIGNAL);
		if (has_ended(done, "send"))
			return false;
		while (count && (size_t)done >= vector->iov_len) {
			done -= vector->iov_len;
			vector++;
			count--;
		}
		if (count) {
			vector->iov_base = (char *)vector->iov_base + done;
			vector->iov_len -= done;
		}
	}
	return true;
}

enum protocol { SMB, NFS3, NFS40, NFS41 };

int stream_socket(void)
{
	int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (made < 0 || setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "reno", 4))
		fail("socket");
	return made;
}

int listen_somewhere(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int listener = stream_socket();
	if (bind(listener, (void *)&address, size) || listen(listener, 1) || getsockname(listener, (void *)&address, &size))
		fail("listen");
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	return listener;
}

static const char USAGE[] =
	"usage: floor serve FILE SPAN\n"
	"       floor load PORT smb|nfs3|nfs4.0|nfs4.1 read|write file|memory|mapped copy|sendfile|pieces|splice\n"
	"             plain|gmac|cmac|gcm SIZE DEPTH SPAN MILLISECONDS\n"
	"       floor store FILE SPAN SIZE [PORT]\n"
	"       floor engine\n";

_Noreturn static void misused(const char *what, const char *value)
{
	fprintf(stderr, "floor: %s: '%s' is not possible\n%s", what, value, USAGE);
	exit(2);
}

/* The position of a word in a list of them. */
static unsigned word(const char *what, const char *value, const char *const words[])
{
	for (unsigned i = 0; words[i]; i++)
		if (!strcmp(value, words[i]))
			return i;
	misused(what, value);
}

static uint64_t number(const char *what, const char *value, uint64_t most)
{
	char *end;
	errno = 0;
	uint64_t found = strtoull(value, &end, 10);
	if (errno || *end || !found || found > most)
		misused(what, value);
	return found;
}

/*
 * Headers on the wire. SMB: the prefix, the SMB2 header of 64 bytes, and READ 49 and 16, WRITE 48 and 16 ([MS-SMB2] 2.2.19 to
 * 2.2.22); encrypted, the transform header of 52. NFS: record mark, call header, AUTH_UNIX of 28 bytes, a file handle of 40
 * (Weft's). NFSv3: attributes in the answers, before and after in those to WRITE (RFC 1813 3.3.6, 3.3.7). NFSv4: a COMPOUND
 * without a tag of PUTFH and READ or WRITE, in 4.1 behind a SEQUENCE (RFC 8881 16.2, 18.19, 18.22, 18.32, 18.46).
 */
static void set_headers(struct work *work, enum protocol protocol)
{
	if (protocol == NFS3) {
		work->request_bytes = work->is_write ? 136 : 128;
		work->reply_bytes = work->is_write ? 164 : 132;
	} else if (protocol != SMB) {
		uint32_t sequence = protocol == NFS41 ? 36 : 0, sequenced = protocol == NFS41 ? 44 : 0;
		work->request_bytes = 72 + 12 + sequence + 48 + (work->is_write ? 36 : 32);
		work->reply_bytes = 28 + 12 + sequenced + 8 + (work->is_write ? 24 : 16);
	} else {
		uint32_t transform = work->protection == GCM ? 52 : 0;
		work->request_bytes = PREFIX + transform + 64 + (work->is_write ? 48 : 49);
		work->reply_bytes = PREFIX + transform + 64 + 16;
	}
}

static void parse_load(char **words, struct load *load)
{
	static const char *const protocols[] = { "smb", "nfs3", "nfs4.0", "nfs4.1", NULL }, *const operations[] = { "read", "write", NULL },
				 *const storages[] = { "file", "memory", "mapped", NULL },
				 *const patterns[] = { "copy", "sendfile", "pieces", "splice", NULL },
				 *const protections[] = { "plain", "gmac", "cmac", "gcm", NULL };
	struct work *work = &load->work;
	enum protocol protocol = word("protocol", words[0], protocols);
	work->is_write = word("operation", words[1], operations);
	work->storage = word("storage", words[2], storages);
	work->pattern = word("pattern", words[3], patterns);
	work->protection = word("protection", words[4], protections);
	work->size = number("size", words[5], 8 << 20);
	load->depth = number("depth", words[6], 512);
	load->span = number("span", words[7], UINT64_MAX);
	load->seconds = number("milliseconds", words[8], 3600000) / 1e3;
	work->is_busy = load->depth == 1;
	set_headers(work, protocol);
	if (protocol != SMB && work->protection != PLAIN)
		misused("protection of NFS", words[4]);
	if (work->storage == MAPPED && work->pattern != COPY)
		misused("pattern of a mapped file", words[3]);
	if (work->is_write ? work->storage == MAPPED : work->pattern == PIECES || work->pattern == SPLICE)
		misused("operation in this way", words[1]);
	if (work->is_write ? work->pattern == SENDFILE : false)
		misused("pattern of a WRITE", words[3]);
	if (work->pattern != COPY && work->protection != PLAIN)
		misused("pattern of protected payload", words[3]);
	if (work->pattern == SPLICE && work->storage != FILES)
		misused("storage to splice to", words[2]);
	if (load->span / work->size == 0 || load->span / work->size > UINT32_MAX)
		misused("span", words[7]);
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "serve")) {
		serve(words[2], number("span", words[3], UINT64_MAX));
	} else if (count == 12 && !strcmp(words[1], "load")) {
		struct load wanted = { 0 };
		parse_load(words + 3, &wanted);
		load(number("port", words[2], UINT16_MAX), &wanted);
	} else if ((count == 5 || count == 6) && !strcmp(words[1], "store")) {
		uint64_t size = number("size", words[4], 8 << 20), span = number("span", words[3], UINT64_MAX);
		if (span < size || size < STORED)
			misused("size", words[4]);
		store_messages(words[2], span, size, count == 6 ? number("port", words[5], UINT16_MAX) : 0);
	} else if (count == 2 && !strcmp(words[1], "engine")) {
		puts(OpenSSL_version(OPENSSL_VERSION));
	} else {
		fputs(USAGE, stderr);
		return 2;
	}
	return 0;
}
