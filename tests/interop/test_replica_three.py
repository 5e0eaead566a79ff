"""weft replica with two destinations: which of them takes over, and what becomes of the other one."""

import shutil
import unittest

from disk import Writer
from test_replica import MIB, Hosts


class Three(Hosts):
    def three(self):
        """A source and two copies that follow. A partner is called by its host, so they have different names of this one."""
        source, first, second = (self.host(name, {"vol1": 16 * MIB}) for name in ["source", "first", "second"])
        self.create(source, first)
        second.to = lambda *volumes: ["localhost:" + ",".join(volumes), *type(second).to(second, *volumes)[1:]]
        self.create(source, second)
        source.wait_until_following(peers=2)
        return source, first, second

    def follows(self, copy, host):
        """A copy names its source, and follows it."""

        def holds(groups):
            [group] = groups
            [peer] = (group["engine"] or {}).get("peers", [{}])
            return group["role"] == "destination" and group["links"][0]["name"] == host and peer["phase"] == "ContinuouslyReplicating"

        copy.wait_for(f"following {host}", holds)

    def test_a_switch_takes_the_other_destination_along(self):
        source, first, second = self.three()
        writer = Writer(source.disk("vol1"), blocks=2048)
        writer.start()
        writer.after(100)
        writer.stop()
        said = source.replica("switch", "vol1", "--to", "localhost:vol1").stdout
        self.assertIn("127.0.0.1:vol1 becomes a copy of localhost:vol1, too", said)
        second.wait_until_following(peers=2)
        self.follows(source, "localhost:vol1")
        self.follows(first, "localhost:vol1")
        self.assertIn("on localhost, where its source is", first.replica("suspend", "vol1", check=False).stderr)
        self.assertEqual(writer.lost(second.disk("vol1")), [])
        # It is one group of three still: the roles go on to the one that was told of the source.
        second.replica("switch", "vol1", "--to", "127.0.0.1:vol1")
        first.wait_until_following(peers=2)
        self.follows(second, "127.0.0.1:vol1")
        self.assertEqual(writer.lost(first.disk("vol1")), [])

    def test_a_destination_that_was_away_during_a_switch_is_taken_along_when_it_is_back(self):
        source, first, second = self.three()
        first.crash()
        said = source.replica("switch", "vol1", "--to", "localhost:vol1").stdout
        self.assertIn("127.0.0.1:vol1 was not told", said)
        second.disk("vol1").write(0, b"a" * 4096)
        first.start()
        second.wait_until_following(peers=2)
        # It cannot say who its source is, but follows it.
        [group] = first.status()
        self.assertEqual(group["engine"]["epoch"], 2)

    def test_the_copy_of_a_source_that_was_set_back_that_has_most_is_named_and_no_other_is_followed(self):
        source, first, second = self.three()
        disk = source.disk("vol1")
        for n in range(20):
            if n == 10:
                second.crash()
            disk.write(8 * MIB + n * 4096, b"a" * 4096)
        source.crash()
        backup = source.folder / "backup"
        backup.mkdir()
        files = [source.state / "replica" / "vol1.log", source.folder / "vol1.img"]
        for file in files:
            shutil.copy(file, backup)
        source.start()
        source.wait_until("source")
        since = Writer(source.disk("vol1"), blocks=1024, seed=7)
        since.start()
        since.after(200)
        source.crash()
        since.join(timeout=60)
        # The files stay what they are; their content is older.
        for file in files:
            content = (backup / file.name).read_bytes()
            with open(file, "r+b") as to:
                to.write(content)
        second.start()
        source.start()
        [group] = source.wait_until("stopped")
        self.assertIn("`weft replica switch vol1 --failover` on 127.0.0.1", group["stopped"])

        def is_told(words):
            return lambda groups: words in (groups[0]["partner_stopped"] or "")

        first.wait_for("told to take over", is_told("`weft replica switch vol1 --failover` here"))
        second.wait_for("told that it lacks something", is_told("this copy lacks records"))
        refused = second.replica("switch", "vol1", "--failover", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("127.0.0.1 has them", refused.stderr)
        self.assertIn("--force=behind,other-has-more`", refused.stderr)

        # It is done nevertheless: the source that gave up follows it no more than that.
        second.take_over("vol1", past="alive,behind,other-has-more")
        source.replica("resolve", "vol1", "--keep", "there")
        second.wait_for("refused", lambda groups: "lacks records up to" in (groups[0]["engine"]["peers"][0]["last_error"] or ""))
        self.assertIn("which 127.0.0.1:vol1 has", source.replica("resolve", "vol1", "--keep", "there", check=False).stderr)

        # Who has them is asked for as long as it matters.
        def is_said(words):
            return lambda groups: words in (groups[0]["engine"]["peers"][0]["last_error"] or "")

        first.crash()
        source.wait_for("told that nobody knows", is_said("whether it has them still is not known"))
        first.start()
        source.wait_for("told who has them", is_said("which 127.0.0.1:vol1 has. To go on with those"))
        first.take_over("vol1")
        first.wait_until_following()
        self.follows(source, "127.0.0.1:vol1")
        self.assertEqual(since.lost(first.disk("vol1")), [])

    def test_the_old_source_names_the_one_that_took_over(self):
        source, first, second = self.three()
        source.crash()
        second.take_over("vol1")
        source.start()
        second.wait_until_following()
        self.follows(source, "localhost:vol1")
        self.assertIn("on localhost, where its source is", source.replica("suspend", "vol1", check=False).stderr)


if __name__ == "__main__":
    unittest.main()
