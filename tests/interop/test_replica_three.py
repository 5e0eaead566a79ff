"""weft replica with two destinations: which one takes over, and what happens to the other one."""

import json
import shutil
import unittest

import weft
from disk import Writer
from test_replica import MIB, Hosts


class Three(Hosts):
    def three(self):
        """A source and two replicas that follow. A partner is named by its host, so each has a different name for
        this one."""
        source, first, second = (self.host(name, {"vol1": 16 * MIB}) for name in ["source", "first", "second"])
        self.create(source, first)
        second.to = lambda *volumes: ["localhost:" + ",".join(volumes), *type(second).to(second, *volumes)[1:]]
        self.create(source, second)
        source.wait_until_following(peers=2)
        # Each knows the other one.
        self.wait_until_kept(first, ("localhost:vol1", weft.USER))
        self.wait_until_kept(second, ("127.0.0.1:vol1", weft.USER))
        return source, first, second

    def follows(self, copy, *names):
        """The replica names its source by one of these, and follows it."""

        def holds(groups):
            [group] = groups
            [peer] = (group["engine"] or {}).get("peers", [{}])
            return group["role"] == "destination" and group["links"][0]["name"] in names and peer["phase"] == "ContinuouslyReplicating"

        copy.wait_for(f"following {names[0]}", holds)

    def test_a_switch_takes_the_other_destination_along(self):
        source, first, second = self.three()
        writer = Writer(source.disk("vol1"), blocks=2048)
        writer.start()
        writer.after(100)
        writer.stop()
        said = source.replica("switch", "vol1", "--to", "localhost:vol1").stdout
        self.assertIn("127.0.0.1:vol1 also becomes a copy of localhost:vol1", said)
        second.wait_until_following(peers=2)
        self.follows(source, "localhost:vol1")
        self.follows(first, "localhost:vol1")
        self.assertIn("run the command on its source, localhost", first.replica("suspend", "vol1", check=False).stderr)
        self.assertEqual(writer.lost(second.disk("vol1")), [])
        # It is still one group of three: the roles go to the one that was told about the source.
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
        # It cannot name its source, but follows it.
        [group] = first.status()
        self.assertEqual(group["engine"]["epoch"], 2)

    def kept(self, host):
        """The partners of a host's group in its file: name and user."""
        group = json.loads((host.state / "replica" / "vol1.json").read_text())
        return [(partner["name"], partner["address"]["user"]) for partner in group["partners"]]

    def wait_until_kept(self, host, *partners):
        host.wait_for(f"with partners {partners}", lambda _: self.kept(host)[1:] == [*partners])

    def test_a_destination_that_was_removed_does_not_come_back(self):
        source, first, second = self.three()
        # It was a destination of both.
        source.replica("switch", "vol1", "--to", "127.0.0.1:vol1")
        first.wait_until_following(peers=2)
        [back] = [name for name, _ in self.kept(first) if name != "localhost:vol1"]
        first.replica("switch", "vol1", "--to", back)
        source.wait_until_following(peers=2)
        source.replica("remove", "vol1", "--to", "localhost:vol1")
        self.assertEqual(second.status(), [])
        source.replica("switch", "vol1")
        [group] = first.wait_until_following()
        self.assertEqual([link["name"] for link in group["links"]], [back])
        self.wait_until_kept(source)

    def test_a_destination_that_is_added_anew_has_its_new_user_everywhere(self):
        source, first, second = self.three()
        source.replica("remove", "vol1", "--to", "localhost:vol1")
        self.wait_until_kept(first)
        self.assertEqual(second.stop(), 0)
        second.command[second.command.index(weft.USER)] = "other"
        second.start()
        to = [word if word != weft.USER else "other" for word in second.to("vol1")]
        source.replica("create", "vol1", *to, "--log-size", "64M", "--overwrite")
        source.wait_until_following(peers=2)
        self.wait_until_kept(first, ("localhost:vol1", "other"))
        source.replica("switch", "vol1", "--to", "127.0.0.1:vol1")
        first.wait_until_following(peers=2)
        self.wait_until_kept(source, ("localhost:vol1", "other"))

    def test_a_copy_that_is_listed_by_two_addresses_and_removed_by_one_stays_by_the_other(self):
        source, first, second = self.three()
        self.assertEqual(source.stop(), 0)
        # The state of a source that adopted another one's list while the others were unreachable.
        file = source.state / "replica" / "vol1.json"
        group = json.loads(file.read_text())
        [partner] = [partner for partner in group["partners"] if partner["name"] == "127.0.0.1:vol1"]
        group["partners"].append({**partner, "name": "alias:vol1", "address": {**partner["address"], "host": "localhost"}})
        file.write_text(json.dumps(group))
        source.start()
        source.wait_for("three destinations", lambda groups: len(groups[0]["links"]) == 3)
        said = source.replica("remove", "vol1", "--to", "alias:vol1").stdout
        self.assertEqual([group["role"] for group in first.status()], ["destination"])
        source.wait_until_following(peers=2)
        self.assertIn("alias:vol1 is the copy of 127.0.0.1:vol1, which stays", said)

    def test_the_list_of_a_source_that_was_set_back_counts_nevertheless(self):
        source, first, second = self.three()
        self.assertEqual([first.stop(), source.stop()], [0, 0])
        # It has seen more lists than the source knows, the last of them without the other destination.
        file = first.state / "replica" / "vol1.json"
        group = json.loads(file.read_text())
        group["list"]["count"] += 1 << 40
        del group["partners"][1:]
        file.write_text(json.dumps(group))
        first.start()
        source.start()
        self.wait_until_kept(first, ("localhost:vol1", weft.USER))

    def test_a_failover_takes_the_other_destination_along(self):
        source, first, second = self.three()
        disk = source.disk("vol1")
        disk.write(0, b"a" * 4096)
        disk.flush()
        source.crash()
        said = first.replica("switch", "vol1", "--failover").stdout
        self.assertIn("localhost:vol1 also becomes a copy of this side", said)
        self.follows(second, "127.0.0.1:vol1")
        first.disk("vol1").write(4096, b"b" * 4096)
        source.start()
        first.wait_until_following(peers=2)
        self.follows(source, "127.0.0.1:vol1")
        # It is not taken for lost.
        refused = second.replica("switch", "vol1", "--failover", check=False)
        self.assertIn("on 127.0.0.1 exchanges the roles", refused.stderr)

    def test_a_failover_says_which_destination_does_not_know_of_it(self):
        source, first, second = self.three()
        source.crash()
        second.crash()
        said = first.take_over("vol1")
        self.assertRegex(said, "localhost:vol1 was not told .*: this side replicates to it once it can reach it; do not start a failover")
        second.start()
        source.start()
        first.wait_until_following(peers=2)
        self.follows(second, "127.0.0.1:vol1")

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
        # The files stay the same; their content is older.
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

        # Forced. Even a source that gives up its own changes does not follow a side that lacks these records.
        said = second.take_over("vol1", past="alive,behind,other-has-more")
        self.assertIn("127.0.0.1 has records that this side lacks and is left unchanged", said)
        source.replica("resolve", "vol1", "--keep", "there")
        second.wait_for("refused", lambda groups: "lacks records up to" in (groups[0]["engine"]["peers"][0]["last_error"] or ""))
        self.assertIn("which 127.0.0.1:vol1 has", source.replica("resolve", "vol1", "--keep", "there", check=False).stderr)

        # The holder of the records is queried as long as it matters.
        def is_said(words):
            return lambda groups: words in (groups[0]["engine"]["peers"][0]["last_error"] or "")

        first.crash()
        source.wait_for("told that nobody knows", is_said("whether it has them still is not known"))
        first.start()
        source.wait_for("told who has them", is_said("which 127.0.0.1:vol1 has. To go on with those"))
        # Nor has it overwritten the data that only the other replica has. Of the two sources one has to be chosen.
        refused = first.replica("switch", "vol1", "--failover", "--force=alive,behind,other-has-more,switched", check=False)
        self.assertIn("both sides were written to", refused.stderr)
        first.replica("resolve", "vol1", "--keep", "here")
        second.replica("resolve", "vol1", "--keep", "there", check=False)
        first.wait_until_following(peers=2)
        self.follows(source, "127.0.0.1:vol1")
        # A source that a copy was never told of has the address that it connects from.
        self.follows(second, "127.0.0.1:vol1", "::1:vol1")
        self.assertEqual(since.lost(first.disk("vol1")), [])

    def test_the_old_source_names_the_one_that_took_over(self):
        source, first, second = self.three()
        source.crash()
        second.take_over("vol1")
        source.start()
        second.wait_until_following()
        self.follows(source, "localhost:vol1")
        self.assertIn("run the command on its source, localhost", source.replica("suspend", "vol1", check=False).stderr)


if __name__ == "__main__":
    unittest.main()
