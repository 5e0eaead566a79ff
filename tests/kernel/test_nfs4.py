"""The kernel's NFSv4 client on our server, minor versions 0, 1 and 2, over TCP and over RDMA (siw)."""

import tempfile
import unittest

import guest
import weft

VERSIONS = ["4.0", "4.1", "4.2"]


def mount(version, transport="tcp", *more):
    """Arguments of a mount of the share `data`."""
    port = guest.PORTS["nfs-rdma" if transport == "rdma" else "nfs"]
    options = [f"vers={version}", f"proto={transport}", f"port={port}", *more]
    return f"-t nfs -o {','.join(options)} {guest.HOST}:/data"


class Versions(unittest.TestCase):
    def test_every_minor_version_on_every_transport(self):
        mounts = {f"{t}-{v}": (t, mount(v, t)) for t in ["tcp", "rdma"] for v in VERSIONS}
        job = "".join(f"exercise {name} {medium} {guest.INPUT} {how}\n" for name, (medium, how) in mounts.items())
        with guest.serving() as server, guest.Guest(job + "true") as machine:
            machine.finish()
            for name in mounts:
                with self.subTest(mount=name):
                    self.assertIn(f"PASS {name}", machine.said, machine.report() + server.log_text())
                    self.assertTrue(weft.same(machine.input, server.folder / name), "the host sees other bytes")

    def test_the_shares_are_below_one_root(self):
        job = f"""
        mount -t nfs -o vers=4.2,port={guest.PORTS['nfs']} {guest.HOST}:/ /mnt || exit 1
        [ "$(ls /mnt)" = "$(printf 'data\\nram')" ] || {{ ls /mnt; exit 2; }}
        cp {guest.INPUT} /mnt/ram/copy && cmp {guest.INPUT} /mnt/ram/copy || exit 3
        ! mkdir /mnt/other 2> /dev/null || exit 4
        """
        with guest.serving():
            guest.run(job)


class Files(unittest.TestCase):
    """What programs do to files, where a client that caches could be wrong."""

    def test_programs_on_files(self):
        job = f"""
        mount {mount('4.2')} /mnt && cd /mnt || exit 1
        # A file that its owner must not write is written by who makes it.
        (umask 0333; cat {guest.INPUT} > sealed) && cmp {guest.INPUT} sealed || exit 2
        # It is removed while it is open, and read on.
        exec 5< sealed; rm -f sealed; cmp {guest.INPUT} - <&5 || exit 3; exec 5<&-
        # The server copies; holes stay holes.
        truncate -s 8M holes && fallocate -o 1M -l 1M holes || exit 4
        cp {guest.INPUT} one && cp one two && cmp one two || exit 5
        fallocate --punch-hole -o 4096 -l 4096 two && ! cmp -s one two || exit 6
        mkfifo pipe && [ -p pipe ] && mknod null c 1 3 && [ -c null ] || exit 7
        ln one three && [ "$(stat -c %h one)" = 2 ] && ln -s one four && cmp one four || exit 8
        chmod 0640 one && chown 5:6 one && [ "$(stat -c %a:%u:%g three)" = 640:5:6 ] || exit 9
        mkdir -p deep/er && mv deep/er deep/est && rmdir deep/est && ! rmdir . 2> /dev/null || exit 10
        for n in $(seq 300); do : > many-$n || exit 11; done
        [ "$(ls | grep -c many-)" = 300 ] && rm many-* && [ "$(ls | grep -c many-)" = 0 ] || exit 12
        """
        with guest.serving():
            guest.run(job)

    def test_a_lock_keeps_another_client_out(self):
        # Two minor versions are two clients, also in one guest.
        job = f"""
        mkdir /mnt/a /mnt/b
        mount {mount('4.0')} /mnt/a && mount {mount('4.1', 'tcp', 'nosharecache')} /mnt/b || exit 1
        : > /mnt/a/locked
        exec 5<> /mnt/a/locked 6<> /mnt/b/locked
        flock -n 5 || exit 2
        flock -n 6 && exit 3
        flock -u 5
        flock -n 6 || exit 4
        flock -n 5 && exit 5
        exec 6>&-
        timeout 60 flock 5 || exit 6
        """
        with guest.serving():
            guest.run(job)


class Delegations(unittest.TestCase):
    def test_a_client_gives_back_what_another_wants(self):
        # Two minor versions are two clients. The first one has written the file and may write on without asking; the
        # second one reads it, and need not wait until the first one has lost that right for want of an answer.
        for transport in ["tcp", "rdma"]:
            with self.subTest(transport=transport):
                job = f"""
                mkdir /mnt/a /mnt/b
                mount {mount('4.1', transport)} /mnt/a && mount {mount('4.2', 'tcp', 'nosharecache')} /mnt/b || exit 1
                returned() {{ grep -A99 ' /mnt/a ' /proc/self/mountstats | sed -n 's/.*DELEGRETURN: //p' | head -1 | cut -d' ' -f1; }}
                echo first > /mnt/a/shared && [ "$(returned)" = 0 ] || exit 2
                begun=$(date +%s)
                [ "$(cat /mnt/b/shared)" = first ] || exit 3
                [ $(($(date +%s) - begun)) -lt 45 ] || exit 4
                [ "$(returned)" -gt 0 ] || exit 5
                echo second >> /mnt/b/shared && [ "$(cat /mnt/a/shared | wc -l)" = 2 ] || exit 6
                """
                with guest.serving() as server, guest.Guest(job) as machine:
                    self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])


class Restarts(unittest.TestCase):
    def test_a_client_goes_on_where_it_was_when_the_server_comes_back(self):
        for version in VERSIONS:
            with self.subTest(version=version), tempfile.TemporaryDirectory(prefix="weft-state-") as state:
                # What was acknowledged is there, what was open is open, and what was locked is locked.
                job = f"""
                mount {mount(version)} /mnt && cd /mnt || exit 1
                exec 5<> log && flock -n 5 || exit 2
                for n in $(seq 200); do echo line $n >&5 || exit 3; done
                sync
                echo written
                until [ -e /lab/again ]; do sleep 0.2; done
                for n in $(seq 201 400); do echo line $n >&5 || exit 4; done
                timeout 240 sync || exit 5
                seq -f 'line %g' 400 | cmp - log || exit 6
                """
                options = ["--state-dir", state]
                with guest.serving(*options) as server, guest.Guest(job) as machine:
                    machine.wait_for("written")
                    server.crash()
                    server.start()
                    (machine.folder / "again").touch()
                    self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])


if __name__ == "__main__":
    unittest.main()
