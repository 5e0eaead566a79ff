//! Handles that wait for their client: how many, and of whom.

use std::time::Duration;

use super::*;
use crate::server::ops::opens::Open;

/// Longer than any test.
const WAIT: Duration = Duration::from_secs(300);

impl Bench {
    /// Opens a file whose handle then waits for its client. Where there is no room for it, it comes back.
    async fn leave_behind(&self, path: &str) -> Result<Arc<Open>, Arc<Open>> {
        let (access, disposition) = (AccessMask::FILE_READ_ATTRIBUTES, CreateDisposition::OpenIf);
        let wish = Wish { access, disposition, ..Wish::file(path) };
        let file = self.open(&wish).await.unwrap();
        let open = self.session.opens.find_anywhere(file).unwrap();
        self.server.handles.preserved.keep(open.clone(), WAIT).map(|()| open)
    }
}

fn roomy(story: impl AsyncFnOnce(Bench)) {
    let server = limited(crate::server::Limits::default(), Offers::default(), Ram::new(DISK).into());
    rt::block_on(story(Bench::on(server, Dialect::V3_1_1, false))).unwrap();
}

#[test]
fn who_leaves_handles_behind_leaves_others_their_room() {
    roomy(async |b| {
        // Half of 16,384.
        const OF_USER: usize = 8_192;
        let (greedy, modest) = (b.from(1, "greedy"), b.from(2, "modest"));
        let mut kept = Vec::new();
        for n in 0..OF_USER {
            // Some of each file: the memory disk has no room for as many files.
            kept.push(greedy.leave_behind(&format!("f{}", n / 64)).await.map_err(|_| n).unwrap());
        }
        assert!(greedy.leave_behind("more").await.is_err(), "a user has a half");
        assert!(greedy.from(3, "greedy").leave_behind("more").await.is_err(), "wherever he comes from");
        assert!(modest.leave_behind("of another").await.is_ok());
        // One that its client takes back makes room for another.
        assert!(b.server.handles.preserved.remove(&kept.pop().unwrap()).is_some());
        assert!(greedy.leave_behind("more").await.is_ok());
        assert!(greedy.leave_behind("too many").await.is_err());
        // He leaves with all that is his, and nothing is counted any more.
        for open in kept {
            assert!(b.server.handles.preserved.remove(&open).is_some());
        }
        assert!(greedy.leave_behind("too many").await.is_ok());
    });
}
