//! One function per wire module that must survive any bytes. The fuzzers run them, and so does a short smoke test in
//! `cargo test` (crates/wire/tests/fuzz_smoke.rs). A new target takes one function and one line in [`TARGETS`].

use bytes::Bytes;
use weft_wire::dcerpc::{lsarpc, pdu, samr, srvsvc};
use weft_wire::nfs3::Xdr;
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::{self, compound};
use weft_wire::xdr::{Decoder, Encoder};
use weft_wire::{
    ddp, dns, mount, mpa, nbd, nbss, nfs3, nfs4, nlm, nsm, ntlm, perf, rdmap, repl, rpc, rpcbind, rpcrdma,
    rping, smbd, spnego, wsd,
};

/// A name and the function to run.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("mpa", mpa),
    ("ddp_rdmap", ddp_rdmap),
    ("nbss", nbss),
    ("smbd", smbd),
    ("smb2", smb2_message),
    ("fscc", fscc),
    ("ntlm", ntlm),
    ("spnego", spnego),
    ("rpc", rpc),
    ("rpcrdma", rpcrdma),
    ("rping", rping),
    ("perf", perf),
    ("nfs3", nfs3),
    ("nfs4", nfs4),
    ("mount", mount),
    ("locking", locking),
    ("nbd", nbd),
    ("repl", replication),
    ("dcerpc", dcerpc),
    ("security", security),
    ("dns", dns),
    ("wsd", wsd),
];

/// MPA set-up frames.
pub fn mpa(data: &[u8]) {
    let _ = mpa::Frame::parse(data);
}

/// DDP headers and the RDMAP headers after them.
pub fn ddp_rdmap(data: &[u8]) {
    let _ = ddp::Header::parse(data);
    let _ = rdmap::ReadRequest::parse(data);
    let _ = rdmap::Terminate::parse(data);
    if let Some(control) = data.first() {
        let _ = rdmap::Opcode::parse(*control);
    }
}

/// Direct TCP framing.
pub fn nbss(data: &[u8]) {
    let _ = nbss::Header::parse(data);
}

/// SMB Direct.
pub fn smbd(data: &[u8]) {
    let _ = smbd::NegotiateRequest::parse(data);
    let _ = smbd::NegotiateResponse::parse(data);
    let _ = smbd::DataTransfer::parse(data);
    let _ = smbd::BufferDescriptorV1::parse_array(data);
    let _ = smbd::ReadDepths::parse(data);
}

/// Every SMB2 command, as request and as response, alone and in compounds.
pub fn smb2_message(data: &[u8]) {
    let _ = smb2::negotiate::Smb1Negotiate::parse(data);
    let _ = smb2::transform::TransformHeader::parse(data);
    let _ = smb2::compression::Compressed::parse(data);
    let _ = smb2::compression::Payload::parse(data, true);
    for message in compound::split(Bytes::copy_from_slice(data)) {
        let Ok(message) = message else { return };
        let _ = smb2::Header::parse(&message);
        let m = &message;
        let _ = smb2::negotiate::Request::parse(m).is_ok() | smb2::negotiate::Response::parse(m).is_ok();
        let _ =
            smb2::session_setup::Request::parse(m).is_ok() | smb2::session_setup::Response::parse(m).is_ok();
        let _ =
            smb2::tree_connect::Request::parse(m).is_ok() | smb2::tree_connect::Response::parse(m).is_ok();
        let _ = smb2::create::Request::parse(m).is_ok() | smb2::create::Response::parse(m).is_ok();
        let _ = smb2::close::Request::parse(m).is_ok() | smb2::close::Response::parse(m).is_ok();
        let _ = smb2::read::Request::parse(m).is_ok() | smb2::read::Response::parse(m).is_ok();
        let _ = smb2::write::Request::parse(m).is_ok() | smb2::write::Response::parse(m).is_ok();
        let _ = smb2::flush::Request::parse(m).is_ok() | smb2::lock::Request::parse(m).is_ok();
        let _ = smb2::ioctl::Request::parse(m).is_ok() | smb2::ioctl::Response::parse(m).is_ok();
        let _ = smb2::query_directory::Request::parse(m).is_ok()
            | smb2::query_directory::Response::parse(m).is_ok();
        let _ =
            smb2::change_notify::Request::parse(m).is_ok() | smb2::change_notify::Response::parse(m).is_ok();
        let _ = smb2::query_info::Request::parse(m).is_ok() | smb2::query_info::Response::parse(m).is_ok();
        let _ = smb2::set_info::Request::parse(m).is_ok() | smb2::set_info::Response::parse(m).is_ok();
        let _ = smb2::oplock_break::Notification::parse(m).is_ok();
        let _ = smb2::oplock_break::Acknowledgment::parse(m).is_ok();
        let _ = smb2::error::Response::parse(m);
    }
}

/// Information classes and FSCTL buffers.
pub fn fscc(data: &[u8]) {
    use smb2::fscc::{directory, file, filesystem, notify, security};
    let _ =
        file::All::parse(data).is_ok() | file::Rename::parse(data).is_ok() | file::Name::parse(data).is_ok();
    let _ = file::Stream::parse_list(data).is_ok() | notify::Change::parse_list(data).is_ok();
    let _ = filesystem::Volume::parse(data).is_ok() | filesystem::Attribute::parse(data).is_ok();
    let _ = security::SecurityDescriptor::parse(data);
    let _ = smb2::ioctl::ValidateNegotiateRequest::parse(data);
    let _ = smb2::ioctl::NetworkInterface::parse_list(data);
    let _ = smb2::dfs::Request::parse(data).is_ok() | smb2::dfs::Request::parse_ex(data).is_ok();
    let _ = smb2::dfs::Response::parse(data);
    for class in 0..=u8::MAX {
        let _ = directory::parse(smb2::fscc::FileClass(class), data);
    }
}

/// NTLM messages and their contents.
pub fn ntlm(data: &[u8]) {
    let _ = ntlm::Negotiate::parse(data).is_ok() | ntlm::Challenge::parse(data).is_ok();
    let _ = ntlm::Authenticate::parse(data);
    if let Ok(pairs) = ntlm::AvPairs::parse(data) {
        drop(pairs);
    }
    let _ = ntlm::NtlmV2Response::parse(data);
}

/// SPNEGO tokens.
pub fn spnego(data: &[u8]) {
    let _ = spnego::Token::parse(data);
    let _ = spnego::NegTokenInit::parse(data);
    let _ = spnego::NegTokenResp::parse(data);
}

/// ONC RPC calls and replies.
pub fn rpc(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = rpc::Call::parse(&mut Decoder::new(bytes.clone()));
    let _ = rpc::Reply::parse(&mut Decoder::new(bytes));
}

/// RPC-over-RDMA headers with their chunk lists.
pub fn rpcrdma(data: &[u8]) {
    let _ = rpcrdma::Header::parse(Bytes::copy_from_slice(data));
}

/// Messages of mDNS. What was read can be written, and is read again.
pub fn dns(data: &[u8]) {
    if let Ok(message) = dns::Message::parse(data) {
        let again = dns::Message::parse(&message.emit());
        // Compression may not be possible for what was compressed otherwise.
        assert!(again.is_ok() || data.len() > 4000, "{again:?}");
    }
}

/// Requests of WS-Discovery, and the XML that they are.
pub fn wsd(data: &[u8]) {
    let _ = wsd::Request::parse(data);
}

/// Messages between the sides of rping.
pub fn rping(data: &[u8]) {
    let _ = rping::Advert::parse(data);
}

/// Messages between the sides of `weft rdma perf`.
pub fn perf(data: &[u8]) {
    let _ = perf::Plan::parse(data).is_ok() | perf::Welcome::parse(data).is_ok();
    let _ = perf::Refusal::parse(data).is_ok() | perf::Message::parse(data).is_ok();
}

/// NFSv3 arguments and results, whole and reduced (payload detached).
pub fn nfs3(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    macro_rules! each {
        ($($type:ty),* $(,)?) => {
            $(let _ = <$type>::parse(&mut Decoder::new(bytes.clone()));)*
        };
    }
    each!(
        nfs3::Attributes,
        nfs3::GetattrArgs,
        nfs3::GetattrOk,
        nfs3::SetattrArgs,
        nfs3::AccessArgs,
        nfs3::AccessOk,
        nfs3::LookupArgs,
        nfs3::LookupOk,
        nfs3::ReadlinkOk,
        nfs3::ReadArgs,
        nfs3::ReadOk,
        nfs3::WriteArgs,
        nfs3::WriteOk,
        nfs3::CreateArgs,
        nfs3::CreateOk,
        nfs3::MkdirArgs,
        nfs3::SymlinkArgs,
        nfs3::MknodArgs,
        nfs3::RemoveArgs,
        nfs3::RenameArgs,
        nfs3::LinkArgs,
        nfs3::ReaddirArgs,
        nfs3::ReaddirOk,
        nfs3::ReaddirplusArgs,
        nfs3::ReaddirplusOk,
        nfs3::CommitArgs,
        nfs3::CommitOk,
    );
    let middle = data.len() / 2;
    let detached = Some(bytes.slice(middle..));
    let _ = nfs3::WriteArgs::parse(&mut Decoder::reduced(bytes.slice(..middle), detached.clone()));
    let _ = nfs3::ReadOk::parse(&mut Decoder::reduced(bytes.slice(..middle), detached));
}

/// NFSv4 compounds of every minor version, whole and reduced, their results, and callbacks.
pub fn nfs4(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let middle = data.len() / 2;
    for minor in 0..=nfs4::MINOR_VERSION {
        let whole = Decoder::new(bytes.clone());
        let reduced = Decoder::reduced(bytes.slice(..middle), Some(bytes.slice(middle..)));
        for mut d in [whole, reduced] {
            let _ = nfs4::CompoundHead::parse(&mut d);
            while let Ok(op) = nfs4::Op::parse(&mut d, minor) {
                if let nfs4::Op::Setattr(args) = &op {
                    let _ = nfs4::Attributes::parse(&args.attributes);
                }
                let mut e = Encoder::default();
                op.emit(&mut e);
            }
        }
    }
    macro_rules! each {
        ($($type:ty),* $(,)?) => {
            $(let _ = <$type>::parse(&mut Decoder::new(bytes.clone()));)*
        };
    }
    each!(
        nfs4::ReplyHead,
        nfs4::OpenOk,
        nfs4::LockDenied,
        nfs4::ReaddirOk,
        nfs4::SecinfoOk,
        nfs4::ExchangeIdOk,
        nfs4::CreateSessionOk,
        nfs4::SequenceOk,
        nfs4::CopyOk,
        nfs4::OffloadStatusOk,
        nfs4::ListxattrsOk,
        nfs4::CbCompound,
        nfs4::CbReplyHead,
    );
    if let Ok(fattr) = nfs4::Fattr::parse(&mut Decoder::new(bytes)) {
        let _ = nfs4::Attributes::parse(&fattr);
    }
}

/// NLM, NSM and rpcbind: the protocols of an NFSv3 client beside NFS.
pub fn locking(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let d = || Decoder::new(bytes.clone());
    let _ = nlm::LockArgs::parse(&mut d());
    let _ = nlm::TestAnswer::parse(&mut d());
    let _ = nlm::ShareArgs::parse(&mut d());
    let _ = nsm::Change::parse(&mut d());
    let _ = rpcbind::Mapping::parse(&mut d());
    if let Ok(binding) = rpcbind::Binding::parse(&mut d())
        && let Some(addr) = rpcbind::from_universal(&binding.address.0)
    {
        assert_eq!(rpcbind::from_universal(rpcbind::universal(addr).as_bytes()), Some(addr));
    }
}

/// MOUNT arguments and results.
pub fn mount(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = mount::DirPath::parse(&mut Decoder::new(bytes.clone()));
    let _ = mount::MountResult::parse(&mut Decoder::new(bytes));
}

/// NBD: the handshake as server and client parse it, then requests and replies.
pub fn nbd(data: &[u8]) {
    use nbd::{handshake as h, transmission as t};
    let _ = h::Greeting::parse(data).is_ok() | h::ClientFlags::parse(data).is_ok();
    let _ = h::Chosen::parse(data, true).is_ok() | h::Chosen::parse(data, false).is_ok();
    if let Some((header, rest)) = data.split_first_chunk()
        && let Ok(header) = h::OptionHeader::parse(header)
        && let Ok(choice) = h::Choice::parse(header.code, rest)
    {
        // What parses can be emitted.
        choice.emit();
    }
    if let Some((header, rest)) = data.split_first_chunk()
        && let Ok((_, kind, _)) = h::Reply::parse_header(header)
    {
        let _ = h::Reply::parse(kind, rest);
    }
    if let Some(header) = data.first_chunk() {
        let _ = t::Request::parse(header);
    }
    if let Ok(t::ReplyHeader::Chunk(header)) = t::ReplyHeader::parse(data)
        && let Some(payload) = data.get(t::CHUNK_HEADER_LEN..)
    {
        let _ = t::Chunk::parse(&header, payload);
    }
}

/// Records of a replication log, and control messages; unchanged, and with valid checksums.
pub fn replication(data: &[u8]) {
    use repl::control::{Request, Response};
    let _ = repl::record::Header::parse(data);
    let mut sealed = data.to_vec();
    // A valid checksum passes the first check: the last four bytes of a message, the last four of a header.
    if let Some(at) = sealed.len().checked_sub(4) {
        let sum = crc32c(&sealed[..at]);
        sealed[at..].copy_from_slice(&sum);
    }
    for bytes in [data, &sealed] {
        if let Ok(request) = Request::parse(bytes) {
            assert_eq!(Request::parse(&request.emit()), Ok(request));
        }
        if let Ok(response) = Response::parse(bytes) {
            assert_eq!(Response::parse(&response.emit()), Ok(response));
        }
    }
}

/// CRC32C, bit by bit: fast enough for a fuzzer, and without a dependency.
fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let sum = bytes.iter().fold(!0u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |s, _| if s & 1 == 1 { (s >> 1) ^ 0x82f6_3b78 } else { s >> 1 })
    });
    (!sum).to_le_bytes()
}

/// Packets of DCE/RPC, and the stubs of every call that is parsed.
pub fn dcerpc(data: &[u8]) {
    let packet = Bytes::copy_from_slice(data);
    let _ = pdu::Header::parse(data);
    let _ = pdu::Bind::parse(data).is_ok() | pdu::BindAck::parse(data).is_ok();
    let _ = pdu::Request::parse(&packet).is_ok() | pdu::Response::parse(&packet).is_ok();
    let _ = pdu::parse_fault(data);
    let _ = srvsvc::Enum::parse_shares(data).is_ok() | srvsvc::Enum::parse_sessions(data).is_ok();
    let _ = srvsvc::parse_share_get_info(data).is_ok() | srvsvc::parse_server_get_info(data).is_ok();
    let _ = srvsvc::client::parse_shares(data);
    let _ = lsarpc::parse_lookup_names(data).is_ok() | lsarpc::parse_lookup_sids(data).is_ok();
    let _ = lsarpc::parse_query_policy(data).is_ok() | lsarpc::parse_account_rights(data).is_ok();
    let _ = lsarpc::parse_get_user_name(data);
    let _ = samr::parse_lookup_names(data).is_ok() | samr::parse_lookup_ids(data).is_ok();
    let _ = samr::parse_lookup_domain(data).is_ok() | samr::parse_open_domain(data).is_ok();
    let _ = samr::parse_open_account(data).is_ok() | samr::parse_query_display(data).is_ok();
}

/// Security descriptors: the parsed value is emitted and parsed again, as bytes and, if it has a text form, as text.
pub fn security(data: &[u8]) {
    let Ok(descriptor) = SecurityDescriptor::parse(data) else { return };
    assert_eq!(SecurityDescriptor::parse(&descriptor.to_bytes()).as_ref(), Ok(&descriptor));
    if let Ok(again) = descriptor.to_string().parse::<SecurityDescriptor>() {
        assert_eq!(again.to_string(), descriptor.to_string());
    }
}
