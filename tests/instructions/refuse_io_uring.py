"""refuse_io_uring.py COMMAND...: runs a command that gets ENOSYS from io_uring_setup, as in many containers.

Valgrind 3.19 waits in io_uring_enter with the lock that all threads need, so a server that uses io_uring hangs there."""

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.ENOSYS
# Of every architecture that has one table of system calls with the others.
IO_URING_SETUP = 425


def main():
    instructions = [
        # The number of the call.
        (LOAD_WORD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(PR_SET_SECCOMP, FILTER, program):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
