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
    decrypted: Pool,
    decompressed: Pool,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare { decrypted: Pool::new(SPARE_BYTES), decompressed: Pool::new(SPARE_BYTES) }
    }
}

impl Spare {
    /// Room for a message that is decrypted. The caller may hold the encrypted one.
    pub(super) async fn to_decrypt(&self, pool: &Pool, len: usize) -> Buf {
        room(pool, &self.decrypted, len).await
    }

    /// Room for a message that is decompressed. The caller may hold the compressed one, decrypted.
    pub(super) async fn to_decompress(&self, pool: &Pool, len: usize) -> Buf {
        room(pool, &self.decompressed, len).await
    }

    /// Returns memory that was not needed lately to the system; see [`Pool::trim`].
    pub(super) fn trim(&self) {
        self.decrypted.trim();
        self.decompressed.trim();
    }
}

async fn room(pool: &Pool, spare: &Pool, len: usize) -> Buf {
    match pool.try_alloc(len) {
        Some(room) => room,
        None => spare.alloc(len).await,
    }
}
