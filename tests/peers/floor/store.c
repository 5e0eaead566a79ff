/*
 * A durable write, and nothing else: what a log, or two logs on two hosts, ask of a machine. Each message is stored behind the
 * one before in a file that goes round, and is answered when it is on the disk, and when the next program of the chain has
 * answered, which gets it first: both disks work at the same time. Neither end polls.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor.h"

static int connect_to(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
	int socket_to = stream_socket();
	if (connect(socket_to, (void *)&address, sizeof address))
		fail("connect");
	return socket_to;
}

void store_messages(const char *path, uint64_t span, uint32_t size, int next_port)
{
	char *message = page_aligned(size), answer[STORED];
	int file = open(path, O_RDWR | O_CLOEXEC), next = next_port ? connect_to(next_port) : -1;
	if (file < 0 || lseek(file, 0, SEEK_END) < (off_t)span)
		fail(path);
	int listener = listen_somewhere(), from = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
	if (from < 0)
		fail("accept");
	setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (uint64_t at = 0; receive_all(from, message, size, false); at = at + 2 * size <= span ? at + size : 0) {
		if (next >= 0 && !send_all(next, message, size, 0))
			break;
		if (pwrite(file, message, size, at) != (ssize_t)size || fdatasync(file))
			fail("store");
		if (next >= 0 && !receive_all(next, answer, sizeof answer, false))
			break;
		if (!send_all(from, message, sizeof answer, 0))
			break;
	}
}
