//! Payload for a peer ([`Payload`]), and payload from a peer for a file ([`PayloadSource`]).
//!
//! The receiver of payload decides late how to take it: a peer's transport sends a range of a file that was not read yet; a file in
//! memory asks the source of a write to fill it.
//!
//! It owns its buffers or its open file; `transport::Part` holds the destination.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;

use bytes::Bytes;

use crate::buf::{MAX_BUF, Pool};
use crate::file::{File, FileRange};

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

    /// Cuts off the first `n` bytes without touching any: buffers are sliced, a file range becomes two.
    ///
    /// # Panics
    /// If there are fewer than `n`.
    pub fn take_front(&mut self, n: usize) -> Payload {
        assert!(n <= self.len());
        if n == self.len() {
            return std::mem::replace(self, Payload::Chain(Vec::new()));
        }
        match self {
            Payload::File(range) => {
                let front = FileRange { len: n, ..range.clone() };
                range.offset += n as u64;
                range.len -= n;
                Payload::File(front)
            }
            Payload::Chain(chain) => {
                let mut front: Vec<Bytes> = Vec::new();
                let mut missing = n;
                let mut whole = 0;
                for piece in chain.iter_mut() {
                    if piece.len() > missing {
                        if missing > 0 {
                            front.push(piece.split_to(missing));
                        }
                        break;
                    }
                    missing -= piece.len();
                    front.push(std::mem::take(piece));
                    whole += 1;
                }
                chain.drain(..whole);
                Payload::Chain(front)
            }
        }
    }

    /// The bytes in memory: a file range is read into pool buffers (a single one, up to [`MAX_BUF`] bytes), a chain is
    /// returned unchanged.
    pub async fn into_chain(self, pool: &Pool) -> io::Result<Vec<Bytes>> {
        let range = match self {
            Payload::Chain(chain) => return Ok(chain),
            Payload::File(range) => range,
        };
        let mut chain = Vec::with_capacity(range.len.div_ceil(MAX_BUF));
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(MAX_BUF);
            let offset = range.offset.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
            let piece = FileRange { file: range.file.clone(), offset, len };
            chain.push(piece.read_to(pool.alloc(len).await).await?);
            done += len;
        }
        Ok(chain)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload::Chain(vec![bytes])
    }
}

/// What a write takes its bytes from.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a> {
    /// Buffers in order.
    Memory(&'a [Bytes]),
    /// The first `len` bytes of what a peer keeps.
    Remote {
        /// Where they are.
        payload: &'a dyn RemotePayload,
        /// `len <= payload.len()`.
        len: usize,
    },
}

impl PayloadSource<'_> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            PayloadSource::Memory(chain) => chain.iter().map(|piece| piece.len() as u64).sum(),
            PayloadSource::Remote { len, .. } => *len as u64,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Payload on its way into memory.
pub type Fetching = Pin<Box<dyn Future<Output = io::Result<Bytes>>>>;

/// Payload in a peer's memory, where it stays until the request that names it is answered.
pub trait RemotePayload: Debug {
    /// How many bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills a file in memory with the first `len` bytes, from `offset` on, without a buffer between. `None`: that is not possible
    /// without waiting; then [`RemotePayload::fetch`] brings them, or says why not. The content of the range is undefined until then.
    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>>;
    /// Brings all of it into memory.
    fn fetch(&self) -> Fetching;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::File;
    use crate::rt;

    #[test]
    fn a_file_range_becomes_bytes_and_a_chain_stays() {
        rt::block_on(async {
            let pool = Pool::new(4 * MAX_BUF);
            let file = File::in_memory("payload").expect("memfd");
            file.write_at(10, &[Bytes::from_static(b"some"), Bytes::new(), Bytes::from_static(b"thing")])
                .await
                .expect("write");
            let range = |len| Payload::File(FileRange { file: file.clone(), offset: 10, len });
            assert_eq!(range(9).len(), 9);
            assert_eq!(range(9).into_chain(&pool).await.expect("read"), [&b"something"[..]]);
            // Bytes that the file does not have are zeros.
            assert_eq!(range(12).into_chain(&pool).await.expect("read"), [&b"something\0\0\0"[..]]);
            assert!(range(0).is_empty());
            assert!(range(0).into_chain(&pool).await.expect("read").is_empty());
            // More than one buffer can hold.
            let chain = range(MAX_BUF + 5).into_chain(&pool).await.expect("read");
            assert_eq!(chain.iter().map(Bytes::len).collect::<Vec<_>>(), [MAX_BUF, 5]);
            let bytes = Payload::from(Bytes::from_static(b"as it is"));
            assert_eq!(bytes.len(), 8);
            assert_eq!(bytes.into_chain(&pool).await.expect("no read"), [&b"as it is"[..]]);
        })
        .expect("the loop starts");
    }
}
