//! The grace period in the table of opens.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use weft_machine::rt;

use super::*;

const READ_WRITE: Rights = Rights { delete: false, ..Rights::ALL };

#[test]
fn what_could_be_in_the_way_of_who_reclaims_waits_for_him() {
    rt::block_on(async {
        let t = table();
        let reserved = t.reserve(rt::now() + Duration::from_secs(3600));
        let try_open = |access, share| open(&t, access, share).map(drop);
        for (access, share) in [
            (Rights::READ, Rights::NONE),
            (Rights::READ, Rights::READ),
            (Rights::WRITE, Rights::ALL),
            (Rights::DELETE, Rights::ALL),
        ] {
            assert_eq!(try_open(access, share), Err(Refused::Recalling), "{access:?} {share:?}");
        }
        let overwrites = Opening { overwrites: true, ..Opening::new(Rights::READ, Rights::ALL, t.key()) };
        assert_eq!(t.try_open(NODE, &overwrites).unwrap_err(), Refused::Recalling);
        assert_eq!(t.may_replace(), Err(Refused::Sharing));
        // An open that shares everything, and one for attributes only.
        assert_eq!(try_open(Rights::READ, READ_WRITE), Ok(()));
        assert_eq!(try_open(Rights::NONE, Rights::NONE), Ok(()));
        // An open that reclaims, or whose file was just created.
        let own = Opening { past_grace: true, ..Opening::new(Rights::ALL, Rights::NONE, t.key()) };
        let mine = t.try_open(NODE, &own).unwrap();
        mine.try_lock(range(0, 10), true).unwrap();
        drop(mine);

        let reader = open(&t, Rights::READ, READ_WRITE).unwrap();
        assert_eq!(reader.try_lock(range(0, 10), true), Err(Refused::Locked));
        let exclusive = Opening::new(Rights::ALL, Rights::NONE, t.key());
        let (woken, waker) = Woken::new();
        let mut cx = Context::from_waker(&waker);
        {
            let mut waits = pin!(t.open(NodeId(8), &exclusive));
            let mut locks = pin!(reader.lock(range(0, 10), true));
            let mut removes = pin!(t.pass(NodeId(9), Access::Handle, Rights::DELETE));
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            assert!(locks.as_mut().poll(&mut cx).is_pending());
            assert!(removes.as_mut().poll(&mut cx).is_pending());
            let mut reads = pin!(t.pass(NodeId(9), Access::Read, Rights::READ));
            assert!(reads.as_mut().poll(&mut cx).is_ready());
            // The last client has finished.
            drop(reserved);
            assert!(woken.0.load(Ordering::SeqCst) > 0);
            assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
            assert!(matches!(locks.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
            assert!(matches!(removes.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
        }
        assert_eq!(t.may_replace(), Ok(()));
    })
    .unwrap();
}

#[test]
fn what_somebody_has_taken_back_is_his_when_the_others_come() {
    rt::block_on(async {
        let t = table();
        let reserved = t.reserve(rt::now() + Duration::from_secs(3600));
        let exclusive = Opening::new(Rights::ALL, Rights::NONE, t.key());
        let (_, waker) = Woken::new();
        let mut cx = Context::from_waker(&waker);
        let mut waits = pin!(t.open(NODE, &exclusive));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        let back = Opening { past_grace: true, ..Opening::new(READ_WRITE, Rights::ALL, t.key()) };
        let _owner = t.try_open(NODE, &back).unwrap();
        drop(reserved);
        assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Err(Refused::Sharing))));
    })
    .unwrap();
}

#[test]
fn a_grace_period_ends_by_itself_and_with_its_last_reservation() {
    rt::block_on(async {
        let t = table();
        let past = t.reserve(rt::now());
        assert!(open(&t, Rights::ALL, Rights::NONE).is_ok(), "its time is over");
        let (one, other) =
            (t.reserve(rt::now() + Duration::from_secs(60)), t.reserve(rt::now() + Duration::from_secs(60)));
        drop((past, one));
        assert_eq!(open(&t, Rights::ALL, Rights::NONE).unwrap_err(), Refused::Recalling);
        drop(other);
        assert!(open(&t, Rights::ALL, Rights::NONE).is_ok());
    })
    .unwrap();
}
