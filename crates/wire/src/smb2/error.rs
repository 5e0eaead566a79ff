//! The body of a response whose status is an error ([MS-SMB2] 2.2.2). Symbolic link and redirect data are not parsed.

use bytes::Bytes;

use super::field::{Put, fixed, len32, pad, region, slice, u32_at};
use super::{HEADER_LEN, Malformed};

/// ErrorId of ordinary error data.
pub const ERROR_ID_DEFAULT: u32 = 0;
/// ErrorId of a share redirect.
pub const ERROR_ID_SHARE_REDIRECT: u32 = 0x7264_5253;

/// Data of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Plain data: empty, the required length in 4 bytes (STATUS_BUFFER_TOO_SMALL), or a symbolic link.
    Plain(Bytes),
    /// Dialect 3.1.1: a list of contexts; never empty.
    Contexts(Vec<ErrorContext>),
}

/// One error context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorContext {
    /// ErrorId.
    pub id: u32,
    /// Its data.
    pub data: Bytes,
}

impl Response {
    /// An error without data.
    pub const EMPTY: Response = Response::Plain(Bytes::new());

    /// STATUS_BUFFER_TOO_SMALL with the required length in bytes. Dialect 3.1.1 puts it in a context.
    pub fn buffer_too_small(needed: u32, in_context: bool) -> Response {
        let data = Bytes::copy_from_slice(&needed.to_le_bytes());
        match in_context {
            true => Response::Contexts(vec![ErrorContext { id: ERROR_ID_DEFAULT, data }]),
            false => Response::Plain(data),
        }
    }

    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        const STRUCTURE: &str = "error data";
        let b = fixed::<8>(message, 9)?;
        let mut data = region(message, HEADER_LEN + 8, u32_at(b, 4) as usize, HEADER_LEN + 8, STRUCTURE)?;
        if b[2] == 0 {
            return Ok(Response::Plain(data));
        }
        let mut contexts = Vec::with_capacity(usize::from(b[2]));
        for number in 1..=b[2] {
            let head = data.first_chunk::<8>().ok_or(Malformed(STRUCTURE))?;
            let (len, id) = (u32_at(head, 0) as usize, u32_at(head, 4));
            contexts.push(ErrorContext { id, data: slice(&data, 8, len).ok_or(Malformed(STRUCTURE))? });
            // `len` lies within the message, so this cannot overflow. Only the last context may lack its padding.
            let next = len.next_multiple_of(8).saturating_add(8);
            if number < b[2] {
                if next > data.len() {
                    return Err(Malformed(STRUCTURE));
                }
                data = data.slice(next..);
            }
        }
        Ok(Response::Contexts(contexts))
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        let count = match self {
            Response::Plain(plain) => {
                data.put(plain);
                0
            }
            Response::Contexts(contexts) => {
                for context in contexts {
                    pad(&mut data, 0, 8);
                    data.put_u32(len32(context.data.len()));
                    data.put_u32(context.id);
                    data.put(&context.data);
                }
                u8::try_from(contexts.len()).unwrap_or(u8::MAX)
            }
        };
        out.put_u16(9);
        out.put_u8(count);
        out.put_u8(0);
        out.put_u32(len32(data.len()));
        if data.is_empty() {
            // 2.2.2: a body without data still has one byte.
            out.put_u8(0);
        }
        out.put(&data);
    }
}
