//! Payload on its way to a peer: bytes in memory, or a range of a file that nobody has read yet.
//!
//! Owns: its buffers or its open file. Does not: say where it goes (see `transport::Part`).

use std::io;

use bytes::Bytes;

use crate::buf::Pool;
use crate::file::FileRange;

/// What a READ returns and a WRITE carries.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Buffers in order.
    Chain(Vec<Bytes>),
    /// A file range, read as late as possible.
    File(FileRange),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Chain(chain) => chain.iter().map(Bytes::len).sum(),
            Payload::File(range) => range.len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in memory: a file range is read into one pool buffer, a chain is returned as it is.
    pub async fn into_chain(self, pool: &Pool) -> io::Result<Vec<Bytes>> {
        match self {
            Payload::Chain(chain) => Ok(chain),
            Payload::File(range) => {
                let mut buf = pool.alloc(range.len).await;
                buf.set_len(range.len);
                let window = buf.into_window();
                range.read_into(&window).await?;
                let buf = window.try_into_buf().expect("nobody else holds this window");
                Ok(vec![buf.freeze()])
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload::Chain(vec![bytes])
    }
}
