//! Waits until others have given up caching rights that are recalled from them.
//!
//! Spec: [MS-FSA] 2.1.4.12, [MS-SMB2] 3.3.4.2 (interim responses).

use std::pin::pin;

use futures_util::future::{Either, poll_immediate, select};
use weft_machine::rt;
use weft_store::opens::{Access, Refused};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::fscc::FileClass;

use super::opens::Open;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// Whether a client gets an interim response while its request waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interim {
    /// It gets one.
    Told,
    /// It gets none: Windows sends interim responses only for other commands than SET_INFO ([MS-SMB2] 3.3.4.2, note
    /// 240).
    Silent,
}

/// Waits until others have given up their caching rights, or until the client cancels. Returns whether there was a
/// wait.
pub(super) async fn wait<T>(
    cx: &OpContext,
    interim: Interim,
    work: impl Future<Output = Result<T, Refused>>,
) -> Result<(T, bool), Failure> {
    let mut work = pin!(work);
    if let Some(done) = poll_immediate(work.as_mut()).await {
        return Ok((done?, false));
    }
    if interim == Interim::Told {
        // The break may go to this same client, so it must precede the interim response.
        rt::yield_now().await;
        cx.pending();
    }
    match select(work, pin!(cx.cancelled())).await {
        Either::Left((done, _)) => Ok((done?, true)),
        Either::Right(((), _)) => Err(NtStatus::CANCELLED.into()),
    }
}

/// Breaks the caching rights that a SET_INFO would invalidate ([MS-FSA] 2.1.4.12, case SET_INFORMATION).
pub(super) async fn before_set_info(
    cx: &OpContext,
    open: &Open,
    class: FileClass,
    buffer: &[u8],
) -> Result<(), Failure> {
    let access = match class {
        FileClass::RENAME | FileClass::RENAME_EX | FileClass::LINK => Access::Rename,
        FileClass::DISPOSITION | FileClass::DISPOSITION_EX if buffer.first().is_some_and(|b| b & 1 != 0) => {
            Access::Handle
        }
        FileClass::END_OF_FILE | FileClass::ALLOCATION => Access::Write,
        _ => return Ok(()),
    };
    wait(cx, Interim::Silent, open.vfs.opens().clear(open.node, Some(open.claim.key()), access)).await?;
    Ok(())
}
