//! Leases whose owner answers their breaks.

use std::time::Duration;

use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_wire::smb2::NtStatus;

use super::super::*;
use super::multichannel::tcp;
use super::own::Own;

#[test]
fn others_wait_until_the_owner_of_a_lease_answers() {
    Sim::new(64).run(async {
        let own = Own::new(|_| {});
        let session = Session::connect(tcp(&own).await, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let kept = LeaseState::READ_CACHING | LeaseState::HANDLE_CACHING;
        let all = kept | LeaseState::WRITE_CACHING;
        let (file, lease) = tree.open_leased("f", OpenOptions::create(), all).await.unwrap();
        assert_eq!((lease.granted(), lease.is_broken()), (all, false));
        let other = Session::connect(tcp(&own).await, own.options()).await.unwrap();
        let theirs = other.tree("data").await.unwrap();
        let (before, pause) = (rt::now(), Duration::from_secs(2));
        let opening = rt::spawn(async move {
            let opened = theirs.open("f", OpenOptions::write()).await;
            (opened.unwrap(), rt::now())
        });
        let broken = lease.broken().await;
        assert_eq!(broken, LeaseBreak { from: all, to: kept, acknowledge: true });
        rt::sleep(pause).await;
        lease.acknowledge(broken.to).await.unwrap();
        let (opened, at) = opening.await;
        assert!(at - before >= pause, "it was opened before the owner had answered");
        let refused = lease.acknowledge(LeaseState::NONE).await.unwrap_err();
        assert_eq!(refused.status(), Some(NtStatus::UNSUCCESSFUL), "nothing is broken");
        opened.write(0, b"theirs"[..].into()).await.unwrap();
        rt::sleep(pause).await;
        assert!(lease.is_broken());
        assert_eq!(lease.broken().await, LeaseBreak { from: kept, to: LeaseState::NONE, acknowledge: true });
        file.close().await.unwrap();
        opened.close().await.unwrap();
        session.logoff().await.unwrap();
    });
}
