/* What the two ends of the floor share: the work, the frames, and how bytes get into and out of a socket. See main.c. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum storage { FILES, MEMORY, MAPPED };
enum pattern { COPY, SENDFILE, PIECES, SPLICE };
enum protection { PLAIN, GMAC, CMAC, GCM };

/* The client's first bytes on a connection, in the order of the host's memory: both ends are this program. */
struct work {
	uint32_t is_write, is_busy, storage, pattern, protection;
	uint32_t request_bytes, reply_bytes; /* headers on the wire; the payload follows one of them */
	uint32_t size;			     /* of the payload */
};

/* A frame starts with 4 bytes. They are the length in SMB and RPC. Here all requests have the same length, so a request's
 * have the number of its block, and all that a MAC covers is the same in each of them. */
enum { PREFIX = 4 };

/* What the ends receive, send, read and write at a time: it has room in the L2 cache twice. */
enum { PIECE = 128 << 10 };

/* The MAC of a message, or its encryption: guard.c. */
struct guard;
struct guard *guard_new(enum protection kind);
void guard_free(struct guard *guard);
/* Starts a message whose header is at `frame`, encrypts or opens the part of the header that is not in clear. */
void guard_begin(struct guard *guard, char *frame, size_t header, bool is_opening);
/* `size` more bytes of payload. Encrypts from `from` to `to`, or opens; a MAC leaves them where they are. */
void guard_add(struct guard *guard, char *to, const char *from, size_t size);
/* Puts the tag into the header. */
void guard_seal(struct guard *guard, char *frame);
/* Whether the tag in the header is right. */
bool guard_holds(struct guard *guard, char *frame);

/* On failure these end the program, and say what failed. Only the peer's end of the connection is an ordinary end:
 * they return 0 or false. A busy end polls, and never sleeps. */
_Noreturn void fail(const char *what);
ssize_t receive(int from, void *to, size_t size, bool is_busy);
bool receive_all(int from, void *to, size_t size, bool is_busy);
bool send_all(int to, const void *from, size_t size, int flags);
struct iovec;
bool send_vector(int to, struct iovec *vector, int count);
void *page_aligned(size_t size);

/* A socket of TCP whose congestion control is reno: bbr, the usual default of cloud machines, paces loopback. */
int stream_socket(void);
/* One that listens on a free port, which is printed. */
int listen_somewhere(void);

void serve(const char *path, uint64_t span);
/* The length of the answer to a message that is stored. */
enum { STORED = 16 };
void store_messages(const char *path, uint64_t span, uint32_t size, int next_port);
struct load {
	struct work work;
	uint64_t span;
	unsigned depth;
	double seconds;
};
void load(int port, const struct load *load);
