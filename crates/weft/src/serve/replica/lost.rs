//! What is said of a group whose file is lost: which side has what, as far as its journal tells, and both ways to begin anew.
//!
//! Does not: read the journal's records, or ask the other side: its address was in the file.

use std::sync::Arc;

use weft_replica::journal;
use weft_replica::state::{PeerState, State};
use weft_replica::status::{Mode, Role};
use weft_store::block::Block;
use weft_store::volume::Volumes;

use super::Replicas;
use super::group::Group;
use crate::out::ShellCommand;

impl Group {
    /// Whether its file is of no use: what is known of it is in its journal.
    pub(super) fn has_lost_file(&self) -> bool {
        self.config().partnership.is_empty()
    }

    /// Which side has what, and both ways to begin anew, where the group's file is lost.
    pub(super) async fn ways_out(&self, replicas: &Replicas) -> String {
        let opened = Volumes::at(replicas.folder.path()).open(&self.name, &replicas.pool);
        let told = match opened {
            Ok(journal) => journal::look(&(journal.block.clone() as Arc<dyn Block>), &replicas.pool)
                .await
                .map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        ways_out(&self.name, &self.config().volumes, told.as_ref().map_err(Clone::clone))
    }
}

/// What to do about a group of these volumes of which only its journal is left, `told` what that says.
fn ways_out(group: &str, volumes: &[String], told: Result<&State, String>) -> String {
    let volumes = volumes.join(",");
    let state = match told {
        Ok(state) => state,
        Err(why) => {
            return format!(
                "Its journal does not tell which side has what either ({why}): ask the other host first, by `weft replica status`, and \
                 compare what both volumes hold. {}",
                begin_anew(group, &volumes, &[], "sync")
            );
        }
    };
    let peers: Vec<&PeerState> = state.peers.iter().flatten().collect();
    let known = match state.role {
        Role::Source => source_has(state, &peers),
        Role::Destination if state.consistent => {
            "Its journal says that this side is a copy: what was answered is on the other host, the source, and nothing is lost by beginning \
             anew from there"
                .to_owned()
        }
        Role::Destination => {
            "Its journal says that this side is a copy in the middle of a resync, of no single moment: begin anew from the other host, \
             the source"
                .to_owned()
        }
    };
    let mode = if peers.iter().any(|peer| peer.mode == Mode::Asynchronous) { "async" } else { "sync" };
    format!("{known}. {}", begin_anew(group, &volumes, &peers, mode))
}

/// What this side, a source, has and its destinations lack.
fn source_has(state: &State, peers: &[&PeerState]) -> String {
    let each = |peer: &&PeerState| match (peer.mode, peer.copied, peer.unprotected) {
        (_, false, _) => format!("{} never had a whole copy", peer.name),
        (_, true, true) => format!("{} lacks writes that were answered here alone", peer.name),
        (Mode::Synchronous, true, false) => format!("{} has all that was answered here", peer.name),
        (Mode::Asynchronous, true, false) => {
            format!("{} may lack the last writes that were answered here", peer.name)
        }
    };
    let each: Vec<String> = peers.iter().map(each).collect();
    let unreplayed = match state.closed {
        true => "",
        false => {
            " (the last of them perhaps in the log alone, where the machine lost its power: only the file brings those back)"
        }
    };
    let partners = match each.is_empty() {
        true => "nobody has a copy".to_owned(),
        false => each.join(", "),
    };
    format!(
        "Its journal says that this side is the source, epoch {}, with all that it answered{unreplayed}; {partners}. So begin anew from \
         here, unless the other side was made the source since: `weft replica status` there says so",
        state.era().epoch
    )
}

/// Both directions.
fn begin_anew(group: &str, volumes: &str, peers: &[&PeerState], mode: &str) -> String {
    let name = peers.first().map(|peer| peer.name.as_str());
    let (host, theirs) = name.and_then(|name| name.rsplit_once(':')).unwrap_or(("the other host", group));
    let other = if name.is_some() { host } else { "OTHERHOST" };
    let remove = |group| ShellCommand::new("weft replica remove").operand(group).words("--force");
    let create =
        ShellCommand::new("weft replica create").operand(volumes).operand(format!("{other}:{volumes}"));
    let create = create.option("--mode", mode).words("--seeded");
    format!(
        "To begin anew, end replication on both sides: `{}` here, `{}` on {host}. Then, to go on with what is here, type here: `{create}`, \
         which overwrites what differs on {host}. To go on with what {host} has, type the same there, with this host's name, \
         which overwrites what differs here. Both sides' volumes can be looked at in between",
        remove(group),
        remove(theirs)
    )
}

#[cfg(test)]
mod tests {
    use weft_machine::{Pool, rt};
    use weft_replica::journal::Format;
    use weft_store::volume::{Create, Place};

    use super::*;

    fn state(role: Role, peers: &[(&str, Mode, bool)]) -> State {
        let format = Format { partnership: [3; 16], role, tag: 1, sizes: vec![1 << 20], log_bytes: 64 << 20 };
        let (dir, pool) = (tempfile::tempdir().unwrap(), Pool::new(1 << 20));
        let size = Some(journal::bytes(&format).unwrap().next_multiple_of(4096));
        let (allocate, direct, id, created) = (false, false, [7; 16], 1);
        let volumes = Volumes::at(dir.path());
        volumes.create("j", &Create { place: Place::Ram, size, allocate, direct, id, created }).unwrap();
        let journal: Arc<dyn Block> = volumes.open("j", &pool).unwrap().block;
        let mut state = rt::block_on(async {
            journal::format(&journal, &format).await.unwrap();
            journal::look(&journal, &pool).await.unwrap()
        })
        .unwrap();
        let peer = |(name, mode, unprotected): &(&str, Mode, bool)| {
            let (name, mode, unprotected) = ((*name).to_owned(), *mode, *unprotected);
            Some(PeerState {
                name,
                mode,
                seeded: false,
                copied: true,
                unprotected,
                suspended: false,
                covered: 0,
            })
        };
        state.peers = peers.iter().map(peer).collect();
        state
    }

    #[test]
    fn a_source_that_answered_alone_is_said_to_count_and_both_directions_are_told() {
        let volumes = ["vol1".to_owned()];
        let alone = state(Role::Source, &[("beta:db", Mode::Synchronous, true)]);
        let said = ways_out("db", &volumes, Ok(&alone));
        assert!(
            said.contains("beta:db lacks writes that were answered here alone. So begin anew from here"),
            "{said}"
        );
        assert!(said.contains("`weft replica remove db --force` on beta"), "{said}");
        assert!(
            said.contains("`weft replica create vol1 beta:vol1 --mode sync --seeded`, which overwrites"),
            "{said}"
        );
        assert!(said.contains("To go on with what beta has"), "{said}");
        let both = state(
            Role::Source,
            &[("beta:db", Mode::Synchronous, false), ("c:db", Mode::Asynchronous, false)],
        );
        let said = ways_out("db", &volumes, Ok(&both));
        assert!(
            said.contains("beta:db has all that was answered here, c:db may lack the last writes"),
            "{said}"
        );
    }

    #[test]
    fn a_copy_begins_anew_from_its_source_and_a_lost_journal_tells_nothing() {
        let mut copy = state(Role::Destination, &[]);
        copy.consistent = true;
        let said = ways_out("db", &["a".into(), "b".into()], Ok(&copy));
        assert!(said.contains("this side is a copy: what was answered is on the other host"), "{said}");
        assert!(said.contains("weft replica create a,b OTHERHOST:a,b"), "{said}");
        let said = ways_out("db", &["a".into()], Err("it is gone".into()));
        assert!(
            said.contains("does not tell which side has what either (it is gone): ask the other host"),
            "{said}"
        );
    }
}
