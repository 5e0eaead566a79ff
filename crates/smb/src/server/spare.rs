//! Memory for messages that are decrypted or decompressed while the pool has none left.
//!
//! Whoever decrypts a message holds it meanwhile, in a buffer of the pool. If all of the pool were such messages, and each
//! waited there for a second buffer, none would ever get one. So they wait here, where nobody holds anything while it waits for more:
//! what is decrypted waits for room to be decompressed in another pool than what is to be decrypted.

use weft_machine::buf::MAX_BUF;
use weft_machine::{Buf, Pool};

/// The most memory that messages of one kind take here.
const SPARE_BYTES: usize = 4 * MAX_BUF;

/// See the module.
pub(super) struct Spare {
    pool: Pool,
    decrypted: Pool,
    decompressed: Pool,
}

impl Spare {
    /// Beside this pool.
    pub(super) fn new(pool: Pool) -> Spare {
        Spare { pool, decrypted: Pool::new(SPARE_BYTES), decompressed: Pool::new(SPARE_BYTES) }
    }

    /// Room for `len` bytes that are decrypted. The caller may hold the encrypted ones.
    pub(super) async fn to_decrypt(&self, len: usize) -> Buf {
        self.room(&self.decrypted, len).await
    }

    /// Room for `len` bytes that are decompressed. The caller may hold the compressed ones, decrypted.
    pub(super) async fn to_decompress(&self, len: usize) -> Buf {
        self.room(&self.decompressed, len).await
    }

    async fn room(&self, spare: &Pool, len: usize) -> Buf {
        match self.pool.try_alloc(len) {
            Some(room) => room,
            None => spare.alloc(len).await,
        }
    }

    /// Returns memory that was not needed lately to the system; see [`Pool::trim`].
    pub(super) fn trim(&self) {
        self.decrypted.trim();
        self.decompressed.trim();
    }
}
