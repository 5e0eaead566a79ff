//! Handshakes, proper and improper.

use weft_wire::nbd::handshake::{
    BASE_ALLOCATION, Choice, Chosen, ClientFlags, Info, OptionCode, OptionHeader, Queries, Refusal, Reply,
    transmission_flags as flag,
};
use weft_wire::nbd::transmission::Command;

use super::client::{Client, SIZE, server, tell, wanted};
use crate::negotiation::{Negotiation, Step};
use crate::{Error, Limits};

fn refusal(replies: &[Reply]) -> Refusal {
    match replies {
        [Reply::Refused(refusal, _)] => *refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_list_names_every_volume() {
    tell(async {
        let client = Client::connect(&server(&["vol1", "ro2"], Limits::default())).await;
        let list = client.option(Choice::List).await;
        assert_eq!(list, [Reply::Server("vol1".into()), Reply::Server("ro2".into()), Reply::Ack]);
        assert_eq!(client.option(Choice::Abort).await, [Reply::Ack]);
        assert!(client.is_over().await && client.ended.wait().await.is_ok());
    });
}

#[test]
fn info_tells_what_was_asked_for_and_the_handshake_goes_on() {
    tell(async {
        let client = Client::connect(&server(&["vol1", "ro2"], Limits::default())).await;
        let replies = client.option(Choice::Info(wanted("vol1"))).await;
        let flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_TRIM
            | flag::SEND_WRITE_ZEROES
            | flag::SEND_FAST_ZERO
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        let export = Reply::Info(Info::Export { size: SIZE, flags });
        let about = Reply::Info(Info::Description("the volume vol1".into()));
        let sizes = Reply::Info(Info::BlockSize { minimum: 1, preferred: 4096, maximum: 32 << 20 });
        assert_eq!(replies, [export, about, sizes, Reply::Ack]);
        // Structured replies add a flag; read-only exports lack some.
        client.option(Choice::StructuredReply).await;
        let replies = client.option(Choice::Info(wanted("ro2"))).await;
        let Reply::Info(Info::Export { flags, .. }) = replies[0] else { panic!("{replies:?}") };
        assert!(flags & flag::READ_ONLY != 0 && flags & flag::SEND_DF != 0 && flags & flag::SEND_TRIM == 0);
        assert_eq!(refusal(&client.option(Choice::Go(wanted("vol3"))).await), Refusal::UnknownExport);
        // With two volumes, there is no default.
        assert_eq!(refusal(&client.option(Choice::Info(wanted(""))).await), Refusal::UnknownExport);
    });
}

#[test]
fn the_only_volume_needs_no_name() {
    tell(async {
        let mut client = Client::go(&server(&["vol1"], Limits::default()), "", true).await;
        assert_eq!(client.read(0, 4).await, [0; 4]);
    });
}

#[test]
fn export_name_goes_at_once_with_zeros_or_without() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        for no_zeroes in [true, false] {
            let mut client = Client::silent(&server);
            client.try_exact(&mut [0; 18]).await;
            // The oldest kind of client: not even fixed newstyle.
            client.send(&ClientFlags { fixed_newstyle: false, no_zeroes }.emit()).await;
            client.send(&Choice::ExportName("vol1".into()).emit()).await;
            let mut chosen = vec![0; if no_zeroes { 10 } else { 134 }];
            assert!(client.try_exact(&mut chosen).await);
            assert_eq!(Chosen::parse(&chosen, no_zeroes).expect("an answer").size, SIZE);
            assert_eq!(client.read(SIZE - 1, 1).await, [0]);
        }
        let client = Client::connect(&server).await;
        client.send(&Choice::ExportName("no such".into()).emit()).await;
        assert!(client.is_over().await, "there is no answer that says no");
    });
}

#[test]
fn metadata_contexts_need_structured_replies_and_belong_to_an_export() {
    tell(async {
        let server = server(&["vol1", "vol2"], Limits::default());
        let queries = |export: &str, queries: &[&str]| Queries {
            export: export.into(),
            queries: queries.iter().map(|query| (*query).to_owned()).collect(),
        };
        let context = |id| Reply::MetaContext { id, name: BASE_ALLOCATION.into() };
        let mut client = Client::connect(&server).await;
        let early = client.option(Choice::SetMetaContext(queries("vol1", &[BASE_ALLOCATION]))).await;
        assert_eq!(refusal(&early), Refusal::Invalid);
        client.option(Choice::StructuredReply).await;
        client.structured = true;
        for all in [&[][..], &["base:"], &["qemu:dirty-bitmap:x", BASE_ALLOCATION]] {
            let listed = client.option(Choice::ListMetaContext(queries("vol1", all))).await;
            assert_eq!(listed, [context(0), Reply::Ack], "{all:?}");
        }
        let none = client.option(Choice::ListMetaContext(queries("vol1", &["qemu:"]))).await;
        assert_eq!(none, [Reply::Ack]);
        let nowhere = client.option(Choice::SetMetaContext(queries("vol3", &[BASE_ALLOCATION]))).await;
        assert_eq!(refusal(&nowhere), Refusal::UnknownExport);
        let set = client.option(Choice::SetMetaContext(queries("vol1", &[BASE_ALLOCATION]))).await;
        assert_eq!(set, [context(1), Reply::Ack]);
        // A context chosen for one volume does not apply to another.
        client.option(Choice::Go(wanted("vol2"))).await;
        let answer = client.call(Command::BLOCK_STATUS, 0, 0, 4096).await;
        assert!(answer.error.is_some(), "{answer:?}");
    });
}

#[test]
fn setting_contexts_again_forgets_the_first_choice() {
    tell(async {
        let mut client = Client::connect(&server(&["vol1"], Limits::default())).await;
        client.option(Choice::StructuredReply).await;
        client.structured = true;
        for queries in [vec![BASE_ALLOCATION.to_owned()], Vec::new()] {
            client.option(Choice::SetMetaContext(Queries { export: "vol1".into(), queries })).await;
        }
        client.option(Choice::Go(wanted("vol1"))).await;
        assert!(client.call(Command::BLOCK_STATUS, 0, 0, 4096).await.error.is_some());
    });
}

#[test]
fn what_is_not_known_or_not_offered_is_answered_and_the_handshake_goes_on() {
    tell(async {
        let client = Client::connect(&server(&["vol1"], Limits::default())).await;
        assert_eq!(refusal(&client.option(Choice::StartTls).await), Refusal::Policy);
        // Extended headers, which this server does not support.
        let extended = Choice::Unknown(OptionCode(11));
        assert_eq!(refusal(&client.option(extended).await), Refusal::Unsupported);
        // Data where none is expected, and too little of it.
        for (code, data) in [(OptionCode::LIST, &b"x"[..]), (OptionCode::GO, b"\0\0\0\x04vo")] {
            client.send(&OptionHeader { code, len: data.len() as u32 }.emit()).await;
            client.send(data).await;
            assert_eq!(refusal(&client.replies(code).await), Refusal::Invalid);
        }
        // Longer than accepted: skipped, and refused.
        let long = OptionHeader { code: OptionCode::INFO, len: 100_000 };
        client.send(&long.emit()).await;
        client.send(&vec![0; 100_000]).await;
        assert_eq!(refusal(&client.replies(OptionCode::INFO).await), Refusal::TooBig);
        assert_eq!(client.option(Choice::List).await.len(), 2);
    });
}

#[test]
fn where_tls_is_wanted_nothing_is_said_before_it() {
    let server = server(&["vol1"], Limits::default());
    let mut negotiation = Negotiation::new(&server.exports, &server.resources.limits, true);
    let flags = ClientFlags { fixed_newstyle: true, no_zeroes: true };
    negotiation.client_flags(&flags.emit()).expect("flags");
    let mut option = |choice: Choice| {
        let bytes = choice.emit();
        let (header, data) = bytes.split_first_chunk().expect("a header");
        negotiation.option(OptionHeader::parse(header).expect("a header").code, data)
    };
    let refused = |code, refusal, why: &str| Step::Continue(Reply::Refused(refusal, why.into()).emit(code));
    for (code, choice) in [
        (OptionCode::LIST, Choice::List),
        (OptionCode::GO, Choice::Go(wanted("vol1"))),
        (OptionCode::STRUCTURED_REPLY, Choice::StructuredReply),
    ] {
        let why = "this server speaks under TLS only";
        assert_eq!(option(choice), refused(code, Refusal::TlsRequired, why));
    }
    // This one has no error reply.
    assert_eq!(option(Choice::ExportName("vol1".into())), Step::End(Vec::new()));
    assert_eq!(option(Choice::StartTls), Step::StartTls(Reply::Ack.emit(OptionCode::STARTTLS)));
    let again = refused(OptionCode::STARTTLS, Refusal::Invalid, "TLS is already active");
    assert_eq!(option(Choice::StartTls), again);
    assert!(matches!(option(Choice::Go(wanted("vol1"))), Step::Start { structured: false, .. }));
}

#[test]
fn a_handshake_that_leads_nowhere_ends() {
    tell(async {
        let limits = Limits { options: 3, ..Limits::default() };
        let client = Client::connect(&server(&["vol1"], limits)).await;
        for _ in 0..3 {
            client.option(Choice::List).await;
        }
        assert!(matches!(client.ended.wait().await, Err(Error::Violation("too many options"))));

        let limits = Limits { handshake: std::time::Duration::ZERO, ..Limits::default() };
        let client = Client::silent(&server(&["vol1"], limits));
        assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));

        // An option of four gigabytes, an unknown flag, another protocol.
        let server = server(&["vol1"], Limits::default());
        let client = Client::connect(&server).await;
        client.send(&OptionHeader { code: OptionCode::LIST, len: u32::MAX }.emit()).await;
        assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));
        let client = Client::silent(&server);
        client.send(b"\0\0\0\x07").await;
        assert!(matches!(client.ended.wait().await, Err(Error::Malformed(_))));
        let client = Client::connect(&server).await;
        client.send(b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(matches!(client.ended.wait().await, Err(Error::Malformed(_))));
    });
}
