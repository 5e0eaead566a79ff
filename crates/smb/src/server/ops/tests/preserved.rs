//! Handles that wait for their client: how many, and whose; and repeatable CREATEs.

use std::time::Duration;

use weft_machine::Source;

use super::*;
use crate::server::ops::opens::Open;
use crate::server::ops::owned_open::OwnedOpen;
use crate::server::ops::replay::Begin;

/// Longer than any test.
const WAIT: Duration = Duration::from_secs(300);

impl Bench {
    /// Opens a file whose handle then waits for its client; returns the open if there is no room.
    async fn leave_behind(&self, path: &str) -> Result<Arc<Open>, OwnedOpen> {
        let (access, disposition) = (AccessMask::FILE_READ_ATTRIBUTES, CreateDisposition::OpenIf);
        let wish = Wish { access, disposition, ..Wish::file(path) };
        let file = self.open(&wish).await.unwrap();
        let open = self.session.opens.find_anywhere(file).unwrap();
        let (file, tree) = self.session.opens.name_of(&open).unwrap();
        let owned = self.session.opens.remove(file, tree).unwrap();
        self.server.handles.preserved.keep(owned, WAIT).map(|()| open)
    }
}

fn roomy(story: impl AsyncFnOnce(Bench)) {
    let server = limited(crate::server::Limits::default(), Offers::default(), Ram::new(DISK).into());
    rt::block_on(story(Bench::on(server, Dialect::V3_1_1, false))).unwrap();
}

#[test]
fn who_leaves_handles_behind_leaves_others_their_room() {
    roomy(async |b| {
        // Three quarters of 16,384.
        const OF_USER: usize = 12_288;
        let (greedy, modest) = (b.from(1, "greedy"), b.from(2, "modest"));
        let mut kept = Vec::new();
        for n in 0..OF_USER {
            // Several per file: the memory disk has no room for that many files.
            kept.push(greedy.leave_behind(&format!("f{}", n / 96)).await.map_err(|_| n).unwrap());
        }
        assert!(greedy.leave_behind("more").await.is_err(), "a user has three quarters");
        assert!(greedy.from(3, "greedy").leave_behind("more").await.is_err(), "wherever he comes from");
        assert!(modest.leave_behind("of another").await.is_ok());
        // Reconnecting one makes room for another.
        assert!(b.server.handles.preserved.remove(&kept.pop().unwrap()).is_some());
        assert!(greedy.leave_behind("more").await.is_ok());
        assert!(greedy.leave_behind("too many").await.is_err());
        // All handles of the user are gone, and nothing is counted any more.
        for open in kept {
            assert!(b.server.handles.preserved.remove(&open).is_some());
        }
        assert!(greedy.leave_behind("too many").await.is_ok());
    });
}

#[test]
fn a_create_whose_open_is_closed_before_it_is_done_is_forgotten() {
    roomy(async |b| {
        let wish = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("f") };
        let file = b.open(&wish).await.unwrap();
        let creates = &b.server.handles.creates;
        let Ok(Begin::First(begun)) = creates.begin(([1; 16], [2; 16]), false) else {
            panic!("it is the first")
        };
        let open = b.session.opens.find_anywhere(file).unwrap();
        begun.opened(&open, &b.session.user);
        // On another core.
        let (file, tree) = b.session.opens.name_of(&open).unwrap();
        b.session.opens.remove(file, tree).unwrap().close().await;
        assert_eq!(creates.len(), 1, "its CREATE is in progress");
        begun.done(&open);
        assert_eq!(creates.len(), 0);
    });
}

#[test]
fn a_break_looks_at_the_waiting_handles_of_its_file_alone() {
    roomy(async |b| {
        let preserved = &b.server.handles.preserved;
        for n in 0..100 {
            assert!(b.leave_behind(&format!("f{n}")).await.is_ok());
        }
        let mine = b.leave_behind("f7").await.map_err(|_| "no room").unwrap();
        let file = (mine.node, mine.vfs.opens());
        let looked = Cell::new(0);
        let is_mine = |open: &Open| {
            looked.set(looked.get() + 1);
            std::ptr::eq(open, &*mine)
        };
        assert!(preserved.forfeit(file, is_mine));
        assert!(looked.replace(0) <= 2, "of 101 handles two are of the file");
        assert!(!preserved.forfeit(file, is_mine), "it is gone");
        assert!(preserved.select(file, is_mine).is_empty(), "none is persistent");
        assert!(preserved.remove(&mine).is_none());
        assert!(looked.get() <= 2);
        // Another share may have the same file numbers.
        let elsewhere: Vfs = Ram::new(DISK).into();
        looked.set(0);
        assert!(!preserved.forfeit((mine.node, elsewhere.opens()), is_mine));
        assert_eq!(looked.get(), 0);
    });
}

#[test]
fn a_user_has_a_part_of_his_own_only_where_several_can_log_on() {
    let holder = |users: &[&str]| {
        let Ok(mut config) =
            Arc::try_unwrap(server(Offers::default(), Ram::new(DISK).into())).map(|server| server.config)
        else {
            panic!("nobody else has it")
        };
        let user =
            |name: &&str| crate::server::User::new(*name, crate::auth::Secret::password("of the test"));
        config.users = users.iter().map(user).collect();
        Server::new(config).holder(Some(Source::V4([192, 0, 2, 1].into())), &"one".into())
    };
    let source = Some(Source::V4([192, 0, 2, 1].into()));
    assert_eq!(holder(&["one"]), Holder { source, user: None }, "his part would be everybody's");
    assert_eq!(holder(&["one", "two"]), Holder { source, user: Some("one".into()) });
}
