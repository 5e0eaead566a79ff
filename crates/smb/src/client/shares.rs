//! The list of a server's shares.
//!
//! Spec: [MS-SRVS] 3.1.4.8 (NetrShareEnum), over the pipe srvsvc of `IPC$`; [MS-RPCE] 3.3.1 (the client side).

use bytes::{Bytes, BytesMut};
use weft_wire::dcerpc::pdu::{
    Bind, BindAck, Context, Flags, HEADER_LEN, Header, PacketType, Request, Response, Verdict,
};
use weft_wire::dcerpc::{Malformed, Syntax, srvsvc};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::CreateOptions;

use super::error::Error;
use super::file::File;
use super::open_options::OpenOptions;
use super::session::Session;

/// The largest packet that we accept: as much as one READ without RDMA returns.
const FRAGMENT_BYTES: u16 = 4096;
/// A longer answer is not a plausible list of shares.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Pages of a list.
const MAX_PAGES: usize = 4096;
/// NET_API_STATUS: more pages follow ([MS-ERREF] 2.2).
const MORE_DATA: u32 = 234;

/// A share of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Name.
    pub name: String,
    /// Whether it holds files.
    pub is_disk: bool,
    /// Whether it is hidden from lists.
    pub hidden: bool,
    /// The server's comment.
    pub remark: String,
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Violation(malformed.0)
    }
}

impl Session {
    /// The shares that the server lists, in the server's order.
    pub async fn shares(&self) -> Result<Vec<Share>, Error> {
        let tree = self.tree("IPC$").await?;
        let access = AccessMask::FILE_GENERIC_READ | AccessMask::FILE_GENERIC_WRITE;
        let options = OpenOptions { access, options: CreateOptions::NONE, ..OpenOptions::read() };
        let pipe = tree.open("srvsvc", options).await?;
        let listed = list(&pipe, self.host()).await;
        pipe.close().await?;
        listed
    }
}

async fn list(pipe: &File, host: &str) -> Result<Vec<Share>, Error> {
    let context = Context { id: 0, interface: srvsvc::INTERFACE, transfers: vec![Syntax::NDR] };
    let bind = Bind { max_xmit: FRAGMENT_BYTES, max_recv: FRAGMENT_BYTES, group: 0, contexts: vec![context] };
    let mut out = Vec::new();
    bind.emit(PacketType::BIND, 1, &mut out);
    pipe.write(0, out.into()).await?;
    let (header, packet) = packet(pipe).await?;
    if header.kind != PacketType::BIND_ACK
        || BindAck::parse(&packet)?.verdicts != [Verdict::Accepted(Syntax::NDR)]
    {
        return Err(Error::Unlisted("it does not offer them"));
    }
    let (mut shares, mut resume) = (Vec::new(), 0);
    for _ in 0..MAX_PAGES {
        let stub = srvsvc::client::share_enum(&format!(r"\\{host}"), resume);
        let mut out = Vec::new();
        Request { context: 0, opnum: srvsvc::SHARE_ENUM, stub: stub.into() }.emit(Flags::WHOLE, 2, &mut out);
        pipe.write(0, out.into()).await?;
        let (page, next, status) = srvsvc::client::parse_shares(&answer(pipe).await?)?;
        shares.extend(page.into_iter().map(|(name, kind, remark)| Share {
            is_disk: kind & 0xff == srvsvc::TYPE_DISK,
            // By its type or, as all clients do, by its name.
            hidden: kind & 0x8000_0000 != 0 || name.ends_with('$'),
            name,
            remark,
        }));
        match status {
            0 => return Ok(shares),
            // The resume handle must advance, or a server could keep us here forever.
            MORE_DATA if next > resume => resume = next,
            _ => return Err(Error::Unlisted("it refuses to")),
        }
    }
    Err(Error::Unlisted("its list has no end"))
}

/// The stub data of a response, reassembled from its fragments.
async fn answer(pipe: &File) -> Result<Vec<u8>, Error> {
    let mut stub = Vec::new();
    loop {
        let (header, packet) = packet(pipe).await?;
        if header.kind != PacketType::RESPONSE {
            return Err(Error::Unlisted("it refuses the call"));
        }
        stub.extend_from_slice(&Response::parse(&packet)?.stub);
        if header.flags.contains(Flags::LAST) {
            return Ok(stub);
        }
        if stub.len() > MAX_ANSWER_BYTES {
            return Err(Error::Unlisted("its list has no end"));
        }
    }
}

/// One whole packet: a server may return it in several messages.
async fn packet(pipe: &File) -> Result<(Header, Bytes), Error> {
    let mut bytes = BytesMut::new();
    loop {
        if bytes.len() >= HEADER_LEN {
            let header = Header::parse(&bytes)?;
            let len = usize::from(header.frag_len);
            if header.frag_len > FRAGMENT_BYTES || bytes.len() > len {
                return Err(Error::Unlisted("a fragment of its list has a wrong length"));
            }
            if bytes.len() == len {
                return Ok((header, bytes.freeze()));
            }
        }
        let part = pipe.read(0, usize::from(FRAGMENT_BYTES)).await?;
        if part.is_empty() {
            return Err(Error::Unlisted("a fragment of its list is missing"));
        }
        bytes.extend_from_slice(&part);
    }
}
