//! The client against servers that return short, wrong or no replies.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Pool, rt};
use weft_transport::{Channel, Message, Outgoing, Sending, Ticket, Traffic};
use weft_wire::mount::MountResult;
use weft_wire::nfs3::*;
use weft_wire::rpc::{Call, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::{SetAttributes, *};
use crate::memory::{record, without_rdma};

mod replays;
mod silence;

/// Returns the results that follow the reply's header, or `None` to never reply.
type Answer = Box<dyn FnMut(u32, Decoder) -> Option<Vec<u8>>>;

struct Scripted {
    answer: RefCell<Answer>,
    replies: RefCell<VecDeque<Message>>,
    /// With no reply pending, a receive ends the channel if set, and waits otherwise.
    ended: bool,
    /// The pool that replies are received into.
    pool: Pool,
}

impl Channel for Scripted {
    without_rdma!();
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp(([192, 0, 2, 1], 2049).into())
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        match self.try_recv() {
            None if !self.ended => Box::pin(std::future::pending()),
            message => Box::pin(std::future::ready(Ok(message))),
        }
    }
    fn try_recv(&self) -> Option<Message> {
        self.replies.borrow_mut().pop_front()
    }
    fn send(&self, message: Outgoing) -> Sending {
        let mut d = Decoder::new(record(message));
        let call = Call::parse(&mut d).unwrap();
        if let Some(results) = (self.answer.borrow_mut())(call.procedure, d) {
            let mut e = Encoder::default();
            Reply::Success.emit(call.xid, &mut e);
            let mut body = self.pool.try_alloc(BUFFER).expect("nothing keeps what was received");
            body.extend_from_slice(&[&e.into_bytes()[..], &results].concat());
            let body = body.freeze();
            self.replies.borrow_mut().push_back(Message { body, detached: None, ticket: Ticket::default() });
        }
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

/// MOUNT's procedure has the number of GETATTR, which these tests do not need.
const MNT: u32 = weft_wire::mount::procedure::MNT;

fn emit(value: &impl Xdr) -> Vec<u8> {
    let mut e = Encoder::default();
    value.emit(&mut e);
    e.into_bytes().to_vec()
}

fn handle() -> Handle {
    Handle::new(&[1; 24]).unwrap()
}

fn mounted() -> Vec<u8> {
    emit(&MountResult::Ok { handle: handle(), flavors: Vec::new() })
}

fn fsinfo(size: u32) -> Vec<u8> {
    emit(&Outcome::<_, AttrOnly>::Ok(FsinfoOk {
        attributes: None,
        rtmax: size,
        rtpref: size,
        rtmult: 1,
        wtmax: size,
        wtpref: size,
        wtmult: 1,
        dtpref: 4096,
        maxfilesize: 1 << 40,
        time_delta: weft_wire::nfs3::Time::default(),
        properties: 0,
    }))
}

fn created() -> Vec<u8> {
    let ok = CreateOk { object: Some(handle()), attributes: None, dir: WccData::default() };
    emit(&Outcome::<_, WccOnly>::Ok(ok))
}

/// Replies come a few at a time, each in a buffer of its own.
fn channel(ended: bool, answer: impl FnMut(u32, Decoder) -> Option<Vec<u8>> + 'static) -> Rc<dyn Channel> {
    let answer = RefCell::new(Box::new(answer) as Answer);
    Rc::new(Scripted { answer, replies: RefCell::default(), ended, pool: Pool::new(4 * BUFFER) })
}

/// Size of a reply's buffer.
const BUFFER: usize = weft_machine::buf::MAX_BUF / 2;

fn options() -> Options {
    Options { credential: Credential::None, pool: Pool::new(0) }
}

/// A file of a server that answers MOUNT and CREATE properly, and the rest by `answer`.
fn file(max: u32, answer: impl FnMut(u32, Decoder) -> Option<Vec<u8>> + 'static) -> File {
    mount(max, answer).create("f", SetAttributes::default()).now_or_never().unwrap().unwrap()
}

fn mount(max: u32, mut answer: impl FnMut(u32, Decoder) -> Option<Vec<u8>> + 'static) -> Mount {
    let channel = channel(false, move |procedure, d| match procedure {
        procedure::FSINFO => Some(fsinfo(max)),
        procedure::CREATE => Some(created()),
        MNT => Some(mounted()),
        other => answer(other, d),
    });
    Mount::connect(channel, "/x", options()).now_or_never().unwrap().unwrap()
}

fn read_ok(data: &'static [u8], eof: bool) -> Vec<u8> {
    let head = ReadHead { attributes: None, count: data.len() as u32, eof };
    emit(&Outcome::<_, AttrOnly>::Ok(ReadOk { head, data: Bytes::from_static(data) }))
}

#[test]
fn replies_that_end_early_are_errors_at_every_length() {
    for (first, whole) in [(true, mounted()), (false, fsinfo(4096))] {
        for len in 0..whole.len() {
            let short = whole[..len].to_vec();
            let channel = channel(true, move |procedure, _| {
                Some(if (procedure == MNT) == first { short.clone() } else { mounted() })
            });
            let refused = Mount::connect(channel, "/x", options()).now_or_never().unwrap();
            assert!(matches!(refused, Err(Error::Malformed(_))), "{len}");
        }
    }
}

#[test]
fn a_read_that_gives_little_is_continued_and_one_that_gives_too_much_refused() {
    let mut pieces = VecDeque::from([read_ok(b"ab", false), read_ok(b"cde", true)]);
    let little = file(4096, move |_, _| pieces.pop_front());
    assert_eq!(little.read(0, 10).now_or_never().unwrap().unwrap(), "abcde");
    let much = file(4096, |_, _| Some(read_ok(b"abcde", true)));
    assert!(matches!(much.read(0, 4).now_or_never(), Some(Err(Error::Malformed(_)))));
    let nothing = file(4096, |_, _| Some(read_ok(b"", false)));
    assert!(matches!(nothing.read(0, 4).now_or_never(), Some(Err(Error::Malformed(_)))));
}

#[test]
fn what_is_kept_of_answers_does_not_keep_the_buffers_in_which_they_came() {
    // A server that returns one byte at a time, and one that lists one name at a time.
    let file = file(4096, |_, _| Some(read_ok(b"x", false)));
    assert_eq!(file.read(0, 20).now_or_never().unwrap().unwrap(), "x".repeat(20));
    let mut cookie = 0;
    let mount = mount(4096, move |_, _| {
        cookie += 1;
        let name = Name(Bytes::from(format!("name {cookie}")));
        let attributes = Some(attributes(FileType::Reg));
        Some(listed(EntryPlus { fileid: 1, name, cookie, attributes, handle: None }, cookie == 20))
    });
    let names = mount.list("").now_or_never().unwrap().unwrap();
    assert_eq!((names.len(), &names[19].name[..]), (20, &b"name 20"[..]));
}

fn attributes(kind: FileType) -> weft_wire::nfs3::Attributes {
    let (time, rdev) = (weft_wire::nfs3::Time::default(), SpecData::default());
    weft_wire::nfs3::Attributes {
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 7,
        used: 7,
        rdev,
        fsid: 1,
        fileid: 1,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn listed(entry: EntryPlus, eof: bool) -> Vec<u8> {
    let listing = ReaddirplusOk { attributes: None, verifier: [0; 8], entries: vec![entry], eof };
    emit(&Outcome::<_, AttrOnly>::Ok(listing))
}

/// RFC 1813 3.3.17: a server may leave attributes out, those of mount points for example. Folders and links were once
/// taken for files then.
#[test]
fn what_a_listing_leaves_out_is_asked_for() {
    for exists in [true, false] {
        let mount = mount(4096, move |procedure, _| {
            Some(match procedure {
                procedure::READDIRPLUS => {
                    let name = Name(Bytes::from_static(b"mounted"));
                    listed(EntryPlus { fileid: 1, name, cookie: 1, attributes: None, handle: None }, true)
                }
                procedure::LOOKUP if !exists => emit(&Outcome::<LookupOk, _>::Err(Failure {
                    status: Status::NOENT,
                    data: AttrOnly::default(),
                })),
                procedure::LOOKUP => emit(&Outcome::<_, AttrOnly>::Ok(LookupOk {
                    object: handle(),
                    attributes: Some(attributes(FileType::Dir)),
                    dir_attributes: None,
                })),
                _ => return None,
            })
        });
        let found = mount.list("").now_or_never().unwrap().unwrap();
        let kinds: Vec<_> = found.into_iter().map(|entry| entry.attributes.unwrap().kind).collect();
        assert_eq!(kinds, if exists { vec![FileType::Dir] } else { Vec::new() });
    }
}

#[test]
fn names_of_a_directory_are_bounded_by_what_they_take() {
    let (mut listed, name) = (super::listing::Listed::default(), Bytes::from(vec![b'n'; MAX_NAME]));
    let fit = (0..).take_while(|_| listed.own(&name).is_ok()).count();
    assert_eq!(fit, (512 << 20) / MAX_NAME);
    let (mut listed, name) = (super::listing::Listed::default(), Bytes::from_static(b"n"));
    assert_eq!((0..).take_while(|_| listed.own(&name).is_ok()).count(), 4 << 20);
}

#[test]
fn sizes_of_zero_in_fsinfo_do_not_stop_the_client() {
    let file = file(0, |_, _| Some(read_ok(b"x", false)));
    assert_eq!(file.read(0, 3).now_or_never().unwrap().unwrap(), "xxx");
}

fn written(count: u32, verifier: u8) -> Vec<u8> {
    emit(&Outcome::<_, WccOnly>::Ok(WriteOk {
        wcc: WccData::default(),
        count,
        committed: Stable::Unstable,
        verifier: [verifier; 8],
    }))
}

fn committed(verifier: u8) -> Vec<u8> {
    emit(&Outcome::<_, WccOnly>::Ok(CommitOk { wcc: WccData::default(), verifier: [verifier; 8] }))
}

#[test]
fn a_short_write_is_continued_and_one_that_stands_still_is_an_error() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    let file_ = file(4096, move |_, mut d| {
        let args = WriteArgs::parse(&mut d).unwrap();
        log.borrow_mut().push((args.head.offset, Bytes::copy_from_slice(args.data.here())));
        Some(written(2, 1))
    });
    file_.write(100, Bytes::from_static(b"abcde")).now_or_never().unwrap().unwrap();
    let expected = [(100, "abcde"), (102, "cde"), (104, "e")];
    assert!(seen.borrow().iter().zip(expected).all(|(a, b)| a.0 == b.0 && a.1 == b.1));
    assert_eq!(seen.borrow().len(), 3);
    let still = file(4096, |_, _| Some(written(0, 1)));
    let refused = still.write(0, Bytes::from_static(b"abc")).now_or_never();
    assert!(matches!(refused, Some(Err(Error::Malformed(_)))));
}

#[test]
fn a_restart_of_the_server_between_write_and_commit_shows() {
    for (writes, commit, lost) in [([1, 1], 1, false), ([1, 1], 2, true), ([1, 2], 2, true)] {
        let mut verifiers = writes.into_iter();
        let file = file(4096, move |procedure, _| match procedure {
            procedure::WRITE => Some(written(1, verifiers.next().unwrap())),
            _ => Some(committed(commit)),
        });
        for _ in 0..2 {
            file.write(0, Bytes::from_static(b"x")).now_or_never().unwrap().unwrap();
        }
        let outcome = file.commit().now_or_never().unwrap();
        assert_eq!(matches!(outcome, Err(Error::Lost)), lost, "{outcome:?}");
        // Reported once: what is written again is held by the new instance.
        file.commit().now_or_never().unwrap().unwrap();
    }
}

#[test]
fn a_server_that_has_no_time_now_is_asked_again_for_so_long() {
    let busy =
        || emit(&Outcome::<WccOnly, _>::Err(Failure { status: Status::JUKEBOX, data: WccOnly::default() }));
    weft_machine::sim::Sim::new(1).run(async move {
        // Half a minute, until another client has lost its cached state: the time of an SMB break.
        let free = rt::now() + std::time::Duration::from_millis(34_500);
        let later = move |answer: Vec<u8>| if rt::now() < free { busy() } else { answer };
        let file = file(4096, move |procedure, _| {
            Some(later(match procedure {
                procedure::WRITE => written(1, 1),
                procedure::COMMIT => committed(1),
                procedure::READ => read_ok(b"x", true),
                _ => emit(&Outcome::<_, WccOnly>::Ok(WccOnly::default())),
            }))
        });
        let begun = rt::now();
        file.write(0, Bytes::from_static(b"x")).await.unwrap();
        let waited = rt::now() - begun;
        assert!(waited.as_secs_f64() >= 34.5 && waited.as_secs_f64() < 36.6, "{waited:?}");
        file.commit().await.unwrap();
        assert_eq!(file.read(0, 1).await.unwrap(), "x");
    });
    weft_machine::sim::Sim::new(1).run(async move {
        let channel = channel(false, move |procedure, _| match procedure {
            procedure::FSINFO => Some(fsinfo(4096)),
            MNT => Some(mounted()),
            _ => Some(busy()),
        });
        let mount = Mount::connect(channel, "/x", options()).await.unwrap();
        let begun = rt::now();
        assert!(matches!(mount.remove("f").await, Err(Error::Status(Status::JUKEBOX))));
        let waited = (rt::now() - begun).as_secs();
        assert!((179..=180).contains(&waited), "{waited}");
    });
}

#[test]
fn the_end_of_the_channel_reaches_every_call() {
    rt::block_on(async {
        let channel = channel(true, |procedure, _| match procedure {
            procedure::FSINFO => Some(fsinfo(4096)),
            MNT => Some(mounted()),
            _ => None,
        });
        let mount = Mount::connect(channel, "/x", options()).await.unwrap();
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let mount = mount.clone();
                rt::spawn(async move { mount.null().await })
            })
            .collect();
        for call in calls {
            assert!(matches!(call.await, Err(Error::Channel(_))));
        }
        assert!(matches!(mount.null().await, Err(Error::Channel(_))));
    })
    .unwrap();
}

#[test]
fn the_lead_passes_on_when_a_leader_is_given_up() {
    let answer_now = Rc::new(RefCell::new(false));
    let now = answer_now.clone();
    let file = file(4096, move |_, _| now.borrow().then(|| read_ok(b"x", true)));
    let mut first = Box::pin(file.read(0, 1));
    let mut second = Box::pin(file.read(0, 1));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    drop(first);
    *answer_now.borrow_mut() = true;
    // A third call finds the second waiting and leads, because the first is gone.
    assert_eq!(file.read(0, 1).now_or_never().unwrap().unwrap(), "x");
    assert!(second.as_mut().poll(&mut cx).is_pending());
}
