//! Advice for a group whose file is lost: which side has what, according to its journal, and both ways to restart
//! replication. The journal's records are not read, and the other side cannot be asked, because its address was in
//! the file.

use std::sync::Arc;

use weft_replica::journal;
use weft_replica::state::{PeerState, State};
use weft_replica::status::{Mode, Role};
use weft_store::block::Block;
use weft_store::volume::Volumes;

use super::Replicas;
use super::error::NoState;
use super::group::Group;
use crate::out::ShellCommand;

impl Group {
    /// Whether its file is unusable: then only its journal is left.
    pub(super) fn has_lost_file(&self) -> bool {
        self.config().partnership.is_empty()
    }

    /// Which side has what, and both ways to restart replication after the group's file is lost.
    pub(super) async fn ways_out(&self, replicas: &Replicas) -> String {
        let opened = Volumes::at(replicas.folder.path()).open(&self.name, &replicas.pool);
        let told = match opened {
            Ok(journal) => journal::look(&(journal.block.clone() as Arc<dyn Block>), &replicas.pool)
                .await
                .map_err(NoState::from),
            Err(e) => Err(e.into()),
        };
        ways_out(&self.name, &self.config().volumes, told.as_ref())
    }
}

/// What to do about a group of these volumes of which only the journal is left; `told` is the journal's state.
fn ways_out(group: &str, volumes: &[String], told: Result<&State, &NoState>) -> String {
    let volumes = volumes.join(",");
    let state = match told {
        Ok(state) => state,
        Err(why) => {
            return format!(
                "Its journal does not say which side has what either ({why}): first run `weft replica status` on the other host, and \
                 compare the data in both volumes. {}",
                begin_anew(group, &volumes, &[], "sync")
            );
        }
    };
    let peers: Vec<&PeerState> = state.peers.iter().flatten().collect();
    let known = match state.role {
        Role::Source => source_has(state, &peers),
        Role::Destination if state.consistent => {
            "Its journal says that this side is a copy: all acknowledged writes are on the other host, the source, and nothing is lost by starting \
             again from there"
                .to_owned()
        }
        Role::Destination => {
            "Its journal says that this side is a copy in the middle of a resync, with data of different moments: start again from the other host, \
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
        (_, false, _) => format!("{} never had a complete copy", peer.name),
        (_, true, true) => format!("{} lacks writes that were acknowledged only here", peer.name),
        (Mode::Synchronous, true, false) => format!("{} has all writes acknowledged here", peer.name),
        (Mode::Asynchronous, true, false) => {
            format!("{} may lack the last writes acknowledged here", peer.name)
        }
    };
    let each: Vec<String> = peers.iter().map(each).collect();
    let unreplayed = match state.closed {
        true => "",
        false => " (after a power failure perhaps only in the log: only the lost file can bring those back)",
    };
    let partners = match each.is_empty() {
        true => "nobody has a copy".to_owned(),
        false => each.join(", "),
    };
    format!(
        "Its journal says that this side is the source, epoch {}, with all writes it acknowledged{unreplayed}; {partners}. So start again from \
         here, unless the other side has become the source since: `weft replica status` there shows that",
        state.era().epoch
    )
}

/// The commands for both directions.
fn begin_anew(group: &str, volumes: &str, peers: &[&PeerState], mode: &str) -> String {
    let name = peers.first().map(|peer| peer.name.as_str());
    let (host, theirs) = name.and_then(|name| name.rsplit_once(':')).unwrap_or(("the other host", group));
    let other = if name.is_some() { host } else { "OTHERHOST" };
    let remove = |group| ShellCommand::new("weft replica remove").operand(group).words("--force");
    let create =
        ShellCommand::new("weft replica create").operand(volumes).operand(format!("{other}:{volumes}"));
    let create = create.option("--mode", mode).words("--seeded");
    format!(
        "To start again, end replication on both sides: `{}` here, `{}` on {host}. Then, to continue with this host's data, run here: `{create}`, \
         which overwrites differences on {host}. To continue with the data of {host}, run the same there, with this host's name, \
         which overwrites differences here. Both sides' volumes can be examined in between",
        remove(group),
        remove(theirs)
    )
}

#[cfg(test)]
mod tests {
    use weft_machine::{Pool, rt};
    use weft_replica::journal::Format;
    use weft_store::volume::{Create, Storage};

    use super::*;

    fn state(role: Role, peers: &[(&str, Mode, bool)]) -> State {
        let format = Format { partnership: [3; 16], role, tag: 1, sizes: vec![1 << 20], log_bytes: 64 << 20 };
        let (dir, pool) = (tempfile::tempdir().unwrap(), Pool::new(1 << 20));
        let size = Some(journal::bytes(&format).unwrap().next_multiple_of(4096));
        let (allocate, direct, id, created) = (false, false, [7; 16], 1);
        let volumes = Volumes::at(dir.path());
        volumes.create("j", &Create { storage: Storage::Ram, size, allocate, direct, id, created }).unwrap();
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
                may_be_gone: false,
                covered: 0,
                verified: None,
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
            said.contains("beta:db lacks writes that were acknowledged only here. So start again from here"),
            "{said}"
        );
        assert!(said.contains("`weft replica remove db --force` on beta"), "{said}");
        assert!(
            said.contains("`weft replica create vol1 beta:vol1 --mode sync --seeded`, which overwrites"),
            "{said}"
        );
        assert!(said.contains("To continue with the data of beta"), "{said}");
        let both = state(
            Role::Source,
            &[("beta:db", Mode::Synchronous, false), ("c:db", Mode::Asynchronous, false)],
        );
        let said = ways_out("db", &volumes, Ok(&both));
        assert!(
            said.contains("beta:db has all writes acknowledged here, c:db may lack the last writes"),
            "{said}"
        );
    }

    #[test]
    fn a_copy_begins_anew_from_its_source_and_a_lost_journal_tells_nothing() {
        let mut copy = state(Role::Destination, &[]);
        copy.consistent = true;
        let said = ways_out("db", &["a".into(), "b".into()], Ok(&copy));
        assert!(
            said.contains("this side is a copy: all acknowledged writes are on the other host"),
            "{said}"
        );
        assert!(said.contains("weft replica create a,b OTHERHOST:a,b"), "{said}");
        let gone = NoState::from(weft_store::volume::Error::NotFound("db".into()));
        let said = ways_out("db", &["a".into()], Err(&gone));
        assert!(
            said.contains(&format!("does not say which side has what either ({gone}): first run")),
            "{said}"
        );
    }
}
