//! Apple's create context `AAPL`: what a Mac and a server can do beyond SMB.
//!
//! The layouts are those of Apple's published client (SMBClient, `netsmb/smb_2.h`). A Mac sends a query with its CREATE
//! of a share's root. The server's capabilities hold for the whole session, those of the volume for the share.
//!
//! ```text
//! 0 CommandCode | 4 Reserved
//! query, request:   8 RequestBitmap | 16 ClientCapabilities
//! query, response:  8 ReplyBitmap, then in the order of its bits: ServerCapabilities 8, VolumeCapabilities 8,
//!                   Pad 4, ModelLength 4, Model
//! resolve, request: 8 FileId
//! resolve, response: 8 Status | 12 PathLength | 16 Path
//! ```
//! Strings are UTF-16; their lengths are in bytes.

use super::field::{Put, Reader, bits, len32};
use super::{Malformed, NtStatus, utf16};

/// The name of the context.
pub(super) const NAME: &[u8] = b"AAPL";

const SERVER_QUERY: u32 = 1;
const RESOLVE_ID: u32 = 2;

bits! {
    /// The parts of an answer to a query.
    Parts: u64 {
        /// What the server can do.
        SERVER_CAPS = 0x01;
        /// What the volume can do.
        VOLUME_CAPS = 0x02;
        /// The model of the server's hardware.
        MODEL_INFO = 0x04;
    }
}

bits! {
    /// What a client or a server can do.
    ServerCaps: u64 {
        /// Listings of FileIdBothDirectoryInformation contain what a Mac would otherwise ask for each file.
        READ_DIR_ATTR = 0x01;
        /// SRV_COPYCHUNK without chunks copies a whole file with its streams and attributes.
        OSX_COPYFILE = 0x02;
        /// Files have a Unix mode.
        UNIX_BASED = 0x04;
        /// The mode can be set by an access control entry, as on Windows' NFS server.
        NFS_ACE = 0x08;
        /// READ_DIR_ATTR with flags; a server that has it leaves out READ_DIR_ATTR.
        READ_DIR_ATTR_V2 = 0x10;
    }
}

bits! {
    /// What a volume can do.
    VolumeCaps: u64 {
        /// It finds the path of a file's number.
        RESOLVE_ID = 0x01;
        /// Names that differ in case are different files.
        CASE_SENSITIVE = 0x02;
        /// FLUSH can make data durable on the medium itself (F_FULLFSYNC).
        FULL_SYNC = 0x04;
    }
}

/// The data of a request's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks what the server can do.
    Query {
        /// The requested parts.
        parts: Parts,
        /// What the client can do.
        client: ServerCaps,
    },
    /// Asks for the path of a file.
    Resolve {
        /// The file's number, as in listings.
        file_id: u64,
    },
    /// Any other command.
    Unknown {
        /// CommandCode.
        command: u32,
    },
}

impl Request {
    pub(super) fn parse(data: &[u8]) -> Result<Request, Malformed> {
        let mut r = Reader::new(data);
        let command = r.u32()?;
        r.u32()?;
        Ok(match command {
            SERVER_QUERY => Request::Query { parts: Parts(r.u64()?), client: ServerCaps(r.u64()?) },
            RESOLVE_ID => Request::Resolve { file_id: r.u64()? },
            command => Request::Unknown { command },
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, command: u32| {
            out.put_u32(command);
            out.put_u32(0);
        };
        match self {
            Request::Query { parts, client } => {
                head(out, SERVER_QUERY);
                out.put_u64(parts.0);
                out.put_u64(client.0);
            }
            Request::Resolve { file_id } => {
                head(out, RESOLVE_ID);
                out.put_u64(*file_id);
            }
            Request::Unknown { command } => head(out, *command),
        }
    }
}

/// The data of a response's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The parts that were asked for and are known.
    Query {
        /// What the server can do.
        server: Option<ServerCaps>,
        /// What the volume can do.
        volume: Option<VolumeCaps>,
        /// The model of the server's hardware, for its icon.
        model: Option<String>,
    },
    /// The path of a file.
    Resolve {
        /// Whether it was found.
        status: NtStatus,
        /// The path in the share; empty if it was not found.
        path: String,
    },
}

impl Response {
    pub(super) fn parse(data: &[u8]) -> Result<Response, Malformed> {
        let mut r = Reader::new(data);
        let command = r.u32()?;
        r.u32()?;
        match command {
            SERVER_QUERY => {
                let parts = Parts(r.u64()?);
                let has = |part| parts.contains(part);
                let server = has(Parts::SERVER_CAPS).then(|| r.u64().map(ServerCaps)).transpose()?;
                let volume = has(Parts::VOLUME_CAPS).then(|| r.u64().map(VolumeCaps)).transpose()?;
                let model = if has(Parts::MODEL_INFO) {
                    r.u32()?;
                    Some(text(&mut r)?)
                } else {
                    None
                };
                Ok(Response::Query { server, volume, model })
            }
            RESOLVE_ID => Ok(Response::Resolve { status: NtStatus(r.u32()?), path: text(&mut r)? }),
            _ => Err(Malformed("AAPL command")),
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Response::Query { server, volume, model } => {
                out.put_u32(SERVER_QUERY);
                out.put_u32(0);
                let has = |is: bool, part: Parts| if is { part } else { Parts::NONE };
                let parts = has(server.is_some(), Parts::SERVER_CAPS)
                    | has(volume.is_some(), Parts::VOLUME_CAPS)
                    | has(model.is_some(), Parts::MODEL_INFO);
                out.put_u64(parts.0);
                out.extend(server.iter().flat_map(|caps| caps.0.to_le_bytes()));
                out.extend(volume.iter().flat_map(|caps| caps.0.to_le_bytes()));
                if let Some(model) = model {
                    out.put_u32(0);
                    put_text(model, out);
                }
            }
            Response::Resolve { status, path } => {
                out.put_u32(RESOLVE_ID);
                out.put_u32(0);
                out.put_u32(status.0);
                put_text(path, out);
            }
        }
    }
}

fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = r.u32()? as usize;
    utf16::decode_lossy(r.take(len)?)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.put_u32(len32(utf16::encoded_len(text)));
    utf16::encode(text, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_as_a_mac_sends_it() {
        let bytes = [
            &[1, 0, 0, 0, 0, 0, 0, 0][..], // CommandCode, Reserved
            &[7, 0, 0, 0, 0, 0, 0, 0],     // RequestBitmap
            &[0x3f, 0, 0, 0, 0, 0, 0, 0],  // ClientCapabilities
        ]
        .concat();
        let query = Request::Query {
            parts: Parts::SERVER_CAPS | Parts::VOLUME_CAPS | Parts::MODEL_INFO,
            client: ServerCaps(0x3f),
        };
        assert_eq!(Request::parse(&bytes), Ok(query));
    }

    #[test]
    fn requests_and_every_truncation_of_them() {
        let all = [
            Request::Query { parts: Parts::MODEL_INFO, client: ServerCaps::UNIX_BASED },
            Request::Resolve { file_id: 0x0123_4567_89ab_cdef },
            Request::Unknown { command: 3 },
        ];
        for request in all {
            let mut bytes = Vec::new();
            request.emit(&mut bytes);
            assert_eq!(Request::parse(&bytes), Ok(request));
            (0..bytes.len()).for_each(|len| assert!(Request::parse(&bytes[..len]).is_err()));
        }
    }

    #[test]
    fn responses_and_every_truncation_of_them() {
        let all = [
            Response::Query {
                server: Some(ServerCaps::READ_DIR_ATTR | ServerCaps::UNIX_BASED),
                volume: Some(VolumeCaps::FULL_SYNC),
                model: Some("Xserve".into()),
            },
            Response::Query { server: None, volume: Some(VolumeCaps::NONE), model: None },
            Response::Query { server: None, volume: None, model: None },
            Response::Resolve { status: NtStatus::SUCCESS, path: "a\\b".into() },
        ];
        for response in all {
            let mut bytes = Vec::new();
            response.emit(&mut bytes);
            assert_eq!(Response::parse(&bytes), Ok(response));
            (0..bytes.len()).for_each(|len| assert!(Response::parse(&bytes[..len]).is_err()));
        }
        assert!(Response::parse(&[3, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn an_answer_as_a_mac_reads_it() {
        let answer = Response::Query {
            server: Some(ServerCaps(0x17)),
            volume: Some(VolumeCaps::FULL_SYNC),
            model: Some("Xs".into()),
        };
        let mut bytes = Vec::new();
        answer.emit(&mut bytes);
        let expected = [
            &[1, 0, 0, 0, 0, 0, 0, 0][..], // CommandCode, Reserved
            &[7, 0, 0, 0, 0, 0, 0, 0],     // ReplyBitmap
            &[0x17, 0, 0, 0, 0, 0, 0, 0],  // ServerCapabilities
            &[4, 0, 0, 0, 0, 0, 0, 0],     // VolumeCapabilities
            &[0, 0, 0, 0, 4, 0, 0, 0],     // Pad, ModelLength
            b"X\0s\0",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }
}
